# SPDX-License-Identifier: BSD-2-Clause
"""Asks the kernel by turns which route it takes to each peer: another program's route or rule may precede mrcd's."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network

from mrcd.errors import MrcdError
from mrcd.fabric.topology import Peer, Plan
from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink
from mrcd.net.routes import own_address
from mrcd.net.way import Way
from mrcd.timed_wait import is_set_within

log = logging.getLogger("mrcd")

_EACH_S, _AGAIN_S = 1.0, 0.3
_AT_ONCE = 1  # peer: the kernel tells of most changes, and an answer costs 0.5 ms of CPU time
_AFTER_A_CHANGE = 64  # until all have been asked
_WRONG = 4  # peers whose way was wrong


class PeerWays:
    """The peers to which the kernel takes another route than mrcd's."""

    def __init__(
        self,
        netlink: Netlink,
        lock: asyncio.Lock,
        written: Callable[[int], Sequence[Route] | None],
        repair: Callable[[], None],
    ) -> None:
        """`lock` is held while routes are written. `written`: a peer's row → its routes; None while they change."""
        self._netlink, self._lock, self._written, self._repair = netlink, lock, written, repair
        self._wrong: dict[int, Way] = {}
        self._suspected: set[int] = set()  # wrong when asked the first time: it may be on the way to be repaired
        self._changed = asyncio.Event()
        self._changed.set()
        self._next = 0
        self._plan: Plan | None = None
        self._peers: dict[int, Peer] = {}
        self._hurried = 0  # peers that are still to be asked after a change

    def ask_soon(self) -> None:
        """Have the kernel asked at once: a route or a rule has changed."""
        self._changed.set()

    def wrong(self, peers: Iterable[Peer]) -> dict[str, Way]:
        """Returns the ways that are not mrcd's by the names of peers."""
        return {p.host.name: self._wrong[p.host.id] for p in peers if p.host.id in self._wrong}

    async def run(self, plan: Callable[[], Plan]) -> None:
        """Asks until cancelled: after a change once for each peer, else for one in each second."""
        while True:
            if self._changed.is_set():
                self._changed.clear()
                self._hurried = len(plan().peers)
            count = min(self._hurried, _AFTER_A_CHANGE) or _AT_ONCE
            self._hurried = max(0, self._hurried - count)
            try:
                await self.ask(plan, count)
            except Exception as e:  # an odd answer must not end the watch of paths
                log.error("%s; asking for routes again", e if isinstance(e, MrcdError) else repr(e))
                self._hurried = len(plan().peers)
                await asyncio.sleep(_EACH_S)
            if self._hurried:  # other programs may change routes all the time
                await asyncio.sleep(_AGAIN_S)
            else:
                await is_set_within(self._changed, _AGAIN_S if self._suspected else _EACH_S)

    async def ask(self, plan: Callable[[], Plan], count: int) -> None:
        """Asks for the ways to the next `count` peers, and to those that were wrong. Ends if the plan changes."""
        now = plan()
        if now is not self._plan:
            self._plan, self._peers = now, {p.host.id: p for p in now.peers}
            self._wrong = {row: way for row, way in self._wrong.items() if row in self._peers}
            self._suspected &= self._peers.keys()
        peers, rows = self._peers, list(self._peers)
        turn = [rows[(self._next + n) % len(rows)] for n in range(min(count, len(rows)))]
        self._next = (self._next + len(turn)) % max(1, len(rows))
        before = set(self._suspected)
        wrong = deque(self._wrong)
        wrong.rotate(-self._next)
        for row in dict.fromkeys([*before, *itertools.islice(wrong, max(count, _WRONG)), *turn]):
            async with self._lock:
                if plan() is not now:
                    return
                routes = self._written(row)
                if routes is not None:
                    await self._ask(now, row, peers[row], routes)
        if self._suspected - before:
            self._repair()

    async def _ask(self, plan: Plan, row: int, peer: Peer, routes: Sequence[Route]) -> None:
        for prefix, best in _best(peer, routes):
            way = await self._netlink.way_to(_address_in(prefix), own_address(plan, prefix.version))
            if way.follows(best):
                continue
            if row in self._wrong or row in self._suspected:
                self._wrong[row] = way
                self._suspected.discard(row)
            else:
                self._suspected.add(row)
            return
        self._wrong.pop(row, None)
        self._suspected.discard(row)


def _best(peer: Peer, routes: Sequence[Route]) -> Iterator[tuple[IPv4Network | IPv6Network, Route]]:
    """Yields the prefixes of a peer with the route that traffic should take."""
    for prefix in peer.host.prefixes:
        ours = [r for r in routes if r.dst == str(prefix)]
        if ours:
            yield prefix, min(ours, key=lambda r: r.metric)


def _address_in(prefix: IPv4Network | IPv6Network) -> str:
    """Returns an address in a prefix that a host may have."""
    return str(prefix[0] if prefix.num_addresses == 1 else prefix[1])
