# SPDX-License-Identifier: BSD-2-Clause
"""Reports what runs the tick (daemon or timer packet), the probe budget, and the probes sent by kind. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SILENT_NS = 50_000_000  # DAEMON_SILENT_NS of bpf/tick.h
_LATE_NS = 100_000_000  # the timer packet comes each millisecond, and a busy CPU may hold it up


def document(
    node: NDArray[np.void], clock: NDArray[np.void], sent: Mapping[str, int], per_second: int, now: int
) -> dict[str, Any]:
    """Return what runs the tick, the probe budget, and the probe requests sent by kind.

    `node` and `clock` are the tables' records, `now` is CLOCK_MONOTONIC in ns, `per_second` is [health] idle_probes.
    """
    by = None
    if now - int(node["ticked_ns"]) < _SILENT_NS:
        by = "daemon"
    elif now - int(clock["packet_due_ns"]) < _LATE_NS:
        by = "timer packet"
    return {
        "tick_by": by,
        "ticks_by_daemon": int(clock["by_daemon"]),
        "ticks_by_packet": int(clock["by_packet"]),
        "budget_probes_per_s": per_second,
        "budget_left_probes": int(clock["budget"]),
        "sent_probes": dict(sent),
    }
