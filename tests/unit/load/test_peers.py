"""measurements/load_client.py: other load generators, their reports and their CPU."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from measurements import load_client


def test_each_peer_has_a_command_of_its_own(tmp_path):
    python = Path("/venv/bin/python")
    commands = {
        name: peer.command(python, "http://s:1", tmp_path, 8, 200, 16) for name, peer in load_client.PEERS.items()
    }
    assert commands["sglang"][:3] == ["/venv/bin/python", "-m", "sglang.bench_serving"]
    assert commands["aiperf"][:2] == ["/venv/bin/aiperf", "profile"]
    assert commands["guidellm"][:2] == ["/venv/bin/guidellm", "run"]


def test_a_peer_that_is_not_known_is_refused():
    assert load_client.named_peer(f"aiperf={sys.executable}") == ("aiperf", Path(sys.executable))
    with pytest.raises(argparse.ArgumentTypeError, match="no peer 'vegeta'; known are sglang, aiperf, guidellm"):
        load_client.named_peer(f"vegeta={sys.executable}")
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be run"):
        load_client.named_peer("aiperf=/nowhere/python")


def test_installed_peers_are_found(tmp_path, monkeypatch):
    (tmp_path / "venv").mkdir()
    for name in ("guidellm", "python"):
        (tmp_path / "venv" / name).write_text("#!/bin/sh\n")
        (tmp_path / "venv" / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "guidellm").symlink_to(tmp_path / "venv" / "guidellm")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert load_client.installed() == {"guidellm": tmp_path / "venv" / "python"}


def test_reports(tmp_path):
    """Milliseconds in their reports, seconds here; ITL only where gaps between chunks are told."""
    (tmp_path / "aiperf").mkdir()
    told = {
        "time_to_first_token": {"p50": 190.0, "p99": 1300.0},
        "inter_token_latency": {"p50": 19.0, "p99": 21.0},
        "output_token_throughput": {"avg": 12000.0},
    }
    report = tmp_path / "aiperf" / "profile_export_aiperf.json"
    report.write_text(json.dumps(told))
    expected = {"ttft_p50": 0.19, "ttft_p99": 1.3, "itl_p50": None, "itl_p99": None, "throughput": 12000.0}
    assert load_client.PEERS["aiperf"].report(tmp_path) == expected
    report.write_text(json.dumps(told | {"inter_chunk_latency": {"p50": 20.0, "p99": 60.0}}))
    assert load_client.PEERS["aiperf"].report(tmp_path) == expected | {"itl_p50": 0.02, "itl_p99": 0.06}
    ttft = {"successful": {"percentiles": {"p50": 320.0, "p99": 900.0}}}
    metrics = {"time_to_first_token_ms": ttft, "output_tokens_per_second": {"successful": {"mean": 9000.0}}}
    (tmp_path / "guidellm.json").write_text(json.dumps({"benchmarks": [{"metrics": metrics}]}))
    expected = {"ttft_p50": 0.32, "ttft_p99": 0.9, "itl_p50": None, "itl_p99": None, "throughput": 9000.0}
    assert load_client.PEERS["guidellm"].report(tmp_path) == expected


def test_cpu_of_all_processes_of_a_peer():
    """A parent that waits while its child works 0.5 s: the work is the child's, and counts."""
    child = "import time; e = time.process_time() + 0.5\nwhile time.process_time() < e: pass\ntime.sleep(0.6)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    samples = load_client.sampled(subprocess.Popen([sys.executable, "-c", parent], start_new_session=True))
    assert 0.5 <= samples[-1][1] < 2.0
    assert max(rss for _, _, rss in samples) > 10e6


def test_what_a_peer_asks_before_its_run_is_left_out_of_the_truth():
    truth = {
        "arrived_ns": np.array([5, 30, 20, 10]),
        "counts": np.array([1, 2, 2, 2]),
        "sends_ns": np.array([6, 31, 32, 21, 22, 11, 12]),
    }
    found = load_client.answered(truth, tokens=2, requests=2)
    assert found["arrived_ns"].tolist() == [20, 30]
    assert found["sends_ns"].tolist() == [21, 22, 31, 32]
