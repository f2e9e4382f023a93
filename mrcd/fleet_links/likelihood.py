# SPDX-License-Identifier: BSD-2-Clause
"""Compares sums with what is expected of them, and fits the lost packets of one element to them. Pure.

Losses are rare, so the lost packets of a cell are Poisson distributed. Their mean is what is expected without the
element, plus the element's losses times the cell's share of the packets that cross it. A cell weighs by its packets, as
with a binomial likelihood.

All views show the same lost packets, so all have the same number. Their loss ratios may differ, because hosts leave
lossy paths, and the packets that would have crossed the element are known in some views only.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mrcd.fleet_links.counts import Floats, Sums

_STEPS = 20
_CLOSE = 1e-3
_LEAST_EXPECTED = 1e-9  # packets
_LEAST_FAR = 0.1  # of an element's packets: with so many between different T0s, others are not needed
LEAST_NOISE = 1e-6  # a fabric without any fault still loses this share now and then
_USUAL_SHARE = 0.5  # of the cells: those that lose least show the noise
_FEW = 0.25  # of the planes: those that lose least show what is usual
NIC_CLUMP = 20.0  # the variance of a NIC's usual losses divided by their mean
_COUNTED = 30.0  # lost packets that a cell needs to show how exact the explanation is
_MOST_CLUMP = 100.0  # packets: an EV is left before it loses more. What else is measured, another fault has lost.
_MOST, _CHI2 = 0.9, 2.71  # a quantile: other causes are in few cells; and that of χ² with one degree of freedom


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


class Grid:
    """Sent and lost packets per cell; the usual loss ratio; and the losses that chosen elements explain."""

    def __init__(self, sums: Sums, noise: Any, noise_clump: float = 1.0) -> None:
        """Starts with this usual loss ratio, and explains nothing.

        `noise_clump`: the variance of the usual losses divided by their mean. NICs differ; sums of many differ less.
        """
        self.sent, self.lost = sums.sent.astype(float), sums.lost.astype(float)
        self.set_noise(noise)
        self._noise_clump = noise_clump
        self.explained = np.zeros_like(self.sent)
        self.margin = 1.0
        """Factor: losses up to this many times the explained ones need no other cause."""
        self.clump = 1.0
        """The variance of the explained losses divided by their mean: EVs are few, and each loses several packets."""

    def set_noise(self, noise: Any) -> None:
        """Sets the usual loss ratio, of any shape that fits the cells."""
        self.noise = np.broadcast_to(np.asarray(noise, float), self.sent.shape)

    def usual(self, at: Any = ...) -> Floats:
        """Returns the lost packets that are expected in some cells."""
        return np.asarray(self.noise[at] * self.sent[at] + self.explained[at])

    def expected(self, at: Any = ...) -> Floats:
        """Returns the lost packets that some cells may have without another cause."""
        return np.asarray(self.noise[at] * self.sent[at] + self.margin * self.explained[at])

    def cells(self, at: Any, crossing: Any, is_far: Any = True, is_summed: bool = False) -> Cells:
        """Returns some cells, of which `crossing` packets cross an element; summed over their last dimension but one.

        Of a sum, only the cells that are `is_far` count.
        """
        parts: list[Any] = [self.lost[at], self.noise[at] * self.sent[at], self.explained[at]]
        if is_summed:
            lost, noise, explained = ((part * is_far).sum(axis=-2).ravel() for part in parts)
            sent, is_far = crossing.sum(axis=-2).ravel(), True
        else:
            lost, noise, explained, sent = (np.atleast_1d(np.asarray(v, float)).ravel() for v in (*parts, crossing))
        usual = noise + explained
        variance = self._noise_clump * noise + self.clump * explained
        weight = np.divide(usual, variance, out=np.ones_like(usual), where=variance > 0)
        expected = noise + self.margin * explained
        return Cells(lost, expected, usual, sent, np.broadcast_to(is_far, sent.shape), weight)

    def errors(self) -> Floats:
        """Returns by how much cells differ from what is explained, as ratios. Measures the variance of these losses."""
        at = np.flatnonzero(self.explained > _COUNTED)
        lost, explained = self.lost.ravel()[at], self.explained.ravel()[at]
        measured = float(np.quantile((lost - explained) ** 2 / explained, _MOST)) / _CHI2 if len(lost) else 1.0
        self.clump = min(max(1.0, measured), _MOST_CLUMP)
        usual = self.noise.flat[at] * self.sent.ravel()[at]
        return np.asarray(np.abs(lost / explained - 1)[explained > 10 * usual])

    def likelihood(self, at: Any = ...) -> float:
        """Returns by how much the explained losses raise the log likelihood of some cells."""
        usual, explained = self.noise[at] * self.sent[at], self.explained[at]
        used = (self.lost[at] > 0) & (explained > 0) & (usual > 0)
        return float((self.lost[at][used] * np.log1p(explained[used] / usual[used])).sum() - explained.sum())


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
    packets = float(views.peer_t0.crossing.sum())
    of_pairs = float(views.peer.crossing.sum()) if len(views.peer.crossing) else packets
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


def usual_noise(sums: Sums) -> float:
    """Returns the usual loss ratio of a fabric: of the cells that lose least, in a plane that loses little."""
    found = []
    for sent, lost in zip(sums.sent, sums.lost, strict=True):
        used = sent > 0
        if used.any():
            sent, lost = sent[used], lost[used]
            usual = np.argsort(lost / sent)[: max(1, int(len(sent) * _USUAL_SHARE))]
            found.append(float(lost[usual].sum() / sent[usual].sum()))
    return max(LEAST_NOISE, float(np.quantile(found, _FEW, method="lower"))) if found else LEAST_NOISE


def usual_of_planes(sent: Floats, lost: Floats) -> Floats:
    """Returns the loss ratio of each column in a plane where it loses little, from (planes, columns).

    A fault has one plane. What a host or T0 loses on all of them, congestion and busy receivers cost.
    """
    ratio = np.divide(lost, sent, out=np.zeros_like(sent), where=sent > 0)
    return np.asarray(np.quantile(ratio, _FEW, axis=0, method="lower"))
