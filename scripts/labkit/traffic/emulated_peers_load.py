# SPDX-License-Identifier: BSD-2-Clause
"""Sends UDP packets to many addresses in turn until stdin closes. A program of its own, run inside the host.

    emulated_peers_load.py RATE BURST ADDRESS…    RATE packets per second to each address, BURST of them in each message

A burst is one message that the kernel segments late (UDP_SEGMENT). Prints the number of packets and the seconds, as
JSON. Standard library only, so that it starts quickly.
"""

import ctypes as ct
import errno
import json
import os
import select
import socket
import struct
import sys
import time

PORT = 9  # discard
PAYLOAD = 1000  # bytes of a packet
_TICK_S = 0.001
_AT_ONCE = 512  # most messages per call
_BACKLOG_S = 0.02  # messages later than this are skipped
_SOL_UDP, _UDP_SEGMENT = 17, 103
_MMSGHDR = struct.Struct("@PI4xPNPNi4xI4x")  # name, its length, vector, 1, control, its length, flags, bytes sent

_libc = ct.CDLL(None, use_errno=True)


class Messages:
    """A burst to each address, repeatedly, prepared for sendmmsg(2)."""

    def __init__(self, addresses: list[str], payload: int) -> None:
        rounds = -(-_AT_ONCE // len(addresses)) + 1  # enough messages follow from any position
        self._names = ct.create_string_buffer(b"".join(_name(a) for a in addresses))
        self._payload = ct.create_string_buffer(payload)
        self._vector = ct.create_string_buffer(struct.pack("@PN", ct.addressof(self._payload), payload))
        name, size, vector = ct.addressof(self._names), len(_name(addresses[0])), ct.addressof(self._vector)
        one = [_MMSGHDR.pack(name + i * size, size, vector, 1, 0, 0, 0, 0) for i in range(len(addresses))]
        self._room = ct.create_string_buffer(b"".join(one) * rounds)
        self._number, self._next = len(addresses), 0

    def send(self, fd: int, number: int) -> int:
        """Sends as many messages as one call takes, at most `number`. Returns how many. Raises OSError."""
        at = ct.addressof(self._room) + self._next * _MMSGHDR.size
        sent: int = _libc.sendmmsg(fd, ct.c_void_p(at), min(number, _AT_ONCE), 0)
        if sent < 0:
            if ct.get_errno() in (errno.ENOBUFS, errno.EINTR):
                return 0
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
        self._next = (self._next + sent) % self._number
        return sent


def _name(address: str) -> bytes:
    """struct sockaddr_in"""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", PORT) + socket.inet_aton(address) + bytes(8)


def main() -> None:
    """Sends at every tick the packets due by then, spread over the addresses."""
    rate, burst, addresses = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    messages, per_s = Messages(addresses, PAYLOAD * burst), rate * len(addresses) / burst
    sent, skipped, wait_s, begun = 0, 0, _TICK_S, time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        if burst > 1:
            s.setsockopt(_SOL_UDP, _UDP_SEGMENT, PAYLOAD)
        while not select.select([sys.stdin], [], [], wait_s)[0]:
            left = int((time.monotonic() - begun) * per_s) - skipped - sent
            late = max(0, left - max(1, int(_BACKLOG_S * per_s)))
            skipped += late
            left -= late
            wait_s = 0 if late else _TICK_S
            while left > 0:
                done = messages.send(s.fileno(), left)
                sent, left = sent + done, left - done
    print(json.dumps({"packets": sent * burst, "seconds": time.monotonic() - begun}))


main()
