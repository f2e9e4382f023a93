# SPDX-License-Identifier: BSD-2-Clause
"""Provides the tables as plain arrays, and the text of a cluster whose paths they may hold."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mrcd.fabric import links
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState, Reason
from tests.cluster_files import host

HOSTS = "".join(host(i, t0=i % 2, port=i // 2) for i in range(4))
TEXT = f"[cluster]\nt0s = 2\nt1s = 4\nplanes = 2\nevs_per_peer = 8\n{HOSTS}"


class Arrays:
    """The tables as plain arrays."""

    def __init__(self, peers: int, evs: int) -> None:
        self.written: object = None
        self.peers = np.zeros(peers, abi.PEER)
        self.evs = np.zeros((peers, evs), abi.EV)
        self.path_stats = np.zeros((peers, evs), abi.PATH_STATS)
        self.rxs = np.zeros((peers, evs), abi.RX)
        self.auths = np.zeros(peers, abi.AUTH)
        self.copies = np.zeros(peers, abi.COPIES)
        self.reports = np.zeros(peers, abi.REPORTS)
        self.srhs = np.zeros(peers * evs, abi.SRH)
        self.planes = np.zeros(abi.MAX_PLANES, abi.PLANE)
        self.links = np.zeros(links.table_size(64), abi.LINK)
        self.node = np.zeros((), abi.NODE)
        self.watches = np.zeros(peers, abi.WATCH)
        self.clock = np.zeros((), abi.CLOCK)
        self.dropped: dict[str, int] = {}
        self.changes = np.zeros((len(EvState), len(Reason)), abi.CHANGES)

    def put(self, place: str, rows: Any, value: Any) -> Self:
        """Gives rows of a table another value; place: table.field."""
        table, field = place.split(".")
        getattr(self, table)[field][rows] = value
        return self

    def drops(self) -> dict[str, int]:
        return dict(self.dropped)

    def transitions(self) -> NDArray[np.void]:
        return self.changes
