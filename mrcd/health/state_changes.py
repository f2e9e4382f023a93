# SPDX-License-Identifier: BSD-2-Clause
"""Changes EVs' states for administrators and for the grey-loss test, through the programs."""

from collections.abc import Callable, Mapping

from mrcd.errors import MachineError
from mrcd.health.event_reader import Listener
from mrcd.health.grey_loss import Alarm
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables

_TRIES = 16
_ALLOWED = (EvState.UNKNOWN, EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD)
_IN_USE = (EvState.GOOD, EvState.SKIP)


class StateChanges:
    """Changes states through `dataplane`.

    `names`: row → peer name. `changed` is called with a peer's row after an administrator has changed one of its EVs.
    """

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

    def report_grey_loss(self, alarm: Alarm) -> None:
        """Sets an EV with grey loss to ASSUMED_BAD, if it is still in use. Raises KernelError."""
        self._set_state(alarm.row, alarm.ev, _IN_USE, EvState.ASSUMED_BAD, Reason.GREY_LOSS, alarm.evidence)

    def set_denied(self, row: int, ev: int, deny: bool, evidence: Mapping[str, object]) -> bool:
        """Denies an EV, or allows it: then it is probed before it carries traffic again. Raises MachineError.

        Returns False if the EV was in that state already. Monitor.log_events() logs the event.
        """
        leave, after = (_ALLOWED, EvState.DENIED) if deny else ((EvState.DENIED,), EvState.UNKNOWN)
        for _ in range(_TRIES):  # a program may change the state at the same time
            if self._set_state(row, ev, leave, after, Reason.ADMIN, evidence):
                self._changed(row)
                return True
            if (self._tables.evs["state"][row, ev] == EvState.DENIED) == deny:
                return False
        name = self._names.get(row, f"host {row}")
        raise MachineError(f"{name} EV {ev}: the programs did not set the state {after.name}", hint="see mrcd's log")

    def _set_state(
        self,
        row: int,
        ev: int,
        leave: tuple[EvState, ...],
        after: EvState,
        reason: Reason,
        evidence: Mapping[str, object],
    ) -> bool:
        """Changes an EV's state if it is one of `leave`. Returns False if it is not: that state is newer."""
        if not self._dataplane.set_state(row, ev, after, reason, leave):
            return False
        self._listener.added_evidence[row, ev] = reason, evidence
        return True
