# SPDX-License-Identifier: BSD-2-Clause
"""Provides the tables of a host whose faults are diagnosed, and ways to break what they describe."""

import time
from collections.abc import Mapping
from typing import Any, cast
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from mrcd.config import cluster_file
from mrcd.config.cluster_file import fingerprint
from mrcd.daemon import write_tables
from mrcd.denials import targets
from mrcd.fabric import topology
from mrcd.fabric.links import number
from mrcd.health.diagnosis.causes import Cause, Confidence
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.memory import Answers, Memory, Place, Sizes
from mrcd.health.diagnosis.rules import diagnose
from mrcd.kernel import abi, pinned
from mrcd.kernel.enums import Drop, EvState, Reason
from mrcd.net.link_state import LinkState
from mrcd.net.nic_rates import NicRate
from mrcd.net.way import Way
from tests.cluster_files import host
from tests.unit.arrays import Arrays

S = 10**9
GONE = {"state": EvState.ASSUMED_BAD, "reason": Reason.OVERDUE}
LOSSY = {"state": EvState.ASSUMED_BAD, "reason": Reason.GREY_LOSS}
LOST = {"state": EvState.ASSUMED_BAD, "reason": Reason.LOSS}
SLOW = {"state": EvState.SKIP, "skip_reason": Reason.SLOW}


def text(t0s: int = 3, hosts: int = 3, t1s: int = 4, planes: int = 2, evs: int = 8, more: str = "") -> str:
    """Returns a cluster file with `hosts` hosts under each T0: h0, h1, h2 under T0 0, and so on."""
    head = f"[cluster]\nt0s = {t0s}\nt1s = {t1s}\nplanes = {planes}\nevs_per_peer = {evs}\n{more}\n"
    names = (
        host(i, t0=i // hosts, port=i % hosts, prefixes=f'["10.{i >> 8}.{i & 255}.1/32"]') for i in range(t0s * hosts)
    )
    return head + "".join(names)


LARGE_AND_SMALL = text(t0s=2, hosts=1).replace("t0s = 2", "t0s = 3") + "".join(
    host(i, t0=2, port=i - 2, prefixes=f'["10.9.{i}.1/32"]') for i in range(2, 40)
)
"""h1 alone under T0 1, and 38 hosts under T0 2."""


class Host(Arrays):
    """The tables of h0, with all EVs GOOD and all peers heard."""

    def __init__(self, file: str = "") -> None:
        self.plan = topology.plan(cluster_file.parse(file or text()), "h0")
        c = self.plan.config.cluster
        super().__init__(1 + len(self.plan.peers), c.evs_per_peer)
        self.shown = cast(pinned.Tables, self)
        write_tables.write_peers(self.shown, self.plan, lambda row: None)
        self.now = time.monotonic_ns()
        self.evs["state"][self.evs["configured"] != 0] = EvState.GOOD
        self.evs["last_tx_ns"] = self.now
        self.peers["heard_ns"] = self.now
        self.node["plane_mask"] = (1 << c.planes) - 1
        self.nic_links: dict[str, LinkState] = {}
        self.memory: Memory | None = None
        self.nic_rates = [NicRate()] * c.planes

    def where(self, target: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the rows and EVs that cross a target of `mrcctl deny`."""
        rows = targets.selected(self.plan, targets.parse(target.split()))
        pairs = [(row, ev) for row, evs in rows.items() for ev in evs]
        return np.array([r for r, _ in pairs]), np.array([e for _, e in pairs])

    def set(self, target: str, fields: Mapping[str, int] = GONE, ago_s: float = 60) -> "Host":
        """Gives the EVs that cross a target other values, since `ago_s`."""
        rows, evs = self.where(target)
        for name, value in fields.items():
            self.evs[name][rows, evs] = value
        self.evs["state_since_ns"][rows, evs] = self.now - int(ago_s * S)
        return self

    def delay(self, target: str, delay_ns: int = 5_000_000) -> "Host":
        """Gives the EVs that cross a target more delay."""
        self.path_stats["extra_delay_ns"][self.where(target)] = delay_ns
        return self

    def full_size_lost(self, *small: str, full: str = "", fields: Mapping[str, int] = LOST) -> "Host":
        """Has probes show that only small packets pass where EVs cross these targets, or `full` to full-size ones.

        EVs that do not pass any target have no answer.
        """
        self.memory = Memory()
        answers: dict[Place, Answers] = {}
        for target, passes in (*((t, True) for t in full.split()), *((t, False) for t in small)):
            rows, evs = self.where(target)
            answers |= {(int(r) - 1, int(e)): Answers(self.now - S, passes) for r, e in zip(rows, evs, strict=True)}
        self.memory.sizes = Sizes(self.plan, answers)
        for target in small:
            self.set(target, fields)
            self.path_stats["arrived_ns"][self.where(target)] = self.now
        return self

    def slow_nic(self, plane: int, rate: NicRate) -> "Host":
        """Gives this host's NIC on a plane another rate than the others."""
        self.nic_rates[plane] = rate
        return self

    def heard(self, rows: Any, ago_s: float) -> "Host":
        """Has these peers heard last `ago_s` ago."""
        return self.put("peers.heard_ns", rows, self.now - int(ago_s * S))

    def silent(self, *rows: int) -> "Host":
        """Has these peers answer nothing; without any, none does."""
        return self.put("watches.silent", list(rows) or slice(None), 1)

    def own_planes(self, mask: int, **links: LinkState) -> "Host":
        """Has only these planes of this host a link; `links`: the states of its interfaces."""
        self.nic_links |= links
        return self.put("node.plane_mask", (), mask)

    def with_links(self) -> "Host":
        """Has all link probes come back a moment ago."""
        write_tables.write_links(self.shown, self.plan)
        self.links["sent"] = self.links["received"] = 1000
        self.links["tx_ns"] = self.links["rx_ns"] = self.now
        return self

    def lose_probes(self, plane: int, *t1s: int | None, ago_s: float = 60) -> "Host":
        """Lets no probe of these links come back any more."""
        for t1 in t1s:
            self.links["rx_ns"][number(plane, t1)] = self.now - int(ago_s * S)
            self.links["unanswered"][number(plane, t1)] = 600
        return self

    def told(self, *rows: int, by: int = 1234) -> "Host":
        """Has all peers tell the fingerprint of this host's file, except that `rows` tell another."""
        self.peers["fingerprint"] = fingerprint(self.plan.config.cluster)
        return self.put("peers.fingerprint", list(rows), by)

    def wire(self, *rows: int) -> "Host":
        """Has these peers speak another wire version."""
        return self.put("peers.status", list(rows), 9 << abi.STATUS_WIRE)

    def refused(self, *reasons: Drop, unroutable: tuple[int, ...] = ()) -> "Host":
        """Has this host refuse packets for these reasons, or get some without a route on planes."""
        self.memory = Memory()
        self.memory.note_counters(0, {}, dict.fromkeys(unroutable, 100))
        self.memory.note_counters(S, {reason.text: 7 for reason in reasons}, dict.fromkeys(unroutable, 139))
        return self

    def other_way(self, *peers: int) -> "Host":
        """Has the kernel take another program's route to these peers."""
        self.memory = Memory()
        way = Way("10.0.4.1", "10.0.0.1", table=254, dst="10.0.0.0/8", interface="p0")
        self.memory.ways = {f"h{peer}": way for peer in peers}
        return self

    def causes(self) -> list[Cause]:
        """Returns the diagnosis."""

        def link(name: str, _: int) -> LinkState:
            return self.nic_links.get(name, LinkState.NO_CARRIER)

        with mock.patch("time.monotonic_ns", return_value=self.now):
            return diagnose(Facts(self.shown, self.plan, self.memory, link, lambda names: self.nic_rates))

    def found(self) -> list[str]:
        """Returns each cause in a line, such as "t1 t1:1:2 or link:1:0:2"; a certain one with "!"."""
        lines = []
        for c in self.causes():
            assert (c.confidence is Confidence.AMBIGUOUS) == bool(c.or_targets)
            if not c.target.startswith("host:"):
                targets.parse(c.target.split())
            line = f"{c.kind} {' or '.join([c.target, *c.or_targets])}"
            lines.append(line + "!" * (c.confidence is Confidence.CERTAIN))
        return lines
