# SPDX-License-Identifier: BSD-2-Clause
"""Defines the cells of the throughput matrix, and the requirements of each. Pure.

A cell is a place, a granularity, an IP version and a load; the candidates are measured in it alternately.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labkit.bench import pairs
from labkit.bench.candidates import KERNEL, KERNEL_ECMP, MPTCP, MRCD, MRCD_ONE, OURS, PLAIN
from labkit.bench.part import requirement
from labkit.cluster.observe import Document
from mrcd.config.cluster_file import Granularity
from mrcd.errors import UsageError

Where = Literal["direct", "lab"]
MTU: dict[Where, int] = {"direct": 1500, "lab": 9100}
WORDS: dict[Where, str] = {"direct": "host to host", "lab": "lab"}
GOODPUT, CPU = "goodput", "CPU per Gbit"


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


def default(mtu: int | None) -> list[Cell]:
    """Returns the cells with requirements, and a glimpse of the other loads: seven minutes."""
    direct, lab = mtu or MTU["direct"], mtu or MTU["lab"]
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


def full(mtu: int | None) -> list[Cell]:
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
        at = mtu or (MTU["lab"] if load.packet_bytes > MTU["direct"] else MTU[where])
        cell = Cell(where, at, granularity, version, load, compared, context)
        if cell.fits:
            found.append(cell)
    order = {c: (places.index(c.where), c.mtu, granularities.index(c.granularity)) for c in found}
    return sorted(found, key=lambda c: order[c])


def chosen(cells: Sequence[Cell], versions: Sequence[int], only: Sequence[str]) -> list[Cell]:
    """Returns the cells of these IP versions that have all words of `only`. Raises UsageError if there is none."""
    known = {w for c in full(None) for w in c.words}
    for word in only:
        if word not in known:
            raise UsageError(f"--only {word}: no cell has this word", hint=f"words are {', '.join(sorted(known))}")
    found = [c for c in cells if c.version in versions and set(only) <= set(c.words)]
    if not found:
        raise UsageError(
            "no cell is selected", hint="--full has more cells; or give fewer --only words, or another --ip"
        )
    return found


@dataclass(frozen=True)
class Bound:
    """A bound of the median ratio of mrcd to a peer."""

    peer: str
    least: float | None = None  # of goodput
    most: float | None = None  # of CPU per Gbit


def bounds(cell: Cell) -> tuple[Bound, ...]:
    """Returns the bounds of a cell; most have none."""
    if cell.glimpse:
        return ()
    if cell.load == _TCP_8 and cell.granularity == "burst":
        if (cell.where, cell.mtu) == ("direct", MTU["direct"]):
            return (Bound(KERNEL, least=1.0, most=1.0),)
        return (Bound(KERNEL, least=0.95, most=1.1),) if (cell.where, cell.mtu) == ("lab", MTU["lab"]) else ()
    if cell.load != _TCP_1:
        return ()
    if cell.granularity == "packet":
        return (Bound(KERNEL, least=1.1),)
    if (cell.where, cell.mtu) == ("direct", MTU["direct"]):
        return Bound(KERNEL, least=1.2, most=1.0), Bound(PLAIN, least=0.85)
    if (cell.where, cell.mtu) == ("lab", MTU["lab"]):
        return (Bound(KERNEL, least=1.05, most=1.0),)
    return ()


def requirements(cell: Cell, ratios: Sequence[Document], bare: Document | None = None) -> list[Document]:
    """Returns the requirements of a cell, and whether they are met.

    `ratios`: documents of `compared`. `bare`: that of PLAIN and KERNEL, the ratio without any encapsulation.
    """
    found = []
    for bound in bounds(cell):
        for r in ratios:
            if r["peer"] != bound.peer:
                continue
            said = f"{cell.name}: mrcd / {name_of(cell, bound.peer)}, "
            middle = r["goodput"]["median"], r["cpu_per_gbit"]["median"]
            if bound.least is not None:
                met = middle[0] is not None and middle[0] >= bound.least
                words, measured = f"{said}{GOODPUT}, is at least {bound.least:g}", said_of(r["goodput"])
                if bare and bound.peer == KERNEL:
                    measured += f"; without any encapsulation {said_of(bare['goodput'])}"
                found.append(requirement(words, met, measured))
            if bound.most is not None:
                met = middle[1] is not None and middle[1] <= bound.most
                words = f"{said}{CPU}, is at most {bound.most:g}"
                found.append(requirement(words, met, said_of(r["cpu_per_gbit"])))
    return found


def said_of(ratio: Document) -> str:
    """Returns a text of a ratio; with few pairs only its median and range."""
    if ratio["low"] is None and ratio["median"] is not None:
        return f"median {ratio['median']:.3f} ({ratio['min']:.2f}–{ratio['max']:.2f}), {pairs.words(ratio)}"
    return pairs.words(ratio)


def name_of(cell: Cell, candidate: str) -> str:
    """Returns a candidate's name; in packet granularity the NICs' GSO is off for all candidates."""
    return f"{candidate}, GSO off" if cell.granularity == "packet" and candidate not in OURS else candidate


def compared(peer: str, mrcd: Sequence[Document], other: Sequence[Document]) -> Document:
    """Returns the ratios of mrcd's runs to a peer's, round by round, with intervals."""
    rounds = list(zip(mrcd, other, strict=True))
    cpu = [(a["cpu_s_per_gbit"], b["cpu_s_per_gbit"]) for a, b in rounds]
    return {
        "peer": peer,
        "goodput": pairs.compare([a["bits_per_s"] / b["bits_per_s"] for a, b in rounds if b["bits_per_s"]]),
        "cpu_per_gbit": pairs.compare([a / b for a, b in cpu if a and b]),
    }
