# SPDX-License-Identifier: BSD-2-Clause
"""Runs mrc_tick with simulated time, and shows the probes that it sends."""

from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from mrcd.config.cluster_file import Health
from mrcd.kernel.abi import HEARD_AGAIN
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance
from tests.packet.packets import ALL_PLANES, EVS, H2, PLANES, SLOTS, nic_mac
from tests.packet.rig import NEVER, Bench
from tests.packet.wires import Tap

UNKNOWN, GOOD, SKIP, ASSUMED_BAD, DENIED = EvState
LONG_KNOWN = 3  # bpf/send_probe.h
HEALTH = Health()
INTERVAL_MS = HEALTH.probe_interval_ms
ETH_HLEN, IP_HLEN = 14, 40
TICK_S, CALM_TICK_S, SUSPECT_TICK_S = 0.02, 0.25, INTERVAL_MS / 4000  # bpf/tick.h


def in_turn(*places: int) -> list[int]:
    """Returns the EVs at these places of a sweep, which takes the planes in turn."""
    return [place % PLANES * SLOTS + place // PLANES for place in places]


def postpone(bench: Bench, *peers: int) -> None:
    bench.tables.watches["due_ns"][list(peers)] = NEVER


def requests(wires: list[Tap]) -> tuple[list[Packet], list[Packet]]:
    """Returns the requests on the wires, by plane: the plain ones, and those for a report."""
    found = [(plane, Ether(f.data)) for plane, wire in enumerate(wires) for f in wire.frames()]
    assert all((p[MRC].type, p.src) == (PROBE_REQUEST, nic_mac(plane)) for plane, p in found)
    return [p for _, p in found if not p[MRCProbe].counts], [p for _, p in found if p[MRCProbe].counts]


def probe_requests(wires: list[Tap]) -> tuple[list[tuple[int, int]], list[int]]:
    """Returns (receiver, EV) of the plain requests sent, and the receivers of requests for a report."""
    plain, reports = requests(wires)
    return sorted((p[MRC].receiver, p[MRC].ev) for p in plain), sorted(p[MRC].receiver for p in reports)


def run_tick(bench: Bench, ms: int = 0) -> float:
    """Advances the time, then runs the tick. Returns the seconds until the next tick."""
    advance(ms * MS)
    return bench.dataplane.tick()


def run_ticks(bench: Bench, ms: int, step_ms: int = INTERVAL_MS) -> None:
    for _ in range(0, ms, step_ms):
        run_tick(bench, step_ms)


def tick_h2_now(bench: Bench) -> None:
    bench.tables.watches["due_ns"][H2] = 0
    run_tick(bench)


def record_arrivals(bench: Bench, *evs: int, reports: int = 1) -> None:
    """Writes the tables as after `reports` reports without loss, and replies to all probes, on these EVs."""
    path_stats, sent = bench.tables.path_stats, bench.tables.evs["probe_seq"]
    path_stats["good"][H2, list(evs)] += reports
    path_stats["long_sent"][H2, list(evs)] = LONG_KNOWN
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
