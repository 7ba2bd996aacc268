"""The prefix cache: a tree of token sequences, shared by running requests, evicted least recently used first."""

from __future__ import annotations

from collections.abc import Sequence


class Node:
    """A stretch of tokens below its parent."""

    __slots__ = ("children", "key", "locks", "parent", "used")

    def __init__(self, key: tuple[int, ...], parent: Node | None):
        self.key = key
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.used = 0


def _shared(key: Sequence[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens of `key` stand in `tokens` from `start` on."""
    length = min(len(key), len(tokens) - start)
    if tuple(tokens[start : start + length]) == tuple(key[:length]):
        return length
    for number in range(length):
        if key[number] != tokens[start + number]:
            return number
    return length


class RadixCache:
    """Tokens whose keys and values are in memory. `locked` ones belong to running requests."""

    def __init__(self) -> None:
        self.root = Node((), None)
        self.root.locks = 1
        self.evictable = 0
        """Tokens that no running request uses."""
        self.locked = 0
        self._clock = 0

    def match(self, tokens: Sequence[int]) -> tuple[int, Node]:
        """(tokens of the longest cached prefix, the node that it ends in)."""
        self._clock += 1
        node, done = self.root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            shared = _shared(child.key, tokens, done)
            if shared < len(child.key):
                child = self._split(child, shared)
            child.used = self._clock
            node, done = child, done + shared
            if shared < len(child.key):
                break
        return done, node

    def insert(self, tokens: Sequence[int]) -> tuple[int, Node]:
        """Caches a sequence; returns (tokens that were there already, the node that it ends in)."""
        done, node = self.match(tokens)
        if done < len(tokens):
            leaf = Node(tuple(tokens[done:]), node)
            leaf.used = self._clock
            node.children[tokens[done]] = leaf
            self.evictable += len(leaf.key)
            node = leaf
        return done, node

    def lock(self, node: Node | None, change: int = 1) -> None:
        """A running request uses (or with -1 no longer uses) a node and all above it."""
        while node is not None and node.parent is not None:
            before, node.locks = node.locks, node.locks + change
            if before == 0 and node.locks > 0:
                self.evictable -= len(node.key)
                self.locked += len(node.key)
            elif before > 0 and node.locks == 0:
                self.evictable += len(node.key)
                self.locked -= len(node.key)
            node = node.parent

    def evict(self, wanted: int) -> int:
        """Drops at least `wanted` tokens that nobody uses, oldest leaves first; returns how many it dropped."""
        dropped = 0
        leaves = sorted(self._free_leaves(), key=lambda leaf: leaf.used, reverse=True)
        while dropped < wanted and leaves:
            leaf = leaves.pop()
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key[0]]
            self.evictable -= len(leaf.key)
            dropped += len(leaf.key)
            if not parent.children and parent.locks == 0:
                leaves.append(parent)
        return dropped

    def _free_leaves(self) -> list[Node]:
        stack, found = list(self.root.children.values()), []
        while stack:
            node = stack.pop()
            stack += node.children.values()
            if not node.children and node.locks == 0:
                found.append(node)
        return found

    def _split(self, node: Node, length: int) -> Node:
        """Cuts a node after `length` tokens; returns the upper part."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:length], parent)
        upper.locks, upper.used = node.locks, node.used
        parent.children[node.key[0]] = upper
        node.key, node.parent = node.key[length:], upper
        upper.children[node.key[0]] = node
        return upper
