# SPDX-License-Identifier: BSD-2-Clause
"""Defines a part of the benchmark, and its options."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.cluster.api import Lab
from labkit.cluster.observe import Document

SOURCE, TARGET = "h0", "h2"  # under different T0s


@dataclass(frozen=True)
class Options:
    """The options of the command line. Times in seconds."""

    pairs: int | None = None  # None: the part's own number
    seconds: float = 0.0  # of one measurement; 0: the part's own
    warm_up_s: float = 0.4  # before a measurement: TCP's start
    versions: tuple[int, ...] = (4, 6)  # of the inner IP
    full: bool = False  # throughput: the whole matrix
    mtu: int | None = None  # of throughput's links; None: the place's own
    only: tuple[str, ...] = ()  # throughput: only cells with all of these words
    minutes: float = 10.0  # of the parts calm and alone
    faults: int = 200  # faults of each kind of failover
    kinds: tuple[str, ...] = ()  # of failover; all if empty
    cases: tuple[str, ...] = ()  # of calm; all if empty
    figures: tuple[str, ...] = ()  # of paper; all if empty
    flows: int = 1  # concurrent flows of paper
    peers: tuple[int, ...] = ()  # of scale; all sizes if empty
    short: bool = False  # try the part; what it measures is not judged


@dataclass(frozen=True)
class Part:
    """Measures something in a lab that it brings up as needed.

    `measure` returns a document of plain numbers, with units in the names, and with `requirements`: a list
    of documents of `requirement`. `lines` renders it, and `picture`, if there is one, draws it as SVG.
    """

    name: str
    measure: Callable[[Lab, Options], Document]
    lines: Callable[[Document], list[str]]
    picture: Callable[[Document], str] | None = None


def requirement(words: str, met: bool, measured: str) -> Document:
    """Returns a stated requirement, and whether it was met."""
    return {"requirement": words, "met": met, "measured": measured}
