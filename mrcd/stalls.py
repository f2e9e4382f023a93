"""Where a flow has stopped: the programs tell, and the daemon asks at once, by which path what it waits for is lost."""

import asyncio
import logging
import time
from collections.abc import Set as AbstractSet

import numpy as np

from mrcd.dataplane import Dataplane
from mrcd.errors import MrcdError
from mrcd.listener import Listener
from mrcd.peerwatch import PeerWatch
from mrcd.turns import Turns

log = logging.getLogger("mrcd.monitor")

_ALARM_NS = 5_000_000  # between two times that a peer is asked because of it
_AGAIN_S = 0.001  # by then what a sweep sent has arrived, or is missing


class Stalls:
    """Of the peers `rows`."""

    def __init__(
        self, rows: AbstractSet[int], listener: Listener, dataplane: Dataplane, peerwatch: PeerWatch, turns: Turns
    ) -> None:
        self._rows, self._listener, self._dataplane = rows, listener, dataplane
        self._peerwatch, self._turns = peerwatch, turns
        self._asked_ns = np.zeros(len(turns.due_ns), np.int64)
        self._over = False

    def ask(self) -> bool:
        """Ask those of which the listener has heard, and once more when replies have had time. Whether there are any;
        they are due then."""
        stalled = (self._listener.stalled & self._rows) - self._peerwatch.silent
        self._listener.stalled.clear()
        now = time.monotonic_ns()
        rows = [r for r in stalled if now - self._asked_ns[r] >= _ALARM_NS and self._peerwatch.sprayed(r)]
        if not rows:
            return False
        self._asked_ns[rows] = now
        self._turns.note_busy(rows, now)  # though no look may have seen its traffic yet
        self._turns.due_ns[rows] = 0
        self._sweep(rows)
        asyncio.get_running_loop().call_later(_AGAIN_S, self._once_more, rows)
        return True

    def cancel(self) -> None:
        """Ask nobody once more."""
        self._over = True

    def _once_more(self, rows: list[int]) -> None:
        if not self._over:
            self._sweep(rows)

    def _sweep(self, rows: list[int]) -> None:
        try:
            for row in rows:
                self._dataplane.sweep(row)
        except MrcdError as e:
            log.error("%s; probing goes on", e)
        self._turns.note_asked(rows)
