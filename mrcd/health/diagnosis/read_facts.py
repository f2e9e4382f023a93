# SPDX-License-Identifier: BSD-2-Clause
"""Reads the facts of a diagnosis from the tables, the plan and the kernel's interfaces.

While all is well it reads one field of each EV, the delays of a sample, and some fields of each peer.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import fingerprint
from mrcd.fabric.paths import NO_T1
from mrcd.health.diagnosis.facts import NOT_TOLD, SAME_FILE, Facts, OwnPlane, Verdict
from mrcd.health.diagnosis.memory import Memory
from mrcd.health.links.verdicts import grid
from mrcd.health.snapshot import Columns, Snapshot
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import is_detached
from mrcd.net.link_state import LinkState, link_state

SLOW_NS = 2_000_000  # an EV is slow if its packets take so much longer than the fastest to the same peer
_UNPROBED_NS = 5_000_000_000  # a new EV that answers no probe for so long has failed
_UNANSWERED = 4  # probes
_IDLE_NS = 64_000_000_000  # the longest window of the grey-loss test
_FEW = 4  # one of so many
_SAMPLE = 64  # peers whose EVs' delays are always read; those of all peers only if some of these are slow

_BY_STATE = np.full(len(EvState), Verdict.NOTHING, np.uint8)
_BY_STATE[[EvState.GOOD, EvState.SKIP]] = Verdict.GOOD
_BY_STATE[EvState.ASSUMED_BAD], _BY_STATE[EvState.DENIED] = Verdict.FAILED, Verdict.DENIED


def read_facts(s: Snapshot, read_link: Callable[[str], LinkState] = link_state, memory: Memory | None = None) -> Facts:
    """Returns the facts of this moment. `read_link` reads the state of an interface; only unusable planes need it.

    `memory` adds what the tables do not keep, and notes what they say now.
    """
    tables, plan, mask = s.tables, s.plan, int(s.tables.node["plane_mask"])
    verdicts, has_new = _verdicts(s, memory)
    is_well = bool((verdicts <= Verdict.GOOD).all())

    def own_plane(plane: int, name: str) -> OwnPlane:
        is_up = bool(mask >> plane & 1)
        unroutable = memory.unroutable.get(plane, 0) if memory else 0
        return OwnPlane(name, is_up, LinkState.UP if is_up else read_link(name), unroutable)

    return Facts(
        host=plan.host.name,
        t0=plan.host.t0,
        encapsulation=plan.config.cluster.encapsulation,
        is_host_detached=is_detached(tables.node),
        own_planes=[own_plane(plane, name) for plane, name in enumerate(plan.interfaces)],
        names=[p.host.name for p in plan.peers],
        t0s=np.array([p.host.t0 for p in plan.peers], np.int64),
        planes=s.peers["plane_mask"],
        is_silent=s.is_silent,
        is_detached=s.is_detached & s.is_reachable,
        heard_ns=s.heard_ns,
        verdicts=verdicts,
        has_new=has_new,
        t1s=np.broadcast_to(np.int16(NO_T1), verdicts.shape) if is_well else plan.paths.t1s,
        since_ns=np.broadcast_to(np.uint64(0), verdicts.shape) if is_well else s.evs["state_since_ns"],
        files=_files(s.peers["fingerprint"], fingerprint(plan.config.cluster)),
        refused=memory.refused if memory else {},
        links=None if is_well or plan.config.cluster.encapsulation != "usid" else grid(tables.links, plan).copy(),
    )


def _files(fingerprints: NDArray[np.uint32], own: int) -> NDArray[np.int64]:
    """Returns Facts.files."""
    other = np.where(fingerprints == own, SAME_FILE, fingerprints.astype(np.int64))
    return np.where(fingerprints == 0, NOT_TOLD, other)


def _verdicts(s: Snapshot, memory: Memory | None) -> tuple[NDArray[np.uint8], bool]:
    """Returns the verdict of each EV, (peers, EVs), and Facts.has_new."""
    tables, rows, states, has_new = s.tables, s.rows, s.state, False
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
        is_lossy = np.isin(reasons, (Reason.LOSS, Reason.GREY_LOSS))
        verdicts[peers[is_lossy], numbers[is_lossy]] = Verdict.LOSSY
        is_grey[peers, numbers] = reasons == Reason.GREY_LOSS
    is_lately_grey = memory.lately_grey(now, s.plan, is_grey) if memory else None
    if is_lately_grey is not None:
        verdicts[(verdicts == Verdict.GOOD) & is_lately_grey] = Verdict.LOSSY
    if (verdicts == Verdict.LOSSY).any():
        verdicts[(verdicts == Verdict.GOOD) & _loss_unknown(s, now, verdicts)] = Verdict.IDLE
    if has_slow(s, verdicts):
        verdicts = _with_slow(s, verdicts, slice(None))
    return np.asarray(verdicts), has_new


def has_slow(s: Snapshot, verdicts: NDArray[np.uint8]) -> bool:
    """Returns whether a sample of the peers has slow EVs."""
    sample = slice(None, None, -(-len(s.rows) // _SAMPLE) or 1)
    return bool((_with_slow(s, verdicts[sample], sample) == Verdict.SLOW).any())


def _loss_unknown(s: Snapshot, now: int, verdicts: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Returns which EVs do not show that their path loses nothing: idle ones, and those that lost something lately.

    The latter count only while they are few: on a fabric where most EVs lose something, a loss says little. What an EV
    lost before it returned from a failure does not count: since then it has shown that it works.
    """
    is_idle = now - s.evs["last_tx_ns"].astype(np.int64) > _IDLE_NS
    lost_ns = s.path_stats["loss_ns"].astype(np.int64)
    is_loaded = (verdicts == Verdict.GOOD) & ~is_idle
    has_lost = is_loaded & (lost_ns > s.evs["state_since_ns"].astype(np.int64)) & (now - lost_ns < _IDLE_NS)
    return np.asarray(is_idle | has_lost if _FEW * has_lost.sum() <= is_loaded.sum() else is_idle)


def _with_slow(s: Snapshot, verdicts: NDArray[np.uint8], which: slice) -> NDArray[np.uint8]:
    """Returns the verdicts of some of the peers, with SLOW for EVs that are slower than the peer's fastest."""
    late_ns = Columns(s.tables.path_stats, s.rows[which], s.used)["extra_delay_ns"]
    is_used = (verdicts == Verdict.GOOD) | (verdicts == Verdict.IDLE)
    least_ns = np.where(is_used, late_ns, np.iinfo(late_ns.dtype).max).min(axis=1, keepdims=True)
    return np.where(is_used & (late_ns >= least_ns.astype(np.int64) + SLOW_NS), np.uint8(Verdict.SLOW), verdicts)
