"""Nodes of one engine: they meet at --dist-init-addr, wait for one another, and end when one of them is gone.

In the real engine torch.distributed's store stands at that address, and the ranks are tied to one another by NCCL and
gloo; here each node has one connection to the first. Words: torch's TCPStore (waitForWorkers, the client's connect)
and gloo's transport/tcp/pair.cc. A node sends its number of ranks once, and then one byte when they are up; the first
answers with one byte when all are there, and one when all are up.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass, field

from benchmark.simulator.blueprint import Blueprint

from . import processes, texts

_TIMEOUT_SECONDS = 600
"""Without --dist-timeout: torch's own for NCCL."""
_AGAIN_SECONDS = 0.2


class _Gone(Exception):  # noqa: N818
    """The start ends with this traceback: (key of texts.FRAMES, last line)."""


@dataclass
class Meeting:
    """One node's side of it. The ranks wait on `follow` until this process closes `lead`."""

    blueprint: Blueprint
    address: tuple[str, int]
    timeout: float
    sparing: frozenset[int]
    follow: int
    lead: int
    peers: list[socket.socket] = field(default_factory=list)
    server: socket.socket | None = None
    """The first node's; as torch's store it stays open as long as the node lives."""
    met: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, blueprint: Blueprint, sparing: frozenset[int]) -> Meeting | None:
        """None for an engine of one node."""
        arguments = blueprint.arguments
        if (arguments["nnodes"] or 1) < 2:
            return None
        host, _, port = str(arguments["dist_init_addr"] or "127.0.0.1:20000").rpartition(":")
        follow, lead = os.pipe()
        timeout = float(arguments["dist_timeout"] or _TIMEOUT_SECONDS)
        return cls(blueprint, (host.strip("[]"), int(port)), timeout, sparing, follow, lead)

    def begin(self) -> None:
        """Looks for the other nodes beside everything else; ends this engine where they cannot be found."""
        threading.Thread(target=self._meet, daemon=True).start()

    def wait_ready(self) -> None:
        """Returns when the ranks of every node are up."""
        self.met.wait()
        try:
            if self.blueprint.node:
                self.peers[0].sendall(b"1")
                _take(self.peers[0])
            else:
                for peer in self.peers:
                    _take(peer)
                for peer in self.peers:
                    peer.sendall(b"1")
        except OSError:
            self._end(*self._closed())
        for peer in self.peers:
            threading.Thread(target=self._hold, args=(peer,), daemon=True).start()

    def _meet(self) -> None:
        try:
            self.peers = [self._join()] if self.blueprint.node else self._gather()
        except _Gone as gone:
            self._end(*gone.args)
        except OSError as error:
            self._end("meeting", f"torch.distributed.DistNetworkError: {error}")
        self.met.set()
        os.close(self.lead)

    def _gather(self) -> list[socket.socket]:
        """The first node's: a connection to each of the others."""
        joined, world, peers = len(self.blueprint.ranks), self.blueprint.world, []
        ends = time.monotonic() + self.timeout
        self.server = socket.create_server(self.address, family=_family(self.address))
        while joined < world:
            self.server.settimeout(max(0.01, ends - time.monotonic()))
            try:
                peer, _ = self.server.accept()
            except TimeoutError:
                raise _Gone(
                    "meeting",
                    f"torch.distributed.DistStoreError: Timed out after {self.timeout + 1:.0f} seconds waiting for "
                    f"clients. {joined}/{world} clients joined.",
                ) from None
            # Somebody who only looks whether the port is open says nothing.
            if ranks := _line(peer):
                joined += int(ranks)
                peers.append(peer)
        for peer in peers:
            peer.sendall(b"1")
        self.server.settimeout(None)
        threading.Thread(target=self._turn_away, daemon=True).start()
        return peers

    def _turn_away(self) -> None:
        """As torch's store does with whoever only looks: connections that nobody takes would fill the port's queue."""
        assert self.server is not None
        while True:
            with contextlib.suppress(OSError):
                self.server.accept()[0].close()

    def _join(self) -> socket.socket:
        first = self._connect()
        try:
            first.sendall(f"{len(self.blueprint.ranks)}\n".encode())
            _take(first)
        except OSError:
            raise _Gone(*self._closed()) from None
        return first

    def _connect(self) -> socket.socket:
        ends = time.monotonic() + self.timeout
        while True:
            try:
                first = socket.create_connection(self.address, timeout=1.0)
                first.settimeout(None)
                return first
            except OSError:
                if time.monotonic() > ends:
                    where = f"({self.address[0]}, {self.address[1]})"
                    raise _Gone(
                        "meeting",
                        "torch.distributed.DistNetworkError: The client socket has timed out after "
                        f"{self.timeout * 1000:.0f}ms while trying to connect to {where}.",
                    ) from None
                time.sleep(_AGAIN_SECONDS)

    def _hold(self, peer: socket.socket) -> None:
        try:
            _take(peer)
        except OSError:
            self._end(*self._closed())

    def _closed(self) -> tuple[str, str]:
        host, port = self.address
        where = "[../third_party/gloo/gloo/transport/tcp/pair.cc:544]"
        return "broadcast", f"RuntimeError: {where} Connection closed by peer [{host}]:{port}"

    def _end(self, where: str, last: str) -> None:
        text = f"Scheduler hit an exception: {texts.traceback(where, last)}\n"
        texts.log(text, self.blueprint.ranks[0].prefix)
        processes.kill_tree(self.sparing)


def _family(address: tuple[str, int]) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def _line(peer: socket.socket) -> str:
    """A first line of a connection; empty from one that says nothing within a second."""
    peer.settimeout(1.0)
    try:
        with peer.makefile("r") as stream:
            return stream.readline().strip()
    except OSError:
        return ""
    finally:
        peer.settimeout(None)


def _take(peer: socket.socket) -> None:
    """One byte of a peer.

    Raises:
        ConnectionError: it is gone.
    """
    if not peer.recv(1):
        raise ConnectionResetError("the peer closed the connection")
