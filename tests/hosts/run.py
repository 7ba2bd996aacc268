"""`make test-hosts`: every Molecule scenario but `default`, which `make test` runs.

A scenario with a `create.yml` makes its hosts by hosts.sh: containers with a real systemd, which needs root on Debian
or Ubuntu, and installs podman. The others need neither. Some run at a time, since they wait more than they work.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "tests/hosts/hosts.sh"
LOGS = ROOT / ".cache/molecule"
AT_ONCE = 4
SECONDS = 2400
"""Of one scenario. The longest takes about seven minutes on two quiet processors, and this is for busy ones."""
ROUND_SECONDS = {"CHAOS": 300, "CHAOS_UNITS": 60}
"""Beside that, of each round of the scenario chaos that is asked for: by the playbooks, and by the suite itself."""
_SHOWN_LINES = 120
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

Results = dict[str, tuple[bool, float]]


def limit(scenario: str) -> int:
    """Seconds that a scenario may take."""
    if scenario != "chaos":
        return SECONDS
    return SECONDS + sum(seconds * int(os.environ.get(name) or 0) for name, seconds in ROUND_SECONDS.items())


class Runs:
    """The scenarios under way, so that an end from outside ends them too."""

    def __init__(self) -> None:
        self._started: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    def run(self, scenario: str) -> tuple[bool, float]:
        """Run a scenario to its end: (it passed, seconds). Its output goes to a file."""
        began = time.monotonic()
        with (LOGS / f"{scenario}.log").open("wb") as log:
            with self._lock:
                if self._over:
                    return False, 0.0
                process = subprocess.Popen(
                    [str(Path(sys.executable).parent / "molecule"), "test", "--scenario-name", scenario],
                    cwd=ROOT,
                    env=os.environ
                    | {
                        "MOLECULE_GLOB": "molecule/*/molecule.yml",
                        "MOLECULE_EPHEMERAL_DIRECTORY": str(LOGS / scenario),
                        "ANSIBLE_FORCE_COLOR": "0",
                        "NO_COLOR": "1",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._started.add(process)
            try:
                status = process.wait(limit(scenario))
            except subprocess.TimeoutExpired:
                end(process)
                log.write(f"\n{scenario} did not end within {limit(scenario)} s and was ended.\n".encode())
                status = 1
        return status == 0, time.monotonic() - began

    def stop(self) -> None:
        with self._lock:
            self._over = True
            for process in self._started:
                if process.poll() is None:
                    end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all below it: molecule gives each ansible-playbook a session of its own."""
    for pid in [process.pid, *below(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def below(pid: int) -> list[int]:
    """The processes that this one started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # "PID (NAME) STATE PARENT ...", and a name may hold anything.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def scenarios() -> list[str]:
    """Those with hosts of their own first: they take longest."""
    names = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))
    names = [name for name in names if name != "default"]
    return sorted(names, key=lambda name: not has_hosts(name))


def has_hosts(scenario: str) -> bool:
    return (ROOT / "molecule" / scenario / "create.yml").exists()


def refusal() -> str | None:
    """Why this machine cannot have test hosts; None where it can."""
    told = "Test hosts are containers with systemd, made from Debian packages (tests/hosts/README.md): "
    without = " The scenarios without hosts run anywhere: make test-hosts HOSTS=--local."
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        return f"{told}this needs Linux with apt, as Debian and Ubuntu are.{without}"
    if os.geteuid() != 0:
        return f"{told}this needs root, to install podman and to make containers.{without}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="only these")
    parser.add_argument(
        "--local", action="store_true", help="only those that need no hosts, so neither root nor podman"
    )
    parser.add_argument("--keep", action="store_true", help="keep the images for the next time")
    options = parser.parse_args()
    names = [name for name in scenarios() if not options.scenarios or name in options.scenarios]
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"There is no scenario {', '.join(sorted(unknown))}. There are {', '.join(scenarios())}.")
    if options.local:
        names = [name for name in names if not has_hosts(name)]
    with_hosts = any(has_hosts(name) for name in names)
    if with_hosts and (why := refusal()):
        say(f"test-hosts: {why}")
        return 1
    LOGS.mkdir(parents=True, exist_ok=True)
    runs = Runs()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("test-hosts: ended from outside"))
    results: Results = {}
    # Scenarios that came to their end have taken their hosts away; what is left then is another checkout's.
    remove = "clean"
    try:
        run_all(names, runs, results)
        remove = "tidy"
    finally:
        runs.stop()
        if with_hosts and not options.keep:
            subprocess.run([str(HOSTS), remove], check=False)
    failed = sum(not passed for passed, _ in results.values())
    say(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def run_all(names: list[str], runs: Runs, results: Results) -> None:
    """Run the scenarios, a line for each as it ends; after a failed one the end of what it said."""
    say(f"{len(names)} scenarios, {AT_ONCE} at a time; what they say is in {LOGS.relative_to(ROOT)}/NAME.log")

    def one(name: str) -> None:
        passed, seconds = results[name] = runs.run(name)
        say(f"{'passed' if passed else 'FAILED'}  {name:<18} {seconds:5.0f} s")
        if not passed:
            said = _ESCAPE.sub("", (LOGS / f"{name}.log").read_text(errors="replace")).splitlines()
            fatal = [place for place, line in enumerate(said) if "fatal:" in line or "[ERROR]" in line]
            # The first failure, and what molecule made of it.
            shown = said[max(0, fatal[0] - 5) : fatal[0] + _SHOWN_LINES] if fatal else said[-_SHOWN_LINES:]
            say("\n".join(f"    {line}" for line in shown))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(one, names))
        except BaseException:
            # Before the pool waits for what is under way.
            runs.stop()
            raise


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
