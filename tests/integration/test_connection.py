"""A connection that is lost in the middle of a sweep, and comes back."""

from __future__ import annotations

import subprocess
import threading
import time

import pytest
from conftest import BIN, ROOT

from benchmark.campaign.store import Campaign

pytestmark = pytest.mark.slow


def test_what_was_under_way_goes_on_and_is_collected(site):
    cut = site.folder / "cut"
    site.hosts["here"] = {
        "ansible_connection": "breaking",
        "ansible_python_interpreter": str(BIN / "python"),
        "ansible_remote_tmp": str(site.folder / "tmp"),
    }
    site.variables["sglang_benchmark_further"] = []
    site.variables["sglang_benchmark_first_again"] = False
    # A start that is looked at more than once.
    site.variables["sglang_service_simulated_start_seconds"] = 8
    site.write()
    environment = site.environment() | {
        "ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "tests/data/connection"),
        "BREAKING_CONNECTION": str(cut),
    }
    command = [str(BIN / "ansible-playbook"), "-i", str(site.inventory), "sweep.yml", "-e", "configs=ep8"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    lines, moments = [], iter(["Switch | stop what runs", "Point | measure ep8 at 1"])
    moment = next(moments)
    for line in process.stdout:
        lines.append(line)
        if moment in line and "RETRYING" in line:
            cut.touch()
            threading.Timer(6, cut.unlink).start()
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
