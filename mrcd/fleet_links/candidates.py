# SPDX-License-Identifier: BSD-2-Clause
"""Picks the elements of a plane that may lose packets, by sums that are cheap to read. Pure."""

import numpy as np

from mrcd.fleet_links.counts import Floats
from mrcd.fleet_links.elements import Direction, Element, Kind
from mrcd.fleet_links.model import Model

_TRIED = 6  # elements of each kind
_TRIED_HOSTS = 12
_LEAST_VARIANCES = 4.0
_LEAST = 1.0  # of the log likelihood: what a cell can gain at least to be looked at


def candidates(model: Model, plane: int) -> list[Element]:
    """Returns the most suspicious elements of each kind in a plane."""
    return sorted(_switches_and_links(model, plane) | _nics(model, plane))  # sorted, so that ties are decided alike


def excess(lost: Floats, expected: Floats) -> Floats:
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
    uplink, peer_t0 = (excess(grid.lost[p], grid.expected(p)) for grid in (model.uplink, model.peer_t0))
    for at in _top(uplink.ravel(), _TRIED):
        found.add(Element(Kind.LINK, Direction.UP, p, *divmod(at, model.t1s)))
    t1s = _top(uplink.sum(axis=0), _TRIED)
    by_source = peer_t0.sum(axis=1)
    t0s = _top(peer_t0.sum(axis=0), _TRIED)
    # The losses that one link of a T0 explains, with a margin, can hide another of its links.
    of_links = {*t0s, *(e.t0 for e in model.chosen if e.is_downlink and e.plane == p)}
    found |= {Element(Kind.LINK, Direction.DOWN, p, t0, t1) for t0 in of_links for t1 in t1s}
    found |= {Element(Kind.T1, Direction.BOTH, p, t1=t1) for t1 in t1s}
    found |= {Element(Kind.T0, Direction.UP, p, t0) for t0 in _top(by_source, _TRIED)}
    return found | {Element(Kind.T0, Direction.DOWN, p, t0) for t0 in t0s}


def _nics(model: Model, p: int) -> set[Element]:
    """Returns the NICs of hosts that lose more than others of their T0."""
    fleet = model.fleet
    sent, expected = model.peer_t0.sent[p].sum(axis=1), model.peer_t0.expected(p).sum(axis=1)
    usual = np.divide(expected, sent, out=np.full_like(sent, model.noise), where=sent > 0)
    of_sender = excess(fleet.host.lost[:, p], fleet.host.sent[:, p] * usual[fleet.t0_of_host])
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
    of_receiver = excess(
        *(np.bincount(fleet.peer_host, v, model.hosts).astype(float) for v in (model.peer.lost, expected))
    )
    # A receiver's losses on all planes cannot exceed, in this plane, the losses to its T0: by source, or in sum.
    to_t0 = model.peer_t0.lost[p]
    of_t0 = np.maximum(excess(to_t0, expected_to_t0).sum(axis=0), excess(to_t0.sum(axis=0), expected_to_t0.sum(axis=0)))
    return _top(np.minimum(of_receiver, of_t0[fleet.t0_of_host]), _TRIED_HOSTS)
