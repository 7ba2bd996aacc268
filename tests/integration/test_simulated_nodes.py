"""One simulated engine as two processes, as two hosts run it: they meet, serve as one, and end together."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import pytest
from test_simulated_engine import free_port, simulated

pytestmark = pytest.mark.slow

SPLIT = ("--tp-size", "16", "--nnodes", "2")


@contextlib.contextmanager
def node(folder: Path, number: int, meet: int, *arguments: str, **more):
    """A node with GPUs of its own."""
    where = ("--node-rank", str(number), "--dist-init-addr", f"127.0.0.1:{meet}")
    with simulated(folder / f"node{number}", *SPLIT, *where, *arguments, ready=False, **more) as engine:
        yield engine


@contextlib.contextmanager
def pair(folder: Path, **more):
    meet = free_port()
    with node(folder, 0, meet, **more) as first, node(folder, 1, meet, **more) as second:
        first.wait_ready()
        second.wait_ready()
        yield first, second


def test_two_nodes_serve_as_one_and_only_the_first_answers(tmp_path):
    with pair(tmp_path) as (first, second):
        body = {"text": "one", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        assert first.post("/generate", body).json()["meta_info"]["completion_tokens"] == 3
        assert first.get("/server_info").json()["nnodes"] == 2
        assert second.health() == 200
        assert second.get("/server_info").status_code == 404
        # Sixteen ranks, eight on each; each names itself as a rank of the whole.
        assert {holder.name for holder in first.ledger.holders()} == {f"sglang::scheduler_TP{n}" for n in range(8)}
        assert {holder.name for holder in second.ledger.holders()} == {f"sglang::scheduler_TP{n}" for n in range(8, 16)}
        assert first.held() == pytest.approx(second.held(), rel=0.01)
        assert "TP8" in second.text() and "TP8" not in first.text()


@pytest.mark.parametrize("killed", [0, 1])
def test_both_end_when_one_is_killed(tmp_path, killed):
    with pair(tmp_path) as nodes:
        nodes[killed].process.send_signal(signal.SIGKILL)
        other = nodes[1 - killed]
        assert other.wait_exit() == -signal.SIGKILL
        failure = other.seen().failure
        assert failure is not None and failure.kind == "peer_lost" and failure.may_pass


def test_a_node_that_is_asked_to_stop_stays_until_the_first_ends(tmp_path):
    with pair(tmp_path) as (first, second):
        second.process.send_signal(signal.SIGTERM)
        second.wait_for(lambda: "SIGTERM received" in second.text())
        assert second.process.poll() is None and first.health() == 200
        first.process.send_signal(signal.SIGTERM)
        first.wait_exit()
        assert second.wait_exit() == -signal.SIGKILL


def test_a_look_at_where_they_meet_is_not_taken_for_a_node(tmp_path):
    meet = free_port()
    with node(tmp_path, 0, meet, "--dist-timeout", "20") as first:
        first.wait_for(lambda: reachable(meet))
        with node(tmp_path, 1, meet) as second:
            first.wait_ready()
            assert reachable(meet)
            second.wait_ready()
            assert first.health() == 200


def test_many_looks_at_where_they_meet_do_not_fill_it(tmp_path):
    """A further host's guard looks every two seconds for as long as a point takes; a port's queue holds 128."""
    meet = free_port()
    with node(tmp_path, 0, meet) as first, node(tmp_path, 1, meet) as second:
        first.wait_ready()
        second.wait_ready()
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", meet), timeout=10) as look:
                assert look.recv(1) == b""
        assert first.health() == second.health() == 200


def reachable(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_a_first_node_that_nobody_joins_says_how_many_did(tmp_path):
    with node(tmp_path, 0, free_port(), "--dist-timeout", "1") as first:
        assert first.wait_exit() == -signal.SIGKILL
        failure = first.seen().failure
        assert failure is not None and failure.kind == "nodes_missing"
        assert failure.sentence == "Only 8 of 16 ranks met: the others never reached the first node."


def test_a_node_without_a_first_one_names_where_it_looked(tmp_path):
    meet = free_port()
    with node(tmp_path, 1, meet, "--dist-timeout", "1") as second:
        assert second.wait_exit() == -signal.SIGKILL
        failure = second.seen().failure
        assert failure is not None and failure.kind == "first_node_missing"
        assert f"127.0.0.1, {meet}" in failure.sentence


def test_a_rank_that_runs_out_of_memory_on_one_node_takes_the_other_along(tmp_path):
    meet = free_port()
    with node(tmp_path, 0, meet) as first, node(tmp_path, 1, meet, FAULT="crash_load") as second:
        first.wait_exit()
        second.wait_exit()
        assert second.seen().failure.kind == "model_corrupt"
        assert first.seen().failure.kind == "peer_lost"
