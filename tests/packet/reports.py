"""Host h2 as its reports tell of it: what has arrived there of what this host sent."""

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import PROBE_REPLY, MRCCount, MRCProbe, MRCReport
from mrcd.tables import abi
from mrcd.tables.abi import EvState, Reason
from tests.packet.cluster import ALL_PLANES, EVS, H2, PLANES, Setup
from tests.packet.rig import Bench
from tests.packet.wires import until

MS = 1_000_000
NEVER = 2**62
EVERY = list(range(EVS))
GENERATION = 0xABCD0001
BURST_PROBES, LOST_BURSTS, BURSTS_AT_ONCE = 16, 6, 8  # bpf/judge.h, mrc_state.h
LAGGING = (EvState.SKIP, Reason.LAGGING)
SETTLED_MS = 6
"""Longer than any reordering window, which ends with probe_late_ms, 5; and than half of overdue_ms."""


@dataclass(frozen=True)
class Asked:
    """A request for a report, on its way."""

    ev: int
    seq: int
    report_seq: int
    counts: tuple[tuple[int, int, int], ...] = ()
    """What h2 had counted on each EV when it came there, if not what it has counted by now."""


class Reporter:
    """A model of h2's counters, and of what it answers. Sweeps ask it for reports and for nothing else.

    Times are those in this host's tables, so `Bench.age` moves all of them.
    """

    def __init__(self, bench: Bench, *, start: int = 0, probes: int = 0) -> None:
        self.bench = bench
        self.evs: int = bench.tables.evs.shape[1]
        self.chunks = -(-self.evs // abi.REPORT_EVS)
        self.generation = GENERATION
        self.packets = [start] * self.evs
        self.probes = [probes] * self.evs
        self.ce = [0] * self.evs
        self._probes_sent: list[int] = bench.tables.evs["probe_seq"][H2].tolist()
        for _ in range(self.chunks):
            self.report()  # the first one says where counting begins

    def send(self, ev: int, packets: int = 1, *, arrive: int | None = None) -> None:
        """As if so many had been pushed onto an EV a while ago, and those that `arrive` had arrived."""
        self.bench.ev(H2, ev)["tx_packets"] += packets
        self.packets[ev] += packets if arrive is None else arrive

    def send_all(self, packets: int = 1, *, lose: tuple[int, ...] = ()) -> None:
        """The same on every EV; nothing arrives on those in `lose`."""
        for ev in range(self.evs):
            self.send(ev, packets, arrive=0 if ev in lose else packets)

    def ask(self, *, arrives: bool = True) -> Asked:
        """Ask for a report, on whichever EV is next."""
        bench, sent = self.bench, self.bench.tables.evs["probe_seq"]
        bench.reports(H2)["requested_ns"] = 0  # long ago
        bench.tables.path_stats["probe_after_ns"][H2] = NEVER  # EVs that fail are due at once
        before = sent[H2].copy()
        assert bench.dataplane.sweep(H2) == 1
        ((ev,),) = np.nonzero(sent[H2] != before)
        self._probes_sent[ev] += 1
        if arrives:
            self.probes[ev] += 1
        return Asked(int(ev), int(sent[H2, ev]), int(bench.reports(H2)["report_seq"]))

    def burst(self, ev: int, arrive: int | None = None) -> int:
        """So many of the probes that were sent on an EV since the last call arrive, all of them if not said.

        Returns how many were sent.
        """
        sent = (int(self.bench.ev(H2, ev)["probe_seq"]) - self._probes_sent[ev]) % 2**32
        self._probes_sent[ev] += sent
        self.probes[ev] += sent if arrive is None else arrive
        return sent

    def counts(self) -> tuple[tuple[int, int, int], ...]:
        """What a request that comes in now will report: packets, probes, CE marks of each EV."""
        return tuple(zip(self.packets, self.probes, self.ce, strict=True))

    def reply(self, asked: Asked, *, delay: int = 0, host: str = "h2", **probe: Any) -> Packet:
        """The answer to a request as it comes back; `delay` is added to its time under way."""
        first = asked.report_seq % self.chunks * abi.REPORT_EVS
        counts = (asked.counts or self.counts())[first : first + abi.REPORT_EVS]
        fields = {
            "seq": asked.seq,
            "plane_mask": ALL_PLANES,
            "generation": self.generation,
            "report_seq": asked.report_seq,
            "first": first,
            "counts": len(counts),
            "tx_ns": int(self.bench.reports(H2)["sent_ns"][asked.report_seq % abi.REPORT_SLOTS]),
            **probe,
        }
        records = [MRCCount(packets=p & 0xFFFFFFFF, probes=q & 0xFFFF, ce=c & 0xFFFF) for p, q, c in counts]
        content = MRCProbe(**fields) / MRCReport(records=records)
        replied_ns = int(fields["tx_ns"]) + 10_000_000_000 + delay  # a clock of its own
        return self.bench.arriving(host, asked.ev, Raw(bytes(content)), type=PROBE_REPLY, tx_ns=replied_ns)

    def settle(self, frame: Packet, reason: str | None = None) -> None:
        """Take in a reply; it is dropped under `reason` if it must not count."""
        drops = self.bench.drops()
        plane = frame["MRC"].ev // (self.evs // PLANES)
        assert self.bench.pop("tc", frame, plane)[0] == "drop"  # taken in
        if reason:
            drops[reason] = drops.get(reason, 0) + 1
        assert self.bench.drops() == drops

    def pass_through(self, chance: random.Random, loss: dict[int, float], packets: dict[int, int] | int = 10) -> None:
        """A report's worth of traffic over paths that lose some of it: data, probe bursts and the request itself."""
        for ev in range(self.evs):
            rate, sent = loss.get(ev, 0.0), packets if isinstance(packets, int) else packets[ev]
            self.send(ev, sent, arrive=sum(chance.random() >= rate for _ in range(sent)))
            self.probes[ev] += sum(chance.random() >= rate for _ in range(self.burst(ev, 0)))
        self.bench.age(SETTLED_MS * MS)
        asked = self.ask(arrives=False)
        if chance.random() >= loss.get(asked.ev, 0.0):
            self.probes[asked.ev] += 1
            self.settle(self.reply(asked))

    def report(self, *, after_ms: int = SETTLED_MS, **probe: Any) -> Asked:
        """Some time later ask, and have the answer at once."""
        self.bench.age(after_ms * MS)
        asked = self.ask()
        self.settle(self.reply(asked, **probe))
        return asked

    def quiet(self, reports: int = 2, *, after_ms: int = SETTLED_MS) -> None:
        """Nothing more is sent, and the probe bursts arrive: losses that are known become sure."""
        for _ in range(reports):
            for ev in range(self.evs):
                self.burst(ev)
            self.report(after_ms=after_ms)


WINDOW = "loss_window_ms = 60000"
"""Wide enough for any test that begins with `unfaded`."""


def unfaded(seconds: int = 3) -> None:
    """Wait, if need be, until such windows will not fade for some time: they do each 30 s."""
    half = 30_000 * MS
    until("the loss windows have faded", lambda: now() % half < half - seconds * 1000 * MS)


unfading = pytest.mark.parametrize("bench", [Setup(health=WINDOW)], indirect=True, ids=[""])
"""For tests that begin with `unfaded`."""


def patient(overdue_ms: int, reorder_us: int = 50) -> pytest.MarkDecorator:
    """A host that takes its time, so that it does not matter how long a test takes."""
    health = f"overdue_ms = {overdue_ms}\nreorder_us = {reorder_us}"
    return pytest.mark.parametrize("bench", [Setup(health=health)], indirect=True, ids=[""])


def others(*evs: int) -> list[int]:
    """All EVs but these."""
    return [e for e in EVERY if e not in evs]


def state(bench: Bench, ev: int) -> tuple[EvState, Reason]:
    """An EV's state and why it is in it."""
    record = bench.ev(H2, ev)
    skip = record["state"] == EvState.SKIP
    return EvState(record["state"]), Reason(record["skip_reason"] if skip else record["reason"])


def lagging(bench: Bench, ev: int = 5) -> Reporter:
    """Nothing of three packets on an EV has arrived."""
    r = Reporter(bench)
    r.send_all(3)
    r.report()
    r.send_all(3, lose=(ev,))
    r.report()
    assert state(bench, ev) == LAGGING
    return r


def on_its_way(bench: Bench, ev: int) -> None:
    """As if the probes on an EV had been sent so lately that nobody misses them."""
    bench.path_stats(H2, ev)["probe_ns"] = now() + 10**12
    bench.path_stats(H2, ev)["noted_probes"] = 0


def events(bench: Bench) -> list[tuple[int, str, str, str]]:
    """The transitions since the last call: EV, state before, state after, reason."""
    return [
        (int(e["ev"]), abi.EvState(e["before"]).name, abi.EvState(e["after"]).name, abi.Reason(e["reason"]).text)
        for e in bench.dataplane.events()
        if e["ev"] != abi.EVENT_IDLE_TIMEOUT
    ]


def now() -> int:
    """CLOCK_MONOTONIC, as in the programs."""
    return time.monotonic_ns()
