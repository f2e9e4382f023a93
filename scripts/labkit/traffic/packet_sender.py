# SPDX-License-Identifier: BSD-2-Clause
"""Sends many packets by few system calls: UDP to many hosts, or given frames.

Packets are made once and sent repeatedly; each call of sendmmsg(2) sends a batch, and the next call the next batch.
"""

import ctypes as ct
import itertools
import os
import socket
import struct
from collections.abc import Sequence

from labkit.traffic.floodend import Iovec, Mmsghdr
from mrcd.errors import KernelError

BATCH = 1024
_PORT = 9  # discard (RFC 863)
_libc = ct.CDLL(None, use_errno=True)


class PacketSender:
    """A socket and its packets. Create it in the network namespace that it sends in."""

    def __init__(self, out: socket.socket, payloads: Sequence[bytes], names: Sequence[bytes] = ()) -> None:
        self._out = out
        number = max(len(payloads), len(names))
        # Keeps the memory that the ctypes structures point to.
        self._rooms = [ct.create_string_buffer(p, len(p)) for p in payloads]
        self._names = [ct.create_string_buffer(n, len(n)) for n in names]
        self._vectors = [Iovec(ct.addressof(r), len(r)) for r in self._rooms]
        self._batches = []
        for first in range(0, number, BATCH):
            messages = (Mmsghdr * min(BATCH, number - first))()
            for m, i in zip(messages, range(first, number), strict=False):
                m.header.iov, m.header.iov_length = ct.pointer(self._vectors[i % len(payloads)]), 1
                if names:
                    name = self._names[i % len(names)]
                    m.header.name, m.header.name_length = ct.addressof(name), len(name)
            self._batches.append(messages)
        self._next_batch = itertools.cycle(self._batches)

    def send(self, packets: int) -> int:
        """Sends at least `packets` packets. Returns how many. Raises KernelError."""
        left = packets
        while left > 0:
            messages = next(self._next_batch)
            sent = _libc.sendmmsg(self._out.fileno(), messages, len(messages), 0)
            if sent < 0:
                raise KernelError("send many packets", ct.get_errno())
            left -= sent
        return packets - left

    def close(self) -> None:
        """Closes the socket."""
        self._out.close()


def udp(source: str, targets: Sequence[str], payload: int) -> PacketSender:
    """Returns a sender of UDP packets to these addresses in turn."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    out = socket.socket(family, socket.SOCK_DGRAM)
    out.bind((source, 0))
    return PacketSender(out, [bytes(payload)], [_name(family, t) for t in targets])


def frames(interface: str, contents: Sequence[bytes]) -> PacketSender:
    """Returns a sender of Ethernet frames through an interface, in turn."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind((interface, 0))
    return PacketSender(out, contents)


def _name(family: socket.AddressFamily, address: str) -> bytes:
    """Returns a struct sockaddr_in or sockaddr_in6."""
    packed = socket.inet_pton(family, address)
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H", _PORT) + packed + bytes(8)
    return struct.pack("=H", family) + struct.pack("!HI", _PORT, 0) + packed + bytes(4)


def cpu(number: int) -> None:
    """Pins this thread to one CPU: each CPU has a rotation of its own."""
    os.sched_setaffinity(0, {number})
