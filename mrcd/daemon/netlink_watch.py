# SPDX-License-Identifier: BSD-2-Clause
"""Watches the kernel's links and neighbours by netlink, and reconciles the host when they change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mrcd.errors import MrcdError
from mrcd.net.netlink import Netlink
from mrcd.net.nics import Nics

log = logging.getLogger("mrcd")

_BURST_S = 0.05  # netlink events come in bursts: reconcile once for each burst
_WATCH_AGAIN_S = 1.0
_RETRY_S = 1.0


class NetlinkWatch:
    """Collects changes of links and neighbours until the host is reconciled."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock  # held while the host is reconciled, or another plan is adopted
        self._wake = asyncio.Event()
        self._links_due = False  # links or addresses may have changed
        self._neighbours_due = False  # first hops may have changed
        self._retry: asyncio.TimerHandle | None = None
        self._last_error = ""  # of the last reconciliation

    def wake(self) -> None:
        """Have `reconcile_forever` reconcile again: a row was marked."""
        self._wake.set()

    def look_again(self) -> None:
        """Have all interfaces read again."""
        if self._retry:
            self._retry.cancel()
            self._retry = None
        self._links_due = True
        self._wake.set()

    def retry(self) -> None:
        """Have all interfaces read again in _RETRY_S: once, however many errors ask for it."""
        if not self._retry:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self.look_again)

    async def watch(self, netlink: Netlink, nics: Callable[[], Nics], lose: Callable[[int], None]) -> None:
        """Note changes, until cancelled. `lose` is called at once for a link that has no carrier."""
        while True:
            try:
                async for change in netlink.watch():
                    # During a reconciliation, what is known may be older or newer than this change.
                    if not self._lock.locked() and not nics().concerns(change):
                        continue
                    if change.up:
                        nics().note_carrier_back(change.ifindex)
                    elif change.up is False:
                        lose(change.ifindex)
                    self._links_due |= change.neighbour is None
                    self._neighbours_due = True
                    self._wake.set()
            except MrcdError as e:
                log.error("%s; watching links anew", e)
            except Exception:  # such as from a message that pyroute2 cannot parse
                log.exception("watching links anew")
            await asyncio.sleep(_WATCH_AGAIN_S)

    async def reconcile_forever(
        self,
        nics: Callable[[], Nics],
        reconcile: Callable[[], Awaitable[None]],
        write_changed: Callable[[], Awaitable[bool]],
    ) -> None:
        """Reconcile when something is due, until cancelled. `write_changed` returns whether it has more to write."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self._reconcile_once(nics(), reconcile, write_changed):
                await asyncio.sleep(_BURST_S)

    async def _reconcile_once(
        self, nics: Nics, reconcile: Callable[[], Awaitable[None]], write_changed: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Returns whether there is more to do at once."""
        async with self._lock:
            try:
                if self._neighbours_due:
                    self._neighbours_due = False
                    if await nics.first_hops_changed():  # not |=: that would overwrite a change noted during the await
                        self._links_due = True
                if self._links_due:
                    self._links_due = False
                    await reconcile()
                if await write_changed():
                    self._wake.set()
                    return True
                self._last_error = ""
            except Exception as e:  # an interface may have disappeared meanwhile: retry after any error
                error = str(e) if isinstance(e, MrcdError) else repr(e)
                if error != self._last_error:  # such as of another program's route, which may stay
                    log.error("%s; trying again", error)
                self._last_error = error
                log.debug("", exc_info=e)
                self._links_due = False
                self.retry()
        return False
