"""Changes EVs' states for administrators and for the grey-loss test; the programs carry them out."""

from collections.abc import Callable, Mapping

from mrcd.errors import MachineError
from mrcd.health.event_reader import Listener
from mrcd.health.grey_loss import Alarm
from mrcd.loader.dataplane import Dataplane
from mrcd.tables.abi import EvState, Reason
from mrcd.tables.pinned import Tables

_TRIES = 16
_ALLOWED = (EvState.UNKNOWN, EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD)
_IN_USE = (EvState.GOOD, EvState.SKIP)


class StateChanges:
    """`names` are the peers' by row; `changed` is called with the row of a peer when an administrator has changed the
    state of one of its EVs."""

    def __init__(
        self,
        tables: Tables,
        dataplane: Dataplane,
        listener: Listener,
        names: Mapping[int, str],
        changed: Callable[[int], None],
    ) -> None:
        self._tables, self._dataplane, self._listener = tables, dataplane, listener
        self._names, self._changed = names, changed

    def accuse(self, alarm: Alarm) -> None:
        """Leave an EV that loses more than its share, if it is in use still. Raises KernelError."""
        self._set_state(alarm.row, alarm.ev, _IN_USE, EvState.ASSUMED_BAD, Reason.GREY_LOSS, alarm.evidence)

    def administer(self, row: int, ev: int, deny: bool, evidence: Mapping[str, object]) -> bool:
        """Deny an EV, or give it back: then it is probed before it carries traffic again. False if it was so
        already. What it told is in the log after Monitor.listen. Raises MachineError."""
        leave, after = (_ALLOWED, EvState.DENIED) if deny else ((EvState.DENIED,), EvState.UNKNOWN)
        for _ in range(_TRIES):  # a program may change the state at the same moment
            if self._set_state(row, ev, leave, after, Reason.ADMIN, evidence):
                self._changed(row)
                return True
            if (self._tables.evs["state"][row, ev] == EvState.DENIED) == deny:
                return False
        name = self._names.get(row, f"host {row}")
        raise MachineError(f"{name} EV {ev}: the programs do not take {after.name}", hint="see mrcd's log")

    def _set_state(
        self,
        row: int,
        ev: int,
        leave: tuple[EvState, ...],
        after: EvState,
        reason: Reason,
        evidence: Mapping[str, object],
    ) -> bool:
        """False if the EV's state has changed meanwhile: then that is the newer word."""
        if not self._dataplane.set_state(row, ev, after, reason, leave):
            return False
        self._listener.why[row, ev] = reason, evidence
        return True
