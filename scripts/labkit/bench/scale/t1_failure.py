# SPDX-License-Identifier: BSD-2-Clause
"""Measures how long a failed T1 stays in use for idle peers: one EV to each of them passes it."""

import time

import numpy as np
from numpy.typing import NDArray

from labkit.bench.part import requirement
from labkit.bench.scale import control
from labkit.cluster.emulated_peers import EmulatedPeers
from labkit.cluster.observe import Document
from labkit.entry import progress
from mrcd.errors import MachineError
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

IDLE_S, TRAFFIC_S = (
    2.0,
    0.02,
)  # until all peers have left it: without traffic; with traffic to one peer, since its EV is ASSUMED_BAD
IDLE_REQUESTS = 4000  # per second, [health] idle_probes; the budget may hold half a second's
_IDLE_EV, _BUSY_EVS = 77, (33, 99, 150)
_PATIENCE_S, _PACE_S = 60.0, 0.0005


def measure(emulated: EmulatedPeers) -> Document:
    """Kills a T1 while all peers are idle, then three others while one peer has traffic: the median of these.

    Returns the seconds until all peers have left it: since it died, since the first peer left it, and since the first
    ASSUMED_BAD.
    """
    tables = Tables(emulated.pins, writable=False)
    try:
        rows = np.flatnonzero(tables.peers["configured"])
        idle = _die(emulated, tables, rows, _IDLE_EV)
        with control.sending(emulated, 1):
            time.sleep(1.0)
            busy = sorted(
                (_die(emulated, tables, rows, ev) for ev in _BUSY_EVS), key=lambda died: died["after_found_s"]
            )
    finally:
        tables.close()
    return {"idle": idle, "busy": busy[len(busy) // 2], "busy_all": busy}


def _die(emulated: EmulatedPeers, tables: Tables, rows: NDArray[np.int64], ev: int) -> Document:
    """Drops an EV number for all peers until none uses it; then heals it."""
    progress(f"scale: T1 of EV {ev} dies for {len(rows)} peers")
    word, bit = ev // 64, np.uint64(1 << ev % 64)
    _wait_until_good(tables, rows, ev)
    before, begun = tables.probes_sent(), time.monotonic()
    first = found = None
    emulated.kill(ev)
    while True:
        left = (tables.peers["usable"][rows, word] & bit) == 0
        now = time.monotonic()
        if first is None and left.any():
            first = now
        if found is None and (tables.evs["state"][rows, ev] == EvState.ASSUMED_BAD).any():
            found = now
        if left.all():
            break
        if now - begun > _PATIENCE_S:
            raise MachineError(f"after {_PATIENCE_S:.0f} s {int(left.sum())} of {len(rows)} peers have left EV {ev}")
        time.sleep(_PACE_S)
    time.sleep(max(0.0, IDLE_S - (now - begun)))
    sent, taken = tables.probes_sent(), time.monotonic() - begun
    emulated.kill(None)
    return {
        "all_s": now - begun,
        "after_first_s": now - (first or now),
        "after_found_s": now - (found or now),
        "requests": {kind: n - before[kind] for kind, n in sent.items()},
        "taken_s": taken,  # two seconds at least
    }


def _wait_until_good(tables: Tables, rows: NDArray[np.int64], ev: int) -> None:
    """Waits until this EV is GOOD for all peers."""
    begun = time.monotonic()
    while (tables.evs["state"][rows, ev] != EvState.GOOD).any():
        if time.monotonic() - begun > _PATIENCE_S:
            raise MachineError(f"EV {ev} is not GOOD for all peers after {_PATIENCE_S:.0f} s")
        time.sleep(0.1)


def requirements(fate: Document, peers: int) -> list[Document]:
    """Returns the requirements. Pure."""
    idle, busy = fate["idle"]["all_s"], fate["busy"]["after_found_s"]
    requests, taken_s = fate["idle"]["requests"], fate["idle"]["taken_s"]
    sent, most = sum(requests.values()), IDLE_REQUESTS * (taken_s + 0.5)
    return [
        requirement(
            f"a T1 that dies is left by {peers:,} idle peers within {IDLE_S:g} s", idle <= IDLE_S, f"{idle:.2f} s"
        ),
        requirement(
            f"in these two seconds {IDLE_REQUESTS:,} requests/s are sent at most, and the budget of half a second",
            sent <= most,
            f"{sent:,} of {most:,.0f}: {', '.join(f'{n:,} {kind}' for kind, n in requests.items())}",
        ),
        requirement(
            f"after the traffic of one peer detects a dead T1, all {peers:,} have left it {TRAFFIC_S * 1e3:g} ms later",
            busy <= TRAFFIC_S,
            f"{busy * 1e3:.0f} ms; {fate['busy']['after_first_s'] * 1e3:.0f} ms after the first left it on suspicion",
        ),
    ]
