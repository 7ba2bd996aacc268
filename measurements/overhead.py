"""What orchestration costs: seconds a configuration beyond engine start and measuring, and the controller's own needs.

    python measurements/overhead.py [--configurations tp8,ep8,ep8_tuned,ep4] [--port 30360]
    python measurements/overhead.py --hosts 50

A real sweep (playbooks, ansible-runner, the simulated engine under supervisor) in a folder of its own. Of each
configuration's time, from being handed out to the next being asked for, the engine's start and what the load generator
took (warm-up, points) are subtracted; the rest is orchestration. `--hosts N` plans, records and reports on N simulated
hosts of this machine without starting their engines, and prints the controller's time and memory.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import yaml  # noqa: E402

from benchmark.campaign.playbooks import command_line, run_plain, run_watched  # noqa: E402
from benchmark.campaign.store import Campaign  # noqa: E402

CONFIGURATIONS = "tp8,ep8,ep8_tuned,ep4"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def inventory(folder: Path, port: int, hosts: int = 1) -> Path:
    """Simulated hosts on this machine, each with its own state folder and port, one environment for all."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    variables = {
        "sglang_tools_home": str(folder / "tools"),
        "sglang_tools_python": sys.executable,
        "sglang_service_manager": "supervisor",
        "sglang_service_engine": "simulated",
        "sglang_service_simulated_start_seconds": 1,
        "sglang_service_free_seconds": 5,
        "sglang_model_path": "kimi-k2.6",
        "sglang_benchmark_workload": "quick",
        "sglang_benchmark_concurrencies": [1, 4],
        "sglang_benchmark_further": [],
        "sglang_benchmark_first_again": False,
        "sglang_report_campaigns": str(folder / "campaigns"),
        "sglang_report_confidence": "quick",
    }
    named = {
        f"host{place}": {
            **local,
            "ansible_remote_tmp": str(folder / f"tmp{place}"),
            "sglang_tools_state": str(folder / f"state{place}"),
            "sglang_benchmark_fact_path": str(folder / f"facts{place}"),
            "sglang_service_port": port + place,
        }
        for place in range(hosts)
    }
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump({"gpu_servers": {"hosts": named, "vars": variables}}))
    return path


@dataclass
class Watch:
    """What each task took, and when each turn was handed out and its report written."""

    tasks: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds from a task's start on its host to its result, retries included, by its name and action."""
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often each was run; a retry counts, because it is a call of its own."""
    handed_out: list[float] = field(default_factory=list)
    ended: float = 0.0
    processor: list[float] = field(default_factory=list)
    """Seconds of Ansible and of what it ran and waited for (the verbs; not engine and load generator), at each turn."""
    load_seconds: float = 0.0
    """From asking for a point to its result: the load generator's start, its warm-up and the point."""

    def take(self, event: dict[str, Any]) -> None:
        if event.get("event") not in ("runner_on_ok", "runner_on_skipped", "runner_on_failed", "runner_retry"):
            return
        data = event.get("event_data") or {}
        task, action = str(data.get("task", "")), str(data.get("task_action", "")).rpartition(".")[2]
        if task.startswith("Next | write"):
            self.handed_out.append(_seconds(data["end"]))
            self.processor.append(_ansible_processor_seconds())
        if not self.handed_out or "After |" in task:
            return
        # Names of configurations and rungs in a task's name would split it.
        name = " ".join(word for word in task.split()[:7] if not word.isdigit()) + f" ({action})"
        self.counts[name] += 1
        if event["event"] == "runner_retry":
            return
        self.ended = _seconds(data["end"])
        self.tasks[name] += float(data["duration"])
        if task.startswith("Point | measure") and action == "verb":
            self.load_seconds += json.loads(data["res"]["stdout"]).get("seconds", 0.0)


def _ansible_processor_seconds() -> float:
    """Of this process's children: ansible-playbook, its workers that have ended, and what those waited for."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += sum(int(value) for value in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _seconds(stamp: str) -> float:
    return dt.datetime.fromisoformat(stamp).timestamp()


def one_host(configurations: str, port: int, tasks: int) -> int:
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        folder = Path(scratch)
        hosts = inventory(folder, port)
        # The tools' environment is made once a host, not once a configuration.
        run_plain("deploy.yml", command_line([str(hosts)], None, {"config": configurations.split(",")[0]}))
        run_plain("playbooks/stop.yml", command_line([str(hosts)], None, {}))
        watch = Watch()
        status, _ = run_watched(
            "sweep.yml", command_line([str(hosts)], None, {"configs": configurations}), watch.take, lambda: False
        )
        records = Campaign(folder / "campaigns", "kimi-k2.6-quick").records()
        run_plain("playbooks/stop.yml", command_line([str(hosts)], None, {}))
    if status != "successful" or not records:
        say(f"The sweep ended as {status} with {len(records)} records.")
        return 1
    each = [end - begin for begin, end in zip(watch.handed_out, [*watch.handed_out[1:], watch.ended], strict=True)]
    each = each[: len(records)]
    started = [record.start.ready_seconds or 0.0 for record in records if record.start]
    measured = sum(point.duration_seconds for record in records for point in record.points)
    rest = (sum(each) - sum(started) - watch.load_seconds) / len(records)
    say(f"{len(records)} configurations of {len(records[0].points)} points; seconds a configuration:")
    say(f"  from hand-out to hand-out {sum(each) / len(each):7.1f}")
    say(f"  engine start              {sum(started) / len(records):7.1f}")
    say(
        f"  load generator            {watch.load_seconds / len(records):7.1f}   (points {measured / len(records):.1f})"
    )
    say(f"  orchestration             {rest:7.1f}   (target: at most 5)")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    used = (watch.processor[-1] - watch.processor[0]) / len(records)
    say(f"  processor, Ansible and verbs{used:5.1f}   (load of this machine {load} on {os.cpu_count()} cores)")
    within = sum(watch.tasks.values())
    say(f"Tasks: {sum(watch.counts.values()) / len(records):.0f} a configuration; {within:.1f} s within them and")
    say(f"{sum(each) - within:.1f} s between them, of all configurations; waiting included:")
    for name, seconds in sorted(watch.tasks.items(), key=lambda item: -item[1])[:tasks]:
        say(f"  {seconds:7.2f} s  {watch.counts[name]:4d}x  {name}")
    return 0


def many_hosts(hosts: int, port: int) -> int:
    """Everything but engines on each host, by `sweep.yml --check`: tools, plan, sharing, foresight."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        folder = Path(scratch)
        path = inventory(folder, port, hosts)
        first = command_line([str(path)], "host0", {})
        run_plain("playbooks/status.yml", first)
        began, before = time.monotonic(), _children()
        status, _ = run_watched(
            "sweep.yml", [*command_line([str(path)], None, {}), "--check"], lambda _: None, lambda: False
        )
        wall, after = time.monotonic() - began, _children()
    say(f"{hosts} simulated hosts, plan and foresight of the whole catalogue ({status}):")
    spent = after[0] - before[0]
    say(f"  wall {wall:.1f} s ({wall / hosts:.2f} s a host), processor {spent:.1f} s on {os.cpu_count()} cores")
    say(f"  largest process of the controller {after[1] / 1024:.0f} MiB")
    return status != "successful"


def _children() -> tuple[float, int]:
    """(processor seconds, largest resident KiB) of this process's ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", default=CONFIGURATIONS)
    parser.add_argument("--port", type=int, default=30360)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=25, help="how many tasks to show, those that took longest first")
    options = parser.parse_args()
    if options.hosts:
        return many_hosts(options.hosts, options.port)
    return one_host(options.configurations, options.port, options.tasks)


if __name__ == "__main__":
    sys.exit(main())
