"""Holds this package's load generator, and others that are installed, against a server with a known schedule.

    python measurements/load_client.py                      the default cells: 512 x 50, 512 x 100, 1024 x 50
    python measurements/load_client.py --cells 64x50 --runs 1
    python measurements/load_client.py --peer sglang=/path/to/python --peer aiperf=/path/to/python

Peers are those that are installed (sglang.bench_serving for this interpreter, aiperf and guidellm on the PATH) and
those named by `--peer NAME=PYTHON`, the interpreter that has them; `--no-peers` leaves out what was not named.

The server (benchmark/load/reference_server.py) runs on core 0, the client on core 1. For each cell it prints, in the
median of the runs, reported against true TTFT, ITL and throughput, the share of the load that was really offered,
CPU microseconds an event, peak memory and start-up. Truth is what the server sent, over the same window.
Peers are measured over all of their run, since they have no window; their CPU and memory are those of all their
processes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COLUMNS = (
    ("tool", "tool"),
    ("streams", "streams"),
    ("rate", "events/s each"),
    ("runs", "runs"),
    ("events_per_second", "events/s"),
    ("cpu_us_per_event", "CPU us/event"),
    ("ttft_p50", "TTFT p50 %"),
    ("ttft_p99", "TTFT p99 %"),
    ("itl_p50", "ITL p50 %"),
    ("itl_p99", "ITL p99 %"),
    ("throughput", "throughput %"),
    ("offered", "load offered %"),
    ("rss_mb", "peak RSS MB"),
    ("server_cpu", "server CPU"),
    ("server_late_us", "server late p99 us"),
    ("shifted", "shifted"),
    ("flags", "flags"),
)


PRIORITY = "--no-priority" not in sys.argv


def on_core(core: int, command: list[str]) -> list[str]:
    # As root with a real-time priority, so that what else runs on this machine does not disturb (nice would not do:
    # autogroups). The same for every tool; --no-priority leaves it out.
    first = ["chrt", "-f", "5"] if PRIORITY and os.geteuid() == 0 else []
    return [*first, "taskset", "-c", str(core % (os.cpu_count() or 1)), *command]


class Server:
    """The reference server as a process of its own, on core 0."""

    def __init__(self, tick: float, ttft: float, spread: float, folder: Path) -> None:
        self.truth_path = folder / "truth.npz"
        command = [
            sys.executable, "-m", "benchmark.load.reference_server", "--realtime", "--truth", str(self.truth_path),
            "--tick", str(tick), "--ttft", str(ttft), "--spread", str(spread),
        ]  # fmt: skip
        self.process = subprocess.Popen(on_core(0, command), stdout=subprocess.PIPE, cwd=ROOT, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def finish(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """(its report about itself, the truth)."""
        self.process.send_signal(signal.SIGTERM)
        text, _ = self.process.communicate(timeout=30)
        with np.load(self.truth_path) as found:
            truth = {name: found[name] for name in found.files}
        return json.loads(text.strip().splitlines()[-1]), truth


def true_figures(truth: dict[str, np.ndarray], streams: int, start: int, end: int, skip: int) -> dict[str, float]:
    """TTFT, ITL (seconds), events a second and the load offered, inside (start, end] (monotonic nanoseconds).

    `skip`: requests at the beginning (the first wave) that are left out of TTFT, as the client does.
    """
    ends = np.cumsum(truth["counts"])
    sends = [truth["sends_ns"][e - c : e] for e, c in zip(ends, truth["counts"], strict=True)]
    ttft, gaps, events, busy = [], [], 0, 0.0
    order = np.argsort(truth["arrived_ns"], kind="stable")
    for place, number in enumerate(order):
        times, arrived = sends[number], truth["arrived_ns"][number]
        if not len(times):
            continue
        if place >= skip and start < times[0] <= end:
            ttft.append((times[0] - arrived) / 1e9)
        inside = times[(times > start) & (times <= end)]
        events += len(inside)
        gaps.append(np.diff(inside))
        busy += max(0, min(times[-1], end) - max(arrived, start))
    itl = np.concatenate(gaps) / 1e9
    return {
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "itl_p50": float(np.percentile(itl, 50)),
        "itl_p99": float(np.percentile(itl, 99)),
        "throughput": events / ((end - start) / 1e9),
        "offered": busy / (streams * (end - start)),
    }


def run_ours(server: Server, streams: int, tokens: int, seconds: float, route: str, folder: Path) -> dict[str, Any]:
    """One run of this package's client, in a process of its own on core 1."""
    out = folder / "client.json"
    command = [
        sys.executable, str(Path(__file__).resolve()), "--one", server.url, "--cells", f"{streams}x1", "--tokens",
        str(tokens), "--seconds", str(seconds), "--route", route, "--out", str(out),
    ]  # fmt: skip
    subprocess.run(on_core(1, command), check=True, cwd=ROOT, timeout=seconds * 20 + 120)
    return json.loads(out.read_text())


def one(url: str, streams: int, tokens: int, seconds: float, route: str, out: Path) -> None:
    """The client's process: measure one point and write what is to be compared."""
    from benchmark.load import measure, metrics, target, workload

    work = workload.Workload(
        name="reference",
        prompt_tokens=64,
        output_tokens=tokens,
        window_seconds=seconds,
        minimum_window_seconds=seconds,
        ramp_turnover=0.25,
    )
    got = measure.run(
        measure.measure_point(target.Target(url, route=route), work, streams, flush=False, telemetry=False)
    )
    found = metrics.figures(got.requests, got.about)
    zero = got.about.client["started_monotonic_ns"]
    window = [zero + edge * 1000 for edge in found.window]
    token_events = sum(len(row.token_us) for row in got.requests)
    inside = got.point.output_tokens_per_second * got.point.window_seconds
    result = {
        "ttft_p50": float(np.percentile(found.ttft, 50)),
        "ttft_p99": float(np.percentile(found.ttft, 99)),
        "itl_p50": float(np.percentile(found.itl, 50)),
        "itl_p99": float(np.percentile(found.itl, 99)),
        "throughput": got.point.output_tokens_per_second,
        "window_ns": window,
        "cpu_us_per_event": 1e6 * got.about.client["cpu_share"] * got.point.window_seconds / inside,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "flags": [f"{flag.id}:{flag.severity}" for flag in got.point.flags],
        "token_events": token_events,
        "client": got.about.client,
    }
    out.write_text(json.dumps(result))


TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {f"w{i}": i for i in range(32000)}
made = Tokenizer(models.WordLevel(words, unk_token="w0"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0").save_pretrained(sys.argv[1])
"""
"""A tokenizer of 32,000 words, one token each: bench_serving will not start without one."""


Command = Callable[[Path, str, Path, int, int, int], list[str]]
"""(interpreter, address, folder with `tokenizer/`, streams, tokens of an answer, requests) -> command line."""


@dataclass(frozen=True)
class Peer:
    """Another load generator: how it is run, and its report as seconds and tokens a second (None: it has no such)."""

    command: Command
    report: Callable[[Path], dict[str, float | None]]
    """Reads the folder that the command wrote to."""
    offline: bool = True
    """Whether it starts with Hugging Face's libraries told to stay offline (aiperf does not)."""


def _sglang_command(python: Path, url: str, folder: Path, streams: int, tokens: int, requests: int) -> list[str]:
    return [
        str(python), "-m", "sglang.bench_serving", "--backend", "sglang-oai", "--base-url", url, "--model", "reference",
        "--tokenizer", str(folder / "tokenizer"), "--dataset-name", "random-ids", "--random-input-len", "64",
        "--random-output-len", str(tokens), "--random-range-ratio", "1.0", "--num-prompts", str(requests),
        "--max-concurrency", str(streams), "--warmup-requests", "0", "--disable-tqdm",
        "--output-file", str(folder / "sglang.jsonl"), "--output-details",
    ]  # fmt: skip


def _sglang_report(folder: Path) -> dict[str, float | None]:
    found = json.loads((folder / "sglang.jsonl").read_text().splitlines()[-1])
    return {
        "ttft_p50": found["median_ttft_ms"] / 1000,
        "ttft_p99": found["p99_ttft_ms"] / 1000,
        "itl_p50": found["median_itl_ms"] / 1000,
        "itl_p99": found["p99_itl_ms"] / 1000,
        "throughput": found["output_throughput"],
    }


def _aiperf_command(python: Path, url: str, folder: Path, streams: int, tokens: int, requests: int) -> list[str]:
    return [
        str(python.with_name("aiperf")), "profile", "-m", "reference", "--url", url, "--endpoint-type", "chat",
        "--streaming", "--tokenizer", str(folder / "tokenizer"), "--concurrency", str(streams),
        "--request-count", str(requests), "--isl", "64", "--osl", str(tokens), "--extra-inputs", "ignore_eos:true",
        "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(folder / "aiperf"),
    ]  # fmt: skip


def _aiperf_report(folder: Path) -> dict[str, float | None]:
    """Its `inter_token_latency` is one mean a request; gaps between chunks are `inter_chunk_latency`."""
    found = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())
    gaps = found.get("inter_chunk_latency") or {}
    return {
        "ttft_p50": found["time_to_first_token"]["p50"] / 1000,
        "ttft_p99": found["time_to_first_token"]["p99"] / 1000,
        "itl_p50": gaps["p50"] / 1000 if "p50" in gaps else None,
        "itl_p99": gaps["p99"] / 1000 if "p99" in gaps else None,
        "throughput": found["output_token_throughput"]["avg"],
    }


def _guidellm_command(python: Path, url: str, folder: Path, streams: int, tokens: int, requests: int) -> list[str]:
    return [
        str(python.with_name("guidellm")), "run", "--backend",
        f"kind=openai_http,target={url},model=reference,request_format=/v1/chat/completions",
        "--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={requests}",
        "--tokenizer", f"kind=hf_auto,model={folder / 'tokenizer'}",
        "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={tokens}",
        "--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-progress",
    ]  # fmt: skip


def _guidellm_report(folder: Path) -> dict[str, float | None]:
    """Its `inter_token_latency_ms` is one mean a request, so it has no ITL in the sense of this table."""
    found = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    ttft = found["time_to_first_token_ms"]["successful"]["percentiles"]
    return {
        "ttft_p50": ttft["p50"] / 1000,
        "ttft_p99": ttft["p99"] / 1000,
        "itl_p50": None,
        "itl_p99": None,
        "throughput": found["output_tokens_per_second"]["successful"]["mean"],
    }


PEERS = {
    "sglang": Peer(_sglang_command, _sglang_report),
    "aiperf": Peer(_aiperf_command, _aiperf_report, offline=False),
    "guidellm": Peer(_guidellm_command, _guidellm_report),
}


def installed() -> dict[str, Path]:
    """Interpreters of the peers that this one has, or whose command is on the PATH."""
    found = {}
    if importlib.util.find_spec("sglang") is not None:
        found["sglang"] = Path(sys.executable)
    for name in ("aiperf", "guidellm"):
        if (command := shutil.which(name)) is not None:
            # pip and uv write the command beside its interpreter; a link to it lies elsewhere.
            found[name] = Path(command).resolve().with_name("python")
    return found


def named_peer(text: str) -> tuple[str, Path]:
    """NAME=PYTHON of `--peer`.

    Raises:
        ArgumentTypeError: no such peer, or no such interpreter.
    """
    name, _, python = text.partition("=")
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"there is no peer {name!r}; known are {', '.join(PEERS)}")
    if shutil.which(python) is None:
        raise argparse.ArgumentTypeError(f"{python or 'nothing'!r} cannot be run; give the interpreter that has {name}")
    return name, Path(python)


def run_peer(
    name: str, python: Path, server: Server, streams: int, tokens: int, requests: int, folder: Path
) -> dict[str, Any]:
    """One run of another load generator from its own interpreter, on core 1."""
    peer = PEERS[name]
    subprocess.run([python, "-c", TOKENIZER, str(folder / "tokenizer")], check=True, capture_output=True)
    command = peer.command(python, server.url, folder, streams, tokens, requests)
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if peer.offline else {}
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        # A session of its own, by which all its processes are known.
        process = subprocess.Popen(
            on_core(1, command), stdout=out, stderr=out, start_new_session=True, env={**os.environ, **offline}
        )
        samples = sampled(process)
    if process.returncode:
        raise SystemExit(f"{name} ended with exit status {process.returncode}:\n{log.read_text()[-2000:]}")
    return {
        **peer.report(folder),
        "window_ns": None,
        "requests": requests,
        "tokens": tokens,
        "cpu_samples": [(at, cpu) for at, cpu, _ in samples],
        "rss_mb": max(rss for _, _, rss in samples) / 1e6,
        "flags": [],
    }


def session_use(session: int) -> tuple[float, int]:
    """(CPU seconds so far, bytes resident) of all processes of a session, with children that have ended."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    seconds, resident = 0.0, 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # proc(5), from field 3 on: session is field 6, utime to cstime are 14 to 17, rss is 24.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                seconds += sum(map(int, fields[11:15])) / ticks
                resident += int(fields[21]) * page
    return seconds, resident


def sampled(process: subprocess.Popen) -> list[tuple[int, float, int]]:
    """(monotonic nanoseconds, CPU seconds so far, bytes resident) of a process's session, until it ends.

    CPU of processes that end without being waited for is kept: the total never falls.
    """
    samples: list[tuple[int, float, int]] = []
    while process.poll() is None:
        seconds, resident = session_use(process.pid)
        samples.append((time.monotonic_ns(), max(seconds, samples[-1][1] if samples else 0.0), resident))
        time.sleep(0.2)
    return samples


def compare(
    tool: str,
    streams: int,
    rate: float,
    got: dict[str, Any],
    report: dict[str, Any],
    truth: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Reported over true, in percent off."""
    if got["window_ns"]:
        start, end = got["window_ns"]
        true = true_figures(
            truth, streams, start, end, skip=int(len(truth["counts"]) and streams + got.get("asides", 2))
        )
    else:
        truth = answered(truth, got["tokens"], got["requests"])
        start, end = int(truth["arrived_ns"].min()) - 1, int(truth["sends_ns"].max())
        true = true_figures(truth, streams, start, end, skip=0)
        times, cpu = zip(*got["cpu_samples"], strict=True)
        used = np.interp((start, end), times, cpu)
        got["cpu_us_per_event"] = 1e6 * float(used[1] - used[0]) / len(truth["sends_ns"])
    row: dict[str, Any] = {"tool": tool, "streams": streams, "rate": rate, "events_per_second": true["throughput"]}
    for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "throughput"):
        row[name] = None if got[name] is None else 100 * (got[name] / true[name] - 1)
    row["offered"] = 100 * true["offered"]
    for name in ("cpu_us_per_event", "rss_mb", "flags"):
        row[name] = got[name]
    row["server_cpu"] = report["cpu_share"]
    row["server_late_us"] = report["tick_late_us_p99"]
    row["shifted"] = report["shifted"]
    return row


def answered(truth: dict[str, np.ndarray], tokens: int, requests: int) -> dict[str, np.ndarray]:
    """The truth of a peer's last `requests` answers of full length, without what it asked to see the server first."""
    whole = np.flatnonzero(truth["counts"] == tokens)
    kept = whole[np.argsort(truth["arrived_ns"][whole], kind="stable")][-requests:]
    ends = np.cumsum(truth["counts"])
    sends = [truth["sends_ns"][ends[i] - tokens : ends[i]] for i in kept]
    if not sends:
        raise SystemExit(f"The server sent no answer of {tokens} tokens to this peer.")
    return {"arrived_ns": truth["arrived_ns"][kept], "counts": truth["counts"][kept], "sends_ns": np.concatenate(sends)}


def median_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number over the runs of a cell."""
    found = dict(rows[0])
    for name, value in rows[0].items():
        if isinstance(value, float):
            found[name] = statistics.median(row[name] for row in rows)
    found["runs"] = len(rows)
    found["flags"] = sorted({flag for row in rows for flag in row["flags"]})
    return found


def line(row: dict[str, Any]) -> str:
    cells = []
    for name, _title in COLUMNS:
        value = "-" if row.get(name, "") is None else row.get(name, "")
        text = (
            f"{value:.2f}" if isinstance(value, float) else " ".join(value) if isinstance(value, list) else str(value)
        )
        cells.append(text)
    return "| " + " | ".join(cells) + " |"


def start_up_seconds() -> float:
    """From the start of an interpreter to a client that could send its first request; the best of three."""
    best = float("inf")
    for _ in range(3):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import benchmark.load.measure"], check=True, cwd=ROOT)
        best = min(best, time.monotonic() - begun)
    return best


def measure_cell(
    tool: str, python: Path | None, streams: int, rate: float, given: argparse.Namespace
) -> dict[str, Any]:
    rows = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            server = Server(1 / rate, given.ttft, given.spread, folder)
            got: dict[str, Any] | None = None
            try:
                if python is None:
                    got = run_ours(server, streams, given.tokens, given.seconds, given.route, folder)
                else:
                    got = run_peer(tool, python, server, streams, given.tokens, 2 * streams, folder)
            finally:
                report, truth = server.finish()
            rows.append(compare(tool, streams, rate, got, report, truth))
            if given.verbose:
                sys.stdout.write(json.dumps(got.get("client")) + "\n")
                sys.stdout.write(line({**rows[-1], "runs": "one"}) + "\n")
    return median_row(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["512x50", "512x100", "1024x50"], help="STREAMSxEVENTS_A_SECOND")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of the window")
    parser.add_argument("--ttft", type=float, default=0.1)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--route", default="completions")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=named_peer,
        metavar="NAME=PYTHON",
        help=f"{', '.join(PEERS)}, and the interpreter that has it",
    )
    parser.add_argument("--no-peers", action="store_true", help="none but those named by --peer")
    parser.add_argument("--no-priority", action="store_true", help="no real-time priority, also as root")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="also write the rows there, as JSON")
    given = parser.parse_args()
    cells = [(int(streams), float(rate)) for streams, _, rate in (cell.partition("x") for cell in given.cells)]
    if given.one:
        one(given.one, cells[0][0], given.tokens, given.seconds, given.route, given.out)
        return
    peers = ({} if given.no_peers else installed()) | dict(given.peer)
    tools: list[tuple[str, Path | None]] = [("shardsweep", None), *peers.items()]
    sys.stdout.write(f"start-up: {start_up_seconds():.2f} s\n\n")
    sys.stdout.write("| " + " | ".join(title for _, title in COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|\n")
    rows = []
    for streams, rate in cells:
        for tool, python in tools:
            with contextlib.suppress(KeyboardInterrupt):
                rows.append(measure_cell(tool, python, streams, rate, given))
                sys.stdout.write(line(rows[-1]) + "\n")
                sys.stdout.flush()
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
