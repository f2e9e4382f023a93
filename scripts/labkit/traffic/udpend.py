# SPDX-License-Identifier: BSD-2-Clause
"""Sends or receives UDP packets. A program of its own, run inside a host.

    udpend.py numbers receive ADDRESS                            counts numbered packets (stream.py)
    udpend.py numbers send ADDRESS PORT SOURCE RATE BYTES BURST  RATE packets per second, BURST per system call
    udpend.py flood receive ADDRESS PAYLOAD BIN_NS               counts packets in bins, as tcpend.py (flow.py)
    udpend.py flood send ADDRESS PORT SOURCE PAYLOAD             sends as fast as the kernel accepts
    udpend.py mesh ADDRESS PORT RATE BYTES PEER…                 RATE packets per second to each peer (mesh.py)
    udpend.py load RATE BURST ADDRESS…                           RATE packets per second to each address, from h0 of
                                                                 emulated_peers.py, BURST of them in each message

All end when stdin closes, and print one JSON object per line. Many packets per system call let Python take little of
the measured time. Standard library only, so that it starts quickly.
"""

import ctypes as ct
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h
SO_RCVBUFFORCE, SO_RXQ_OVFL = 33, 40
BUFFER = 64 << 20
READ = 1 << 16
TICK_S = 0.001
BURSTS = 100  # at most, between two looks at stdin: a sender that is behind still answers
NUMBER = struct.Struct("!Q")
QUIET_S = 0.5  # packets in flight arrive within this time
FLOOD_BATCH = 64  # packets per call
FLOOD_BUFFER = 4 << 20
FLOOD_QUIET_S = 0.05
MESH_TICK_S = 0.01
LOAD_PORT = 9  # discard (RFC 863)
LOAD_PAYLOAD = 1000  # bytes of a packet
LOAD_BACKLOG_S = 0.02  # messages later than this are skipped
_MSG_WAITFORONE = 0x10000

_libc = ct.CDLL(None, use_errno=True)


class Iovec(ct.Structure):
    """struct iovec"""

    _fields_ = [("base", ct.c_void_p), ("length", ct.c_size_t)]


class Mmsghdr(ct.Structure):
    """struct mmsghdr, with its struct msghdr."""

    _fields_ = [
        ("name", ct.c_void_p),
        ("name_length", ct.c_uint32),
        ("iov", ct.POINTER(Iovec)),
        ("iov_length", ct.c_size_t),
        ("control", ct.c_void_p),
        ("control_length", ct.c_size_t),
        ("flags", ct.c_int),
        ("padding", ct.c_int),
        ("length", ct.c_uint),
    ]


class Messages:
    """Packets for sendmmsg(2) and recvmmsg(2), made once and used repeatedly. `names` are their targets, if any."""

    def __init__(self, payloads: Sequence[bytes], names: Sequence[bytes] = (), most: int = 1024) -> None:
        self._number, self._most, self._next = max(len(payloads), len(names)), most, 0
        # Keeps the memory that the ctypes structures point to.
        self._rooms = [ct.create_string_buffer(p, len(p)) for p in payloads]
        self._names = [ct.create_string_buffer(n, len(n)) for n in names]
        self._vectors = [Iovec(ct.addressof(r), len(r)) for r in self._rooms]
        # So many that `most` messages follow from any position.
        self._headers = (Mmsghdr * (self._number + most))()
        for i, m in enumerate(self._headers):
            m.iov, m.iov_length = ct.pointer(self._vectors[i % len(payloads)]), 1
            if names:
                name = self._names[i % self._number % len(names)]
                m.name, m.name_length = ct.addressof(name), len(name)

    def send(self, fd: int, packets: int) -> int:
        """Sends the next ones by one call. Returns how many; 0 if there is no room. Raises OSError."""
        at = ct.byref(self._headers, self._next * ct.sizeof(Mmsghdr))
        sent: int = _libc.sendmmsg(fd, at, min(packets, self._most), 0)
        if sent < 0:
            return _none_for(errno.ENOBUFS, errno.EINTR)
        self._next = (self._next + sent) % self._number
        return sent

    def receive(self, fd: int) -> int:
        """Receives what there is by one call. Returns how many; 0 after the socket's timeout. Raises OSError."""
        received: int = _libc.recvmmsg(fd, self._headers, self._most, _MSG_WAITFORONE, None)
        return received if received >= 0 else _none_for(errno.EAGAIN, errno.EINTR)


def _none_for(*allowed: int) -> int:
    if ct.get_errno() not in allowed:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return 0


def sockaddr(address: str, port: int) -> bytes:
    """Returns a struct sockaddr_in or sockaddr_in6."""
    packed = socket.inet_pton(family(address), address)
    flow, rest = (b"", bytes(8)) if len(packed) == 4 else (bytes(4), bytes(4))
    return struct.pack("=H", family(address)) + struct.pack("!H", port) + flow + packed + rest


def say(**facts: object) -> None:
    """Prints one line for the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def family(address: str) -> socket.AddressFamily:
    """Returns the address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def opened(address: str) -> socket.socket:
    """Returns a UDP socket of an address's family."""
    return socket.socket(family(address), socket.SOCK_DGRAM)


# ---- numbered packets ----


def receive_numbers(address: str) -> None:
    """Prints `port`; at the end the packets `received`, duplicates as `twice`, those lost by a full `socket`, and
    `missing`: ranges [first, last] of numbers below the highest that did not arrive.
    """
    seen = bytearray()
    received = twice = overflow = 0
    with opened(address) as s:
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
    say(end="closed")


def gaps(seen: bytearray, highest: int) -> list[tuple[int, int]]:
    """Returns the runs of zeros below `highest`, as (first, last)."""
    found = []
    at = seen.find(0, 0, max(highest, 0))
    while at >= 0:
        end = seen.find(1, at)
        found.append((at, end - 1))
        at = seen.find(0, end, highest)
    return found


def send_numbers(address: str, port: int, source: str, rate: int, size: int, burst: int) -> None:
    """Sends evenly; after a stall, the delayed packets at once. Prints `sent` for a line on stdin, and at the end;
    there also `seconds`, and `late_ms`, the longest stall.
    """
    # One CPU only: packets from two CPUs are reordered in any kernel.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    buffer = bytearray(size * burst)
    note = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))] if burst > 1 else []
    sent, late_s = 0, 0.0
    with opened(address) as s:
        s.bind((source, 0))
        s.connect((address, port))
        say(mss_bytes=size)
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
    say(end="stopped")


# ---- as many packets as possible ----


def _until_stdin_closes() -> threading.Event:
    done = threading.Event()

    def watch() -> None:
        select.select([sys.stdin], [], [])
        done.set()

    threading.Thread(target=watch, daemon=True).start()
    return done


def receive_flood(address: str, payload: int, bin_ns: int) -> None:
    """Prints `port`; then `bin_ns` (its start) and `bytes` per bin that is not empty; then `end`."""
    done, messages = _until_stdin_closes(), Messages([bytes(payload)], most=FLOOD_BATCH)
    with opened(address) as s:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, FLOOD_BUFFER)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(FLOOD_QUIET_S * 1e6)))
        s.bind((address, 0))
        say(port=s.getsockname()[1])
        current = filled = 0
        fd, clock = s.fileno(), time.monotonic_ns
        while (count := messages.receive(fd)) or not done.is_set():
            now = clock()
            if now - current >= bin_ns:
                if filled:
                    say(bin_ns=current, bytes=filled)
                current, filled = now - now % bin_ns, 0
            filled += count * payload
    if filled:
        say(bin_ns=current, bytes=filled)
    say(end="closed")


def send_flood(address: str, port: int, source: str, payload: int) -> None:
    """Prints `congestion_control` and `mss_bytes` as tcpend.py does; at the end `sent_packets` and `end`."""
    done, messages = _until_stdin_closes(), Messages([bytes(payload)], most=FLOOD_BATCH)
    with opened(address) as s:
        s.bind((source, 0))
        s.connect((address, port))
        say(congestion_control="none", mss_bytes=payload)
        sent, fd = 0, s.fileno()
        try:
            while not done.is_set():
                sent += messages.send(fd, FLOOD_BATCH)
        except OSError as e:
            say(end=e.strerror)
            return
    say(sent_packets=sent)
    say(end="stopped")


# ---- to many hosts ----


def mesh(address: str, port: int, rate: int, size: int, *peers: str) -> None:
    """Sends, and discards what arrives. Prints `ready`."""
    with opened(address) as s:
        s.bind((address, port))
        s.setblocking(False)
        say(ready=True)
        began, sent, payload = time.monotonic(), 0, bytes(size)
        while True:
            due = int((time.monotonic() - began) * rate)
            for _ in range(min(due - sent, rate)):
                for peer in peers:
                    try:
                        s.sendto(payload, (peer, port))
                    except OSError:  # no route for a moment, or a full queue
                        continue
            sent = due
            try:
                while s.recv(2048):
                    pass
            except OSError:  # nothing left to read, or an ICMP error
                pass
            if select.select([sys.stdin], [], [], MESH_TICK_S)[0] and not sys.stdin.read(1):
                return


def load(rate: float, burst: int, *addresses: str) -> None:
    """Sends at every tick the packets due by then, spread over the addresses. Prints `packets` and `seconds`.

    A burst is one message that the kernel segments late (UDP_SEGMENT).
    """
    messages = Messages([bytes(LOAD_PAYLOAD * burst)], [sockaddr(a, LOAD_PORT) for a in addresses], most=512)
    per_s = rate * len(addresses) / burst
    sent, skipped, wait_s, begun = 0, 0, TICK_S, time.monotonic()
    with opened(addresses[0]) as s:
        if burst > 1:
            s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, LOAD_PAYLOAD)
        while not select.select([sys.stdin], [], [], wait_s)[0]:
            left = int((time.monotonic() - begun) * per_s) - skipped - sent
            late = max(0, left - max(1, int(LOAD_BACKLOG_S * per_s)))
            skipped += late
            left -= late
            wait_s = 0 if late else TICK_S
            while left > 0:
                done = messages.send(s.fileno(), left)
                sent, left = sent + done, left - done
    say(packets=sent * burst, seconds=time.monotonic() - begun)


def main() -> None:
    """Ignores Ctrl-C: the parent ends this program by closing its stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    match sys.argv[1:]:
        case ["numbers", "receive", address]:
            receive_numbers(address)
        case ["numbers", "send", address, port, source, *numbers]:
            send_numbers(address, int(port), source, *map(int, numbers))
        case ["flood", "receive", address, payload, bin_ns]:
            receive_flood(address, int(payload), int(bin_ns))
        case ["flood", "send", address, port, source, payload]:
            send_flood(address, int(port), source, int(payload))
        case ["mesh", address, port, rate, size, *peers]:
            mesh(address, int(port), int(rate), int(size), *peers)
        case ["load", rate, burst, *addresses]:
            load(float(rate), int(burst), *addresses)


if __name__ == "__main__":
    main()
