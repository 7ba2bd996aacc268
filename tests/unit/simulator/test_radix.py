"""The prefix cache against a plain list of sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmark.simulator.serve.radix import Node, RadixCache

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12)


def distinct_prefixes(sequences: list[list[int]]) -> int:
    """Tokens of a perfect prefix cache: one for each different prefix."""
    return len({tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)})


def shared(one: list[int], other: list[int]) -> int:
    return next((end for end, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def tree_tokens(node: Node) -> int:
    return len(node.key) + sum(tree_tokens(child) for child in node.children.values())


def test_a_prefix_is_found_and_a_branch_splits_a_node() -> None:
    cache = RadixCache()
    assert cache.insert([1, 2, 3, 4])[0] == 0
    assert cache.match([1, 2, 3, 4, 5])[0] == 4
    assert cache.match([1, 2, 9])[0] == 2
    assert cache.insert([1, 2, 9])[0] == 2
    assert cache.evictable == 5


def test_what_runs_is_locked_and_cannot_be_evicted() -> None:
    cache = RadixCache()
    _, node = cache.insert([1, 2, 3])
    cache.lock(node)
    cache.insert([1, 2, 7, 8])
    assert (cache.locked, cache.evictable) == (3, 2)
    assert cache.evict(100) == 2
    assert cache.match([1, 2, 3])[0] == 3
    cache.lock(node, -1)
    assert (cache.locked, cache.evictable) == (0, 3)
    assert cache.evict(1) >= 1


def test_the_oldest_goes_first() -> None:
    cache = RadixCache()
    cache.insert([1, 1])
    cache.insert([2, 2])
    cache.match([1, 1])
    cache.evict(1)
    assert cache.match([1, 1])[0] == 2
    assert cache.match([2, 2])[0] == 0


@given(SEQUENCES, st.lists(st.integers(0, 2), max_size=8))
def test_matches_and_sizes_are_those_of_the_plain_list(sequences: list[list[int]], probe: list[int]) -> None:
    cache = RadixCache()
    for sequence in sequences:
        cache.insert(sequence)
    longest = max((shared(sequence, probe) for sequence in sequences), default=0)
    assert cache.match(probe)[0] == longest
    assert cache.evictable == distinct_prefixes(sequences) == tree_tokens(cache.root)


@given(SEQUENCES, st.lists(st.integers(0, 11), max_size=6), st.integers(0, 40))
def test_locking_and_evicting_keep_the_books(sequences: list[list[int]], locked: list[int], wanted: int) -> None:
    cache = RadixCache()
    nodes = [(sequence, cache.insert(sequence)[1]) for sequence in sequences]
    held = [sequences[number] for number in locked if number < len(nodes)]
    for sequence in held:
        cache.lock(cache.match(sequence)[1])
    assert cache.locked == distinct_prefixes(held)
    before = cache.evictable
    dropped = cache.evict(wanted)
    assert dropped >= min(wanted, before)
    assert cache.evictable == before - dropped
    assert cache.locked + cache.evictable == tree_tokens(cache.root)
    for sequence in held:
        assert cache.match(sequence)[0] == len(sequence)
