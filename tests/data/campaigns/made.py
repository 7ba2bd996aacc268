"""Small made campaigns for tests of the report: round numbers that a reader can check by hand."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from benchmark.campaign.record import (
    Configuration,
    Distribution,
    Engine,
    Failure,
    Flag,
    Host,
    Model,
    Point,
    Record,
    Stage,
    Start,
)

GIB = 1024**3
LADDER = (1, 2, 4, 8, 16, 32, 64, 128)


def topology() -> str:
    """`nvidia-smi topo -m` of eight GPUs: pairs below a switch, four a socket; the form is that of tests/captures."""
    head = "\t\x1b[4m" + "\t".join(f"GPU{i}" for i in range(8)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    lines = [head]
    for i in range(8):
        links = [
            " X " if i == j else "PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS" for j in range(8)
        ]
        lines.append("\t".join([f"GPU{i}", *links, f"{i // 4 * 32}-{i // 4 * 32 + 31}", str(i // 4), "", "N/A"]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


def spread(p50: float) -> Distribution:
    """A right-tailed sample around a median, in seconds: p99 is twice the median."""
    return Distribution(
        count=200,
        mean=p50 * 1.1,
        p50=p50,
        p90=p50 * 1.5,
        p95=p50 * 1.7,
        p99=p50 * 2,
        min=p50 * 0.8,
        max=p50 * 3,
    )


def point(concurrency: int, rate: float, *, flags: tuple[Flag, ...] = (), **others: Any) -> Point:
    """A point whose per-user speed is rate / concurrency."""
    per_user = rate / concurrency
    values: dict[str, Any] = {
        "workload": "chat",
        "concurrency": concurrency,
        "started_at": "2026-11-29T12:00:00Z",
        "duration_seconds": 66.0,
        "window_seconds": 60.0,
        "requests_completed": 200,
        "requests_failed": 0,
        "prompt_tokens": 204_800,
        "output_tokens": int(rate * 60),
        "output_tokens_per_second": rate,
        "requests_per_second": rate / 256,
        "output_tokens_per_second_per_user": per_user,
        "ttft_seconds": spread(0.1 + 0.01 * concurrency),
        "itl_seconds": spread(1 / per_user),
        "tpot_seconds": spread(1 / per_user),
        "e2e_seconds": spread(256 / per_user),
        "flags": list(flags),
        "telemetry": {"energy_joules": rate * 60 * 2.0},
        "raw": f"requests-chat-c{concurrency:03d}.jsonl.zst",
    }
    return Point(**(values | others))


def host(name: str = "gpu1", gpus: int = 8) -> Host:
    card = {"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "memory_bytes": 97_887 * 1024**2}
    link = {"pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16}
    return Host(
        name=name,
        gpus=[{"index": i, **card, **link} for i in range(gpus)],
        driver="580.95.05",
        hardware="8x RTX PRO 6000 Blackwell",
        details={"topology": topology()},
    )


def record(name: str = "ep8", **others: Any) -> Record:
    """A measured record with one rung a concurrency: 60 tok/s at one user, times C to the power of 0.7."""
    scale = others.pop("scale", 1.0)
    engine = others.pop("engine", {"tp_size": 8, "ep_size": 8, "max_running_requests": 64})
    against = others.pop("against", None)
    hypothesis = others.pop("hypothesis", None)
    arguments = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.6"]
    for key, value in engine.items():
        arguments += [f"--{key.replace('_', '-')}", str(value)]
    values: dict[str, Any] = {
        "fingerprint": hashlib.sha256(name.encode(errors="replace")).hexdigest(),
        "created_at": "2026-11-29T12:00:00Z",
        "updated_at": "2026-11-29T12:20:00Z",
        "configuration": Configuration(
            name=name,
            description=f"The split {name}",
            against=against,
            hypothesis=hypothesis,
            engine=engine,
            environment={"NCCL_P2P_LEVEL": "SYS"},
            arguments=arguments,
        ),
        "host": host(),
        "engine": Engine(name="sglang", version="0.5.23", packages={"torch": "2.14.1", "nccl": "2.30.7"}),
        "model": Model(name="kimi-k2.6", path="/models/kimi-k2.6", revision="abc123"),
        "workload": {"name": "chat", "prompt_tokens": 1024, "output_tokens": 256, "ignore_eos": True, "seed": 1},
        "ladder": list(LADDER),
        "outcome": "measured",
        "complete": True,
        "start": Start(
            started_at="2026-11-29T12:00:00Z",
            ready_seconds=300.0,
            stages=[
                Stage(name="load_weights", seconds=12.0),
                Stage(name="kv_pool", seconds=240.0),
                Stage(name="graphs", seconds=250.0),
                Stage(name="warm_up", seconds=290.0),
            ],
            weights_bytes=71 * GIB,
            kv_bytes=12 * GIB,
            kv_tokens=187_000,
            graph_bytes=2 * GIB,
            available_before_load_bytes=93 * GIB,
            available_after_load_bytes=22 * GIB,
            max_running_requests=64,
            transports={"P2P/CUMEM": 16, "SHM": 2},
        ),
        "points": [point(c, 60.0 * scale * c**0.7) for c in LADDER],
        "tools_version": "0.1.0",
    }
    return Record(**(values | others))


def failed(name: str = "tp4ep2", **others: Any) -> Record:
    """A start that ran out of memory while loading, as the campaign saw it."""
    failure = Failure(
        kind="out_of_memory_weights",
        stage="load_weights",
        sentence="The weights of a GPU (132.9 GiB) do not fit its memory (95.6 GiB); it died while loading.",
        evidence=[
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 672.00 MiB. GPU 2 has a total "
            "capacity of 94.97 GiB of which 136.94 MiB is free."
        ],
        advice="Use all eight GPUs: --tp-size 8, or --pp-size 2 beside --tp-size 4.",
    )
    values: dict[str, Any] = {
        "engine": {"tp_size": 4, "ep_size": 2, "max_running_requests": 64},
        "outcome": "failed",
        "failure": failure,
        "points": [],
        "start": Start(started_at="2026-11-29T13:00:00Z", stages=[Stage(name="load_weights", seconds=9.0)]),
        "plan": {"weights_bytes": int(132.9 * GIB)},
    }
    return record(name, **(values | others))


def rejected(name: str = "tp2ep4", **others: Any) -> Record:
    """A configuration that the check refused before anything was stopped."""
    failure = Failure(
        kind="ep_must_divide_tp",
        stage="check",
        sentence="Expert groups (ep 4) must divide the tensor-parallel group (tp 2).",
        advice="Set ep_size to 1 or 2, or tp_size to 4 or 8.",
    )
    values: dict[str, Any] = {
        "engine": {"tp_size": 2, "ep_size": 4, "max_running_requests": 64},
        "outcome": "rejected",
        "failure": failure,
        "points": [],
        "start": None,
    }
    return record(name, **(values | others))


def simulated(original: Record) -> Record:
    return msgspec.structs.replace(original, engine=Engine(name="simulated", version="0.5.23"))


def small() -> tuple[list[Record], dict[str, Any]]:
    """Five configurations: three measured (one point invalid), one failed, one rejected; and their decision."""
    records = [
        record("ep8"),
        record(
            "ep8_tuned",
            scale=1.5,
            engine={"tp_size": 8, "ep_size": 8, "max_running_requests": 256, "num_continuous_decode_steps": 8},
            against="ep8",
            hypothesis="More running requests raise the peak.",
        ),
        record(
            "pp8",
            scale=0.5,
            engine={"pp_size": 8, "max_running_requests": 64},
            against="ep8",
            hypothesis="A pipeline needs no all-reduce.",
            points=[
                point(c, 30.0 * c**0.7)
                if c != 16
                else point(
                    c,
                    500.0,
                    flags=(
                        Flag(id="compilation", severity="invalid", message="A kernel was compiled inside the window."),
                    ),
                )
                for c in LADDER
            ],
        ),
        failed(against="ep8", hypothesis="Fewer, larger expert groups."),
        rejected(against="ep8"),
    ]
    return records, decision(records)


def decision(records: list[Record], name: str = "kimi-k2.6-chat") -> dict[str, Any]:
    """A decision in the shape of benchmark/campaign/decide.py, ranked by the best single point."""
    ranking = []
    for r in sorted(records, key=lambda r: -(r.peak().output_tokens_per_second if r.peak() else 0)):
        best = r.peak()
        first = r.at(1)
        ranking.append(
            {
                "configuration": r.configuration.name,
                "host": r.host.name,
                "outcome": r.outcome,
                "peak": best.output_tokens_per_second if best else None,
                "peak_concurrency": best.concurrency if best else None,
                "single_stream": first.output_tokens_per_second if first else None,
                "interval": [best.output_tokens_per_second * 0.97, best.output_tokens_per_second * 1.03]
                if best
                else None,
                "sentence": f"{best.output_tokens_per_second:,.0f} tok/s at {best.concurrency} users."
                if best
                else "It did not run.",
            }
        )
    top = ranking[0] if ranking and ranking[0]["peak"] else None
    winner = None
    if top:
        winner = {
            "configuration": top["configuration"],
            "host": top["host"],
            "objective": "peak_throughput",
            "sentence": f"{top['configuration']} has the highest peak: {top['peak']:,.0f} tok/s.",
        }
    experiments = [
        {
            "configuration": r.configuration.name,
            "against": r.configuration.against,
            "hypothesis": r.configuration.hypothesis,
            "changes": [["max_running_requests", 64, 256], ["num_continuous_decode_steps", None, 8]],
            "ignored": ["num_continuous_decode_steps"],
            "effect": {"peak_throughput": {"ratio": 1.5, "low": 1.42, "high": 1.58}},
            "verdict": "supported",
            "sentence": "Peak rises by 50 %; the change is max_running_requests.",
        }
        for r in records
        if r.configuration.against and r.outcome == "measured"
    ]
    return {
        "name": name,
        "simulated": any(r.simulated for r in records),
        "winner": winner,
        "winners": {"peak_throughput": winner} if winner else {},
        "ranking": ranking,
        "experiments": experiments,
        "notes": ["One start a configuration: no verdict on differences below 6 %."],
    }


def many(configurations: int = 60, hosts: int = 4) -> tuple[list[Record], dict[str, Any]]:
    """So many records over so many hosts, two of each ten not run, and their decision. Bases were started thrice."""
    records = []
    for index in range(configurations):
        where = host(f"gpu{index % hosts + 1}")
        name = "base" if index < hosts else f"split_{index:02d}"
        against = None if index < hosts else "base"
        if index % 10 == 8:
            records.append(failed(name, host=where, against=against))
        elif index % 10 == 9:
            records.append(rejected(name, host=where, against=against))
        else:
            scale = 1.0 + (index * 37 % configurations) / configurations
            flags = {"tp_size": 8, "ep_size": 8, "max_running_requests": 64 + index}
            made = record(name, scale=scale, engine=flags, host=where, against=against)
            records.append(made)
            if index < hosts:
                records += [_again(made, start, factor) for start, factor in ((2, 1.02), (3, 0.99))]
    return records, decision(records)


def _again(first: Record, start: int, factor: float) -> Record:
    """Another start of the same configuration, `start` hours later, all rates times `factor`."""
    at = f"2026-11-29T{12 + start}:00:00Z"
    points = [
        msgspec.structs.replace(
            p,
            started_at=at,
            output_tokens_per_second=p.output_tokens_per_second * factor,
            output_tokens_per_second_per_user=p.output_tokens_per_second_per_user * factor,
        )
        for p in first.points
    ]
    return msgspec.structs.replace(first, created_at=at, updated_at=at, points=points)


def hostile() -> tuple[list[Record], dict[str, Any]]:
    """Names and texts that would do something where they are not escaped."""
    evil = "<img src=x onerror=window.stolen=1>"
    records = [
        record(evil, against=None),
        record("</script><script>window.stolen=2</script>", scale=1.2, against=evil, hypothesis=f"<b>{evil}</b>"),
        record("=cmd|' /C calc'!A0", scale=0.9, host=host("<i>host</i>")),
        record("[link](javascript:alert(1)) @everyone `x` | y \x1b[31mred", scale=0.8),
        failed("${7*7}{{7*7}}%{text}"),
    ]
    made = decision(records, name="<script>window.stolen=3</script>")
    made["notes"] = [evil, "plain"]
    return records, made


def all_failed() -> tuple[list[Record], dict[str, Any]]:
    records = [failed("tp4ep2"), failed("tp4"), rejected("tp2ep4")]
    return records, decision(records)


def one_point() -> tuple[list[Record], dict[str, Any]]:
    records = [record("ep8", points=[point(1, 60.0)], ladder=[1])]
    return records, decision(records)
