# SPDX-License-Identifier: BSD-2-Clause
"""Models host h2, what has arrived there and the reports that it sends; and runs mrc_tick with simulated time."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCCount, MRCProbe, MRCReport
from mrcd.config.cluster_file import Health
from mrcd.kernel import abi, enums
from mrcd.kernel.abi import HEARD_AGAIN
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.rig import ALL_PLANES, EVS, H2, NEVER, PLANES, SLOTS, Bench, Setup
from tests.packet.wires import Tap

EVERY = list(range(EVS))
GENERATION = 0xABCD0001
BURST_PROBES, LOST_BURSTS, BURSTS_AT_ONCE = 16, 6, 8  # bpf/judge.h, mrc_state.h
LAGGING = (EvState.SKIP, Reason.LAGGING)
PAST_REORDERING_MS = 6
"""Longer than any reordering window (at most probe_late_ms, 5 ms), and than half of overdue_ms."""


@dataclass(frozen=True)
class ReportRequest:
    """A request for a report, in flight."""

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
        self.bench.ev(H2, ev)["tx_packets"] += packets
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
        sent = (int(self.bench.ev(H2, ev)["probe_seq"]) - self._probes_sent[ev]) % 2**32
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
        records = [MRCCount(packets=p & 0xFFFFFFFF, probes=q & 0xFFFF, ce=c & 0xFFFF) for p, q, c in counts]
        content = MRCProbe(**fields) / MRCReport(records=records)
        replied_ns = int(fields["tx_ns"]) + 10_000_000_000 + delay  # h2 has a clock of its own
        return self.bench.arriving(host, request.ev, Raw(bytes(content)), type=PROBE_REPLY, tx_ns=replied_ns)

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
    """Returns all EVs but these."""
    return [e for e in EVERY if e not in evs]


def state(bench: Bench, ev: int) -> tuple[EvState, Reason]:
    """Returns an EV's state and its reason."""
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


# ---- the tick ----


UNKNOWN, GOOD, SKIP, ASSUMED_BAD, DENIED = EvState
HEALTH = Health()
INTERVAL_MS = HEALTH.probe_interval_ms
ETH_HLEN, IP_HLEN = 14, 40
TICK_S, SUSPECT_TICK_S = 0.02, INTERVAL_MS / 4000  # bpf/tick.h


def postpone(bench: Bench, *peers: int) -> None:
    """Sets the deadlines of these peers to never."""
    bench.tables.watches["due_ns"][list(peers)] = NEVER


def probe_requests(wires: list[Tap]) -> tuple[list[tuple[int, int]], list[int]]:
    """Returns (receiver, EV) of the plain requests sent, and the receivers of requests for a report."""
    mrcs = [Ether(f.data) for wire in wires for f in wire.frames()]
    assert all(m[MRC].type == PROBE_REQUEST for m in mrcs)
    plain = sorted((m[MRC].receiver, m[MRC].ev) for m in mrcs if not m[MRCProbe].counts)
    return plain, sorted(m[MRC].receiver for m in mrcs if m[MRCProbe].counts)


def run_tick(bench: Bench, ms: int = 0) -> float:
    """Advances the time, then runs the tick. Returns the seconds until the next tick."""
    advance(ms * MS)
    return bench.dataplane.tick()


def run_ticks(bench: Bench, ms: int, step_ms: int = INTERVAL_MS) -> None:
    """Runs ticks for `ms` milliseconds, `step_ms` apart."""
    for _ in range(0, ms, step_ms):
        run_tick(bench, step_ms)


def tick_h2_now(bench: Bench) -> None:
    """Makes h2 due and runs the tick."""
    bench.tables.watches["due_ns"][H2] = 0
    run_tick(bench)


def record_arrivals(bench: Bench, *evs: int, reports: int = 1) -> None:
    """Writes the tables as after `reports` reports without loss, and replies to all probes, on these EVs."""
    path_stats, sent = bench.tables.path_stats, bench.tables.evs["probe_seq"]
    path_stats["good"][H2, list(evs)] += reports
    path_stats["reply_seq"][H2, list(evs)] = sent[H2, list(evs)]
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    watch = bench.tables.watches[H2]
    watch["unanswered"] = 0
    if watch["silent"]:
        watch["silent"], watch["due_ns"] = HEARD_AGAIN, 0


def reply(bench: Bench, ev: int, *, tx_ns: int) -> None:
    """Delivers the reply of h2 to the newest probe on an EV, which was sent at `tx_ns`."""
    seq = int(bench.ev(H2, ev)["probe_seq"])
    probe = MRCProbe(seq=seq, plane_mask=ALL_PLANES, generation=1, tx_ns=tx_ns)
    frame = bench.arriving("h2", ev, Raw(bytes(probe)), type=PROBE_REPLY, tx_ns=tx_ns + 10**10)
    bench.pop("tc", frame, ev // SLOTS)


def probes_by_kind(bench: Bench) -> dict[str, int]:
    """Returns the numbers of probes sent, by kind, without zeros."""
    return {kind: n for kind, n in bench.tables.probes_sent().items() if n}


def fail_ev(bench: Bench, ev: int, flaps: int = 1, reason: Reason = Reason.LOSS) -> None:
    """Sets an EV to ASSUMED_BAD, as the programs do."""
    assert bench.dataplane.set_state(H2, ev, ASSUMED_BAD, reason, [GOOD, SKIP])
    bench.ev(H2, ev)["flaps"] = flaps


def with_deadlines(bench: Bench) -> list[int]:
    """Returns the EVs of h2 that have a deadline."""
    words = bench.tables.watches["deadlines"][H2].tolist()
    return [ev for ev in range(EVS) if words[ev // 64] >> ev % 64 & 1]


def record_all_answers(bench: Bench) -> None:
    """Writes the tables as after all peers answered all requests."""
    bench.tables.watches["unanswered"] = bench.tables.watches["pending"] = 0
    bench.tables.reports["applied_seq"] = bench.tables.reports["report_seq"]
