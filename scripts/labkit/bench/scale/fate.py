"""How long a T1 that died is used by idle peers: it is one EV of each."""

import json
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labkit import crowd as crowds
from labkit.bench.part import requirement
from labkit.crowd import Crowd
from labkit.entry import progress
from labkit.observe import Document
from mrcd.abi import EvState
from mrcd.errors import MachineError
from mrcd.tables import Tables

IDLE_S, TRAFFIC_S = 2.0, 0.02  # until all peers have left it: nobody has traffic; one has, since it left
_IDLE_EV, _BUSY_EV = 77, 33
_PATIENCE_S, _PACE_S = 60.0, 0.0005
_LOAD = Path(__file__).parents[2] / "crowdload.py"


def measure(crowd: Crowd) -> Document:
    """Kill a T1 while all peers are idle, then another while one of them has traffic. Seconds until it was left by all
    peers: since it died, and since the first of them left it."""
    tables = Tables(crowd.pins, writable=False)
    try:
        rows = np.flatnonzero(tables.peers["configured"])
        before = sum(tables.probes_sent().values())
        idle = _die(crowd, tables, rows, _IDLE_EV)
        idle["probes"] = sum(tables.probes_sent().values()) - before
        child = crowd.popen([sys.executable, "-I", str(_LOAD), "1000", crowds.address(1)])
        try:
            time.sleep(1.0)
            busy = _die(crowd, tables, rows, _BUSY_EV)
        finally:
            said, _ = child.communicate(timeout=10)
        busy["packets_per_s"] = json.loads(said)["packets"] / json.loads(said)["seconds"]
    finally:
        tables.close()
    return {"idle": idle, "busy": busy}


def _die(crowd: Crowd, tables: Tables, rows: NDArray[np.int64], ev: int) -> Document:
    """Until no peer's EV of this number is usable any more; then it heals."""
    progress(f"scale: T1 of EV {ev} dies for {len(rows)} peers")
    word, bit = ev // 64, np.uint64(1 << ev % 64)
    _wait_until_good(tables, rows, ev)
    begun, first = time.monotonic(), None
    crowd.kill(ev)
    while True:
        left = (tables.peers["usable"][rows, word] & bit) == 0
        now = time.monotonic()
        if first is None and left.any():
            first = now
        if left.all():
            break
        if now - begun > _PATIENCE_S:
            raise MachineError(f"after {_PATIENCE_S:.0f} s {int(left.sum())} of {len(rows)} peers have left EV {ev}")
        time.sleep(_PACE_S)
    crowd.kill(None)
    return {"all_s": now - begun, "after_first_s": now - (first or now)}


def _wait_until_good(tables: Tables, rows: NDArray[np.int64], ev: int) -> None:
    begun = time.monotonic()
    while (tables.evs["state"][rows, ev] != EvState.GOOD).any():
        if time.monotonic() - begun > _PATIENCE_S:
            raise MachineError(f"EV {ev} is not GOOD for all peers after {_PATIENCE_S:.0f} s")
        time.sleep(0.1)


def requirements(fate: Document, peers: int) -> list[Document]:
    """What is wanted of them. Pure."""
    idle, busy = fate["idle"]["all_s"], fate["busy"]["after_first_s"]
    return [
        requirement(
            f"a T1 that dies is left by {peers:,} idle peers within {IDLE_S:g} s", idle <= IDLE_S, f"{idle:.2f} s"
        ),
        requirement(
            f"one peer's traffic finds it: {peers:,} have left it {TRAFFIC_S * 1e3:g} ms later",
            busy <= TRAFFIC_S,
            f"{busy * 1e3:.0f} ms",
        ),
    ]
