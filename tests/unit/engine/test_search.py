from pathlib import Path

import pytest
import yaml

from benchmark.campaign.experiments import claims
from benchmark.campaign.search import family_of
from benchmark.engine.configuration import merge_catalogues, resolve
from benchmark.engine.hardware import find_host
from benchmark.engine.layout import Layout
from benchmark.engine.models import load_model
from benchmark.engine.search import search, splits
from benchmark.engine.share import baseline_of

ROOT = Path(__file__).parents[3]
KIMI = load_model("kimi-k2.6")
RTX = find_host("8x RTX PRO 6000 Blackwell")
WORKLOAD = {"prompt_tokens": 1024, "output_tokens": 512}
BASE = {"engine": {"trust_remote_code": True, "context_length": 32768, "tp_size": 2, "max_running_requests": 64}}


def test_every_split_of_eight_gpus_once():
    found = list(splits(KIMI, RTX))
    # tp 8, 4, 2, 1 (pp 1, 2, 4, 8), and for each tp every ep and attention DP that divides it: 16 + 9 + 4 + 1.
    assert len(found) == len(set(found)) == 30
    assert all(layout.gpus == 8 and layout.whole for layout in found)


@pytest.mark.parametrize(
    ("model", "host", "layout", "there"),
    [
        # An expert's width: 768 / 8 = 96 is no whole block of 128.
        ("qwen3-30b-a3b-fp8", "8x H200", Layout(tp=8), False),
        ("qwen3-30b-a3b-fp8", "8x H200", Layout(tp=8, ep=8), True),
        # 6 GPUs: 64 heads do not divide by 6 or 3; tp2 pp3 stays.
        ("glm-5-nvfp4", "6x RTX PRO 6000", Layout(tp=6), False),
        ("glm-5-nvfp4", "6x RTX PRO 6000", Layout(tp=2, pp=3), True),
        # Four key heads are repeated over eight ranks.
        ("qwen3-235b-a22b", "8x H200", Layout(tp=8), True),
        ("llama-3.1-8b", "8x H200", Layout(tp=8, ep=8), False),
    ],
)
def test_widths_divide_what_they_split(model, host, layout, there):
    assert (layout in splits(load_model(model), find_host(host))) is there


def test_a_search_is_ranked_and_its_entries_can_be_pasted():
    found = search(KIMI, RTX, "0.5.11", WORKLOAD, (1, 64), BASE)
    order = {"runs": 0, "doubtful": 1, "rejected": 2}
    ranks = [order[result["plan"]["verdict"]] for result in found]
    assert ranks == sorted(ranks)
    runs = [result for result in found if result["plan"]["verdict"] == "runs"]
    peaks = [result["plan"]["speed"]["peak"]["expected"] for result in runs]
    assert peaks == sorted(peaks, reverse=True)
    # As `shardsweep plan --search` prints them.
    text = yaml.safe_dump({"sglang_site_configs": {result["name"]: result["entry"] for result in found}})
    catalogue = yaml.safe_load(text)["sglang_site_configs"]
    for result in found:
        entry = resolve(result["name"], catalogue)
        assert entry["engine"] == result["configuration"]["engine"]
        # The base's own split is replaced, its other settings stay.
        assert entry["engine"]["context_length"] == 32768


ENVIRONMENT = {"NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"}


def test_entries_stand_beside_a_catalogue_as_experiments():
    found = search(KIMI, RTX, "0.5.11", WORKLOAD, (1, 64), BASE | {"environment": ENVIRONMENT})
    entries = {result["name"]: result["entry"] for result in found}
    assert len(entries) == len(found)
    own = yaml.safe_load((ROOT / "group_vars/all/configs.yml").read_text())["sglang_configs"]
    assert not entries.keys() & own.keys()
    # ep8 extends the catalogue's tp8, and still has what that has.
    both = merge_catalogues(own, entries)
    assert resolve("ep8", both) == resolve("ep8", own)
    best, *others = (result["name"] for result in found if result["plan"]["verdict"] == "runs")
    assert "against" not in entries[best]
    assert baseline_of([resolve(name, both) for name in entries]) == best
    for name in others:
        entry = resolve(name, both)
        assert entry["environment"].items() >= {"OMP_NUM_THREADS": "8"}.items()
        # Each can be told right or wrong.
        assert claims(entry["hypothesis"]), entry["hypothesis"]


def test_the_best_splits_are_there_with_other_transports():
    found = search(KIMI, RTX, "0.5.11", WORKLOAD, (1, 64), BASE | {"environment": ENVIRONMENT})
    by_name = {result["name"]: result["configuration"] for result in found}
    plain = [c for c in by_name.values() if c["environment"] == ENVIRONMENT]
    varied = {name: c for name, c in by_name.items() if c["environment"] != ENVIRONMENT}
    assert len(plain) == 30
    # Three splits; NCCL_P2P_LEVEL and NCCL_ALGO have one other value each, and peer-to-peer can be off.
    changes = sorted({tuple(set(c["environment"].items()) - set(ENVIRONMENT.items())) for c in varied.values()})
    assert changes == [(("NCCL_ALGO", "Tree"),), (("NCCL_P2P_DISABLE", "1"),), (("NCCL_P2P_LEVEL", "PHB"),)]
    assert len(varied) == 9
    for configuration in varied.values():
        other = by_name[configuration["against"]]
        assert configuration["engine"] == other["engine"] and other["environment"] == ENVIRONMENT
        assert family_of(configuration) != family_of(other)
    # One GPU talks to nobody.
    alone = search(load_model("mini-moe"), find_host("1x H200"), "0.5.11", WORKLOAD, (1,), {"environment": ENVIRONMENT})
    assert {str(result["configuration"]["environment"]) for result in alone} == {str(ENVIRONMENT)}


def test_attention_dp_is_spelled_as_the_release_has_it():
    old = search(KIMI, RTX, "0.5.11", WORKLOAD, (1,), BASE)
    new = search(KIMI, RTX, "0.5.23", WORKLOAD, (1,), BASE)
    assert any(result["configuration"]["engine"].get("enable_dp_attention") for result in old)
    assert not any("attn_dp_size" in result["configuration"]["engine"] for result in old)
    assert any(result["configuration"]["engine"].get("attn_dp_size") == 8 for result in new)


def test_a_fraction_is_chosen_where_none_is_given():
    for result in search(KIMI, RTX, "0.5.23", WORKLOAD, (1,), BASE):
        memory = result["plan"]["memory"]
        if result["plan"]["verdict"] == "runs":
            assert memory["min_fraction"] < memory["mem_fraction_static"] < memory["max_fraction"]
            assert memory["slack_bytes"] > memory["prefill_bytes"]


def test_a_given_fraction_stays():
    base = {"engine": BASE["engine"] | {"mem_fraction_static": 0.88}}
    fractions = {
        r["configuration"]["engine"]["mem_fraction_static"] for r in search(KIMI, RTX, "0.5.23", WORKLOAD, (1,), base)
    }
    assert fractions == {0.88}


def test_an_all_to_all_backend_leaves_only_whole_expert_groups():
    base = {"engine": BASE["engine"] | {"moe_a2a_backend": "deepep"}}
    found = search(load_model("deepseek-v3"), find_host("8x H200"), "0.5.23", WORKLOAD, (1,), base)
    assert {result["configuration"]["engine"].get("ep_size", 1) for result in found} <= {1, 2, 4, 8}
    assert all(
        result["configuration"]["engine"]["tp_size"] == result["configuration"]["engine"].get("ep_size", 1)
        for result in found
    )
