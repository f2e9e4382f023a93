# SPDX-License-Identifier: BSD-2-Clause
"""Detects grey failures: EVs with a small, lasting loss that the peer's other EVs do not have. Pure.

The unit of evidence is a slice: the time between two reads of a peer's counters. A slice counts for an EV that carried
packets in it. It is lossy if some of these packets were lost. Packets are no such unit: one disturbance loses many
packets together, and is one piece of evidence.

The null hypothesis is that all EVs of a peer lose alike. Given N lossy slices over all EVs, the number of one EV is
then binomial (N, its share of all slices). This is exact for rare losses. If many slices are lossy, the true variance
is smaller, so the test raises too few alarms rather than too many.

The test raises an alarm for an EV if its number of lossy slices, or a larger one, has a probability below

    α = false alarms per peer and year / (EVs of the peer × windows × tests per year)

This is a Bonferroni correction. With 16 EVs, five windows, a test per second and one false alarm per year, α is 4e-10.
Eight lossy slices of one of 16 EVs, and none of the others, pass that limit. A loss of 0.5 % at 1,000 packets/s shows
after two seconds.

The EV must also lose at least `grey_ratio` of its packets, and _MIN_FACTOR times the median loss ratio of the peer's
EVs: a real but small difference is no reason to stop using a path.

Only EVs that were in use over the whole window are compared. So the losses of a failed EV do not hide those of others.
An EV that returned during a disturbance is not compared with the time before it. An EV that returns begins the last
window anew, so that it is usually named sooner if it is still lossy. Frequent returns keep that window short.
"""

import math
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Health
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

WINDOWS_S = (1, 4, 16, 64, 64)
_RETURN = len(WINDOWS_S) - 1  # the window that also begins when an EV returns
TEST_INTERVAL_S = 1.0
_TESTS_PER_YEAR = 365.25 * 86_400 / TEST_INTERVAL_S
_MIN_FACTOR = 3.0
_FORGET_NS = WINDOWS_S[-1] * 1_000_000_000  # after this time without a loss, no window of a peer has losses
_SCAN_NS = 250_000_000  # between two scans for lossy peers: a scan of thousands takes most of a millisecond
_MIN_LOSSY = 2  # slices: one lossy slice is not evidence
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Counts = NDArray[np.uint32]
Records = NDArray[np.void]  # of abi.EV

_COUNTS = ("slices", "lossy", "sent", "lost")


@dataclass(frozen=True)
class Alarm:
    """An EV that loses more than its share. `row` and `ev` index the tables."""

    row: int
    ev: int
    evidence: dict[str, int | float]


def tail(n: int, p: float, k: int) -> float:
    """Returns the probability of k or more of n events, each with probability p: the exact binomial tail."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    if k <= n * p:  # below the mean, the sum of the other tail is shorter
        return 1.0 - tail(n, 1.0 - p, n - k + 1)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    term = total = math.exp(log)
    for i in range(k, n):  # each term follows from the previous one; they decrease at least geometrically
        term *= (n - i) / (i + 1) * p / (1 - p)
        total += term
        if term < total * 1e-16:
            break
    return min(total, 1.0)


def threshold(settings: Health, evs: int) -> float:
    """Returns α for a test of one of a peer's `evs` EVs in one window."""
    return settings.grey_false_alarms / (evs * len(WINDOWS_S) * _TESTS_PER_YEAR)


class Watch:
    """Tests the EVs of peers that have lost packets lately, by the programs' per-peer counters.

    It reads no EVs of a peer without losses.
    """

    def __init__(self, settings: Health, tables: Tables, rows: Ints) -> None:
        """Starts with the present counters. `rows`: the table rows of the peers."""
        self._tables, self._rows = tables, rows
        self._grey = Grey(settings, *tables.evs.shape)
        self._judged, self._lossy = (tables.reports[name][rows].copy() for name in ("judged", "lossy"))
        self._lossy_ns = np.full(len(rows), -_FORGET_NS, np.int64)  # when each peer's loss was last seen to grow
        self._suspects = np.zeros(0, np.int64)  # indexes of `rows` with losses lately
        self._scanned_ns = -_SCAN_NS

    def find_alarms(self, now: int) -> list[Alarm]:
        """Returns the EVs that lose more than their share; `now` is CLOCK_MONOTONIC in ns."""
        if now - self._scanned_ns >= _SCAN_NS:
            self._scanned_ns = now
            lossy = self._tables.reports["lossy"][self._rows]
            self._lossy_ns[lossy != self._lossy] = now
            self._lossy = lossy
            self._suspects = np.flatnonzero(now - self._lossy_ns < _FORGET_NS)
        if not len(self._suspects):
            return []
        judged = self._tables.reports["judged"][self._rows[self._suspects]]
        changed = self._suspects[judged != self._judged[self._suspects]]
        self._judged[self._suspects] = judged
        if not len(changed):
            return []
        rows, path_stats = self._rows[changed], self._tables.path_stats
        sent = path_stats["judged"][rows].astype(np.uint32)
        lost = path_stats["lost_before"][rows].astype(np.uint32) + path_stats["deficit"][rows]
        self._grey.add_slice(rows, sent, lost)
        return self._grey.test(rows, self._tables.evs[rows], now)


class Grey:
    """Keeps the counts of EVs, now and at the start of each window: ([windows,] peers, evs_per_peer)."""

    def __init__(self, settings: Health, peers: int, evs: int) -> None:
        shape = (len(WINDOWS_S), peers, evs)
        self._s = settings
        self._now = {name: zeros(shape[1:], np.uint32) for name in _COUNTS}
        self._then = {name: zeros(shape, np.uint32) for name in _COUNTS}
        self._begun_ns = zeros(shape[:2], np.int64)  # start of the current window; 0 before the first
        self._in_use_ns = zeros(shape[1:], np.int64)  # since when an EV is in use; 0 if it is not
        self._tested_ns = np.zeros(peers, np.int64)

    def add_slice(self, rows: Ints, sent: Counts, lost: Counts) -> None:
        """Ends a slice of the peers `rows`.

        `sent` are the judged packets, and `lost` the lost ones among them, (rows, evs_per_peer). The low 32 bits of the
        counters suffice, because no window that is tested each second holds 2**31 packets.
        """
        lossy = _grown(lost, self._now["lost"][rows]) > 0
        self._now["slices"][rows] += (sent != self._now["sent"][rows]) | lossy
        self._now["lossy"][rows] += lossy
        self._now["sent"][rows], self._now["lost"][rows] = sent, lost

    def test(self, rows: Ints, evs: Records, now: int) -> list[Alarm]:
        """Returns alarms for peers that were not tested for TEST_INTERVAL_S. `evs`: abi.EV, (rows, evs_per_peer)."""
        due = now - self._tested_ns[rows] >= TEST_INTERVAL_S * 1e9
        if not due.any():
            return []
        rows, evs = rows[due], select_rows(evs, due)
        state = evs["state"]
        in_use = (evs["configured"] != 0) & ((state == EvState.GOOD) | (state == EvState.SKIP))
        entered = evs["state_since_ns"].astype(np.int64) > self._tested_ns[rows, None]
        since = self._in_use_ns[rows]
        is_new = in_use & ((since == 0) | entered)
        since = np.where(in_use, np.where(is_new, now, since), 0)
        self._in_use_ns[rows], self._tested_ns[rows] = since, now
        alarms: dict[tuple[int, int], Alarm] = {}
        for w, seconds in enumerate(WINDOWS_S):
            begun = self._begun_ns[w, rows]
            # Each window compares the EVs that were in use since it began.
            for alarm in self._test_window(w, rows, in_use & (since <= begun[:, None]), now - begun):
                alarms.setdefault((alarm.row, alarm.ev), alarm)
            is_over = now - begun >= (seconds - TEST_INTERVAL_S / 2) * 1e9
            ended = rows[is_over | is_new.any(axis=1) if w == _RETURN else is_over]
            self._begun_ns[w, ended] = now
            for name, counts in self._now.items():
                self._then[name][w, ended] = counts[ended]
        return list(alarms.values())

    def _test_window(self, w: int, rows: Ints, compared: Bools, age_ns: Ints) -> list[Alarm]:
        is_lossy = (self._grown(w, rows, "lossy") * compared).sum(axis=1) >= _MIN_LOSSY
        if not is_lossy.any():
            return []
        rows, compared, age_ns = rows[is_lossy], compared[is_lossy], age_ns[is_lossy]
        slices, sent, lost = (self._grown(w, rows, name) for name in ("slices", "sent", "lost"))
        # A loss can be revoked, if its packets arrive after all.
        lossy = np.minimum(self._grown(w, rows, "lossy"), lost)
        compared = compared & (slices > 0) & (sent > 0)
        ratio = np.where(compared, lost / np.maximum(sent, 1), np.inf)
        count = compared.sum(axis=1)
        middle = np.maximum(count - 1, 0) // 2
        usual = np.take_along_axis(np.sort(ratio, axis=1), middle[:, None], axis=1)
        stand_out = compared & (lossy >= _MIN_LOSSY) & (ratio >= self._s.grey_ratio) & (ratio >= _MIN_FACTOR * usual)
        found = []
        for i, e in zip(*np.nonzero(stand_out), strict=True):
            share = slices[i, e] / slices[i, compared[i]].sum()
            n = int(lossy[i, compared[i]].sum())
            if count[i] > 1 and tail(n, float(share), int(lossy[i, e])) < threshold(self._s, int(count[i])):
                evidence: dict[str, int | float] = {
                    "lost_packets": int(lost[i, e]),
                    "sent_packets": int(sent[i, e]),
                    "window_s": round(float(age_ns[i]) / 1e9, 1),
                    "usual_loss_ratio": float(f"{usual[i, 0]:.2g}"),
                }
                found.append(Alarm(int(rows[i]), int(e), evidence))
        return found

    def _grown(self, w: int, rows: Ints, name: str) -> Ints:
        return _grown(self._now[name][rows], self._then[name][w, rows])


def _grown(now: NDArray[np.uint32], before: NDArray[np.uint32]) -> Ints:
    """Returns the growth of a wrapping counter; 0 if it has decreased, because a loss was revoked."""
    return np.maximum((now - before).view(np.int32), 0).astype(np.int64)


def select_rows(records: Records, which: Bools) -> Records:
    """Returns copies of some rows of contiguous records. Copies words, because numpy copies records field by field."""
    if which.all():
        return records
    return records.view(np.uint64)[which].view(records.dtype)


def zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Returns an array of zeros in 4 KB pages.

    numpy asks for huge pages (madvise(2)), so that the first write to a row takes 2 MB. The counts of a million EVs
    have 100 MB, and only the rows of lossy peers are written.
    """
    kind, count = np.dtype(dtype), math.prod(shape)
    if not count:
        return np.zeros(shape, kind)
    area = mmap.mmap(-1, count * kind.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(area, kind, count).reshape(shape)
