"""The engine's rules: what they say in words, by release, and on wild input. The table is in test_rules_table.py."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.flags import FlagError, flag_table, releases
from benchmark.engine.hardware import find_host
from benchmark.engine.layout import Layout
from benchmark.engine.models import load_model
from benchmark.engine.rules import UnknownRule, check, dead_flags, explain, rules
from benchmark.engine.rules.command import _OTHER_NAMES
from benchmark.engine.verdict import SEVERITIES

FAILURES = Path(__file__).parents[2] / "captures" / "failures"
PRO = "8x RTX PRO 6000 Blackwell"
KIMI = "kimi-k2.6"
BASE = {
    "mem_fraction_static": 0.88,
    "context_length": 32768,
    "attention_backend": "triton",
    "trust_remote_code": True,
    "grammar_backend": "none",
}
LEVEL = {"NCCL_P2P_LEVEL": "SYS"}


def test_rules_are_whole() -> None:
    ids = [rule.id for rule in rules()]
    assert len(set(ids)) == len(ids)
    for rule in rules():
        assert rule.id == rule.id.lower() and " " not in rule.id
        assert rule.title and rule.text.endswith(".") and rule.source and rule.advice.endswith((".", "!"))
        assert explain(rule.id) is rule


def the(rule: str, found: list):
    return next(verdict for verdict in found if verdict.rule == rule)


def test_the_campaigns_verdicts_in_words() -> None:
    """A newcomer reads these and knows what is wrong."""
    kimi, host = load_model(KIMI), find_host(PRO)

    def judge(**engine: Any) -> list:
        return check({"engine": BASE | engine, "environment": LEVEL}, kimi, host, "0.5.23")

    idle = the("unused-gpus", judge(tp_size=4, ep_size=2))
    assert "4 of 8 GPUs" in idle.sentence and "adds no GPUs" in idle.sentence
    assert "tp_size: 8, ep_size: 2" in idle.advice
    larger = the("ep-larger-than-tp", judge(tp_size=2, ep_size=4))
    assert "ep 4" in larger.sentence and "tp 2" in larger.sentence
    assert "tp_size: 8, ep_size: 4" in larger.advice
    dead = the("dead-flag", judge(tp_size=8, ep_size=8, num_continuous_decode_steps=8))
    assert "read by nothing" in dead.sentence


def test_engine_messages_are_those_of_real_starts() -> None:
    log = (FAILURES / "ep_not_dividing.log").read_text(encoding="utf-8")
    found = check({"engine": {"tp_size": 1, "ep_size": 2}}, load_model("mini-moe"), find_host("1x H200"), "0.5.11")
    assert (the("ep-larger-than-tp", found).engine_message or "?") in log
    log = (FAILURES / "tp2_one_gpu.log").read_text(encoding="utf-8")
    found = check({"engine": {"tp_size": 2}}, load_model("mini-moe"), find_host("1x H200"), "0.5.11")
    assert (the("world-size", found).engine_message or "?") in log
    assert the("world-size", found).sentence == "tp2 needs 2 GPUs; the host has 1."
    log = (FAILURES / "bad_flag.log").read_text(encoding="utf-8")
    found = check({"engine": {"no_such_flag": 1}}, load_model("mini-moe"), find_host("1x H200"), "0.5.11")
    assert (the("command-line", found).engine_message or "?") in log


def test_engine_messages_have_the_numbers_of_the_case() -> None:
    # The message of kvcache-ai/ktransformers#2036 and of SGLang's own check, with 1536 / 8.
    found = check({"engine": {"tp_size": 8}}, load_model("minimax-m2.7"), None, "0.5.23")
    block = the("quantization-block", found)
    assert "(moe_intermediate_size=1536 / moe_tp_size=8) % weight_block_size_n=128 == 0" in str(block.engine_message)
    assert "192 wide" in block.sentence
    # 1536 / 4 = 384 = 3 x 128, so two, four and eight expert groups do; 256 experts divide by each.
    assert block.advice == "With tp_size 8 use ep_size 2 or 4 or 8."
    found = check({"engine": {"tp_size": 256}}, load_model("qwen3-30b-a3b"), None, "0.5.23")
    message = the("tp-larger-than-experts", found).engine_message
    assert message == "Tensor parallel size 256 is greater than the number of experts 128."


def test_without_a_host_or_a_model_the_rest_is_still_judged() -> None:
    found = check({"engine": {"tp_size": 2, "ep_size": 4}}, None, None, "0.5.23")
    assert [verdict.rule for verdict in found] == ["ep-larger-than-tp"]
    assert check({}, None, None, "0.5.23") == []


def test_an_ambiguous_prefix_is_told_as_argparse_tells_it() -> None:
    found = check({"engine": {"tp_size": 8, "cuda_graph_max_bs": 64}}, None, None, "0.5.20")
    renamed = the("flag-renamed", found)
    assert str(renamed.engine_message).startswith("error: ambiguous option: --cuda-graph-max-bs could match ")
    assert renamed.advice == "Write cuda_graph_max_bs_decode."


def test_names_of_other_releases_exist_there() -> None:
    """A hint that no release has would send the user astray."""
    everywhere = {flag for release in releases() for flag in flag_table(release)}
    for other in _OTHER_NAMES.values():
        assert "--" + other.split(":")[0].replace("_", "-") in everywhere, other


@pytest.mark.parametrize(
    ("release", "dead", "alive"),
    [
        # Read by syntax tree in the wheels: which attributes of ServerArgs any code of the release loads.
        ("0.5.4.post3", {"num_continuous_decode_steps", "file_storage_path"}, {"triton_attention_reduce_in_fp32"}),
        (
            "0.5.11",
            {"num_continuous_decode_steps", "triton_attention_reduce_in_fp32", "debug_tensor_dump_inject"},
            set(),
        ),
        ("0.5.21", {"num_continuous_decode_steps", "file_storage_path", "spec_trace_dir"}, set()),
        ("0.5.22", {"num_continuous_decode_steps", "spec_trace_dir"}, {"file_storage_path"}),
        ("0.5.23", {"num_continuous_decode_steps", "triton_attention_reduce_in_fp32"}, {"max_running_requests"}),
    ],
)
def test_dead_flags(release: str, dead: set[str], alive: set[str]) -> None:
    assert dead <= dead_flags(release)
    assert not alive & dead_flags(release)


def test_dead_flags_are_flags_of_their_release() -> None:
    for release in releases():
        table = flag_table(release)
        assert all("--" + key.replace("_", "-") in table for key in dead_flags(release))


def test_dead_flags_of_no_release() -> None:
    with pytest.raises(FlagError):
        dead_flags("main")


def test_explain_names_the_nearest() -> None:
    with pytest.raises(UnknownRule, match="ep-divides-tp"):
        explain("ep-divide-tp")


def test_a_catalogue_is_judged_in_a_moment() -> None:
    kimi, host = load_model(KIMI), find_host(PRO)
    check({"engine": BASE | {"tp_size": 8}}, kimi, host, "0.5.23")
    start = time.perf_counter()
    for _ in range(100):
        check({"engine": BASE | {"tp_size": 8, "ep_size": 8}, "environment": LEVEL}, kimi, host, "0.5.23")
    assert time.perf_counter() - start < 2.0


WIDTH = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])


@settings(max_examples=150, deadline=None)
@given(tp=WIDTH, ep=WIDTH, pp=WIDTH, attention_dp=WIDTH)
def test_widths_that_pass_nest(tp: int, ep: int, pp: int, attention_dp: int) -> None:
    """What is not rejected has whole groups, heads, experts and shards, and fits the host."""
    engine = BASE | {"tp_size": tp, "ep_size": ep, "pp_size": pp, "attn_dp_size": attention_dp}
    kimi = load_model(KIMI)
    found = check({"engine": engine, "environment": LEVEL}, kimi, find_host(PRO), "0.5.23")
    passes = not any(verdict.severity == "reject" for verdict in found)
    fits = (
        tp * pp <= 8
        and tp % ep == 0
        and tp % attention_dp == 0
        and 384 % ep == 0
        and 64 % (tp // attention_dp) == 0
        and 2048 % (tp // ep * 32) == 0
    )
    assert passes == fits


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70000),
    st.floats(allow_nan=True),
    st.text(max_size=12),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = st.one_of(
    st.sampled_from(
        [flag.lstrip("-").replace("-", "_") for flag in flag_table("0.5.23")]
        + ["tp", "pp", "dp", "cuda_graph_max_bs", "nsa_prefill_backend", "--tp-size"]
    ),
    st.text(max_size=12),
)


@settings(max_examples=300, deadline=None)
@given(
    engine=st.dictionaries(KEYS, VALUES, max_size=6),
    environment=st.dictionaries(st.text(max_size=12), VALUES, max_size=3),
    release=st.one_of(st.sampled_from(releases()), st.text(max_size=8)),
    model=st.sampled_from([KIMI, "llama-3.1-8b", "minimax-m2.7", None]),
)
def test_wild_configurations_get_verdicts_not_tracebacks(
    engine: dict[str, Any], environment: dict[str, Any], release: str, model: str | None
) -> None:
    shape = load_model(model) if model else None
    known = {rule.id for rule in rules()}
    for verdict in check({"engine": engine, "environment": environment}, shape, find_host(PRO), release):
        assert verdict.rule in known and verdict.severity in SEVERITIES and verdict.sentence


def test_a_graph_file_is_judged_by_the_layout() -> None:
    environment = LEVEL | {"NCCL_GRAPH_FILE": "/etc/nccl/graph.xml"}
    kimi, host = load_model(KIMI), find_host(PRO)
    assert Layout(tp=8, ep=8).moe_tp == 1
    whole = check({"engine": BASE | {"tp_size": 8, "ep_size": 8}, "environment": environment}, kimi, host, "0.5.23")
    assert "nccl-graph-file" not in {verdict.rule for verdict in whole}
    cut = check({"engine": BASE | {"tp_size": 8, "ep_size": 4}, "environment": environment}, kimi, host, "0.5.23")
    assert the("nccl-graph-file", cut).severity == "reject"


def test_the_vision_towers_heads_divide_too() -> None:
    """gpustack/gpustack#4769: 16 vision heads over 6 ranks. Kimi's tower has 16 as well."""
    shape = load_model(KIMI)
    shape = replace(shape, heads=96, vision=SimpleNamespace(layers=27, hidden=1152, intermediate=4304, heads=16))
    host = find_host("6x RTX PRO 6000 Blackwell")
    found = check({"engine": BASE | {"tp_size": 6}}, shape, host, "0.5.23")
    assert the("vision-heads-divide", found).severity == "reject"
    found = check({"engine": BASE | {"tp_size": 6, "mm_enable_dp_encoder": True}}, shape, host, "0.5.23")
    assert "vision-heads-divide" not in {verdict.rule for verdict in found}
    found = check({"engine": BASE | {"tp_size": 4}}, shape, host, "0.5.23")
    assert "vision-heads-divide" not in {verdict.rule for verdict in found}
