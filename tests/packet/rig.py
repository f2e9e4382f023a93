# SPDX-License-Identifier: BSD-2-Clause
"""Runs one host's data plane: packet in, packet, verdict and counters out.

    m0 ══ m0p              the overlay interface: packets sent on m0 are pushed
    m0b ══ m0bp            the timer packet circulates here, or popped packets are received
    n0 ══ w0, n1 ══ w1, …  the plane NICs and their far ends: the wire

Everything is in a network namespace without a name, and in a BPF file system below a temporary
directory. The programs run by BPF_PROG_TEST_RUN; for redirects, VLAN tags and bursts, which that cannot show,
they are attached, and real packets go through the veths. One class holds it all, in about 320 lines, because every
part uses the same tables, namespace and programs.
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from mrcd.config import cluster_file
from mrcd.config.cluster_file import Granularity, fingerprint
from mrcd.daemon import write_tables
from mrcd.fabric import topology, wire
from mrcd.kernel import abi, enums, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState
from mrcd.kernel.links import Attachment
from mrcd.kernel.pinned import Tables, prefix_key
from mrcd.net import hooks
from tests.packet import clock
from tests.packet.cluster import ALL_PLANES, EVS, PLANES, Setup, nic_mac, wire_mac
from tests.packet.wires import ETH_P_ALL, ETH_P_IP, ETH_P_IPV6, Namespace, Sender, Tap, unmount, until

ACKS = 4096  # entries of mrc_acks (bpf/mrc_state.h)

Hook = Literal["tc", "xdp"]
Verdict = Literal["pass", "drop", "redirect"]
Protocol = Literal["ipv4", "ipv6"]
Xdp = Literal["xdp", "xdp-generic"]

_TC: dict[int, Verdict] = {0xFFFFFFFF: "pass", 2: "drop", 7: "redirect"}
_XDP: dict[int, Verdict] = {1: "drop", 2: "pass"}
POPPED = (0x706F7064, 0x706F7065)  # marks of a single packet and of a burst (bpf/deliver.h)
NEVER = 2**62
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_TEST_RUN_MIN = 54  # BPF_PROG_TEST_RUN refuses an IPv6 skb shorter than Ethernet and IPv6 headers


def _fill(fd: int, keys: Sequence[int], value: bytes) -> None:
    """Writes the same value to these keys of an array map, by one call."""
    count = ctypes.c_uint32(len(keys))
    if keys:
        packed = struct.pack(f"{len(keys)}I", *keys)
        write = libbpf.lib().bpf_map_update_batch
        libbpf.check("fill a map", write(fd, packed, value * len(keys), ctypes.byref(count), None))
        assert count.value == len(keys)


class Bench:
    """Host h0 of a small cluster: tables filled as by mrcd, every path GOOD, no probes of its own.

    With `wired_to` another host at the far end of that bench's wires: w0, w1, … are its NICs.
    """

    def __init__(
        self, directory: Path, setup: Setup | None = None, *, host: str = "h0", wired_to: "Bench | None" = None
    ) -> None:
        self.setup = setup or Setup()
        self.config = cluster_file.parse(self.setup.text)
        self.plan = topology.plan(self.config, host)
        self._plans = {h.name: topology.plan(self.config, h.name) for h in self.config.hosts}
        self._side = "w" if wired_to else "n"
        self._bpffs = directory
        self._taps: dict[tuple[str, int], Tap] = {}
        self._stack: Sender | None = None
        cpus = sorted(os.sched_getaffinity(0))
        self.cpu = cpus[_WORKER % len(cpus)]
        with contextlib.ExitStack() as undo:
            self.namespace: Namespace = wired_to.namespace if wired_to else Namespace()
            if wired_to:
                self.ifindex: dict[str, int] = wired_to.ifindex
            else:
                undo.callback(self.namespace.close)
                with self.namespace.inside():
                    self.ifindex = self._interfaces()
            undo.callback(unmount, directory)
            self.dataplane = Dataplane(self.plan, directory)
            self.dataplane.test_clock = self.setup.test_clock
            undo.callback(self.dataplane.close)
            with self.namespace.inside():  # the programs are loaded in this namespace
                self.dataplane.load()
            undo.callback(clock.remove, clock.add(self.dataplane.map_fd(".data.clock")))
            self.dataplane.commit()
            self.tables = Tables(self.dataplane.pins, writable=True)
            undo.callback(self.tables.close)
            self._configure()
            self._undo = undo.pop_all()
        names = ["evs", "path_stats", "rxs", "srhs", "peers", "auths", "replays", "reports"]
        names += ["watches", "clock", "planes", "links", "node"]
        self._pristine = {name: self._table(name).copy() for name in names}

    def _interfaces(self) -> dict[str, int]:
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text(
            "1"
        )  # otherwise interfaces send packets of their own
        lines = ["link add m0 type veth peer name m0p", "link add m0b type veth peer name m0bp"]
        for p in range(PLANES):
            lines.append(f"link add n{p} address {nic_mac(p)} type veth peer name w{p} address {wire_mac(p)}")
        names = ["m0", "m0p", "m0b", "m0bp", *(f"{side}{p}" for p in range(PLANES) for side in "nw")]
        lines += [f"link set {name} up" for name in names]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        return {name: index for index, name in socket.if_nameindex()}

    def _configure(self) -> None:
        for p in range(PLANES):
            plane = self.tables.planes[p : p + 1].reshape(())
            plane["ifindex"] = self.ifindex[f"{self._side}{p}"]
            ends = [_octets(nic_mac(p)), _octets(wire_mac(p))]
            plane["smac"], plane["dmac"] = ends if self._side == "n" else ends[::-1]
            plane["address"] = np.frombuffer(self.plan.addresses[p].packed, np.uint8)
            plane["sid"] = np.frombuffer(self.plan.sids[p].packed, np.uint8)
        self.tables.node["plane_mask"] = ALL_PLANES
        self.tables.node["ticked_ns"] = NEVER  # as if a daemon ran the tick, so the timer packet does not
        self.tables.clock["budget"] = 10**9
        write_tables.write_peers(self.tables, self.plan, self.dataplane.refresh)
        write_tables.write_links(self.tables, self.plan)
        self.tables.auths["status"] = 0  # as if the routes were written
        for peer in self.plan.peers:
            self.set_state(peer.host.id, EvState.GOOD, *(ev.ev for ev in peer.evs))

    def _table(self, name: str) -> Any:
        return getattr(self.tables, name)

    # ---- set-up and end ----

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Self]:
        """A block inside the namespace, on one CPU, with the tables in their initial state."""
        clock.begin()
        cpus = os.sched_getaffinity(0)
        for name, table in self._pristine.items():
            self._table(name)[...] = table
        zero = bytes(libbpf.possible_cpus())
        self._fill("mrc_drops", range(len(enums.Drop)), zero * 8)
        self.set_rotations(PLANES)
        self._fill("mrc_histograms", np.flatnonzero(self.tables.histograms()).tolist(), zero * 8)
        changed = np.flatnonzero(self.tables.transitions()["count"]).tolist()
        self._fill("mrc_transitions", changed, zero * abi.CHANGES.itemsize)
        sizes = {"mrc_paces": (len(self.tables.peers), abi.PACE.itemsize), "mrc_acks": (ACKS, 8)}
        sizes |= {
            "mrc_t1_failures": (8, 56),
            "mrc_t0_verdicts": (2048, 24),
            "mrc_paid": (1, 4),
            "mrc_sack_gaps": (4096, 16),
        }
        for name, (entries, size) in sizes.items():
            _fill(self.map_fd(name), range(entries), bytes(size))
        self.events()
        self.dataplane.set_prefixes(write_tables.prefixes(self.plan))
        try:
            os.sched_setaffinity(0, {self.cpu})  # each CPU has a rotation of its own
            with self.namespace.inside():
                yield self
        finally:
            os.sched_setaffinity(0, cpus)

    def events(self) -> NDArray[np.void]:
        """Returns all events since the last call; the daemon's function returns some at a time."""
        parts = [self.dataplane.events()]
        while len(parts[-1]):
            parts.append(self.dataplane.events())
        return np.concatenate(parts)

    def set_rotations(self, plane: int) -> None:
        """Makes every peer's next packet start after this plane, with slot 0; 0: as before the first packet."""
        rotations = np.zeros(libbpf.possible_cpus(), abi.ROTATION)
        rotations["plane"] = plane
        self._fill("mrc_rotations", range(len(self.tables.peers)), rotations.tobytes())

    def map_fd(self, name: str) -> int:
        """Returns the descriptor of a map of the loaded object, pinned or not."""
        return self.dataplane.map_fd(name)

    def _fill(self, name: str, keys: Sequence[int], value: bytes) -> None:
        with libbpf.opened(self.dataplane.pins / name) as fd:
            _fill(fd, keys, value)

    def detach(self) -> None:
        """Detaches all programs. clsact filters would stay as long as the interfaces, which another bench may own."""
        with self.namespace.inside():
            self.dataplane.detach_others(set())

    def close(self) -> None:
        """Removes everything, and asserts that nothing is left."""
        programs = [_program_id(fd) for fd in self.dataplane.programs().values()]
        self.detach()
        self._undo.close()
        assert str(self._bpffs) not in Path("/proc/self/mountinfo").read_text()
        until("the programs are unloaded", lambda: not any(map(_program_exists, programs)))

    # ---- tables ----

    def ev(self, host_id: int, number: int) -> Any:
        """Returns the record of an EV, readable and writable."""
        return self.tables.evs[host_id, number : number + 1].reshape(())

    def path_stats(self, host_id: int, number: int) -> Any:
        """Returns the path statistics of an EV, readable and writable."""
        return self.tables.path_stats[host_id, number : number + 1].reshape(())

    def rx(self, host_id: int, number: int) -> Any:
        """Returns what was received from a host on an EV: packets, bytes, CE marks."""
        r = self.tables.rxs[host_id, number]
        return int(r["packets"]), int(r["bytes"]), int(r["ce"])

    def peer(self, host_id: int) -> Any:
        """Returns the record of a peer, readable and writable."""
        return self.tables.peers[host_id : host_id + 1].reshape(())

    def reports(self, host_id: int) -> Any:
        """Returns the report state of a peer, readable and writable."""
        return self.tables.reports[host_id : host_id + 1].reshape(())

    def pace(self, host_id: int, **values: Any) -> Any:
        """Writes `values`, and returns a copy of the packets in flight to a peer by plane (abi.PACE)."""
        fd, key = self.map_fd("mrc_paces"), struct.pack("I", host_id)
        record = np.frombuffer(libbpf.lookup_elem(fd, key, abi.PACE.itemsize) or b"", abi.PACE).copy()
        for name, value in values.items():
            record[name] = value
        libbpf.update_elem(fd, key, record.tobytes())
        return record[0]

    def set_state(self, host_id: int, state: EvState, *numbers: int) -> None:
        """Puts EVs in a state, without an event."""
        self.tables.evs["state"][host_id, list(numbers)] = state
        self.dataplane.refresh(host_id)

    def set_usable(self, host_id: int, number: int, usable: bool) -> None:
        """Makes an EV usable for the spray, or not."""
        self.set_state(host_id, EvState.GOOD if usable else EvState.DENIED, number)

    def usable(self, host_id: int) -> list[int]:
        """Returns the EVs that the spray may use."""
        words = self.tables.peers["usable"][host_id].tolist()
        return [ev for ev in range(EVS) if words[ev // 64] >> ev % 64 & 1]

    def drops(self) -> dict[str, int]:
        """Returns dropped packets by reason, without zeros."""
        return {reason: n for reason, n in self.tables.drops().items() if n}

    def counted(self) -> bytes:
        """Returns all that the programs write, to compare with an earlier state."""
        return b"".join(self._table(name).tobytes() for name in ("evs", "path_stats", "rxs", "peers", "reports"))

    # ---- packets ----

    def path(self, peer: int, number: int, source: str = "h0") -> topology.EV:
        """Returns an EV of a host's plan."""
        evs = next(p.evs for p in self._plans[source].peers if p.host.id == peer)
        return next(e for e in evs if e.ev == number)

    def told(self) -> dict[str, int]:
        """Returns the fields that every probe of this host has."""
        fields = {name: int(self.tables.node[name]) for name in ("plane_mask", "status", "generation")}
        return fields | {"fingerprint": fingerprint(self.config.cluster)}

    def sent(self, peer: int, number: int, payload: Packet, /, **mrc: Any) -> Packet:
        """Returns the packet that this host should send to a peer on an EV, as scapy builds it."""
        path = self.path(peer, number)
        return wire.outer(self.plan, path, payload, smac=nic_mac(path.plane), dmac=wire_mac(path.plane), mrc=mrc)

    def arriving(self, host: str, number: int, payload: Packet, /, *, vlan: int = 0, **mrc: Any) -> Packet:
        """Returns a packet of a host to this one on an EV, as it leaves the last switch."""
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
        """Runs mrc_push on a packet of the stack at mrc0. Returns verdict and packet."""
        frame = bytes(Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01") / packet)
        verdict, out = libbpf.run_program(self.dataplane.program("mrc_push"), frame, room=1 << 13)
        return _TC[verdict], out

    def pop(self, hook: Hook, frame: Packet | bytes, plane: int = 0) -> tuple[Verdict, bytes]:
        """Runs what is attached at a plane NIC: mrc_pop, after mrc_pop_xdp if the hook is XDP."""
        data, ifindex = bytes(frame), self.ifindex[f"n{plane}"]
        if hook == "xdp":
            verdict, data = self.pop_xdp(data, ifindex)
            if verdict == "drop" or len(data) < _TEST_RUN_MIN:
                return verdict, data
        ctx = struct.pack("40xI", ifindex)  # struct __sk_buff up to ifindex
        result, out = libbpf.run_program(self.dataplane.program("mrc_pop"), data, ctx=ctx, room=1 << 13)
        return _TC[result], out

    def pop_xdp(self, frame: Packet | bytes, ifindex: int) -> tuple[Verdict, bytes]:
        """Runs mrc_pop_xdp alone. Returns the packet without the mark of a popped one."""
        data = bytes(frame)
        ctx = struct.pack("IIIIII", 0, len(data), 0, ifindex, 0, 0)  # struct xdp_md
        result, out = libbpf.run_program(self.dataplane.program("mrc_pop_xdp"), data, ctx=ctx, room=1 << 13)
        for mark in POPPED:
            out = out.removeprefix(struct.pack("I", mark))
        return _XDP[result], out

    # ---- real packets ----

    def attach_push(self, granularity: Granularity = "burst") -> Sender:
        """Attaches mrc_push; packets of the returned sender are pushed."""
        interface, point = ("m0", "egress") if granularity == "burst" else ("m0p", "ingress")
        others = {p.name for p in (self.dataplane.pins / "links").iterdir() if not p.name.startswith("push")}
        self.dataplane.detach_others({f"push-{point}", *others})
        self._attach(f"push-{point}", "mrc_push", interface, point)
        if self._stack is None:
            self._stack = Sender("m0")
            self._undo.callback(self._stack.close)
        return self._stack

    def attach_probe(self) -> None:
        """Attaches mrc_probe: packets that are pushed then carry requests."""
        self._attach("probe-egress", "mrc_probe", "m0p", "egress")
        self.tables.node["probe_ifindex"] = self.ifindex["m0p"]

    def attach_timer(self) -> Tap:
        """Attaches mrc_timer, behind mrc_probe. Returns a tap that sees the timer packet."""
        self.attach_probe()
        self._attach("timer-ingress", "mrc_timer", "m0b", "ingress")
        self.tables.node["timer_ifindex"] = self.ifindex["m0bp"]
        return self.tap("m0b", "m0bp")

    def attach_unsent(self) -> None:
        """Attaches mrc_unsent."""
        self.dataplane.attach(hooks.unsent_attachment())

    def attach_pop(self, plane: int, protocol: Protocol, xdp: Xdp | None = None) -> Tap:
        """Attaches mrc_pop. Returns a tap that sends from the wire, and sees popped and passed packets.

        Attached programs stay until the bench is closed, so use one plane per kind of XDP.
        """
        name, other = f"{self._side}{plane}", f"{'w' if self._side == 'n' else 'n'}{plane}"
        self._attach(f"pop-{name}", "mrc_pop", name, "ingress")
        if xdp:
            self._attach(f"xdp-{name}", "mrc_pop_xdp", name, xdp)
        return self.tap(name, other, ETH_P_IP if protocol == "ipv4" else ETH_P_IPV6)

    def receive(self, protocol: Protocol, *, merging: bool = False) -> Tap:
        """Makes m0b receive popped packets. Returns a tap that sees them."""
        macs = [self.namespace.json("link", "show", name)[0]["address"] for name in ("m0b", "m0bp")]
        self.tables.node["overlay_eth"] = [octet for mac in macs for octet in _octets(mac)]
        self.tables.node["merge_ifindex"] = self.ifindex["m0bp"] if merging else 0
        self.tables.node["overlay_ifindex"] = self.ifindex["m0b"]
        return self.tap("m0b", "m0bp", ETH_P_IP if protocol == "ipv4" else ETH_P_IPV6)

    def _attach(self, name: str, program: str, interface: str, point: Any) -> None:
        self.dataplane.attach(Attachment(name, program, interface, self.ifindex[interface], point))

    def wires(self) -> list[Tap]:
        """Returns a tap at the far end of each plane NIC: it sees the packets of this host."""
        return [self.tap(f"w{p}", f"n{p}") for p in range(PLANES)]

    def tap(self, interface: str, other_end: str, protocol: int = ETH_P_ALL) -> Tap:
        """Returns an empty tap. Taps are kept, because closing them takes the kernel long."""
        tap = self._taps.get((interface, protocol))
        if tap is None:
            tap = self._taps[interface, protocol] = Tap(interface, other_end, protocol)
            self._undo.callback(tap.close)
        tap.frames()
        return tap


def give_prefixes(bench: Bench, more: dict[str, int]) -> None:
    """Gives hosts prefixes besides those of the cluster file: prefix → host id. They last until the test ends."""
    networks = {ipaddress.ip_network(text): host_id for text, host_id in more.items()}
    keys = {prefix_key(n.network_address.packed, n.prefixlen): host_id for n, host_id in networks.items()}
    bench.dataplane.set_prefixes(write_tables.prefixes(bench.plan) | keys)


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
