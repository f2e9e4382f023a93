# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_sweep: a request on every EV of a peer that is due, and one more for a report."""

import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import ECT_0, MRC, MRCCount, MRCProbe, MRCReport
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.packets import EVS, H1, H2, H5, PLANES, SLOTS, all_encapsulations
from tests.packet.reports import patient
from tests.packet.rig import NEVER, Bench, Setup
from tests.packet.ticks import in_turn, requests
from tests.packet.wires import Tap

pytestmark = pytest.mark.root


def padded(bench: Bench, ev: int, content: Packet) -> Packet:
    """Returns a request with the room that a reply with a longer SRH needs."""
    if bench.setup.encapsulation != "srh":
        return content
    return content / Raw(bytes(abi.SRH_MAX - int(bench.ev(H2, ev)["srh_len"])))


def evs(packets: list[Packet]) -> list[int]:
    return [packet[MRC].ev for packet in packets]


@all_encapsulations
def test_a_sweep_sends_requests_on_every_ev_and_for_a_report(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["status"] = abi.STATUS_DETACHED
    assert bench.dataplane.sweep(H2) == EVS + 1
    plain, (report,) = requests(wires)
    assert evs(plain) == list(range(EVS))
    numbers = {ev: number for number, ev in enumerate(in_turn(*range(EVS)), 1)}
    for packet in plain:
        number = packet[MRC].ev
        probe = padded(bench, number, MRCProbe(seq=1, tx_ns=now(), **bench.told()))
        assert bytes(packet) == bytes(bench.sent(H2, number, probe, seq=numbers[number], tx_ns=now()))
    ev = report[MRC].ev
    probe = MRCProbe(seq=2, tx_ns=now(), report_seq=1, first=0, counts=EVS, **bench.told())
    content = padded(bench, ev, probe / MRCReport(records=[MRCCount()] * EVS))
    assert bytes(report) == bytes(bench.sent(H2, ev, content, seq=EVS + 1, tx_ns=now()))
    reports = bench.reports(H2)
    assert (reports["report_seq"], reports["requested_ns"], reports["sent_ns"][1]) == (1, now(), now())
    assert bench.tables.evs["probe_seq"][H2].tolist() == [1 + (n == ev) for n in range(EVS)]
    assert not bench.tables.evs["probe_seq"][[H1, H5]].any()
    assert not bench.tables.evs["tx_packets"].any()
    assert bench.drops() == {}


def test_probes_are_in_the_dscp_class_of_the_newest_packet_that_carried_one(bench: Bench, wires: list[Tap]) -> None:
    bench.reports(H2)["traffic_class"] = 0xB9
    bench.dataplane.sweep(H2)
    plain, reports = requests(wires)
    assert {packet[IPv6].tc for packet in plain + reports} == {0xB8 | ECT_0}


def test_each_sweep_continues_the_sequence_numbers(bench: Bench, wires: list[Tap]) -> None:
    """Those of the peer tell it which probes it has seen; those of each EV count losses."""
    sent = [0] * EVS
    for _ in range(3):
        advance(10 * MS)
        assert bench.dataplane.sweep(H2) == EVS + 1
        plain, reports = requests(wires)
        for packet in sorted(plain + reports, key=lambda p: p[MRC].seq):
            sent[packet[MRC].ev] += 1
            assert (packet[MRC].seq, packet[MRCProbe].seq) == (sum(sent), sent[packet[MRC].ev])
    assert bench.tables.auths["sent"][H2] == sum(sent)
    assert bench.tables.evs["probe_seq"][H2].tolist() == sent


def test_evs_that_are_not_due_are_not_probed(bench: Bench, wires: list[Tap]) -> None:
    due, not_due = [0, 3, 9], [n for n in range(EVS) if n not in (0, 3, 9)]
    bench.tables.path_stats["probe_after_ns"][H2, not_due] = now() + 3600 * 1000 * MS
    bench.tables.path_stats["probe_after_ns"][H2, due] = now()
    assert bench.dataplane.sweep(H2) == len(due) + 1
    assert evs(requests(wires)[0]) == due
    assert not bench.tables.path_stats["probe_ns"][H2, not_due[1:]].any()


@patient(1000, reorder_us=1_000_000)
def test_no_report_is_requested_within_the_reordering_window_of_the_last(bench: Bench) -> None:
    assert [bench.dataplane.sweep(H2) for _ in range(3)] == [EVS + 1, EVS, EVS]
    assert bench.reports(H2)["report_seq"] == 1
    advance(1000 * MS)
    assert bench.dataplane.sweep(H2) == EVS + 1
    assert bench.reports(H2)["report_seq"] == 2


GAP = Setup(health="probe_gap_us = 1000000\nprobe_late_ms = 10000\nloss_window_ms = 60000")


@pytest.mark.parametrize("bench", [GAP], indirect=True, ids=[""])
@pytest.mark.parametrize(("spread_ms", "window_ms"), [(0, 0), (1000, 500), (100_000, 1000)])
def test_the_window_is_half_the_spread_of_round_trips_up_to_the_gap(
    bench: Bench, spread_ms: int, window_ms: int
) -> None:
    reports = bench.reports(H2)
    reports["rtt_var_ns"] = spread_ms * MS
    if window_ms:
        reports["requested_ns"] = now() - (window_ms // 2) * MS
        assert bench.dataplane.sweep(H2) == EVS
    reports["requested_ns"] = now() - window_ms * MS - MS
    assert bench.dataplane.sweep(H2) == EVS + 1


def test_reports_are_requested_on_usable_evs_in_order(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER

    def ways(n: int) -> list[int]:
        found = []
        for _ in range(n):
            advance(10 * MS)
            assert bench.dataplane.sweep(H2) == 1
            found += evs(requests(wires)[1])
            bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]  # answered
        return found

    assert ways(EVS) == [plane * SLOTS + slot for slot in range(SLOTS) for plane in range(PLANES)]
    bench.set_usable(H2, 5, False)
    assert 5 not in ways(EVS)
    bench.peer(H2)["plane_mask"] = 0b1011
    assert {ev // SLOTS for ev in ways(EVS)} == {0, 1, 3}
    bench.tables.node["plane_mask"] = 0b1001
    assert {ev // SLOTS for ev in ways(EVS)} == {0, 3}


def test_without_a_working_usable_ev_reports_are_requested_on_the_others(bench: Bench, wires: list[Tap]) -> None:
    """Planes 1 to 3 have healed, but are in hold-down, when plane 0 fails: only reports can show it."""
    bench.set_state(H2, EvState.ASSUMED_BAD, *range(SLOTS, EVS))
    ways = set()
    for _ in range(3 * EVS):
        advance(20 * MS)
        bench.dataplane.sweep(H2)
        ways |= {ev // SLOTS for ev in evs(requests(wires)[1])}
    assert ways == {0, 1, 2, 3}


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True)
@pytest.mark.parametrize("answered", [True, False])
def test_report_requests_visit_all_evs_of_a_partly_filled_table(bench: Bench, wires: list[Tap], answered: bool) -> None:
    ways = []
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER
    for _ in range(4 * EVS):
        advance(20 * MS)
        bench.dataplane.sweep(H2)
        ways += evs(requests(wires)[1])
        if answered:
            bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    counts = [ways.count(64 * plane + slot) for plane in range(PLANES) for slot in range(SLOTS)]
    assert sum(counts) == 4 * EVS
    assert max(counts) - min(counts) <= (0 if answered else 4), counts


def test_without_a_usable_ev_no_report_is_requested(bench: Bench, wires: list[Tap]) -> None:
    """The paths are still probed, since otherwise none could heal."""
    bench.peer(H2)["plane_mask"], bench.peer(H2)["usable"] = 0, 0
    assert bench.dataplane.sweep(H2) == EVS
    assert [len(found) for found in requests(wires)] == [EVS, 0]
    assert bench.reports(H2)["report_seq"] == 0


def test_a_sweep_skips_planes_without_a_link(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["plane_mask"] = 0b1001
    assert bench.dataplane.sweep(H2) == 2 * SLOTS + 1
    plain, reports = requests(wires)
    assert {ev // SLOTS for ev in evs(plain + reports)} == {0, 3}
    assert all(packet[MRCProbe].plane_mask == 0b1001 for packet in plain + reports)


def test_a_sweep_of_a_peer_under_the_same_t0(bench: Bench, wires: list[Tap]) -> None:
    assert bench.dataplane.sweep(H1) == PLANES + 1
    assert evs(requests(wires)[0]) == [0, 4, 8, 12]


@pytest.mark.parametrize("host_id", [0, 3, 6, 2**32 - 1])
def test_a_sweep_of_an_unknown_peer_sends_nothing(bench: Bench, wires: list[Tap], host_id: int) -> None:
    before = bench.counted()
    assert bench.dataplane.sweep(host_id) == 0
    assert (requests(wires), bench.counted()) == (([], []), before)


@pytest.mark.parametrize(
    ("first", "count", "probed"),
    [
        (0, 0, range(EVS)),
        (3, 4, in_turn(3, 4, 5, 6)),  # one on each plane
        (0, EVS + 1, range(EVS)),
        (EVS - 2, 5, in_turn(EVS - 2, EVS - 1, 0, 1, 2)),  # round after the last
        (2**32 - 1, 1, [EVS - 1]),
    ],
)
def test_a_sweep_can_be_limited_to_some_evs(
    bench: Bench, wires: list[Tap], first: int, count: int, probed: range | list[int]
) -> None:
    assert bench.dataplane.sweep(H2, first, count) == len(probed) + 1
    assert sorted(evs(requests(wires)[0])) == sorted(probed)


@all_encapsulations
def test_a_sweep_tags_the_vlan_plane_only(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.planes["vlan"][1] = 100
    assert bench.dataplane.sweep(H2) == EVS + 1
    for plane, frame in ((plane, frame) for plane, wire in enumerate(wires) for frame in wire.frames()):
        assert frame.vlan == (100 if plane == 1 else None)
        mrc = Ether(frame.data)[MRC]
        if not mrc[MRCProbe].counts:
            content = padded(bench, mrc.ev, MRCProbe(seq=1, tx_ns=mrc.tx_ns, **bench.told()))
            assert frame.data == bytes(bench.sent(H2, mrc.ev, content, seq=mrc.seq, tx_ns=mrc.tx_ns))


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
def test_report_parts_are_requested_in_order(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER
    for number in range(1, 5):
        advance(10 * MS)
        assert bench.dataplane.sweep(H2) == 1
        probe = requests(wires)[1][0][MRCProbe]
        assert (probe.report_seq, probe.first, probe.counts) == (number, number % 2 * abi.REPORT_EVS, abi.REPORT_EVS)
