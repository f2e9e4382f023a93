# SPDX-License-Identifier: BSD-2-Clause
"""Measures goodput and CPU per Gbit of mrcd beside what a host has without it, in the same lab, alternately.

A cell is a place, a granularity, an IP version and a load. A round measures its candidates right after each other;
every second round has the other order, so that drift favours none. The ratio of two in one round is a pair. Context is
measured in the first rounds only, unless the command line sets the number of pairs.

The bench `planes` limits every link of the lab (tbf): planes alike, one slower, or one of half the rate. Shares are of
what the planes together can carry after headers. MPTCP with one subflow per plane is measured beside mrcd.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, NamedTuple, get_args

from labkit import plot
from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table, evs_of
from labkit.cluster import netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, machine, order
from labkit.measure.statistics import compare, words
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL, KERNEL_ECMP, MPTCP, MRCD, PLAIN, TARGET, Candidate
from labkit.traffic.flow import Datagrams, Flow
from mrcd.config.cluster_file import Granularity
from mrcd.errors import MachineError, UsageError
from mrcd.net.netlink import set_offload

PAIRS = 8  # takes seven minutes; with 6 pairs, medians within an hour were 1.01 and 1.06
FULL_PAIRS = 5
CONTEXT_ROUNDS, GLIMPSE_ROUNDS = 2, 1
FULL_S, SHORT_S = 1.0, 0.7  # lengths of a run
Where = Literal["direct", "lab"]
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


def default() -> list[Cell]:
    """Returns the cells with bounds, and a glimpse of the other loads: seven minutes."""
    udp_64, udp_1400, udp_8900 = LOADS[2:]
    ways = (MRCD, KERNEL, PLAIN)
    return [
        Cell("direct", 1500, "burst", 6, _TCP_1, ways, (KERNEL_ECMP, MPTCP)),
        Cell("direct", 1500, "burst", 6, _TCP_8, (MRCD, KERNEL), (PLAIN,)),
        Cell("direct", 1500, "burst", 6, udp_64, ways, glimpse=True),
        Cell("direct", 1500, "burst", 6, udp_1400, ways, glimpse=True),
        Cell("direct", 1500, "bundle", 6, _TCP_1, ways, glimpse=True),
        Cell("direct", 1500, "packet", 6, _TCP_1, ways),
        Cell("lab", 9100, "burst", 6, _TCP_1, ways, (KERNEL_ECMP, MPTCP)),
        Cell("lab", 9100, "burst", 6, _TCP_8, (MRCD, KERNEL), (PLAIN,)),
        Cell("lab", 9100, "burst", 6, udp_8900, ways, glimpse=True),
        Cell("lab", 9100, "burst", 4, _TCP_1, (MRCD, KERNEL), glimpse=True),
    ]


def full() -> list[Cell]:
    """Returns the whole matrix, ordered so that few labs are built."""
    places: tuple[Where, ...] = ("direct", "lab")
    granularities = get_args(Granularity)
    found = []
    for where, granularity, version, load in itertools.product(places, granularities, (6, 4), LOADS):
        ways = (MRCD, KERNEL, PLAIN) if version == 6 else (MRCD, KERNEL)
        context = (KERNEL_ECMP, MPTCP) if version == 6 and not load.packet_bytes else (KERNEL_ECMP,)
        mtu = 9100 if where == "lab" or load.packet_bytes > 1500 else 1500
        found.append(Cell(where, mtu, granularity, version, load, ways, context))
    return sorted(found, key=lambda c: (places.index(c.where), c.mtu, c.granularity))


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
    return f"{candidate}, GSO off" if cell.granularity == "packet" and candidate != MRCD else candidate


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
    seconds = options.seconds or (FULL_S if options.full else SHORT_S)
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
        d = _cell(lab, cell, rounds, seconds, every=options.pairs is not None)
        documents.append(d)
        tables.append(_table(cell, d))
        bounds += _bounds(cell, d["ratios"])
    notes = [*filter(None, [missing]), "All receive with RPS over all CPUs and GRO."]
    tables[-1] = replace(tables[-1], notes=[*tables[-1].notes, *notes])
    title, words = "Throughput beside what a host has without mrcd", "medians of interleaved runs, minimum to maximum"
    panels = [plot.Bars(d["name"], "Gbit/s", d["candidates"], "candidate", "bits_per_s", 1e-9) for d in documents]
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


def _cell(lab: Lab, cell: Cell, rounds: int, seconds: float, *, every: bool) -> Document:
    """Measures the candidates in turn: the context in the first rounds only, or in `every` round."""
    found = candidates.installed(lab, (*cell.compared, *cell.context), cell.version)
    events = NewEvents(lab, lab.fabric.hosts)
    runs: dict[str, list[Document]] = {c.name: [] for c in found}
    for number in range(rounds):
        turn = [c for c in found if every or number < CONTEXT_ROUNDS or c.name in cell.compared]
        for c in turn if number % 2 == 0 else reversed(turn):
            with candidates.receiving(lab, c.name):
                runs[c.name].append(_run(lab, c, cell.load, seconds))
        said = ", ".join(f"{c.name} {runs[c.name][-1]['bits_per_s'] / 1e9:.2f}" for c in turn)
        progress(f"  {number + 1}: {said} Gbit/s")
    return {
        "name": cell.name,
        "seconds": seconds,
        "candidates": [_summary(cell, c, runs[c.name]) for c in found],
        "ratios": [compared(c.name, runs[MRCD], runs[c.name]) for c in found if c.name in cell.compared[1:]],
        "withdrawals_without_a_fault": evs_of(events.read(to="ASSUMED_BAD")),
    }


def _summary(cell: Cell, c: Candidate, runs: Sequence[Document]) -> Document:
    goodputs = [r["bits_per_s"] for r in runs]
    medians = {
        f"median_{key}": median(r[key] for r in runs if r[key] is not None)
        for key in ("cpu_s_per_gbit", "cpu_busy_ratio", "retransmitted_segments", "packets_per_s", "lost_ratio")
        if any(r.get(key) is not None for r in runs)
    }
    return {
        "candidate": name_of(cell, c.name),
        "ours": c.name == MRCD,
        "what": c.words,
        "congestion_control": runs[0]["congestion_control"],
        "mss_bytes": runs[0]["mss_bytes"],
        "median_bits_per_s": median(goodputs),
        "min_bits_per_s": min(goodputs),
        "max_bits_per_s": max(goodputs),
        **medians,
        "runs": list(runs),
    }


def _run(
    lab: Lab,
    candidate: Candidate,
    load: Load,
    seconds: float,
    warm_up_s: float = _WARM_UP_S,
    late: Callable[[], list[int]] = list,
) -> Document:
    """Lets the flows start, then measures. Raises MachineError if they took another way.

    `late` reads counters of late skbs, whose growth is part of the result.
    """
    with contextlib.ExitStack() as stack:
        flows = [stack.enter_context(_flow(lab, candidate, load)) for _ in range(load.flows)]
        _poll(flows, warm_up_s)
        for flow in flows if candidate.protocol == "mptcp" else ():
            candidates.check_mptcp(lab, flow)
        carried, used, begin_ns = _nics(lab, candidate), machine.read_cpu(), time.monotonic_ns()
        before, late_before = sum(f.retransmitted_segments for f in flows), late()
        _poll(flows, seconds)
        end_ns, used = time.monotonic_ns(), machine.read_cpu().since(used)
        carried = [now - then for now, then in zip(_nics(lab, candidate), carried, strict=True)]
        retransmitted = sum(f.retransmitted_segments for f in flows) - before
        late_skbs = [now - then for now, then in zip(late(), late_before, strict=True)]
        for flow in flows:
            flow.finish()
    _check_way(candidate, load, carried)
    bits_per_s = sum(goodput.mean(f.bins, begin_ns, end_ns) or 0.0 for f in flows)
    gbit = bits_per_s * (end_ns - begin_ns) / 1e18
    first, packets = flows[0], Document()
    if isinstance(first, Datagrams):
        packets["packets_per_s"] = bits_per_s / 8 / first.payload_bytes
        packets["lost_ratio"] = 1 - first.received_packets / first.sent_packets if first.sent_packets else None
    return packets | {
        "bits_per_s": bits_per_s,
        "cpu_s_per_gbit": used.busy_s / gbit if gbit else None,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments": retransmitted,
        "late_skbs": late_skbs,
        "congestion_control": first.congestion_control,
        "mss_bytes": first.mss_bytes,
    }


def _flow(lab: Lab, candidate: Candidate, load: Load) -> Flow:
    if load.packet_bytes:
        return Datagrams(lab, candidate.ends, load.packet_bytes)
    return Flow(lab, candidate.ends, protocol=candidate.protocol)


def _poll(flows: Sequence[Flow], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for flow in flows:
            flow.poll(min(left, _LOOK_S) / len(flows))


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
        row = {"candidate": c["candidate"], "runs": len(c["runs"])}
        row |= {k: c[k] for k in ("median_bits_per_s", "min_bits_per_s", "max_bits_per_s")}
        row |= {"cpu_per_gbit_s": c.get("median_cpu_s_per_gbit"), "cpu_busy_ratio": c["median_cpu_busy_ratio"]}
        row |= {k: c[f"median_{k}"] for k in ("packets_per_s", "lost_ratio") if f"median_{k}" in c}
        rows.append(
            row | {"retransmitted": c["median_retransmitted_segments"], "mss": c["mss_bytes"], "what": c["what"]}
        )
    controls = sorted({c["congestion_control"] for c in d["candidates"]} - {"none"})
    notes = [
        f"  mrcd / {r['peer']}: goodput {words(r['goodput'])}; CPU per Gbit {words(r['cpu_per_gbit'])}"
        for r in d["ratios"]
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
            ways = candidates.installed(lab, (MRCD, MPTCP), options.versions[-1])
        with _limited(lab, case):
            found = _planes_case(lab, case, ways, options)
        rows += found
        goals = []
        if case.least:
            text = f"{case.name}: share of what the planes can carry that one TCP flow gets"
            bounds.append(Bound(text, case.least, "_ratio", is_least=True).judge(found[0]["median_ratio"]))
            goals = [(case.least, "wanted")]
        panels.append(plot.Bars(case.name, "% of the sum, after headers", found, "way", "ratio", 100, goals))
    title = "One TCP flow over four planes of limited rate"
    notes = ["LATE: skbs that the receiver's TCP sees behind data sent after them, and by how many bytes at most"]
    notes += [why] if (why := candidates.mptcp_missing()) else []
    shown = [{k: v for k, v in r.items() if k not in ("runs", "ours")} for r in rows]
    return Result([Table(title, shown, notes)], bounds, plot.Picture(title, "", panels, notes), {"cases": rows})


@contextlib.contextmanager
def _limited(lab: Lab, case: PlanesCase) -> Iterator[None]:
    """A block in which the last plane differs from the others."""
    target = f"nic:{TARGET}:{lab.fabric.parameters.planes - 1}"
    if case.delay:
        lab.fail(target, delay=case.delay, direction="down")
    elif case.rate_ratio != 1:
        lab.fail(target, rate=f"{case.rate_bits_per_s * case.rate_ratio:.0f}bit", direction="down")
    try:
        yield
    finally:
        lab.heal()


def _planes_case(lab: Lab, case: PlanesCase, ways: Sequence[Candidate], options: Options) -> list[Document]:
    """Measures as many runs of mrcd as its bound needs, else few."""
    few = PLANES_CONTEXT_RUNS if case.least else 1
    wanted = {w.name: PLANES_RUNS if options.full or (w.name == MRCD and case.least) else few for w in ways}
    wanted = dict.fromkeys(wanted, options.pairs) if options.pairs else wanted
    runs: dict[str, list[Document]] = {w.name: [] for w in ways}
    for n in range(max(wanted.values())):
        progress(f"planes: {case.name}, run {n + 1} of {max(wanted.values())}")
        for way in [w for w in ways if n < wanted[w.name]]:
            with candidates.receiving(lab, way.name):
                runs[way.name].append(_planes_run(lab, case, way, options.seconds or PLANES_S))
    found = []
    for name, mine in runs.items():
        ratios = [r["ratio"] for r in mine]
        late = [sum(r["late_skbs"][i] for r in mine) for i in range(order.BUCKETS)]
        row = {"planes": case.name, "way": name, "ours": name == MRCD, "runs": mine}
        row |= {"median_bits_per_s": median(r["bits_per_s"] for r in mine), "median_ratio": median(ratios)}
        row |= {"min_ratio": min(ratios), "max_ratio": max(ratios), "late_ratio": order.share_late(late)}
        row |= {f"late_p{p}_bytes": order.percentile(late, p / 100) for p in (50, 99)}
        found.append(row | {"retransmitted": median(r["retransmitted_segments"] for r in mine)})
    return found


def _planes_run(lab: Lab, case: PlanesCase, way: Candidate, seconds: float) -> Document:
    config, p = lab.fabric.config, lab.fabric.parameters
    ports = [*config.interface_names(config.host(TARGET)), config.overlay.interface]
    unchecked = replace(way, sprayed=None)
    with order.watching(lab.ns(TARGET), ports) as late:
        run = _run(lab, unchecked, _TCP_1, seconds, _PLANES_WARM_UP_S, late.late)
    mtu = p.mtu if way.name == MRCD else candidates.inner_mtu(lab)
    most = case.sum_bits_per_s * run["mss_bytes"] / (mtu + _ETHERNET)
    return run | {"ratio": run["bits_per_s"] / most}


BENCH = Bench("throughput", measure)
PLANES = Bench("planes", measure_planes)
