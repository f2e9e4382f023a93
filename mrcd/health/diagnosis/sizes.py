# SPDX-License-Identifier: BSD-2-Clause
"""Tells a small MTU from loss: probes suspected EVs, and others of their planes, with small and full-size packets.

A small MTU loses every full-size packet, and no small one. Any other loss, also of damaged bits, hits small packets
too, or spares some full-size ones. An answer is as long as its request, and the peer sends each on another of its
usable EVs: so a single answer shows that full-size packets pass.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from mrcd.config.sizes import SRH_MAX
from mrcd.fabric.topology import Plan
from mrcd.health.diagnosis.memory import Answers, Memory, Place, Sizes
from mrcd.health.snapshot import Bools, Snapshot
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables, is_detached
from mrcd.probes.exchange import Exchange, LocalHost, Nic, Route, Tally
from mrcd.probes.probe_packet import REQUEST

SMALL = 1280  # bytes, which each IPv6 link carries (RFC 8200 §5)
COUNT = 20  # probes of each size on an EV
MOST = 32  # EVs at a time
_SENDING_S, _WAIT_S = 0.5, 0.25
_PAUSE_S = 0.5
_AGAIN_NS = 10_000_000_000


def choose(s: Snapshot, most: int = MOST) -> list[Place]:
    """Returns the EVs to probe: suspected ones, and about as many that work of the same planes.

    Of those that work, the ones that share a peer, a T0 or a T1 with a suspected EV tell most. A few of all are added.
    """
    t0s = np.array([p.host.t0 for p in s.plan.peers])
    planes = [plane for plane in range(s.planes) if s.is_suspected[:, s.columns(plane)].any()]
    found: list[Place] = []
    for plane in planes:
        columns = s.columns(plane)
        bad, t1s = s.is_suspected[:, columns], np.asarray(s.plan.paths.t1s[:, columns])
        works = s.configured[:, columns] & np.isin(s.state[:, columns], (EvState.GOOD, EvState.SKIP))
        peers, slots = np.nonzero(bad)
        near = np.isin(np.arange(len(t0s)), peers)[:, None], np.isin(t0s, t0s[peers])[:, None]
        groups = *near, np.isin(t1s, t1s[peers, slots]), np.bool_(True)
        share = most // len(planes)
        first = _some(bad)[: max(share // 2, share - int(works.sum()))]
        others = dict.fromkeys(p for p in chain(*zip_longest(*(_some(works & g) for g in groups))) if p)
        chosen = [*first, *others][:share]
        found += [(peer, columns.start + slot) for peer, slot in chosen]
    return found


def _some(which: Bools) -> list[Place]:
    """Returns MOST true places of an array at most, in a random order. A million EVs become no list of places."""
    found = np.flatnonzero(which)
    chosen = found[random.sample(range(len(found)), min(MOST, len(found)))]
    return [divmod(n, which.shape[1]) for n in chosen.tolist()]


@dataclass(frozen=True)
class Round:
    """The EVs to probe at a time. `small`: those which only small packets passed since they failed."""

    plan: Plan
    local: LocalHost
    places: list[Place]
    small: frozenset[Place]

    def probe(self, make: Callable[..., Exchange] = Exchange) -> dict[Place, Answers]:
        """Sends the probes, and returns the answers. Takes most of a second. Raises MachineError."""
        reserved, begun = SRH_MAX if self.plan.needs_srh else 0, time.monotonic_ns()
        routes = []
        for peer, ev in self.places:
            (e,) = self.plan.peers[peer].some_evs([ev])
            for size in (SMALL, self.local.mtu):
                key = peer, ev, size
                routes.append(Route(key, e.plane, REQUEST, e.peer_id, ev, e.segments, size, reserved))
        packets = routes * COUNT
        random.shuffle(packets)  # so that answers to an EV's probes take all return paths
        with make(self.local, [r.plane for r in routes]) as exchange:
            tallies = exchange.run(packets, 1, _SENDING_S, _WAIT_S)
        found = {(i, ev): passes(tallies[i, ev, SMALL], tallies[i, ev, self.local.mtu]) for i, ev in self.places}
        return {p: Answers(begun, does_pass, bool(does_pass) and p in self.small) for p, does_pass in found.items()}


def passes(small: Tally, full: Tally) -> bool | None:
    """Returns whether full-size packets pass where small ones do; None if the probes do not tell.

    The driver may refuse a packet that the port at the other end would not take (veth does): that is a loss, too.
    """
    if full.rtts:
        return True
    return False if len(small.rtts) == COUNT else None


class SizeWatch:
    """Probes suspected EVs, each 10 s and when one is new, and keeps the answers in `memory.sizes`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._begun_ns = 0  # of the newest round
        self._changes = -1  # of states, when there was no failed EV; -1: there was one

    async def run(
        self, look: Callable[[], Awaitable[Round | None]], warn: Callable[[str], None], pause_s: float = _PAUSE_S
    ) -> None:
        """Probes until cancelled. `look` runs `next_round` where tables may be read."""
        while True:
            try:
                if found := await look():
                    self.take(found, await asyncio.to_thread(found.probe))
            except Exception as e:  # without these probes, a small MTU is told as loss
                warn(f"no probes tell a small MTU from loss: {type(e).__name__}: {e}")
            await asyncio.sleep(pause_s)

    def next_round(self, tables: Tables, plan: Plan, pins: Path) -> Round | None:
        """Returns what to probe now; None if nothing is suspected, or is due."""
        changes, now = int(tables.transitions()["count"].sum()), time.monotonic_ns()
        if plan.config.cluster.mtu <= SMALL or is_detached(tables.node) or changes == self._changes:
            return None
        s = Snapshot(tables, plan)
        self._changes = -1 if (s.state == EvState.ASSUMED_BAD).any() else changes
        sizes = self._memory.sizes
        if not s.is_suspected.any():
            self._memory.sizes = Sizes() if sizes.answers else sizes
        elif now - self._begun_ns >= _AGAIN_NS or sizes.awaited(s, now).any():
            self._begun_ns = now
            since_ns = s.evs["state_since_ns"]
            known = ((p, a) for p, a in sizes.of(plan).items() if s.is_suspected[p] and a.at_ns >= int(since_ns[p]))
            small = frozenset(place for place, a in known if a.passes is False or a.is_mended)
            return Round(plan, _local_host(tables, plan, pins), choose(s), small)
        return None

    def take(self, found: Round, answers: Mapping[Place, Answers]) -> None:
        """Takes the answers of a round, and forgets those that three rounds have not renewed."""
        known = self._memory.sizes.of(found.plan).items()
        kept = {p: a for p, a in known if self._begun_ns - a.at_ns < 3 * _AGAIN_NS}
        self._memory.sizes = Sizes(found.plan, kept | dict(answers))


def _local_host(tables: Tables, plan: Plan, pins: Path) -> LocalHost:
    c, host, nics = plan.config.cluster, plan.host, {}
    for plane, interface in enumerate(plan.interfaces):
        record = tables.planes[plane]
        mac = bytes(record["dmac"])
        address, sid = plan.addresses[plane], plan.sids[plane]
        nics[plane] = Nic(plane, interface, int(record["ifindex"]), address, sid, mac if any(mac) else None)
    return LocalHost(host.name, host.id, c.encapsulation, c.udp_port, c.mtu, nics, pins)
