# SPDX-License-Identifier: BSD-2-Clause
"""Tests the loss rule: more than the others lose, often enough; or, where the fabric trims, any lasting loss."""

import random

import pytest

from mrcd.kernel.enums import EvState, Histogram, Reason
from tests.packet.clock import MS, advance, now
from tests.packet.packets import EVS, H2
from tests.packet.reports import EVERY, LOSSES, PAST_REORDERING_MS, WINDOW, Reporter, events, others, state
from tests.packet.rig import Bench, Setup

pytestmark = pytest.mark.root


LOSS = (EvState.ASSUMED_BAD, Reason.LOSS)


def ruled(*lines: str) -> pytest.MarkDecorator:
    """Returns a mark for these settings and a wide loss window."""
    return pytest.mark.parametrize("bench", [Setup(health="\n".join([WINDOW, *lines]))], indirect=True, ids=[""])


wide = pytest.mark.parametrize("bench", [Setup(health=WINDOW, evs=256, t1s=64)], indirect=True, ids=[""])


def condemned(bench: Bench) -> list[int]:
    """Returns the EVs that the loss rule, and no other, has failed since the last call."""
    found = events(bench)
    assert {e[2:] for e in found} <= {("ASSUMED_BAD", "loss")}
    return sorted(e[0] for e in found)


# ---- a ratio ----


@ruled()
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("bad", "rate", "rounds", "packets"),
    [([5], 0.2, 15, 4), ([4, 5, 6, 7], 0.05, 60, 10), ([0, 1, 2, 3, 8, 9, 10, 11], 0.05, 60, 10)],
    ids=["20 % of a path", "5 % of a plane", "5 % of half of all"],
)
def test_paths_that_lose_more_than_the_others_are_found(
    bench: Bench, r: Reporter, bad: list[int], rate: float, rounds: int, packets: int, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(rounds):
        r.pass_through(chance, dict.fromkeys(bad, rate), packets)
    r.quiet()
    assert (condemned(bench), bench.usable(H2)) == (bad, others(*bad))
    assert not bench.tables.path_stats["loss_ns"][H2, others(*bad)].any()


@pytest.mark.parametrize("bench", [Setup(health=WINDOW, evs=256)], indirect=True, ids=[""])
@pytest.mark.parametrize("failed", [[], [65]], ids=["alone", "beside a failed EV"])
def test_a_lossy_plane_is_compared_with_those_of_other_reports(bench: Bench, r: Reporter, failed: list[int]) -> None:
    """A report has room for two of four planes here: at least half of its EVs are in the lossy plane."""
    chance = random.Random(1)
    bench.set_state(H2, EvState.DENIED, *failed)
    evs = [64 * plane + slot for plane in range(4) for slot in range(4)]
    for _ in range(160):
        r.pass_through(chance, dict.fromkeys(evs[:4], 0.05), {ev: 10 * (ev in evs) for ev in range(256)})
    r.quiet(4)
    assert condemned(bench) == evs[:4]


@wide
def test_a_plane_is_left_before_each_of_its_evs_has_lost_enough(bench: Bench, r: Reporter) -> None:
    """64 EVs of a plane lose 5 %: one or two losses are known of each, a hundred of the plane."""
    chance = random.Random(1)
    plane = [ev for ev in range(256) if ev // 64 == 2]
    for _ in range(16):
        r.pass_through(chance, dict.fromkeys(plane, 0.05), 5)
    r.quiet(6)
    assert condemned(bench) == plane


@ruled()
def test_a_slow_receiving_cpu_fails_no_plane(bench: Bench, r: Reporter) -> None:
    """Most packets of a plane wait for it up to 40 ms, again and again. Other CPUs answer meanwhile."""
    plane = EVERY[4:8]
    for _ in range(4):
        packets, probes = dict.fromkeys(plane, 0), dict.fromkeys(plane, 0)
        for _ in range(40 // PAST_REORDERING_MS):
            r.send_all(8, lose=tuple(plane))
            for ev in plane:
                r.packets[ev] += 1
                packets[ev] += 7
                probes[ev] += r.burst(ev, 0)
            advance(PAST_REORDERING_MS * MS)
            request = r.request_report(arrives=False)
            if request.ev in plane:
                probes[request.ev] += 1
                continue
            r.probes[request.ev] += 1
            r.deliver(r.reply(request))
        for ev in plane:
            r.packets[ev] += packets[ev]
            r.probes[ev] += probes[ev]
        r.quiet()
    assert (condemned(bench), bench.usable(H2)) == ([], EVERY)


@pytest.mark.parametrize("bench", [Setup(health=f"loss_window_ms = {ms}") for ms in (60, 200)], indirect=True)
def test_evs_of_several_t1s_that_go_on_losing_fail(bench: Bench, r: Reporter) -> None:
    """Losses are sure later while EVs of several T1s lag, yet not so late that they have left the loss window."""
    chance, bad, found = random.Random(1), [4, 5, 10], set[int]()
    for _ in range(100):
        r.pass_through(chance, dict.fromkeys(bad, 0.2), 50)
        found |= {e[0] for e in events(bench) if e[3] == "loss"}
    assert found == set(bad)


@wide
def test_loss_of_all_planes_at_once_fails_no_plane(bench: Bench) -> None:
    """There are two planes, each in a report of its own: the losses of one are known a report earlier."""
    bench.set_state(H2, EvState.DENIED, *range(64, 128), *range(192, 256))
    r, used = Reporter(bench), [*range(64), *range(128, 192)]
    for ev in used:
        r.send(ev, 10)
    r.quiet()
    for ev in used:
        r.send(ev, 10, arrive=9)
    r.quiet(8)
    assert condemned(bench) == []


@wide
@pytest.mark.parametrize("lossy", [1, 24])
def test_loss_on_some_evs_does_not_fail_their_plane(bench: Bench, r: Reporter, lossy: int) -> None:
    chance = random.Random(1)
    bad = [128 + slot for slot in range(lossy)]
    for _ in range(24):
        r.pass_through(chance, dict.fromkeys(bad, 0.3), 5)
    r.quiet(6)
    assert set(condemned(bench)) <= set(bad)


@ruled()
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.6])
def test_equal_loss_on_all_evs_fails_none(bench: Bench, r: Reporter, rate: float, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        r.pass_through(chance, dict.fromkeys(EVERY, rate))
    r.quiet()
    assert condemned(bench) == []
    assert len(bench.usable(H2)) >= bench.peer(H2)["floor"]
    assert (bench.tables.path_stats["deficit"][H2] > 0).all()


@ruled()
@pytest.mark.parametrize("seed", range(3))
def test_equal_loss_does_not_fail_the_last_ev_of_a_plane(bench: Bench, r: Reporter, seed: int) -> None:
    """The last EV gets the whole share of its plane, and so has more losses per report than the others."""
    chance = random.Random(seed)
    bench.set_state(H2, EvState.DENIED, 1, 2, 3)
    packets = {ev: 0 if ev in (1, 2, 3) else 1 for ev in EVERY} | {0: 4}
    for _ in range(250):
        r.pass_through(chance, dict.fromkeys(EVERY, 0.03), packets)
    r.quiet()
    assert condemned(bench) == []


@ruled()
@pytest.mark.parametrize(("bad", "found"), [(8, 8), (9, 0)])
def test_lossy_evs_fail_only_up_to_half_of_all_evs(bench: Bench, r: Reporter, bad: int, found: int) -> None:
    for _ in range(15):
        r.send_all(10)
        for ev in EVERY[:bad]:
            r.packets[ev] -= 1
        for ev in EVERY:
            r.burst(ev)
        r.report()
    r.quiet()
    assert condemned(bench) == EVERY[:found]
    path_stats = bench.tables.path_stats[H2]
    assert (path_stats["deficit"][:bad] == 15).all()
    assert (path_stats["confirmed_losses"][found:bad] >= 10).all()  # a verdict resets it


def lose_one_of(r: Reporter, packets: int, ev: int = 5) -> None:
    """Loses one of `packets` packets on one path; the probes on it arrive."""
    r.send_all(packets)
    r.packets[ev] -= 1
    r.burst(ev)
    r.report()


@pytest.mark.parametrize(
    ("bench", "denied", "losses"),
    [
        (Setup(health=WINDOW), 0, 10),
        (Setup(health=WINDOW), EVS - 8, 10),
        (Setup(health=WINDOW), EVS - 7, 20),
        (Setup(health=WINDOW), EVS - 3, 20),
        (Setup(health=WINDOW), EVS - 2, 30),
        (Setup(health=f"{WINDOW}\nloss_samples = 3"), 0, 3),
    ],
    indirect=["bench"],
)
def test_a_verdict_takes_more_losses_with_fewer_evs(bench: Bench, denied: int, losses: int) -> None:
    bench.set_state(H2, EvState.DENIED, *EVERY[EVS - denied :])
    r = Reporter(bench)
    stats = bench.path_stats(H2, 0)
    for n in range(1, losses):
        lose_one_of(r, 30, 0)
        assert stats["window_losses"] == n
    r.quiet()
    assert (stats["confirmed_losses"], condemned(bench)) == (losses - 1, [])
    lose_one_of(r, 30, 0)
    assert (stats["window_losses"], condemned(bench)) == (losses, [])  # the last packet may be late
    r.quiet(1)
    assert state(bench, 0) == LOSS
    (event,) = bench.dataplane.events()
    assert (event["reason"], event["lost_packets"], event["reports"]) == (Reason.LOSS, losses, 0)
    assert 30 * losses < event["sent_packets"] <= 30 * losses + r.probes[0]  # with the probes
    assert bench.tables.histograms()[Histogram.DETECTION].sum() == 1
    # Its window restarts, but the counts continue.
    assert not any(stats[name] for name in ("window_tx", "window_samples", *LOSSES))
    assert (stats["deficit"], stats["judged"]) == (losses, 30 * losses)


@ruled()
def test_the_loss_ratio_starts_at_the_first_loss(bench: Bench, r: Reporter) -> None:
    """A new loss is not compared with all that the EV carried before."""
    stats = bench.path_stats(H2, 5)
    for _ in range(5):
        r.send_all(10_000)
        r.report()
    assert stats["window_tx"] >= 50_000
    lose_one_of(r, 20)
    assert (20 <= stats["window_tx"] <= 21, stats["window_lost"]) == (True, 1)  # with or without the request
    for n in range(2, 11):
        lose_one_of(r, 20)
        assert stats["window_lost"] == n
    r.quiet()
    assert condemned(bench) == [5]


@ruled()
def test_loss_below_the_ratio_is_left_to_the_daemon(bench: Bench, r: Reporter) -> None:
    for _ in range(40):
        lose_one_of(r, 100)
    r.quiet()
    assert condemned(bench) == []
    assert (bench.path_stats(H2, 5)["window_losses"], bench.path_stats(H2, 5)["confirmed_losses"]) == (40, 40)


@ruled("overdue_ms = 10000")
def test_new_losses_are_unsure_for_half_of_the_overdue_time(bench: Bench, r: Reporter) -> None:
    """For half of the overdue time at least, for all of it at most."""
    stats = bench.path_stats(H2, 5)
    for _ in range(20):
        lose_one_of(r, 10)  # 6 ms apart
    assert (stats["window_losses"], stats["pending_losses"], stats["confirmed_losses"]) == (20, 1, 0)
    for age_ms, known in ((3000, (21, 1, 0)), (2000, (22, 22, 1)), (3000, (23, 22, 1))):
        advance(age_ms * MS)
        lose_one_of(r, 10)
        assert (stats["window_losses"], stats["pending_losses"], stats["confirmed_losses"]) == known
        assert condemned(bench) == []
    advance(2000 * MS)
    lose_one_of(r, 10)
    assert condemned(bench) == [5]


@ruled("overdue_ms = 1000")
def test_a_delayed_probe_burst_does_not_count_as_lost(bench: Bench, r: Reporter) -> None:
    r.send_all(3, lose=(5,))
    r.report()
    late = r.burst(5, 0)
    r.report(after_ms=300)
    assert (bench.path_stats(H2, 5)["window_losses"], bench.path_stats(H2, 5)["lost_bursts"]) == (1 + late, 1)
    r.report(after_ms=300)
    assert condemned(bench) == []
    r.report(after_ms=500)
    assert bench.path_stats(H2, 5)["confirmed_losses"] >= 1 + late  # enough for a verdict, if any packet arrived
    assert condemned(bench) == []
    r.probes[5] += late
    r.packets[5] += 3
    r.burst(5)
    r.report()
    r.report()
    stats = bench.path_stats(H2, 5)
    assert (state(bench, 5)[0], condemned(bench)) == (EvState.GOOD, [])
    assert not any(stats[name] for name in LOSSES)


@ruled()
def test_the_loss_window_fades(bench: Bench, r: Reporter) -> None:
    for _ in range(8):
        lose_one_of(r, 100)
    r.burst(5)
    r.report()
    assert (bench.path_stats(H2, 5)["pending_losses"], bench.path_stats(H2, 5)["confirmed_losses"]) == (8, 8)
    names = ("window_tx", "window_lost", "window_samples", "window_losses")
    for periods in (1, 2, 3, 20):
        before = bench.path_stats(H2, 5).copy()
        bench.path_stats(H2, 5)["epoch"] -= periods
        bench.path_stats(H2, 5)["pending_losses_ns"] = now() + 10**12  # no loss becomes sure meanwhile
        request = r.report()
        after = bench.path_stats(H2, 5)
        shift = min(16, int(after["epoch"]) - int(before["epoch"]) + periods)  # it may also have faded by itself
        probe = int(request.ev == 5)
        for name, new in zip(names, (probe, 0, probe, 0), strict=True):
            assert after[name] == (before[name] >> shift) + new, (name, periods)
        for name in ("pending_losses", "confirmed_losses"):
            assert after[name] == before[name] >> shift, (name, periods)
    assert bench.path_stats(H2, 5)["deficit"] == 8


@ruled()
def test_late_packets_are_no_losses(bench: Bench, r: Reporter) -> None:
    for n in range(9):
        lose_one_of(r, 10)
        assert bench.path_stats(H2, 5)["window_lost"] == n + 1
    r.packets[5] += 9
    r.report()
    assert bench.path_stats(H2, 5)["confirmed_losses"] == 0
    for _ in range(9):
        lose_one_of(r, 10)
    r.quiet()
    assert condemned(bench) == []
    assert [int(bench.path_stats(H2, 5)[n]) for n in ("deficit", "window_losses", "confirmed_losses")] == [9, 9, 9]


# ---- any loss ----


@ruled('loss_rule = "any"', "overdue_ms = 1000")
def test_with_trimming_one_lost_packet_is_enough(bench: Bench, r: Reporter) -> None:
    lose_one_of(r, 10_000)
    for _ in range(10):
        r.burst(5)
        r.send_all(1000)
        r.report()
    assert (state(bench, 5)[0], condemned(bench)) == (EvState.GOOD, [])  # the packet may be late
    bench.path_stats(H2, 5)["epoch"] -= 10  # without a window a loss is kept until it is judged
    r.report(after_ms=1000)
    assert condemned(bench) == [5]
    assert bench.usable(H2) == others(5)


@ruled('loss_rule = "any"', "overdue_ms = 10000")
def test_with_trimming_a_sure_loss_does_not_make_others_sure(bench: Bench, r: Reporter) -> None:
    lose_one_of(r, 100)
    advance(5000 * MS)
    bench.path_stats(H2, 9)["pending_losses_ns"] = now()
    lose_one_of(r, 100, 9)
    assert condemned(bench) == [5]
    assert (bench.path_stats(H2, 9)["window_losses"], bench.path_stats(H2, 9)["confirmed_losses"]) == (1, 0)
    r.quiet(2, after_ms=5000)
    assert condemned(bench) == [9]


@ruled('loss_rule = "any"', "overdue_ms = 1000")
def test_with_trimming_late_packets_are_no_losses(bench: Bench, r: Reporter) -> None:
    lose_one_of(r, 100)
    r.burst(5)
    r.report()
    r.packets[5] += 1
    r.report()
    assert not any(bench.path_stats(H2, 5)[name] for name in LOSSES)
    for _ in range(3):
        r.send_all(3)
        r.report(after_ms=1000)
    assert (bench.usable(H2), condemned(bench)) == (EVERY, [])


@ruled('loss_rule = "any"', "overdue_ms = 1000")
def test_with_trimming_all_lossy_evs_fail_down_to_the_floor(bench: Bench, r: Reporter) -> None:
    r.send_all(5)
    r.packets = [n - 1 for n in r.packets]
    for _ in range(4):
        r.report(after_ms=1000)
        for ev in EVERY:
            r.burst(ev)
    assert condemned(bench) == EVERY
    assert len(bench.usable(H2)) == 4
