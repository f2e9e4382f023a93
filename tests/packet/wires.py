# SPDX-License-Identifier: BSD-2-Clause
"""Provides network namespaces, the wires in them, and frames and bursts: sent and received."""

import contextlib
import ctypes as ct
import errno
import itertools
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from scapy.packet import Packet

from labkit.cluster.patience import patience
from mrcd.errors import KernelError
from mrcd.kernel import libbpf

SECONDS = patience(120.0)  # deadline of waits, long because machines pause, and a busy kernel frees programs late
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD

_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_VNET_HDR, _PACKET_QDISC_BYPASS = 263, 8, 15, 20
_SO_RCVBUFFORCE, _SO_TXTIME, _SO_RCVPRIORITY = 33, 61, 82
_TP_STATUS_VLAN_VALID = 1 << 4

_TBF = "burst 2000 limit 100000"

libc = ct.CDLL(None, use_errno=True)


def until(what: str, met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"still not so after {SECONDS} s: {what}"
        os.sched_yield()


# ---- the namespace ----


def call(what: str, result: int) -> None:
    if result:
        raise KernelError(what, ct.get_errno())


def unmount(path: Path) -> None:
    call(f"unmount {path}", libc.umount2(os.fsencode(path), _MNT_DETACH))


class Namespace:
    """A network namespace without a name: it ends when nothing refers to it."""

    def __init__(self) -> None:
        with self._home():
            call("make a network namespace", libc.unshare(_CLONE_NEWNET))
            self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self.fd).st_ino

    @staticmethod
    @contextlib.contextmanager
    def _home() -> Iterator[None]:
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield
        finally:
            call("come back from a network namespace", libc.setns(fd, _CLONE_NEWNET))
            os.close(fd)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Runs a block, and the processes it starts, in the namespace. Per thread."""
        with self._home():
            call("enter a network namespace", libc.setns(self.fd, _CLONE_NEWNET))
            yield

    def ip(self, *args: str) -> str:
        """Returns the output of iproute2 in the namespace. Raises if it fails."""
        with self.inside():
            return subprocess.run(["ip", *args], capture_output=True, text=True, check=True, timeout=10).stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ip("-j", *args) or "[]")

    def close(self) -> None:
        others = Path("/proc").glob("[0-9]*/ns/net")
        is_left = self.inode in map(_inode, others)
        os.close(self.fd)  # not before, because another worker's namespace may get the inode then
        assert not is_left, "a process is left in the namespace"


def qdisc(interface: str, what: str, kind: str = "", at: str = "root") -> None:
    """Adds, changes or deletes a queueing discipline in the present namespace."""
    subprocess.run(f"tc qdisc {what} dev {interface} {at} {kind}".split(), check=True, timeout=10)


@contextlib.contextmanager
def held_queue(interface: str, kind: str) -> Iterator[None]:
    """A block in which packets wait in a queueing discipline of this kind. One has been sent, one is next."""
    qdisc(interface, "add", f"handle 1: tbf rate 1kbit {_TBF}")
    try:
        try:
            qdisc(interface, "add", f"handle 10: {kind}", at="parent 1:")
        except subprocess.CalledProcessError:
            pytest.skip(f"this kernel has no {kind.split()[0]}")
        yield
    finally:
        qdisc(interface, "del")


def release(interface: str, rate: str) -> None:
    """Lets the packets of a held queue leave at this rate, which the next packet begins."""
    qdisc(interface, "change", f"handle 1: tbf rate {rate} {_TBF}")


def backlog(interface: str) -> int:
    """Returns the bytes in the queueing disciplines of an interface."""
    return sum(int(q["backlog"]) for q in qdiscs(interface))


def qdiscs(interface: str) -> list[dict[str, Any]]:
    """Returns the queueing disciplines of an interface, with their counts."""
    argv = ["tc", "-s", "-j", "qdisc", "show", "dev", interface]
    return list(json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=10).stdout))


# ---- the wire ----


@dataclass(frozen=True)
class Frame:
    data: bytes
    vlan: int | None = None
    kind: int = socket.PACKET_HOST  # as the stack classifies it: to this host, to another, …


@dataclass(frozen=True)
class Gso:
    """A packet to be segmented later into `size` bytes of payload; `l4_at` is the offset of TCP or UDP.

    Of kind "none", it is one packet of UDP whose checksum is to be written later.
    """

    kind: Literal["tcp4", "tcp6", "udp", "none"]
    size: int
    l4_at: int

    def header(self, frame: bytes) -> bytes:
        """Returns the struct virtio_net_hdr, which also leaves the checksum to be computed."""
        needs_csum, kind = 1, {"tcp4": 1, "tcp6": 4, "udp": 5, "none": 0}[self.kind]
        if self.kind in ("udp", "none"):
            l4_length, csum_at = 8, 6
        else:
            l4_length, csum_at = (frame[self.l4_at + 12] >> 4) * 4, 16
        return struct.pack("BBHHHH", needs_csum, kind, self.l4_at + l4_length, self.size, self.l4_at, csum_at)


def changed(frame: Packet, layer: type[Packet], **fields: Any) -> Packet:
    copy = frame.copy()
    for name, value in fields.items():
        setattr(copy[layer], name, value)
    return copy


class Sender:
    def __init__(self, interface: str) -> None:
        self._out = _packet_socket(interface, 0)

    def send(self, frame: Packet | bytes, gso: Gso | None = None, *, leaves_ns: int = 0, priority: int = 0) -> None:
        """Sends a frame. `leaves_ns` is its time stamp, until which fq would hold it."""
        data, ancillary = bytes(frame), []
        if leaves_ns:
            self._out.setsockopt(socket.SOL_SOCKET, _SO_TXTIME, struct.pack("iI", time.CLOCK_MONOTONIC, 0))
            ancillary = [(socket.SOL_SOCKET, _SO_TXTIME, struct.pack("Q", leaves_ns))]
        if gso is not None:
            data = gso.header(data) + data
        self._out.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, int(gso is not None))
        self._out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 0)
        self._out.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        try:
            self._out.sendmsg([data], ancillary)
        except OSError as e:
            if gso is None or gso.kind != "udp" or e.errno != errno.EINVAL:
                raise
            pytest.skip("this kernel takes no bursts of UDP from packet sockets (Linux 6.2)")

    def close(self) -> None:
        self._out.close()


class Tap(Sender):
    """Sends at one end of a veth, and receives at the other.

    A tap for all protocols sees frames before tc ingress does, a tap for one protocol after it.
    """

    _numbers = itertools.count(1)

    def __init__(self, interface: str, other_end: str, protocol: int = ETH_P_ALL) -> None:
        super().__init__(other_end)
        self._in = _packet_socket(interface, protocol)
        self._in.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._in.settimeout(SECONDS)
        self._protocol = ETH_P_IPV6 if protocol == ETH_P_ALL else protocol
        self._found: list[Frame] = []
        self.inlets: list[Tap] = []  # where packets come in that this tap sees

    def frames(self) -> list[Frame]:
        """Returns the frames since the last call."""
        for tap in [*self.inlets, self]:
            tap.read()
        found, self._found = self._found, []
        return found

    def read(self) -> None:
        """Reads up to a last frame, which it sends itself.

        It bypasses the queueing discipline: the tokens of a paced interface (tbf) are for the tested packets.
        """
        version = b"\x45" if self._protocol == ETH_P_IP else b"\x60"
        last = bytes(12) + struct.pack("!H", self._protocol) + version + bytes(47)
        last += struct.pack("!Q", next(self._numbers))
        self._out.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 0)
        self._out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        self._out.send(last)
        begun = time.monotonic()
        while True:
            data, ancillary, _, address = self._in.recvmsg(1 << 17, 64)
            if data == last:
                return
            assert time.monotonic() - begun < SECONDS, "frames come without end"
            if address[2] != socket.PACKET_OUTGOING:
                self._found.append(Frame(data, _tag(ancillary), address[2]))

    def clear_error(self) -> None:
        """Clears the error of an interface that was down for a while."""
        self._in.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def close(self) -> None:
        self._in.close()
        super().close()


class Priorities:
    """Reads the priorities with which packets leave by an interface, from when it is made on."""

    def __init__(self, interface: str) -> None:
        self._in = _packet_socket(interface, ETH_P_ALL)
        try:
            self._in.setsockopt(socket.SOL_SOCKET, _SO_RCVPRIORITY, 1)
        except OSError:
            pytest.skip("this kernel tells no priorities (Linux 6.14)")

    def read(self) -> list[tuple[bytes, int]]:
        """Returns the frames since the last call, with their priorities."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data, ancillary, _, address = self._in.recvmsg(1 << 17, 64, socket.MSG_DONTWAIT)
                values = [v for *kind, v in ancillary if kind == [socket.SOL_SOCKET, socket.SO_PRIORITY]]
                if address[2] == socket.PACKET_OUTGOING:
                    found.append((data, struct.unpack("I", values[0])[0]))
        return found

    def close(self) -> None:
        self._in.close()


def _packet_socket(interface: str, protocol: int) -> socket.socket:
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
    s.bind((interface, protocol))
    return s


def _tag(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            # struct tpacket_auxdata
            status, _, _, _, _, tci, _ = struct.unpack("IIIHHHH", data[:20])
            return tci if status & _TP_STATUS_VLAN_VALID else None
    return None


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:  # the process has ended
        return 0


# ---- features and maps of the kernel ----


_BTF = Path("/sys/kernel/btf/vmlinux")


def _names(name: bytes) -> bool:
    return _BTF.exists() and b"\0" + name + b"\0" in _BTF.read_bytes()


HAS_TCX = _names(b"BPF_TCX_INGRESS")
needs_delivery_times = pytest.mark.skipif(
    not _names(b"SKB_CLOCK_MONOTONIC"), reason="this kernel forgets the clock of time stamps (Linux 6.11)"
)
needs_tcx = pytest.mark.skipif(not HAS_TCX, reason="this kernel has no TCX (Linux 6.6)")


_ARRAY, _PERCPU_ARRAY = 2, 6


def create_array(value_size: int, entries: int, *, per_cpu: bool = False) -> int:
    sizes = (ct.c_uint32(n) for n in (4, value_size, entries))
    kind = _PERCPU_ARRAY if per_cpu else _ARRAY
    return libbpf.check("create", libbpf.lib().bpf_map_create(kind, b"some", *sizes, None))
