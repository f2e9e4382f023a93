# SPDX-License-Identifier: BSD-2-Clause
"""Measures goodput and CPU per Gbit of mrcd beside what a host has without it, in the same lab, alternately.

A cell is a place, a granularity, an IP version and a load. A round measures its candidates right after each other;
every second round has the other order, so that drift favours none. The ratio of two in one round is a pair. Every
candidate is measured with the same receive settings, which the bounds use, and with its own defaults. Context and
defaults are measured in the first rounds only, unless the command line sets the number of pairs.

The bench `planes` limits every link of the lab (tbf): planes alike, one slower, or one of half the rate. Shares are of
what the planes together can carry after headers. MPTCP with one subflow per plane is measured beside mrcd.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, NamedTuple

from labkit import plot
from labkit.bench import candidates, machine, probing
from labkit.bench.candidates import DEFAULT, EQUAL, KERNEL, KERNEL_ECMP, MPTCP, MRCD, MRCD_ONE, OURS, PLAIN, Candidate
from labkit.bench.frame import TARGET, Bench, Bound, NewEvents, Options, Result, Table
from labkit.bench.statistics import compare, words
from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, order
from labkit.traffic.datagrams import Datagrams
from labkit.traffic.flow import Ends, Flow, Protocol
from mrcd.config.cluster_file import Granularity
from mrcd.errors import MachineError, UsageError
from mrcd.net.netlink import set_offload

PAIRS = 8  # takes seven minutes; with 6 pairs, medians within an hour were 1.01 and 1.06
FULL_PAIRS = 5
CONTEXT_ROUNDS, GLIMPSE_ROUNDS = 2, 1
FULL_S, SHORT_S = 1.0, 0.7  # lengths of a run
Where = Literal["direct", "lab"]
MTU: dict[Where, int] = {"direct": 1500, "lab": 9100}
WORDS: dict[Where, str] = {"direct": "host to host", "lab": "lab"}
PLANES_RUNS, PLANES_CONTEXT_RUNS = 5, 2  # of a case with a bound, and of what is measured beside it
PLANES_S = 1.0
_PLANES_WARM_UP_S = 1.0
_ETHERNET = 14  # bytes of a frame that tbf counts beside the packet
_MBIT = 1_000_000
_WARM_UP_S = 0.4  # TCP's start
_LOOK_S = 0.1  # often enough that no child's pipe fills up
_SEGMENTATION = (
    *("tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp6-segmentation"),
    "tx-tcp-mangleid-segmentation",
)


@dataclass(frozen=True)
class Load:
    """The traffic: a number of TCP flows, or one stream of UDP packets of a size, IP header included."""

    name: str
    flows: int = 1
    packet_bytes: int = 0  # 0 = TCP


LOADS = (
    Load("tcp-1"),
    Load("tcp-8", flows=8),
    *(Load(f"udp-{size}", packet_bytes=size) for size in (64, 1400, 8900)),
)
_TCP_1, _TCP_8 = LOADS[:2]


@dataclass(frozen=True)
class Cell:
    """One place in the matrix.

    `compared` are measured in every round, `context` in the first rounds only, unless the command line sets the
    number.
    """

    where: Where
    mtu: int  # of the links
    granularity: Granularity
    version: int  # of the inner IP
    load: Load
    compared: tuple[str, ...]
    context: tuple[str, ...] = ()
    glimpse: bool = False  # has no requirements, and is measured in a few rounds

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the words by which `--only` selects it."""
        return self.where, self.granularity, f"ipv{self.version}", self.load.name

    @property
    def name(self) -> str:
        """Returns a name of one line."""
        return f"{WORDS[self.where]}, MTU {self.mtu}, {self.granularity}, {self.load.name}, IPv{self.version}"

    @property
    def fits(self) -> bool:
        """Returns whether the load's packets pass without fragmentation."""
        return self.load.packet_bytes <= self.mtu - 80


def default() -> list[Cell]:
    """Returns the cells with requirements, and a glimpse of the other loads: seven minutes."""
    direct, lab = MTU["direct"], MTU["lab"]
    context = (KERNEL_ECMP, MPTCP)
    udp_64, udp_1400, udp_8900 = LOADS[2:]
    found = [
        Cell("direct", direct, "burst", 6, _TCP_1, (MRCD, KERNEL, PLAIN), context),
        Cell("direct", direct, "burst", 6, _TCP_8, (MRCD, KERNEL), (PLAIN,)),
        *(_glimpse("direct", direct, load) for load in (udp_64, udp_1400)),
        Cell("direct", direct, "packet", 6, _TCP_1, (MRCD, KERNEL, PLAIN)),
        Cell("lab", lab, "burst", 6, _TCP_1, (MRCD, KERNEL, PLAIN), (*context, MRCD_ONE)),
        Cell("lab", lab, "burst", 6, _TCP_8, (MRCD, KERNEL), (PLAIN,)),
        _glimpse("lab", lab, udp_8900),
        _glimpse("lab", lab, _TCP_1, 4),
    ]
    return [c for c in found if c.fits]


def _glimpse(where: Where, mtu: int, load: Load, version: int = 6) -> Cell:
    peers = (MRCD, KERNEL, PLAIN) if version == 6 else (MRCD, KERNEL)
    return Cell(where, mtu, "burst", version, load, peers, glimpse=True)


def full() -> list[Cell]:
    """Returns the whole matrix, ordered so that few labs are built."""
    places: tuple[Where, ...] = ("direct", "lab")
    granularities: tuple[Granularity, ...] = ("burst", "packet")
    found = []
    for where, granularity, version, load in itertools.product(places, granularities, (6, 4), LOADS):
        compared = (MRCD, KERNEL, PLAIN) if version == 6 or where == "direct" else (MRCD, KERNEL)
        context: tuple[str, ...] = (KERNEL_ECMP,)
        if (where, granularity, load) == ("lab", "burst", _TCP_1):
            context += (MRCD_ONE,)
        if version == 6 and not load.packet_bytes:
            context += (MPTCP,)
        at = MTU["lab"] if load.packet_bytes > MTU["direct"] else MTU[where]
        cell = Cell(where, at, granularity, version, load, compared, context)
        if cell.fits:
            found.append(cell)
    order = {c: (places.index(c.where), c.mtu, granularities.index(c.granularity)) for c in found}
    return sorted(found, key=lambda c: order[c])


def chosen(cells: Sequence[Cell], versions: Sequence[int], only: Sequence[str]) -> list[Cell]:
    """Returns the cells of these IP versions that have all words of `only`. Raises UsageError if there is none."""
    known = {w for c in full() for w in c.words}
    for word in only:
        if word not in known:
            raise UsageError(f"--only {word}: no cell has this word", hint=f"words are {', '.join(sorted(known))}")
    found = [c for c in cells if c.version in versions and set(only) <= set(c.words)]
    if not found:
        raise UsageError(
            "no cell is selected", hint="--full has more cells; or give fewer --only words, or another --ip"
        )
    return found


def name_of(cell: Cell, candidate: str) -> str:
    """Returns a candidate's name; in packet granularity the NICs' GSO is off for all candidates."""
    return f"{candidate}, GSO off" if cell.granularity == "packet" and candidate not in OURS else candidate


def compared(peer: str, mrcd: Sequence[Document], other: Sequence[Document]) -> Document:
    """Returns the ratios of mrcd's runs to a peer's, round by round, with intervals."""
    rounds = list(zip(mrcd, other, strict=True))
    cpu = [(a["cpu_s_per_gbit"], b["cpu_s_per_gbit"]) for a, b in rounds]
    return {
        "peer": peer,
        "goodput": compare([a["bits_per_s"] / b["bits_per_s"] for a, b in rounds if b["bits_per_s"]]),
        "cpu_per_gbit": compare([a / b for a, b in cpu if a and b]),
    }


class Wanted(NamedTuple):
    """The bounds of the median ratios of mrcd to a peer in some cells."""

    where: Where
    granularity: Granularity
    load: Load
    peer: str
    least: float  # of goodput
    most: float | None = None  # of CPU per Gbit


WANTED = (
    Wanted("direct", "burst", _TCP_1, KERNEL, 1.2, 1.0),
    Wanted("direct", "burst", _TCP_1, PLAIN, 0.85),
    Wanted("direct", "burst", _TCP_8, KERNEL, 1.0, 1.0),
    Wanted("direct", "packet", _TCP_1, KERNEL, 1.1),
    Wanted("lab", "packet", _TCP_1, KERNEL, 1.1),
    Wanted("lab", "burst", _TCP_1, KERNEL, 1.05, 1.0),
    Wanted("lab", "burst", _TCP_8, KERNEL, 0.95, 1.1),
)


def _bounds(cell: Cell, ratios: Sequence[Document]) -> list[Document]:
    found = []
    for w, r in itertools.product(WANTED, ratios):
        if cell.glimpse or (cell.where, cell.granularity, cell.load, r["peer"]) != w[:4]:
            continue
        said = f"{cell.name}: mrcd / {name_of(cell, w.peer)},"
        least = Bound(f"{said} goodput, median", w.least, "", is_least=True)
        found.append(least.judge(r["goodput"]["median"]))
        if w.most is not None:
            most = Bound(f"{said} CPU per Gbit, median", w.most, "")
            found.append(most.judge(r["cpu_per_gbit"]["median"]))
    return found


def measure(lab: Lab, options: Options) -> Result:
    """Measures all cells, those of one lab in a row."""
    wanted = chosen(full() if options.full else default(), options.versions, options.only)
    options = replace(options, seconds=options.seconds or (FULL_S if options.full else SHORT_S))
    documents: list[Document] = []
    tables, bounds, missing = [], [], ""
    built: tuple[object, ...] = ()
    for number, cell in enumerate(wanted):
        rounds = options.pairs or (FULL_PAIRS if options.full else GLIMPSE_ROUNDS if cell.glimpse else PAIRS)
        progress(f"throughput: {cell.name}; cell {number + 1} of {len(wanted)}, {rounds} rounds")
        if (cell.where, cell.mtu, cell.granularity) != built:
            built = _up(lab, cell)
        if MPTCP in cell.context:
            missing = candidates.mptcp_missing() or ""
        d = _cell(lab, cell, rounds, options)
        documents.append(d)
        tables.append(_table(cell, d))
        bounds += _bounds(cell, d["ratios"])
    notes = [*filter(None, [missing]), *(f"RECEIVE {s}: {text}" for s, text in candidates.RECEIVE_WORDS.items())]
    tables[-1] = replace(tables[-1], notes=[*tables[-1].notes, *notes])
    title, words = "Throughput beside what a host has without mrcd", "medians of interleaved runs, minimum to maximum"
    panels = [plot.bars(d["name"], "Gbit/s", d["candidates"], "label", "bits_per_s", 1e-9) for d in documents]
    return Result(tables, bounds, plot.Picture(title, words, panels, notes), {"cells": documents})


def _up(lab: Lab, cell: Cell) -> tuple[object, ...]:
    """Brings up a lab for a cell and those after it.

    In packet granularity the NICs of both ends segment nothing, so the kernel's own ways, too, send single packets.
    Nor do the ports at the far ends of the links, so that the NICs can merge what they receive: a veth has GRO only
    if its peer has no TSO.
    """
    lab.up(granularity=cell.granularity, mtu=cell.mtu, direct=cell.where == "direct")
    observe.wait_until_good(lab, lab.fabric.hosts)
    if cell.granularity == "packet":
        for link in lab.fabric.links:
            if {link.upper.node, link.lower.node} & set(candidates.pair(lab)):
                for end in (link.upper, link.lower):
                    with lab.inside(end.node):
                        set_offload(end.port, dict.fromkeys(_SEGMENTATION, False))
    return cell.where, cell.mtu, cell.granularity


def _cell(lab: Lab, cell: Cell, rounds: int, options: Options) -> Document:
    found = _candidates(lab, cell)
    events = NewEvents(lab, lab.fabric.hosts)
    ways = [(c, settings) for settings in (EQUAL, DEFAULT) for c in found]
    runs: dict[tuple[str, str], list[Document]] = {(c.name, settings): [] for c, settings in ways}
    for number in range(rounds):
        turn = [
            w
            for w in ways
            if options.pairs or number < CONTEXT_ROUNDS or (w[0].name in cell.compared and w[1] == EQUAL)
        ]
        for c, settings in turn if number % 2 == 0 else reversed(turn):
            with candidates.receiving(lab, c.name, settings), c.in_force(lab):
                runs[c.name, settings].append(_run(lab, c, cell.load, options))
        measured = {way: r[-1]["bits_per_s"] / 1e9 for way, r in runs.items() if len(r) > number}
        for s in (EQUAL, DEFAULT):
            if said := ", ".join(f"{name} {rate:.2f}" for (name, settings), rate in measured.items() if settings == s):
                progress(f"  {number + 1}, {s}: {said} Gbit/s")
    ratios = {
        settings: [
            compared(c.name, runs[MRCD, settings], runs[c.name, settings])
            for c in found
            if c.name != MRCD and len(runs[c.name, settings]) == len(runs[MRCD, settings])
        ]
        for settings in (EQUAL, DEFAULT)
    }
    return {
        "name": cell.name,
        "seconds": options.seconds,
        "candidates": [_summary(cell, c, s, runs[c.name, s]) for c in found for s in (EQUAL, DEFAULT)],
        "ratios": ratios[EQUAL],
        "default_ratios": ratios[DEFAULT],
        "withdrawals_without_a_fault": len(events.read(to="ASSUMED_BAD")),
    }


def _candidates(lab: Lab, cell: Cell) -> list[Candidate]:
    """Returns the candidates of a cell, installed: the compared ones right after each other."""
    names = (*cell.compared, *cell.context)
    found = [c for c in candidates.all_of(lab, cell.version) if c.name in names]
    found.sort(key=lambda c: c.name not in cell.compared)
    for c in found:
        c.install(lab)
    if MPTCP in names and candidates.mptcp_missing() is None:
        ends = candidates.install_mptcp(lab)
        words = "MPTCP, one subflow per plane, plain addresses"
        found.append(Candidate(MPTCP, cell.version, words, ends, sprayed=None, protocol="mptcp"))
    return found


def _summary(cell: Cell, c: Candidate, settings: str, runs: Sequence[Document]) -> Document:
    goodputs = [r["bits_per_s"] for r in runs]
    medians = {
        f"median_{key}": median(r[key] for r in runs if r[key] is not None)
        for key in ("cpu_s_per_gbit", "cpu_busy_ratio", "retransmitted_segments", "packets_per_s", "lost_ratio")
        if any(r.get(key) is not None for r in runs)
    }
    shown = name_of(cell, c.name)
    return {
        "shown": shown,
        "label": shown if settings == EQUAL else f"{shown}, default",
        "ours": c.name in OURS,
        "receive": settings,
        "what": c.words,
        "congestion_control": runs[0]["congestion_control"],
        "mss_bytes": runs[0]["mss_bytes"],
        "median_bits_per_s": median(goodputs),
        "min_bits_per_s": min(goodputs),
        "max_bits_per_s": max(goodputs),
        **medians,
        "control": probing.mean([r["control"] for r in runs if r["control"]]),
        "runs": list(runs),
    }


def _run(lab: Lab, candidate: Candidate, load: Load, options: Options) -> Document:
    """Lets the flows start, then measures for `options.seconds`. Raises MachineError if they took another way."""
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(probing.Control(lab, candidates.pair(lab))) if candidate.name in OURS else None
        flows = [stack.enter_context(_flow(lab, candidate, load)) for _ in range(load.flows)]
        _poll(flows, _WARM_UP_S)
        if candidate.protocol == "mptcp":
            for flow in flows:
                candidates.check_mptcp(lab, flow)
        sent = control.read() if control else {}
        carried, used, begin_ns = _nics(lab, candidate), machine.read_cpu(), time.monotonic_ns()
        before = sum(f.retransmitted_segments for f in flows)
        _poll(flows, options.seconds)
        end_ns, used = time.monotonic_ns(), machine.read_cpu().since(used)
        controlled = control.since(sent, (end_ns - begin_ns) / 1e9) if control else None
        carried = [now - then for now, then in zip(_nics(lab, candidate), carried, strict=True)]
        retransmitted = sum(f.retransmitted_segments for f in flows) - before
        for flow in flows:
            flow.finish()
    _check_way(candidate, load, carried)
    bits_per_s = sum(goodput.mean(f.bins, begin_ns, end_ns) or 0.0 for f in flows)
    gbit = bits_per_s * (end_ns - begin_ns) / 1e18
    return {
        "bits_per_s": bits_per_s,
        "cpu_s_per_gbit": used.busy_s / gbit if gbit else None,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments": retransmitted,
        "congestion_control": flows[0].congestion_control,
        "mss_bytes": flows[0].mss_bytes,
        "control": controlled,
        **_packets(flows[0], bits_per_s),
    }


def _flow(lab: Lab, candidate: Candidate, load: Load) -> Flow:
    if load.packet_bytes:
        return Datagrams(lab, candidate.ends, load.packet_bytes)
    return Flow(lab, candidate.ends, protocol=candidate.protocol)


def _poll(flows: Sequence[Flow], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        flows[0].poll(min(left, _LOOK_S))
        for flow in flows[1:]:
            flow.poll(0)
    for flow in flows:
        flow.poll(0)


def _packets(flow: Flow, bits_per_s: float) -> Document:
    """Returns for UDP the packets that arrived, and the share of all sent packets that did not."""
    if not isinstance(flow, Datagrams):
        return {}
    return {
        "packets_per_s": bits_per_s / 8 / flow.payload_bytes,
        "lost_ratio": 1 - flow.received_packets / flow.sent_packets if flow.sent_packets else None,
    }


def _nics(lab: Lab, candidate: Candidate) -> list[int]:
    """Returns the bytes sent by each of the source's NICs, one per plane."""
    config = lab.fabric.config
    with lab.inside(candidate.ends.source):
        sent = netns.sent_bytes()
    return [sent[n] for n in config.interface_names(config.host(candidate.ends.source))]


def _check_way(candidate: Candidate, load: Load, carried: list[int]) -> None:
    """Checks that the flows took the way to be measured. Raises MachineError."""
    if candidate.sprayed is None or (candidate.name == KERNEL_ECMP and load.flows > 1):
        return
    total = sum(carried)
    shares = [n / total if total else 0.0 for n in carried]
    fair = 1 / len(carried)
    right = min(shares) > fair / 2 if candidate.sprayed else max(shares) > 0.95
    if not right:
        raise MachineError(
            f"{candidate.name}: the planes carried {', '.join(f'{s:.0%}' for s in shares)} of the flow; it should "
            + ("use all of them equally" if candidate.sprayed else "stay on one"),
            hint="was a path withdrawn, or is a route missing? see mrcctl events, ip route",
        )


def _table(cell: Cell, d: Document) -> Table:
    rows = []
    for c in d["candidates"]:
        row = {"candidate": c["shown"], "receive": c["receive"], "runs": len(c["runs"])}
        row |= {k: c[k] for k in ("median_bits_per_s", "min_bits_per_s", "max_bits_per_s")}
        row |= {"cpu_per_gbit_s": c.get("median_cpu_s_per_gbit"), "cpu_busy_ratio": c["median_cpu_busy_ratio"]}
        row |= {k: c[f"median_{k}"] for k in ("packets_per_s", "lost_ratio") if f"median_{k}" in c}
        row |= {"retransmitted": c["median_retransmitted_segments"], "mss": c["mss_bytes"]}
        row |= {f"control_{k}_ratio": c["control"] and c["control"][f"{k}_ratio"] for k in ("packets", "bytes")}
        rows.append(row | {"what": c["what"]})
    controls = sorted({c["congestion_control"] for c in d["candidates"]} - {"none"})
    notes = [
        f"  {settings}: mrcd / {r['peer']}: goodput {words(r['goodput'])}; CPU per Gbit {words(r['cpu_per_gbit'])}"
        for settings, ratios in ((EQUAL, d["ratios"]), (DEFAULT, d["default_ratios"]))
        for r in ratios
    ]
    if d["withdrawals_without_a_fault"]:
        notes.append(f"  EVs withdrawn meanwhile: {d['withdrawals_without_a_fault']}")
    return Table(", ".join([cell.name, *controls]), rows, notes)


# ---- planes of limited rate ----


class PlanesCase(NamedTuple):
    """The properties of the planes. The last plane may differ from the others."""

    name: str
    rate_bits_per_s: int  # of each plane
    least: float  # required share of the sum; 0: none
    delay: str | None = None  # extra delay of the last plane, like `5ms`
    rate_ratio: float = 1.0  # rate of the last plane, as a ratio to the others

    @property
    def sum_bits_per_s(self) -> float:
        """Returns the capacity of the four planes."""
        return self.rate_bits_per_s * (3 + self.rate_ratio)


CASES = (
    PlanesCase("4 × 200 Mbit/s", 200 * _MBIT, 0.97),
    PlanesCase("one 1 ms slower", 200 * _MBIT, 0.0, delay="1ms"),
    PlanesCase("one 5 ms slower", 200 * _MBIT, 0.80, delay="5ms"),
    PlanesCase("one 20 ms slower", 200 * _MBIT, 0.0, delay="20ms"),
    PlanesCase("one of half the rate", 200 * _MBIT, 0.90, rate_ratio=0.5),
    PlanesCase("4 × 1 Gbit/s", 1000 * _MBIT, 0.97),
)


class _Way(NamedTuple):
    name: str
    ends: Ends
    protocol: Protocol
    mtu: int  # MTU of its packets on the links


def measure_planes(lab: Lab, options: Options) -> Result:
    """Measures each case alternately over mrcd and over MPTCP."""
    rows: list[Document] = []
    bounds, panels = [], []
    rate = None
    for case in CASES:
        if case.rate_bits_per_s != rate:
            rate = case.rate_bits_per_s
            lab.up(rate_bits_per_s=rate)
            observe.wait_until_good(lab, lab.fabric.hosts)
            p = lab.fabric.parameters
            ways = [_Way(MRCD, candidates.overlay(lab, options.versions[-1]), "tcp", p.mtu)]
            if candidates.mptcp_missing() is None:
                ways.append(_Way(MPTCP, candidates.install_mptcp(lab), "mptcp", candidates.inner_mtu(lab)))
        with _limited(lab, case):
            found = _planes_case(lab, case, ways, options)
        rows += found
        goals = []
        if case.least:
            text = f"{case.name}: share of what the planes can carry that one TCP flow gets"
            bounds.append(Bound(text, case.least, "_ratio", is_least=True).judge(found[0]["median_ratio"]))
            goals = [(case.least, "wanted")]
        panels.append(plot.bars(case.name, "% of the sum, after headers", found, "way", "ratio", 100, goals))
    title = "One TCP flow over four planes of limited rate"
    notes = ["LATE: skbs that the receiver's TCP sees behind data sent after them, and by how many bytes at most"]
    shown = [{k: v for k, v in r.items() if k not in ("runs", "ours")} for r in rows]
    return Result([Table(title, shown, notes)], bounds, plot.Picture(title, "", panels, notes), {"cases": rows})


@contextlib.contextmanager
def _limited(lab: Lab, case: PlanesCase) -> Iterator[None]:
    """A block in which the last plane differs from the others."""
    plane = lab.fabric.parameters.planes - 1
    target = f"nic:{TARGET}:{plane}"
    if case.delay:
        lab.fail(target, delay=case.delay, direction="down")
    elif case.rate_ratio != 1:
        lab.fail(target, rate=f"{case.rate_bits_per_s * case.rate_ratio:.0f}bit", direction="down")
    try:
        yield
    finally:
        lab.heal()


def _planes_case(lab: Lab, case: PlanesCase, ways: list[_Way], options: Options) -> list[Document]:
    runs: dict[str, list[Document]] = {w.name: [] for w in ways}
    wanted = {}
    for way in ways:  # as many runs as its bound needs, else few
        is_full = options.full or (way.name == MRCD and case.least > 0)
        usual = PLANES_RUNS if is_full else PLANES_CONTEXT_RUNS if case.least else 1
        wanted[way.name] = options.pairs or usual
    for n in range(max(wanted.values())):
        progress(f"planes: {case.name}, run {n + 1} of {max(wanted.values())}")
        for way in ways:
            if n < wanted[way.name]:
                with candidates.receiving(lab, way.name, EQUAL):
                    runs[way.name].append(_planes_run(lab, case, way, options.seconds or PLANES_S))
    return [_planes_row(case, name, found) for name, found in runs.items()]


def _planes_run(lab: Lab, case: PlanesCase, way: _Way, seconds: float) -> Document:
    config = lab.fabric.config
    ports = [*config.interface_names(config.host(TARGET)), config.overlay.interface]
    with order.watching(lab.ns(TARGET), ports) as late, Flow(lab, way.ends, protocol=way.protocol) as flow:
        flow.poll(_PLANES_WARM_UP_S)
        if way.protocol == "mptcp":
            candidates.check_mptcp(lab, flow)
        before, begin_ns, retransmitted = late.late(), time.monotonic_ns(), flow.retransmitted_segments
        flow.poll(seconds)
        end_ns, retransmitted = time.monotonic_ns(), flow.retransmitted_segments - retransmitted
        counts = [now - then for now, then in zip(late.late(), before, strict=True)]
        flow.finish()
    most = case.sum_bits_per_s * flow.mss_bytes / (way.mtu + _ETHERNET)
    bits_per_s = goodput.mean(flow.bins, begin_ns, end_ns) or 0.0
    return {
        "bits_per_s": bits_per_s,
        "most_bits_per_s": most,
        "ratio": bits_per_s / most,
        "mss_bytes": flow.mss_bytes,
        "congestion_control": flow.congestion_control,
        "retransmitted_segments": retransmitted,
        "late_skbs": counts,
    }


def _planes_row(case: PlanesCase, name: str, runs: list[Document]) -> Document:
    late = [sum(r["late_skbs"][i] for r in runs) for i in range(order.BUCKETS)]
    ratios = [r["ratio"] for r in runs]
    return {
        "planes": case.name,
        "way": name,
        "median_bits_per_s": median(r["bits_per_s"] for r in runs),
        "ours": name == MRCD,
        "median_ratio": median(ratios),
        "min_ratio": min(ratios),
        "max_ratio": max(ratios),
        "retransmitted": median(r["retransmitted_segments"] for r in runs),
        "late_ratio": order.share_late(late),
        "late_p50_bytes": order.percentile(late, 0.5),
        "late_p99_bytes": order.percentile(late, 0.99),
        "runs": runs,
    }


BENCH = Bench("throughput", measure)
PLANES = Bench("planes", measure_planes)
