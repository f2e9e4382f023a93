# SPDX-License-Identifier: BSD-2-Clause
"""Reads the facts of a diagnosis: what this host knows of itself, its peers and its EVs.

While all is well it reads one field of each EV, the delays of a sample, and some fields of each peer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import fingerprint
from mrcd.fabric.topology import Plan
from mrcd.health.diagnosis.memory import Memory
from mrcd.health.links.verdicts import grid
from mrcd.health.snapshot import Bools, Columns, Snapshot
from mrcd.kernel.enums import Drop, EvState, Reason
from mrcd.kernel.pinned import Tables, is_detached, wire_of
from mrcd.net.link_state import LinkState, link_state
from mrcd.net.nic_rates import NicRate, read_rates, why_slower
from mrcd.net.way import Way

Ints = NDArray[Any]

NOT_TOLD, SAME_FILE = -1, 0

SLOW_NS = 2_000_000  # an EV is slow if its packets take so much longer than the fastest to the same peer
_UNPROBED_NS = 5_000_000_000  # a new EV that answers no probe for so long has failed
_UNANSWERED = 4  # probes
_IDLE_NS = 64_000_000_000  # the longest window of the grey-loss test
_FEW = 4  # one of so many
_SAMPLE = 64  # peers whose EVs' delays are always read; those of all peers only if some of these are slow


class Verdict(IntEnum):
    """The evidence of one EV for the elements that it crosses."""

    NOTHING = 0  # there is no such EV, or it has not been probed yet
    GOOD = 1
    IDLE = 2  # good, but it carried no data lately: its loss is not known
    SLOW = 3  # good, but slower than others to the same peer
    LOSSY = 4  # left for its loss
    FAILED = 5  # left because nothing arrives
    DENIED = 6


_LOSSES = Reason.LOSS, Reason.GREY_LOSS
_BY_STATE = np.full(len(EvState), Verdict.NOTHING, np.uint8)
_BY_STATE[[EvState.GOOD, EvState.SKIP]] = Verdict.GOOD
_BY_STATE[EvState.ASSUMED_BAD], _BY_STATE[EvState.DENIED] = Verdict.FAILED, Verdict.DENIED


@dataclass(frozen=True)
class OwnPlane:
    """This host's NIC on a plane. `is_usable`: it has a carrier, and its first hop is resolved.

    `unroutable`: packets that arrived there lately for addresses that are not on that interface.
    """

    interface: str
    is_usable: bool
    link: LinkState
    unroutable: int = 0


class Facts(Snapshot):
    """All that a host knows at one moment. Peers are in the plan's order; a column is an EV number.

    names       of the peers
    t0s         (peers,) the T0 of a peer
    ways        peer's name → the kernel's route to it, where that is not mrcd's
    refused     reason → packets that this host has dropped lately (memory.py)
    """

    def __init__(
        self,
        tables: Tables,
        plan: Plan,
        memory: Memory | None = None,
        read_link: Callable[[str, int], LinkState] = link_state,
        read_nics: Callable[[Sequence[str]], list[NicRate]] = read_rates,
    ) -> None:
        """`read_link` reads the state of a NIC that should have an MTU, `read_nics` rates if a plane is slow.

        `memory` adds what the tables do not keep.
        """
        super().__init__(tables, plan)
        self._memory, mask, self._read_nics = memory, int(tables.node["plane_mask"]), read_nics
        self.host, self.t0, self.encapsulation = plan.host.name, plan.host.t0, plan.config.cluster.encapsulation
        self.is_host_detached = is_detached(tables.node)
        self.wire = int(wire_of(tables.node["status"]))
        self.names = [p.host.name for p in plan.peers]
        self.t0s = np.array([p.host.t0 for p in plan.peers], np.int64)
        self.refused: Mapping[Drop, int] = memory.refused if memory else {}

        self.ways: Mapping[str, Way] = memory.ways if memory else {}
        self.is_awaiting = False  # the probes of EVs that may have lost packets are not over (memory.py)

        def own_plane(plane: int, name: str) -> OwnPlane:
            is_up, unroutable = bool(mask >> plane & 1), memory.unroutable.get(plane, 0) if memory else 0
            link = read_link(name, plan.config.cluster.mtu)
            link = LinkState.UP if is_up and link is not LinkState.SMALL_MTU else link
            return OwnPlane(name, is_up, link, unroutable)

        self.own_planes = [own_plane(plane, name) for plane, name in enumerate(plan.interfaces)]

    @cached_property
    def planes_up(self) -> Ints:
        """The mask of the planes that each peer says are up."""
        return self.peers["plane_mask"]

    @cached_property
    def is_away(self) -> Bools:
        """True for each peer that says that it is detached, and is heard."""
        return self.is_detached & self.is_reachable

    @cached_property
    def files(self) -> Ints:
        """SAME_FILE, NOT_TOLD, or the fingerprint of a peer's other cluster file (config/cluster_file.py)."""
        told = self.peers["fingerprint"]
        other = np.where(told == fingerprint(self.plan.config.cluster), SAME_FILE, told.astype(np.int64))
        return np.where(told == 0, NOT_TOLD, other)

    @cached_property
    def since_ns(self) -> Ints:
        """The start of the state of each EV, CLOCK_MONOTONIC; 0 if it is not known."""
        return self.evs["state_since_ns"]

    @cached_property
    def nic_rates(self) -> list[NicRate]:
        """The bounds of the rates of this host's NICs, by plane."""
        return self._read_nics(self.plan.interfaces)

    def why_slower(self, plane: int) -> str:
        """Returns the words for what makes this host's NIC slower than those of other planes; "" if nothing does."""
        return why_slower(self.nic_rates, plane)

    def slow_bits_per_s(self, plane: int) -> float | None:
        """Returns at what rate a plane has carried packets to the first peer to which only it is slow; None if none."""
        is_slow = self.peers["slow_planes"] == 1 << plane
        if not is_slow.any():
            return None
        row, columns = int(is_slow.argmax()), self.columns(plane)
        packets, size = (int(self.evs[name][row, columns].sum()) for name in ("tx_packets", "tx_bytes"))
        return 8e9 * size / packets / max(1, int(self.peers["slow_ns"][row])) if packets else None

    @cached_property
    def links(self) -> NDArray[np.void] | None:
        """The counts of link probes (bpf/link_probe.h): (1 + T1s, planes) abi.LINK; None if there are none."""
        return grid(self.tables.links, self.plan).copy() if self.encapsulation == "usid" else None

    @property
    def verdicts(self) -> NDArray[np.uint8]:
        """The Verdict of each EV."""
        return self._verdicts[0]

    def passes(self, full_size: bool) -> Bools:
        """Returns on which EVs probes have shown that full-size packets pass; or that only small ones do."""
        found = np.zeros(self.state.shape, bool)
        answers = self._memory.sizes.of(self.plan) if self._memory else {}
        for place, answer in answers.items():
            found[place] = answer.passes is full_size
        return found

    @property
    def has_new(self) -> bool:
        """Whether an EV is UNKNOWN still, and not counted as failed."""
        return self._verdicts[1]

    @cached_property
    def _verdicts(self) -> tuple[NDArray[np.uint8], bool]:
        tables, rows, states, has_new = self.tables, self.rows, self.state, False
        verdicts = _BY_STATE[np.minimum(states, len(EvState) - 1)]
        now = time.monotonic_ns()
        peers, numbers = np.nonzero(states == EvState.UNKNOWN)
        if len(peers):
            configured, probes, since_ns = (
                tables.evs[name][rows[peers], numbers] for name in ("configured", "probe_seq", "state_since_ns")
            )
            is_old = now - since_ns.astype(np.int64) > _UNPROBED_NS
            is_failed = (configured != 0) & (probes >= _UNANSWERED) & is_old
            verdicts[peers[is_failed], numbers[is_failed]] = Verdict.FAILED
            has_new = bool(((configured != 0) & ~is_failed).any())
        peers, numbers = np.nonzero(states == EvState.ASSUMED_BAD)
        is_grey = np.zeros(verdicts.shape, bool)
        if len(peers):
            reasons = tables.evs["reason"][rows[peers], numbers]
            is_lossy = np.isin(reasons, _LOSSES)
            verdicts[peers[is_lossy], numbers[is_lossy]] = Verdict.LOSSY
            is_grey[peers, numbers] = reasons == Reason.GREY_LOSS
            if self._memory:
                is_about_loss = np.isin(self.evs["reason"], (*_LOSSES, Reason.ICMP_ERROR))
                awaited = self._memory.sizes.awaited(self, now) & is_about_loss
                verdicts[awaited] = Verdict.NOTHING
                for place in self._memory.sizes.mended(self.plan):
                    verdicts[place] = Verdict.NOTHING if states[place] == EvState.ASSUMED_BAD else verdicts[place]
                self.is_awaiting = bool(awaited.any())
        is_lately_grey = self._memory.lately_grey(now, self.plan, is_grey) if self._memory else None
        if is_lately_grey is not None:
            verdicts[(verdicts == Verdict.GOOD) & is_lately_grey] = Verdict.LOSSY
        if (verdicts == Verdict.LOSSY).any():
            verdicts[(verdicts == Verdict.GOOD) & self._loss_unknown(now, verdicts)] = Verdict.IDLE
        if self.has_slow(verdicts):
            verdicts = self._with_slow(verdicts, slice(None))
        return np.asarray(verdicts), has_new

    def has_slow(self, verdicts: NDArray[np.uint8]) -> bool:
        """Returns whether a sample of the peers has slow EVs."""
        sample = slice(None, None, -(-len(self.rows) // _SAMPLE) or 1)
        return bool((self._with_slow(verdicts[sample], sample) == Verdict.SLOW).any())

    def _loss_unknown(self, now: int, verdicts: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns which EVs do not show that their path loses nothing: idle ones, and those that lost something lately.

        The latter count only while they are few: on a fabric where most EVs lose something, a loss says little. What
        an EV lost before it returned from a failure does not count: since then it has shown that it works.
        """
        is_idle = now - self.evs["last_tx_ns"].astype(np.int64) > _IDLE_NS
        lost_ns = self.path_stats["loss_ns"].astype(np.int64)
        is_loaded = (verdicts == Verdict.GOOD) & ~is_idle
        has_lost = is_loaded & (lost_ns > self.since_ns.astype(np.int64)) & (now - lost_ns < _IDLE_NS)
        return np.asarray(is_idle | has_lost if _FEW * has_lost.sum() <= is_loaded.sum() else is_idle)

    def _with_slow(self, verdicts: NDArray[np.uint8], which: slice) -> NDArray[np.uint8]:
        """Returns the verdicts of some of the peers, with SLOW for EVs that are slower than the peer's fastest.

        Their probes say so, or the programs, who send little on them since: then their probes are quick.
        """
        late_ns = Columns(self.tables.path_stats, self.rows[which], self.used)["extra_delay_ns"]
        is_used = (verdicts == Verdict.GOOD) | (verdicts == Verdict.IDLE)
        least_ns = np.where(is_used, late_ns, np.iinfo(late_ns.dtype).max).min(axis=1, keepdims=True)
        is_slow = late_ns >= least_ns.astype(np.int64) + SLOW_NS
        peers, evs = Columns(self.tables.peers, self.rows[which]), Columns(self.tables.evs, self.rows[which], self.used)
        slow_planes = peers["slow_planes"]
        for plane in range(self.planes if slow_planes.any() else 0):
            is_slow[:, self.columns(plane)] |= (slow_planes >> plane & 1 != 0)[:, None]
        is_left = evs["state"] == EvState.SKIP
        if is_left.any():
            is_slow |= is_left & (evs["skip_reason"] == Reason.SLOW)
        return np.where(is_used & is_slow, np.uint8(Verdict.SLOW), verdicts)
