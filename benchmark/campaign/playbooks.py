"""Runs the project's playbooks through ansible-runner, in a clean environment that is gone afterwards."""

from __future__ import annotations

import configparser
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from .extra import in_files

PROJECT = Path(__file__).resolve().parents[2]

_FORKS = 5
"""Ansible's own default."""
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "PWD", "SSH_AUTH_SOCK", "TERM", "TMPDIR", "USER")
"""ansible-runner writes the environment it runs in to its artifacts; a controller's secrets do not belong there."""


class NoProject(RuntimeError):  # noqa: N818  (reads as what it is where it is raised)
    """The playbooks are not where this package is."""


def project() -> Path:
    if not (PROJECT / "playbooks" / "sweep.yml").exists():
        raise NoProject(
            f"There are no playbooks at {PROJECT}. Run this from a checkout of Shardsweep (make sweep sets it up), "
            "or use the collection's playbooks: ansible-playbook shardsweep.serving.sweep."
        )
    return PROJECT


@contextlib.contextmanager
def command_line(
    inventory: Sequence[str],
    limit: str | None,
    extra: Sequence[str],
    variables: Mapping[str, Any],
    further: Sequence[str] = (),
) -> Iterator[list[str]]:
    """ansible-playbook's arguments behind the playbook's name, while the files that they name are there.

    Args:
        extra: what stood behind `-e`.
        variables: these win over it.
    """
    arguments = [
        word for name in inventory for word in ("-i", str(Path(name).absolute() if Path(name).exists() else name))
    ]
    if limit:
        arguments += ["--limit", limit]
    with tempfile.TemporaryDirectory(prefix="shardsweep-") as scratch:
        yield [*arguments, *in_files(extra, variables, Path(scratch)), *further]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("ANSIBLE_")}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return kept


def forks() -> int:
    """How many hosts ansible-playbook looks after at a time, by the environment and the project's ansible.cfg."""
    settings = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error, OSError):
        settings.read(os.environ.get("ANSIBLE_CONFIG") or project() / "ansible.cfg")
    try:
        return int(os.environ.get("ANSIBLE_FORKS") or settings.get("defaults", "forks", fallback=_FORKS))
    except ValueError:
        return _FORKS


def run_watched(
    playbook: str,
    arguments: Sequence[str],
    take: Callable[[dict[str, Any]], None],
    cancelled: Callable[[], bool],
) -> tuple[str, int]:
    """Run a playbook and hand each event to `take`. One that is cancelled leaves no worker behind.

    Returns:
        ansible-runner's status ("successful", "failed", "canceled", "timeout") and the exit status.
    """
    import ansible_runner

    with tempfile.TemporaryDirectory(prefix="shardsweep-") as scratch:

        def handle(event: dict[str, Any]) -> bool:
            take(event)
            return False  # the event is not kept on disk

        workers: list[_Process] = []

        def stopping() -> bool:
            if not cancelled():
                return False
            workers.extend(_workers())
            return True

        before, clean = dict(os.environ), environment()
        os.environ.clear()
        os.environ.update(clean)
        try:
            done = ansible_runner.run(
                private_data_dir=scratch,
                project_dir=str(project()),
                playbook=playbook,
                cmdline=shlex.join(arguments),
                quiet=True,
                event_handler=handle,
                cancel_callback=stopping,
                settings={"suppress_env_files": True, "pexpect_timeout": 2},
            )
        finally:
            os.environ.clear()
            os.environ.update(before)
            _end(workers)
        return done.status, done.rc if done.rc is not None else 1


_Process = tuple[int, str]
"""A process: its pid, and when it began (/proc's ticks), since pids come again."""


def _workers() -> list[_Process]:
    """The worker processes of the ansible-playbook that this process runs.

    Since ansible-core 2.19 each has a session of its own, so that what ends ansible-playbook's process group does not
    end them: they would go on asking the host for its next step.
    """
    parents = {found: status[1] for found, status in _processes()}
    own = {pid for (pid, _), parent in parents.items() if parent == str(os.getpid())}
    return [found for found, parent in parents.items() if int(parent) in own]


def _end(workers: Sequence[_Process]) -> None:
    """What a worker runs on its host is short, and ends by itself."""
    living = {found for found, _ in _processes()}
    for worker in living.intersection(workers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker[0], signal.SIGKILL)


def _processes() -> Iterator[tuple[_Process, list[str]]]:
    """Each process of this machine with its status from /proc, its state first; none where there is no /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            status = stat.read_text(errors="replace").rpartition(")")[2].split()
            yield (int(stat.parent.name), status[19]), status


def run_plain(playbook: str, arguments: Sequence[str], *, out: TextIO | None = None) -> int:
    """Run a playbook as `ansible-playbook` would, its own output on the terminal, or on `out`."""
    command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook, *arguments]
    return subprocess.run(command, cwd=project(), env=environment(), stdout=out, check=False).returncode
