# SPDX-License-Identifier: BSD-2-Clause
"""Generates traffic for the tests: payloads that are checked byte for byte, and paced TCP flows."""

import hashlib
import random
import socket
import threading

from labkit.cluster.api import Lab
from labkit.measure import goodput
from labkit.traffic.flow import Ends, Flow

PACED = 10_000_000  # bytes per second
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


def tcp_flow(lab: Lab, source: int = 0, target: int = 2, rate: int = PACED) -> Flow:
    """Returns a TCP flow h{source} → h{target}, as a context manager. At full speed (0) it takes both CPUs."""
    ends = Ends(f"h{source}", address(source, 4), f"h{target}", address(target, 4))
    return Flow(lab, ends, rate=rate)


def standstill_ms(flow: Flow) -> int:
    """Ends the flow, and returns the longest time in which nothing arrived."""
    flow.finish()
    return goodput.longest_hole(flow.bins, min(flow.bins), max(flow.bins), 0.0001).length_ns // 1_000_000
