# SPDX-License-Identifier: BSD-2-Clause
"""Tests replies while a plane is dead in the direction of the replies only."""

import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import DIAGNOSTIC, MRC, MRCProbe
from mrcd.kernel import libbpf
from mrcd.kernel.enums import EvState
from tests.packet.clock import MS, advance, now
from tests.packet.packets import EVS, H0, H2, PLANES, SLOTS, all_encapsulations, both_hooks
from tests.packet.reports import Reporter
from tests.packet.rig import Bench, Hook
from tests.packet.test_answer_probe import answered, request
from tests.packet.test_auth import own_request

pytestmark = pytest.mark.root

EV, PLANE, OTHER = 5, 1, 2
OTHERS = [ev for ev in range(EVS) if ev // SLOTS != PLANE]


@all_encapsulations
@pytest.mark.parametrize("bad", [EvState.ASSUMED_BAD, EvState.DENIED])
def test_a_reply_leaves_a_plane_without_a_usable_ev(bench: Bench, bad: EvState) -> None:
    bench.set_state(H2, bad, *range(PLANE * SLOTS, PLANE * SLOTS + SLOTS))
    ways = [answered(bench, request(bench, EV, seq=seq))[IPv6].fl for seq in range(EVS)]
    assert {*ways} == {*OTHERS}
    assert max(ways.count(way) for way in ways) == 2
    assert bench.drops() == {}


def test_the_reply_to_a_tool_stays_on_the_plane_that_it_measures(bench: Bench) -> None:
    bench.set_state(H2, EvState.ASSUMED_BAD, *range(PLANE * SLOTS, PLANE * SLOTS + SLOTS))
    for seq in range(EVS):
        frame = request(bench, EV, seq=seq)
        frame[MRC].flags = DIAGNOSTIC
        assert answered(bench, frame)[IPv6].fl == EV


def reply_by(bench: Bench, r: Reporter, plane: int) -> tuple[Packet, int]:
    """Requests a report on the plane that is dead in the other direction.

    Returns the reply that arrives by another plane, and the number of the report.
    """
    for _ in range(EVS):
        advance(MS)
        asked = r.request_report()
        if asked.ev // SLOTS == PLANE:
            break
    assert asked.ev // SLOTS == PLANE
    direct = r.reply(asked)[MRC]
    content = Raw(bytes(direct.payload))
    way = plane * SLOTS
    return bench.arriving("h2", way, content, type=direct.type, ev=asked.ev, tx_ns=direct.tx_ns), asked.report_seq


@all_encapsulations
@both_hooks
def test_a_reply_may_come_by_another_plane(bench: Bench, hook: Hook) -> None:
    r = Reporter(bench)
    frame, report_seq = reply_by(bench, r, OTHER)
    assert bench.pop(hook, frame, OTHER)[0] == "drop"  # consumed
    assert bench.drops() == {}
    assert bench.reports(H2)["applied_seq"] == report_seq
    assert bench.path_stats(H2, int(frame[MRC].ev))["reply_seq"] == MRCProbe(bytes(frame[MRC].payload)[:32]).seq
    assert bench.peer(H2)["heard_ns"] == now()


def test_every_report_comes_back_with_one_direction_of_a_plane_dead(bench: Bench) -> None:
    """Both hosts run the programs. h2 knows that its EVs of plane 1 are dead; those of this host work."""
    with bench.far_host().fresh() as far:
        far.tables.evs["state"][H0, PLANE * SLOTS : PLANE * SLOTS + SLOTS] = EvState.ASSUMED_BAD
        far.dataplane.refresh(H0)
        asked_on = set()
        for _ in range(2 * PLANES):
            advance(10 * MS)
            sent = own_request(bench)
            asked_on.add(plane := sent[MRC].ev // SLOTS)
            sent[IPv6].dst = str(far.plan.sids[plane])  # as the switches leave it
            ctx = bytes(40) + far.ifindex[f"w{plane}"].to_bytes(4, "little")
            _, out = libbpf.run_program(far.dataplane.program("mrc_pop"), bytes(sent), ctx=ctx, room=1 << 12)
            reply = Ether(out)
            came_by = reply[IPv6].fl // SLOTS
            assert (came_by == plane) == (plane != PLANE)
            reply[IPv6].dst = str(bench.plan.sids[came_by])
            bench.pop("tc", reply, came_by)
            assert bench.reports(H2)["applied_seq"] == bench.reports(H2)["report_seq"]
        assert asked_on == set(range(PLANES))
        assert bench.drops() == far.drops() == {}


@both_hooks
def test_a_reply_has_the_address_of_the_plane_that_it_comes_by(bench: Bench, hook: Hook) -> None:
    r = Reporter(bench)
    frame, _ = reply_by(bench, r, OTHER)
    frame[IPv6].src = bench.arriving("h2", EV, Raw(b""))[IPv6].src  # its address on the plane of the EV
    before = bench.counted()
    assert bench.pop(hook, Ether(bytes(frame)), OTHER)[0] == "drop"
    assert bench.drops() == {"wrong_source": 1}
    assert bench.counted() == before
