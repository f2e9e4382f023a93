# SPDX-License-Identifier: BSD-2-Clause
"""Computes how often the tick sweeps each peer, on how many of its EVs, and how long failed EVs are held down. Pure.

In a small cluster, a sweep probes all EVs of a peer, in every idle interval. If that exceeds [health] idle_probes,
the tick sweeps a peer less often, and probes only some of its EVs each time, in rotation. Peers with traffic are swept
too; the probes that are piggybacked on their packets do not count here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Health
from mrcd.fabric.topology import Plan

_MS = 1_000_000
_UNREACHABLE_NS = 3_000_000_000
_SHARE = 8  # of the allowed probes, one in so many is for this rotation; the rest is for retries and suspected EVs


@dataclass(frozen=True)
class Pace:
    """The tick probes `window` EVs of a peer (0: all) every `interval_ns`."""

    window: int
    interval_ns: int


def pace(settings: Health, planes: int, peers: int, evs: int, evs_per_peer: int) -> Pace:
    """Returns the pace for `peers` peers with `evs` EVs together, at most `evs_per_peer` each, on `planes` planes."""
    interval_ns = settings.idle_interval_ms * _MS
    allowed = settings.idle_probes * settings.idle_interval_ms // 1000  # probes per interval
    if evs + peers <= allowed:  # each peer needs one more request, for a report
        return Pace(0, interval_ns)
    window = min(max(allowed // peers - 1, planes), evs_per_peer)
    return Pace(window, max(interval_ns, peers * (window + 1) * _SHARE * 1_000_000_000 // settings.idle_probes))


def of_plan(plan: Plan) -> Pace:
    """Returns the pace of a plan."""
    c = plan.config
    return pace(c.health, c.cluster.planes, len(plan.peers), plan.ev_count, c.cluster.evs_per_peer)


def unreachable_ns(plan: Plan) -> int:
    """Returns the silence after which a peer is unreachable: three intervals, at least three seconds.

    With many peers it is longer: each is probed less often.
    """
    return max(_UNREACHABLE_NS, 3 * of_plan(plan).interval_ns)


def hold_down_ns(settings: Health, flaps: NDArray[Any] | int) -> NDArray[np.int64]:
    """Returns how long probes must arrive without loss before an EV returns: doubles with each flap after the first.

    The programs serve this deadline: see bpf/ev_deadlines.h.
    """
    doubled = settings.hold_down_ms * 2.0 ** np.clip(np.asarray(flaps, np.int64) - 1, 0, 40)
    return np.asarray(np.minimum(doubled, settings.hold_down_max_ms) * _MS, np.int64)
