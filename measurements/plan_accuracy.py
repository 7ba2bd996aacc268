"""How far the planner is from public observations: memory of each usable SGLang case, validity of fits, throughput.

    python measurements/plan_accuracy.py [tests/data/plan-cases.yml]

Reads observations (third-party data) and prints one table for each question. A case is usable if its model's shape,
its GPU and its widths are known; the others are counted with the reason. Two constants of the memory model (what
communicators take on NVLink and on PCIe) were read off cases of this file; such cases are marked `fed` and left out of
the summary of KV tokens. Rows marked `auto` are of the engine's own memory fraction. Nothing is fitted to throughput;
ranges come from the assumptions. Beside them stand ranges stretched to hold the asked share of all other groups' rows
(leave one group out).
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, exp, log
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmark.engine.flags import release_at_least, releases
from benchmark.engine.hardware import GIB, Host, UnknownHardware, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.memory import MemoryPlan, plan_memory
from benchmark.engine.models import ModelShape, UnknownModel, load_model
from benchmark.engine.plan import judge, risk_of
from benchmark.engine.ranges import Range
from benchmark.engine.step import StepModel, predict_ladder, stalled

RELEASE = "0.5.11"
# What the free-form model of a record is called among the shipped shapes; the first that is contained wins.
MODELS = (
    ("DeepSeek-V4", ""),
    ("DeepSeek-V3 BF16", ""),
    ("DeepSeek-V3 INT8", ""),
    ("DeepSeek-V3 W4A8", ""),
    ("DeepSeek-V3 AWQ", ""),
    ("DeepSeek-V3 NVFP4", "deepseek-v3.1-nvfp4"),
    ("DeepSeek-V3.2", "deepseek-v3.2"),
    ("DeepSeek-V3", "deepseek-v3"),
    ("DeepSeek-R1", "deepseek-r1"),
    ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
    ("Qwen3.5-397B-A17B-NVFP4", "qwen3.5-397b-a17b-nvfp4"),
    ("Qwen3-235B-A22B-2507-FP8", "qwen3-235b-a22b-fp8"),
    ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
    ("Qwen2ForCausalLM, matches 32B", "qwen2.5-32b"),
    ("GLM-5-NVFP4", "glm-5-nvfp4"),
    ("GLM-5.1-NVFP4", "glm-5.1-nvfp4"),
    ("GLM-5.2-NVFP4", "glm-5.2-nvfp4"),
    ("GLM-5.2-FP8", "glm-5.2-fp8"),
    ("GLM-4.6-FP8", "glm-4.5-fp8"),
    ("GLM-4.5-Air", "glm-4.5-air-fp8"),
    ("MiniMax-M2.1", "minimax-m2"),
    ("MiniMax-M2.5-NVFP4", "minimax-m2.5-nvfp4"),
    ("MiniMax-M2.5", "minimax-m2.5"),
    ("MiniMax-M2.7 FP8", "minimax-m2.7"),
    ("gpt-oss-20b", "gpt-oss-20b"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("Kimi-K2.6", "kimi-k2.6"),
    ("Kimi-K2.5", "kimi-k2.5"),
    ("Llama-4-Scout", "llama-4-scout-17b-16e-instruct"),
    ("Llama-4-Maverick", ""),  # bf16 does not fit where it is said to; the FP8 checkpoint is not named
)
# Cases that constants of the memory model were read off (benchmark/engine/budget.py).
FED = {"sgl-rtx-glm5-nvfp4-tp8-092", "sgl-17392-qwen30b-dp4ep4", "sgl-kvcached198-gptoss20b"}
# Weights of these are partly on the CPU, or of a checkpoint that is not the named one.
NOT_COMPARABLE = {
    "sgl-kt1757-m21-tp1": "experts partly on the CPU",
    "sgl-rtx-glm5-specv2": "the whole model is loaded twice",
    "sgl-11309-dsv32-b200-dp8-main": "a build that did not budget the index cache",
    "rank-dsv3-h200-ep8": "a build of February 2025, well before the oldest known release",
    "sgl-6817-scout-1m": "contradicts fit-scout-h100-1m, a smaller GPU",
}
# (prompt, answer) tokens of a workload that the record only names. ShareGPT: means of its usual filter.
SHAREGPT = (220, 200)
# Share of the other groups' measurements that a stretched range holds. Groups differ more than rows of one group do, so
# it is more than the 80 % that are asked of the group left out.
COVERAGE = 0.9


@dataclass(frozen=True)
class Case:
    """One observation with everything that a prediction needs."""

    record: dict[str, Any]
    shape: ModelShape
    host: Host
    engine: dict[str, Any]

    @property
    def id(self) -> str:
        return self.record["id"]

    @property
    def layout(self) -> Layout:
        return Layout.from_engine(self.engine)

    @property
    def release(self) -> str:
        """The release that sized the memory: the record's own where it tells one, the oldest known for older builds."""
        told = str(self.record.get("engine_version") or "")
        if told.startswith("2025"):
            return releases()[0]
        version = re.match(r"v?(\d+\.\d+\.\d+(?:\.post\d+)?)", told)
        if not version:
            return RELEASE
        return version[1] if release_at_least(version[1], releases()[0]) else releases()[0]

    def memory(self) -> MemoryPlan:
        return plan_memory(self.shape, self.layout, self.engine, self.host, self.release)


def read_cases(path: Path) -> list[dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def prepare(record: dict[str, Any], parallel: dict[str, Any] | None = None) -> Case | str:
    """The record as a case, or why it is not usable."""
    name = next((shape for text, shape in MODELS if text in str(record.get("model"))), "")
    if not name:
        return "shape not known"
    gpu = record.get("gpu") or {}
    try:
        shape = load_model(name)
        count = gpu["count"] // max(1, gpu.get("nodes") or 1)
        host = find_host(f"{count}x {gpu['model']}", nodes=gpu.get("nodes") or 1)
    except (UnknownModel, UnknownHardware, KeyError) as error:
        return type(error).__name__
    widths = dict(record.get("parallel") or {}) | (parallel or {})
    engine = {f"{key}_size": widths[key] for key in ("tp", "ep", "pp", "dp", "dcp") if widths.get(key)}
    if widths.get("dp_attention"):
        engine["enable_dp_attention"] = True
        engine.setdefault("dp_size", 1)
    for key, value in (record.get("flags") or {}).items():
        text = str(value).split(" ")[0]
        if key in ("mem_fraction_static", "gpu_memory_utilization") and text.replace(".", "").isdigit():
            engine["mem_fraction_static"] = float(text)
        elif key == "kv_cache_dtype":
            engine[key] = "fp8_e4m3" if "fp8" in text else "bfloat16"
        elif key == "speculative":
            engine["speculative_algorithm"] = "EAGLE"
        elif isinstance(value, int) and not isinstance(value, bool):
            engine[key] = value
    if not Layout.from_engine(engine).whole:
        return "widths do not nest"
    return Case(record, shape, host, engine)


def memory_rows(cases: list[Case]) -> list[dict[str, Any]]:
    """Relative errors of weights, KV bytes a token and KV tokens."""
    rows = []
    for case in cases:
        seen, plan = case.record["observed"], case.memory()
        marks = [mark for mark, is_so in (("fed", case.id in FED), ("auto", plan.fraction_is_default)) if is_so]
        row: dict[str, Any] = {"id": case.id, "group": case.record["group"], "marks": marks}
        if _number(seen.get("weights_gib")) and case.id not in NOT_COMPARABLE:
            row["weights"] = plan.weights_bytes / GIB / seen["weights_gib"] - 1
        tokens, size = _number(seen.get("kv_tokens")), _number(seen.get("kv_gib"))
        if tokens and size:
            row["kv_bytes"] = _cell(case, plan, seen) / (size * GIB / tokens) - 1
        if tokens and case.id not in NOT_COMPARABLE:
            row["kv_tokens"] = plan.token_capacity / tokens - 1
        rows.append(row)
    return [row for row in rows if len(row) > 3]


def _cell(case: Case, plan: MemoryPlan, seen: dict[str, Any]) -> int:
    """Bytes a token that the record's KV size counts: some old builds leave the index cache out."""
    if "kv_gib_including_index" in seen:
        return plan.kv_bytes_per_token - case.shape.layers * (case.shape.index_dim + 4)
    return plan.kv_bytes_per_token


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def by_chunk(case: Case) -> list[Case]:
    """A record of several chunks, some of which ended in out of memory while serving, as one case for each."""
    seen = case.record["observed"]
    found = []
    for chunk, verdict in (seen.get("by_chunk") or {}).items():
        one = seen | {"verdict": verdict, "stage": "prefill_runtime" if verdict == "oom" else None}
        record = case.record | {"id": f"{case.id}-{chunk}", "observed": one}
        found.append(replace(case, record=record, engine=case.engine | {"chunked_prefill_size": int(chunk)}))
    return found or [case]


def fit_rows(cases: list[Case]) -> list[dict[str, Any]]:
    """Verdict against what happened. Died later (of a prefill) started; there the plan should speak of prefills."""
    rows = []
    for case in (one for several in cases for one in by_chunk(several)):
        seen = str(case.record["observed"].get("verdict"))
        stage = str(case.record["observed"].get("stage") or "")
        if seen not in ("fits", "fits_but_tiny", "oom", "rejected_no_kv_room") or case.id in NOT_COMPARABLE:
            continue
        died = seen not in ("fits", "fits_but_tiny") and "runtime" not in stage
        memory = case.memory()
        verdict, sentence = judge(memory, case.layout, case.host, [])
        wrong = (verdict == "runs" and died) or (verdict == "rejected" and not died)
        said = f"{sentence} {risk_of(memory, case.layout, case.host, verdict, memory.max_running_requests)}"
        silent = stage == "prefill_runtime" and "prefill" not in said
        rows.append({"id": case.id, "seen": seen, "stage": stage, "verdict": verdict, "wrong": wrong, "silent": silent})
    return rows


def speed_rows(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predicted range and measured throughput of every usable row of a ranking."""
    rows = []
    for record in records:
        workload = str(record["observed"].get("workload"))
        metric = str(record["observed"].get("metric"))
        if "tok/s" not in metric or "input" in metric or "ordinal" in metric or record["id"] in NOT_COMPARABLE:
            continue
        for row in record["observed"]["rows"]:
            found = _speed_row(record, row, workload, metric)
            if found:
                rows.append(found)
    return rows


def _speed_row(record: dict[str, Any], row: dict[str, Any], workload: str, metric: str) -> dict[str, Any] | None:
    config = str(row["config"])
    engine = str(record.get("engine") or "")
    if "vllm" in config or "deepep" in config:
        return None
    row = dict(row)
    model = dict(record)
    if config.startswith("nvfp4") and "MiniMax" in str(record["model"]):
        model["model"] = "MiniMax-M2.5-NVFP4"
    gpu = dict(record["gpu"]) | ({"count": row["gpus"]} if row.get("gpus") else {})
    widths = {key: row.get(key) for key in ("tp", "ep", "pp", "dp", "dcp", "dp_attention")}
    if config.startswith("dp8") and not widths["tp"]:
        widths |= {"tp": 8, "dp_attention": True}
    if widths["dcp"]:
        widths["tp"] = 8  # the page's title
    case = prepare(model | {"gpu": gpu, "parallel": widths})
    if isinstance(case, str):
        return None
    settings = dict(case.engine)
    if "f=" in config:
        settings["mem_fraction_static"] = float(config.split("f=")[1].split()[0])
    if engine == "vllm":
        settings.setdefault("mem_fraction_static", 0.9)
        settings.setdefault("cuda_graph_max_bs", 512)
    prompt, output, concurrency = _workload(workload)
    case = replace(case, engine=settings)
    plan = case.memory()
    step = StepModel(case.shape, case.layout, settings, case.host, RELEASE)
    if "decode" in metric:
        batch = step.decode_seconds(concurrency, prompt + output // 2)
        predicted: Range | None = batch.inverse(concurrency)
    elif "ShareGPT" in workload:
        predicted = one_shot(step, plan, prompt, output, concurrency)
    else:
        rung = predict_ladder(step, plan, {"prompt_tokens": prompt, "output_tokens": output}, [concurrency])[0]
        predicted = rung["output_tokens_per_second"]
    if predicted is None:
        return None
    factor = (prompt + output) / output if "total" in metric else 1.0
    return {
        "id": record["id"],
        "group": record["group"],
        "engine": engine,
        "config": config,
        "measured": float(row["value"]),
        "predicted": predicted.scaled(factor),
    }


def one_shot(step: StepModel, plan: MemoryPlan, prompt: int, output: int, requests: int) -> Range:
    """Output tokens a second of `requests` sent at once, until the last has ended.

    Answers are as long as an exponential distribution of this mean makes them, so the last ones run almost alone.
    """
    reached = min(requests, plan.concurrency(prompt + output // 2))
    chunk = max(plan.chunked_prefill_size, prompt) * step.layout.attention_dp
    prefills = requests * prompt / chunk / min(step.layout.pp, requests)
    total = stalled(step.prefill_seconds(chunk, 0, chunk / prompt).scaled(prefills), step.layout, requests)
    # While requests wait, the batch stays full; then it thins out.
    full = max(0, requests - reached) * output / max(1, reached)
    total = total.plus(step.decode_seconds(reached, prompt + output // 2).scaled(full))
    stride = max(1, output // 10)
    for done in range(0, int(output * log(max(2, reached))), stride):
        left = max(1, round(reached * exp(-done / output)))
        total = total.plus(step.decode_seconds(left, prompt + done).scaled(stride))
    return total.inverse(requests * output)


def _workload(text: str) -> tuple[int, int, int]:
    """(prompt, answer, concurrency); without a limit on the rate, all requests come at once."""
    if "ShareGPT" in text:
        return (*SHAREGPT, 1000)
    if "8192" in text:
        return 8192, 1024, 1000
    if "180/400" in text:
        return 180, 400, 600
    concurrency = 128 if "128" in text and "concurrency 128" in text else 1
    return (131072, 64, 1) if "128k" in text else (64, 512, concurrency)


def pairs(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """(predicted, measured) log ratios of every two rows of one ranking."""
    found = []
    for one, two in combinations(rows, 2):
        if one["id"] == two["id"]:
            predicted = log(one["predicted"].expected / two["predicted"].expected)
            found.append((predicted, log(one["measured"] / two["measured"])))
    return found


def rank_correlation(points: list[tuple[float, float]]) -> float:
    """Spearman's coefficient, with each pair taken both ways so that the order of rows does not matter."""
    both = points + [(-a, -b) for a, b in points]
    if not points:
        return 0.0
    return statistics.correlation(_ranks([a for a, _ in both]), _ranks([b for _, b in both]))


def _ranks(values: list[float]) -> list[float]:
    """Position of each value in order; equal values share the mean of theirs."""
    ordered = sorted(values)
    return [(ordered.index(v) + len(ordered) - 1 - ordered[::-1].index(v)) / 2 for v in values]


def leave_one_out(rows: list[dict[str, Any]], share: float = COVERAGE) -> list[dict[str, Any]]:
    """Each row with its range stretched (or shrunk) so that it would have held `share` of the rows of other groups.

    Conformal prediction: a row's distance is measured in half-widths of its own range, in logarithms; the stretch is
    the quantile of those distances over all other groups.
    """
    changed = []
    for row in rows:
        others = sorted(distance(r["predicted"], r["measured"]) for r in rows if r["group"] != row["group"])
        rank = min(len(others), ceil((len(others) + 1) * share))
        changed.append(row | {"predicted": stretched(row["predicted"], others[rank - 1] if others else 1.0)})
    return changed


def distance(predicted: Range, measured: float) -> float:
    """How far a measurement is from what is expected; 1 at the ends of the range."""
    end = predicted.high if measured > predicted.expected else predicted.low
    return log(measured / predicted.expected) / log(end / predicted.expected)


def stretched(range_: Range, factor: float) -> Range:
    low, high = (range_.expected * (end / range_.expected) ** factor for end in (range_.low, range_.high))
    return Range(low, range_.expected, high)


def coverage(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """(share of ranges that contain the measurement, median high/low)."""
    inside = sum(row["predicted"].contains(row["measured"]) for row in rows)
    return inside / len(rows), statistics.median(row["predicted"].width for row in rows)


def report(path: Path) -> str:
    records = read_cases(path)
    skipped: Counter[str] = Counter()
    cases: list[Case] = []
    for record in records:
        if record["kind"] not in ("memory", "fit") or record.get("engine") != "sglang":
            continue
        case = prepare(record)
        if isinstance(case, str):
            skipped[case] += 1
        else:
            cases.append(case)
    lines = [f"{len(cases)} usable SGLang memory cases; not usable: {dict(skipped)}", ""]
    lines += _memory_report(memory_rows([case for case in cases if case.record["kind"] == "memory"]))
    lines += _fit_report(fit_rows(cases))
    lines += _speed_report(speed_rows([record for record in records if record["kind"] == "ranking"]))
    return "\n".join(lines) + "\n"


def _memory_report(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Memory (relative error)", f"{'case':44}{'weights':>10}{'KV B/token':>12}{'KV tokens':>11}"]
    for row in rows:
        cells = "".join(
            f"{row[key]:>{width}.2%}" if key in row else " " * width
            for key, width in (("weights", 10), ("kv_bytes", 12), ("kv_tokens", 11))
        )
        lines.append(f"{row['id']:44}{cells}  {' '.join(row['marks'])}")
    for key, limit in (("weights", 0.03), ("kv_bytes", 0.005), ("kv_tokens", 0.1)):
        kept = [abs(row[key]) for row in rows if key in row and not (key == "kv_tokens" and "fed" in row["marks"])]
        if kept:
            within = sum(error <= limit for error in kept)
            lines.append(f"{key}: {within} of {len(kept)} within {limit:.1%}; median {statistics.median(kept):.2%}")
    return [*lines, ""]


def _fit_report(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Starts", f"{'case':44}{'seen':>22}{'planned':>12}"]
    lines += [f"{r['id']:44}{r['seen']:>22}{r['verdict']:>12}{_fit_mark(r)}" for r in rows]
    doubtful = sum(row["verdict"] == "doubtful" for row in rows)
    wrong = sum(row["wrong"] for row in rows)
    late = sum(row["stage"] == "prefill_runtime" for row in rows)
    warned = late - sum(row["silent"] for row in rows)
    told = f"of {late} that died of a prefill {warned} were warned of"
    return [*lines, f"{len(rows)} cases: {wrong} wrong, {doubtful} doubtful; {told}", ""]


def _fit_mark(row: dict[str, Any]) -> str:
    return "  WRONG" if row["wrong"] else "  not warned of" if row["silent"] else ""


def _speed_report(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Throughput (tok/s)", f"{'case':26}{'configuration':38}{'measured':>10}{'low':>9}{'exp.':>9}{'high':>9}"]
    for row in rows:
        low, expected, high = (
            f"{v:>9.0f}" for v in (row["predicted"].low, row["predicted"].expected, row["predicted"].high)
        )
        inside = "" if row["predicted"].contains(row["measured"]) else "  outside"
        name = f"{row['config'][:28]} ({row['engine']})"
        lines.append(f"{row['id']:26}{name:38}{row['measured']:>10.0f}{low}{expected}{high}{inside}")
    for title, chosen in (("SGLang", [r for r in rows if r["engine"] == "sglang"]), ("all engines", rows)):
        share, width = coverage(chosen)
        left_share, left_width = coverage(leave_one_out(chosen))
        correlation = rank_correlation(pairs(chosen))
        # The same configuration measured twice differs by up to 16 %: closer pairs are ties.
        apart = [pair for pair in pairs(chosen) if abs(pair[1]) > log(1.16)]
        same = sum((a > 0) == (b > 0) for a, b in apart)
        lines.append(
            f"{title}: {len(chosen)} rows; {share:.0%} of ranges hold the measurement (median width {width:.1f}); "
            f"stretched to hold {COVERAGE:.0%} of the other groups' rows, {left_share:.0%} (width {left_width:.1f}); "
            f"rank correlation of log ratios {correlation:.2f} "
            f"over {len(pairs(chosen))} pairs; {same} of {len(apart)} pairs further apart than 16 % in the right order"
        )
    return lines


if __name__ == "__main__":
    default = Path(__file__).resolve().parent.parent / "tests" / "data" / "plan-cases.yml"
    sys.stdout.write(report(Path(sys.argv[1]) if len(sys.argv) > 1 else default))
