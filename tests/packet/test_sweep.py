# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrc_sweep: a request on every EV of a peer that is due, and one more for a report."""

import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import ECT_0, MRC, PROBE_REQUEST, MRCCount, MRCProbe, MRCReport
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.reports import patient
from tests.packet.rig import EVS, H1, H2, H5, NEVER, PLANES, SLOTS, Bench, Setup, all_encapsulations
from tests.packet.wires import Frame, Tap

pytestmark = pytest.mark.root


def padded(bench: Bench, ev: int, content: Packet) -> Packet:
    """Returns a request with the room that a reply with a longer SRH needs."""
    if bench.setup.encapsulation != "srh":
        return content
    return content / Raw(bytes(abi.SRH_MAX - int(bench.ev(H2, ev)["srh_len"])))


def requests(wires: list[Tap]) -> list[tuple[int, Frame]]:
    """Returns the requests found, each with its plane, by plane."""
    found = [(plane, frame) for plane, wire in enumerate(wires) for frame in wire.frames()]
    assert all(Ether(f.data)[MRC].type == PROBE_REQUEST for _, f in found)
    return found


def without_reports(found: list[tuple[int, Frame]]) -> list[tuple[int, Frame]]:
    """Returns the requests without a report."""
    return [(plane, f) for plane, f in found if not Ether(f.data)[MRCProbe].counts]


def report_of(found: list[tuple[int, Frame]]) -> Packet:
    """Returns the request for a report."""
    (frame,) = (f for _, f in found if Ether(f.data)[MRCProbe].counts)
    return Ether(frame.data)


@all_encapsulations
def test_a_sweep_sends_requests_on_every_ev_and_for_a_report(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.node["status"] = abi.STATUS_DETACHED
    assert bench.dataplane.sweep(H2) == EVS + 1
    found = requests(wires)
    plain = without_reports(found)
    assert [(plane, Ether(f.data)[MRC].ev) for plane, f in plain] == [(ev // SLOTS, ev) for ev in range(EVS)]
    for number, (_, frame) in enumerate(plain, 1):
        packet = Ether(frame.data)
        ev, tx_ns = packet[MRC].ev, packet[MRC].tx_ns
        assert tx_ns == now()
        probe = padded(bench, ev, MRCProbe(seq=1, tx_ns=tx_ns, **bench.told()))
        assert frame == Frame(bytes(bench.sent(H2, ev, probe, seq=number, tx_ns=tx_ns)))
    report = report_of(found)
    ev, tx_ns = report[MRC].ev, report[MRC].tx_ns
    probe = MRCProbe(seq=2, tx_ns=tx_ns, report_seq=1, first=0, counts=EVS, **bench.told())
    content = padded(bench, ev, probe / MRCReport(records=[MRCCount()] * EVS))
    assert bytes(report) == bytes(bench.sent(H2, ev, content, seq=EVS + 1, tx_ns=tx_ns))
    reports = bench.reports(H2)
    assert (reports["report_seq"], reports["requested_ns"], reports["sent_ns"][1]) == (1, tx_ns, tx_ns)
    assert bench.tables.evs["probe_seq"][H2].tolist() == [1 + (n == ev) for n in range(EVS)]
    assert not bench.tables.evs["probe_seq"][[H1, H5]].any()
    assert not bench.tables.evs["tx_packets"].any()
    assert bench.drops() == {}


def test_probes_are_in_the_dscp_class_of_the_newest_packet_that_carried_one(bench: Bench) -> None:
    wires = bench.wires()
    bench.reports(H2)["traffic_class"] = 0xB9
    bench.dataplane.sweep(H2)
    assert {Ether(f.data)[IPv6].tc for _, f in requests(wires)} == {0xB8 | ECT_0}


def test_each_sweep_continues_the_sequence_numbers(bench: Bench) -> None:
    """Those of the peer tell it which probes it has seen; those of each EV count losses."""
    wires = bench.wires()
    sent = [0] * EVS
    for _ in range(3):
        advance(10 * MS)
        assert bench.dataplane.sweep(H2) == EVS + 1
        for _, frame in sorted(requests(wires), key=lambda f: Ether(f[1].data)[MRC].seq):
            packet = Ether(frame.data)
            sent[packet[MRC].ev] += 1
            assert (packet[MRC].seq, packet[MRCProbe].seq) == (sum(sent), sent[packet[MRC].ev])
    assert bench.tables.auths["sent"][H2] == sum(sent)
    assert bench.tables.evs["probe_seq"][H2].tolist() == sent


def test_evs_that_are_not_due_are_not_probed(bench: Bench) -> None:
    wires = bench.wires()
    due, not_due = [0, 3, 9], [n for n in range(EVS) if n not in (0, 3, 9)]
    bench.tables.path_stats["probe_after_ns"][H2, not_due] = now() + 3600 * 1000 * MS
    bench.tables.path_stats["probe_after_ns"][H2, due] = now()
    assert bench.dataplane.sweep(H2) == len(due) + 1
    assert [Ether(f.data)[MRC].ev for _, f in without_reports(requests(wires))] == due
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


def test_reports_are_requested_on_usable_evs_in_order(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER

    def ways(n: int) -> list[int]:
        found = []
        for _ in range(n):
            advance(10 * MS)
            assert bench.dataplane.sweep(H2) == 1
            found.append(report_of(requests(wires))[MRC].ev)
            bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]  # answered
        return found

    assert ways(EVS) == [plane * SLOTS + slot for slot in range(SLOTS) for plane in range(PLANES)]
    bench.set_usable(H2, 5, False)
    assert 5 not in ways(EVS)
    bench.peer(H2)["plane_mask"] = 0b1011
    assert {ev // SLOTS for ev in ways(EVS)} == {0, 1, 3}
    bench.tables.node["plane_mask"] = 0b1001
    assert {ev // SLOTS for ev in ways(EVS)} == {0, 3}


def test_without_a_working_usable_ev_reports_are_requested_on_the_others(bench: Bench) -> None:
    """Planes 1 to 3 have healed, but are in hold-down, when plane 0 fails: only reports can show it."""
    wires = bench.wires()
    bench.set_state(H2, EvState.ASSUMED_BAD, *range(SLOTS, EVS))
    ways = set()
    for _ in range(3 * EVS):
        advance(20 * MS)
        bench.dataplane.sweep(H2)
        ways.add(report_of(requests(wires))[MRC].ev // SLOTS)
    assert ways == {0, 1, 2, 3}


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True)
@pytest.mark.parametrize("answered", [True, False])
def test_report_requests_visit_all_evs_of_a_partly_filled_table(bench: Bench, answered: bool) -> None:
    wires, ways = bench.wires(), []
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER
    for _ in range(4 * EVS):
        advance(20 * MS)
        bench.dataplane.sweep(H2)
        ways.append(report_of(requests(wires))[MRC].ev)
        if answered:
            bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    counts = [ways.count(64 * plane + slot) for plane in range(PLANES) for slot in range(SLOTS)]
    assert sum(counts) == 4 * EVS
    assert max(counts) - min(counts) <= (0 if answered else 4), counts


def test_without_a_usable_ev_no_report_is_requested(bench: Bench) -> None:
    """The paths are still probed, since otherwise none could heal."""
    wires = bench.wires()
    bench.peer(H2)["plane_mask"], bench.peer(H2)["usable"] = 0, 0
    assert bench.dataplane.sweep(H2) == EVS
    assert len(without_reports(requests(wires))) == EVS
    assert bench.reports(H2)["report_seq"] == 0


def test_a_sweep_skips_planes_without_a_link(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.node["plane_mask"] = 0b1001
    assert bench.dataplane.sweep(H2) == 2 * SLOTS + 1
    found = requests(wires)
    assert {plane for plane, _ in found} == {0, 3}
    assert all(Ether(f.data)[MRCProbe].plane_mask == 0b1001 for _, f in found)
    assert not bench.tables.evs["probe_seq"][H2, SLOTS : 3 * SLOTS].any()


def test_a_sweep_of_a_peer_under_the_same_t0(bench: Bench) -> None:
    wires = bench.wires()
    assert bench.dataplane.sweep(H1) == PLANES + 1
    assert [Ether(f.data)[MRC].ev for _, f in without_reports(requests(wires))] == [0, 4, 8, 12]


@pytest.mark.parametrize("host_id", [0, 3, 6, 2**32 - 1])
def test_a_sweep_of_an_unknown_peer_sends_nothing(bench: Bench, host_id: int) -> None:
    wires, before = bench.wires(), bench.counted()
    assert bench.dataplane.sweep(host_id) == 0
    assert (requests(wires), bench.counted()) == ([], before)


@pytest.mark.parametrize(
    ("first", "count", "evs"),
    [
        (0, 0, range(EVS)),
        (3, 4, range(3, 7)),
        (0, EVS + 1, range(EVS)),
        (EVS - 2, 5, [*range(3), EVS - 2, EVS - 1]),  # round after the last
        (2**32 - 1, 1, [EVS - 1]),
    ],
)
def test_a_sweep_can_be_limited_to_some_evs(bench: Bench, first: int, count: int, evs: range | list[int]) -> None:
    wires = bench.wires()
    assert bench.dataplane.sweep(H2, first, count) == len(evs) + 1
    assert [Ether(f.data)[MRC].ev for _, f in without_reports(requests(wires))] == list(evs)


@all_encapsulations
def test_a_sweep_tags_the_vlan_plane_only(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.planes["vlan"][1] = 100
    assert bench.dataplane.sweep(H2) == EVS + 1
    for plane, frame in requests(wires):
        assert frame.vlan == (100 if plane == 1 else None)
        mrc, probe = (Ether(frame.data)[layer] for layer in (MRC, MRCProbe))
        if not probe.counts:
            content = padded(bench, mrc.ev, MRCProbe(seq=1, tx_ns=mrc.tx_ns, **bench.told()))
            assert frame.data == bytes(bench.sent(H2, mrc.ev, content, seq=mrc.seq, tx_ns=mrc.tx_ns))


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
def test_report_parts_are_requested_in_order(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER
    for number in range(1, 5):
        advance(10 * MS)
        assert bench.dataplane.sweep(H2) == 1
        probe = report_of(requests(wires))[MRCProbe]
        assert (probe.report_seq, probe.first, probe.counts) == (number, number % 2 * abi.REPORT_EVS, abi.REPORT_EVS)
