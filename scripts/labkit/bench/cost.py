# SPDX-License-Identifier: BSD-2-Clause
"""Measures the time of a packet in each program: the kernel's run-time statistics, helper calls, program sizes.

The overhead of the statistics is the time of an empty program, which is attached in front for the same packets.

Cases: one peer; a full table with packets to one peer; and the same with packets to all peers in random order, so that
most table entries miss the CPU's caches; fewer peers at a time, or bursts of a flow, as in clusters. The windows of the
cases alternate. For each packet to all peers a program looks up one EV of the full table and waits for it, once always
the same EV and once a random one: one wait for memory, measured in place.

mrc_push gets packets of UDP sockets, mrc_pop gets frames sent to a NIC. In a further case one TCP flow runs between
two hosts without switches, with and without probes.

Helper calls are counted by build/counted.bpf.o, built from the same source with every call of a helper counted in a
global variable (counted.h). No tool outside can count them.
"""

import contextlib
import ctypes as ct
import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from labkit import plot
from labkit.bench import bare_host, candidates, packet_sender
from labkit.bench.bare_host import BareHost
from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.bench.probing import Probing
from labkit.bench.statistics import compare
from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import namespace
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import progstats
from labkit.places import REPOSITORY
from labkit.traffic.flow import Flow
from mrcd.config.cluster_file import Encapsulation
from mrcd.errors import MachineError
from mrcd.kernel import abi, libbpf

HOSTS = 4096  # × 256 EVs: the full table
PEER = 1
WINDOWS = 9
PACKETS = 30_000  # packets of a window
WARM = 10_000
SIZE = 1400  # bytes of an inner packet
AT_MOST = 1.3  # most cost of mrc_push at the full table, as a ratio to one peer
COUNTED_PACKETS = 4096  # packets whose calls are counted
FLOW_WINDOWS = 12
FLOW_WINDOW_S = 0.25
_SETTLE_S = 0.1
SETS = (16, 64, 256, 1024)  # peers
RUN = 16  # packets to a peer before those to the next peer, as in a flow's bursts
FULL = "full table"
ONE, ONE_OF_ALL, ALL = "one peer", f"{FULL}, one peer", f"{FULL}, all peers"
BUSY_ONES = f"{FULL}, 256 peers"  # each packet to another peer, as scale's busy host sends
SAME_EV, ANY_EV = "the same EV", "an EV at random"  # cases of the program that looks up one EV
OBJECT = REPOSITORY / "build/counted.bpf.o"
# In the order of counted.h.
COUNTED = ("times", "stores", "loads", "adjusts", "clones", "redirects", "pulls", "loops", "hashes")
_SIZED = ("mrc_push", "mrc_pop", "mrc_pop_xdp", "mrc_probe", "mrc_timer", "mrc_sweep", "mrc_set_states", "mrc_tick")
_LINKS = (("push", "mrc_push"), ("pop", "mrc_pop"), ("probe", "mrc_probe"))
_SCHED_CLS = 3  # enum bpf_prog_type
_LOOK_UP, _TIME, _RANDOM = 1, 5, 7  # enum bpf_func_id
_PSEUDO_MAP_FD = 1  # source register of a 64-bit load of a map

Costs = dict[tuple[str, str], list[float]]  # by program and case: ns of each round


@dataclass(frozen=True)
class Case:
    """One way of calling a program. `send` sends packets that it sees."""

    program: str
    name: str
    bare: BareHost
    interface: str
    point: int
    send: Callable[[int], object]
    before: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """A block in which the program is attached where the packets pass."""
        self.before()
        flags = libbpf.XDP_FLAGS_DRV_MODE if self.point == libbpf.XDP else 0
        with self.bare.attached(self.program, self.interface, self.point, flags):
            yield


def measure(lab: Lab, options: Options) -> Result:
    """Measures first without daemons, then a flow in a lab."""
    if not OBJECT.exists():
        raise MachineError(f"{OBJECT} is missing: the programs that count their calls", hint="make build")
    with contextlib.ExitStack() as stack:
        progress(f"cost: tables for 2 and for {HOSTS} hosts of {bare_host.EVS} EVs")
        one, full = _bare(stack, lab, "h200", 2, "usid"), _bare(stack, lab, "h201", HOSTS, "usid")
        cases = _cases(stack, one, full, _bare(stack, lab, "h202", 2, "srh"))
        waits = _waits(stack, full)
        with progstats.counting():
            costs, overheads = _windows(cases + waits, options.pairs or WINDOWS)
        sizes = [progstats.size(one.program(name))._asdict() for name in _SIZED]
    with contextlib.ExitStack() as stack:
        progress("cost: calls of helpers, counted")
    called = _calls(stack, _bare(stack, lab, "h210", 2, "usid", OBJECT), _bare(stack, lab, "h211", 2, "srh", OBJECT))
    flow = _flow(lab, median(overheads))
    return _result(costs, median(overheads), called, sizes, flow)


def _bare(
    stack: contextlib.ExitStack,
    lab: Lab,
    node: str,
    hosts: int,
    encapsulation: Encapsulation,
    program: Path | None = None,
) -> BareHost:
    made = BareHost(namespace(lab.state.name, node), hosts, encapsulation, program)
    stack.callback(made.close)
    return made


def _cases(stack: contextlib.ExitStack, one: BareHost, full: BareHost, srh: BareHost) -> list[Case]:
    everyone = random.Random(0).sample(range(1, HOSTS), HOSTS - 1)
    found = []
    for b, name, version, peers in (
        (one, ONE, 4, [PEER]),
        (full, ONE_OF_ALL, 4, [PEER]),
        *((full, f"{FULL}, {n} peers", 4, _among(everyone, n)) for n in SETS),
        (full, ALL, 4, everyone),
        (full, f"{ALL}, runs of {RUN}", 4, [p for p in everyone for _ in range(RUN)]),
        (one, "IPv6", 6, [PEER]),
        (srh, "SRH", 4, [PEER]),
        (one, "VLAN", 4, [PEER]),
    ):
        before = _vlan(b, name == "VLAN")
        found.append(Case("mrc_push", name, b, "m0", libbpf.TCX_EGRESS, _udp(stack, b, version, peers), before))
    at_random = random.Random(1).choices(range(1, HOSTS), k=4 * HOSTS)
    tc, xdp = ("mrc_pop", libbpf.TCX_INGRESS), ("mrc_pop_xdp", libbpf.XDP)
    for (program, point), (b, name, version, peers) in itertools.product(
        (tc, xdp),
        (
            (one, ONE, 4, [PEER]),
            (full, ONE_OF_ALL, 4, [PEER]),
            (full, ALL, 4, at_random),
            (one, "IPv6", 6, [PEER]),
            (srh, "SRH", 4, [PEER]),
            (one, "VLAN", 4, [PEER]),
            (one, "CE", 4, [PEER]),
        ),
    ):
        before = _vlan(b, name == "VLAN")
        send = _frames(stack, b, version, peers, vlan=name == "VLAN", ce=name == "CE")
        found.append(Case(program, name, b, "n0", point, send, before))
    return found


def _waits(stack: contextlib.ExitStack, full: BareHost) -> list[Case]:
    """Returns cases that look up one EV each, at mrc0 while packets go to all peers."""
    evs = libbpf.get(full.dataplane.pins / "mrc_evs")
    stack.callback(os.close, evs)
    send = _udp(stack, full, 4, random.Random(0).sample(range(1, HOSTS), HOSTS - 1))
    for name in (SAME_EV, ANY_EV):
        full.others[name] = _load_look_up(evs, HOSTS * bare_host.EVS, anywhere=name == ANY_EV)
        stack.callback(os.close, full.others[name])
    return [Case(name, ALL, full, "m0", libbpf.TCX_EGRESS, send) for name in (SAME_EV, ANY_EV)]


def _vlan(b: BareHost, tagged: bool) -> Callable[[], None]:
    return lambda: b.set_vlan(tagged)


def _udp(stack: contextlib.ExitStack, b: BareHost, version: int, peers: list[int]) -> Callable[[int], object]:
    headers = 28 if version == 4 else 48
    # To one host as many addresses as to all hosts, so that the sockets cost the same.
    targets = [bare_host.address(p, version) for p in (peers if len(peers) > 1 else peers * packet_sender.BATCH)]
    with netns.inside(b.namespace):
        out = packet_sender.udp(bare_host.address(0, version), targets, SIZE - headers)
    stack.callback(out.close)
    return out.send


def _frames(
    stack: contextlib.ExitStack, b: BareHost, version: int, senders: list[int], *, vlan: bool, ce: bool
) -> Callable[[int], object]:
    """Returns a sender of frames of these hosts, on the EVs of plane 0: in turn (one host) or at random."""
    template = b.frame(version, SIZE, vlan=vlan, ce=ce)
    chance = random.Random(2)
    if len(senders) == 1:
        ends = [(senders[0], i % bare_host.SLOTS) for i in range(packet_sender.BATCH)]
    else:
        ends = [(s, chance.randrange(bare_host.SLOTS)) for s in senders]
    with netns.inside(b.namespace):
        out = packet_sender.frames("w0", b.sent_by(template, ends))
    stack.callback(out.close)
    return out.send


def _windows(cases: list[Case], rounds: int) -> tuple[Costs, list[float]]:
    """Returns the ns per run of each case by round, without the statistics' overhead, and that overhead."""
    found: Costs = {(c.program, c.name): [] for c in cases}
    overheads = [1.0]
    for number in range(rounds):
        progress(f"cost: round {number + 1} of {rounds}")
        for c in cases if number % 2 == 0 else reversed(cases):
            program = c.bare.program(c.program)
            with c.attached():
                c.send(WARM)
                before, empty = progstats.runs(program), progstats.runs(c.bare.empty)
                drops = c.bare.tables.drops()
                c.send(PACKETS)
                taken = progstats.runs(program).since(before)
                nothing = progstats.runs(c.bare.empty).since(empty)
            if taken.number < PACKETS:
                raise MachineError(
                    f"{c.program}, {c.name}: {PACKETS} packets were sent, but it ran {taken.number} times",
                    hint="does something else change interfaces or routes of new network namespaces?",
                )
            if lost := {r: n - drops[r] for r, n in c.bare.tables.drops().items() if n > drops[r]}:
                raise MachineError(
                    f"{c.program}, {c.name}: mrcd dropped packets: {lost}", hint="docs/troubleshooting.md"
                )
            overheads += [nothing.mean_ns] if nothing.mean_ns is not None else []
            found[c.program, c.name].append((taken.mean_ns or 0) - (nothing.mean_ns or median(overheads)))
    return found, overheads[1:]


def _calls(stack: contextlib.ExitStack, one: BareHost, srh: BareHost) -> list[Document]:
    """Returns the counted calls per packet of each case with one peer."""
    found = []
    for c in _cases(stack, one, one, srh):
        if c.name.startswith(FULL):
            continue
        with c.attached():
            c.send(packet_sender.BATCH)
            counts = _per_packet(c)
        found.append({"program": c.program, "case": c.name, **counts})
    return found


def _flow(lab: Lab, overhead_ns: float) -> list[Document]:
    """Measures the programs' time under one TCP flow between two hosts back to back, in burst granularity.

    Windows with and without piggybacked probes alternate.
    """
    lab.up(direct=True, mtu=1500)
    observe.wait_until_good(lab, lab.fabric.hosts)
    source, target = candidates.pair(lab)
    with contextlib.ExitStack() as stack:
        programs = {}
        for host in (source, target):
            links = observe.pins(lab, host) / "links"
            for kind, name in _LINKS:
                programs[host, name] = [
                    stack.enter_context(progstats.linked(p)) for p in sorted(links.iterdir()) if p.name.startswith(kind)
                ]
        probing = stack.enter_context(Probing(lab, source, target))
        flow = stack.enter_context(Flow(lab, candidates.overlay(lab, 6)))
        stack.enter_context(progstats.counting())
        flow.poll(0.5)
        windows: list[tuple[bool, dict[tuple[str, str], progstats.Runs]]] = []
        for number in range(FLOW_WINDOWS):
            on = (number + 1) // 2 % 2 == 0
            probing.switch(on)
            flow.poll(_SETTLE_S)
            before = _read(programs)
            flow.poll(FLOW_WINDOW_S)
            windows.append((on, {k: r.since(before[k]) for k, r in _read(programs).items()}))
        flow.finish()
    rows = []
    for (host, name), on in itertools.product(programs, (True, False)):
        mine = [w[host, name] for p, w in windows if p is on]
        times = [r.mean_ns - overhead_ns for r in mine if r.mean_ns is not None]
        rows.append(
            {
                "program": name,
                "host": host,
                "which": "sends data" if host == source else "sends acknowledgements",
                "probes": "on" if on else "off",
                "runs_per_s": median(r.number / FLOW_WINDOW_S for r in mine),
                "median_ns": median(times) if times else None,
            }
        )
    return rows


def _read(programs: dict[tuple[str, str], list[int]]) -> dict[tuple[str, str], progstats.Runs]:
    """Returns the runs of each program; a program attached to several NICs is counted once."""
    return {key: progstats.runs(found[0]) for key, found in programs.items()}


def _among(everyone: Sequence[int], peers: int) -> list[int]:
    """Returns `peers` peers in random order, repeatedly in new orders, one packet each."""
    chance = random.Random(peers)
    some = chance.sample(list(everyone), peers)
    return [p for _ in range(-(-4 * packet_sender.BATCH // peers)) for p in chance.sample(some, peers)]


def _load_look_up(evs: int, entries: int, *, anywhere: bool) -> int:
    """Loads a tc program that waits for the state of one EV of a table: a random one, or always the first.

    `evs` is the table's descriptor; `entries`, a power of two, is its size. The caller closes the descriptor.
    Raises KernelError.
    """
    code = [
        _instruction(0x85, immediate=_RANDOM),  # r0 = random
        _instruction(0x57, 0, immediate=entries - 1 if anywhere else 0),  # r0 &= …
        _instruction(0x63, 10, 0, -4),  # the key = r0
        _instruction(0x18, 1, _PSEUDO_MAP_FD, immediate=evs),  # r1 = the table
        _instruction(0),  # its other half
        _instruction(0xBF, 2, 10),  # r2 = r10
        _instruction(0x07, 2, immediate=-4),  # r2 = &key
        _instruction(0x85, immediate=_LOOK_UP),
        _instruction(0x15, 0, offset=2),  # no entry: go to the end
        _instruction(0x61, 1, 0, abi.EV.fields["state"][1]),  # type: ignore[index]
        _instruction(0x85, immediate=_TIME),  # a CPU reads its clock only after all earlier loads
        _instruction(0xB7, 0, immediate=-1),  # r0 = TC_ACT_UNSPEC: continue with the next program
        _instruction(0x95),
    ]
    made = libbpf.lib().bpf_prog_load(
        _SCHED_CLS, b"one_ev", b"Dual BSD/GPL", b"".join(code), ct.c_size_t(len(code)), None
    )
    return libbpf.check("load a program that looks up one EV", made)


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """struct bpf_insn"""
    return struct.pack("<BBhi", code, source << 4 | to, offset, immediate)


def _per_packet(c: Case) -> Document:
    """Returns the mean calls per packet of all attached programs."""
    fd = c.bare.dataplane.global_data()

    def read() -> tuple[int, ...]:
        raw = libbpf.lookup_elem(fd, struct.pack("I", 0), 8 * len(COUNTED))
        if raw is None:
            raise MachineError("the programs that count their calls have no counters", hint="make clean, make build")
        return struct.unpack(f"{len(COUNTED)}Q", raw)

    before = read()
    c.send(COUNTED_PACKETS)
    return {w: (now - then) / COUNTED_PACKETS for w, then, now in zip(COUNTED, before, read(), strict=True)}


def _result(
    costs: Costs, overhead_ns: float, called: list[Document], sizes: list[Document], flow: list[Document]
) -> Result:
    rows: list[Document] = []
    bounds = []
    for (program, name), ns in costs.items():
        if program in (SAME_EV, ANY_EV):
            continue
        ratio = compare([a / b for a, b in zip(ns, costs[program, ONE], strict=True)])
        row = {"program": program, "case": name, "median_ns": median(ns), "min_ns": min(ns), "max_ns": max(ns)}
        rows.append(row | {"by_one_peer": ratio["median"]})
        if program == "mrc_push" and name in (ONE_OF_ALL, BUSY_ONES, ALL):
            words = f"mrc_push at the full table, as a ratio to one peer: {name}"
            bounds.append(Bound(words, AT_MOST, "").judge(ratio["median"]))
    # The least cost of a packet in mrc_push that waits for one EV outside of the caches; one peer is the base.
    waits = [b - a for a, b in zip(costs[SAME_EV, ALL], costs[ANY_EV, ALL], strict=True)]
    least = 1 + median(w / p for w, p in zip(waits, costs["mrc_push", ONE], strict=True))
    notes = [
        f"full table: {HOSTS} hosts × {bare_host.EVS} EVs; all peers: each packet to another peer, at random",
        f"waiting for one EV that is in no cache takes {median(waits):.0f} ns there: a packet that does costs at least "
        f"{least:.2f} × what it costs with one peer",
    ]
    title = f"Cost per run: packets of {SIZE} bytes, interleaved rounds, less the statistics' {overhead_ns:.0f} ns"
    shown = [w for w in COUNTED if any(c[w] for c in called)]
    tables = [
        Table(title, rows, notes),
        Table("Calls per packet, one peer", [{k: c[k] for k in ("program", "case", *shown)} for c in called]),
        Table("Size", sizes),
        Table("In one TCP flow, hosts back to back, MTU 1500, burst", flow),
    ]
    panels = [
        plot.bars(program, "ns per packet", [r for r in rows if r["program"] == program], "case", "ns")
        for program in dict.fromkeys(r["program"] for r in rows)
    ]
    detail = {"rounds": [{"program": p, "case": name, "ns": ns} for (p, name), ns in costs.items()]}
    return Result(tables, bounds, plot.Picture("What a packet costs in each program", title, panels, notes), detail)


BENCH = Bench("cost", measure)
