"""Many packets by few system calls: UDP to many hosts, or frames as they are.

A packet is made once and sent again and again; each call of sendmmsg(2) sends a batch, the next call the next one.
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


class Blast:
    """A socket, and what is sent by it. Made in the network namespace that it sends in."""

    def __init__(self, out: socket.socket, payloads: Sequence[bytes], names: Sequence[bytes] = ()) -> None:
        self._out = out
        number = max(len(payloads), len(names))
        # Whatever ctypes points at is kept here.
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
        self._turn = itertools.cycle(self._batches)

    def send(self, packets: int) -> None:
        """At least so many. Raises KernelError."""
        left = packets
        while left > 0:
            messages = next(self._turn)
            sent = _libc.sendmmsg(self._out.fileno(), messages, len(messages), 0)
            if sent < 0:
                raise KernelError("send many packets", ct.get_errno())
            left -= sent

    def close(self) -> None:
        """Close the socket."""
        self._out.close()


def udp(source: str, targets: Sequence[str], payload: int) -> Blast:
    """UDP packets to these addresses in turn."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    out = socket.socket(family, socket.SOCK_DGRAM)
    out.bind((source, 0))
    return Blast(out, [bytes(payload)], [_name(family, t) for t in targets])


def frames(interface: str, contents: Sequence[bytes]) -> Blast:
    """Ethernet frames, out of an interface, in turn."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind((interface, 0))
    return Blast(out, contents)


def _name(family: socket.AddressFamily, address: str) -> bytes:
    """struct sockaddr_in or sockaddr_in6."""
    packed = socket.inet_pton(family, address)
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H", _PORT) + packed + bytes(8)
    return struct.pack("=H", family) + struct.pack("!HI", _PORT, 0) + packed + bytes(4)


def cpu(number: int) -> None:
    """Stay on one CPU: each has a rotation of its own."""
    os.sched_setaffinity(0, {number})
