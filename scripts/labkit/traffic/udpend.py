# SPDX-License-Identifier: BSD-2-Clause
"""Sends or receives a UDP flow of numbered packets. A program of its own, run inside a host (stream.py starts it).

    udpend.py receive ADDRESS                            until its stdin closes
    udpend.py send ADDRESS PORT SOURCE RATE BYTES BURST  RATE packets per second, BURST per system call

Both print one JSON object per line. For a line on its stdin the sender prints `sent`, the packets so far.
Standard library only, so that it starts quickly.
"""

import json
import os
import select
import socket
import struct
import sys
import time

UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h
SO_RCVBUFFORCE, SO_RXQ_OVFL = 33, 40
BUFFER = 64 << 20
READ = 1 << 16
TICK_S = 0.001
BURSTS = 100  # at most, between two looks at stdin: a sender that is behind still answers
NUMBER = struct.Struct("!Q")
QUIET_S = 0.5  # packets in flight arrive within this time


def say(**facts: object) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def family(address: str) -> socket.AddressFamily:
    """Returns the address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def receive(address: str) -> None:
    """Prints `port`; at the end the packets `received`, duplicates as `twice`, those lost by a full `socket`, and
    `missing`: ranges [first, last] of numbers below the highest that did not arrive.
    """
    seen = bytearray()
    received = twice = overflow = 0
    with socket.socket(family(address), socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        s.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        s.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        s.bind((address, 0))
        say(port=s.getsockname()[1])
        open_, wait_s = True, None
        while True:
            ready = select.select([s, sys.stdin] if open_ else [s], [], [], wait_s)[0]
            if sys.stdin in ready and not sys.stdin.read(1):
                open_, wait_s = False, QUIET_S
            if s not in ready:
                if not open_ and not ready:
                    break
                continue
            data, notes, _, _ = s.recvmsg(READ, 64)
            size = len(data)
            for level, kind, note in notes:
                if (level, kind) == (socket.IPPROTO_UDP, UDP_GRO):
                    (size,) = struct.unpack_from("=H", note)
                elif (level, kind) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                    (overflow,) = struct.unpack_from("=I", note)
            for at in range(0, len(data), size):
                (number,) = NUMBER.unpack_from(data, at)
                if number >= len(seen):
                    seen.extend(bytes(max(len(seen), number + 1, 1 << 20)))
                twice += seen[number]
                seen[number] = 1
                received += 1
    highest = seen.rfind(1)
    say(received=received, twice=twice, socket=overflow, highest=highest, missing=gaps(seen, highest))


def gaps(seen: bytearray, highest: int) -> list[tuple[int, int]]:
    """Returns the runs of zeros below `highest`, as (first, last)."""
    found = []
    at = seen.find(0, 0, max(highest, 0))
    while at >= 0:
        end = seen.find(1, at)
        found.append((at, end - 1))
        at = seen.find(0, end, highest)
    return found


def send(address: str, port: int, source: str, rate: int, size: int, burst: int) -> None:
    """Sends evenly; after a stall, the delayed packets at once. Prints `sent`, and `late_ms`, the longest stall."""
    os.sched_setaffinity(
        0, {max(os.sched_getaffinity(0))}
    )  # one CPU only: packets from two CPUs are reordered in any kernel
    buffer = bytearray(size * burst)
    note = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))] if burst > 1 else []
    sent, late_s = 0, 0.0
    with socket.socket(family(address), socket.SOCK_DGRAM) as s:
        s.bind((source, 0))
        s.connect((address, port))
        os.set_blocking(sys.stdin.fileno(), False)
        began = last = time.monotonic()
        while True:
            now = time.monotonic()
            late_s, last = max(late_s, now - last), now
            due = int((now - began) * rate)
            for _ in range(BURSTS):
                if sent + burst > due:
                    break
                for i in range(burst):
                    NUMBER.pack_into(buffer, i * size, sent + i)
                s.sendmsg([buffer], note)
                sent += burst
            try:
                word = os.read(sys.stdin.fileno(), 64)
            except BlockingIOError:
                if sent + burst > due:
                    time.sleep(TICK_S)
                continue
            if not word:
                break
            for _ in range(word.count(b"\n")):
                say(sent=sent)
    say(sent=sent, seconds=time.monotonic() - began, late_ms=round(late_s * 1000, 1))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:8]))
