"""The real playbooks: `ansible-playbook sweep.yml` over a host, and a console that reaches the host beside Ansible.

The host is this machine under supervisor, over a connection that can be lost, or one of an inventory, over SSH. There
the inventory says `chaos_console`, a command that runs another one on the host by another way than SSH, and
`chaos_reboot`, a command that reboots it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chaos_strikes
import yaml
from chaos_faults import HOST_KINDS, LADDER, PLAYBOOK_KINDS, WORKLOAD, Fault
from chaos_site import ROOT, points_of

from benchmark.campaign.record import Record
from benchmark.campaign.store import Campaign

BIN = Path(sys.executable).parent
CAMPAIGN = "chaos"
SHAPES = ("tp8", "ep8", "pp8")
"""Of the catalogue; a round has two of them under names of its own."""
AFTER_LADDER = {"workload": WORKLOAD | {"name": "short_after"}, "concurrency": LADDER[-1] + 1}
"""One point that follows the ladder; no rung has its concurrency, by which a point is told here."""
ALONE = 1_000_000
"""The seed of a sweep that nothing strikes."""
SETTINGS = {
    "sglang_service_engine": "simulated",
    "sglang_service_simulated_start_seconds": 0.5,
    "sglang_service_stop_seconds": 5,
    "sglang_service_free_seconds": 5,
    "sglang_service_start_seconds": 60,
    "sglang_service_quiet_seconds": 30,
    "sglang_service_lease_seconds": 15,
    "sglang_service_reconnect_seconds": 12,
}
_SEMAPHORE_BYTES = 64
"""What no disk refuses: semaphores lie in memory, as files of 32 bytes. Without one ansible-core 2.19 does not start
the next task's process, says nothing, and waits for its answer for ever (_queue_task passes over an OSError)."""
CONNECTIONS = ROOT / "tests/data/connection"


class Playbooks:
    """A site that is swept by ansible-playbook."""

    kinds_by_name = ()
    gpus = 8
    patience_seconds = 600.0

    def __init__(self, folder: Path, port: int, inventory: Path | None, host: str) -> None:
        self.folder, self.host = folder, host
        self.inventory = inventory.absolute() if inventory else _own_inventory(folder, port)
        known = _variables(self.inventory, host)
        self._console_command = (
            [str(ROOT / known["chaos_console"][0]), *known["chaos_console"][1:]] if inventory else []
        )
        self._reboot_command = [str(ROOT / known["chaos_reboot"][0]), *known["chaos_reboot"][1:]] if inventory else []
        self._python = f"{known['sglang_tools_home']}/venv/bin/python"
        self._settings = f"{known['sglang_tools_state']}/settings.json"
        self._cut_file = folder / "cut"
        self._console: subprocess.Popen[str] | None = None
        self.kinds = HOST_KINDS if inventory else PLAYBOOK_KINDS
        self.usual_seconds = 0.0

    @property
    def campaign(self) -> Campaign:
        return Campaign(self.folder / "campaigns", CAMPAIGN)

    def names(self, seed: int) -> list[str]:
        """One configuration with two points, or two with one each: a sweep costs half a minute of Ansible."""
        return [f"{shape}_{seed}" for shape in random.Random(f"{seed} shapes").sample(SHAPES, 1 + seed % 2)]

    @staticmethod
    def ladder(seed: int) -> list[int]:
        return LADDER[: 2 - seed % 2]

    def open(self) -> None:
        """The tools, and a sweep that nothing strikes: it says what one takes."""
        known = self.folder / "usual_seconds"
        status, said = self._play("playbooks/preflight.yml", {}).finish()
        if status == 0 and not known.exists():
            began = time.monotonic()
            status, said = self.sweep(ALONE, None).finish()
            if not status and not self.missing(ALONE):
                known.write_text(f"{time.monotonic() - began:.1f}")
        if status or not known.exists():
            raise RuntimeError("A sweep that nothing strikes does not end well:\n" + "\n".join(said[-60:]))
        self.usual_seconds = float(known.read_text())

    def prepare(self, seed: int, fault: Fault | None) -> None:
        """Nothing: a round is a sweep's own variables."""

    def sweep(self, seed: int, fault: Fault | None) -> Played:
        variables = {
            "configs": ",".join(self.names(seed)),
            "sglang_site_configs": {
                name: {"extends": name.rpartition("_")[0], "environment": {"CHAOS_ROUND": str(seed)}}
                for name in self.names(seed)
            },
            "plan": "off",
            "interrupt": True,
            "sglang_benchmark_workload": WORKLOAD,
            "sglang_benchmark_concurrencies": self.ladder(seed),
            "sglang_benchmark_further": [AFTER_LADDER],
            "sglang_benchmark_first_again": False,
            "sglang_benchmark_accuracy": False,
            "sglang_benchmark_point_seconds": 120,
            "sglang_report_confidence": "quick",
            "sglang_report_campaigns": str(self.folder / "campaigns"),
            "sglang_report_campaign": CAMPAIGN,
        }
        return self._play("sweep.yml", variables)

    def _play(self, playbook: str, variables: dict[str, Any]) -> Played:
        told = json.dumps(SETTINGS | variables)
        words = ["-i", str(self.inventory), "--limit", self.host, playbook, "-e", told]
        environment = os.environ | {
            "ANSIBLE_HOME": str(self.folder / ".ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CONNECTION_PLUGINS": str(CONNECTIONS),
            "BREAKING_CONNECTION": str(self._cut_file),
        }
        return Played([str(BIN / "ansible-playbook"), *words], environment)

    def told(self, seed: int, status: int | None, said: list[str]) -> str:
        """With 0 each configuration has all its points, or a record that says why not."""
        if status != 0:
            return ""
        records = {record.configuration.name: record for record in self.campaign.all_records(skip_broken=True)}
        silent = [name for name in self.missing(seed) if not _says_why(records.get(name))]
        return f"{', '.join(silent)}: neither all points nor a failure" if silent else ""

    def repair(self, fault: Fault) -> None:
        fault.wait_until_over()
        self.strike("repair")

    def held(self) -> bool:
        return self.strike("held")

    def finished(self) -> dict[Any, Any]:
        on_host = {("host", key): digest for key, digest in self.strike("finished").items()}
        return {("controller", *key): point for key, point in points_of(self.campaign).items()} | on_host

    def missing(self, seed: int) -> list[str]:
        """A configuration is whole when its record says so, and host and controller have the same points of it."""
        whole = {record.configuration.name for record in self.campaign.all_records() if _is_whole(record)}
        here = {(name, key, rung) for name, key, rung, _ in points_of(self.campaign)}
        there = {(name, key, int(rung)) for name, key, rung, _ in (key.split("/") for key in self.strike("finished"))}
        unlike = {name for name, *_ in here ^ there}
        return [name for name in self.names(seed) if name not in whole - unlike]

    def running(self) -> list[str]:
        return self.strike("running")

    def end(self) -> None:
        if self._console is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self.strike("repair")
        self._play("playbooks/stop.yml", {"interrupt": True}).finish()
        self._console.kill()
        self._console.wait()
        self._console = None

    def strike(self, verb: str, *words: Any) -> Any:
        """Ask the console, which is opened when needed and does not outlive a reboot."""
        if self._console is None or self._console.poll() is not None:
            source = Path(chaos_strikes.__file__).read_text()
            command = [*self._console_command, self._python, "-c", source, self._settings]
            pipe = subprocess.PIPE
            self._console = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, cwd=ROOT
            )
        self._console.stdin.write(json.dumps([verb, *words]) + "\n")
        self._console.stdin.flush()
        return json.loads(self._console.stdout.readline())

    def end_controller(self, pid: int, kind: str, whole: bool) -> str | None:
        if kind == "Ctrl-C":
            os.killpg(pid, signal.SIGINT)
            return f"interrupted {pid}"
        victims = [pid, *(_below(pid) if whole else [])]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        return f"killed {' '.join(map(str, victims))}"

    def fill_controllers_disk(self, pid: int, seconds: float) -> str | None:
        """No file of the controller, nor of what it starts from now on, may be larger until the time is over."""
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)

        def fill(size: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, limits[1]))

        fill(_SEMAPHORE_BYTES)
        threading.Timer(seconds, fill, [limits[0]]).start()
        return f"no more than {_SEMAPHORE_BYTES} bytes in a file of {pid} for {seconds} s"

    def spoil_kept(self, how: str, seed: int) -> str | None:
        return chaos_strikes.spoil_newest(self.folder / "campaigns", "**/record.json", how, seed)

    def cut(self, seconds: float) -> str | None:
        if self._console_command:
            return self.strike("cut", seconds)
        self._cut_file.touch()
        threading.Timer(seconds, self._cut_file.unlink).start()
        return "no connection"

    def reboot(self) -> str | None:
        subprocess.run(self._reboot_command, cwd=ROOT, check=True, capture_output=True, timeout=120)
        return "rebooted"


class Played:
    """An ansible-playbook under way, in a session of its own as a terminal's."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.pid = self._process.pid
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.strip():
                self._lines.put(line.rstrip())

    def hear(self, seconds: float) -> str | None:
        try:
            return self._lines.get(timeout=seconds) if seconds else self._lines.get_nowait()
        except queue.Empty:
            return None

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def status(self) -> int | None:
        return self._process.wait()

    def kill(self) -> None:
        for victim in [self.pid, *_below(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> tuple[int | None, list[str]]:
        """Its exit status and what it told."""
        said = []
        while not self.over:
            if (line := self.hear(0.2)) is not None:
                said.append(line)
        return self.status(), said


def _is_whole(record: Record) -> bool:
    return record.complete and record.outcome == "measured"


def _says_why(record: Record | None) -> bool:
    return record is not None and record.failure is not None


def _below(pid: int) -> list[int]:
    """The processes that this one started, and those that they started."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in listing.read_text().split()]
                found += children
                waiting += children
    return found


def _variables(inventory: Path, host: str) -> dict[str, Any]:
    """What an inventory says of a host; templates stay as they are."""
    group = yaml.safe_load(inventory.read_text())["gpu_servers"]
    return {**group["vars"], **(group["hosts"][host] or {})}


def _own_inventory(folder: Path, port: int) -> Path:
    host = {
        "ansible_connection": "breaking",
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(folder / "tmp"),
        "sglang_tools_home": str(folder / "tools"),
        "sglang_tools_state": str(folder / "state"),
        "sglang_tools_python": sys.executable,
        "sglang_service_manager": "supervisor",
        "sglang_service_port": port,
        "sglang_model_path": "kimi-k2.6",
        "sglang_benchmark_fact_path": str(folder / "facts.d"),
    }
    path = folder / "inventory/hosts.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"gpu_servers": {"hosts": {"here": host}, "vars": {}}}))
    return path
