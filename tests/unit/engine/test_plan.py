import json
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.calibration import PRIOR, Calibration, Factor
from benchmark.engine.configuration import resolve
from benchmark.engine.hardware import GIB, find_host
from benchmark.engine.models import from_config, load_model, shipped_models
from benchmark.engine.plan import plan_configuration
from benchmark.engine.ranges import Range
from benchmark.engine.rules import explain

ROOT = Path(__file__).parents[3]
CATALOGUE = yaml.safe_load((ROOT / "group_vars" / "all" / "configs.yml").read_text())["sglang_configs"]
KIMI = load_model("kimi-k2.6")
RTX = find_host("8x RTX PRO 6000 Blackwell")
WORKLOAD = {"prompt_tokens": 1024, "output_tokens": 512}
LADDER = (1, 8, 64, 256)


def planned(name):
    return plan_configuration(resolve(name, CATALOGUE), KIMI, RTX, "0.5.11", WORKLOAD, LADDER)


def plan(engine, shape=KIMI, host=RTX, release="0.5.11", **more):
    configuration = {"name": "drawn", "engine": {"trust_remote_code": True} | engine, "environment": {}}
    return plan_configuration(configuration, shape, host, release, WORKLOAD, LADDER, **more)


def test_tp4ep2_is_rejected_in_words_that_need_no_other_page():
    found = planned("tp4ep2")
    assert (found["verdict"], found["gpus_used"], found["gpus_there"]) == ("rejected", 4, 8)
    for words in (
        "4 of 8 GPUs",
        f"would hold {found['weights_bytes'] / 2**30:.1f} GiB",
        "93.9 GiB are free",
        "672.00 MiB",
        "adds none",
    ):
        assert words in found["sentence"]
    assert found["memory"]["failure"]["requested_bytes"] == 704_643_072
    assert found["speed"] is None


def test_tp2ep4_is_rejected_with_a_sentence_instead_of_a_zero_division_error():
    found = planned("tp2ep4")
    assert (found["verdict"], found["gpus_used"]) == ("rejected", 2)
    assert "ep 4" in found["sentence"]
    assert "tp 2" in found["sentence"]
    assert found["memory"] is None


def test_ep8_tuned_runs_and_says_which_setting_does_nothing():
    found = planned("ep8_tuned")
    assert found["verdict"] == "runs"
    assert "num_continuous_decode_steps" in found["sentence"]
    assert found["weights_bytes"] / GIB == pytest.approx(71.8, abs=0.3)
    assert found["concurrency_reached"] > 64


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if not entry.get("abstract")])
def test_every_catalogue_entry_has_a_plan_that_is_json(name):
    found = planned(name)
    assert json.loads(json.dumps(found)) == found
    assert found["verdict"] in ("runs", "doubtful", "rejected")
    assert found["sentence"]
    assert found["risk"]


def test_the_requests_limit_shows_in_the_plan():
    assert planned("ep8")["concurrency_reached"] == 64
    low, high = planned("ep8")["speed"]["peak"], planned("ep8_tuned")["speed"]["peak"]
    assert low["expected"] < high["expected"]
    assert low["low"] < low["expected"] < low["high"]


def test_a_margin_below_two_gib_is_doubtful_either_way():
    # Weights are 71.9 GiB of 93.9 free: 0.767 is the edge.
    above = plan({"tp_size": 8, "mem_fraction_static": 0.78, "context_length": 32768})
    below = plan({"tp_size": 8, "mem_fraction_static": 0.755, "context_length": 32768})
    far = plan({"tp_size": 8, "mem_fraction_static": 0.70, "context_length": 32768})
    assert [found["verdict"] for found in (above, below, far)] == ["doubtful", "doubtful", "rejected"]
    assert "to spare" in above["sentence"]
    assert "Probably will not start" in below["sentence"]


def test_a_calibrated_plan_doubts_less_and_says_on_what_it_rests():
    sure = dict.fromkeys(PRIOR, Factor(1.0, 0.05))
    free = int(93.94 * GIB)  # as it is assumed
    said = "gpu1: 2 starts, 8 measurements"
    calibration = Calibration(said, points=8, factors=sure, weights_measured=True, pre_load_free_bytes={8: free})
    engine = {"tp_size": 8, "mem_fraction_static": 0.785, "context_length": 32768}
    found = plan(engine, calibration=calibration)
    assert found["verdict"] == "runs"
    # Times alone, or starts of other splits, say nothing of this one's memory.
    for other in ({}, {"weights_measured": True, "pre_load_free_bytes": {4: free}}):
        assert plan(engine, calibration=Calibration(said, points=8, factors=sure, **other))["verdict"] == "doubtful"
    assert found["calibrated_on"] == "gpu1: 2 starts, 8 measurements"
    peak = found["speed"]["peak"]
    # A step is known to +-25 % or so; how many prompts share a prefill is not.
    assert 1.5 < peak["high"] / peak["low"] < 2


def test_a_prefill_larger_than_what_stays_free_is_doubtful():
    """tests/captures/failures/load_oom: healthy, then out of memory in a prefill of a 131,072-token chunk."""
    engine = {
        "mem_fraction_static": 0.97,
        "chunked_prefill_size": 131072,
        "disable_cuda_graph": True,
        "context_length": 32768,
        "max_running_requests": 256,
    }
    found = plan(engine, load_model("mini-moe"), find_host("1x H200"))
    assert found["verdict"] == "doubtful"
    assert "a prefill of 131072 tokens may run out of memory" in found["sentence"]


def test_an_unknown_model_leaves_the_rules():
    found = plan({"tp_size": 8}, shape=None)
    assert (found["verdict"], found["gpus_used"]) == ("doubtful", 8)
    assert "the model is not known" in found["sentence"]
    assert plan({"tp_size": 2, "ep_size": 4}, shape=None)["verdict"] == "rejected"


def test_without_a_workload_nothing_is_said_of_speed():
    configuration = {"name": "a", "engine": {"tp_size": 8, "mem_fraction_static": 0.88, "trust_remote_code": True}}
    found = plan_configuration(configuration, KIMI, RTX, "0.5.11")
    assert found["speed"] is None
    assert found["kv_tokens"] > 100_000


def test_a_setting_that_is_no_number_is_rejected_in_words():
    found = plan({"tp_size": 8, "mem_fraction_static": "most"})
    assert found["verdict"] == "rejected"
    assert found["sentence"]


_VALUES = st.none() | st.booleans() | st.integers(-2, 70) | st.floats(0, 2) | st.text(max_size=4)
_KEYS = ["tp_size", "pp_size", "ep_size", "attn_dp_size", "mem_fraction_static", "max_running_requests", "page_size"]
_KEYS += ["context_length", "chunked_prefill_size", "cuda_graph_max_bs", "max_total_tokens", "kv_cache_dtype"]


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=5))
def test_wild_settings_get_a_verdict_and_a_sentence(engine):
    found = plan(engine)
    assert found["verdict"] in ("runs", "doubtful", "rejected")
    assert found["sentence"]
    json.dumps(found)


def test_the_accuracy_report_meets_its_marks():
    """measurements/plan_accuracy.py over the public observations: what the plan promises."""
    accuracy = accuracy_module()
    records = accuracy.read_cases(ROOT / "tests" / "data" / "plan-cases.yml")
    sglang = [r for r in records if r.get("engine") == "sglang"]
    cases = [c for r in sglang if r["kind"] in ("memory", "fit") and not isinstance(c := accuracy.prepare(r), str)]
    assert len(cases) >= 25
    rows = accuracy.memory_rows([case for case in cases if case.record["kind"] == "memory"])
    weights = [abs(row["weights"]) for row in rows if "weights" in row]
    assert sum(error <= 0.03 for error in weights) >= 0.9 * len(weights)
    assert all(abs(row["kv_bytes"]) <= 0.005 for row in rows if "kv_bytes" in row)
    assert all(abs(row["kv_tokens"]) <= 0.05 for row in rows if "kv_tokens" in row)
    assert not [row for row in accuracy.fit_rows(cases) if row["wrong"] or row["silent"]]
    speeds = accuracy.speed_rows([r for r in sglang if r["kind"] == "ranking"])
    inside, width = accuracy.coverage(speeds)
    assert inside >= 0.8
    assert width < 3.5
    left, left_width = accuracy.coverage(accuracy.leave_one_out(speeds))
    assert left >= 0.8
    assert left_width < 3.5
    assert accuracy.rank_correlation(accuracy.pairs(speeds)) > 0.5


def test_a_range_left_out_is_stretched_by_the_others_alone():
    """Two groups miss their ranges by 2 half-widths, one hits: its range doubles (in logarithms), theirs do not."""
    accuracy = accuracy_module()
    row = {"predicted": Range(50.0, 100.0, 200.0)}
    rows = [row | {"group": "a", "measured": 100.0}]
    rows += [row | {"group": group, "measured": 400.0} for group in ("b", "c")]
    first, second, third = accuracy.leave_one_out(rows)
    assert (first["predicted"].low, first["predicted"].high) == pytest.approx((25.0, 400.0))
    assert second["predicted"] == third["predicted"]
    assert accuracy.distance(Range(50.0, 100.0, 200.0), 25.0) == pytest.approx(2.0)


def accuracy_module():
    sys.path.insert(0, str(ROOT / "measurements"))
    try:
        import plan_accuracy
    finally:
        sys.path.pop(0)
    return plan_accuracy


@pytest.mark.parametrize(("fraction", "chunk", "warned"), [(0.8, 32768, True), (0.7, 16384, False)])
def test_a_start_that_dies_of_its_first_prefill_is_warned_of(fraction, chunk, warned):
    """Four RTX PRO 6000 with Qwen3.5-397B-A17B-NVFP4: 0.8 died of a prefill of 8k tokens, 0.7 served (InferenceX)."""
    engine = {"tp_size": 4, "mem_fraction_static": fraction, "chunked_prefill_size": chunk, "max_running_requests": 128}
    shape, host = load_model("qwen3.5-397b-a17b-nvfp4"), find_host("4x RTX PRO 6000 Blackwell")
    configuration = {"name": "drawn", "engine": engine | {"kv_cache_dtype": "fp8_e4m3"}}
    found = plan_configuration(configuration, shape, host, "0.5.11", WORKLOAD, LADDER)
    assert ("long prefills may run out of memory" in found["risk"]) is warned


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"quantization": "bitsandbytes"}, "quantization bitsandbytes makes the weights smaller"),
        ({"cpu_offload_gb": 60}, "cpu_offload_gb 60 keeps weights in host memory"),
    ],
)
def test_weights_that_are_made_smaller_are_doubtful_and_not_rejected(engine, words):
    """131 GiB of Llama 3.1 70B on an H100: no arithmetic here says how much of them the GPU will hold."""
    shape, host = load_model("llama-3.1-70b"), find_host("1x H100")
    assert plan({}, shape, host)["verdict"] == "rejected"
    found = plan(engine, shape, host)
    assert found["verdict"] == "doubtful"
    assert words in found["sentence"]
    assert plan(engine, load_model("llama-3.1-8b"), host)["verdict"] == "doubtful"


def test_a_draft_of_its_own_is_doubtful_for_it_is_not_counted():
    engine = {"tp_size": 8, "mem_fraction_static": 0.85, "context_length": 32768, "speculative_algorithm": "EAGLE3"}
    found = plan(
        engine | {"speculative_draft_model_path": "some/draft"}, load_model("deepseek-v3"), find_host("8x H200")
    )
    assert found["verdict"] == "doubtful"
    assert "The draft model is not counted" in found["sentence"]
    own = plan(engine | {"speculative_algorithm": "EAGLE"}, load_model("deepseek-v3"), find_host("8x H200"))
    assert own["verdict"] == "runs"


def test_a_prefill_under_attention_dp_is_of_all_ranks():
    """GLM-5.2-FP8 on eight H200s, attention DP 8: chunks of 16384 ended in out of memory, of 8192 not (gpustack)."""
    shape, host = load_model("glm-5.2-fp8"), find_host("8x H200")
    shared = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "mem_fraction_static": 0.85}
    risks = {chunk: plan(shared | {"chunked_prefill_size": chunk}, shape, host)["risk"] for chunk in (8192, 16384)}
    assert "long prefills may run out of memory" in risks[16384]
    assert "long prefills" not in risks[8192]


def test_numbers_with_units_are_read_as_the_engine_reads_them():
    engine = {"tp_size": 8, "mem_fraction_static": 0.88, "chunked_prefill_size": "8Ki"}
    found = plan(engine | {"context_length": "32k"})
    assert found["memory"]["context_length"] == 32_000
    assert found["memory"]["chunked_prefill_size"] == 8192
    assert found == plan(engine | {"context_length": 32_000, "chunked_prefill_size": 8192})
    assert plan(engine | {"context_length": "32K"})["verdict"] == "rejected"


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        ({"tp_size": 4, "mem_fraction_static": 0.88}, "will-not-fit"),
        ({"tp_size": 8, "mem_fraction_static": 0.7}, "no-kv-room"),
        # 2049 x 262,148 x 4 bytes of request table: 2.0 GiB, of 0.9 that are left.
        ({"tp_size": 8, "mem_fraction_static": 0.99}, "no-graph-room"),
        ({"tp_size": 2, "ep_size": 4}, "ep-larger-than-tp"),
    ],
)
def test_a_plan_names_the_rules_that_speak_in_it(engine, rule):
    found = plan(engine)
    assert rule in found["told_by"]
    assert explain(rule).title


def test_a_plan_without_a_complaint_names_no_rule():
    assert plan({"tp_size": 8, "mem_fraction_static": 0.88, "context_length": 32768})["told_by"] == []


def test_the_fraction_that_is_advised_leaves_room_for_a_prefill():
    """Kimi K2.6, tp8: 0.68 MiB for each of 8192 tokens are 5.4 of 93.9 GiB, 0.058 below the largest that starts."""
    shared = {"tp_size": 8, "context_length": 32768, "max_running_requests": 64}
    found = plan(shared | {"mem_fraction_static": 0.7})
    memory = found["memory"]
    assert memory["max_fraction"] - memory["roomy_fraction"] == pytest.approx(8192 * 0.68 / 1024 / 93.94, abs=0.001)
    low, high, most = (memory[key] for key in ("min_fraction", "roomy_fraction", "max_fraction"))
    assert f"Set it between {low:.3f} and {high:.3f}; up to {most:.3f} it starts" in found["sentence"]
    assert plan(shared | {"mem_fraction_static": round(high - 0.001, 3)})["risk"].count("long prefills") == 0
    assert plan(shared | {"mem_fraction_static": round(high + 0.002, 3)})["risk"].count("long prefills") == 1


def test_an_architecture_that_is_taken_for_another_is_doubtful():
    config = {**load_model("llama-3.1-8b").config, "architectures": ["WeirdLlamaForCausalLM"]}
    found = plan({}, from_config(config, "weird"), find_host("1x H100"))
    assert found["verdict"] == "doubtful"
    assert "WeirdLlamaForCausalLM is not known to the planner, and is counted as a model of llama" in found["sentence"]
    assert plan({}, load_model("llama-3.1-8b"), find_host("1x H100"))["verdict"] == "runs"


@pytest.mark.parametrize("name", shipped_models())
def test_no_shipped_shape_is_taken_for_another(name):
    assert load_model(name).taken_for == ""
