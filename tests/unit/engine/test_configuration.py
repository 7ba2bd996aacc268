from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine import configuration as conf

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def catalogue():
    text = (ROOT / "group_vars/all/configs.yml").read_text()
    return conf.merge_catalogues(yaml.safe_load(text)["sglang_configs"])


def test_the_catalogue_is_that_of_the_campaign(catalogue):
    runnable = conf.runnable_names(catalogue)
    assert sorted(runnable) == sorted(["tp8", "pp8", "ep8", "ep8_tuned", "ep8_eplb", "ep4", "tp4ep2", "tp2ep4"])
    for name in runnable:
        entry = conf.resolve(name, catalogue)
        assert entry["description"]
        assert entry["environment"]["NCCL_P2P_LEVEL"] == "SYS"
        assert name == "tp8" or (entry["against"] and entry["hypothesis"]), name


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tp8", (8, None, None, 64)),
        ("pp8", (None, 8, None, 64)),
        ("ep8", (8, None, 8, 64)),
        ("ep8_tuned", (8, None, 8, 256)),
        ("ep4", (8, None, 4, 256)),
        ("tp4ep2", (4, None, 2, 64)),
        ("tp2ep4", (2, None, 4, 64)),
    ],
)
def test_flags_of_the_campaign(catalogue, name, sizes):
    engine = conf.resolve(name, catalogue)["engine"]
    assert tuple(engine.get(key) for key in ("tp_size", "pp_size", "ep_size", "max_running_requests")) == sizes
    assert engine["mem_fraction_static"] == 0.88
    assert engine["context_length"] == 32768


def test_a_child_overrides_adds_and_takes_away():
    catalogue = conf.merge_catalogues(
        {
            "a": {"abstract": True, "engine": {"tp_size": 8, "page_size": 16}, "environment": {"X": "1"}},
            "b": {"extends": "a", "engine": {"tensor-parallel-size": 4, "page_size": None}},
        }
    )
    assert conf.resolve("b", catalogue)["engine"] == {"tp_size": 4}
    assert conf.resolve("b", catalogue)["environment"] == {"X": "1"}
    assert conf.resolve("b", catalogue)["extends"] == ["a"]


@pytest.mark.parametrize("typed", ["ep8_tuned", "ep8-tuned", "EP8-Tuned"])
def test_dash_or_underscore(catalogue, typed):
    assert conf.find_name(typed, catalogue) == "ep8_tuned"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"a": {"extends": "b"}, "b": {"extends": "c"}, "c": {"extends": "a"}}, "a -> b -> c -> a"),
        ({"a": {"extends": "a"}}, "a -> a"),
        ({"a": {"extends": "bse"}, "base": {}}, "The nearest is 'base'"),
        ({"a": {"against": "none"}}, "held against 'none'"),
    ],
)
def test_what_cannot_be_resolved_is_named(entries, words):
    with pytest.raises(conf.ConfigurationError, match=words):
        conf.resolve("a", conf.merge_catalogues(entries))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"engine": {"port": 1}}, "sglang_service_port"),
        ({"engine": {"model-path": "/x"}}, "sglang_model_path"),
        ({"engine": {"api_key": "secret"}}, "proxy"),
        ({"environment": {"HF_TOKEN": "secret"}}, "'HF_TOKEN', which holds a key"),
        ({"environment": {"http_proxy": "http://me:secret@proxy:3128"}}, "'http_proxy', which holds a key"),
        ({"engin": {}}, "did you mean 'engine'"),
        ({"engine": [1]}, "not a mapping"),
        ("text", "not a mapping"),
    ],
)
def test_what_does_not_belong_in_the_catalogue_is_refused(entry, words):
    with pytest.raises(conf.ConfigurationError, match=words) as refusal:
        conf.merge_catalogues({"mine": entry})
    assert "mine" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_site_adds_and_replaces(catalogue):
    merged = conf.merge_catalogues(catalogue, {"ep2": {"extends": "ep8", "engine": {"ep_size": 2}}})
    assert conf.resolve("ep2", merged)["engine"]["ep_size"] == 2
    assert "ep8" in merged


def test_an_unknown_name_answers_with_the_list_and_the_nearest(catalogue):
    with pytest.raises(conf.ConfigurationError, match="The nearest is 'ep8_tuned'") as refusal:
        conf.find_name("ep8-tunde", catalogue)
    assert "tp2ep4" in str(refusal.value)
    with pytest.raises(conf.ConfigurationError, match="abstract"):
        conf.find_name("base", catalogue)


def test_a_baseline_comes_before_what_is_held_against_it(catalogue):
    names = conf.runnable_names(catalogue, "ep4, ep8-tuned,ep8")
    assert names == ["ep8", "ep8_tuned", "ep4"]


def test_difference_of_ep8_tuned_and_ep8(catalogue):
    changes = conf.difference(conf.resolve("ep8", catalogue), conf.resolve("ep8_tuned", catalogue))
    assert changes == [("max_running_requests", 64, 256), ("num_continuous_decode_steps", None, 8)]


_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
_mappings = st.dictionaries(st.text(min_size=1), _values, max_size=6)


@given(_mappings)
def test_fingerprint_does_not_know_order(mapping):
    assert conf.fingerprint(mapping) == conf.fingerprint(dict(reversed(list(mapping.items()))))


@given(_mappings, _mappings)
def test_difference_is_empty_only_between_equals_and_turns_round(a, b):
    one, two = {"engine": a, "environment": {}}, {"engine": b, "environment": {}}
    forth, back = conf.difference(one, two), conf.difference(two, one)
    assert back == [(key, after, before) for key, before, after in forth]
    assert conf.difference(one, one) == []


def test_fingerprint_of_a_known_value():
    # printf '[{"a":1}]' | sha256sum
    expected = "b713f6d2a989e907c58516a7c8bb487792c8785ddbf367b80dc774bf33b85a85"
    assert conf.fingerprint({"a": 1}) == expected


@pytest.mark.parametrize("name", ["engine", "model", "preflight"])
def test_a_name_whose_host_fact_tells_something_else_is_taken(name):
    with pytest.raises(conf.ConfigurationError, match=f"host fact sglang_{name} tells .* Choose another"):
        conf.merge_catalogues({name: {"engine": {}}})


def test_the_hosts_environment_is_read_as_a_configurations_is():
    own = {"NCCL_IB_DISABLE": True, "NCCL_P2P_LEVEL": 5, "PATH": "/bin", "NCCL_DEBUG": "WARN", "EMPTY": ""}
    rendered = conf.launch_environment({"NCCL_DEBUG": "info", "PATH": ""}, own)
    assert rendered == {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS", "NCCL_DEBUG": "INFO"}
    assert conf.environment_warnings({}, own) == [
        "NCCL_P2P_LEVEL=5 is an old number that means SYS; SYS is written instead. Write NCCL_P2P_LEVEL: SYS."
    ]


def test_what_of_the_environments_makes_another_measurement():
    """A transport that the host switches off for all its engines does; where CUDA lies does not."""
    own = {"CUDA_HOME": "/opt/cuda", "PATH": "/bin", "NCCL_P2P_DISABLE": True, "NCCL_IB_DISABLE": 1}
    measured = conf.measured_environment({"NCCL_IB_DISABLE": "", "CUDA_VISIBLE_DEVICES": "0"}, own)
    assert measured == {"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert conf.measured_environment({}, {"PATH": "/usr/bin", "CUDA_HOME": "/usr/local/cuda"}) == {}


@pytest.mark.parametrize(
    ("environment", "own", "engine", "words"),
    [
        ({"NCCL_P2P_DISABLE": 1}, {"NCCL_P2P_LEVEL": "SYS"}, {"tp_size": 8}, "NCCL_P2P_DISABLE=1 turns off"),
        ({}, {"NCCL_BUFFSIZE": "32M"}, {}, "NCCL would read 32"),
        ({"NCCL_GRAPH_FILE": "/g.xml"}, {}, {"tp_size": 8, "ep_size": 4}, "expert groups of 4"),
        ({"NCCL_PROTO": "LL128"}, {}, {"tp_size": 8}, "forces LL128 on"),
    ],
)
def test_an_environment_that_nccl_would_misread_is_refused(environment, own, engine, words):
    with pytest.raises(conf.ConfigurationError, match=words):
        conf.launch_environment(environment, own, engine)


def test_a_graph_file_for_one_group_over_all_gpus_is_taken():
    assert conf.launch_environment({"NCCL_GRAPH_FILE": "/g.xml"}, {}, {"tp_size": 8, "ep_size": 8})


@pytest.mark.parametrize(("own", "gpus"), [({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, None), ({}, 8)])
def test_a_graph_file_of_more_gpus_than_the_configuration_takes(own, gpus):
    # The file describes the GPUs that the engine can see: four of eight are not found in it.
    graph, four = {"NCCL_GRAPH_FILE": "/g.xml"}, {"tp_size": 4}
    assert conf.launch_environment(graph, {}, four)
    with pytest.raises(conf.ConfigurationError, match=r"describes 8 GPUs.*tensor-parallel groups of 4"):
        conf.launch_environment(graph, own, four, gpus)
    # Of eight GPUs only four are shown to it.
    assert conf.launch_environment(graph, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, four, 8)
