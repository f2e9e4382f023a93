"""What a part of the benchmark is."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.cluster.api import Lab
from labkit.cluster.observe import Document

SOURCE, TARGET = "h0", "h2"  # under different T0s


@dataclass(frozen=True)
class Options:
    """What the command line says. Times in seconds."""

    pairs: int | None = None  # each part has its own number
    seconds: float = 0.0  # of one measurement; 0: each part has its own
    warm_up_s: float = 0.4  # before it: TCP's start
    versions: tuple[int, ...] = (4, 6)  # of the inner IP
    full: bool = False  # throughput: the whole matrix
    mtu: int | None = None  # of throughput's links; each place has its own
    only: tuple[str, ...] = ()  # of throughput's cells, those with all of these words
    minutes: float = 10.0  # of calm, of alone
    faults: int = 200  # of each kind of failover
    kinds: tuple[str, ...] = ()  # of failover; all if empty
    cases: tuple[str, ...] = ()  # of calm; all if empty
    figures: tuple[str, ...] = ()  # of paper; all if empty
    flows: int = 1  # of paper, at once
    peers: tuple[int, ...] = ()  # of scale; all sizes if empty


@dataclass(frozen=True)
class Part:
    """Measures something in a lab that it brings up as it needs it.

    `measure` returns a document of plain numbers, with units in the names, and with `requirements`: a list
    of `requirement`'s documents. `lines` renders it, and `picture`, if there is one, draws it: an SVG.
    """

    name: str
    measure: Callable[[Lab, Options], Document]
    lines: Callable[[Document], list[str]]
    picture: Callable[[Document], str] | None = None


def requirement(words: str, met: bool, measured: str) -> Document:
    """A stated requirement, and whether it was met."""
    return {"requirement": words, "met": met, "measured": measured}
