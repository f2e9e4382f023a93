"""Changes of EVs' states that the daemon or an administrator wants, until the programs have made them."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from mrcd import abi, health
from mrcd.abi import EvState, Reason
from mrcd.config import Health
from mrcd.dataplane import Dataplane
from mrcd.errors import MachineError
from mrcd.health import Steer
from mrcd.listener import Listener
from mrcd.tables import Tables

_TRIES = 16
_ALLOWED = (EvState.UNKNOWN, EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD)


class StateChanges:
    """What was decided and is not carried out yet. `names` are the peers' by row; `changed` is called with the row of
    one of whose EVs an administrator has changed the state."""

    def __init__(
        self,
        settings: Health,
        tables: Tables,
        dataplane: Dataplane,
        listener: Listener,
        names: Mapping[int, str],
        changed: Callable[[int], None],
    ) -> None:
        self._tables, self._dataplane, self._listener = tables, dataplane, listener
        self._names, self._changed = names, changed
        self._first_weight = health.first_weight(settings)
        self._waiting: deque[Steer] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, steers: Iterable[Steer]) -> None:
        """Carry these out with the next call of `carry_out`."""
        self._waiting.extend(steers)

    def carry_out(self, until: float) -> None:
        """Steer what was decided until time.perf_counter() says so; what there is no time for waits for the next
        call. Raises MachineError."""
        while self._waiting and time.perf_counter() < until:
            self._steer(self._waiting.popleft())

    def _steer(self, s: Steer) -> bool:
        """False if the EV's state has changed meanwhile: then that is the newer word."""
        if s.after is EvState.GOOD:
            returns = s.reason is Reason.HEALED
            self._tables.evs["weight"][s.row, s.ev] = self._first_weight if returns else abi.WEIGHT_FULL
        if not self._dataplane.steer(s.row, s.ev, s.after, s.reason, s.leave):
            return False
        self._listener.why[s.row, s.ev] = s.reason, s.evidence
        return True

    def administer(self, row: int, ev: int, deny: bool, evidence: Mapping[str, object]) -> bool:
        """Deny an EV, or give it back: then it is probed before it carries traffic again. False if it was so
        already. What it told is in the log after Monitor.listen. Raises MachineError."""
        leave, after = (_ALLOWED, EvState.DENIED) if deny else ((EvState.DENIED,), EvState.UNKNOWN)
        for _ in range(_TRIES):  # a program may change the state at the same moment
            if self._steer(Steer(row, ev, leave, after, Reason.ADMIN, evidence)):
                self._changed(row)
                return True
            if (self._tables.evs["state"][row, ev] == EvState.DENIED) == deny:
                return False
        name = self._names.get(row, f"host {row}")
        raise MachineError(f"{name} EV {ev}: the programs do not take {after.name}", hint="see mrcd's log")
