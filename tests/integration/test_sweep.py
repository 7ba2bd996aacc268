"""Sweeping, as a user sees it: outcomes, records, report, what runs afterwards, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time

import pytest
from conftest import BIN, ROOT, recap, run, said

from benchmark.campaign.store import Campaign

pytestmark = pytest.mark.slow


def records(site, campaign="kimi-k2.6-quick"):
    found = Campaign(site.folder / "campaigns", campaign).records()
    return {(record.host.name, record.configuration.name): record for record in found}


def test_a_sweep_ends_each_configuration_in_its_outcome(site):
    done = site.play("sweep.yml", configs="ep8,tp4ep2,tp2ep4", plan="off")
    assert done.returncode == 0, said(done)
    found = records(site)
    assert {name: record.outcome for (_, name), record in found.items()} == {
        "ep8": "measured",
        "tp4ep2": "failed",
        "tp2ep4": "rejected",
    }
    ep8 = found["here", "ep8"]
    assert [point.concurrency for point in ep8.points] == [1, 4]
    assert all(point.valid for point in ep8.points)
    assert ep8.engine.simulated
    assert ep8.start.kv_tokens > 0
    assert ep8.start.weights_bytes > 70 << 30
    assert "672.00 MiB" in found["here", "tp4ep2"].failure.sentence
    assert "ep divides the tensor-parallel group" in found["here", "tp2ep4"].failure.sentence
    assert found["here", "tp2ep4"].workload == ep8.workload
    campaign = site.folder / "campaigns/kimi-k2.6-quick"
    folder = campaign / "here/ep8" / ep8.fingerprint
    assert {path.name for path in folder.iterdir()} == {
        "record.json",
        ".record-copy.json",
        "requests-quick-c001.jsonl.zst",
        "requests-quick-c004.jsonl.zst",
    }
    assert (
        "Simulated" in (campaign / "report.html").read_text() or "SIMULATED" in (campaign / "report.html").read_text()
    )
    assert (campaign / "results.csv").read_text().count("\n") >= 3
    fact = json.loads((site.folder / "facts.d/sglang_ep8.fact").read_text())
    assert fact["fingerprint"] == ep8.fingerprint
    assert fact["simulated"] is True
    # Nothing served before, so nothing serves now.
    assert site.serving() == []
    assert site.verb("observe")["lease"] is None

    # The same sweep again measures nothing again.
    before = {path: path.stat().st_mtime_ns for path in folder.glob("requests-*")}
    again = site.play("sweep.yml", configs="ep8,tp2ep4")
    assert again.returncode == 0, said(again)
    assert recap(again)["changed"] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("requests-*")} == before

    # A longer ladder measures only what is new.
    longer = site.play("sweep.yml", configs="ep8", concurrencies="1,4,8")
    assert longer.returncode == 0, said(longer)
    points = records(site)["here", "ep8"].points
    assert [point.concurrency for point in points] == [1, 4, 8]
    assert points[:2] == ep8.points


@pytest.mark.parametrize(
    ("after", "serving"),
    [
        pytest.param("previous", ["sglang-ep4"], marks=pytest.mark.long),
        ("winner", ["sglang-ep8"]),
        pytest.param("stopped", [], marks=pytest.mark.long),
    ],
)
def test_what_runs_afterwards_is_the_callers_to_say(site, after, serving):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    done = site.play("sweep.yml", configs="ep8", concurrencies="1", after=after, interrupt=True)
    assert done.returncode == 0, said(done)
    assert site.serving() == serving


@pytest.mark.long
def test_a_hand_made_unit_makes_room_and_comes_back(site):
    assert site.play("sweep.yml", "--check").returncode == 0
    units = site.state / "units"
    units.mkdir(parents=True)
    (units / "by-hand.conf").write_text(
        "[program:by-hand]\ncommand = sleep 1000\nautostart = false\nautorestart = false\nstartsecs = 0\n"
    )
    site.variables["sglang_service_yields"] = ["by-hand"]
    assert site.play("deploy.yml", config="ep8").returncode == 0
    site.play("playbooks/stop.yml")
    settings = ["--yields", "by-hand"]
    assert site.verb("restore", "--units", "by-hand", "--token", "t")["phase"] == "restored"
    assert [s["unit"] for s in site.verb("observe", *settings)["serving"]] == ["by-hand"]
    done = site.play("sweep.yml", configs="ep8", concurrencies="1")
    assert done.returncode == 0, said(done)
    assert [s["unit"] for s in site.verb("observe", *settings)["serving"]] == ["by-hand"]
    assert site.verb("stop", *settings, "--token", "end")["phase"] in ("stopping", "stopped")
    while site.verb("stop", *settings, "--token", "end")["phase"] == "stopping":
        time.sleep(0.2)


def test_a_sweep_asks_before_it_stops_what_serves(served):
    refused = served.play("sweep.yml", configs="ep8")
    assert refused.returncode != 0
    assert "sglang-ep4 serves on here and would be stopped" in said(refused)
    assert served.serving() == ["sglang-ep4"]


def test_the_command_without_a_terminal_says_how_to_go_on_and_stops_nothing(served):
    served.write()
    line = [str(BIN / "shardsweep"), "sweep", "ep8", "-i", str(served.inventory), "--json"]
    done = run(line, ROOT, served.environment())
    assert done.returncode not in (0, None)
    told = json.loads(done.stdout)
    assert told["winner"] is None
    assert "sglang-ep4 serves on here and would be stopped. Say -e interrupt=true" in " ".join(told["errors"])
    assert "sglang-ep4 serves on here and would be stopped. Say -e interrupt=true" in " ".join(done.stderr.split())
    assert served.serving() == ["sglang-ep4"]


def test_the_command_at_a_terminal_asks_once_and_does_what_is_answered(served):
    said_no, status = at_a_terminal(served, "n\n")
    assert status != 0 and "Nothing was stopped" in said_no, said_no
    assert served.serving() == ["sglang-ep4"] and records(served) == {}
    said_yes, status = at_a_terminal(served, "y\n")
    assert status == 0, said_yes
    assert said_yes.count("sglang-ep4 serves on here.") == said_yes.count("Stop it for the sweep? [y/N]") == 1
    assert records(served)["here", "ep8"].outcome == "measured"
    assert served.serving() == ["sglang-ep4"]


def at_a_terminal(site, answer: str) -> tuple[str, int]:
    """(what a terminal shows of a sweep whose question is answered so, exit status)."""
    site.write()
    line = [str(BIN / "shardsweep"), "sweep", "ep8", "-i", str(site.inventory), "--concurrencies", "1"]
    ours, theirs = pty.openpty()
    environment = site.environment() | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(line, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, deadline = "", time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            shown += os.read(ours, 65536).decode(errors="replace")
        except OSError:  # the other side was closed
            break
        if answer and "[y/N]" in shown:
            os.write(ours, answer.encode())
            answer = ""
    else:
        process.kill()
    os.close(ours)
    return shown, process.wait(timeout=30)


def test_the_last_host_down_takes_nothing_from_the_others(site):
    site.hosts["zz-down"] = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_user": "nobody"}
    done = site.play("sweep.yml", configs="ep8", concurrencies="1")
    assert done.returncode != 0
    assert recap(done, "zz-down")["unreachable"] == 1
    assert records(site)["here", "ep8"].outcome == "measured"
    assert (site.folder / "campaigns/kimi-k2.6-quick/report.html").exists()
    assert site.serving() == []


def test_limit_leaves_a_host_out(site):
    site.hosts["zz-down"] = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    done = site.play("sweep.yml", "--limit", "here", configs="ep8", concurrencies="1")
    assert done.returncode == 0, said(done)
    assert records(site)["here", "ep8"].outcome == "measured"


def command(site, *words):
    site.write()
    line = [str(BIN / "shardsweep"), "sweep", *words, "-i", str(site.inventory), "--concurrencies", "1,2,4,8,16"]
    return subprocess.Popen(line, cwd=ROOT, env=site.environment(), stdout=subprocess.PIPE, text=True)


def wait_for(process, text: str, seconds: float = 120) -> list[str]:
    lines = []
    deadline = time.monotonic() + seconds
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
        assert time.monotonic() < deadline, "".join(lines)
    raise AssertionError("".join(lines))


def test_ctrl_c_keeps_what_was_measured_gives_the_host_back_and_goes_on_later(site):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    process = command(site, "ep8", "--interrupt")
    # A point is on the controller before the next begins, so the first is when a later one is told.
    wait_for(process, "measuring  concurrency 4:")
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=180)[0]
    assert process.returncode == 130, rest
    assert "What was measured is kept" in rest
    assert site.serving() == ["sglang-ep4"]
    first = records(site)["here", "ep8"]
    assert first.points[0].concurrency == 1

    process = command(site, "ep8", "--interrupt")
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    record = records(site)["here", "ep8"]
    assert sorted(point.concurrency for point in record.points) == [1, 2, 4, 8, 16]
    assert record.points[0] == first.points[0]
    assert site.serving() == ["sglang-ep4"]


@pytest.mark.long
def test_a_controller_that_dies_leaves_a_host_that_restores_itself(site):
    site.variables["sglang_service_lease_seconds"] = 6
    assert site.play("deploy.yml", config="ep4").returncode == 0
    process = command(site, "ep8", "--interrupt")
    wait_for(process, "measuring  concurrency 1:")
    _kill_tree(process.pid)
    deadline = time.monotonic() + 90
    while site.serving() != ["sglang-ep4"] or site.verb("observe")["lease"] is not None:
        assert time.monotonic() < deadline, site.verb("observe")
        time.sleep(1)
    assert site.ask("/health").status_code == 200


def _kill_tree(pid: int) -> None:
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    waiting = [pid]
    while waiting:
        victim = waiting.pop()
        waiting += children.get(victim, [])
        os.kill(victim, signal.SIGKILL)


def test_two_sweeps_of_one_host_exclude_each_other(served):
    held = served.verb("sweep-begin", "--token", "other", "--owner", "somebody else", "--after", "previous")
    assert held["previous"] == ["sglang-ep4"]
    # What the verbs of the sweep read stays as it is, whatever the one that is refused is set to.
    read = {file: file.read_bytes() for file in [served.state / "settings.json", *served.state.glob("units/*")]}
    another = {"sglang_service_quiet_seconds": 7, "interrupt": True}
    refused = served.play("sweep.yml", configs="ep8", **another)
    assert refused.returncode != 0
    assert "here: Another sweep holds this host: somebody else" in said(refused)
    deployed = served.play("deploy.yml", config="ep8", **another)
    assert deployed.returncode != 0
    assert "here: A sweep holds this host: somebody else" in said(deployed)
    assert recap(refused)["changed"] == recap(deployed)["changed"] == 0
    assert {file: file.read_bytes() for file in read} == read
    # A sweep that comes back from sleep is told so by each verb.
    late = served.verb("switch", "ep8", "--token", "x", "--sweep", "the one that slept", "--fingerprint", "f")
    assert late["error"].startswith("Another sweep holds this host: somebody else")
    assert served.serving() == ["sglang-ep4"]
    assert served.verb("observe")["lease"]["owner"] == "somebody else"
    assert served.verb("sweep-end", "--token", "other", "--after", "winner")["phase"] == "restored"


def test_an_unknown_workload_is_refused_before_anything_is_stopped(served):
    refused = served.play("sweep.yml", configs="ep8", workload="qick", interrupt=True)
    assert refused.returncode != 0
    assert "there is no workload 'qick'; shipped are quick, chat" in said(refused)
    assert served.serving() == ["sglang-ep4"]


def test_an_inventory_that_matches_no_host_says_so(site):
    process = command(site, "ep8", "--limit", "nobody")
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    assert "No host took part" in output


def test_stop_means_stop_even_in_a_sweep(site):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    site.verb("sweep-begin", "--token", "mine", "--owner", "me", "--after", "previous")
    refused = site.play("playbooks/stop.yml")
    assert refused.returncode != 0
    assert "A sweep holds this host: me" in said(refused)
    assert site.serving() == ["sglang-ep4"]
    assert site.play("playbooks/stop.yml", interrupt=True).returncode == 0
    time.sleep(6)
    assert site.serving() == []
    assert site.verb("observe")["lease"] is None


def test_a_start_that_leaves_no_record_is_no_success(site):
    site.state.mkdir()
    (site.state / "records").write_text("A file where the records' folder is to be.")
    done = site.play("sweep.yml", configs="ep8,pp8", concurrencies="1")
    assert done.returncode == 2, said(done)
    assert "ep8 was not measured: " in said(done)
    assert "pp8 was not measured: " in said(done)
    assert site.serving() == []
    assert site.verb("observe")["lease"] is None
