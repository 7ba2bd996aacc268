"""Workloads and their prompts."""

import json

import numpy as np
import pytest

from benchmark.load.further import open_loop
from benchmark.load.prompts import PromptSource, Tokenization, corpus, prose_text
from benchmark.load.workload import NAMED, Workload, WorkloadError, given, named


def test_shipped_workloads_are_sound():
    for name, work in NAMED.items():
        assert Workload.from_mapping(work.to_mapping()) == work
        assert work.name == name
    # F1.20: accepted tokens are counted over 30 s at least.
    assert named("chat").minimum_window_seconds == named("long_prompt").minimum_window_seconds == 30
    assert (named("chat").prompt_tokens, named("chat").output_tokens) == (1024, 512)
    with pytest.raises(WorkloadError, match="quick, chat, long_prompt, quick_long, prose"):
        named("none")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "needs a name"),
        ({"name": "a/b"}, "file name"),
        ({"name": "w", "output": 3}, "no key 'output'"),
        ({"name": "w", "prompt_tokens": "many"}, "'prompt_tokens' is 'many'; it must be int"),
        ({"name": "w", "prompt_tokens": True}, "must be int"),
        ({"name": "w", "prompt_tokens": 0}, "at least 1"),
        ({"name": "w", "kind": "poem"}, "random_ids, text, shared_prefix, replay"),
        ({"name": "w", "length_range": 0}, "at most 1"),
        ({"name": "w", "rate": -1.0}, "above 0"),
        ({"name": "w", "window_seconds": float("inf")}, "above 0"),
        ({"name": "w", "minimum_window_seconds": 500}, "at most window_seconds"),
        ({"name": "w", "kind": "shared_prefix"}, "below prompt_tokens"),
        ({"name": "w", "shared_prefix_tokens": 5}, "only the kind shared_prefix"),
        ({"name": "w", "kind": "replay"}, "needs a file"),
        ({"name": "w", "kind": "replay", "file": "/no/such"}, "no such file"),
        ({"name": "w", "half_width": 1}, "between 0 and 1"),
    ],
)
def test_bad_workloads_say_what_is_wrong(values, says):
    with pytest.raises(WorkloadError, match=says):
        Workload.from_mapping(values)


def test_whole_numbers_are_taken_for_seconds():
    assert (
        Workload.from_mapping({"name": "w", "window_seconds": 30, "minimum_window_seconds": 5}).window_seconds == 30.0
    )


WORK = Workload(name="w", prompt_tokens=100, output_tokens=40)


def test_lengths_are_exact_and_prompts_new():
    source = PromptSource(WORK, (8, 1))
    prompts = [source.prompt(i) for i in range(20)]
    assert {len(p.content) for p in prompts} == {100}
    assert {p.output_tokens for p in prompts} == {40}
    assert len({tuple(p.content[:4]) for p in prompts}) == 20


def test_the_same_for_every_configuration_and_new_for_each_point():
    one = PromptSource(WORK, (8, 1)).prompt(3)
    assert PromptSource(WORK, (8, 1)).prompt(3) == one
    for other in ((8, 2), (16, 1)):
        assert PromptSource(WORK, other).prompt(3).content[:4] != one.content[:4]


def test_an_open_loop_has_prompts_of_its_own():
    closed = named("quick")
    offered = open_loop(closed, 2.0, ttft_limit_seconds=1.0)
    pairs = [[PromptSource(work, (64, 1)).prompt(i).content for i in range(20)] for work in (closed, offered)]
    assert not {tuple(ids[:4]) for ids in pairs[0]} & {tuple(ids[:4]) for ids in pairs[1]}


def test_no_workload_begins_with_the_prompts_of_another():
    short, long = (PromptSource(named(name), (1, 1)).prompt(0).content for name in ("chat", "long_prompt"))
    assert (len(short), len(long)) == (1024, 16384)
    assert long[:4] != short[:4]


def test_first_wave_lengths_are_spread_evenly():
    """Forty tokens over a wave of eight: 2.5, 7.5 ... 37.5 in some order, rounded to even halves."""
    source = PromptSource(WORK, (8, 1))
    lengths = [source.prompt(i, first_wave_of=8).output_tokens for i in range(8)]
    assert sorted(lengths) == [2, 8, 12, 18, 22, 28, 32, 38]
    assert lengths != sorted(lengths)


def test_first_wave_of_more_than_tokens():
    source = PromptSource(Workload(name="w", output_tokens=2), (100, 1))
    lengths = [source.prompt(i, first_wave_of=100).output_tokens for i in range(100)]
    assert set(lengths) == {1, 2}


def test_a_range_of_lengths():
    source = PromptSource(Workload(name="w", prompt_tokens=100, output_tokens=40, length_range=0.5), (1, 1))
    prompts = [source.prompt(i) for i in range(300)]
    assert {min(len(p.content) for p in prompts), max(len(p.content) for p in prompts)} <= {
        *range(50, 54),
        *range(97, 101),
    }
    assert all(20 <= p.output_tokens <= 40 for p in prompts)


def test_shared_prefix():
    work = Workload(name="w", kind="shared_prefix", prompt_tokens=100, shared_prefix_tokens=60)
    source = PromptSource(work, (1, 1), Tokenization(ids=np.arange(1000, 9000)))
    a, b = source.prompt(0).content, source.prompt(1).content
    assert a[:60] == b[:60]
    assert a[60:64] != b[60:64]
    assert len(a) == 100


def test_prose_in_ids_is_made_of_the_corpus():
    ids = np.arange(100_000, 140_000)
    prompt = PromptSource(Workload(name="w", kind="text", prompt_tokens=900), (1, 1), Tokenization(ids=ids)).prompt(0)
    assert len(prompt.content) == 900
    assert all(token >= 100_000 for token in prompt.content[4:])
    steps = np.diff(prompt.content[4:])
    assert (steps == 1).sum() > 0.98 * len(steps)


def test_text_has_the_length_that_was_measured():
    """Four characters a token and ten tokens of template: 100 tokens are 360 characters."""
    tokenization = Tokenization(characters_per_token=4.0, overhead_tokens=10)
    for kind in ("text", "random_ids"):
        source = PromptSource(Workload(name="w", kind=kind, prompt_tokens=100), (1, 1), tokenization, as_ids=False)
        assert len(source.prompt(0).content) == 360
        assert source.prompt(0).content[:20] != source.prompt(1).content[:20]


def test_the_corpus_is_prose():
    assert len(corpus()) > 100_000
    assert "Alice" in prose_text(np.random.default_rng(1), 5000)


def test_replay(tmp_path):
    file = tmp_path / "r.jsonl"
    lines = [
        {"prompt": "one", "output_tokens": 3},
        {"input_ids": [5, 6], "max_tokens": 4},
        {"messages": [{"role": "user", "content": "x"}], "output_tokens": 5, "prompt_tokens": 9},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    work = Workload.from_mapping({"name": "w", "kind": "replay", "file": str(file)})
    prompts = [PromptSource(work, (1, 1)).prompt(i) for i in range(6)]
    assert sorted(p.output_tokens for p in prompts) == [3, 3, 4, 4, 5, 5]
    assert {(p.prompt_tokens, p.output_tokens) for p in prompts} == {(0, 3), (2, 4), (9, 5)}


def test_a_replayed_first_wave_is_spread(tmp_path):
    """Eight lines of 40 tokens: as of any workload, 2.5, 7.5 ... 37.5 in some order, rounded to even halves."""
    file = tmp_path / "r.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": str(i), "output_tokens": 40}) for i in range(8)))
    source = PromptSource(Workload(name="w", kind="replay", file=str(file)), (8, 1))
    lengths = [source.prompt(i, first_wave_of=8).output_tokens for i in range(8)]
    assert sorted(lengths) == [2, 8, 12, 18, 22, 28, 32, 38]
    assert source.prompt(0).output_tokens == 40


MESSAGES = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("route", "line", "refused"),
    [
        ("generate", MESSAGES, "`messages`"),
        ("completions", MESSAGES, "`messages`"),
        ("chat", {"input_ids": [5, 6]}, "`input_ids`"),
        ("chat", MESSAGES, None),
        ("generate", {"input_ids": [5, 6]}, None),
        ("chat", {"prompt": "x"}, None),
    ],
)
def test_a_line_that_the_route_does_not_take(tmp_path, route, line, refused):
    file = tmp_path / "r.jsonl"
    file.write_text('{"prompt": "x", "output_tokens": 4}\n' + json.dumps(line | {"output_tokens": 4}))
    work = Workload(name="w", kind="replay", file=str(file))
    if refused is None:
        assert PromptSource(work, (1, 1), route=route).prompt(0).output_tokens == 4
    else:
        with pytest.raises(WorkloadError, match=f"line 2, has {refused}, which the route {route} does not take"):
            PromptSource(work, (1, 1), route=route)


def test_a_workload_of_a_file(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"prompt": "x", "output_tokens": 4}')
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"kind": "replay", "file": "r.jsonl", "window_seconds": 40}))
    found = given(str(path))
    assert (found.name, found.file, found.window_seconds) == ("ours", str(tmp_path / "r.jsonl"), 40.0)
    assert given("chat") == named("chat")
    with pytest.raises(WorkloadError, match="cannot be read as a workload"):
        given(str(tmp_path / "none.json"))
    path.write_text("[]")
    with pytest.raises(WorkloadError, match="holds no workload"):
        given(str(path))


def test_the_longest_line_of_a_replay(tmp_path):
    """By tokens where they are told: 400 + 3; else four characters are one: 40 + 300, 500 + 5."""
    file = tmp_path / "r.jsonl"
    lines = [
        {"prompt": "x", "output_tokens": 3, "prompt_tokens": 400},
        {"prompt": "y" * 160, "output_tokens": 300},
        {"prompt": "z" * 2000, "output_tokens": 5},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    work = Workload.from_mapping({"name": "w", "kind": "replay", "file": str(file)})
    assert PromptSource(work, (0, 0)).longest().content[0] == "z"


@pytest.mark.parametrize(("line", "says"), [("{", "line 2, is no JSON"), ('{"prompt": "x"}', "line 2: a line needs")])
def test_replay_files_say_which_line_is_wrong(tmp_path, line, says):
    file = tmp_path / "r.jsonl"
    file.write_text('{"prompt": "one", "output_tokens": 3}\n' + line)
    with pytest.raises(WorkloadError, match=says):
        PromptSource(Workload(name="w", kind="replay", file=str(file)), (1, 1))
