# SPDX-License-Identifier: BSD-2-Clause
"""Tests congestion and the balance over planes that differ in delay or rate."""

import pytest

from mrcd.config.cluster_file import Granularity
from mrcd.kernel.abi import MAX_PLANES
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.packets import ETHERNET, EVS, H0, H2, PLANES, SLOTS, datagram
from tests.packet.reports import EVERY, LAGGING, Reporter, ReportRequest, events, others, state
from tests.packet.rig import Bench, Setup
from tests.packet.ticks import tick_h2_now
from tests.packet.wires import needs_delivery_times

pytestmark = pytest.mark.root


LAST = PLANES - 1
CLOCK_NS = 10_000 * MS  # offset of h2's clock, see Reporter.reply


def planes(*others: int, last: int) -> list[int]:
    """Returns a value for each of MRC_MAX_PLANES planes: `last` for the bench's last plane."""
    return [*others * LAST, last, *[0] * (MAX_PLANES - PLANES)][:MAX_PLANES]


def pushed(bench: Bench, packets: int) -> list[int]:
    sent = bench.spread(packets)
    return [sum(sent[p * SLOTS : p * SLOTS + SLOTS]) for p in range(PLANES)]


def waiting(bench: Bench, **values: object) -> None:
    """Sets queues: packets take a millisecond each on all planes."""
    bench.peer(H2)["queued"] = values.pop("queued", 1)
    bench.peer(H2)["slow_planes"] = values.pop("slow", 0)
    bench.pace(H2, **{"pace_ns": planes(MS, last=MS), **values})


@pytest.mark.parametrize(
    ("queues", "sent"),
    [
        ({"queued": 0, "in_flight": [planes(0, last=9), [0] * MAX_PLANES]}, [4] * PLANES),
        ({"in_flight": [planes(0, last=5), [0] * MAX_PLANES], "base_delay_ns": planes(0, last=5 * MS)}, [4] * PLANES),
        ({"pace_ns": planes(MS, last=0), "in_flight": [planes(2, last=2), [0] * MAX_PLANES]}, [4] * PLANES),
        ({"paused_until_ns": planes(0, last=2**62)}, [4] * LAST + [0]),
        (
            {"paused_until_ns": planes(0, last=2**62), "slow_ns": planes(40 * MS, last=0), "slow": (1 << LAST) - 1},
            [0] * LAST + [4],
        ),
    ],
    ids=["no queues", "base delay", "a plane without measurements", "a paused plane", "all but the paused are slow"],
)
def test_planes_get_packets_by_their_queues(bench: Bench, queues: dict[str, object], sent: list[int]) -> None:
    waiting(bench, **queues)
    assert pushed(bench, sum(sent)) == sent


@pytest.mark.parametrize("half", [0, 1])
def test_a_plane_with_a_queue_is_skipped_until_the_others_have_one_as_long(bench: Bench, half: int) -> None:
    in_flight = [[0] * MAX_PLANES, [0] * MAX_PLANES]
    in_flight[half] = planes(0, last=4)
    waiting(bench, in_flight=in_flight)
    assert pushed(bench, 3 * LAST) == [3] * LAST + [0]
    assert pushed(bench, 4 * PLANES)[LAST] in (3, 4)
    assert sum(bench.pace(H2)["sent"].tolist()) == 3 * LAST + 4 * PLANES


def test_a_plane_of_half_the_rate_gets_half(bench: Bench) -> None:
    waiting(bench, pace_ns=planes(MS, last=2 * MS))
    sent = pushed(bench, 70)
    assert abs(sent[LAST] - 70 / (2 * LAST + 1)) <= 1
    assert max(sent[:LAST]) - min(sent[:LAST]) <= 1


def test_a_much_slower_plane_gets_nothing(bench: Bench) -> None:
    """A burst there would arrive after many later ones. All planes would get the same without queues."""
    waiting(bench, slow_ns=planes(0, last=40 * MS))
    assert pushed(bench, 10 * LAST) == [10] * LAST + [0]


def test_planes_stay_unequal_without_a_queue(bench: Bench, r: Reporter) -> None:
    """A plane that is too slow to be used has none; nothing else would keep packets from it."""
    waiting(bench, slow_ns=planes(0, last=3 * MS), queued=0)
    for _ in range(PLANES):
        r.report()
    assert bench.peer(H2)["queued"] == 1
    bench.pace(H2, slow_ns=planes(0, last=2 * MS))
    for _ in range(PLANES):
        r.report()
    assert bench.peer(H2)["queued"] == 0


def test_a_plane_with_too_much_delay_is_unused_while_another_is_usable(bench: Bench) -> None:
    waiting(bench, base_delay_ns=planes(0, last=11 * MS))
    assert pushed(bench, 4 * LAST) == [4] * LAST + [0]
    bench.set_state(H2, EvState.DENIED, *range(LAST * SLOTS))
    assert pushed(bench, 4) == [0] * LAST + [4]


def test_no_packet_is_dropped_for_the_last_evs_of_a_plane_that_another_cpu_withdraws(bench: Bench) -> None:
    """A CPU that read which planes are usable just before sees this."""
    waiting(bench)
    bench.set_state(H2, EvState.ASSUMED_BAD, *range(LAST * SLOTS, EVS))
    bench.peer(H2)["usable_planes"] = 1 << LAST
    assert sum(pushed(bench, 1)) == 1


def test_a_plane_without_usable_evs_gets_no_packets(bench: Bench) -> None:
    waiting(bench, in_flight=[planes(50, last=0), [0] * MAX_PLANES])
    bench.set_state(H2, EvState.DENIED, *range(LAST * SLOTS, PLANES * SLOTS))
    assert pushed(bench, LAST) == [1] * LAST + [0]


def test_reports_show_the_packets_in_flight(bench: Bench, r: Reporter) -> None:
    r.report(after_ms=20)
    r.send_all(10)
    r.send(LAST * SLOTS, 6, arrive=2)
    bench.pace(H2, sent=[3] * MAX_PLANES, paced_ns=now() + CLOCK_NS)
    r.report(after_ms=20)
    pace = bench.pace(H2)
    assert pace["sent"].tolist() == [0] * PLANES + [3] * (MAX_PLANES - PLANES)
    # Packets sent a while ago that have not arrived count as lost, not as in flight.
    assert pace["in_flight"].sum() <= 4
    assert pace["pace_ns"].tolist()[:PLANES] == pytest.approx([20 * MS / 40] * LAST + [20 * MS / 42], rel=0.5)


def test_delay_shows_queues(bench: Bench, r: Reporter) -> None:
    """Also the difference between planes: two probes in a row, since the host may have delayed one."""
    for _ in range(PLANES):
        r.report()
    assert (bench.peer(H2)["queued"], bench.peer(H2)["plane_skew_ns"]) == (0, 0)
    for turn in range(2 * PLANES):
        request = r.report(delay=5 * MS * (turn % PLANES == LAST))
        if turn == PLANES - 1:
            late = request.ev // SLOTS
            assert bench.peer(H2)["plane_skew_ns"] < 500_000
    pace = bench.pace(H2)
    assert (request.ev // SLOTS, bench.peer(H2)["queued"]) == (late, 1)
    assert 4 * MS < bench.peer(H2)["plane_skew_ns"] < 5.5 * MS
    assert pace["extra_delay_ns"].argmax() == late
    # A plane with so much delay that it carries nothing hides no loss of the others.
    bench.peer(H2)["plane_skew_ns"] = 0
    bench.pace(H2, plane_skew_now_ns=0, base_delay_ns=[12 * MS if p == late else 0 for p in range(MAX_PLANES)])
    for turn in range(4 * PLANES):
        r.report(delay=12 * MS * (turn % PLANES == LAST))
    assert bench.peer(H2)["plane_skew_ns"] < 500_000


@pytest.mark.parametrize("bench", [Setup(evs=252)], indirect=True, ids=["252"])
def test_a_plane_split_over_two_reports_is_as_fast_as_the_others(bench: Bench, r: Reporter) -> None:
    slots = [p * 63 + slot for p in range(PLANES) for slot in range(SLOTS)]  # both reports contain EVs 126 to 129
    r.report()
    r.report()
    bench.pace(H2, paced_ns=now() + CLOCK_NS, paced=bench.pace(H2)["arrived"].sum(axis=0))
    for ev in slots:
        r.send(ev, 10)
    r.report()
    bench.pace(H2, paced_ns=now() + CLOCK_NS - 20 * MS)
    r.report()
    pace = bench.pace(H2)["pace_ns"].tolist()
    assert pace[:PLANES] == [pace[0]] * PLANES
    assert pace[0] == pytest.approx(20 * MS / 40, rel=0.5)


def test_idle_times_do_not_change_the_pace(bench: Bench, r: Reporter) -> None:
    r.send_all(100)
    bench.pace(H2, paced_ns=now() + CLOCK_NS - 1000 * MS, pace_ns=[MS // 100] * MAX_PLANES)
    r.report()
    assert bench.pace(H2)["pace_ns"].tolist() == [MS // 100] * MAX_PLANES


def test_only_one_plane_at_a_time_is_paused(bench: Bench, r: Reporter) -> None:
    r.report()
    bench.pace(H2, sent_ns=[now() + 10_000 * MS] * MAX_PLANES)
    for _ in range(2 * PLANES):
        r.report(delay=40 * MS)
    assert (bench.pace(H2)["paused_until_ns"] > now()).sum() == 1


def late_replies(r: Reporter, delay: int, *evs: int) -> None:
    """Delivers replies to probes on these EVs, one after the other."""
    for ev in evs:
        r.bench.ev(H2, ev)["probe_seq"] += 1
        request = ReportRequest(ev, int(r.bench.ev(H2, ev)["probe_seq"]), int(r.bench.reports(H2)["report_seq"]))
        r.deliver(r.reply(request, delay=delay, counts=0))


def test_an_unused_plane_does_not_count_as_slower(bench: Bench, r: Reporter) -> None:
    r.report()
    last = range(LAST * SLOTS, PLANES * SLOTS)
    bench.set_state(H2, EvState.DENIED, *last)
    late_replies(r, 5 * MS, *last)
    assert (bench.peer(H2)["queued"], bench.peer(H2)["plane_skew_ns"]) == (0, 0)


def test_successive_replies_of_one_plane_do_not_set_the_minimum_delay(bench: Bench, r: Reporter) -> None:
    """Otherwise packets that others delay would be missing too early."""
    r.report()
    late_replies(r, 5 * MS, *[*range(LAST * SLOTS, PLANES * SLOTS)] * 4)
    assert bench.reports(H2)["least_extra_delay_ns"] < 5 * MS / 5
    late_replies(r, 5 * MS, *[*range(EVS)] * 30)
    assert bench.reports(H2)["least_extra_delay_ns"] > 4 * MS


def sent_now(r: Reporter, ev: int, packets: int) -> None:
    r.send(ev, packets, arrive=0)
    r.bench.ev(H2, ev)["last_tx_ns"] = now()


@pytest.mark.parametrize("more", [0, 1], ids=["once", "on and on"])
def test_packets_on_a_slower_plane_are_not_missing_too_early(bench: Bench, r: Reporter, more: int) -> None:

    def report() -> None:
        bench.path_stats(H2, 5)["extra_delay_ns"] = 100 * MS  # and a quarter
        r.report(after_ms=7)

    report()
    sent_now(r, 5, 3)
    for _ in range(6):
        report()
        assert state(bench, 5)[0] == EvState.GOOD
        if more:
            sent_now(r, 5, more)
    for _ in range(36):  # 2 × 125 ms at the most
        report()
        if state(bench, 5) == LAGGING:
            break
        if more:
            sent_now(r, 5, more)
    assert state(bench, 5) == LAGGING


@needs_delivery_times
@pytest.mark.parametrize("granularity", ["burst", "packet"])
@pytest.mark.parametrize(
    ("stamp_ms", "leaves_ms"), [(20, 20), (0, 0), (-5, 0), (99, 99), (100, 0), (10**12, 0)], ids=str
)
def test_a_paced_packet_leaves_when_its_time_comes(
    bench: Bench, granularity: Granularity, stamp_ms: int, leaves_ms: int
) -> None:
    """Anyone may set a stamp far ahead."""
    bench.attach_push(granularity).send(ETHERNET / datagram(H0, H2), leaves_ns=now() + stamp_ms * MS)
    assert bench.tables.evs["last_tx_ns"][H2].max() == now() + leaves_ms * MS


@needs_delivery_times
def test_a_held_packet_is_not_missing_though_others_overtake_it(bench: Bench, r: Reporter) -> None:
    first = bench.tables.evs["tx_packets"][H2].copy()
    bench.attach_push().send(ETHERNET / datagram(H0, H2), leaves_ns=now() + 20 * MS)
    (held,) = (bench.tables.evs["tx_packets"][H2] != first).nonzero()[0]
    for _ in range(2 * EVS):
        assert bench.push(datagram(H0, H2))[0] == "redirect"
    for ev in EVERY:
        r.packets[ev] += int(bench.ev(H2, ev)["tx_packets"] - first[ev]) - (ev == held)
    for _ in range(2):
        r.report(after_ms=8)
        assert {state(bench, ev)[0] for ev in EVERY} == {EvState.GOOD}
    for _ in range(5):  # it does not arrive
        r.report(after_ms=8)
    assert state(bench, held) == LAGGING


def test_packets_that_a_qdisc_holds_are_not_missing(bench: Bench, r: Reporter) -> None:
    """Not even if the flow goes on, so that the newest of them never has left."""
    held = [0, 0]  # packets of the newest reports, 8 ms apart, which leave after 20 ms
    for _ in range(10):
        r.packets[5] += held.pop(0)
        held.append(30)
        r.send(5, 30, arrive=0)
        bench.ev(H2, 5)["last_tx_ns"] = now() + 20 * MS
        r.report(after_ms=8)
        assert state(bench, 5)[0] == EvState.GOOD
    r.packets[5] += held[0]  # of the last 30 none arrives
    for _ in range(5):
        r.report(after_ms=8)
    assert state(bench, 5) == LAGGING


# ---- congestion ----


CONGESTED = (EvState.SKIP, Reason.CONGESTED)


def marked(bench: Bench, *evs: int) -> Reporter:
    """Returns a reporter after a report with CE marks on these EVs."""
    r = Reporter(bench)
    for ev in evs:
        r.send(ev, 3)
        r.ce[ev] += 2
    r.report()
    return r


def test_ce_marks_skip_an_ev_exactly_once(bench: Bench) -> None:
    marked(bench, 5)
    assert (state(bench, 5), bench.usable(H2), events(bench)) == (CONGESTED, EVERY, [])
    assert (bench.path_stats(H2, 5)["skips"], bench.path_stats(H2, 5)["rx_ce"]) == (1, 2)
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in others(5))
    sent = bench.spread(EVS)
    assert (sent[5], sum(sent[4:8]), sum(sent)) == (0, 4, EVS)  # another EV of its plane got its packet
    assert state(bench, 5)[0] == EvState.GOOD
    sent = bench.spread(3 * EVS)
    assert sent[5] == 3
    assert (bench.path_stats(H2, 5)["skips"], bench.ev(H2, 5)["reason"], events(bench)) == (1, Reason.NEW, [])


def test_further_reports_do_not_repeat_a_pending_skip(bench: Bench) -> None:
    """Reports may be more frequent than the packets on an EV."""
    bench.ev(H2, 5)["last_tx_ns"] = now()
    r = marked(bench, 5)
    for _ in range(3):
        r.report()
        assert state(bench, 5) == CONGESTED
    assert bench.path_stats(H2, 5)["skips"] == 1
    assert bench.spread(EVS)[5] == 0


def test_congestion_is_forgotten_after_the_traffic_ends(bench: Bench) -> None:
    bench.ev(H2, 5)["last_tx_ns"] = now()
    r = marked(bench, 5)
    r.report(after_ms=900)
    assert state(bench, 5) == CONGESTED
    r.report(after_ms=100)
    assert (state(bench, 5)[0], bench.usable(H2), events(bench)) == (EvState.GOOD, EVERY, [])
    r.ce[5] += 1
    r.report()
    assert (state(bench, 5), bench.path_stats(H2, 5)["skips"]) == (CONGESTED, 2)


def test_the_same_marks_count_once(bench: Bench) -> None:
    r = marked(bench, 5)
    bench.spread(EVS)
    for ev in EVERY:
        r.packets[ev] += int(bench.ev(H2, ev)["tx_packets"]) - r.packets[ev]
    for _ in range(3):
        r.report()
    assert (state(bench, 5)[0], bench.path_stats(H2, 5)["rx_ce"]) == (EvState.GOOD, 2)


def test_a_plane_with_congestion_on_all_evs_stays_in_use(bench: Bench) -> None:
    marked(bench, 4, 5, 6, 7)
    sent = bench.spread(4 * PLANES)
    assert sum(sent[4:8]) >= 3  # its EVs skip one turn each, all at one packet
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in range(4, 8))


def test_a_plane_whose_packets_are_all_marked_gets_half_its_share(bench: Bench, r: Reporter) -> None:
    def go(marks: bool) -> list[int]:
        for _ in range(20):
            for ev in EVERY:
                r.send(ev, 4)
                r.ce[ev] += 4 if marks and ev // SLOTS == LAST else 0
            r.report(after_ms=8)
        bench.pace(H2, base_delay_ns=planes(1000 * MS, last=1000 * MS))  # no queue, whatever is sent below
        bench.set_state(H2, EvState.GOOD, *EVERY)  # without the turn that each EV skips
        return pushed(bench, 70 * PLANES)

    sent = go(marks=True)
    assert sent[LAST] == pytest.approx(sum(sent) / (2 * LAST + 1), rel=0.1)
    assert max(sent[:LAST]) - min(sent[:LAST]) <= 3
    r.packets = bench.tables.evs["tx_packets"][H2].tolist()
    assert go(marks=False) == [70] * PLANES


@pytest.mark.parametrize("was", [EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN])
def test_an_unused_ev_is_not_skipped(bench: Bench, was: EvState) -> None:
    bench.set_state(H2, was, 5)
    marked(bench, 5)
    assert (bench.ev(H2, 5)["state"], bench.path_stats(H2, 5)["rx_ce"]) == (was, 2)


# ---- queueing delay ----

SKIP_DELAY_US = 1000
SLOW = (EvState.SKIP, Reason.SLOW)


def delayed(bench: Bench, us: int, *, rtt_ns: int = 1000) -> int:
    """Delivers a reply with `us` more delay than the others, after this usual round trip. Returns its EV."""
    r = Reporter(bench)
    r.report()
    advance(6 * MS)
    request = r.request_report()
    bench.reports(H2)["rtt_ns"] = rtt_ns
    advance(2 * MS)
    r.deliver(r.reply(request, delay=us * 1000))
    return request.ev


def test_an_ev_with_more_delay_than_the_others_is_skipped(bench: Bench) -> None:
    ev = delayed(bench, SKIP_DELAY_US + 1)
    assert (state(bench, ev), events(bench)) == (CONGESTED, [])
    bench.spread(EVS)
    assert state(bench, ev)[0] == EvState.GOOD


@pytest.mark.parametrize(
    ("average_us", "us", "slow"),
    [(6000, 4100, True), (0, 50_000, False), (3000, 50_000, False), (20_000, 3900, False)],
)
def test_an_ev_is_slow_by_its_newest_delay_and_the_average_before(
    bench: Bench, average_us: int, us: int, slow: bool
) -> None:
    bench.tables.path_stats["extra_delay_ns"][H2] = average_us * 1000
    ev = delayed(bench, us)
    assert (state(bench, ev) == SLOW, bench.usable(H2) == others(ev), events(bench)) == (slow, slow, [])


def slowed(bench: Bench) -> int:
    """Makes an EV slow by 8 ms, and returns it."""
    bench.tables.path_stats["extra_delay_ns"][H2] = 8 * MS
    return delayed(bench, 8000)


def test_a_slow_ev_that_has_lagged_is_slow_still(bench: Bench, r: Reporter) -> None:
    """The tick returns it, by steps."""
    advance(6 * MS)
    request = r.request_report()
    ev = others(request.ev)[0]
    r.send(ev)
    bench.ev(H2, ev)["skip_reason"] = Reason.SLOW
    bench.set_state(H2, EvState.SKIP, ev)
    bench.path_stats(H2, ev)["lag_ns"] = now() - 10 * MS
    r.deliver(r.reply(request))
    assert (bench.path_stats(H2, ev)["lag_ns"], state(bench, ev), bench.usable(H2)) == (0, SLOW, others(ev))


def test_a_slow_ev_is_left_for_128_times_its_delay_and_returns_by_steps(bench: Bench) -> None:
    ev = slowed(bench)
    left = int(bench.path_stats(H2, ev)["probe_after_ns"]) - now()
    assert left == pytest.approx(128 * 8 * MS, rel=0.01)
    assert bench.spread(2 * EVS)[ev] == 0
    advance(left - 1)
    tick_h2_now(bench)
    assert (state(bench, ev), bench.usable(H2)) == (SLOW, others(ev))
    advance(1)
    tick_h2_now(bench)
    assert (state(bench, ev)[0], bench.usable(H2), bench.ev(H2, ev)["weight"]) == (EvState.GOOD, EVERY, 1)


def test_an_ev_that_is_slow_again_is_left_for_longer(bench: Bench) -> None:
    bench.tables.evs["state_since_ns"][H2] = now()
    ev = slowed(bench)
    assert (state(bench, ev), bench.path_stats(H2, ev)["backoff"], bench.ev(H2, ev)["flaps"]) == (SLOW, 1, 0)
    assert int(bench.path_stats(H2, ev)["probe_after_ns"]) - now() == pytest.approx(2 * 128 * 8 * MS, rel=0.01)


def test_slow_evs_are_usable_while_too_few_are_left(bench: Bench) -> None:
    ev = slowed(bench)
    good = others(ev)[:3]
    bench.set_state(H2, EvState.ASSUMED_BAD, *others(ev, *good))
    assert bench.usable(H2) == sorted([ev, *good])


@pytest.mark.parametrize(
    ("bench", "us", "rtt_ns"),
    [
        *((Setup(), us, 1000) for us in (0, SKIP_DELAY_US, -5000)),
        (Setup(), 5000, 10**12),
        (Setup(health="skip_delay_us = 0"), 10**6, 1000),
    ],
    indirect=["bench"],
    ids=["no delay", "the limit", "less delay", "clock drift: the round trip is no longer", "disabled"],
)
def test_delay_that_is_no_congestion(bench: Bench, us: int, rtt_ns: int) -> None:
    delayed(bench, us, rtt_ns=rtt_ns)
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in EVERY)


def test_the_least_delay_is_forgotten_after_ten_seconds(bench: Bench, r: Reporter) -> None:
    """Clocks drift and routes change, so the minimum delay is measured again."""
    advance(10_001 * MS)
    for _ in range(3):
        request = r.request_report()
        bench.reports(H2)["rtt_ns"] = 1000
        r.deliver(r.reply(request, delay=50 * MS))
    assert all(state(bench, ev)[0] == EvState.GOOD for ev in EVERY)


def test_round_trips_are_smoothed(bench: Bench, r: Reporter) -> None:
    """An eighth per reply for the peer and for the EV, and their variation by a quarter (RFC 6298)."""
    for ev in EVERY:  # whichever is next
        bench.path_stats(H2, ev)["rtt_ns"] = 8_000_000
    bench.reports(H2)["rtt_ns"], bench.reports(H2)["rtt_var_ns"] = 16_000_000, 4_000_000
    advance(6 * MS)
    request = r.request_report()
    advance(800 * MS)  # in flight
    r.deliver(r.reply(request))
    rtt8 = int(bench.path_stats(H2, request.ev)["rtt_ns"]) - 7_000_000
    reports = bench.reports(H2)
    assert rtt8 >= 100 * MS
    assert reports["rtt_ns"] == 14_000_000 + rtt8
    assert abs(int(reports["rtt_var_ns"]) - (3_000_000 + (8 * rtt8 - 16_000_000) // 4)) <= 2
