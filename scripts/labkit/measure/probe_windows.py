# SPDX-License-Identifier: BSD-2-Clause
"""Counts the probe requests that hosts send in windows of 100 ms, beside their budgets (docs/how-it-decides.md)."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.kernel.pinned import Tables

WINDOW_S = 0.1
_PAID, _SAVED_S = 1.5, 0.5  # traffic pays for so many times idle_probes; and what is not spent is saved for so long
_WITHOUT = ("suspicion", "link")  # kinds that do not wait for the budget


@dataclass
class Windows:
    """The most requests of one host in one window, scaled to WINDOW_S, and how many windows there were."""

    most: float = 0.0
    windows: int = 0


def most_allowed(idle_probes: int) -> float:
    """Returns how many requests a host may send in a window: what traffic pays for, and all that it has saved."""
    return idle_probes * (_PAID * WINDOW_S + _SAVED_S)


@contextmanager
def watching(lab: Lab) -> Iterator[Windows]:
    """A block in which a thread counts the requests of all hosts."""
    found, end = Windows(), threading.Event()
    tables = [Tables(observe.pins(lab, host), writable=False) for host in lab.fabric.hosts]

    def count() -> None:
        before = [(time.monotonic(), _sent(t)) for t in tables]
        while not end.wait(WINDOW_S):
            for n, t in enumerate(tables):
                (then, sent), now = before[n], (time.monotonic(), _sent(t))
                before[n] = now
                found.most = max(found.most, (now[1] - sent) * WINDOW_S / max(WINDOW_S, now[0] - then))
                found.windows += 1

    thread = threading.Thread(target=count, name="probe windows", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join()
        for t in tables:
            t.close()


def _sent(tables: Tables) -> int:
    return sum(n for kind, n in tables.probes_sent().items() if kind not in _WITHOUT)
