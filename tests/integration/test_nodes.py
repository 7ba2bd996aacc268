"""One configuration over two hosts: two simulated ones of this machine, each with its own folder, GPUs and port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from builders import a_point, a_record
from conftest import BIN, ROOT, free_port, recap, said

from benchmark.campaign import record as rec
from benchmark.campaign.store import Campaign
from benchmark.simulator.ledger import Ledger

pytestmark = pytest.mark.slow

SPREAD = {
    "tp16": {
        "description": "Every layer over the GPUs of two hosts",
        "extends": "tp8",
        "against": "tp8",
        "hypothesis": "The network costs more than the GPUs bring; the peak is lower.",
        "engine": {"tp_size": 16, "nnodes": 2},
    }
}


@pytest.fixture
def pair(two):
    """`two` as a group of two nodes."""
    two.variables |= {
        "sglang_service_nodes": ["here", "there"],
        "sglang_service_node_address": "127.0.0.1",
        "sglang_service_node_port": free_port(),
        "sglang_service_stop_seconds": 15,
        "sglang_site_configs": SPREAD,
    }
    return two


def there(site, *words: str) -> dict:
    """A verb of the second host."""
    command = [
        str(site.tools / "venv/bin/shardsweep-host"),
        "--settings",
        str(site.folder / "state2/settings.json"),
        *words,
    ]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout)


def units(site) -> tuple[list[str], list[str]]:
    return site.serving(), [service["unit"] for service in there(site, "observe")["serving"]]


@pytest.mark.long
def test_a_configuration_of_two_nodes_is_deployed_as_one_service_and_stopped_as_one(pair):
    done = pair.play("deploy.yml", config="tp16")
    assert done.returncode == 0, said(done)
    assert units(pair) == (["sglang-tp16"], ["sglang-tp16"])
    assert pair.ask("/server_info").json()["nnodes"] == 2
    scripts = [(pair.folder / state / "run/sglang-tp16.sh").read_text() for state in ("state", "state2")]
    assert ["--node-rank 0" in script for script in scripts] == [True, False]
    assert ["--node-rank 1" in script for script in scripts] == [False, True]
    again = pair.play("deploy.yml", config="tp16", interrupt="true")
    assert recap(again)["changed"] == recap(again, "there")["changed"] == 0, said(again)
    stopped = pair.play("playbooks/stop.yml")
    assert stopped.returncode == 0, said(stopped)
    assert units(pair) == ([], [])


@pytest.mark.long
def test_a_sweep_measures_one_configuration_over_both_and_gives_both_back(pair):
    served = pair.play("deploy.yml", config="ep4")
    assert served.returncode == 0, said(served)
    assert units(pair) == (["sglang-ep4"], ["sglang-ep4"])
    done = pair.play("sweep.yml", configs="tp8,tp16", concurrencies="4", interrupt="true")
    assert done.returncode == 0, said(done)
    records = Campaign(pair.folder / "campaigns", "kimi-k2.6-quick").records()
    measured = {record.configuration.name: record for record in records}
    # The further host works for the first, so it measures nothing by itself.
    assert {(record.host.name, record.configuration.name) for record in records} == {("here", "tp8"), ("here", "tp16")}
    assert {record.outcome for record in records} == {"measured"}, [record.failure for record in records]
    assert measured["tp16"].nodes == ["here", "there"]
    assert measured["tp8"].nodes == []
    arguments = measured["tp16"].configuration.arguments
    assert arguments[arguments.index("--nnodes") + 1] == "2"
    # What served on each serves again.
    assert units(pair) == (["sglang-ep4"], ["sglang-ep4"])
    assert there(pair, "observe")["lease"] is None


@pytest.mark.long
def test_a_rank_that_cannot_load_fails_the_configuration_by_its_hosts_name(pair):
    pair.hosts["there"]["sglang_service_simulated_fault"] = "crash_load"
    done = pair.play("deploy.yml", config="tp16")
    assert done.returncode != 0
    assert "tp16 did not start: node 1 (there): " in said(done)
    assert units(pair) == ([], [])


@pytest.mark.long
def test_memory_of_a_gpu_that_no_rank_takes_is_left_alone(pair):
    half = {"description": "Four GPUs of each", "extends": "tp8", "against": "tp8", "engine": {"nnodes": 2}}
    pair.variables["sglang_site_configs"] = {"half": half}
    ledger = pair.folder / "state2/simulated-gpu"
    ledger.mkdir(parents=True)
    Ledger(ledger).hold(7, 60 * 2**30, name="python", pid=os.getpid())
    done = pair.play("deploy.yml", config="half")
    assert done.returncode == 0, said(done)
    assert units(pair) == (["sglang-half"], ["sglang-half"])
    assert pair.play("playbooks/stop.yml").returncode == 0
    Ledger(ledger).hold(3, 60 * 2**30, name="python", pid=os.getpid())
    pair.variables["sglang_service_free_seconds"] = 3
    again = pair.play("deploy.yml", config="half")
    assert again.returncode != 0
    assert "half did not start: node 1 (there): " in said(again)
    assert str(os.getpid()) in said(again)


def begun(pair, **variables) -> subprocess.Popen:
    """A sweep that has begun to measure."""
    pair.write()
    (pair.state / "job-progress.json").unlink(missing_ok=True)
    sweep = subprocess.Popen(
        [str(BIN / "ansible-playbook"), "-i", str(pair.inventory), "sweep.yml", "-e", json.dumps(variables)],
        cwd=ROOT, env=pair.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: (pair.state / "job-progress.json").exists() or sweep.poll() is not None, 200)
    assert sweep.poll() is None, sweep.communicate()[0][-3000:]
    return sweep


def wait_for(condition, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"waited {seconds} s in vain"
        time.sleep(0.2)


@pytest.mark.long
def test_a_rank_that_is_killed_while_it_measures_is_named_in_the_record(pair):
    pair.variables["sglang_benchmark_workload"] = {"name": "long", "prompt_tokens": 64, "output_tokens": 4000}
    # One that was killed may start another time: it would be tried once more, and this workload takes minutes.
    sweep = begun(pair, configs="tp16", concurrencies="4", retry="none")
    (rank,) = there(pair, "observe")["serving"]
    os.kill(rank["pid"], signal.SIGKILL)
    out, _ = sweep.communicate(timeout=200)
    (record,) = Campaign(pair.folder / "campaigns", "kimi-k2.6-long").records()
    assert record.outcome == "failed", out
    assert record.failure.sentence.startswith("node 1 (there): ")
    assert record.nodes == ["here", "there"]
    assert units(pair) == ([], [])


@pytest.mark.long
def test_a_killed_controller_leaves_neither_host_held(pair):
    # Two hosts are looked at in turn, some seconds each: a shorter hold would lapse between two looks.
    pair.variables["sglang_service_lease_seconds"] = 15
    served = pair.play("deploy.yml", config="ep4")
    assert served.returncode == 0, said(served)
    sweep = begun(pair, configs="tp16", concurrencies="4", interrupt="true")
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    wait_for(lambda: units(pair) == (["sglang-ep4"], ["sglang-ep4"]), 120)
    wait_for(lambda: pair.verb("observe")["lease"] is there(pair, "observe")["lease"] is None, 30)


def test_hosts_that_are_no_group_are_told_so(pair):
    pair.variables["sglang_service_nodes"] = []
    done = pair.play("deploy.yml", config="tp16")
    assert done.returncode != 0
    assert "tp16 cannot run on here. It is spread over 2 nodes, and here is alone" in said(done)


def facts(site, name) -> list[str | None]:
    """Since when each of the two has a configuration in service for good."""
    found = [site.folder / folder / f"sglang_{name}.fact" for folder in ("facts.d", "facts2.d")]
    return [json.loads(file.read_text())["promoted"] for file in found]


@pytest.mark.long
def test_it_is_promoted_on_both_and_both_go_back(pair):
    assert pair.play("deploy.yml", config="ep4").returncode == 0
    check = pair.play("playbooks/promote.yml", "--check", config="tp16", interrupt=True)
    assert check.returncode == 0, said(check)
    assert units(pair) == (["sglang-ep4"], ["sglang-ep4"])

    done = pair.play("playbooks/promote.yml", config="tp16", interrupt=True)
    assert done.returncode == 0, said(done)
    assert units(pair) == (["sglang-tp16"], ["sglang-tp16"])
    assert pair.ask("/health").status_code == 200
    assert [since[-1] for since in facts(pair, "tp16")] == ["Z", "Z"]
    assert facts(pair, "ep4") == [None, None]

    again = pair.play("playbooks/promote.yml", config="tp16")
    assert again.returncode == 0, said(again)
    assert recap(again)["changed"] == recap(again, "there")["changed"] == 0, said(again)

    alone = pair.play("playbooks/promote.yml", "--limit", "here", rollback=True)
    assert alone.returncode != 0
    assert "here and there can only go back together, and there takes no part in this run." in said(alone)
    assert units(pair) == (["sglang-tp16"], ["sglang-tp16"])

    back = pair.play("playbooks/promote.yml", rollback=True)
    assert back.returncode == 0, said(back)
    assert units(pair) == (["sglang-ep4"], ["sglang-ep4"])
    assert facts(pair, "tp16") == [None, None]
    assert [since[-1] for since in facts(pair, "ep4")] == ["Z", "Z"]


def starts_of_the_rank(pair) -> int:
    return (pair.folder / "state2/log/sglang-tp16.log").read_text().count("server_args=ServerArgs(")


@pytest.mark.long
def test_what_was_spread_comes_back_spread(pair):
    pair.variables["sglang_site_configs"] = SPREAD | {"other": SPREAD["tp16"] | {"hypothesis": ""}}
    assert pair.play("playbooks/promote.yml", config="tp16").returncode == 0
    pair.hosts["there"]["sglang_service_simulated_fault"] = "crash_load"
    failed = pair.play("playbooks/promote.yml", config="other", interrupt=True)
    assert failed.returncode != 0
    assert "other did not start: node 1 (there): " in said(failed)
    assert (
        "On here sglang-tp16 served before and serves again. On there sglang-tp16 served before and serves again."
        in said(failed)
    )
    assert units(pair) == (["sglang-tp16"], ["sglang-tp16"])
    assert pair.ask("/health").status_code == 200
    assert not (pair.folder / "facts.d/sglang_other.fact").exists()

    del pair.hosts["there"]["sglang_service_simulated_fault"]
    done = pair.play("playbooks/promote.yml", config="other", interrupt=True)
    assert done.returncode == 0, said(done)
    before = starts_of_the_rank(pair)
    back = pair.play("playbooks/promote.yml", rollback=True)
    assert back.returncode == 0, said(back)
    assert units(pair) == (["sglang-tp16"], ["sglang-tp16"])
    assert pair.ask("/server_info").json()["nnodes"] == 2
    # A rank that is started twice ends the engine of the first node, which has met it.
    assert starts_of_the_rank(pair) == before + 1


@pytest.mark.long
def test_what_is_spread_is_not_stopped_by_a_sweep_that_could_not_bring_it_back(pair):
    assert pair.play("deploy.yml", config="tp16").returncode == 0
    for limit, other in (("here", "there"), ("there", "here")):
        swept = pair.play("sweep.yml", "--limit", limit, configs="ep4", concurrencies="4", interrupt=True)
        assert swept.returncode != 0
        assert f"tp16 serves on {limit}, spread over {other} too, which takes no part in this run" in said(swept)
    assert units(pair) == (["sglang-tp16"], ["sglang-tp16"])
    assert pair.ask("/health").status_code == 200

    left = pair.play("deploy.yml", "--limit", "here", config="ep4", interrupt=True)
    assert left.returncode == 0, said(left)
    assert "tp16 served from here before, spread over there too" in said(left)
    assert "End it there: playbooks/stop.yml --limit there." in said(left)


def test_without_a_name_hosts_of_a_group_must_have_the_same_winner(pair):
    """The first measured tp16 over both; the other one, with another driver then, ep8."""
    assert pair.play("playbooks/promote.yml", rollback=True).returncode != 0  # the tools are there, and nothing serves
    campaign = Campaign(pair.folder / "campaigns", "kimi-k2.6-quick")
    for name, host, driver in (("tp16", "here", "570.1"), ("ep8", "there", "580.2")):
        gpus = [{"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}] * 8
        at = rec.Host(name=host, gpus=gpus, driver=driver)
        campaign.put(a_record(name, at, outcome="measured", points=[a_point(4, 100.0)]))
    done = pair.play("playbooks/promote.yml")
    assert done.returncode != 0
    assert (
        "tp16 is spread over here and there, whose winners are not the same: tp16 of here, ep8 of there. "
        "Nothing was stopped. Say which configuration: -e config=tp16." in said(done)
    )
    assert units(pair) == ([], [])
