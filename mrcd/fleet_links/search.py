# SPDX-License-Identifier: BSD-2-Clause
"""Finds the fewest links, NICs and switches that explain where a fleet loses packets. Pure.

In each plane elements are chosen one by one, each time the one that raises the likelihood most. The losses of the
chosen ones are then fitted again, one coordinate after the other. This ends when no element is worth its price: the
logarithm of the number of elements of its kind. Where a plane has several faults, the order matters: the search is
repeated with switches first, and with links and NICs first, and the likeliest result stays. A T1 that rails share is
chosen with the elements of its first plane, by the losses on all its planes.

NetBouncer (NSDI 2019) fits all links by coordinate descent. Flock (arXiv 2305.03348) chooses the fewest by likelihood.
Here both work on sums that hosts can export.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mrcd.fleet_links.counts import Direction, Element, Fleet, Floats, Kind
from mrcd.fleet_links.likelihood import NOTHING, Fit, fit
from mrcd.fleet_links.model import Model

LEAST_RATIO = 3e-5  # a smaller loss may be congestion
LEAST_LOST = 8.0  # packets: fewer may be one disturbance
_NOISE_FACTOR = 10.0  # the loss of an element is at least that many times the usual one
_AGREE = 3.0  # each view has at least the lost packets of an element, divided by this
# Least share of the losses that are where they were predicted: a pair of hosts uses some T1s only.
_EVEN = {Kind.LINK: 0.15, Kind.NIC: 0.2, Kind.T0: 0.5, Kind.T1: 0.5}
_EVEN_OF_SENDER = 0.45  # less: one of its receivers loses the packets
_LEAST_SCORE = 10.0  # of the log likelihood, beyond the price
_LEAST_EVIDENCE = 75.0  # of the log likelihood, all views, where each cell weighs by its variance
_LEAST_SECOND = 20.0  # of the view that has most but one: one alone may be another fault, not quite explained
_MOST_CHOSEN = 16  # in a plane
_MORE = 3  # elements than the first search found
_WORTH = 0.03  # of what is explained otherwise: an element more must explain so much more
_ALTERNATIVE = 0.05  # probability
_TRIED = 6  # elements of each kind
_TRIED_HOSTS = 12
_LEAST_VARIANCES = 4.0
_LEAST = 1.0  # of the log likelihood: what a cell can gain at least to be looked at

Choice = Callable[[Element], bool]


def _is_any(_: Element) -> bool:
    return True


def _is_switch(e: Element) -> bool:
    return e.kind in (Kind.T0, Kind.T1)


def _is_narrow(e: Element) -> bool:
    return e.kind is Kind.NIC or (e.kind is Kind.LINK and e.direction is Direction.UP)


_ORDERS: tuple[tuple[Choice, ...], ...] = ((_is_any,), (_is_switch, _is_any), (_is_narrow, _is_any))


@dataclass(frozen=True)
class Found:
    """An element that loses packets.

    `ratio` is its least loss ratio: hosts leave lossy paths, and what they would have sent there is not known.
    `confidence` is the probability that it is this element and not one of `alternatives`, given that it is one.
    """

    element: Element
    ratio: float
    lost: float
    confidence: float
    alternatives: tuple[Element, ...]


class Result(NamedTuple):
    """The chosen elements of a plane, and by how much they raise the log likelihood, less their prices."""

    value: float
    chosen: dict[Element, Fit]


def better(first: Result, second: Result) -> Result:
    """Returns the likelier of two results; of two that are nearly as likely, the one with fewer elements.

    Many elements always fit a little better than one, because packets are not spread quite evenly.
    """
    only_first, only_second = ({e: f for e, f in a.chosen.items() if e not in b.chosen}
                               for a, b in ((first, second), (second, first)))  # fmt: skip
    more = len({e.part for e in only_second}) - len({e.part for e in only_first})
    explained = sum(f.gain for f in (only_first if more > 0 else only_second).values())
    return second if second.value - first.value > _WORTH * more * explained else first


def localise(fleet: Fleet) -> list[Found]:
    """Returns the elements that lose packets, those that lose most first."""
    search = _Search(fleet)
    for plane in search.planes():
        search.explain(plane)
    # Sums by peer have all planes: what others explain now, their losses hid before.
    for plane in search.planes():
        if search.is_unexplained(plane):
            search.explain(plane)
    return search.found()


class _Search:
    def __init__(self, fleet: Fleet) -> None:
        self._model = Model(fleet)
        planes, t0s, t1s, hosts = fleet.shape
        links = max(1, t0s * t1s)
        self._price = {
            kind: math.log(planes * number)
            for kind, number in (
                (Kind.LINK, 2 * links), (Kind.NIC, 2 * hosts), (Kind.T1, max(1, t1s) / fleet.rails), (Kind.T0, 2 * t0s)
            )
        }  # fmt: skip
        self._first_planes = range(planes // fleet.rails)

    def planes(self) -> list[int]:
        """Returns all planes: first those with T1s of their own, and of these, those that lose most."""
        self._model.measure_noise()
        grid = self._model.peer_t0
        by_loss = np.argsort(-_excess(grid.lost, grid.expected()).sum(axis=(1, 2))).tolist()
        return sorted(by_loss, key=lambda p: p not in self._first_planes)

    def explain(self, plane: int) -> None:
        """Chooses the elements of a plane."""
        best = self._tried(plane, _ORDERS[0], _MOST_CHOSEN)
        if not all(map(_is_narrow, best.chosen)) and len({e.part for e in best.chosen}) > 1:
            for order in _ORDERS[1:]:
                best = better(best, self._tried(plane, order, len(best.chosen) + _MORE))
        self._choose(plane, best.chosen)

    def is_unexplained(self, plane: int) -> bool:
        """Fits the chosen elements of a plane again. Returns whether some are not needed, or others are."""
        before = self._chosen(plane).keys()
        self._fit_again(plane)
        self._drop_unneeded(plane)
        return self._chosen(plane).keys() != before or any(
            s >= _LEAST_SCORE for s, _, _ in self._scores(plane, _is_any)
        )

    def _choose(self, plane: int, chosen: dict[Element, Fit]) -> None:
        """Replaces the chosen elements of a plane."""
        for e in self._chosen(plane):
            self._model.set(e, NOTHING)
        for e, losses in chosen.items():
            self._model.set(e, losses)
        self._model.measure_margin()

    def _chosen(self, plane: int) -> dict[Element, Fit]:
        return {e: losses for e, losses in self._model.chosen.items() if e.plane == plane}

    def _tried(self, plane: int, order: tuple[Choice, ...], most: int) -> Result:
        """Returns what a search in some order finds, of `most` elements at most."""
        self._choose(plane, {})
        for is_wanted in order:
            dropped: set[Element] = set()
            while len(self._chosen(plane)) < most:
                scores = [s for s in self._scores(plane, is_wanted) if s[1] not in dropped]
                score, e, losses = max(scores, key=lambda s: s[0], default=(0.0, None, NOTHING))
                if e is None or score < _LEAST_SCORE:
                    break
                before = self._chosen(plane).keys()
                self._model.set(e, losses)
                self._fit_again(plane)
                dropped |= {e, *before} - self._chosen(plane).keys()
        self._drop_unneeded(plane)
        best = self._result(plane)
        for pair in itertools.combinations([e for e in best.chosen if e.is_downlink], 2):
            if best.chosen.keys() >= set(pair):
                best = better(best, self._exchanged(plane, best.chosen, *pair))
        return best

    def _result(self, plane: int) -> Result:
        chosen = self._chosen(plane)
        prices = {e.part: self._price[e.kind] for e in chosen}
        return Result(self._model.likelihood(plane) - sum(prices.values()), chosen)

    def _exchanged(self, plane: int, chosen: dict[Element, Fit], first: Element, second: Element) -> Result:
        """Returns the result with the T1s of two downlinks exchanged: sums by T1 and by T0 are nearly the same then."""
        self._choose(plane, {e: losses for e, losses in chosen.items() if e not in (first, second)})
        for e in (replace(first, t1=second.t1), replace(second, t1=first.t1)):
            self._model.set(e, fit(self._model.views(e)))
        self._fit_again(plane)
        self._drop_unneeded(plane)
        return self._result(plane)

    def _scores(self, plane: int, is_wanted: Choice) -> list[tuple[float, Element | None, Fit]]:
        """Returns the scores of the suspicious elements of a plane that could be chosen."""
        tried = [e for e in _candidates(self._model, plane) if is_wanted(e) and e not in self._model.chosen]
        fits = [(e, fit(self._model.views(e))) for e in tried]
        return [(self._score(e, f), e, f) for e, f in fits if self._is_fault(e, f) and f.evidence >= _LEAST_EVIDENCE]

    def _score(self, e: Element, losses: Fit) -> float:
        """Returns the gain of an element less its price; the other direction of the same part costs nothing."""
        is_known = any(e.part == other.part for other in self._model.chosen)
        return losses.gain - (0.0 if is_known else self._price[e.kind])

    def _is_fault(self, e: Element, found: Fit) -> bool:
        return (
            found.ratio >= max(LEAST_RATIO, _NOISE_FACTOR * self._model.noise)
            and found.lost >= LEAST_LOST
            and found.least * _AGREE >= 1
            and found.even >= (_EVEN_OF_SENDER if e.is_sender else _EVEN[e.kind])
        )

    def _fit_again(self, plane: int) -> None:
        """Fits the losses of each chosen element again, and drops those that lose nothing now."""
        for e in self._chosen(plane):
            if not e.is_sender:
                self._model.set(e, NOTHING)
                losses = fit(self._model.views(e))
                if self._is_fault(e, losses):
                    self._model.set(e, losses)
        self._model.measure_margin()

    def _drop_unneeded(self, plane: int) -> None:
        """Takes out elements that those chosen later explain."""
        for e, losses in sorted(self._chosen(plane).items(), key=lambda c: c[1].lost):
            self._model.set(e, NOTHING)
            now = fit(self._model.views(e))
            has_evidence = now.evidence >= _LEAST_EVIDENCE and now.second >= _LEAST_SECOND
            if self._score(e, now) >= _LEAST_SCORE and has_evidence:
                self._model.set(e, losses)

    def found(self) -> list[Found]:
        """Returns the chosen elements, with others that would explain the same."""
        found = [self._alternatives(e, losses) for e, losses in list(self._model.chosen.items())]
        return sorted(found, key=lambda f: -f.lost)

    def _alternatives(self, e: Element, losses: Fit) -> Found:
        model = self._model
        model.set(e, NOTHING)
        mine = self._score(e, fit(model.views(e)))
        others = [(other, s) for s, other, _ in self._scores(e.plane, _is_any) if other is not None and other != e]
        model.set(e, losses)
        weights = {other: math.exp(min(0.0, s - mine)) for other, s in others}
        total = 1 + sum(weights.values())
        likely = [other for other, w in weights.items() if w / total >= _ALTERNATIVE and other.part != e.part]
        return Found(e, losses.ratio, losses.lost, 1 / total, tuple(sorted(likely)))


# ---- what is tried: the elements of a plane that may lose packets, by sums that are cheap to read ----


def _candidates(model: Model, plane: int) -> list[Element]:
    """Returns the most suspicious elements of each kind in a plane."""
    return sorted(_switches_and_links(model, plane) | _nics(model, plane))  # sorted, so that ties are decided alike


def _excess(lost: Floats, expected: Floats) -> Floats:
    """Returns by how much the likeliest mean of a cell raises its log likelihood, where it loses more than expected.

    Cells that lose a little more are left out: they are many.
    """
    found = np.zeros_like(lost)
    beyond = np.maximum(lost - expected, 0.0)
    more = (beyond * beyond > _LEAST_VARIANCES * expected) & (expected > 0)
    n, rest = lost[more], expected[more]
    found[more] = n * np.log(n / rest) - (n - rest)
    return found


def _top(values: Floats, count: int) -> list[int]:
    """Returns the places of the largest values."""
    some = np.flatnonzero(values > _LEAST)  # few: argpartition is slow where most values are zero
    if len(some) > count:
        some = some[np.argpartition(values[some], -count)[-count:]]
    return [int(i) for i in some]


def _switches_and_links(model: Model, p: int) -> set[Element]:
    found: set[Element] = set()
    uplink, peer_t0 = (_excess(grid.lost[p], grid.expected(p)) for grid in (model.uplink, model.peer_t0))
    for at in _top(uplink.ravel(), _TRIED):
        found.add(Element(Kind.LINK, Direction.UP, p, *divmod(at, model.t1s)))
    t1s = _top(uplink.sum(axis=0), _TRIED)
    by_source = peer_t0.sum(axis=1)
    t0s = _top(peer_t0.sum(axis=0), _TRIED)
    # The losses that one link of a T0 explains, with a margin, can hide another of its links.
    of_links = {*t0s, *(e.t0 for e in model.chosen if e.is_downlink and e.plane == p)}
    found |= {Element(Kind.LINK, Direction.DOWN, p, t0, t1) for t0 in of_links for t1 in t1s}
    planes = model.fleet.t1_planes(p)
    if p == planes.start:
        uplinks = _excess(model.uplink.lost[planes], model.uplink.expected(planes))
        of_planes = _top(uplinks.sum(axis=(0, 1)), _TRIED)
        found |= {Element(Kind.T1, Direction.BOTH, p, t1=t1) for t1 in of_planes}
    found |= {Element(Kind.T0, Direction.UP, p, t0) for t0 in _top(by_source, _TRIED)}
    return found | {Element(Kind.T0, Direction.DOWN, p, t0) for t0 in t0s}


def _nics(model: Model, p: int) -> set[Element]:
    """Returns the NICs of hosts that lose more than others of their T0."""
    fleet = model.fleet
    sent, expected = model.peer_t0.sent[p].sum(axis=1), model.peer_t0.expected(p).sum(axis=1)
    usual = np.divide(expected, sent, out=np.full_like(sent, model.noise), where=sent > 0)
    of_sender = _excess(fleet.host.lost[:, p], fleet.host.sent[:, p] * usual[fleet.t0_of_host])
    of_sender[[e.host for e in model.chosen if e.is_sender and e.plane == p]] = 0.0
    senders = _top(of_sender, _TRIED_HOSTS)
    model.read(senders)
    receivers = _receivers(model, p, model.peer.expected(), model.peer_t0.expected(p))
    # The explained losses, with a margin, can hide a NIC.
    receivers += _receivers(model, p, model.peer.usual(), model.peer_t0.usual(p))
    found = {Element(Kind.NIC, Direction.UP, p, host=h) for h in senders}
    return found | {Element(Kind.NIC, Direction.DOWN, p, host=h) for h in receivers}


def _receivers(model: Model, p: int, expected: Floats, expected_to_t0: Floats) -> list[int]:
    """Returns the hosts to which most is lost beyond what is expected, by peer and by T0."""
    fleet = model.fleet
    of_receiver = _excess(
        *(np.bincount(fleet.peer_host, v, model.hosts).astype(float) for v in (model.peer.lost, expected))
    )
    # A receiver's losses on all planes cannot exceed, in this plane, the losses to its T0: by source, or in sum.
    to_t0 = model.peer_t0.lost[p]
    of_t0 = np.maximum(
        _excess(to_t0, expected_to_t0).sum(axis=0), _excess(to_t0.sum(axis=0), expected_to_t0.sum(axis=0))
    )
    return _top(np.minimum(of_receiver, of_t0[fleet.t0_of_host]), _TRIED_HOSTS)
