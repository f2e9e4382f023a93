# SPDX-License-Identifier: BSD-2-Clause
"""Fits the lost packets of one element to counts. Pure.

Losses are rare, so the lost packets of a cell are Poisson distributed. Their mean is what is expected without the
element, plus the element's losses times the cell's share of the packets that cross it. A cell weighs by its packets, as
with a binomial likelihood.

All views show the same lost packets, so all have the same number. Their loss ratios may differ, because hosts leave
lossy paths, and the packets that would have crossed the element are known in some views only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mrcd.fleet_links.counts import Floats

_STEPS = 20
_CLOSE = 1e-3
_LEAST_EXPECTED = 1e-9  # packets
_LEAST_FAR = 0.1  # of an element's packets: with so many between different T0s, others are not needed


class Cells(NamedTuple):
    """Lost packets, those that are expected without the element, and packets that crossed the element.

    `expected` has a margin; `usual` is the same without. `is_far`: packets between different T0s. Others have fewer
    EVs, and so lose fewer packets until these are left. `weight`: of a cell's likelihood, the mean of its losses
    divided by their variance.
    """

    lost: Floats
    expected: Floats
    usual: Floats
    crossing: Floats
    is_far: NDArray[np.bool_]
    weight: Floats

    def far(self) -> "Cells":
        """Returns the cells of packets between different T0s."""
        at = self.is_far
        return Cells(
            self.lost[at], self.expected[at], self.usual[at], self.crossing[at], self.is_far[at], self.weight[at]
        )


class Views(NamedTuple):
    """The cells of each sum. Packets between hosts under one T0 are not in `uplink`."""

    uplink: Cells
    peer_t0: Cells
    peer: Cells


class Fit(NamedTuple):
    """The likeliest number of lost packets, how much it raises the log likelihood of a view, and loss ratios.

    `ratio` is that of uplinks and peers' T0s, `pair_ratio` that of peers. `least` is the share of the losses that the
    view with fewest lost packets has beyond the usual ones. `even` is the share of the losses that was seen where it
    was predicted, in the view where that is least. `evidence` is the gain of all views, where each cell has its
    weight; `second` is that of the view that has most but one, without margins.
    """

    lost: float
    gain: float
    ratio: float
    pair_ratio: float
    least: float
    even: float
    evidence: float
    second: float


NOTHING = Fit(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def fit(views: Views) -> Fit:
    """Returns the likeliest losses of an element."""
    near, views = _near_and_far(views)
    packets, of_pairs = float(views.peer_t0.crossing.sum()), float(views.peer.crossing.sum())
    if packets <= 0 or of_pairs <= 0:
        return NOTHING
    lost = np.concatenate([v.lost for v in views])
    some = lost > 0
    n = lost[some]
    if not len(n):
        return NOTHING
    expected = np.maximum(np.concatenate([v.expected for v in views])[some], _LEAST_EXPECTED)
    totals = (packets, packets, of_pairs)
    all_shares = np.concatenate([v.crossing / total for v, total in zip(views, totals, strict=True)])
    shares, share = float(all_shares.sum()), np.maximum(all_shares[some], 0.0)
    if float((n * share / expected).sum()) <= shares:
        return NOTHING
    found, most = max(1e-3, float((n * (share > 0)).sum()) / shares), min(packets, of_pairs)
    for _ in range(_STEPS):
        # Newton's method in the logarithm, where the likelihood of a rare loss is nearly quadratic
        part = found * share / (expected + found * share)
        slope = float((n * part).sum()) - found * shares
        bend = float((n * part * (1 - part)).sum()) - found * shares
        step = float(np.clip(-slope / bend if bend < 0 else np.sign(slope), -2.0, 2.0))
        found = min(most, found * float(np.exp(step)))
        if abs(step) < _CLOSE or (found == most and step > 0):
            break
    gain = float((n * np.log1p(found * share / expected)).sum()) - found * shares
    # The explained losses of other elements may be wrong by their margin.
    beyond = [float((v.lost - 2 * v.usual + v.expected)[v.crossing > 0].sum()) for v in views if v.crossing.any()]
    return Fit(
        lost=found + near,
        gain=gain / len(views),
        ratio=found / packets,
        pair_ratio=found / of_pairs,
        least=min(beyond) / found,
        even=min(_evenness(v, found / total) for v, total in zip(views, totals, strict=True)),
        evidence=sum(_evidence(v, v.expected, found / total) for v, total in zip(views, totals, strict=True)),
        second=_second(
            [_evidence(v, v.usual, found / t) for v, t in zip(views, totals, strict=True) if v.crossing.any()]
        ),
    )


def _near_and_far(views: Views) -> tuple[float, Views]:
    """Returns the lost packets between hosts of one T0, and the views without these, if enough others are left."""
    peer_t0, is_far = views.peer_t0, views.peer_t0.is_far
    if is_far.all() or peer_t0.crossing[is_far].sum() < _LEAST_FAR * peer_t0.crossing.sum():
        return 0.0, views
    near = float((peer_t0.lost - peer_t0.usual)[~is_far].sum())
    return max(0.0, near), Views(*(v.far() for v in views))


def _second(values: list[float]) -> float:
    """Returns the largest value but one; the only one, if there are no others."""
    return sorted(values)[-2:][0]


def _evidence(view: Cells, expected: Floats, ratio: float) -> float:
    """Returns by how much losses raise the log likelihood of a view, where each cell weighs by its variance."""
    some = view.lost > 0
    more = ratio * np.maximum(view.crossing[some], 0.0) / np.maximum(expected[some], _LEAST_EXPECTED)
    gain = float((view.weight[some] * view.lost[some] * np.log1p(more)).sum())
    return gain - ratio * float((view.weight * view.crossing).sum())


def _evenness(view: Cells, ratio: float) -> float:
    """Returns which share of the predicted losses was seen where it was predicted."""
    predicted = ratio * view.crossing[view.is_far]
    seen = np.clip((view.lost - view.usual)[view.is_far], 0.0, predicted)
    total = float(predicted.sum())
    return float(seen.sum()) / total if total else 1.0
