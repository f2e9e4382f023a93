# SPDX-License-Identifier: BSD-2-Clause
"""Delays the packets of a port by a relay, since the kernel may have no netem.

At tc egress of the port the program lab_delay (bpf/lab/fault.bpf.c) redirects forwarded packets to a tap device.
The relay, this file run as a program, reads them there, waits, and sends them through the port, past hooks and
queues. Bursts are cut into wire packets. Good for some 10,000 packets/s, exact to a fraction of a millisecond.

    python -I delay.py DELAY_NS NAMESPACE:PORT…      prints `ready`, then relays until it is killed
"""

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 5.0
_PROGRAM = "lab_delay"
_ONLY = struct.pack("=I", 0)

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SIOCGIFMTU, _SIOCSIFMTU, _SIOCSIFFLAGS, _SIOCSIFTXQLEN = 0x8921, 0x8922, 0x8914, 0x8943
_IFF_UP = 0x1
_QUEUE = 10_000  # packets between kernel and relay
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_AT_ONCE = 64  # packets read before the next check for due packets


def start(record: Path, pins: Path, ends: Sequence[tuple[str, str]], delay_s: float) -> None:
    """Delays packets that leave through these (namespace, port). Raises MachineError, after which nothing is left."""
    from labkit.cluster import processes

    argv = [sys.executable, "-I", __file__, str(round(delay_s * 1e9)), *(f"{n}:{p}" for n, p in ends)]
    record.parent.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: processes.record_self(record),
    )
    try:
        assert child.stdout is not None
        with child.stdout as words:
            said = words.readline().strip() if select.select([words], [], [], PATIENCE_S)[0] else "nothing"
        if said != "ready":
            from mrcd.errors import MachineError

            raise MachineError(f"the relay that delays {ends[0][1]} did not start: {said}")
        _divert(pins, ends)
    except BaseException:
        stop(record, pins)
        raise


def stop(record: Path, pins: Path) -> None:
    """Ends the delay; no error if there is none. Packets that the relay holds are lost."""
    from labkit.cluster import processes

    if pins.exists():
        shutil.rmtree(pins)
    process = processes.read_record(record)
    if process is not None and processes.alive(process):
        processes.end([process])
    record.unlink(missing_ok=True)


def _divert(pins: Path, ends: Sequence[tuple[str, str]]) -> None:
    from labkit.cluster import netns
    from labkit.faults import tc_hook
    from mrcd.kernel import libbpf

    pins.mkdir(parents=True)
    for namespace, port in ends:
        with tc_hook.loaded("fault") as obj:
            with netns.inside(namespace):
                value = struct.pack("=I", socket.if_nametoindex(_tap_name(port)))
                libbpf.update_elem(tc_hook.map_fd(obj, "diversion"), _ONLY, value)
                program = libbpf.program_fd(obj, _PROGRAM)
                link = libbpf.create_link(program, socket.if_nametoindex(port), libbpf.TCX_EGRESS)
            try:
                libbpf.pin(link, pins / f"{namespace}_{port}")
            finally:
                os.close(link)


def _tap_name(port: str) -> str:
    return f"slow-{port}"[:15]


class _End:
    """One port: its tap device, and a socket that sends through it."""

    def __init__(self, namespace: str, port: str) -> None:
        _enter(namespace)
        self.held: deque[tuple[int, bytes]] = deque()
        name = _tap_name(port).encode()
        self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.tap, _TUNSETIFF, struct.pack("16sH14x", name, _IFF_TAP | _IFF_NO_PI))
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
            mtu = fcntl.ioctl(s, _SIOCGIFMTU, struct.pack("16s16x", port.encode()))[16:20]
            fcntl.ioctl(s, _SIOCSIFMTU, struct.pack("16s4s12x", name, mtu))
            fcntl.ioctl(s, _SIOCSIFTXQLEN, struct.pack("16si12x", name, _QUEUE))
            fcntl.ioctl(s, _SIOCSIFFLAGS, struct.pack("16sH14x", name, _IFF_UP))
        self.size = 14 + struct.unpack("=i", mtu)[0]
        self.out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        self.out.bind((port, 0))

    def take(self, delay_ns: int) -> None:
        """Reads the packets that have arrived."""
        try:
            for _ in range(_AT_ONCE):
                self.held.append((time.monotonic_ns() + delay_ns, os.read(self.tap, self.size)))
        except BlockingIOError:
            pass

    def give(self, now: int) -> None:
        """Sends the packets that are due."""
        while self.held and self.held[0][0] <= now:
            with contextlib.suppress(OSError):  # full queue or link down: the packet is lost, as in a switch
                self.out.send(self.held.popleft()[1])


def _enter(namespace: str) -> None:
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), f"enter {namespace}")
    os.close(fd)


def main() -> None:
    """Relays until it is killed."""
    delay_ns = int(sys.argv[1])
    ends = {e.tap: e for e in (_End(*text.rsplit(":", 1)) for text in sys.argv[2:])}
    print("ready", flush=True)
    while True:
        due = min((e.held[0][0] for e in ends.values() if e.held), default=None)
        wait = None if due is None else max(0.0, (due - time.monotonic_ns()) / 1e9)
        for fd in select.select(list(ends), [], [], wait)[0]:
            ends[fd].take(delay_ns)
        now = time.monotonic_ns()
        for e in ends.values():
            e.give(now)


if __name__ == "__main__":
    main()
