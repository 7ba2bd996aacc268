from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine import flags

CAPTURES = Path(__file__).parents[2] / "captures"


def test_the_table_of_0_5_11_is_what_its_own_usage_prints():
    log = re.sub(r"(?m)^\s*\d+\.\d\d ", "", (CAPTURES / "failures/bad_flag.log").read_text())
    usage = log[log.index("usage:") : log.index("error: unrecognized")]
    printed = set(re.findall(r"--[a-z0-9][a-z0-9-]+", usage))
    table = flags.flag_table("0.5.11")
    primaries = {flag for flag, spec in table.items() if "primary" not in spec}
    assert primaries <= printed
    # usage names three negations that the sources spell by BooleanOptionalAction
    assert {flag for flag in printed - set(table) if not flag.startswith("--no-")} == set()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tp_size", 8, ["--tp-size", "8"]),
        ("tp-size", "8", ["--tp-size", "8"]),
        ("trust_remote_code", True, ["--trust-remote-code"]),
        ("trust_remote_code", False, []),
        ("max_total_tokens", None, []),
        ("mem_fraction_static", 0.88, ["--mem-fraction-static", "0.88"]),
        ("context_length", "128k", ["--context-length", "128k"]),
        ("context_length", "128Ki", ["--context-length", "128Ki"]),
        ("cuda_graph_bs", [1, 2, 4], ["--cuda-graph-bs", "1", "2", "4"]),
        ("chunked_prefill_size", -1, ["--chunked-prefill-size", "-1"]),
        ("model_loader_extra_config", {"b": 1, "a": True}, ["--model-loader-extra-config", '{"a":true,"b":1}']),
    ],
)
def test_values_become_words(key, value, words):
    assert flags.flag_arguments(key, value, "0.5.11") == words


@pytest.mark.parametrize(
    ("key", "value", "release", "said"),
    [
        ("cuda_graph_max_bs", 64, "0.5.23", r"--cuda-graph-max-bs-decode"),
        ("cuda_graph_max_bs_decode", 64, "0.5.11", r"nearest is --cuda-graph-max-bs\."),
        ("attn_dp_size", 2, "0.5.11", r"it is in 0\.5\.22 to 0\.5\.23"),
        ("tp", 8, "0.5.11", r"nearest is --tp-size"),
        ("pp", 8, "0.5.23", r"nearest is --pp-size"),
        ("ep_sise", 8, "0.5.11", r"nearest is --ep-size"),
        ("mem_fraction_static", "much", "0.5.11", r"takes a number"),
        ("tp_size", 1.5, "0.5.11", r"takes a whole number"),
        ("context_length", "128K", "0.5.11", r"takes a whole number"),
        ("tp_size", True, "0.5.11", r"takes a value"),
        ("tp_size", [1], "0.5.11", r"single value"),
        ("trust_remote_code", "yes", "0.5.11", r"true or false"),
        ("attention_backend", "tritn", "0.5.11", r"nearest is triton"),
        ("chat_template", "a\nb", "0.5.11", r"control characters"),
        ("chat_template", "a\x85b", "0.5.11", r"control characters"),
        ("tp_size", 8, "0.4.0", r"older than every release"),
        ("tp_size", 8, "latest", r"not an SGLang version"),
    ],
)
def test_what_the_release_does_not_take_is_refused_with_the_nearest(key, value, release, said):
    with pytest.raises(flags.FlagError, match=said):
        flags.flag_arguments(key, value, release)


def test_two_spellings_of_one_flag_are_refused():
    with pytest.raises(flags.FlagError, match="--tp-size and --tensor-parallel-size are one flag"):
        flags.launch_arguments({"tp_size": 8, "tensor_parallel_size": 4}, "0.5.11")


@pytest.mark.parametrize(
    ("engine", "own", "flag"),
    [
        ({}, {"further": {"api_key": "planted"}}, "--api-key"),
        ({}, {"further": {"admin-api-key": "planted"}}, "--admin-api-key"),
        ({"ssl_keyfile_password": "planted"}, {}, "--ssl-keyfile-password"),
        ({}, {"further": {"tokenizer_path": "https://me:planted@hub/x"}}, "--tokenizer-path"),
        ({}, {"further": {"config": "/etc/planted.yaml"}}, "--config"),
    ],
)
def test_a_secret_on_the_command_line_is_refused_without_being_shown(engine, own, flag):
    with pytest.raises(flags.FlagError, match=flag) as refusal:
        flags.launch_lines(engine, "0.5.11", own)
    assert "planted" not in str(refusal.value)


def test_a_configuration_wins_over_what_the_host_gives_to_all():
    own = {"model_path": "/m", "port": 1, "further": {"max_running_requests": 8, "enable_metrics": True}}
    lines = flags.launch_lines({"max_running_requests": 64}, "0.5.11", own)
    assert lines == [
        ["--model-path", "/m"],
        ["--port", "1"],
        ["--max-running-requests", "64"],
        ["--enable-metrics"],
    ]


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("0.5.11", "0.5.11"),
        ("0.5.14", "0.5.13.post1"),
        ("0.5.23.post2", "0.5.23"),
        ("0.6.0", "0.5.23"),
        ("0.5.5", "0.5.4.post3"),
    ],
)
def test_a_release_between_two_known_ones_is_read_as_the_older(asked, known):
    assert flags.resolve_release(asked) == known


def test_aliases_have_one_spelling_in_every_release():
    # 0.5.11 calls --tensor-parallel-size the main name, 0.5.23 calls --tp-size that.
    assert flags.canonical_key("tensor-parallel-size") == "tp_size"
    assert flags.canonical_key("ep") == "ep_size"
    assert flags.canonical_key("not_a_flag") == "not_a_flag"


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())))
def test_wild_settings_give_words_or_a_flag_error(engine):
    try:
        words = flags.launch_arguments(engine, "0.5.23")
    except flags.FlagError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(word, str) for word in words)


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=4))
def test_json_values_arrive_as_they_were(value):
    _flag, text = flags.flag_arguments("model_loader_extra_config", value, "0.5.23")
    assert json.loads(text) == value
