# SPDX-License-Identifier: BSD-2-Clause
"""Measures the time of a packet in each program: the kernel's run-time statistics, helper calls, program sizes.

The overhead of the statistics is the time of an empty program, which is attached in front for the same packets.

Cases: one peer; a full table with packets to one peer; and the same with packets to all peers in random order, so that
most table entries miss the CPU's caches. cache_misses.py adds cases as in clusters: fewer peers at a time, or bursts
of a flow. The windows of the cases alternate.

mrc_push gets packets of UDP sockets, mrc_pop gets frames sent to a NIC. In a further case one TCP flow runs between
two hosts without switches, with and without probes.
"""

import contextlib
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from labkit.bench import bare_host, cache_misses, candidates, helper_calls, packet_sender, pairs, pictures
from labkit.bench.bare_host import BareHost
from labkit.bench.cells import said_of
from labkit.bench.part import Options, Part, requirement
from labkit.bench.probing import Probing
from labkit.bench.scale.part import BUSY
from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.fabric import namespace
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import progstats
from labkit.traffic.flow import Flow
from mrcd.config.cluster_file import Encapsulation
from mrcd.ctl.terminal.render import Column, table
from mrcd.errors import MachineError
from mrcd.kernel import libbpf

HOSTS = 4096  # × 256 EVs: the full table
PEER = 1
WINDOWS = 9
PACKETS = 30_000  # packets of a window
WARM = 10_000
SIZE = 1400  # bytes of an inner packet
AT_MOST = 1.3  # most cost of mrc_push at the full table, as a ratio to one peer
COUNTED = 4096  # packets whose calls are counted
FLOW_WINDOWS = 12
FLOW_WINDOW_S = 0.25
_SETTLE_S = 0.1
FULL = "full table"
ONE, ONE_OF_ALL, ALL = "one peer", f"{FULL}, one peer", f"{FULL}, all peers"
BUSY_ONES = f"{FULL}, {BUSY} peers"  # each packet to another peer, as scale's busy host sends
SAME_EV, ANY_EV = "the same EV", "an EV at random"  # cases of the program that looks up one EV


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


def measure(lab: Lab, options: Options) -> Document:
    """Measures first without daemons, then a flow in a lab."""
    helper_calls.require()
    with contextlib.ExitStack() as stack:
        progress(f"cost: tables for 2 and for {HOSTS} hosts of {bare_host.EVS} EVs")
        one, full = _bare(stack, lab, "h200", 2, "usid"), _bare(stack, lab, "h201", HOSTS, "usid")
        srh = _bare(stack, lab, "h202", 2, "srh")
        cases = _cases(stack, one, full, srh)
        waits = _waits(stack, full)
        with progstats.counting():
            costs, overheads = _windows(cases + waits, options.pairs or WINDOWS)
            overhead = median(overheads)
        sizes = [progstats.size(one.program(name))._asdict() for name in _SIZED]
    with contextlib.ExitStack() as stack:
        progress("cost: calls of helpers, counted")
        counted = _bare(stack, lab, "h210", 2, "usid", counted=True)
        counted_srh = _bare(stack, lab, "h211", 2, "srh", counted=True)
        called = _calls(stack, counted, counted_srh)
    flow = _flow(lab)
    found = [_summary(c, costs[c.program, c.name]) for c in cases]
    return {
        "hosts": HOSTS,
        "evs_per_peer": bare_host.EVS,
        "packet_bytes": SIZE,
        "statistics_ns": overhead,
        "most_ratio": AT_MOST,
        "cases": found,
        "ratios": _ratios({k: v for k, v in costs.items() if k[0] not in (SAME_EV, ANY_EV)}),
        "cold": cache_misses.floor(costs["mrc_push", ONE], costs[SAME_EV, ALL], costs[ANY_EV, ALL]),
        "flow": flow,
        "calls": called,
        "sizes": sizes,
        "requirements": required({k: v for k, v in costs.items() if k[0] == "mrc_push"}),
    }


_SIZED = ("mrc_push", "mrc_pop", "mrc_pop_xdp", "mrc_probe", "mrc_timer", "mrc_sweep", "mrc_set_states", "mrc_tick")


def _bare(
    stack: contextlib.ExitStack, lab: Lab, node: str, hosts: int, encapsulation: Encapsulation, *, counted: bool = False
) -> BareHost:
    program = helper_calls.OBJECT if counted else None
    made = BareHost(namespace(lab.state.name, node), hosts, encapsulation, program)
    stack.callback(made.close)
    return made


def _cases(stack: contextlib.ExitStack, one: BareHost, full: BareHost, srh: BareHost) -> list[Case]:
    everyone = random.Random(0).sample(range(1, HOSTS), HOSTS - 1)
    found = []
    for b, name, version, peers in (
        (one, ONE, 4, [PEER]),
        (full, ONE_OF_ALL, 4, [PEER]),
        *((full, f"{FULL}, {n} peers", 4, cache_misses.among(everyone, n)) for n in cache_misses.SETS),
        (full, ALL, 4, everyone),
        (full, f"{ALL}, runs of {cache_misses.RUN}", 4, cache_misses.in_runs(everyone)),
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
        full.others[name] = cache_misses.load(evs, HOSTS * bare_host.EVS, anywhere=name == ANY_EV)
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


def _windows(cases: list[Case], rounds: int) -> tuple[dict[tuple[str, str], list[float]], list[float]]:
    """Returns the ns per run of each case by round, without the statistics' overhead, and that overhead."""
    found: dict[tuple[str, str], list[float]] = {(c.program, c.name): [] for c in cases}
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
            counts = helper_calls.per_packet(c.bare, c.send, COUNTED)
        found.append({"program": c.program, "case": c.name, **counts})
    return found


def _flow(lab: Lab) -> Document:
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
    return {
        "mtu_bytes": lab.fabric.parameters.mtu,
        "congestion_control": flow.congestion_control,
        "programs": [
            {
                "host": host,
                "role": "sends data" if host == source else "sends acknowledgements",
                "program": name,
                "probing": on,
                "runs_per_s": median(w[host, name].number / FLOW_WINDOW_S for p, w in windows if p is on),
                "mean_ns": _median(w[host, name].mean_ns for p, w in windows if p is on),
            }
            for (host, name), on in itertools.product(programs, (True, False))
        ],
    }


_LINKS = (("push", "mrc_push"), ("pop", "mrc_pop"), ("probe", "mrc_probe"))


def _read(programs: dict[tuple[str, str], list[int]]) -> dict[tuple[str, str], progstats.Runs]:
    """Returns the runs of each program; a program attached to several NICs is counted once."""
    return {key: progstats.runs(found[0]) for key, found in programs.items()}


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _summary(c: Case, costs: list[float]) -> Document:
    return {
        "program": c.program,
        "case": c.name,
        "median_ns": median(costs),
        "min_ns": min(costs),
        "max_ns": max(costs),
        "rounds": costs,
    }


def _ratios(costs: dict[tuple[str, str], list[float]]) -> list[Document]:
    """Returns each case as a ratio to the same program's time with one peer, round by round."""
    return [
        {
            "program": program,
            "case": name,
            **pairs.compare([a / b for a, b in zip(found, costs[program, ONE], strict=True)]),
        }
        for (program, name), found in costs.items()
        if name != ONE
    ]


def required(costs: dict[tuple[str, str], list[float]]) -> list[Document]:
    """Returns the requirement on mrc_push at the full table. Pure."""
    found = []
    for r in _ratios(costs):
        if r["program"] == "mrc_push" and r["case"] in (ONE_OF_ALL, BUSY_ONES, ALL):
            words = f"mrc_push at the full table costs at most {AT_MOST:g} × what it costs with one peer, {r['case']}"
            found.append(requirement(words, r["median"] <= AT_MOST, said_of(r)))
    return found


def lines(document: Document) -> list[str]:
    """Returns tables."""
    d = document
    ratios = {(r["program"], r["case"]): r["median"] for r in d["ratios"]}
    rows = [
        [c["program"], c["case"], *(f"{c[f'{k}_ns']:.0f}" for k in ("median", "min", "max")), _ratio(ratios, c)]
        for c in d["cases"]
    ]
    said = [
        f"Cost per run, ns: UDP packets of {d['packet_bytes']} bytes, "
        f"{len(d['cases'][0]['rounds'])} interleaved rounds; "
        f"the statistics' own {d['statistics_ns']:.0f} ns subtracted",
        *_table(("PROGRAM", "CASE"), ("MEDIAN", "MIN", "MAX", "BY ONE PEER"), rows),
        f"full table: {d['hosts']} hosts × {d['evs_per_peer']} EVs; all peers: each packet to another peer, at random",
        f"waiting for one EV that is in no cache takes {d['cold']['wait_ns']:.0f} ns there: a packet that does costs "
        f"at least {d['cold']['least_ratio']:.2f} × what it costs with one peer",
        "",
        "Calls per packet, one peer (counted by the programs, built to do so)",
    ]
    shown = [w for w in helper_calls.COUNTED if any(c[w] for c in d["calls"])]
    rows = [[c["program"], c["case"], *(f"{c[w]:.3g}" for w in shown)] for c in d["calls"]]
    said += [*_table(("PROGRAM", "CASE"), [w.upper() for w in shown], rows), ""]
    rows = [[s["name"], *(str(s[k]) for k in _SIZE_KEYS)] for s in d["sizes"]]
    said += ["Size", *_table(("PROGRAM",), ("INSTRUCTIONS", "MACHINE CODE BYTES", "VERIFIED"), rows), ""]
    flow = d["flow"]
    rows = [
        [
            p["program"],
            p["host"],
            p["role"],
            "on" if p["probing"] else "off",
            f"{p['runs_per_s']:.0f}",
            _ns(p["mean_ns"], d),
        ]
        for p in flow["programs"]
    ]
    headings = ("PROGRAM", "HOST", "WHICH", "PROBES")
    said.append(f"In one TCP flow, hosts back to back, MTU {flow['mtu_bytes']}, {flow['congestion_control']}, burst")
    return [*said, *_table(headings, ("RUNS/s", "ns"), rows)]


_SIZE_KEYS = ("instructions", "machine_code_bytes", "verified_instructions")


def _ratio(ratios: dict[tuple[str, str], float], c: Document) -> str:
    found = ratios.get((c["program"], c["case"]))
    return "1" if found is None else f"{found:.2f}"


def _ns(mean: float | None, document: Document) -> str:
    return "-" if mean is None else f"{mean - document['statistics_ns']:.0f}"


def _table(left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    columns = [*(Column(h) for h in left), *(Column(h, True) for h in right)]
    return table(columns, rows, colour=False)


PART = Part("cost", measure, lines, pictures.cost)
