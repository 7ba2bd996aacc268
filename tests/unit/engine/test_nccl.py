"""The environment: what is rendered, what is refused, and why. Values follow NCCL's own parsing rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.layout import Layout
from benchmark.engine.nccl import ALLOW_LL128, KNOWN, LEVELS, RULES, normalise_environment, transport
from benchmark.engine.verdict import SEVERITIES


def only(name: str, value: Any) -> tuple[str | None, list[tuple[str, str]]]:
    """What becomes of one variable: its text, or None, and (severity, rule) of each verdict."""
    rendered, verdicts = normalise_environment({name: value})
    return rendered.get(name), [(verdict.severity, verdict.rule) for verdict in verdicts]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        # Ansible's true would be "True", which NCCL reads as 0.
        ("NCCL_IB_DISABLE", True, "1"),
        ("NCCL_IB_DISABLE", False, "0"),
        ("NCCL_IB_DISABLE", 1, "1"),
        ("NCCL_IB_DISABLE", "1", "1"),
        ("NCCL_P2P_DISABLE", True, "1"),
        ("NCCL_NVLS_ENABLE", 0, "0"),
        ("NCCL_NVLS_ENABLE", 2, "2"),
        ("NCCL_BUFFSIZE", 33554432, "33554432"),
        ("NCCL_BUFFSIZE", "4194304", "4194304"),
        ("NCCL_MIN_NCHANNELS", 8, "8"),
        ("NCCL_P2P_LEVEL", "SYS", "SYS"),
        ("NCCL_P2P_LEVEL", "PXB", "PXB"),
        ("NCCL_ALGO", "Ring", "Ring"),
        ("NCCL_ALGO", "ring,tree", "Ring,Tree"),
        ("NCCL_ALGO", "^tree", "^Tree"),
        ("NCCL_ALGO", "allreduce:tree;allgather:ring", "allreduce:Tree;allgather:Ring"),
        ("NCCL_PROTO", "simple", "Simple"),
        ("NCCL_PROTO", "LL,Simple", "LL,Simple"),
        ("NCCL_PROTO", "^LL128", "^LL128"),
        ("NCCL_DEBUG", "info", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH", "INIT,ENV,GRAPH"),
        ("NCCL_DEBUG_FILE", "/var/log/nccl.%h.%p.log", "/var/log/nccl.%h.%p.log"),
        ("OMP_NUM_THREADS", 8, "8"),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3", "0,1,2,3"),
        ("CUDA_HOME", "/usr/local/cuda-13.0", "/usr/local/cuda-13.0"),
        ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", True, "1"),
    ],
)
def test_rendered_without_a_word(name: str, value: Any, text: str) -> None:
    assert only(name, value) == (text, [])


@pytest.mark.parametrize("value", [None, "", "  "])
@pytest.mark.parametrize("name", ["NCCL_GRAPH_FILE", "NCCL_P2P_LEVEL", "CUDA_HOME"])
def test_empty_values_are_left_out(name: str, value: Any) -> None:
    """An empty NCCL_GRAPH_FILE is opened and fails the start; an empty variable is never rendered."""
    assert only(name, value) == (None, [])


@pytest.mark.parametrize(
    ("value", "word"),
    # NCCL 2.30.7 paths.cc: levelsOldToNew = {LOC, PIX, PXB, PHB, SYS, SYS}, larger ones are clamped.
    [(0, "LOC"), (1, "PIX"), (2, "PXB"), (3, "PHB"), (4, "SYS"), (5, "SYS"), ("5", "SYS"), (99, "SYS")],
)
def test_old_levels_become_words(value: Any, word: str) -> None:
    assert only("NCCL_P2P_LEVEL", value) == (word, [("note", "nccl-level-number")])
    _, verdicts = normalise_environment({"NCCL_P2P_LEVEL": value})
    assert (
        verdicts[0].sentence == f"NCCL_P2P_LEVEL={value} is an old number that means {word}; {word} is written instead."
    )


@pytest.mark.parametrize("value", ["sys", "Sys", " SYS", "SYS ", '"SYS"', "NODE", "-1", True, 2.0])
def test_levels_that_nccl_would_ignore_are_refused(value: Any) -> None:
    assert only("NCCL_P2P_LEVEL", value) == (None, [("reject", "nccl-level-word")])


def test_the_right_word_is_offered() -> None:
    for value in ("sys", " SYS", '"SYS"'):
        _, verdicts = normalise_environment({"NCCL_P2P_LEVEL": value})
        assert verdicts[0].advice == "Write NCCL_P2P_LEVEL: SYS."
    _, verdicts = normalise_environment({"NCCL_P2P_LEVEL": "NODE"})
    assert verdicts[0].advice == f"Write one of {', '.join(LEVELS)}."


@pytest.mark.parametrize("name", ["NCCL_COMM_BLOCKING", "NCCL_SOMETHING_NEW"])
def test_words_for_switches_that_no_table_has_become_digits(name: str) -> None:
    assert only(name, "True") == ("1", [("note", "nccl-boolean")])


@pytest.mark.parametrize("name", ["NCCL_NVLS_CHUNKSIZE", "NCCL_SOMETHING_NEW"])
def test_sizes_with_a_suffix_are_refused_whatever_their_name(name: str) -> None:
    assert only(name, "32M") == (None, [("reject", "nccl-number")])


@pytest.mark.parametrize(("value", "digit"), [("True", "1"), ("yes", "1"), ("on", "1"), ("False", "0"), ("no", "0")])
def test_words_for_switches_become_digits(value: str, digit: str) -> None:
    assert only("NCCL_IB_DISABLE", value) == (digit, [("note", "nccl-boolean")])


@pytest.mark.parametrize("value", ["maybe", "2", 7, "1.0", 1.0, "0x1", "01", " 1"])
def test_other_switches_are_refused(value: Any) -> None:
    assert only("NCCL_IB_DISABLE", value) == (None, [("reject", "nccl-boolean")])


@pytest.mark.parametrize("value", ["32M", "0x10", "010", 0, -1, "1e6", 4194304.0, True, "4_194_304", "many"])
def test_sizes_that_are_not_plain_are_refused(value: Any) -> None:
    assert only("NCCL_BUFFSIZE", value) == (None, [("reject", "nccl-number")])


def test_a_suffix_is_told_as_nccl_reads_it() -> None:
    _, verdicts = normalise_environment({"NCCL_BUFFSIZE": "32M"})
    assert verdicts[0].sentence == "NCCL_BUFFSIZE='32M' is not a plain number above zero; NCCL would read 32."


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("NCCL_ALGO", "Ringg", "nccl-algo"),
        ("NCCL_ALGO", "allreduces:ring", "nccl-algo"),
        ("NCCL_PROTO", "LL64", "nccl-proto"),
        ("NCCL_PROTO", "LL LL128", "nccl-proto"),
        ("NCCL_PROTO", True, "nccl-proto"),
        ("NCCL_DEBUG", "verbose", "nccl-debug"),
        ("nccl_p2p_level", "SYS", "environment-name"),
        ("NCCL-ALGO", "Ring", "environment-name"),
        ("", "x", "environment-name"),
        ("LD_PRELOAD", ["a", "b"], "environment-value"),
        ("X", {"a": 1}, "environment-value"),
        ("X", "a\nExecStart=/bin/sh", "environment-control-character"),
        ("X", "a\x00b", "environment-control-character"),
        ("X", "a\tb", "environment-control-character"),
        ("X", "a\u2028b", "environment-control-character"),
        ("NCCL_DEBUG_FILE", "/tmp/a\r", "environment-control-character"),
        ("NCCL_DEBUG_FILE", "~/nccl.log", "nccl-file-home"),
        ("NCCL_TOPO_FILE", "~ops/topology.xml", "nccl-file-home"),
    ],
)
def test_refused(name: str, value: Any, rule: str) -> None:
    assert only(name, value) == (None, [("reject", rule)])


@pytest.mark.parametrize(
    "value",
    # parseList sets what is not named behind ^ to 1, and 1 is forced: ^LL is LL128,Simple.
    ["LL128", "LL,LL128,Simple", "ll,ll128", "allreduce:LL128", "^LL", "^Simple", "^LL,Simple", "allreduce:^LL"],
)
def test_ll128_wants_an_explicit_permission(value: str) -> None:
    assert only("NCCL_PROTO", value) == (None, [("reject", "nccl-ll128")])
    for permission in (True, "true", "1", 1):
        rendered, verdicts = normalise_environment({"NCCL_PROTO": value, ALLOW_LL128: permission})
        assert ALLOW_LL128 not in rendered and "NCCL_PROTO" in rendered
        assert [(verdict.severity, verdict.rule) for verdict in verdicts] == [("doubt", "nccl-ll128")]
    rendered, verdicts = normalise_environment({"NCCL_PROTO": value, ALLOW_LL128: False})
    assert rendered == {} and [verdict.severity for verdict in verdicts] == ["reject"]


def test_p2p_off_and_a_level_contradict() -> None:
    rendered, verdicts = normalise_environment({"NCCL_P2P_DISABLE": True, "NCCL_P2P_LEVEL": 5, "NCCL_IB_DISABLE": 1})
    assert rendered == {"NCCL_IB_DISABLE": "1"}
    assert [verdict.rule for verdict in verdicts if verdict.severity == "reject"] == ["nccl-p2p-contradiction"]
    rendered, verdicts = normalise_environment({"NCCL_P2P_DISABLE": False, "NCCL_P2P_LEVEL": "SYS"})
    assert rendered == {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"} and verdicts == []


@pytest.mark.parametrize(
    ("layout", "gpus_there", "severities"),
    [
        (None, None, ["doubt"]),
        (Layout(tp=8, ep=8), 8, []),
        (Layout(tp=8), 8, []),
        (Layout(tp=8), None, []),
        (Layout(tp=4), 8, ["reject"]),
        (Layout(tp=4), 4, []),
        (Layout(tp=8, ep=4), 8, ["reject"]),
        (Layout(tp=4, pp=2), 8, ["reject"]),
        (Layout(tp=8, attention_dp=4), 8, ["reject"]),
        # One pipeline group of eight ranks, whose neighbours send and receive in communicators of two.
        (Layout(pp=8), 8, ["reject"]),
        (Layout(tp=8, dcp=4), 8, ["reject"]),
        (Layout(tp=8, dcp=8), 8, []),
        # Attention groups of 4 beside context groups of 2.
        (Layout.from_engine({"tp_size": 8, "attn_cp_size": 2}), 8, ["reject"]),
        (Layout.from_engine({"tp_size": 8, "attention_context_parallel_size": 8}), 8, []),
        (Layout.from_engine({"tp_size": 8, "moe_dp_size": 2}), 8, ["reject"]),
    ],
)
def test_a_graph_file_needs_whole_groups(layout: Layout | None, gpus_there: int | None, severities: list[str]) -> None:
    rendered, verdicts = normalise_environment({"NCCL_GRAPH_FILE": "/etc/graph.xml"}, layout, gpus_there)
    assert [verdict.severity for verdict in verdicts] == severities
    assert ("NCCL_GRAPH_FILE" in rendered) == ("reject" not in severities)


def test_a_graph_file_names_the_small_groups() -> None:
    _, verdicts = normalise_environment({"NCCL_GRAPH_FILE": "/etc/graph.xml"}, Layout(tp=4, pp=2), 8)
    assert "8 GPUs" in verdicts[0].sentence and "tensor-parallel groups of 4" in verdicts[0].sentence
    assert "pipeline groups of 2" in verdicts[0].sentence
    _, verdicts = normalise_environment(
        {"NCCL_GRAPH_FILE": "/etc/graph.xml"}, Layout(tp=8, ep=4, moe_dp=2, attention_cp=2), 8
    )
    assert verdicts[0].sentence.endswith(
        "this split has expert groups of 4, expert data-parallel groups of 2, attention context groups of 2, "
        "attention tensor-parallel groups of 4."
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"NCCL_ALGO": "Tree"}, [("doubt", "nccl-algo")]),
        ({"NCCL_ALGO": "Tree,Ring"}, []),
        ({"NCCL_PROTO": "LL"}, [("doubt", "nccl-proto")]),
        ({"NCCL_SHM_DISABLE": 1}, [("doubt", "nccl-shm-off")]),
        ({"NCCL_MIN_NCHANNELS": 128}, [("doubt", "nccl-channels")]),
        ({"NCCL_MIN_NCHANNELS": 16, "NCCL_MAX_NCHANNELS": 8}, [("reject", "nccl-channels")]),
        ({"NCCL_MIN_NCHANNELS": 8, "NCCL_MAX_NCHANNELS": 16}, []),
        ({"NCCL_P2P_LEVLE": "SYS"}, [("doubt", "nccl-unknown")]),
        ({"NCCL_SOMETHING_NEW": "1"}, []),
    ],
)
def test_doubts_and_pairs(environment: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    _, verdicts = normalise_environment(environment)
    assert [(verdict.severity, verdict.rule) for verdict in verdicts] == expected


def test_the_campaigns_environment() -> None:
    rendered, verdicts = normalise_environment(
        {
            "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
            "NCCL_IB_DISABLE": 1,
            "NCCL_P2P_LEVEL": 5,
            "NCCL_ALGO": "Ring",
            "OMP_NUM_THREADS": 8,
        }
    )
    assert rendered == {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "8",
    }
    assert [verdict.rule for verdict in verdicts] == ["nccl-level-number"]


def test_nothing_gives_nothing() -> None:
    assert normalise_environment(None) == ({}, [])
    assert normalise_environment({}) == ({}, [])


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(KNOWN | {ALLOW_LL128})), st.text(max_size=20)),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=20),
            st.sampled_from(["SYS", "sys", "Ring", "LL128", "32M", "True", "^", ",", ";", ":", "a:b", "allreduce:"]),
            st.lists(st.integers(), max_size=2),
        ),
        max_size=6,
    )
)
def test_wild_environments(environment: dict[str, Any]) -> None:
    """Whatever comes in, a unit file line can hold what goes out, and a second pass changes nothing."""
    rendered, verdicts = normalise_environment(environment, Layout(tp=4, pp=2), 8)
    ids = {rule.id for rule in RULES}
    assert all(verdict.rule in ids and verdict.severity in SEVERITIES for verdict in verdicts)
    for name, text in rendered.items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and text.strip() and isinstance(text, str)
        assert text.isprintable() or not any(ord(char) < 32 for char in text)
        if name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
            assert text in LEVELS
        if name == "NCCL_IB_DISABLE":
            assert text in ("-2", "-1", "0", "1")
        if name == "NCCL_BUFFSIZE":
            assert text.isdigit() and int(text) > 0
    again = {name: text for name, text in environment.items() if name == ALLOW_LL128}
    assert normalise_environment(rendered | again, Layout(tp=4, pp=2), 8)[0] == rendered


@pytest.mark.parametrize(
    ("via", "kind"),
    # The lines of NCCL 2.28 to 2.30 (tests/data/nccl has them whole).
    [
        ("P2P/CUMEM", "P2P/CUMEM"),
        ("P2P/CUMEM/read", "P2P/CUMEM"),
        ("P2P/IPC", "P2P/IPC"),
        ("SHM/direct/direct", "SHM"),
        ("SHM/CE/CE", "SHM"),
        ("NET/Socket/0", "NET"),
        ("NET/IB/0/GDRDMA", "NET"),
    ],
)
def test_a_transport_has_one_name(via: str, kind: str) -> None:
    assert transport(via) == kind
