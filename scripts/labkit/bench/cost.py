# SPDX-License-Identifier: BSD-2-Clause
"""Measures the time of a packet in each program: the kernel's run-time statistics, helper calls, program sizes.

The overhead of the statistics is the time of an empty program, which is attached in front for the same packets.

Cases: one peer; a full table with packets to one peer; and the same with packets to all peers in random order, so that
most table entries miss the CPU's caches; fewer peers at a time, or bursts of a flow, as in clusters; more planes.
mrc_pop gets copies of which the first has come. The windows of the cases alternate. mrc_push gets packets of UDP
sockets, mrc_pop gets frames sent to a NIC.

A copy is sent while mrc_push runs, down to the NIC's driver, but the packet itself after it. So a critical packet is
also compared by the CPU of the whole host, from the socket to the far end of the link, which the sending thread is
charged for.

Helper calls are counted by build/counted.bpf.o, built from the same source with every call of a helper counted in a
global variable (counted.h). No tool outside can count them.
"""

import contextlib
import itertools
import random
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

from labkit import plot
from labkit.bench import bare_host
from labkit.bench.bare_host import BareHost
from labkit.bench.frame import Bench, Bound, Options, Result, Table
from labkit.cluster import netns
from labkit.cluster.api import Lab
from labkit.cluster.fabric import namespace
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import progstats
from labkit.measure.statistics import compare
from labkit.places import REPOSITORY
from labkit.traffic import packet_sender, wire
from mrcd.config.cluster_file import Encapsulation
from mrcd.errors import MachineError
from mrcd.kernel import libbpf

HOSTS = 4096  # × 256 EVs: the full table
PEER = 1
WINDOWS = 9
PACKETS = 30_000  # packets of a window
WARM = 10_000
SIZE = 1400  # bytes of an inner packet
MOST_CRITICAL = 2.2  # most cost of a critical packet, as a ratio to another one
AT_MOST = 1.3  # most cost of mrc_push at the full table, as a ratio to one peer
_KERNELS_OWN = 10  # packets that the kernel sends meanwhile, as of IPv6 neighbour discovery
COUNTED_PACKETS = 4096  # packets whose calls are counted
SETS = (16, 64, 256, 1024)  # peers
PLANES = (8, 16)
RUN = 16  # packets to a peer before those to the next peer, as in a flow's bursts
FULL = "full table"
ONE, ONE_OF_ALL, ALL = "one peer", f"{FULL}, one peer", f"{FULL}, all peers"
CRITICAL = "critical"
BUSY_ONES = f"{FULL}, 256 peers"  # each packet to another peer, as scale's busy host sends
OBJECT = REPOSITORY / "build/counted.bpf.o"
# In the order of counted.h.
COUNTED = ("lookups", "times", "stores", "loads", "adjusts", "clones", "redirects", "pulls", "loops", "hashes")
_SIZED = ("mrc_push", "mrc_pop", "mrc_pop_xdp", "mrc_probe", "mrc_timer", "mrc_sweep", "mrc_set_states", "mrc_tick")


@dataclass
class Cost:
    """The times of one case: a value for each round."""

    ns: list[float]  # per run of the program
    cpu_ns: list[float]  # per packet sent, of the sending thread


Costs = dict[tuple[str, str], Cost]  # by program and case


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
    """Measures the programs as built, then those that count their calls."""
    if not OBJECT.exists():
        raise MachineError(f"{OBJECT} is missing: the programs that count their calls", hint="make build")
    with contextlib.ExitStack() as stack:
        progress(f"cost: tables for 2 and for {HOSTS} hosts of {bare_host.EVS} EVs")
        one, full = _bare(stack, lab, "h200", 2, "usid"), _bare(stack, lab, "h201", HOSTS, "usid")
        more = {n: _bare(stack, lab, f"h{204 + n}", 2, "usid", planes=n) for n in PLANES}
        cases = _cases(stack, one, full, _bare(stack, lab, "h202", 2, "srh"), more)
        with progstats.counting():
            costs, overheads = _windows(cases, options.pairs or WINDOWS)
        sizes = [progstats.size(one.program(name))._asdict() for name in _SIZED]
    with contextlib.ExitStack() as stack:
        progress("cost: calls of helpers, counted")
        counted, srh = _bare(stack, lab, "h210", 2, "usid", OBJECT), _bare(stack, lab, "h211", 2, "srh", OBJECT)
        called = _calls(stack, counted, srh)
    return _result(costs, median(overheads), called, sizes)


def _bare(
    stack: contextlib.ExitStack,
    lab: Lab,
    node: str,
    hosts: int,
    encapsulation: Encapsulation,
    program: Path | None = None,
    planes: int = bare_host.PLANES,
) -> BareHost:
    made = BareHost(namespace(lab.state.name, node), hosts, encapsulation, program, planes)
    stack.callback(made.close)
    return made


def _cases(
    stack: contextlib.ExitStack,
    one: BareHost,
    full: BareHost,
    srh: BareHost,
    more: Mapping[int, BareHost] = MappingProxyType({}),
) -> list[Case]:
    """Returns all cases. `more`: hosts with one peer and other numbers of planes."""
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
        (one, CRITICAL, 4, [PEER]),
        *((b, f"{n} planes", 4, [PEER]) for n, b in more.items()),
    ):
        before = _set(b, name)
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
            (one, CRITICAL, 4, [PEER]),
            *((b, f"{n} planes", 4, [PEER]) for n, b in more.items()),
        ),
    ):
        before = _set(b, name)
        mrc = {"flags": wire.CRITICAL} if name == CRITICAL else {}
        send = _frames(stack, b, version, peers, vlan=name == "VLAN", ce=name == "CE", **mrc)
        found.append(Case(program, name, b, "n0", point, send, before))
    return found


def _set(b: BareHost, name: str) -> Callable[[], None]:
    def settings() -> None:
        b.set_vlan(name == "VLAN")
        b.set_critical(name == CRITICAL)

    return settings


def _udp(stack: contextlib.ExitStack, b: BareHost, version: int, peers: list[int]) -> Callable[[int], object]:
    headers = 28 if version == 4 else 48
    # To one host as many addresses as to all hosts, so that the sockets cost the same.
    targets = [bare_host.address(p, version) for p in (peers if len(peers) > 1 else peers * packet_sender.BATCH)]
    with netns.inside(b.namespace):
        out = packet_sender.udp(bare_host.address(0, version), targets, SIZE - headers)
    stack.callback(out.close)
    return out.send


def _frames(
    stack: contextlib.ExitStack, b: BareHost, version: int, senders: list[int], *, vlan: bool, ce: bool, **mrc: int
) -> Callable[[int], object]:
    """Returns a sender of frames of these hosts, on the EVs of plane 0: in turn (one host) or at random."""
    template = b.frame(version, SIZE, vlan=vlan, ce=ce, **mrc)
    chance = random.Random(2)
    if len(senders) == 1:
        ends = [(senders[0], i % b.slots) for i in range(packet_sender.BATCH)]
    else:
        ends = [(s, chance.randrange(b.slots)) for s in senders]
    with netns.inside(b.namespace):
        out = packet_sender.frames("w0", b.sent_by(template, ends))
    stack.callback(out.close)
    return out.send


def _windows(cases: list[Case], rounds: int) -> tuple[Costs, list[float]]:
    """Returns what each case takes by round, its runs without the statistics' overhead, and that overhead."""
    found: Costs = {(c.program, c.name): Cost([], []) for c in cases}
    overheads = [1.0]
    for number in range(rounds):
        progress(f"cost: round {number + 1} of {rounds}")
        for c in cases if number % 2 == 0 else reversed(cases):
            program = c.bare.program(c.program)
            with c.attached():
                c.send(WARM)
                before, empty = progstats.runs(program), progstats.runs(c.bare.empty)
                drops, copies = c.bare.tables.drops(), _copies(c)
                began_ns = time.thread_time_ns()
                c.send(PACKETS)
                cpu_ns = (time.thread_time_ns() - began_ns) / PACKETS
                taken = progstats.runs(program).since(before)
                nothing = progstats.runs(c.bare.empty).since(empty)
            if taken.number < PACKETS:
                raise MachineError(
                    f"{c.program}, {c.name}: {PACKETS} packets were sent, but it ran {taken.number} times",
                    hint="does something else change interfaces or routes of new network namespaces?",
                )
            if c.name == CRITICAL and _copies(c) - copies < PACKETS:
                raise MachineError(f"{c.program}: {_copies(c) - copies} of {PACKETS} packets were copies, or copied")
            dropped = {r: n - drops[r] for r, n in c.bare.tables.drops().items()}
            if lost := {r: n for r, n in dropped.items() if n > _KERNELS_OWN}:
                raise MachineError(
                    f"{c.program}, {c.name}: mrcd dropped packets: {lost}", hint="docs/troubleshooting.md"
                )
            overheads += [nothing.mean_ns] if nothing.mean_ns is not None else []
            cost = found[c.program, c.name]
            cost.ns.append((taken.mean_ns or 0) - (nothing.mean_ns or median(overheads)))
            cost.cpu_ns.append(cpu_ns)
    return found, overheads[1:]


def _copies(c: Case) -> int:
    """Returns how many packets had copies, at the sender, and were second ones, at the receiver."""
    return int(c.bare.tables.copies["sent"].sum()) + int(c.bare.tables.copies["eliminated"].sum())


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


def _among(everyone: Sequence[int], peers: int) -> list[int]:
    """Returns `peers` peers in random order, repeatedly in new orders, one packet each."""
    chance = random.Random(peers)
    some = chance.sample(list(everyone), peers)
    return [p for _ in range(-(-4 * packet_sender.BATCH // peers)) for p in chance.sample(some, peers)]


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


def _result(costs: Costs, overhead_ns: float, called: list[Document], sizes: list[Document]) -> Result:
    rows: list[Document] = []
    bounds = []
    for (program, name), cost in costs.items():
        ns = cost.ns
        ratio = _ratio(ns, costs[program, ONE].ns)
        row = {"program": program, "case": name, "median_ns": median(ns), "min_ns": min(ns), "max_ns": max(ns)}
        rows.append(row | {"by_one_peer": ratio, "sender_cpu_ns": median(cost.cpu_ns)})
        if program == "mrc_push" and name in (ONE_OF_ALL, BUSY_ONES, ALL):
            words = f"mrc_push at the full table, as a ratio to one peer: {name}"
            bounds.append(Bound(words, AT_MOST, "").judge(ratio))
        if (program, name) == ("mrc_push", CRITICAL):
            words = "mrc_push and mrc_probe on a critical packet, as a ratio to one that is not"
            bounds.append(Bound(words, MOST_CRITICAL, "").judge(ratio))
            words = "CPU of the sending host for a critical packet, as a ratio to one that is not"
            bounds.append(Bound(words, MOST_CRITICAL, "").judge(_ratio(cost.cpu_ns, costs[program, ONE].cpu_ns)))
    notes = [f"full table: {HOSTS} hosts × {bare_host.EVS} EVs; all peers: each packet to another peer, at random"]
    title = f"Cost per run: packets of {SIZE} bytes, interleaved rounds, less the statistics' {overhead_ns:.0f} ns"
    shown = [w for w in COUNTED if any(c[w] for c in called)]
    tables = [
        Table(title, rows, notes),
        Table("Calls per packet, one peer", [{k: c[k] for k in ("program", "case", *shown)} for c in called]),
        Table("Size", sizes),
    ]
    panels = [
        plot.Bars(program, "ns per packet", [r for r in rows if r["program"] == program], "case", "ns")
        for program in dict.fromkeys(r["program"] for r in rows)
    ]
    detail = {"rounds": [{"program": p, "case": name, "ns": cost.ns} for (p, name), cost in costs.items()]}
    return Result(tables, bounds, plot.Picture("What a packet costs in each program", title, panels, notes), detail)


def _ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """Returns the median ratio of two cases over the rounds."""
    ratio: float = compare([a / b for a, b in zip(of, to, strict=True)])["median"]
    return ratio


BENCH = Bench("cost", measure)
