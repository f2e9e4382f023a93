"""One host's data plane on a bench: packet in, packet and verdict and counters out.

    m0 ══ m0p              the overlay interface: what is sent on m0 is pushed
    n0 ══ w0, n1 ══ w1, …  the plane NICs and what is plugged in there: the wire

Everything is in a network namespace without a name and in a BPF file system below a temporary
directory. The programs run by BPF_PROG_TEST_RUN; where that cannot do (redirect, VLAN tags, bursts)
they are attached and real packets go through the veths.
"""

import contextlib
import ctypes as ct
import itertools
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from mrcd import abi, config, install, libbpf, topology, wire
from mrcd.config import Steering
from mrcd.dataplane import Attachment, Dataplane
from mrcd.errors import KernelError
from mrcd.tables import Tables

Hook = Literal["tc", "xdp"]
Verdict = Literal["pass", "drop", "redirect"]
Protocol = Literal["ipv4", "ipv6"]
Xdp = Literal["xdp", "xdp-generic"]

PLANES, T1S, SLOTS = 4, 4, 4
EVS = PLANES * SLOTS
MTU = 1500
SECONDS = 5.0  # the deadline of everything that is waited for

CLUSTER = """
[cluster]
planes = 4
t0s = 2
t1s = 4
evs_per_peer = 16
mtu = 1500
steering = "{steering}"
[[hosts]]
name = "h0"
id = 0
t0 = 0
port = 0
prefixes = ["10.99.0.1/32", "fd00:99::1/128"]
[[hosts]]
name = "h1"
id = 1
t0 = 0
port = 1
prefixes = ["10.99.0.2/32", "fd00:99::2/128"]
[[hosts]]
name = "h2"
id = 2
t0 = 1
port = 0
prefixes = ["10.99.0.3/32", "fd00:99::3/128"]
[[hosts]]
name = "h5"
id = 5
t0 = 1
port = 1
prefixes = ["10.99.0.6/32", "fd00:99::6/128"]
"""
H0, H1, H2, H5 = 0, 1, 2, 5

_TC: dict[int, Verdict] = {0xFFFFFFFF: "pass", 2: "drop", 7: "redirect"}
_XDP: dict[int, Verdict] = {1: "drop", 2: "pass"}
_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_VNET_HDR = 263, 8, 15
_SO_RCVBUFFORCE = 33
_TP_STATUS_VLAN_VALID = 1 << 4
_ETH_P_ALL, _ETH_P_IP, _ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
_TEST_RUN_MIN = 54  # BPF_PROG_TEST_RUN refuses an IPv6 skb shorter than Ethernet and IPv6 headers

_libc = ct.CDLL(None, use_errno=True)


def nic_mac(plane: int) -> str:
    """MAC of this host's NIC."""
    return f"02:00:00:00:00:{plane:02x}"


def wire_mac(plane: int) -> str:
    """MAC of the T0 at the other end."""
    return f"02:00:00:00:01:{plane:02x}"


def changed(frame: Packet, layer: type[Packet], **fields: Any) -> Packet:
    """A copy of a frame in which one layer has other fields."""
    copy = frame.copy()
    for name, value in fields.items():
        setattr(copy[layer], name, value)
    return copy


def until(what: str, met: Callable[[], bool]) -> None:
    """Wait for a condition, up to the deadline."""
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"still not so after {SECONDS} s: {what}"
        os.sched_yield()


# ---- the namespace ----


def _call(what: str, result: int) -> None:
    if result:
        raise KernelError(what, ct.get_errno())


class Namespace:
    """A network namespace without a name: gone as soon as nothing refers to it."""

    def __init__(self) -> None:
        with self._home():
            _call("make a network namespace", _libc.unshare(_CLONE_NEWNET))
            self._fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._fd).st_ino

    @staticmethod
    @contextlib.contextmanager
    def _home() -> Iterator[None]:
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield
        finally:
            _call("come back from a network namespace", _libc.setns(fd, _CLONE_NEWNET))
            os.close(fd)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Run a block, and what it starts, in the namespace, then come back. Per thread."""
        with self._home():
            _call("enter a network namespace", _libc.setns(self._fd, _CLONE_NEWNET))
            yield

    def close(self) -> None:
        """Let go of it, and see that nobody else holds it."""
        os.close(self._fd)
        others = Path("/proc").glob("[0-9]*/ns/net")
        assert self.inode not in map(_inode, others), "a process is left in the namespace"


# ---- the wire ----


@dataclass(frozen=True)
class Frame:
    """What came in. The VLAN tag travels beside the bytes."""

    data: bytes
    vlan: int | None = None
    kind: int = socket.PACKET_HOST  # as the stack judges it: to this host, to another, …


@dataclass(frozen=True)
class Gso:
    """What is to be cut into segments of `size` bytes of payload later; `l4_at` is where TCP or UDP begins."""

    kind: Literal["tcp4", "tcp6", "udp"]
    size: int
    l4_at: int

    def header(self, frame: bytes) -> bytes:
        """struct virtio_net_hdr, with the checksum left to be computed too."""
        needs_csum, kind = 1, {"tcp4": 1, "tcp6": 4, "udp": 5}[self.kind]
        if self.kind == "udp":
            l4_length, csum_at = 8, 6
        else:
            l4_length, csum_at = (frame[self.l4_at + 12] >> 4) * 4, 16
        return struct.pack("BBHHHH", needs_csum, kind, self.l4_at + l4_length, self.size, self.l4_at, csum_at)


class Sender:
    """Puts frames on an interface, as they are."""

    def __init__(self, interface: str) -> None:
        self._out = _packet_socket(interface, 0)

    def send(self, frame: Packet | bytes, gso: Gso | None = None) -> None:
        """Send a frame, or a whole burst."""
        data = bytes(frame)
        if gso is not None:
            data = gso.header(data) + data
        self._out.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, int(gso is not None))
        self._out.send(data)

    def close(self) -> None:
        """Close the socket."""
        self._out.close()


class Tap(Sender):
    """Sends at one end of a veth and sees what comes in at the other.

    A tap for all protocols sees frames before tc ingress does, a tap for one protocol after it.
    """

    _numbers = itertools.count(1)

    def __init__(self, interface: str, other_end: str, protocol: int = _ETH_P_ALL) -> None:
        super().__init__(other_end)
        self._in = _packet_socket(interface, protocol)
        self._in.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._in.settimeout(SECONDS)
        self._protocol = _ETH_P_IPV6 if protocol == _ETH_P_ALL else protocol

    def frames(self) -> list[Frame]:
        """What came in since the last call: a last frame of our own is sent after it and waited for."""
        version = b"\x45" if self._protocol == _ETH_P_IP else b"\x60"
        last = bytes(12) + struct.pack("!H", self._protocol) + version + bytes(47)
        last += struct.pack("!Q", next(self._numbers))
        self.send(last)
        found: list[Frame] = []
        while True:
            data, ancillary, _, address = self._in.recvmsg(1 << 17, 64)
            if data == last:
                return found
            if address[2] != socket.PACKET_OUTGOING:
                found.append(Frame(data, _tag(ancillary), address[2]))

    def close(self) -> None:
        """Close both ends."""
        self._in.close()
        super().close()


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


# ---- the bench ----


class Bench:
    """Host h0 of a small cluster: tables filled as mrcd fills them, every path usable.

    Or any host at the other end of such a bench's wires: then w0, w1, … are its NICs.
    """

    def __init__(
        self, directory: Path, steering: Steering = "usid", *, host: str = "h0", wired_to: "Bench | None" = None
    ) -> None:
        self.steering = steering
        self.config = config.parse(CLUSTER.format(steering=steering))
        self.plan = topology.plan(self.config, host)
        self._plans = {h.name: topology.plan(self.config, h.name) for h in self.config.hosts}
        self._side = "w" if wired_to else "n"
        self._bpffs = directory
        self._taps: dict[tuple[str, int], Tap] = {}
        self._stack: Sender | None = None
        self._cpu = min(os.sched_getaffinity(0))
        with contextlib.ExitStack() as undo:
            self.namespace: Namespace = wired_to.namespace if wired_to else Namespace()
            if wired_to:
                self.ifindex: dict[str, int] = wired_to.ifindex
            else:
                undo.callback(self.namespace.close)
                with self.namespace.inside():
                    self.ifindex = self._interfaces()
            undo.callback(self._unmount)
            self.dataplane = Dataplane(self.plan, directory)
            undo.callback(self.dataplane.close)
            self.dataplane.load()
            self.dataplane.commit()
            self.tables = Tables(self.dataplane.pins, writable=True)
            undo.callback(self.tables.close)
            self._configure()
            self._undo = undo.pop_all()
        self._pristine = {name: self._table(name).copy() for name in ("evs", "rxs", "srhs", "peers", "planes", "node")}

    def _interfaces(self) -> dict[str, int]:
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")  # or it talks
        lines = ["link add m0 type veth peer name m0p"]
        for p in range(PLANES):
            lines.append(f"link add n{p} address {nic_mac(p)} type veth peer name w{p} address {wire_mac(p)}")
        names = ["m0", "m0p", *(f"{side}{p}" for p in range(PLANES) for side in "nw")]
        lines += [f"link set {name} up" for name in names]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        return {name: index for index, name in socket.if_nameindex()}

    def _configure(self) -> None:
        install.write_peers(self.tables, self.plan)
        for p in range(PLANES):
            plane = self.tables.planes[p : p + 1].reshape(())
            plane["ifindex"] = self.ifindex[f"{self._side}{p}"]
            ends = [_octets(nic_mac(p)), _octets(wire_mac(p))]
            plane["smac"], plane["dmac"] = ends if self._side == "n" else ends[::-1]
            plane["address"] = np.frombuffer(self.plan.addresses[p].packed, np.uint8)
            plane["sid"] = np.frombuffer(self.plan.sids[p].packed, np.uint8)
        self.tables.node["ports"] = (1 << PLANES) - 1
        for peer in self.plan.peers:
            for ev in peer.evs:
                self.set_usable(peer.host.id, ev.ev, True)

    def _table(self, name: str) -> Any:
        return getattr(self.tables, name)

    # ---- its life ----

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Self]:
        """A block inside the namespace, on one CPU, with the tables as if nothing had ever happened."""
        cpus = os.sched_getaffinity(0)
        for name, table in self._pristine.items():
            self._table(name)[...] = table
        zero = bytes(libbpf.possible_cpus())
        self._fill("mrc_drops", [zero * 8] * len(abi.Drop))
        self._fill("mrc_rotations", [zero * abi.ROTATION.itemsize] * len(self.tables.peers))
        self.dataplane.set_prefixes(install.prefixes(self.plan))
        try:
            os.sched_setaffinity(0, {self._cpu})  # each CPU has a rotation of its own
            with self.namespace.inside():
                yield self
        finally:
            os.sched_setaffinity(0, cpus)

    def _fill(self, name: str, values: list[bytes]) -> None:
        fd = libbpf.get(self.dataplane.pins / name)
        for i, value in enumerate(values):
            libbpf.update_elem(fd, struct.pack("I", i), value)
        os.close(fd)

    def close(self) -> None:
        """Take everything down, and see that nothing is left."""
        programs = [_program_id(fd) for fd in self.dataplane._programs.values()]
        self._undo.close()
        assert str(self._bpffs) not in Path("/proc/self/mountinfo").read_text()
        until("the programs are unloaded", lambda: not any(map(_program_exists, programs)))

    def _unmount(self) -> None:
        _call(f"unmount {self._bpffs}", _libc.umount2(os.fsencode(self._bpffs), _MNT_DETACH))

    # ---- tables ----

    def ev(self, host_id: int, number: int) -> Any:
        """The record of an EV, to be read and written."""
        return self.tables.evs[host_id, number : number + 1].reshape(())

    def rx(self, host_id: int, number: int) -> Any:
        """What has been received from a host by an EV: packets, bytes, CE marks."""
        r = self.tables.rxs[host_id, number]
        return int(r["packets"]), int(r["bytes"]), int(r["ce"])

    def peer(self, host_id: int) -> Any:
        """The record of a peer, to be read and written."""
        return self.tables.peers[host_id : host_id + 1].reshape(())

    def set_usable(self, host_id: int, number: int, usable: bool) -> None:
        """Let the spray use an EV, or not."""
        plane, slot = divmod(number, SLOTS)
        bits = int(self.tables.peers["usable"][host_id, plane, 0])
        bits = bits | 1 << slot if usable else bits & ~(1 << slot)
        self.tables.peers["usable"][host_id, plane, 0] = bits

    def drops(self) -> dict[str, int]:
        """Dropped packets by reason, without the zeros."""
        return {reason: n for reason, n in self.tables.drops().items() if n}

    def counted(self) -> bytes:
        """Everything that the programs write, to be compared with an earlier state."""
        return b"".join(self._table(name).tobytes() for name in ("evs", "rxs", "peers"))

    # ---- packets ----

    def path(self, peer: int, number: int, source: str = "h0") -> topology.EV:
        """An EV of some host's plan."""
        evs = next(p.evs for p in self._plans[source].peers if p.host.id == peer)
        return next(e for e in evs if e.ev == number)

    def sent(self, peer: int, number: int, payload: Packet, /, **mrc: Any) -> Packet:
        """What this host ought to send to a peer by an EV, as scapy builds it."""
        path = self.path(peer, number)
        return wire.outer(self.plan, path, payload, smac=nic_mac(path.plane), dmac=wire_mac(path.plane), mrc=mrc)

    def arriving(self, host: str, number: int, payload: Packet, /, *, vlan: int = 0, **mrc: Any) -> Packet:
        """What a host has sent to this one by an EV, as it leaves the last switch."""
        path = self.path(self.plan.host.id, number, host)
        frame = wire.outer(
            self._plans[host],
            path,
            payload,
            smac=wire_mac(path.plane),
            dmac=nic_mac(path.plane),
            vlan=vlan,
            mrc=mrc,
        )
        frame[IPv6].dst = str(self.plan.sids[path.plane])
        frame[IPv6].hlim = wire.HOP_LIMIT - 3
        if IPv6ExtHdrSegmentRouting in frame:
            frame[IPv6ExtHdrSegmentRouting].segleft = 0
        return frame

    # ---- programs ----

    def push(self, packet: Packet) -> tuple[Verdict, bytes]:
        """Run mrc_push on what the stack hands to mrc0: verdict and packet out."""
        frame = bytes(Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01") / packet)
        verdict, out = libbpf.run_program(self._program("mrc_push"), frame, room=1 << 13)
        return _TC[verdict], out

    def pop(self, hook: Hook, frame: Packet | bytes, plane: int = 0) -> tuple[Verdict, bytes]:
        """Run what is attached at a plane NIC: mrc_pop, with mrc_pop_xdp before it if the hook is XDP."""
        data, ifindex = bytes(frame), self.ifindex[f"n{plane}"]
        if hook == "xdp":
            verdict, data = self.pop_xdp(data, ifindex)
            if verdict == "drop" or len(data) < _TEST_RUN_MIN:
                return verdict, data
        ctx = struct.pack("40xI", ifindex)  # struct __sk_buff up to ifindex
        result, out = libbpf.run_program(self._program("mrc_pop"), data, ctx=ctx, room=1 << 13)
        return _TC[result], out

    def pop_xdp(self, frame: Packet | bytes, ifindex: int) -> tuple[Verdict, bytes]:
        """Run mrc_pop_xdp alone."""
        data = bytes(frame)
        ctx = struct.pack("IIIIII", 0, len(data), 0, ifindex, 0, 0)  # struct xdp_md
        result, out = libbpf.run_program(self._program("mrc_pop_xdp"), data, ctx=ctx, room=1 << 13)
        return _XDP[result], out

    def _program(self, name: str) -> int:
        return self.dataplane._programs[name]

    # ---- real packets ----

    def attach_push(self) -> Sender:
        """Attach mrc_push; what the sender returned sends is pushed."""
        self.dataplane.attach(Attachment("push-egress", "mrc_push", "m0", self.ifindex["m0"], "egress"))
        if self._stack is None:
            self._stack = Sender("m0")
            self._undo.callback(self._stack.close)
        return self._stack

    def attach_pop(self, plane: int, protocol: Protocol, xdp: Xdp | None = None) -> Tap:
        """Attach mrc_pop; the tap returned sends from the wire and sees what is popped or passed.

        What is attached stays until the bench is closed, so take one plane per kind of XDP.
        """
        name, other = f"{self._side}{plane}", f"{'w' if self._side == 'n' else 'n'}{plane}"
        self.dataplane.attach(Attachment(f"pop-{name}", "mrc_pop", name, self.ifindex[name], "ingress"))
        if xdp:
            self.dataplane.attach(Attachment(f"xdp-{name}", "mrc_pop_xdp", name, self.ifindex[name], xdp))
        return self._tap(name, other, _ETH_P_IP if protocol == "ipv4" else _ETH_P_IPV6)

    def wires(self) -> list[Tap]:
        """A tap at the far end of each plane NIC: what this host sends."""
        return [self._tap(f"w{p}", f"n{p}") for p in range(PLANES)]

    def _tap(self, interface: str, other_end: str, protocol: int = _ETH_P_ALL) -> Tap:
        """A tap without anything in it. Taps are kept: the kernel takes its time to close them."""
        tap = self._taps.get((interface, protocol))
        if tap is None:
            tap = self._taps[interface, protocol] = Tap(interface, other_end, protocol)
            self._undo.callback(tap.close)
        tap.frames()
        return tap


def _octets(mac: str) -> Any:
    return np.frombuffer(bytes.fromhex(mac.replace(":", "")), np.uint8)


def _program_id(fd: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))


def _program_exists(program_id: int) -> bool:
    fd: int = libbpf.lib().bpf_prog_get_fd_by_id(program_id)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:  # the process has ended
        return 0
