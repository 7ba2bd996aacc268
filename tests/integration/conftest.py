"""A site of the tests' own: a folder, a port, the simulated engine under supervisor. The playbooks are the real."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@dataclass
class Site:
    """An inventory with one simulated host, and how to run playbooks against it."""

    folder: Path
    tools: Path
    port: int
    variables: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory" / "hosts.yml"

    def write(self) -> None:
        self.inventory.parent.mkdir(parents=True, exist_ok=True)
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(self.folder / "tmp"),
        }
        variables = {
            "sglang_tools_home": str(self.tools),
            "sglang_tools_state": str(self.state),
            "sglang_tools_python": sys.executable,
            "sglang_service_manager": "supervisor",
            "sglang_service_engine": "simulated",
            "sglang_service_port": self.port,
            "sglang_service_simulated_start_seconds": 1,
            "sglang_service_free_seconds": 5,
            "sglang_model_path": "kimi-k2.6",
            "sglang_benchmark_workload": "quick",
            "sglang_benchmark_concurrencies": [1, 4],
            "sglang_benchmark_further": [],
            "sglang_benchmark_first_again": False,
            "sglang_benchmark_fact_path": str(self.folder / "facts.d"),
            "sglang_report_campaigns": str(self.folder / "campaigns"),
            "sglang_report_confidence": "quick",
        }
        hosts = {"here": local, **self.hosts}
        content = {"gpu_servers": {"hosts": hosts, "vars": variables | self.variables}}
        self.inventory.write_text(yaml.safe_dump(content))

    def play(self, playbook: str, *arguments: str, cwd: Path = ROOT, **variables: Any) -> subprocess.CompletedProcess:
        self.write()
        command = [str(BIN / "ansible-playbook"), "-i", str(self.inventory), playbook, *arguments]
        if variables:
            command += ["-e", json.dumps(variables)]
        return subprocess.run(
            command,
            cwd=cwd,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "ANSIBLE_HOME": str(self.folder / ".ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "COLUMNS": "400",
        }

    def verb(self, *words: str) -> dict[str, Any]:
        command = [
            str(self.tools / "venv/bin/shardsweep-host"),
            "--settings",
            str(self.state / "settings.json"),
            *words,
        ]
        return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout)

    def serving(self) -> list[str]:
        return [service["unit"] for service in self.verb("observe")["serving"]]

    def ask(self, path: str, **arguments: Any) -> requests.Response:
        return requests.request(
            arguments.pop("method", "GET"), f"http://127.0.0.1:{self.port}{path}", timeout=10, **arguments
        )

    def stop(self) -> None:
        """As stop.yml does, on each host, without a playbook's seconds."""
        for settings in self.folder.rglob("settings.json"):
            words = [
                str(self.tools / "venv/bin/shardsweep-host"),
                "--settings",
                str(settings),
                "stop",
                "--interrupt",
                "--token",
                "end",
            ]
            for _ in range(60):
                told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
                if told.returncode or json.loads(told.stdout)["phase"] in ("stopped", "failed"):
                    break


def run(command: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Without a terminal to ask at, and not for ever."""
    return subprocess.run(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


def recap(done: subprocess.CompletedProcess, host: str = "here") -> dict[str, int]:
    """{"ok": 36, "changed": 0, ...} of a host, from the last lines of ansible-playbook."""
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith(host) and "ok=" in line)
    return {key: int(value) for key, value in (pair.split("=") for pair in line.split(":", 1)[1].split())}


def said(done: subprocess.CompletedProcess) -> str:
    """All that was printed, on one line: a sentence may be broken anywhere."""
    return " ".join((done.stdout + done.stderr).split())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def tools(tmp_path_factory) -> Path:
    """The tools' virtual environment, made once by the first playbook that needs it."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def site(tmp_path, tools):
    made = Site(tmp_path, tools, free_port())
    yield made
    made.stop()


@pytest.fixture(scope="session")
def installed_tools(tmp_path_factory, tools) -> Path:
    """The same, there already: two hosts of one machine must not install into one folder at a time."""
    if not (tools / "venv/bin/shardsweep-host").exists():
        done = Site(tmp_path_factory.mktemp("first"), tools, free_port()).play("playbooks/preflight.yml")
        assert (tools / "venv/bin/shardsweep-host").exists(), said(done)
    return tools


@pytest.fixture
def two(site, installed_tools):
    """`site` with a second simulated host on this machine: its own state folder, facts and port."""
    site.hosts["there"] = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(site.folder / "tmp2"),
        "sglang_tools_state": str(site.folder / "state2"),
        "sglang_service_port": free_port(),
        "sglang_benchmark_fact_path": str(site.folder / "facts2.d"),
    }
    return site


@pytest.fixture(scope="session")
def _shared_site(tmp_path_factory, tools):
    made = Site(tmp_path_factory.mktemp("served"), tools, free_port())
    yield made
    made.stop()


@pytest.fixture
def served(_shared_site) -> Site:
    """A site that serves ep4, shared by tests that leave it so; deployed again only where one did not."""
    _shared_site.variables.clear()
    if not (_shared_site.state / "settings.json").exists() or _shared_site.serving() != ["sglang-ep4"]:
        done = _shared_site.play("deploy.yml", config="ep4", interrupt=True)
        assert done.returncode == 0, said(done)
    return _shared_site
