# SPDX-License-Identifier: BSD-2-Clause
"""Keeps one sum of a fleet: what was sent and lost, and what of that is expected. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.fleet_links.counts import Floats, Sums
from mrcd.fleet_links.likelihood import Cells

LEAST_NOISE = 1e-6  # a fabric without any fault still loses this share now and then
_USUAL_SHARE = 0.5  # of the cells: those that lose least show the noise
_FEW = 0.25  # of the planes: those that lose least show what is usual
NIC_CLUMP = 20.0  # the variance of a NIC's usual losses divided by their mean
_COUNTED = 30.0  # lost packets that a cell needs to show how exact the explanation is
_MOST_CLUMP = 100.0  # packets: an EV is left before it loses more. What else is measured, another fault has lost.
_MOST, _CHI2 = 0.9, 2.71  # a quantile: other causes are in few cells; and that of χ² with one degree of freedom


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

    def cells(self, at: Any, crossing: Any, is_far: Any = True) -> Cells:
        """Returns some cells, of which `crossing` packets cross an element."""
        sent = np.atleast_1d(np.asarray(crossing, float)).ravel()
        parts = (self.lost[at], self.noise[at] * self.sent[at], self.explained[at])
        lost, noise, explained = (np.atleast_1d(v).ravel() for v in parts)
        return self._cells(lost, noise, explained, sent, np.broadcast_to(is_far, sent.shape))

    def summed(self, at: Any, crossing: Floats, which: Any = True) -> Cells:
        """Returns some cells, summed over their first dimension; `which` leaves out some."""
        parts = (self.lost[at], self.noise[at] * self.sent[at], self.explained[at])
        lost, noise, explained = ((v * which).sum(axis=0) for v in parts)
        sent = crossing.sum(axis=0)
        return self._cells(lost, noise, explained, sent, np.ones(len(sent), bool))

    def _cells(self, lost: Floats, noise: Floats, explained: Floats, sent: Floats, is_far: NDArray[np.bool_]) -> Cells:
        usual = noise + explained
        expected = noise + self.margin * explained
        variance = self._noise_clump * noise + self.clump * explained
        weight = np.divide(usual, variance, out=np.ones_like(usual), where=variance > 0)
        return Cells(lost, expected, usual, sent, is_far, weight)

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


def shares(values: Floats, axis: int) -> Floats:
    """Returns values divided by their sum over an axis; 0 where there are none."""
    total = values.sum(axis=axis, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.zeros_like(values), where=total > 0))


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
