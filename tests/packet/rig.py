# SPDX-License-Identifier: BSD-2-Clause
"""Runs one host's data plane: packet in, packet, verdict and counters out.

    m0 ══ m0p              the overlay interface: packets sent on m0 are pushed
    m0b ══ m0bp            the timer packet circulates here, or popped packets are received
    n0 ══ w0, n1 ══ w1, …  the plane NICs and their far ends: the wire

Everything is in a network namespace without a name, and in a BPF file system below a temporary
directory. The programs run by BPF_PROG_TEST_RUN; for redirects, VLAN tags and bursts, which that cannot show,
they are attached, and real packets go through the veths.
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.packet import Packet

from labkit.traffic import wire
from mrcd.config import cluster_file
from mrcd.config.cluster_file import Config, Encapsulation, Granularity, fingerprint
from mrcd.daemon import write_tables
from mrcd.fabric import links, topology
from mrcd.kernel import abi, btf, enums, features, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, KernelHas
from mrcd.kernel.links import Attachment
from mrcd.kernel.pinned import Tables, prefix_key
from mrcd.kernel.settings import classes
from mrcd.net import hooks
from tests.cluster_files import dual
from tests.packet import clock
from tests.packet.packets import (
    ALL_PLANES,
    ETHERNET,
    EVS,
    H0,
    H1,
    H2,
    H5,
    PLANES,
    SLOTS,
    datagram,
    nic_mac,
    wire_mac,
)
from tests.packet.wires import ETH_P_ALL, ETH_P_IP, ETH_P_IPV6, Namespace, Sender, Tap, create_array, unmount, until


@dataclass(frozen=True)
class Setup:
    """A cluster to load the programs for.

    Encapsulation, width of a peer's table, T1s per plane, lines of [health], more lines, whether tests set the clock of
    the programs, granularity, and the source port: that of EVs can be predicted.
    """

    encapsulation: Encapsulation = "usid"
    health: str = ""
    evs: int = EVS
    t1s: int = SLOTS
    more: str = ""
    test_clock: bool = True
    granularity: Granularity = "burst"
    source_port: Literal["flow", "ev"] = "ev"

    @property
    def text(self) -> str:
        fabric = f"[cluster]\nplanes = {PLANES}\nt0s = 2\nt1s = {self.t1s}\nmtu = 1500\nevs_per_peer = {self.evs}\n"
        hosts = dual(H0, 0, 0) + dual(H1, 0, 1) + dual(H2, 1, 0) + dual(H5, 1, 1)
        fabric += f'encapsulation = "{self.encapsulation}"\ngranularity = "{self.granularity}"\n'
        more = self.more if "[overlay]\n" in self.more else f"[overlay]\n{self.more}"
        more = more.replace("[overlay]\n", f'[overlay]\nsource_port = "{self.source_port}"\n')
        return f"{fabric}{hosts}[health]\n{self.health}\n{more}"

    def plan(self, host: str = "h0") -> topology.Plan:
        return topology.plan(cluster_file.parse(self.text), host)


def setup_of(request: pytest.FixtureRequest) -> Setup:
    """Returns the set-up for a test, by its parameter: a Setup or an encapsulation."""
    param: Any = getattr(request, "param", "usid")
    return param if isinstance(param, Setup) else Setup(param)


# ---- the bench ----


Hook = Literal["tc", "xdp"]
Verdict = Literal["pass", "drop", "redirect"]
Xdp = Literal["xdp", "xdp-generic"]

_TC: dict[int, Verdict] = {0xFFFFFFFF: "pass", 2: "drop", 7: "redirect"}
_XDP: dict[int, Verdict] = {1: "drop", 2: "pass"}
POPPED = (0x706F7064, 0x706F7065)  # marks of a single packet and of a burst (bpf/deliver.h)
NEVER = 2**62
_TABLES = (
    *("evs", "path_stats", "rxs", "srhs", "peers", "auths", "replays", "copies"),
    *("reports", "watches", "clock", "planes", "links", "node"),
)
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


class BenchPlane(Dataplane):
    """The programs with settings that tests change, so that the verifier walks them once for all settings.

    Where the kernel lacks a feature that the programs use, the verifier must know the settings, as in production.
    """

    changeable = features.kernel_has() == KernelHas.KERN_CTX | KernelHas.DECAP_L3
    test_clock = True
    _peers = _settings_fd = 0

    def _settings(self, peers: int) -> NDArray[np.void]:
        value = super()._settings(peers)
        value["test_clock"] = self.test_clock
        return value

    def _write_settings(self, rodata: int, peers: int) -> None:
        if not self.changeable:
            super()._write_settings(rodata, peers)
            return
        value = self._settings(peers).tobytes()
        self._peers = peers
        self._settings_fd = create_array(len(value), 1)
        libbpf.update_elem(self._settings_fd, bytes(4), value)
        libbpf.reuse_map(rodata, self._settings_fd)

    def use(self, setup: Setup, plan: topology.Plan) -> None:
        self.plan, self.test_clock = plan, setup.test_clock
        libbpf.update_elem(self.map_fd("mrc_classes"), bytes(4), classes(plan).tobytes())
        self.write_health(plan)
        if self.changeable:
            libbpf.update_elem(self._settings_fd, bytes(4), self._settings(self._peers).tobytes())

    def close(self) -> None:
        super().close()
        if self._settings_fd:
            os.close(self._settings_fd)
            self._settings_fd = 0


class Bench:
    """Host h0 of a small cluster: tables filled as by mrcd, every path GOOD, no probes of its own.

    With `wired_to` another host at the far end of that bench's wires: w0, w1, … are its NICs.
    """

    setup: Setup
    config: Config
    plan: topology.Plan
    _plans: dict[str, topology.Plan]

    def __init__(
        self, directory: Path, setup: Setup | None = None, *, host: str = "h0", wired_to: "Bench | None" = None
    ) -> None:
        setup = setup or Setup()
        self._host, self._side = host, "w" if wired_to else "n"
        self._bpffs = directory
        self._taps: dict[tuple[str, int], Tap] = {}
        self._inlets: list[Tap] = []  # taps of NICs whose packets are popped in this test
        self._stack: Sender | None = None
        self._made: dict[Setup, dict[str, Any]] = {}  # plans, and tables at the start of a test
        self._far: Bench | None = None
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
            largest = Setup("srh", evs=256, t1s=64) if BenchPlane.changeable else setup
            self.dataplane = BenchPlane(largest.plan(host), directory)
            self.dataplane.test_clock = setup.test_clock
            undo.callback(self.dataplane.close)
            with self.namespace.inside():  # the programs are loaded in this namespace
                self.dataplane.load()
            undo.callback(clock.remove, clock.add(self.dataplane.map_fd(".data.clock")))
            self.dataplane.commit()
            self.tables = Tables(self.dataplane.pins, writable=True)
            undo.callback(self.tables.close)
            self._whole = {name: self._table(name) for name in _TABLES}
            undo.callback(self._whole.clear)
            self._blank = {name: table.copy() for name, table in self._whole.items()}
            self._undo = undo.pop_all()
        self.use(setup)

    def use(self, setup: Setup) -> Self:
        if setup not in self._made:
            config = cluster_file.parse(setup.text)
            plans = {h.name: topology.plan(config, h.name) for h in config.hosts}
            self._made[setup] = {"setup": setup, "config": config, "_plans": plans, "plan": plans[self._host]}
        for name, table in self._whole.items():
            setattr(self.tables, name, table)
        self.__dict__.update({k: v for k, v in self._made[setup].items() if k != "_pristine"})
        rows = len(self.tables.peers)
        for name in ("evs", "path_stats", "rxs"):
            setattr(self.tables, name, self._table(name).reshape(-1)[: rows * setup.evs].reshape(rows, -1))
        self.tables.srhs = self.tables.srhs[: rows * setup.evs if self.plan.needs_srh else 1]
        self.tables.links = self.tables.links[: links.table_size(setup.t1s)]
        with self.namespace.inside():
            self.dataplane.use(setup, self.plan)
        if "_pristine" not in self._made[setup]:
            for name, table in self._blank.items():
                self._whole[name][...] = table
            self._configure()
            self._made[setup]["_pristine"] = {name: self._table(name).copy() for name in _TABLES}
        self._pristine = self._made[setup]["_pristine"]
        return self

    def _interfaces(self) -> dict[str, int]:
        # Otherwise interfaces send packets of their own.
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
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
        self.tables.clock["active_ns"] = NEVER  # as if traffic flowed all the time
        write_tables.write_peers(self.tables, self.plan, self.dataplane.refresh)
        write_tables.write_links(self.tables, self.plan)
        self.tables.auths["status"] = 0  # as if the routes were written
        for peer in self.plan.peers:
            self.set_state(peer.host.id, EvState.GOOD, *(ev.ev for ev in peer.evs))

    def _table(self, name: str) -> Any:
        return getattr(self.tables, name)

    # ---- set-up and end ----

    def _clear(self, name: str) -> None:
        """Writes zeros into an array map."""
        shape = btf.map_shape(self.map_fd(name))
        _fill(self.map_fd(name), range(shape.entries), bytes(shape.value_size))

    def _drain(self, name: str) -> None:
        """Empties a queue."""
        value = ctypes.create_string_buffer(btf.map_shape(self.map_fd(name)).value_size)
        while not libbpf.lib().bpf_map_lookup_and_delete_elem(self.map_fd(name), None, value):
            pass

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Self]:
        """A block inside the namespace, on one CPU, with the tables in their initial state."""
        clock.begin()
        self._inlets.clear()
        cpus = os.sched_getaffinity(0)
        self._clear("mrc_idle_timers")  # cancels them first: those of an earlier test would write into the tables
        for name, table in self._pristine.items():
            self._table(name)[...] = table
        zero = bytes(libbpf.possible_cpus())
        self._fill("mrc_drops", range(len(enums.Drop)), zero * 8)
        self.set_rotations(PLANES)
        self._fill("mrc_histograms", np.flatnonzero(self.tables.histograms()).tolist(), zero * 8)
        changed = np.flatnonzero(self.tables.transitions()["count"]).tolist()
        self._fill("mrc_transitions", changed, zero * abi.CHANGES.itemsize)
        for name in ("mrc_paces", "mrc_acks", "mrc_t1_failures", "mrc_t0_verdicts", "mrc_paid", "mrc_sack_gaps"):
            self._clear(name)
        self._drain("mrc_idle_peers")
        self.events()
        self.dataplane.set_prefixes(write_tables.prefixes(self.plan))
        try:
            os.sched_setaffinity(0, {self.cpu})  # each CPU has a rotation of its own
            with self.namespace.inside():
                yield self
        finally:
            os.sched_setaffinity(0, cpus)

    def events(self) -> NDArray[np.void]:
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
        return self.dataplane.map_fd(name)

    def _fill(self, name: str, keys: Sequence[int], value: bytes) -> None:
        with libbpf.opened(self.dataplane.pins / name) as fd:
            _fill(fd, keys, value)

    def far_host(self) -> "Bench":
        """Returns host h2 at the far end of the wires."""
        if self._far is None:
            self._far = Bench(self._bpffs.with_name(f"{self._bpffs.name}-far"), self.setup, host="h2", wired_to=self)
        return self._far.use(self.setup)

    def detach(self) -> None:
        """Detaches all programs. clsact filters would stay as long as the interfaces, which another bench may own."""
        if self._far:
            self._far.detach()
        with self.namespace.inside():
            self.dataplane.detach_others(set())

    def close(self) -> None:
        """Removes everything, and asserts that nothing is left."""
        if self._far:
            self._far.close()
        programs = [_program_id(fd) for fd in self.dataplane.programs().values()]
        self.detach()
        self._undo.close()
        assert str(self._bpffs) not in Path("/proc/self/mountinfo").read_text()
        until("the programs are unloaded", lambda: not any(map(_program_exists, programs)))

    # ---- tables ----

    def ev(self, host_id: int, number: int) -> Any:
        return self.tables.evs[host_id, number : number + 1].reshape(())

    def path_stats(self, host_id: int, number: int) -> Any:
        return self.tables.path_stats[host_id, number : number + 1].reshape(())

    def rx(self, host_id: int, number: int) -> Any:
        """Returns what was received from a host on an EV: packets, bytes, CE marks."""
        r = self.tables.rxs[host_id, number]
        return int(r["packets"]), int(r["bytes"]), int(r["ce"])

    def peer(self, host_id: int) -> Any:
        return self.tables.peers[host_id : host_id + 1].reshape(())

    def reports(self, host_id: int) -> Any:
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
        self.set_state(host_id, EvState.GOOD if usable else EvState.DENIED, number)

    def usable(self, host_id: int) -> list[int]:
        words = self.tables.peers["usable"][host_id].tolist()
        return [ev for ev in range(EVS) if words[ev // 64] >> ev % 64 & 1]

    def drops(self) -> dict[str, int]:
        return {reason: n for reason, n in self.tables.drops().items() if n}

    def counted(self) -> bytes:
        """Returns all that the programs write, to compare with an earlier state."""
        names = ("evs", "path_stats", "rxs", "peers", "reports", "watches", "replays", "copies", "auths")
        return b"".join(self._table(name).tobytes() for name in names)

    # ---- packets ----

    def path(self, peer: int, number: int, source: str = "h0") -> topology.EV:
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
            self._plans[host], path, payload, smac=wire_mac(path.plane), dmac=nic_mac(path.plane), vlan=vlan, mrc=mrc
        )
        frame[IPv6].dst = str(self.plan.sids[path.plane])
        frame[IPv6].hlim = wire.HOP_LIMIT - 3
        if IPv6ExtHdrSegmentRouting in frame:
            frame[IPv6ExtHdrSegmentRouting].segleft = 0
        return frame

    # ---- programs ----

    def push(self, packet: Packet | bytes) -> tuple[Verdict, bytes]:
        """Runs mrc_push on a packet of the stack at mrc0, or on a frame. Returns verdict and packet."""
        frame = packet if isinstance(packet, bytes) else bytes(ETHERNET / packet)
        verdict, out = libbpf.run_program(self.dataplane.program("mrc_push"), frame, room=1 << 13)
        return _TC[verdict], out

    def spread(self, packets: int) -> list[int]:
        """Pushes packets to h2. Returns how many took each EV."""
        before, frame = self.tables.evs["tx_packets"][H2].copy(), bytes(ETHERNET / datagram(H0, H2, size=1))
        for _ in range(packets):
            assert self.push(frame)[0] == "redirect"
        return list((self.tables.evs["tx_packets"][H2] - before).tolist())

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
        interface, point = ("m0", "egress") if granularity == "burst" else ("m0p", "ingress")
        others = {p.name for p in (self.dataplane.pins / "links").iterdir() if not p.name.startswith("push")}
        self.dataplane.detach_others({f"push-{point}", *others})
        self._attach(f"push-{point}", "mrc_push", interface, point)
        if self._stack is None:
            self._stack = Sender("m0")
            self._undo.callback(self._stack.close)
        return self._stack

    def attach_push_twice(self) -> Sender:
        """Attaches mrc_push to both ends of m0, as mrcd does. The set-up's granularity says at which it pushes."""
        self.tables.node["overlay_ifindex"] = self.ifindex["m0"]
        stack = self.attach_push("packet")
        self._attach("push-egress", "mrc_push", "m0", "egress")
        return stack

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
        self.dataplane.attach(hooks.unsent_attachment())

    def attach_pop(self, plane: int, version: int, xdp: Xdp | None = None) -> Tap:
        """Attaches mrc_pop. Returns a tap that sends from the wire, and sees popped and passed packets of IPv4 or IPv6.

        Attached programs stay until the bench is closed, so use one plane per kind of XDP.
        """
        name, other = f"{self._side}{plane}", f"{'w' if self._side == 'n' else 'n'}{plane}"
        self._attach(f"pop-{name}", "mrc_pop", name, "ingress")
        if xdp:
            self._attach(f"xdp-{name}", "mrc_pop_xdp", name, xdp)
        tap = self.tap(name, other, ETH_P_IP if version == 4 else ETH_P_IPV6)
        self._inlets.append(tap)
        return tap

    def receive(self, version: int, *, merging: bool = False) -> Tap:
        """Makes m0b receive popped packets. Returns a tap that sees them."""
        macs = [self.namespace.json("link", "show", name)[0]["address"] for name in ("m0b", "m0bp")]
        self.tables.node["overlay_eth"] = [octet for mac in macs for octet in _octets(mac)]
        self.tables.node["merge_ifindex"] = self.ifindex["m0bp"] if merging else 0
        self.tables.node["overlay_ifindex"] = self.ifindex["m0b"]
        tap = self.tap("m0b", "m0bp", ETH_P_IP if version == 4 else ETH_P_IPV6)
        tap.inlets = self._inlets
        return tap

    def _attach(self, name: str, program: str, interface: str, point: Any) -> None:
        self.dataplane.attach(Attachment(name, program, interface, self.ifindex[interface], point))

    def wires(self) -> list[Tap]:
        """Returns a tap at the far end of each plane NIC: it sees the packets of this host."""
        taps = [self.tap(f"w{p}", f"n{p}") for p in range(PLANES)]
        for tap in taps:
            tap.inlets = self._inlets  # what comes in there is answered first
        return taps

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


# ---- packets from the fabric ----


def untouched(bench: Bench, frame: Packet | bytes, plane: int = 0, hook: Hook = "tc") -> None:
    """Asserts that the packet passes unchanged, and that nothing is counted."""
    drops, before = bench.drops(), bench.counted()
    assert bench.pop(hook, frame, plane) == ("pass", bytes(frame))
    assert (bench.drops(), bench.counted() == before) == (drops, True)


def dropped(
    bench: Bench, frame: Packet | bytes, reason: str, plane: int = 0, hook: Hook = "tc", *, counts: bool = False
) -> None:
    """Asserts that the packet is dropped with exactly this reason, and nothing else changes, unless it `counts`."""
    drops, before = bench.drops(), bench.counted()
    assert bench.pop(hook, frame, plane)[0] == "drop"
    assert bench.drops() == {**drops, reason: drops.get(reason, 0) + 1}
    assert counts or bench.counted() == before
