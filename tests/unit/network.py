"""Peers' EVs as the programs keep them, on a simulated clock, and the judge that looks at them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mrcd import abi, health
from mrcd.abi import EvState, Reason
from mrcd.config import Health
from mrcd.health import Judge, Steer, Verdict

MS = 1_000_000
ALL = 0xFFFF

Path = tuple[int, int]  # (row, ev)


class Network:
    """Peers' EVs as the programs keep them, and a judge. One look is one sweep: judge, carry out the verdict as
    the daemon does, then probe every EV that is not to be passed over.
    """

    def __init__(self, *, peers: int = 1, evs: int = 8, planes: int = 4, state: EvState = EvState.GOOD) -> None:
        self.evs, self.ledgers = np.zeros((peers, evs), abi.EV), np.zeros((peers, evs), abi.LEDGER)
        self.evs["configured"], self.evs["state"], self.evs["weight"] = 1, state, abi.WEIGHT_FULL
        self.evs["plane"] = np.arange(evs) * planes // evs
        self.ports = np.full(peers, ALL, np.uint32)  # as the peers tell
        self.local = ALL
        self.now = 10**12
        self.silent: set[Path] = set()  # probes vanish
        self.mute: set[Path] = set()  # probes arrive, replies vanish
        self.rows: NDArray[np.int64] = np.arange(peers)
        self.log: list[tuple[int, Steer]] = []
        self.sent: list[tuple[int, Path]] = []
        self.verdict = Verdict([], np.zeros(0, np.uint8), np.zeros(0, np.uint64), [], [])
        self.restart()

    def restart(self, **settings: float) -> None:
        """A new judge, as of a new daemon, over the tables it finds."""
        self.settings = Health.model_validate(settings)
        self.judge = Judge(self.settings, *self.evs.shape)

    @property
    def all(self) -> list[Path]:
        return [(r, e) for r in range(self.evs.shape[0]) for e in range(self.evs.shape[1])]

    def state(self, path: Path) -> EvState:
        return EvState(int(self.evs[path]["state"]))

    def fall(self, path: Path, relapses: int = 1) -> None:
        """The programs have left an EV (transit() of bpf/states.h)."""
        self.set(path, state=EvState.ASSUMED_BAD, relapses=relapses, state_since_ns=self.now)
        self.set(path, good=0, loss_ns=self.now)

    def set(self, path: Path, **fields: int) -> None:
        for name, value in fields.items():
            table = self.evs if name in abi.EV.names else self.ledgers  # type: ignore[operator]
            table[name][path] = value

    def look(self, *, sweep: bool = True) -> list[Steer]:
        """One round. Returns what the judge steered."""
        rows = self.rows
        self.verdict = self.judge.judge(
            rows, self.evs[rows], self.ledgers[rows], self.ports[rows], self.local, self.now
        )
        self.evs["weight"][rows], self.ledgers["probe_after_ns"][rows] = (
            self.verdict.weight,
            self.verdict.probe_after_ns,
        )
        for s in self.verdict.steers:
            path = (s.row, s.ev)
            assert self.state(path) in s.leave
            if s.reason is Reason.HEALED:
                self.set(path, weight=health.first_weight(self.settings))
            self.set(path, state=s.after, reason=s.reason, state_since_ns=self.now)
            self.log.append((self.now, s))
        if sweep:
            for path in self.all:
                if int(self.ledgers["probe_after_ns"][path]) <= self.now:
                    self._probe(path)
        self.now += self.settings.probe_interval_ms * MS
        return self.verdict.steers

    def _probe(self, path: Path) -> None:
        """A request goes out, and the reply or the next report tells what became of it before the next look."""
        self.sent.append((self.now, path))
        seq = (int(self.evs[path]["probe_seq"]) + 1) & 0xFFFFFFFF
        self.set(path, probe_seq=seq, probe_ns=self.now)
        if path in self.silent:
            self.set(path, good=0, loss_ns=self.now + MS)
            return
        self.set(path, good=int(self.ledgers[path]["good"]) + 1, arrived_ns=self.now)
        if path not in self.mute:
            self.set(path, replies=(int(self.ledgers[path]["replies"]) + 1) & 0xFFFFFFFF, reply_seq=seq)

    def looks(self, count: int) -> list[Steer]:
        return [s for _ in range(count) for s in self.look()]

    def until(self, happened: Callable[[], object], limit: int) -> int:
        """Milliseconds until it has happened, in `limit` looks at most."""
        began = self.now
        for _ in range(limit):
            if happened():
                return (self.now - began) // MS
            self.look()
        raise AssertionError(f"did not happen within {limit} looks; log: {self.log}")

    def returned(self, path: Path) -> Callable[[], bool]:
        return lambda: self.state(path) is EvState.GOOD
