# SPDX-License-Identifier: BSD-2-Clause
"""Models host h2: what has arrived there, and the reports that it sends."""

import random
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scapy.packet import Packet, Raw

from labkit.traffic.wire import PROBE_REPLY, MRCProbe
from mrcd.kernel import abi, enums
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.packets import ALL_PLANES, EVS, H2, PLANES
from tests.packet.rig import NEVER, Bench, Setup

EVERY = list(range(EVS))
GENERATION = 0xABCD0001
BURST_PROBES, LOST_BURSTS, BURSTS_AT_ONCE = 16, 6, 8  # bpf/judge.h, mrc_state.h
STALL_MAX_MS = 100  # bpf/judge.h
LAGGING = (EvState.SKIP, Reason.LAGGING)
LOSSES = ("window_lost", "window_losses", "pending_losses", "confirmed_losses")  # of an EV's loss window
PAST_REORDERING_MS = 6
"""Longer than any reordering window (at most probe_late_ms, 5 ms), and than half of overdue_ms."""


@dataclass(frozen=True)
class ReportRequest:
    ev: int
    seq: int
    report_seq: int
    counts: tuple[tuple[int, int, int], ...] = ()
    """The counts of h2 when the request arrived; empty: its present counts."""


class Reporter:
    """A model of h2's counters and replies. Sweeps request reports from it, and send no other probes.

    Times are those of this host's tables, so `advance` moves all of them.
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
            self.report()  # the first report sets the base of the counts

    def send(self, ev: int, packets: int = 1, *, arrive: int | None = None) -> None:
        """Counts `packets` as pushed onto an EV a while ago, of which `arrive` (all, if not given) arrived."""
        self.bench.tables.evs["tx_packets"][H2, ev] += packets
        self.packets[ev] += packets if arrive is None else arrive

    def send_all(self, packets: int = 1, *, lose: tuple[int, ...] = ()) -> None:
        """Sends packets on every EV; none arrive on those in `lose`."""
        for ev in range(self.evs):
            self.send(ev, packets, arrive=0 if ev in lose else packets)

    def request_report(self, *, arrives: bool = True) -> ReportRequest:
        """Requests a report, on whichever EV is next."""
        bench, sent = self.bench, self.bench.tables.evs["probe_seq"]
        bench.reports(H2)["requested_ns"] = 0  # long ago
        bench.tables.path_stats["probe_after_ns"][H2] = NEVER  # EVs that fail are due at once
        before = sent[H2].copy()
        assert bench.dataplane.sweep(H2) == 1
        ((ev,),) = np.nonzero(sent[H2] != before)
        self._probes_sent[ev] += 1
        if arrives:
            self.probes[ev] += 1
        return ReportRequest(int(ev), int(sent[H2, ev]), int(bench.reports(H2)["report_seq"]))

    def burst(self, ev: int, arrive: int | None = None) -> int:
        """Lets `arrive` of the probes sent on an EV since the last call arrive; all of them by default.

        Returns the number of probes sent.
        """
        sent = (int(self.bench.tables.evs["probe_seq"][H2, ev]) - self._probes_sent[ev]) % 2**32
        self._probes_sent[ev] += sent
        self.probes[ev] += sent if arrive is None else arrive
        return sent

    def counts(self) -> tuple[tuple[int, int, int], ...]:
        """Returns packets, probes and CE marks of each EV, as a request that arrives now will report them."""
        return tuple(zip(self.packets, self.probes, self.ce, strict=True))

    def reply(self, request: ReportRequest, *, delay: int = 0, host: str = "h2", **probe: Any) -> Packet:
        """Returns the reply to a request; `delay` is added to its one-way time."""
        first = request.report_seq % self.chunks * abi.REPORT_EVS
        counts = (request.counts or self.counts())[first : first + abi.REPORT_EVS]
        fields = {
            "seq": request.seq,
            "plane_mask": ALL_PLANES,
            "generation": self.generation,
            "report_seq": request.report_seq,
            "first": first,
            "counts": len(counts),
            "tx_ns": int(self.bench.reports(H2)["sent_ns"][request.report_seq % abi.REPORT_SLOTS]),
            **probe,
        }
        # Bytes, as test_wire.py shows them: scapy is slow with so many records.
        records = b"".join(struct.pack("!IHH", p & 0xFFFFFFFF, q & 0xFFFF, c & 0xFFFF) for p, q, c in counts)
        content = bytes(MRCProbe(**fields)) + bytes(abi.BALLAST) + records
        replied_ns = int(fields["tx_ns"]) + 10_000_000_000 + delay  # h2 has a clock of its own
        return self.bench.arriving(host, request.ev, Raw(content), type=PROBE_REPLY, tx_ns=replied_ns)

    def deliver(self, frame: Packet, reason: str | None = None) -> None:
        """Delivers a reply; it is dropped with `reason` if one is given."""
        drops = self.bench.drops()
        plane = frame["MRC"].ev // (self.evs // PLANES)
        assert self.bench.pop("tc", frame, plane)[0] == "drop"  # consumed by mrc_pop
        if reason:
            drops[reason] = drops.get(reason, 0) + 1
        assert self.bench.drops() == drops

    def pass_through(self, chance: random.Random, loss: dict[int, float], packets: dict[int, int] | int = 10) -> None:
        """Sends traffic for one report over paths with random loss: data, probe bursts and the request itself."""
        seqs = self.bench.tables.evs["probe_seq"][H2].tolist()
        for ev in range(self.evs):
            rate, sent = loss.get(ev, 0.0), packets if isinstance(packets, int) else packets[ev]
            if sent:
                self.send(ev, sent, arrive=sum(chance.random() >= rate for _ in range(sent)))
            if seqs[ev] != self._probes_sent[ev]:
                self.probes[ev] += sum(chance.random() >= rate for _ in range(self.burst(ev, 0)))
        advance(PAST_REORDERING_MS * MS)
        request = self.request_report(arrives=False)
        if chance.random() >= loss.get(request.ev, 0.0):
            self.probes[request.ev] += 1
            self.deliver(self.reply(request))

    def report(self, *, after_ms: int = PAST_REORDERING_MS, **probe: Any) -> ReportRequest:
        """Requests a report after some time, and delivers the reply at once."""
        advance(after_ms * MS)
        request = self.request_report()
        self.deliver(self.reply(request, **probe))
        return request

    def probe_failed_ev(self, ev: int, arrive: int) -> None:
        """Sends a probe on a failed EV and no other; `arrive` of its missing probes arrive. Then reports."""
        stats = self.bench.path_stats(H2, ev)
        stats["probe_after_ns"] = 0
        self.bench.reports(H2)["requested_ns"] = now() + 10**12  # this sweep requests no report
        self.bench.dataplane.sweep(H2)
        stats["probe_after_ns"] = NEVER
        self.burst(ev, arrive)
        self.report()

    def quiet(self, reports: int = 2, *, after_ms: int = PAST_REORDERING_MS) -> None:
        """Sends nothing more, and lets the probe bursts arrive: known losses become sure."""
        for _ in range(reports):
            for ev in range(self.evs):
                self.burst(ev)
            self.report(after_ms=after_ms)


WINDOW = "loss_window_ms = 60000"
"""A loss window that does not fade within a test: each test begins with a minute of its clock."""

unfading = pytest.mark.parametrize("bench", [Setup(health=WINDOW)], indirect=True, ids=[""])
"""For tests in which the loss window must not fade."""


def patient(overdue_ms: int, reorder_us: int = 50) -> pytest.MarkDecorator:
    """Returns a mark for a host with long timeouts, so that the duration of the test does not matter."""
    health = f"overdue_ms = {overdue_ms}\nreorder_us = {reorder_us}"
    return pytest.mark.parametrize("bench", [Setup(health=health)], indirect=True, ids=[""])


def others(*evs: int) -> list[int]:
    return [e for e in EVERY if e not in evs]


def state(bench: Bench, ev: int) -> tuple[EvState, Reason]:
    record = bench.ev(H2, ev)
    skip = record["state"] == EvState.SKIP
    return EvState(record["state"]), Reason(record["skip_reason"] if skip else record["reason"])


def lagging(bench: Bench, ev: int = 5) -> Reporter:
    """Returns a reporter after three packets on an EV did not arrive."""
    r = Reporter(bench)
    r.send_all(3)
    r.report()
    r.send_all(3, lose=(ev,))
    r.report()
    assert state(bench, ev) == LAGGING
    return r


def on_its_way(bench: Bench, ev: int) -> None:
    """Marks the probes on an EV as sent just now, so that they are not missing."""
    bench.path_stats(H2, ev)["probe_ns"] = now() + 10**12
    bench.path_stats(H2, ev)["noted_probes"] = 0


def events(bench: Bench) -> list[tuple[int, str, str, str]]:
    """Returns the transitions since the last call: EV, state before, state after, reason."""
    return [
        (int(e["ev"]), enums.EvState(e["before"]).name, enums.EvState(e["after"]).name, enums.Reason(e["reason"]).text)
        for e in bench.dataplane.events()
        if e["ev"] != abi.EVENT_IDLE_TIMEOUT
    ]
