"""Grey failures: an EV that loses a little, for long, while the others do not. A pure test over the tables.

Time is cut into slices, one for each time that the daemon looks at a peer; a slice counts for an EV that
carried packets in it, and is lossy if some of them were lost. (Not packets: those that a hiccup takes are
lost together, and are one piece of evidence.) Hypothesis: all of a peer's EVs lose alike, so given N lossy
slices over all EVs, those of one EV are binomial (N, its share of all slices). (Exact for rare losses; where
many slices are lossy the true spread is less, so the test errs on the side of no alarm.) An EV is accused
if as many as it has, or more, come with a probability below

    α = false alarms per peer and year / (EVs of the peer × windows × looks per year)

(Bonferroni: with 16 EVs, four windows, a look per second and one false alarm per year α = 5e-10, which eight
lossy slices of one of 16 EVs and none elsewhere pass; 0.5 % loss at 1,000 packets/s shows after two
seconds). Besides, it must lose `grey_ratio` of its packets, and _FAIR times what the peer's EVs usually
lose, by the median: differences that are real but small are no reason to leave a path.

Only EVs in use count, and only those that were in use over the whole window: the losses of one that
has fallen hide nothing, and one that returned into a bad moment is not compared with the calm before.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Health
from mrcd.health.hold_down import Bools, Ints, Records, some
from mrcd.tables import zeros
from mrcd.tables.abi import EvState
from mrcd.tables.pinned import Tables

WINDOWS_S = (1, 4, 16, 64)
LOOK_S = 1.0
_LOOKS_PER_YEAR = 365.25 * 86_400 / LOOK_S
_FAIR = 3.0
_FORGET_NS = WINDOWS_S[-1] * 1_000_000_000  # a peer without a new loss for so long has nothing to be found
_SCAN_NS = 250_000_000  # between two looks for peers that have lost: with thousands it takes most of a millisecond
_LEAST = 2  # lossy slices: one proves nothing
Counts = NDArray[np.uint32]

_COUNTS = ("slices", "lossy", "sent", "lost")


@dataclass(frozen=True)
class Alarm:
    """An EV that loses more than its share. `row` and `ev` index the tables."""

    row: int
    ev: int
    evidence: dict[str, int | float]


def tail(n: int, p: float, k: int) -> float:
    """Probability of k or more of n, each with probability p: the exact binomial tail."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    if k <= n * p:  # below the mean: the other side is the shorter sum
        return 1.0 - tail(n, 1.0 - p, n - k + 1)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    term = total = math.exp(log)
    for i in range(k, n):  # each term from the one before; they fall at least geometrically
        term *= (n - i) / (i + 1) * p / (1 - p)
        total += term
        if term < total * 1e-16:
            break
    return min(total, 1.0)


def threshold(settings: Health, evs: int) -> float:
    """α for each of a peer's `evs` EVs in each window of each look."""
    return settings.grey_false_alarms / (evs * len(WINDOWS_S) * _LOOKS_PER_YEAR)


class Watch:
    """Looks at the EVs of those peers of which the programs say that they have lost packets lately.

    While a peer loses nothing there is nothing to find, and none of its EVs is read.
    """

    def __init__(self, settings: Health, tables: Tables, rows: Ints) -> None:
        """`rows`: the host's peers."""
        self._tables, self._rows = tables, rows
        self._grey = Grey(settings, *tables.evs.shape)
        self._judged, self._lossy = (tables.reports[name][rows].copy() for name in ("judged", "lossy"))
        self._lossy_ns = np.full(len(rows), -_FORGET_NS, np.int64)  # when each was last found to have lost more
        self._suspects = np.zeros(0, np.int64)  # of the rows, those that have lost lately
        self._scanned_ns = -_SCAN_NS

    def look(self, now: int) -> list[Alarm]:
        """Return the EVs that lose more than their share; `now` is CLOCK_MONOTONIC in ns."""
        if now - self._scanned_ns >= _SCAN_NS:
            self._scanned_ns = now
            lossy = self._tables.reports["lossy"][self._rows]
            self._lossy_ns[lossy != self._lossy] = now
            self._lossy = lossy
            self._suspects = np.flatnonzero(now - self._lossy_ns < _FORGET_NS)
        if not len(self._suspects):
            return []
        judged = self._tables.reports["judged"][self._rows[self._suspects]]
        at = self._suspects[judged != self._judged[self._suspects]]
        self._judged[self._suspects] = judged
        if not len(at):
            return []
        rows, path_stats = self._rows[at], self._tables.path_stats
        sent = path_stats["judged"][rows].astype(np.uint32)
        lost = path_stats["lost_before"][rows].astype(np.uint32) + path_stats["deficit"][rows]
        self._grey.slice(rows, sent, lost)
        return self._grey.look(rows, self._tables.evs[rows], now)


class Grey:
    """Remembers counts, now and where each window began: ([windows,] peers, evs_per_peer)."""

    def __init__(self, settings: Health, peers: int, evs: int) -> None:
        shape = (len(WINDOWS_S), peers, evs)
        self._s = settings
        self._now = {name: zeros.zeros(shape[1:], np.uint32) for name in _COUNTS}
        self._then = {name: zeros.zeros(shape, np.uint32) for name in _COUNTS}
        self._begun_ns = zeros.zeros(shape[:2], np.int64)  # 0: not yet
        self._in_use_ns = zeros.zeros(shape[1:], np.int64)  # since when; 0: it is not
        self._looked_ns = np.zeros(peers, np.int64)

    def slice(self, rows: Ints, sent: Counts, lost: Counts) -> None:
        """A slice of the peers `rows` has passed. Packets judged, and lost of these, (rows, evs_per_peer): low bits are
        enough, for no window holds more."""
        lossy = _grown(lost, self._now["lost"][rows]) > 0
        self._now["slices"][rows] += (sent != self._now["sent"][rows]) | lossy
        self._now["lossy"][rows] += lossy
        self._now["sent"][rows], self._now["lost"][rows] = sent, lost

    def look(self, rows: Ints, evs: Records, now: int) -> list[Alarm]:
        """What the slices of those peers say that were not looked at for LOOK_S; `evs`: abi.EV, (rows,
        evs_per_peer)."""
        due = now - self._looked_ns[rows] >= LOOK_S * 1e9
        if not due.any():
            return []
        rows, evs = rows[due], some(evs, due)
        state = evs["state"]
        in_use = (evs["configured"] != 0) & ((state == EvState.GOOD) | (state == EvState.SKIP))
        entered = evs["state_since_ns"].astype(np.int64) > self._looked_ns[rows, None]
        since = self._in_use_ns[rows]
        since = np.where(in_use, np.where((since == 0) | entered, now, since), 0)
        self._in_use_ns[rows], self._looked_ns[rows] = since, now
        alarms: dict[tuple[int, int], Alarm] = {}
        for w, seconds in enumerate(WINDOWS_S):
            begun = self._begun_ns[w, rows]
            # In each window what was in use all the time since it began.
            for alarm in self._window(w, rows, in_use & (since <= begun[:, None]), now - begun):
                alarms.setdefault((alarm.row, alarm.ev), alarm)
            over = rows[now - begun >= (seconds - LOOK_S / 2) * 1e9]
            self._begun_ns[w, over] = now
            for name, counts in self._now.items():
                self._then[name][w, over] = counts[over]
        return list(alarms.values())

    def _window(self, w: int, rows: Ints, compared: Bools, age_ns: Ints) -> list[Alarm]:
        some = (self._grown(w, rows, "lossy") * compared).sum(axis=1) >= _LEAST
        if not some.any():
            return []
        rows, compared, age_ns = rows[some], compared[some], age_ns[some]
        slices, sent, lost = (self._grown(w, rows, name) for name in ("slices", "sent", "lost"))
        # A loss may be taken back: its packets have come after all.
        lossy = np.minimum(self._grown(w, rows, "lossy"), lost)
        compared = compared & (slices > 0) & (sent > 0)
        ratio = np.where(compared, lost / np.maximum(sent, 1), np.inf)
        count = compared.sum(axis=1)
        middle = np.maximum(count - 1, 0) // 2
        usual = np.take_along_axis(np.sort(ratio, axis=1), middle[:, None], axis=1)
        stand_out = compared & (lossy >= _LEAST) & (ratio >= self._s.grey_ratio) & (ratio >= _FAIR * usual)
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
    """How much a wrapping count has grown; one that was taken back has not."""
    return np.maximum((now - before).view(np.int32), 0).astype(np.int64)
