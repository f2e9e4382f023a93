# SPDX-License-Identifier: BSD-2-Clause
"""Generates traffic for the tests: payloads that are checked byte for byte, and long TCP flows in bins."""

import hashlib
import json
import random
import socket
import subprocess
import threading
from dataclasses import dataclass
from types import TracebackType

from labkit.cluster.api import Lab
from tests.lab.conftest import wait_until

PORT = 7000
STANDSTILL_MS = 2000
"""A flow that stands still for longer was interrupted; a busy machine makes pauses of some hundred ms."""


def address(host: int, version: int) -> str:
    """Returns a host's overlay address."""
    return f"10.99.0.{host + 1}" if version == 4 else f"fd00:99::{host + 1}"


def _socket(lab: Lab, host: str, version: int, kind: socket.SocketKind) -> socket.socket:
    with lab.inside(host):
        s = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, kind)
    s.settimeout(10)
    return s


def tcp_transfer(lab: Lab, version: int, size: int = 8_000_000, source: int = 0, target: int = 2) -> None:
    """Sends `size` random bytes h{source} → h{target} over TCP, and compares their digests."""
    data = random.Random(size).randbytes(size)
    listener = _socket(lab, f"h{target}", version, socket.SOCK_STREAM)
    listener.bind((address(target, version), 0))
    listener.listen(1)
    digest = hashlib.sha256()

    def receive() -> None:
        connection, _ = listener.accept()
        connection.settimeout(10)
        with connection:
            while block := connection.recv(1 << 20):
                digest.update(block)

    receiver = threading.Thread(target=receive)
    receiver.start()
    with _socket(lab, f"h{source}", version, socket.SOCK_STREAM) as s:
        s.connect((address(target, version), listener.getsockname()[1]))
        s.sendall(data)
    receiver.join(20)
    listener.close()
    assert digest.digest() == hashlib.sha256(data).digest()


def udp_transfer(lab: Lab, version: int, sizes: list[int], source: int = 0, target: int = 2) -> None:
    """Sends one datagram of each size, and compares those that arrive, in any order."""
    rng = random.Random(len(sizes))
    sent = [rng.randbytes(n) for n in sizes]
    with _socket(lab, f"h{target}", version, socket.SOCK_DGRAM) as receiver:
        receiver.bind((address(target, version), 0))
        with _socket(lab, f"h{source}", version, socket.SOCK_DGRAM) as s:
            for datagram in sent:
                s.sendto(datagram, (address(target, version), receiver.getsockname()[1]))
        received = [receiver.recv(65535) for _ in sent]
    assert sorted(received) == sorted(sent)


@dataclass
class Report:
    """iperf3's result: received bits per second in bins of 100 ms, and the sender's retransmissions."""

    bins: list[float]
    retransmits: int
    bits_per_second: float

    @property
    def longest_standstill_ms(self) -> int:
        """Returns the longest run of bins without a byte."""
        longest = current = 0
        for received in self.bins[1:-1]:
            current = current + 100 if received == 0 else 0
            longest = max(longest, current)
        return longest


class Flow:
    """One TCP flow h0 → h2 of a given length, in the background. Use as a context manager."""

    def __init__(self, lab: Lab, seconds: float, version: int = 4, extra: tuple[str, ...] = ()) -> None:
        self._lab, self._seconds, self._version, self._extra = lab, seconds, version, extra

    def __enter__(self) -> "Flow":
        serve = ["iperf3", "-s", "-1", "-J", "-i", "0.1", "-p", str(PORT)]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._server = self._lab.popen("h2", serve, **quiet)
        self._listening()
        send = [
            "iperf3",
            "-c",
            address(2, self._version),
            "-J",
            "-i",
            "0.1",
            "-p",
            str(PORT),
            "-t",
            f"{self._seconds:g}",
        ]
        self._client = self._lab.popen("h0", [*send, *self._extra], **quiet)
        return self

    def _listening(self) -> None:
        listeners = ["ss", "-Hltn", f"sport = :{PORT}"]
        wait_until("iperf3 listens", lambda: self._lab.exec("h2", listeners).stdout.strip())

    def report(self) -> Report:
        """Waits for the end of the flow, and reads both sides."""
        out, _ = self._client.communicate(timeout=self._seconds + 30)
        seen, _ = self._server.communicate(timeout=30)
        sender, receiver = json.loads(out), json.loads(seen)
        assert "error" not in sender, sender["error"]
        return Report(
            bins=[i["sum"]["bits_per_second"] for i in receiver["intervals"]],
            retransmits=sender["end"]["sum_sent"]["retransmits"],
            bits_per_second=sender["end"]["sum_received"]["bits_per_second"],
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in (self._client, self._server):
            if child.poll() is None:
                child.kill()
            child.communicate()
