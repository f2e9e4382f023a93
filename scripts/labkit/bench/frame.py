# SPDX-License-Identifier: BSD-2-Clause
"""Defines a bench: its options, its bounds, and the tables and the picture that it returns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from labkit import plot
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.tables import shown, table
from mrcd.errors import UsageError


@dataclass(frozen=True)
class Options:
    """The options of the command line. Times in seconds."""

    pairs: int | None = None  # None: the bench's own number
    seconds: float | None = None  # of one measurement; None: the bench's own
    versions: tuple[int, ...] = (4, 6)  # of the inner IP
    full: bool = False
    only: tuple[str, ...] = ()  # cells, cases or sizes with all of these words
    minutes: float = 10.0  # of a case of calm, and of alone
    faults: int = 200  # faults of each kind of failover
    kinds: tuple[str, ...] = ()  # of failover; all if empty
    figures: tuple[str, ...] = ()  # of paper; all if empty
    peers: tuple[int, ...] = ()  # of scale; all sizes if empty
    ablate: bool = False  # job: also with one part of mrcd off at a time
    short: bool = False  # try the bench; what it measures is not judged


@dataclass(frozen=True)
class Bound:
    """A limit on what was measured. `unit`: the end of a key of `tables.shown`, such as `_ns`."""

    words: str
    limit: float
    unit: str
    is_least: bool = False

    def judge(self, value: float | None) -> Document:
        """Returns the value, and whether it is within the limit; None is worse than any limit."""
        met = value is not None and (value >= self.limit if self.is_least else value <= self.limit)
        return {
            "bound": self.words,
            "limit": self.limit,
            "value": value,
            "met": met,
            "wanted": f"{'≥' if self.is_least else '≤'} {shown(self.unit, self.limit)}",
            "measured": shown(self.unit, value),
        }


def unmeasured(what: str, why: str) -> Document:
    """Returns the bound that something can be measured, which is not met."""
    words = {"bound": f"{what} can be measured", "wanted": "yes", "measured": f"no: {why}"}
    return {**words, "limit": None, "value": None, "met": False}


@dataclass(frozen=True)
class Table:
    """Rows of plain numbers, with units at the end of their keys. `notes` explain them."""

    title: str
    rows: Sequence[Document]
    notes: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Returns the title, the rows and the notes."""
        return [self.title, *table(self.rows), *self.notes, ""]


@dataclass(frozen=True)
class Result:
    """The measurements of a bench. `detail`: more numbers, which only the JSON document shows."""

    tables: Sequence[Table]
    bounds: Sequence[Document]  # of `judge`
    picture: plot.Picture | None = None
    detail: Document = field(default_factory=dict)

    def as_json(self) -> Document:
        """Returns all but the picture."""
        tables = {t.title: list(t.rows) for t in self.tables}
        return {"bounds": list(self.bounds), "tables": tables, **self.detail}


@dataclass(frozen=True)
class Bench:
    """A bench: `measure` brings up the lab as it needs it."""

    name: str
    measure: Callable[[Lab, Options], Result]


def check_only(only: Sequence[str], known: Sequence[str]) -> None:
    """Raises UsageError if a word of --only is none of these."""
    for word in only:
        if word not in known:
            raise UsageError(f"--only {word}: there is no such case", hint=f"the cases are {', '.join(known)}")


def evs_of(events: Iterable[Document]) -> int:
    """Returns how many EVs have changed: an event can be the sum of many (health/event_reader.py)."""
    return sum(e["evidence"].get("evs", 1) for e in events)


class NewEvents:
    """The events of EVs in some hosts since this object was made."""

    def __init__(self, lab: Lab, hosts: Sequence[str]) -> None:
        self._lab = lab
        self._last = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in hosts}

    def read(self, *, to: str | None = None) -> list[Document]:
        """Returns them, with `host`; only those to a state, if one is given."""
        found = [e | {"host": h} for h, last in self._last.items() for e in observe.events(self._lab, h, last)]
        return [e for e in found if e["kind"] == "ev" and to in (None, e["to"])]
