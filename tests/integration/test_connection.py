"""A connection that is lost in the middle of a sweep, and comes back."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml
from conftest import BIN, ROOT, said

from benchmark.campaign.store import Campaign

pytestmark = pytest.mark.slow


def breaking(site) -> Path:
    """The site's host behind a connection that is lost while a file is there; the file's path."""
    site.hosts["here"] = {
        "ansible_connection": "breaking",
        "ansible_python_interpreter": str(BIN / "python"),
        "ansible_remote_tmp": str(site.folder / "tmp"),
    }
    return site.folder / "cut"


def sweep(site, cut: Path, lost_at: str = "") -> subprocess.Popen:
    site.write()
    environment = site.environment() | {
        "ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "tests/data/connection"),
        "BREAKING_CONNECTION": str(cut),
        "BREAKING_AT": lost_at,
    }
    command = [str(BIN / "ansible-playbook"), "-i", str(site.inventory), "sweep.yml", "-e", "configs=ep8"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def mend(cut: Path) -> None:
    """Six seconds later, and not before somebody has met the cut: on a busy machine a task may take longer to."""
    refused = cut.with_name("refused")
    ends = time.monotonic() + 60
    time.sleep(6)
    while not refused.exists() and time.monotonic() < ends:
        time.sleep(0.1)
    refused.unlink(missing_ok=True)
    cut.unlink()


@pytest.mark.long
def test_what_was_under_way_goes_on_and_is_collected(site):
    cut = breaking(site)
    # A start that is looked at more than once.
    site.variables["sglang_service_simulated_start_seconds"] = 8
    process = sweep(site, cut)
    lines, moments = [], iter(["Switch | stop what runs", "Point | measure ep8 at 1"])
    moment = next(moments)
    for line in process.stdout:
        lines.append(line)
        if moment in line and "RETRYING" in line:
            cut.touch()
            threading.Thread(target=mend, args=(cut,)).start()
            moment = next(moments, "no more of it")
    output = "".join(lines)
    assert process.wait(timeout=60) == 0, output
    assert moment == "no more of it", output
    assert output.count("Connection timed out") >= 2, output
    (record,) = Campaign(site.folder / "campaigns", "kimi-k2.6-quick").records()
    assert [point.concurrency for point in record.points] == [1, 4]
    assert all(point.valid for point in record.points)
    assert (site.state / "log/sglang-ep8.log").read_text().count("The server is fired up and ready") == 1
    deadline = time.monotonic() + 5
    while site.serving() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert site.serving() == []


@pytest.mark.long
@pytest.mark.parametrize("verb", ["begin", "finish"])
def test_one_that_is_lost_for_good_between_two_points_loses_nothing(site, verb):
    """Before the first start, and after the last point: the host is given up, ends its sweep, and is swept again."""
    cut = breaking(site)
    site.variables["sglang_service_lease_seconds"] = 6
    site.variables["sglang_benchmark_concurrencies"] = [1]
    lost = sweep(site, cut, lost_at=f" {verb}")
    output = lost.communicate(timeout=600)[0]
    assert lost.returncode == 4, output
    assert "unreachable=1" in output
    campaign = Campaign(site.folder / "campaigns", "kimi-k2.6-quick")
    before = [record.points for record in campaign.records() if record.points]
    assert [[point.concurrency for point in points] for points in before] == ([] if verb == "begin" else [[1]])
    deadline = time.monotonic() + 60
    while site.serving() or site.verb("observe")["lease"] is not None:
        assert time.monotonic() < deadline, site.verb("observe")
        time.sleep(1)
    cut.unlink()
    again = sweep(site, cut)
    output = again.communicate(timeout=600)[0]
    assert again.returncode == 0, output
    (record,) = campaign.records()
    assert record.complete
    assert [point.concurrency for point in record.points] == [1]
    assert before in ([], [record.points])


def test_a_raw_file_gets_its_name_when_all_of_it_is_here(site, tmp_path):
    """The role's own fetch: one file that is on the host, one that is gone there, one of which a part is left here."""
    here, there = site.folder / "campaigns/kimi-k2.6/here", site.folder / "host"
    for name in ("ep4/k/requests-a.zst", "ep8/k/requests-b.zst"):
        (there / name).parent.mkdir(parents=True)
        (there / name).write_bytes(name.encode() * 1000)
    (here / "ep8/k").mkdir(parents=True)
    (here / "ep8/k/.requests-b.zst.part").write_bytes(b"cut")
    variables = {
        "__sglang_report_from": str(there),
        "__sglang_report_to": str(here),
        "__sglang_report_wanted": ["ep4/k/requests-a.zst", "ep4/k/gone.zst", "ep8/k/requests-b.zst"],
        "sglang_report_campaign": "kimi-k2.6",
    }
    role = {"name": "shardsweep.serving.sglang_report", "tasks_from": "fetch.yml"}
    task = {"ansible.builtin.include_role": role, "vars": variables}
    playbook = tmp_path / "fetch.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "gpu_servers", "gather_facts": False, "tasks": [task]}]))
    done = site.play(str(playbook))
    assert done.returncode == 0, said(done)
    kept = {str(path.relative_to(here)): path.stat().st_size for path in here.rglob("*") if path.is_file()}
    assert kept == {"ep4/k/requests-a.zst": 20000, "ep8/k/requests-b.zst": 20000}
