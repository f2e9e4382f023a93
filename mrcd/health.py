"""When an EV is withdrawn and when it comes back. Pure decisions over snapshots of the tables.

One `Judge` remembers what snapshots cannot say: where a loss window began, since when probes have
come back without a gap. Everything is vectorised over (peers, EVs); only transitions, which are
rare, are handled one by one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.abi import EvState, Reason
from mrcd.config import Health

_MS = 1_000_000
_SILENT = 2  # this many pending probes: nothing comes back
_CONFIRM = 3  # successive replies that must agree on a loss: a burst in flight is not lost
_FAIR = 3.0  # an EV's loss must be this many times the lower quartile of its peer's EVs

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Records = NDArray[np.void]  # of abi.EV


@dataclass(frozen=True)
class Transition:
    """One EV changes its state. `row` and `ev` index the tables."""

    row: int
    ev: int
    before: EvState
    after: EvState
    reason: Reason
    relapses: int
    evidence: dict[str, int | float]


@dataclass(frozen=True)
class Verdict:
    """What one round of judging found. `silent` are rows none of whose EVs answers."""

    transitions: list[Transition]
    silent: list[int]
    heard: list[int]


class Judge:
    """Remembers per EV what a decision needs beside the tables; arrays are (peers, evs_per_peer)."""

    def __init__(self, settings: Health, peers: int, evs: int) -> None:
        shape = (peers, evs)
        self._s = settings
        self._window_ns = np.zeros(shape, np.int64)
        self._window_tx = np.zeros(shape, np.int64)
        self._window_rx = np.zeros(shape, np.int64)
        self._seen_reply = np.zeros(shape, np.int64)
        self._seen_count = np.zeros(shape, np.int64)
        self._suspect = np.zeros(shape, np.int16)
        self._streak = np.zeros(shape, np.int64)
        self._bad_ns = np.zeros(shape, np.int64)
        self._alive = np.zeros(peers, np.int64)  # rounds with some reply, since the last silence
        self._quiet = np.zeros(peers, np.int64)  # rounds in a row without any
        self._known = np.zeros(peers, bool)

    def hold_down_ns(self, relapses: NDArray[Any] | int) -> Ints:
        """How long probes must have been good: doubles with each relapse up to the cap."""
        base, cap = self._s.hold_down_ms, self._s.hold_down_max_ms
        doubled = base * 2.0 ** np.clip(np.asarray(relapses, np.int64) - 1, 0, 40)
        return np.asarray(np.minimum(doubled, cap) * _MS, np.int64)

    def forget(self, rows: NDArray[Any]) -> None:
        """Begin anew with these rows: a restart of this daemon, or other paths than before."""
        self._known[rows] = False

    def judge(self, rows: Ints, evs: Records, ports: NDArray[Any], local_ports: int, now: int) -> Verdict:
        """Judge the peers `rows`, whose EV records are `evs` (len(rows), evs_per_peer).

        `ports` are the peers' port bitmaps, `local_ports` this host's, `now` CLOCK_MONOTONIC in ns.
        """
        configured = evs["configured"] != 0
        state = evs["state"]
        watched = configured & (state != EvState.DENIED)
        reply = evs["reply_seq"].astype(np.int64)
        count = evs["replies"].astype(np.int64)
        pending = pending_probes(evs)
        new = ~self._known[rows]
        if new.any():
            self._begin(rows[new], evs[new], reply[new], count[new], now)
        advanced = (reply - self._seen_reply[rows]) & 0xFFFFFFFF
        answered = (count - self._seen_count[rows]) & 0xFFFFFFFF
        self._seen_reply[rows], self._seen_count[rows] = reply, count

        # Probes lost: a gap behind the newest reply, or more than the newest still pending.
        gap = (advanced > answered) | (pending >= 2)
        streak = np.where(gap, 0, self._streak[rows] + answered)
        self._streak[rows] = streak
        bit = np.left_shift(1, evs["plane"].astype(np.int64))
        here, there = (local_ports & bit) != 0, (ports.astype(np.int64)[:, None] & bit) != 0
        linked = here & there
        # The hold-down begins when the last probe was lost, or the link came back.
        self._bad_ns[rows] = np.where(gap | ~linked, now, self._bad_ns[rows])

        # RACK across paths: the EV's probes are missing while later ones on other EVs of the same peer
        # came back, in several rounds. A peer that has just returned from silence has no such rounds yet.
        some = (watched & linked & (answered > 0)).any(axis=1)
        self._quiet[rows] = np.where(some, 0, self._quiet[rows] + 1)
        silence = self._quiet[rows] >= 2 * self._s.unanswered  # less may be replies lost on bad ways back
        self._alive[rows] = np.where(silence, 0, self._alive[rows] + some)
        prompt = watched & linked & (pending <= max(0, self._s.unanswered - 2)) & (count > 0)
        present = prompt.any(axis=1) & (self._alive[rows] >= self._s.unanswered)
        # Probes may follow each other fast once one is missing: some time must have passed as well.
        aged = now - evs["reply_ns"].astype(np.int64) >= 2 * self._s.probe_interval_ms * _MS
        overdue = (pending >= self._s.unanswered) & aged & linked & present[:, None]
        lossy, lost, sent = self._loss(rows, evs, configured & linked, answered, now)

        unknown = state == EvState.UNKNOWN
        to_bad = watched & (state != EvState.ASSUMED_BAD) & ((~linked & ~unknown) | overdue | lossy)
        to_good = watched & unknown & (answered > 0) & linked & ~to_bad
        held = (now - self._bad_ns[rows]) >= self.hold_down_ns(evs["relapses"])
        healed = watched & (state == EvState.ASSUMED_BAD) & linked & held & (streak >= self._s.good_probes)

        transitions = []
        for i, e in zip(*np.nonzero(to_bad | to_good | healed), strict=True):
            ev = evs[i, e]
            before = EvState(int(ev["state"]))
            relapses = int(ev["relapses"])
            evidence: dict[str, int | float] = {}
            if to_bad[i, e]:
                if not here[i, e]:
                    reason = Reason.LINK_DOWN
                elif not there[i, e]:
                    reason = Reason.PEER_LINK_DOWN
                elif overdue[i, e]:
                    silent = (now - int(ev["reply_ns"])) / _MS if ev["reply_ns"] else 0.0
                    reason = Reason.UNANSWERED
                    evidence = {"probes": int(pending[i, e]), "silent_ms": round(silent, 1)}
                else:
                    reason = Reason.LOSS
                    evidence = {"lost_packets": int(lost[i, e]), "sent_packets": int(sent[i, e])}
                relapses = self._relapse(ev, before, relapses, now)
                self._bad_ns[rows[i], e], self._streak[rows[i], e], self._suspect[rows[i], e] = now, 0, 0
                after = EvState.ASSUMED_BAD
            else:
                after, reason = EvState.GOOD, Reason.PROBED if to_good[i, e] else Reason.HEALED
                evidence = {"good_probes": int(streak[i, e])}
                if healed[i, e]:
                    evidence["hold_down_ms"] = int(self.hold_down_ns(relapses)) // _MS
                self._suspect[rows[i], e] = 0
                self._window_ns[rows[i], e] = now
                self._window_tx[rows[i], e] = int(ev["settled_tx"])
                self._window_rx[rows[i], e] = int(ev["settled_rx"])
            transitions.append(Transition(int(rows[i]), int(e), before, after, reason, relapses, evidence))

        probed = (watched & linked).any(axis=1)
        missing = pending >= self._s.unanswered
        alive = (watched & linked & ~missing & (count > 0)).any(axis=1)
        silent = probed & (missing | ~(watched & linked)).all(axis=1)
        return Verdict(transitions, rows[silent].tolist(), rows[alive].tolist())

    def _relapse(self, ev: np.void, before: EvState, relapses: int, now: int) -> int:
        """Falls in a row; forgotten after an EV was well for as long as the longest hold-down."""
        well_ns = now - int(ev["state_since_ns"])
        if before is EvState.UNKNOWN or well_ns > self._s.hold_down_max_ms * _MS:
            return 1
        return min(relapses + 1, 255)

    def _begin(self, rows: Ints, evs: Records, reply: Ints, count: Ints, now: int) -> None:
        self._known[rows] = True
        self._seen_reply[rows], self._seen_count[rows] = reply, count
        self._window_ns[rows] = now
        self._window_tx[rows] = evs["settled_tx"].astype(np.int64)
        self._window_rx[rows] = evs["settled_rx"].astype(np.int64)
        self._suspect[rows], self._streak[rows], self._bad_ns[rows] = 0, 0, now
        self._alive[rows], self._quiet[rows] = 0, 0

    def _loss(self, rows: Ints, evs: Records, watched: Bools, answered: Ints, now: int) -> tuple[Bools, Ints, Ints]:
        """Which EVs lose too much in their window, and how much they lost of what was sent."""
        sent = evs["settled_tx"].astype(np.int64) - self._window_tx[rows]
        lost = sent - (evs["settled_rx"].astype(np.int64) - self._window_rx[rows])
        ratio = np.where(sent > 0, lost / np.maximum(sent, 1), 0.0)
        # All paths of a peer losing alike is not the path: compare with its better ones.
        busy = watched & (sent > 0)
        usual = np.array([_lower_quartile(r[b]) for r, b in zip(ratio, busy, strict=True)])
        high = (
            busy
            & (lost >= self._s.loss_min_packets)
            & (ratio >= self._s.loss_ratio)
            & (ratio > _FAIR * np.maximum(usual, 0.0)[:, None])
        )
        suspect = self._suspect[rows]
        suspect = np.where(answered > 0, np.where(high, suspect + 1, 0), suspect).astype(np.int16)
        over = (now - self._window_ns[rows] >= self._s.loss_window_ms * _MS) & (suspect == 0)
        self._window_ns[rows] = np.where(over, now, self._window_ns[rows])
        self._window_tx[rows] = np.where(over, evs["settled_tx"].astype(np.int64), self._window_tx[rows])
        self._window_rx[rows] = np.where(over, evs["settled_rx"].astype(np.int64), self._window_rx[rows])
        self._suspect[rows] = suspect
        return high & (suspect >= _CONFIRM), lost, sent


def _lower_quartile(ratios: NDArray[Any]) -> float:
    return float(np.sort(ratios)[(len(ratios) - 1) // 4]) if len(ratios) else 0.0


def pending_probes(evs: Records) -> Ints:
    """Probes sent after the newest answered one. Counters wrap; a copy may be torn between the two."""
    difference = (evs["probe_seq"].astype(np.int64) - evs["reply_seq"].astype(np.int64)) & 0xFFFFFFFF
    return np.where(difference < 1 << 31, difference, 0)


def usable_evs(evs: Records, floor: int, linked: Bools) -> Bools:
    """Which EVs of one peer carry traffic (shape (evs_per_peer,)): the good ones, and while these
    are fewer than `floor`, the least bad of the others: unknown ones first, then those that answer
    probes and lose least. Never a denied one, never one without a link.
    """
    state = evs["state"]
    allowed = (evs["configured"] != 0) & linked & (state != EvState.DENIED)
    usable: Bools = allowed & ((state == EvState.GOOD) | (state == EvState.SKIP))
    missing = min(floor, int(allowed.sum())) - int(usable.sum())
    if missing > 0:
        others = np.flatnonzero(allowed & ~usable)
        pending = pending_probes(evs)
        sent = np.maximum(evs["settled_tx"].astype(np.float64), 1.0)
        loss = 1.0 - evs["settled_rx"].astype(np.float64) / sent
        badness = [
            (int(state[e]) != EvState.UNKNOWN, pending[e] >= _SILENT, max(0.0, float(loss[e])), int(pending[e]), e)
            for e in others
        ]
        for *_, e in sorted(badness)[:missing]:
            usable[e] = True
    return usable


def default_floor(configured: int) -> int:
    """`ev_min_active` when the configuration is silent: a quarter of the peer's EVs, at least one."""
    return max(1, configured // 4)


def bitmap(usable: Bools, planes: int, evs_per_plane: int, max_planes: int, words: int) -> NDArray[np.uint64]:
    """mrc_peer.usable of one peer: (max_planes, words), a bit per slot."""
    bits = np.zeros((max_planes, words * 64), np.uint8)
    bits[:planes, :evs_per_plane] = usable[: planes * evs_per_plane].reshape(planes, evs_per_plane)
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64).copy()
