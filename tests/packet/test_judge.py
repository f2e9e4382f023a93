"""Silence: an EV by which something is missing is left, tried by volleys, given back or condemned."""

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from mrcd.abi import EvState, Histogram, Reason
from mrcd.wire import MRC, MRCProbe
from tests.packet.cluster import EVS, H2, H5
from tests.packet.reports import (
    EVERY,
    MS,
    SETTLED_MS,
    TRIALS,
    TRIALS_AT_ONCE,
    VOLLEY,
    Reporter,
    events,
    now,
    others,
    patient,
    state,
    unfaded,
    unfading,
)
from tests.packet.rig import Bench

pytestmark = pytest.mark.root

LAGGING = (EvState.SKIP, Reason.LAGGING)
OVERDUE = (EvState.ASSUMED_BAD, Reason.OVERDUE)


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
    bench.ev(H2, ev)["probe_ns"] = now() + 10**12
    bench.ev(H2, ev)["noted_probes"] = 0


@unfading
def test_where_nothing_is_lost_nothing_happens(bench: Bench) -> None:
    unfaded()
    r = Reporter(bench)
    for n in range(20):
        r.send_all(n)
        r.report()
    assert (bench.tables.evs["state"][H2] == EvState.GOOD).all()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    ledgers = bench.tables.ledgers[H2]
    assert (ledgers["judged"] == sum(range(20))).all()
    greeted = np.arange(EVS) == 0  # by the first probe, which is not judged
    assert (ledgers["window_samples"] == 19 + bench.tables.evs["probe_seq"][H2] - greeted).all()
    for column in ("deficit", "missed", "window_lost", "window_losses", "unsure", "sure", "lag_ns", "loss_ns"):
        assert not ledgers[column].any(), column
    assert not bench.tables.histograms()[: Histogram.RTT].any()


def test_an_idle_ev_is_not_suspected(bench: Bench) -> None:
    """Nothing arrives by it, and nothing is missing."""
    r = Reporter(bench)
    for _ in range(2 * TRIALS):
        for ev in others(5):
            r.send(ev, 10)
        r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])


@pytest.mark.parametrize("arrive", [0, 2])
def test_an_ev_by_which_something_is_missing_is_left_with_the_first_report(bench: Bench, arrive: int) -> None:
    r, wires = Reporter(bench), bench.wires()
    r.send_all(3, lose=(5,))
    r.packets[5] += arrive
    r.report()
    assert state(bench, 5) == LAGGING
    assert bench.usable(H2) == others(5)
    assert (events(bench), bench.ev(H2, 5)["skips"], bench.ev(H2, 5)["relapses"]) == ([], 1, 0)
    assert (bench.ledger(H2, 5)["deficit"], bench.ledger(H2, 5)["lag_ns"] > 0) == (3 - arrive, True)
    assert (bench.tables.evs["state"][H2, others(5)] == EvState.GOOD).all()
    # And it is tried: a volley on exactly this path, besides the request for the report.
    found = [Ether(f.data) for wire in wires for f in wire.frames()]
    tried = [f for f in found if f[MRC].ev == 5]
    assert len(found) == VOLLEY + 1
    assert [f[MRCProbe].seq for f in tried] == list(range(1, VOLLEY + 1))
    own = {name: int(bench.tables.node[name]) for name in ("ports", "status", "generation")}
    for frame in tried:
        tx_ns, seq = frame[MRC].tx_ns, frame[MRC].seq
        probe = MRCProbe(seq=seq, tx_ns=tx_ns, **own) / Raw(bytes(frame[MRC])[len(MRC() / MRCProbe()) :])
        assert bytes(frame) == bytes(bench.sent(H2, 5, probe, seq=seq, tx_ns=tx_ns))
        assert len(frame[MRC]) == len(MRC() / MRCProbe())  # without the report that they were made of
    assert (bench.ev(H2, 5)["probe_seq"], bench.drops()) == (VOLLEY, {})


@unfading
def test_a_volley_that_arrives_whole_gives_it_back(bench: Bench) -> None:
    unfaded()
    r = lagging(bench)
    assert r.trial(5) == VOLLEY
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    ledger = bench.ledger(H2, 5)
    assert (ledger["lag_ns"], ledger["trials"], ledger["deficit"], ledger["window_losses"]) == (0, 0, 3, 1)
    assert bench.ev(H2, 5)["relapses"] == 0


@unfading
def test_packets_that_come_late_give_it_back_without_a_loss(bench: Bench) -> None:
    unfaded()
    r = lagging(bench)
    ledger = bench.ledger(H2, 5)
    assert (ledger["window_losses"], ledger["unsure"]) == (1, 1)
    r.packets[5] += 3
    r.trial(5)
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD
    assert [int(ledger[n]) for n in ("deficit", "window_lost", "window_losses", "unsure", "sure")] == [0] * 5


def test_what_arrives_before_the_volley_does_not_give_it_back(bench: Bench) -> None:
    """The volley may be on its way, or lost; that some of the packets came late says nothing of it."""
    r = lagging(bench)
    for _ in range(3):
        r.packets[5] += 1
        on_its_way(bench, 5)
        r.report()
        assert state(bench, 5) == LAGGING
    assert (bench.ledger(H2, 5)["deficit"], bench.ledger(H2, 5)["missed"]) == (0, 0)


def test_a_volley_of_which_some_may_be_on_its_way_does_not_give_it_back_yet(bench: Bench) -> None:
    r = lagging(bench)
    assert r.trial(5, 1) == VOLLEY
    for _ in range(VOLLEY - 2):
        on_its_way(bench, 5)
        r.report()
        assert state(bench, 5) == LAGGING
        assert (r.trial(5), bench.ledger(H2, 5)["missed"]) == (0, 0)
        r.probes[5] += 1
    r.probes[5] += 1
    on_its_way(bench, 5)
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD


def test_a_volley_that_arrives_in_part_leaves_it_where_it_is(bench: Bench) -> None:
    r = lagging(bench)
    for n in range(1, 6):
        assert r.trial(5, VOLLEY - 1) == VOLLEY
        r.report()
        assert state(bench, 5) == LAGGING
        ledger = bench.ledger(H2, 5)
        assert (ledger["missed"], ledger["trials"], ledger["good"]) == (n, 0, 0)
    assert r.trial(5) == VOLLEY
    r.report()
    assert state(bench, 5)[0] == EvState.GOOD


@patient(10_000)
def test_the_volley_is_repeated_but_not_at_once(bench: Bench) -> None:
    """At most 16 volleys in the least time that a verdict takes."""
    gap = 10_000 * MS // 16
    r = lagging(bench)
    r.trial(5, 0)
    bench.ev(H2, 5)["probe_ns"] = now() - gap // 2
    r.report(after_ms=0)
    assert r.trial(5, 0) == 0
    bench.ev(H2, 5)["probe_ns"] = now() - gap
    r.report(after_ms=0)
    assert r.trial(5, 0) == VOLLEY


def test_many_evs_are_tried_some_at_a_time(bench: Bench) -> None:
    """One volley's probes are divided among those that are tried with a report."""
    r = Reporter(bench)
    dead = tuple(EVERY[1 : TRIALS_AT_ONCE + 3])
    r.send_all(3, lose=dead)
    r.report()
    assert [r.trial(ev, 0) for ev in dead] == [VOLLEY // TRIALS_AT_ONCE] * TRIALS_AT_ONCE + [0] * 2
    bench.tables.evs["probe_ns"][H2, dead[:TRIALS_AT_ONCE]] = now() + 10**12
    r.report(after_ms=0)
    assert [r.trial(ev, 0) for ev in dead] == [0] * TRIALS_AT_ONCE + [VOLLEY // 2] * 2


def test_those_that_go_on_lagging_do_not_keep_others_from_being_tried(bench: Bench) -> None:
    r = Reporter(bench)
    r.send_all(3, lose=tuple(EVERY[1:]))
    r.report()
    tried = set()
    for _ in range(8):
        for ev in EVERY[1:]:
            volley = r.trial(ev, 0)
            r.probes[ev] += volley - (volley > 0)  # almost whole
            tried |= {ev} if volley else set()
        r.report()
    assert tried == set(EVERY[1:])


def test_volleys_are_tagged_where_the_plane_is(bench: Bench) -> None:
    bench.tables.planes["vlan"][1] = 100
    r, wires = Reporter(bench), bench.wires()
    r.send_all(3, lose=(5, 9))
    bench.age(SETTLED_MS * MS)
    bench.rounds(H2)["turn"] = 1  # asked for by plane 1
    asked = r.ask()
    inlet = bench.attach_pop(1, "ipv6")
    frame = Ether(bytes(r.reply(asked)))
    inlet.send(Ether(src=frame.src, dst=frame.dst) / Dot1Q(vlan=100) / frame.payload)
    assert inlet.frames() == []  # taken in
    found = [(f.vlan, Ether(f.data)[MRC].ev) for wire in wires for f in wire.frames()]
    assert found.count((100, 5)) == found.count((None, 9)) == VOLLEY // 2
    assert state(bench, 5) == state(bench, 9) == LAGGING


def bucket(value: int) -> int:
    """Four per power of two."""
    exponent = value.bit_length() - 1
    return value if value < 4 else (exponent - 1) * 4 + (value >> exponent - 2) % 4


def test_after_six_volleys_of_which_nothing_arrived_it_is_condemned(bench: Bench) -> None:
    r = lagging(bench)
    for n in range(1, TRIALS + 1):
        assert (state(bench, 5), events(bench)) == (LAGGING, [])
        assert r.trial(5, 0) == VOLLEY
        r.send_all(3, lose=(5,))
        r.report()
        assert bench.ledger(H2, 5)["trials"] == n
    assert state(bench, 5) == OVERDUE
    assert (bench.usable(H2), r.trial(5, 0)) == (others(5), 0)
    record, ledger = bench.ev(H2, 5), bench.ledger(H2, 5)
    assert (record["relapses"], ledger["good"], ledger["lag_ns"]) == (1, 0, 0)
    (event,) = bench.dataplane.events()
    assert (event["host_id"], event["ev"], event["before"], event["after"]) == (H2, 5, LAGGING[0], OVERDUE[0])
    assert (event["reason"], event["trials"], event["relapses"]) == (Reason.OVERDUE, TRIALS, 1)
    assert (event["icmp_type"], event["icmp_code"]) == (0, 0)
    assert (record["state_since_ns"], ledger["loss_ns"]) == (event["ns"], event["ns"])
    silent = int(event["ns"]) - int(ledger["arrived_ns"])
    assert (event["silent_ns"], silent > TRIALS * SETTLED_MS * MS) == (silent, True)
    assert 0 < event["lost_packets"] <= event["sent_packets"]
    # From the last packet known to have arrived to now, and what was sent meanwhile.
    detection, after_good = bench.tables.histograms()[[Histogram.DETECTION, Histogram.AFTER_GOOD]]
    assert (detection.sum(), after_good.sum()) == (1, 1)
    assert (detection[bucket(silent)], after_good[bucket(3 + 3 * TRIALS)]) == (1, 1)
    # The others went on as if nothing had been.
    assert (bench.tables.evs["state"][H2, others(5)] == EvState.GOOD).all()
    assert not (bench.tables.evs["state"][H5] == EvState.ASSUMED_BAD).any()


@patient(1000)
def test_it_takes_the_overdue_time_at_least(bench: Bench) -> None:
    r = lagging(bench)
    for _ in range(3 * TRIALS):
        bench.ev(H2, 5)["probe_ns"] -= 100 * MS
        r.trial(5, 0)
        r.report()
    assert (state(bench, 5), events(bench)) == (LAGGING, [])
    assert bench.ledger(H2, 5)["trials"] > TRIALS
    r.report(after_ms=1000)
    assert events(bench) == [(5, "SKIP", "ASSUMED_BAD", "overdue")]


@unfading
def test_packets_that_come_after_the_window_has_faded_are_no_losses_either(bench: Bench) -> None:
    """What is left of them in the window is taken back, though it had been sure."""
    unfaded()
    r = lagging(bench)
    ledger = bench.ledger(H2, 5)
    late = r.trial(5, 0)
    r.report()
    assert ledger["window_losses"] == ledger["unsure"] == 1 + late
    later = r.trial(5, 0)
    ledger["epoch"] -= 1
    r.report()
    left = (1 + late) // 2
    assert (ledger["window_losses"], ledger["sure"]) == (left + later, left)
    r.probes[5] += late + later
    r.packets[5] += 3
    r.trial(5)
    r.report()
    assert (ledger["deficit"], ledger["missed"]) == (0, 0)
    assert [int(ledger[n]) for n in ("window_lost", "window_losses", "unsure", "sure")] == [0] * 4
    assert events(bench) == []


@patient(100)
def test_one_arrival_sets_the_trials_back(bench: Bench) -> None:
    r = lagging(bench)
    for _ in range(TRIALS - 1):
        r.trial(5, 0)
        r.report(after_ms=10)
    r.trial(5, 1)
    r.report(after_ms=100)
    assert bench.ledger(H2, 5)["trials"] == 1  # the rest of what was held up may follow
    for n in range(2, TRIALS + 1):
        assert (state(bench, 5), events(bench)) == (LAGGING, [])
        r.trial(5, 0)
        r.report(after_ms=10)
        assert bench.ledger(H2, 5)["trials"] == n
    assert state(bench, 5) == OVERDUE


def test_reports_that_know_of_nothing_new_are_no_trials(bench: Bench) -> None:
    """It takes probes that are missing, not many reports of one old loss, nor packets that came before."""
    r = lagging(bench)
    for _ in range(TRIALS + 1):
        on_its_way(bench, 5)
        r.send(5, 3, arrive=0)
        r.report()
    assert (state(bench, 5), events(bench), bench.ledger(H2, 5)["trials"]) == (LAGGING, [], 0)


def test_two_dead_paths_of_which_one_was_congested(bench: Bench) -> None:
    r = Reporter(bench)
    bench.dataplane.steer(H2, 9, EvState.SKIP, Reason.CONGESTED, [EvState.GOOD])
    assert bench.usable(H2) == EVERY
    for _ in range(TRIALS + 1):
        r.send_all(3, lose=(5, 9))
        r.report()
        assert bench.usable(H2) == others(5, 9)
        r.trial(5, 0)
        r.trial(9, 0)
    assert sorted(events(bench)) == [(ev, "SKIP", "ASSUMED_BAD", "overdue") for ev in (5, 9)]
    assert (bench.tables.evs["state"][H2, others(5, 9)] == EvState.GOOD).all()


# ---- nobody is to blame ----


def test_all_lag_and_all_come_back(bench: Bench) -> None:
    """The peer stood still until just before the request came: a floor stays in use, and nobody is condemned."""
    r = Reporter(bench)
    r.send_all(3, lose=tuple(EVERY))
    r.report()
    assert len(bench.usable(H2)) == bench.peer(H2)["floor"] == 4
    for _ in range(2 * EVS):
        assert bench.push(IP(src="10.99.0.1", dst="10.99.0.3") / UDP())[0] == "redirect"
    assert bench.tables.evs["tx_packets"][H2].tolist() == [3 + 8 * (ev in bench.usable(H2)) for ev in EVERY]
    assert (bench.tables.evs["state"][H2, bench.usable(H2)[1:]] == EvState.SKIP).all()  # but for that of the request
    r.packets = bench.tables.evs["tx_packets"][H2].tolist()
    for _ in range(1 + EVS // TRIALS_AT_ONCE):
        for ev in EVERY:
            r.trial(ev)
        r.report()
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    assert not bench.tables.ledgers["deficit"][H2].any()


def test_nobody_is_blamed_while_nothing_is_answered(bench: Bench) -> None:
    r = Reporter(bench)
    for _ in range(20):
        r.send_all(5, lose=tuple(EVERY))
        bench.age(1000 * MS)
        r.ask(arrives=False)
    assert (bench.usable(H2), events(bench)) == (EVERY, [])
    assert (bench.tables.evs["state"][H2] == EvState.GOOD).all()
    # Then it answers, and has everything but the probes: they were lost with a whole way back.
    r.packets = [n + 100 for n in r.packets]
    r.report()
    assert not bench.tables.ledgers["deficit"][H2].any()


@patient(1000, reorder_us=1_000_000)
def test_what_was_sent_within_the_reordering_window_is_not_missed(bench: Bench) -> None:
    r = Reporter(bench)
    r.send_all(3)
    r.report(after_ms=1000)
    r.send_all(3, lose=(5,))
    bench.ev(H2, 5)["last_tx_ns"] = now()
    r.report(after_ms=0)
    assert bench.usable(H2) == EVERY
    assert (bench.ledger(H2, 5)["judged"], bench.ledger(H2, 5)["deficit"]) == (3, 0)
    r.report(after_ms=1000)
    assert state(bench, 5) == LAGGING
    assert (bench.ledger(H2, 5)["judged"], bench.ledger(H2, 5)["deficit"]) == (6, 3)


@patient(1000, reorder_us=1_000_000)
def test_new_packets_do_not_hide_those_that_were_there_at_the_last_report(bench: Bench) -> None:
    r = Reporter(bench)
    r.send_all(3, lose=(5,))
    for sent in (0, 100):
        r.send(5, sent, arrive=0)
        bench.age(1000 * MS)
        bench.ev(H2, 5)["last_tx_ns"] = now()
        assert bench.ledger(H2, 5)["deficit"] == 0
        r.report(after_ms=0)
    assert (state(bench, 5), bench.ledger(H2, 5)["deficit"]) == (LAGGING, 3)


def test_what_another_cpu_has_sent_a_little_later_is_not_missed(bench: Bench) -> None:
    r = Reporter(bench)
    r.send(5, 3, arrive=0)
    bench.ev(H2, 5)["last_tx_ns"] = now() + 1000 * MS
    r.report()
    assert (bench.usable(H2), bench.ledger(H2, 5)["deficit"]) == (EVERY, 0)


@pytest.mark.parametrize("was", [EvState.ASSUMED_BAD, EvState.DENIED, EvState.UNKNOWN])
def test_silence_says_nothing_new_of_an_ev_that_is_not_in_use(bench: Bench, was: EvState) -> None:
    r = Reporter(bench)
    bench.set_state(H2, was, 5)
    for _ in range(2 * TRIALS):
        r.send_all(3, lose=(5,))
        r.report()
    assert (bench.ev(H2, 5)["state"], events(bench), r.trial(5, 0)) == (was, [], 0)
    assert bench.ledger(H2, 5)["deficit"] == 6 * TRIALS
