"""mrc_tick: idle probes, retries of failed EVs, return after the hold-down, the ramp, links, and silent peers."""

import struct
from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.cluster.patience import EMULATED
from mrcd.bpf import libbpf
from mrcd.config.cluster_file import Health
from mrcd.fabric.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from mrcd.health import hold_down
from mrcd.tables import abi
from mrcd.tables.abi import EvState, ProbeKind, Reason
from tests.packet.cluster import ALL_PLANES, EVS, H1, H2, H5, PLANES, SLOTS, Setup
from tests.packet.reports import EVERY, MS, Reporter, events, now, others, state
from tests.packet.rig import NEVER, Bench
from tests.packet.wires import Tap, until

pytestmark = pytest.mark.root

UNKNOWN, GOOD, SKIP, ASSUMED_BAD, DENIED = EvState
HEALTH = Health()
INTERVAL_MS = HEALTH.probe_interval_ms
ETH_HLEN, IP_HLEN = 14, 40
TICK_S, REST_S, DOUBT_S = 0.02, 0.001, INTERVAL_MS / 4000  # bpf/tick.h


@pytest.fixture
def h2(bench: Bench) -> Bench:
    """The bench, of whose peers the tick serves h2 alone, and sweeps it seldom."""
    rest(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    bench.tables.watches["swept_ns"] = now()
    tick(bench)  # after which all are known to be well
    assert with_deadlines(bench) == []
    return bench


@pytest.fixture
def wires(bench: Bench) -> list[Tap]:
    """Taps at the far ends of the plane NICs."""
    return bench.wires()


def rest(bench: Bench, *peers: int) -> None:
    """Have nothing be due of these peers."""
    bench.tables.watches["due_ns"][list(peers)] = NEVER


def asked(wires: list[Tap]) -> tuple[list[tuple[int, int]], list[int]]:
    """What was sent: (receiver, EV) of the plain requests, and the receivers of those that ask for a report."""
    mrcs = [Ether(f.data) for wire in wires for f in wire.frames()]
    assert all(m[MRC].type == PROBE_REQUEST for m in mrcs)
    plain = sorted((m[MRC].receiver, m[MRC].ev) for m in mrcs if not m[MRCProbe].counts)
    return plain, sorted(m[MRC].receiver for m in mrcs if m[MRCProbe].counts)


def tick(bench: Bench, ms: int = 0) -> float:
    """Let time pass, then run a tick. Returns after how many seconds the next one is due."""
    bench.age(ms * MS)
    wait_s = bench.dataplane.tick()
    for _ in range(EMULATED * len(bench.tables.peers)):  # where it has time for a peer or two
        if wait_s > REST_S:
            break
        wait_s = bench.dataplane.tick()
    return wait_s


def live(bench: Bench, ms: int, step_ms: int = INTERVAL_MS) -> None:
    """Ticks for so long."""
    for _ in range(0, ms, step_ms):
        tick(bench, step_ms)


def serve(bench: Bench) -> None:
    """Have the tick look at h2 now."""
    bench.tables.watches["due_ns"][H2] = 0
    tick(bench)


def arrive(bench: Bench, *evs: int, reports: int = 1) -> None:
    """As if the peer had reported and answered all that was sent on these EVs, and nothing had been lost."""
    path_stats, sent = bench.tables.path_stats, bench.tables.evs["probe_seq"]
    path_stats["good"][H2, list(evs)] += reports
    path_stats["reply_seq"][H2, list(evs)] = sent[H2, list(evs)]
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    bench.tables.watches["unanswered"][H2] = 0


def reply(bench: Bench, ev: int, *, tx_ns: int) -> None:
    """A reply of h2 to the newest probe on an EV, sent at `tx_ns`."""
    seq = int(bench.ev(H2, ev)["probe_seq"])
    probe = MRCProbe(seq=seq, ports=ALL_PLANES, generation=1, tx_ns=tx_ns)
    frame = bench.arriving("h2", ev, Raw(bytes(probe)), type=PROBE_REPLY, tx_ns=tx_ns + 10**10)
    bench.pop("tc", frame, ev // SLOTS)


def sent(bench: Bench) -> dict[str, int]:
    """Probes by kind, without the zeros."""
    return {kind: n for kind, n in bench.tables.probes_sent().items() if n}


def fall(bench: Bench, ev: int, flaps: int = 1, reason: Reason = Reason.LOSS) -> None:
    """Leave an EV, as the programs do."""
    assert bench.dataplane.set_state(H2, ev, ASSUMED_BAD, reason, [GOOD, SKIP])
    bench.ev(H2, ev)["flaps"] = flaps


def with_deadlines(bench: Bench) -> list[int]:
    """The EVs of h2 that have a deadline."""
    words = bench.tables.watches["deadlines"][H2].tolist()
    return [ev for ev in range(EVS) if words[ev // 64] >> ev % 64 & 1]


# ---- idle probes ----


@pytest.mark.clock
def test_quiet_peers_are_swept_each_idle_interval(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["idle_us"] = 10_000_000
    assert tick(bench) == TICK_S
    plain, reports = asked(wires)
    assert plain == [(p, ev) for p in (H1, H2, H5) for ev in np.flatnonzero(bench.tables.evs["configured"][p]).tolist()]
    assert reports == [H1, H2, H5]
    answered(bench)
    tick(bench, 10_000)  # the first turn is of any length up to that
    assert asked(wires) == (plain, reports)
    answered(bench)
    tick(bench, 9000)
    assert asked(wires) == ([], [])
    tick(bench, 2000)
    assert asked(wires) == (plain, reports)


def answered(bench: Bench) -> None:
    """All peers have answered all that was asked."""
    bench.tables.watches["unanswered"] = bench.tables.watches["pending"] = 0
    bench.tables.reports["applied_seq"] = bench.tables.reports["report_seq"]


def test_each_sweep_takes_the_next_evs_where_peers_are_many(bench: Bench, wires: list[Tap]) -> None:
    rest(bench, H1, H5)
    bench.tables.node["idle_evs"] = 6
    seen = []
    for _ in range(8):
        tick(bench, 1000)
        plain, _ = asked(wires)
        seen += [ev for _, ev in plain]
        answered(bench)
    assert Counter(seen) == Counter(3 * EVERY)


@pytest.mark.clock
@pytest.mark.parametrize("bench", [Setup(health="idle_probes = 100")], indirect=True, ids=[""])
def test_idle_probes_stay_within_the_budget(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.node["idle_us"] = 1000
    total = 0
    for _ in range(150):  # three seconds
        tick(bench, 20)
        plain, reports = asked(wires)
        total += len(plain) + len(reports)
        answered(bench)
    assert 300 <= total <= 300 + 50 + 2 * EVS, total


@pytest.mark.parametrize("bench", [Setup(health="idle_probes = 100")], indirect=True, ids=[""])
def test_suspicion_overdraws_the_budget_and_idle_peers_wait(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.clock["budget"], bench.tables.clock["refilled_ns"] = -50, now()
    bench.tables.watches["timed_out"][H2] = 1
    tick(bench)
    plain, reports = asked(wires)
    assert plain == [(H2, ev) for ev in EVERY]
    assert reports == [H2]
    assert bench.tables.watches["timed_out"][H2] == 0


def test_a_second_of_overdraft_is_all_that_is_owed(bench: Bench) -> None:
    bench.tables.clock["budget"] = -(10**6)
    bench.tables.peers["configured"] = 0
    tick(bench, 100)
    tick(bench)
    assert -HEALTH.idle_probes <= bench.tables.clock["budget"] < 0


@pytest.mark.parametrize("which", ["unconfigured", "busy"])
def test_nothing_is_served_where_there_is_nobody_or_another_cpu_does_it(
    bench: Bench, wires: list[Tap], which: str
) -> None:
    if which == "busy":
        bench.tables.clock["busy"] = 1
    else:
        bench.tables.peers["configured"] = 0
    assert tick(bench) == TICK_S
    assert asked(wires) == ([], [])


def test_probes_are_counted_by_kind(bench: Bench) -> None:
    before = sent(bench)
    rest(bench, H1, H5)
    fall(bench, 3)
    bench.tables.watches["timed_out"][H2] = 1
    tick(bench)
    after = sent(bench)
    grown = {k: n - before.get(k, 0) for k, n in after.items() if n != before.get(k, 0)}
    assert grown[ProbeKind.RETRY.text] == 1
    assert grown[ProbeKind.SUSPICION.text] == EVS  # all but the one just tried, and a report
    answered(bench)
    tick(bench, 1000)
    assert sent(bench)[ProbeKind.IDLE.text] > before.get(ProbeKind.IDLE.text, 0)


def test_peers_begin_at_different_evs(bench: Bench, wires: list[Tap]) -> None:
    """So each T1 is probed all the time, to one peer or the other."""
    bench.tables.node["idle_evs"] = 3
    tick(bench)
    plain, _ = asked(wires)
    assert {ev for p, ev in plain if p == H2} == {6, 7, 8}
    assert {ev for p, ev in plain if p == H5} == {15, 0, 1}


def test_a_report_is_asked_for_where_a_probe_had_no_answer(bench: Bench, wires: list[Tap]) -> None:
    """The one that was asked for with the sweep came too soon to miss it."""
    rest(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    bench.tables.watches["swept_ns"][H2] = 0
    for lost in (0, 1):
        bench.tables.watches["swept_ns"][H2] = bench.tables.watches["due_ns"][H2] = 0
        tick(bench)
        assert len(asked(wires)[0]) == EVS
        for ev in range(EVS - lost):
            reply(bench, ev, tx_ns=now())
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
        tick(bench, 10)
        assert asked(wires) == ([], [H2] * lost)


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True, ids=[""])
def test_where_a_report_has_no_room_for_all_evs_it_is_asked_for_in_parts(bench: Bench, wires: list[Tap]) -> None:
    rest(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    tick(bench)
    asked(wires)
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    bench.tables.watches["unanswered"][H2] = 0
    parts = []
    for _ in range(4):
        tick(bench, 10)
        frames = [Ether(f.data)[MRCProbe] for wire in wires for f in wire.frames()]
        parts += [f.first for f in frames if f.counts]
        bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    assert sorted(parts) == [0, abi.REPORT_EVS]


# ---- new EVs ----


def test_a_new_ev_is_good_with_its_first_reply_and_not_before(h2: Bench, wires: list[Tap]) -> None:
    h2.set_state(H2, UNKNOWN, 5)
    begun = now()
    tick(h2)
    plain, reports = asked(wires)
    assert (plain, reports) == ([(H2, 5)], [H2])
    assert state(h2, 5)[0] is UNKNOWN
    reply(h2, 5, tx_ns=now())
    assert state(h2, 5) == (GOOD, Reason.PROBED)
    assert h2.ev(H2, 5)["weight"] == abi.WEIGHT_FULL
    assert h2.ev(H2, 5)["state_since_ns"] >= begun
    assert events(h2) == [(5, "UNKNOWN", "GOOD", "probed")]
    assert h2.usable(H2) == EVERY
    tick(h2)
    assert with_deadlines(h2) == []


def test_a_reply_to_what_was_sent_before_proves_nothing(h2: Bench) -> None:
    """An EV that is allowed again is probed before it carries traffic."""
    tick(h2)
    h2.dataplane.set_state(H2, 5, DENIED, Reason.ADMIN, EvState)
    before = now()
    h2.dataplane.set_state(H2, 5, UNKNOWN, Reason.ADMIN, EvState)
    tick(h2)
    reply(h2, 5, tx_ns=before)
    assert state(h2, 5)[0] is UNKNOWN


# ---- failed EVs ----


@pytest.mark.clock
def test_probes_of_a_failed_ev_become_rarer_and_never_end(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 5)
    at, elapsed = [], 0
    for _ in range(400):
        tick(h2, 10)
        h2.reports(H2)["applied_seq"], h2.tables.watches["unanswered"][H2] = h2.reports(H2)["report_seq"], 0
        elapsed += 10
        at += [elapsed] * len(asked(wires)[0])
    gaps = np.diff(at).tolist()
    # Beside the time that is played some passes indeed: gaps are shorter on a busy machine, never longer.
    wanted = ([20, 40, 80, 160, 320, 640] + [1000] * len(gaps))[: len(gaps)]
    assert all(0.4 * w <= gap <= w + 10 for gap, w in zip(gaps, wanted, strict=True)), gaps
    assert sorted(gaps[:6]) == gaps[:6]
    assert len(gaps) > 6


def test_probes_of_a_failed_ev_are_frequent_as_soon_as_one_is_answered(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 5)
    live(h2, 2000)
    reply(h2, 5, tx_ns=now())
    asked(wires)
    counts = []
    for _ in range(8):
        arrive(h2, 5)
        tick(h2, INTERVAL_MS)
        counts.append(len(asked(wires)[0]))
    assert counts == [1] * 8


def retried(bench: Bench, wires: list[Tap]) -> Packet:
    """The probe of a failed EV that is due now."""
    tick(bench, INTERVAL_MS)
    (frame,) = (f for wire in wires for f in map(Ether, (x.data for x in wire.frames())) if not f[MRCProbe].counts)
    return frame


def test_a_failed_ev_that_answers_is_probed_by_packets_as_long_as_the_longest_data(h2: Bench, wires: list[Tap]) -> None:
    """A path that loses only long packets would else return, and fall again, for ever."""
    fall(h2, 5)
    assert len(retried(h2, wires)) < 300
    longest = len(bytes(h2.sent(H2, 5, Raw(bytes(h2.plan.inner_mtu)))))
    for _ in range(3):
        arrive(h2, 5)
        probe = retried(h2, wires)
        assert len(probe) == longest == ETH_HLEN + IP_HLEN + probe[IPv6].plen
    arrive(h2, 5)
    h2.path_stats(H2, 5)["good"] = 0  # a report says that one was lost
    assert len(retried(h2, wires)) < 300


def test_a_denied_ev_is_probed_seldom_and_stays_denied(h2: Bench, wires: list[Tap]) -> None:
    h2.dataplane.set_state(H2, 5, DENIED, Reason.ADMIN, EvState)
    for _ in range(150):
        tick(h2, INTERVAL_MS)
        arrive(h2, 5, reports=20)
    assert 3 <= len(asked(wires)[0]) <= 4
    assert state(h2, 5) == (DENIED, Reason.ADMIN)


@pytest.mark.parametrize(
    ("flaps", "ms"),
    [(0, 1000), (1, 1000), (2, 2000), (3, 4000), (6, 32_000), (7, 60_000), (8, 60_000), (255, 60_000)],
)
def test_a_failed_ev_returns_after_a_hold_down_that_doubles_up_to_its_cap(h2: Bench, flaps: int, ms: int) -> None:
    assert hold_down.hold_down_ns(HEALTH, flaps) == ms * MS
    fall(h2, 5, flaps)
    tick(h2)  # it is not known to be well until then
    arrive(h2, 5, reports=HEALTH.good_probes)
    tick(h2, ms - 100)
    assert state(h2, 5)[0] is ASSUMED_BAD
    tick(h2, 200)
    assert state(h2, 5) == (GOOD, Reason.HEALED)
    (event,) = (e for e in h2.events() if e["after"] == GOOD)
    assert (event["reason"], event["lost_bursts"]) == (Reason.HEALED, HEALTH.good_probes)
    assert h2.usable(H2) == EVERY


@pytest.mark.parametrize("what", ["few reports", "lag", "no arrival", "loss", "link", "detached"])
def test_a_failed_ev_that_is_not_well_does_not_return(h2: Bench, what: str) -> None:
    fall(h2, 5)
    arrive(h2, 5, reports=HEALTH.good_probes - (what == "few reports"))
    stats = h2.path_stats(H2, 5)
    for _ in range(20):
        if what == "lag":
            stats["lag_ns"] = now()
        elif what == "no arrival":
            stats["good"] = 0
        elif what == "loss":
            stats["loss_ns"] = now()
        elif what == "link":
            h2.peer(H2)["plane_mask"] = ALL_PLANES & ~0b10
        elif what == "detached":
            h2.peer(H2)["status"] = abi.STATUS_DETACHED
        tick(h2, 500)
        serve(h2)
        assert state(h2, 5)[0] is ASSUMED_BAD


def test_the_hold_down_begins_with_the_first_arrival_and_not_with_the_last_loss(h2: Bench) -> None:
    """Probes are rare by then: the time before the first good one says nothing."""
    fall(h2, 5)
    live(h2, 5000)
    serve(h2)
    arrive(h2, 5, reports=HEALTH.good_probes)
    tick(h2, HEALTH.hold_down_ms // 2)
    assert state(h2, 5)[0] is ASSUMED_BAD
    tick(h2, HEALTH.hold_down_ms)
    assert state(h2, 5)[0] is GOOD


def weights(bench: Bench, step_ms: int = INTERVAL_MS) -> list[int]:
    """The weights of EV 5 from its return on, each once."""
    fall(bench, 5)
    tick(bench)
    arrive(bench, 5, reports=HEALTH.good_probes)
    tick(bench, 1100)
    assert state(bench, 5)[0] is GOOD
    seen = [int(bench.ev(H2, 5)["weight"])]
    for _ in range(0, 600, step_ms):
        tick(bench, step_ms)
        seen.append(int(bench.ev(H2, 5)["weight"]))
    return [w for w, before in zip(seen, [0, *seen], strict=False) if w != before]


def test_an_ev_returns_with_an_eighth_of_its_turns_and_doubles_them(h2: Bench) -> None:
    assert weights(h2) == [1, 2, 4, 8]
    assert with_deadlines(h2) == []


@pytest.mark.parametrize("bench", [Setup(health="ramp_ms = 0")], indirect=True, ids=[""])
def test_without_a_ramp_it_returns_whole(h2: Bench) -> None:
    assert weights(h2) == [8]


def test_another_daemon_finishes_what_was_begun(h2: Bench) -> None:
    """It has the programs look at all EVs again, whatever they knew."""
    h2.set_state(H2, ASSUMED_BAD, 5)
    h2.ev(H2, 6)["weight"] = 2
    h2.tables.watches[H2] = np.zeros((), abi.WATCH)
    h2.tables.watches["swept_ns"] = now()
    h2.dataplane.refresh(H2)
    assert with_deadlines(h2) == [5, 6]
    tick(h2, 10_000)
    assert h2.ev(H2, 6)["weight"] == abi.WEIGHT_FULL
    assert with_deadlines(h2) == [5]


# ---- links ----


@pytest.mark.parametrize("before", [GOOD, SKIP])
@pytest.mark.parametrize("whose", ["link_down", "peer_link_down"])
def test_a_link_that_goes_takes_its_evs_out_of_use(h2: Bench, before: EvState, whose: str) -> None:
    tick(h2)
    for ev in range(4, 8):
        h2.ev(H2, ev)["state"] = before
    (h2.tables.node if whose == "link_down" else h2.peer(H2))["plane_mask"] = ALL_PLANES & ~0b10
    h2.dataplane.refresh(H2)
    tick(h2)
    assert events(h2) == [(ev, before.name, "ASSUMED_BAD", whose) for ev in range(4, 8)]
    live(h2, 2000)
    assert events(h2) == []
    assert h2.usable(H2) == others(4, 5, 6, 7)


@pytest.mark.parametrize("before", [UNKNOWN, ASSUMED_BAD, DENIED])
def test_a_link_is_no_news_to_an_ev_that_is_not_in_use(h2: Bench, before: EvState, wires: list[Tap]) -> None:
    h2.set_state(H2, before, *EVERY)
    h2.tables.node["plane_mask"] = 0
    h2.dataplane.refresh(H2)
    live(h2, 1000)
    assert events(h2) == []
    assert asked(wires) == ([], [])


def test_the_hold_down_begins_when_the_link_is_back(h2: Bench) -> None:
    tick(h2)
    h2.peer(H2)["plane_mask"] = ALL_PLANES & ~0b10
    h2.dataplane.refresh(H2)
    tick(h2)
    live(h2, 5000)
    serve(h2)
    arrive(h2, *range(4, 8), reports=HEALTH.good_probes)
    h2.peer(H2)["plane_mask"] = ALL_PLANES
    h2.dataplane.refresh(H2)
    tick(h2, HEALTH.hold_down_ms - 200)
    assert {state(h2, ev)[0] for ev in range(4, 8)} == {ASSUMED_BAD}
    tick(h2, 400)
    assert {state(h2, ev) for ev in range(4, 8)} == {(GOOD, Reason.HEALED)}


def test_what_a_peer_says_of_its_links_is_heeded_at_once(h2: Bench) -> None:
    r = Reporter(h2)
    tick(h2)
    rest(h2, H2)
    r.report(ports=ALL_PLANES & ~0b10)
    tick(h2)
    assert {state(h2, ev) for ev in range(4, 8)} == {(ASSUMED_BAD, Reason.PEER_LINK_DOWN)}


# ---- shared fate ----


def neighbours(bench: Bench, wires: list[Tap], answered: Collection[int] = ()) -> list[tuple[int, int]]:
    """What is asked of other peers at once when EV 6 of h2 has failed: plain requests. Then h5 answers what was sent on
    some EVs, and is judged."""
    tick(bench)
    plain, reports = asked(wires)
    assert not [r for r in reports if r != H2]
    for ev in answered:
        bench.path_stats(H5, ev)["reply_seq"] = bench.ev(H5, ev)["probe_seq"]

    def judged() -> bool:
        bench.dataplane.tick()
        shares = libbpf.map_fd(libbpf.maps_of(bench.dataplane._obj)["mrc_t1_failures"])
        return all(made == begun and not left for *_, made, begun, _, left, _, _ in SHARE.iter_unpack(read_all(shares)))

    until("the neighbours are judged", judged)
    return [p for p in plain if p[0] != H2]


SHARE = struct.Struct("3Q8I")  # struct mrc_t1_failure


def read_all(shares: int) -> bytes:
    """What is known of shared failures."""
    return libbpf.lookup_all(shares, 8, SHARE.size)


def h5_state(bench: Bench, ev: int) -> tuple[EvState, Reason]:
    """The state of an EV of h5 and why it is in it."""
    return EvState(bench.ev(H5, ev)["state"]), Reason(bench.ev(H5, ev)["reason"])


def others_asked(wires: list[Tap]) -> tuple[list[tuple[int, int]], list[int]]:
    """What is asked of other peers: plain requests, then receivers of those for a report."""
    plain, reports = asked(wires)
    return [p for p in plain if p[0] != H2], [r for r in reports if r != H2]


FIRST = [(H5, 6)] * 3 + [(H5, 7)]  # h1 is under this host's T0


@pytest.mark.clock
def test_a_peer_under_each_t0_is_probed_at_once_and_on_another_ev_too(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 6, reason=Reason.OVERDUE)
    assert neighbours(h2, wires) == FIRST


@pytest.mark.clock
def test_what_is_not_answered_while_the_other_ev_is_has_failed_too(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 6, reason=Reason.OVERDUE)
    neighbours(h2, wires, [7])
    assert h5_state(h2, 6) == (ASSUMED_BAD, Reason.OVERDUE)
    assert h2.usable(H5) == [ev for ev in EVERY if ev != 6]
    assert sent(h2)["retry"] > 0


@pytest.mark.clock
def test_what_is_answered_stays_in_use(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 6, reason=Reason.OVERDUE)
    neighbours(h2, wires, [6, 7])
    assert h5_state(h2, 6)[0] == GOOD
    assert others_asked(wires) == ([], [])


@pytest.mark.clock
def test_probes_that_are_sent_later_are_not_missing(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 6, reason=Reason.OVERDUE)
    tick(h2)
    for ev in (6, 7):
        h2.path_stats(H5, ev)["reply_seq"] = h2.ev(H5, ev)["probe_seq"]
    h2.ev(H5, 6)["probe_seq"] += 16  # a probe burst
    neighbours(h2, wires)
    assert h5_state(h2, 6)[0] == GOOD


@pytest.mark.clock
def test_a_peer_that_answers_nothing_is_not_asked_for_its_neighbours(h2: Bench, wires: list[Tap]) -> None:
    h2.tables.watches["silent"][H5] = 1
    fall(h2, 6, reason=Reason.OVERDUE)
    assert neighbours(h2, wires) == []
    assert h5_state(h2, 6)[0] == GOOD


@pytest.mark.clock
def test_where_nothing_is_answered_each_peer_is_probed_and_asked_for_a_report(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 6, reason=Reason.OVERDUE)
    neighbours(h2, wires)
    assert h5_state(h2, 6)[0] == GOOD
    tick(h2, 3)
    assert others_asked(wires) == ([(H5, 6)], [H5])


@pytest.mark.clock
def test_where_a_peer_has_that_path_at_another_number_it_is_found(h2: Bench, wires: list[Tap]) -> None:
    six, four = h2.ev(H5, 6)["dst"].copy(), h2.ev(H5, 4)["dst"].copy()
    h2.ev(H5, 4)["dst"], h2.ev(H5, 6)["dst"] = six, four
    fall(h2, 6, reason=Reason.OVERDUE)
    assert neighbours(h2, wires, [5]) == [(H5, 4)] * 3 + [(H5, 5)]
    assert h5_state(h2, 4) == (ASSUMED_BAD, Reason.OVERDUE)


@pytest.mark.clock
@pytest.mark.parametrize("least", [EVS - 1, EVS])
def test_no_fewer_stay_in_use_than_the_floor(h2: Bench, wires: list[Tap], least: int) -> None:
    h2.peer(H5)["floor"] = least
    fall(h2, 6, reason=Reason.OVERDUE)
    neighbours(h2, wires, [7])
    assert h5_state(h2, 6)[0] == ASSUMED_BAD
    assert h2.usable(H5) == [ev for ev in EVERY if ev != 6]  # by which nothing arrives


@pytest.mark.parametrize("what", ["loss", "not in use", "twice", "detached"])
def test_neighbours_are_left_alone(h2: Bench, wires: list[Tap], what: str) -> None:
    if what == "not in use":
        h2.set_state(H5, DENIED, 6)
        rest(h2, H5)
    elif what == "detached":
        h2.peer(H5)["status"] = abi.STATUS_DETACHED
    elif what == "twice":
        fall(h2, 6, reason=Reason.OVERDUE)
        neighbours(h2, wires, [6, 7])
        h2.set_state(H2, GOOD, 6)
    assert h2.dataplane.set_state(H2, 6, ASSUMED_BAD, Reason.LOSS if what == "loss" else Reason.OVERDUE, [GOOD])
    assert neighbours(h2, wires) == []


@pytest.mark.parametrize("bench", ["srh", "ecmp"], indirect=True)
def test_where_destinations_do_not_name_the_switches_nothing_is_shared(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 6, reason=Reason.OVERDUE)
    assert neighbours(h2, wires) == []


# ---- doubt and silence ----


@pytest.mark.clock
def test_a_report_that_does_not_come_back_makes_sweeps_frequent(h2: Bench, wires: list[Tap]) -> None:
    h2.reports(H2)["report_seq"], h2.reports(H2)["requested_ns"] = 1, now() - 3 * MS
    h2.tables.watches["due_ns"][H2] = 0
    assert tick(h2, 10) == DOUBT_S
    plain, reports = asked(wires)
    assert (plain, reports) == ([(H2, ev) for ev in EVERY], [H2])
    swept = []
    for step in range(100):  # of 5 ms
        tick(h2, 5)
        h2.tables.watches["unanswered"][H2] = 1  # never silent
        if asked(wires)[0]:
            swept.append(step)
    gaps = np.diff(swept).tolist()
    assert sorted(gaps[:4]) == gaps[:4]  # the more reports are missing, the less often it is swept
    assert gaps[3] >= 4 * gaps[0]
    answered(h2)
    assert tick(h2, 6) == TICK_S
    assert asked(wires) == ([], [])


def test_a_lagging_ev_is_probed_until_that_is_cleared_up(h2: Bench, wires: list[Tap]) -> None:
    r = Reporter(h2)
    r.send_all(3)
    r.report()
    r.send(5, 3, arrive=0)
    r.report()
    assert with_deadlines(h2) == [5]
    h2.tables.path_stats["probe_after_ns"][H2] = 0
    asked(wires)
    for _ in range(5):
        answered(h2)
        tick(h2, INTERVAL_MS)
        assert asked(wires)[0] == [(H2, 5)]
    h2.path_stats(H2, 5)["lag_ns"], h2.ev(H2, 5)["state"] = 0, GOOD
    answered(h2)
    tick(h2, INTERVAL_MS)
    assert (asked(wires)[0], with_deadlines(h2)) == ([], [])


def test_a_peer_that_answers_nothing_is_silent_and_none_of_its_evs_to_blame(h2: Bench, wires: list[Tap]) -> None:
    h2.tables.watches["swept_ns"][H2] = 0
    begun, played = now(), 0
    serve(h2)
    while not h2.tables.watches["silent"][H2]:
        tick(h2, 5)
        played += 5
    assert played + (now() - begun) / MS >= 2 * INTERVAL_MS
    assert played <= 200
    assert (events(h2), h2.usable(H2)) == ([], EVERY)
    asked(wires)
    live(h2, 200)
    assert asked(wires) == ([], [])  # only as often as an idle peer
    h2.tables.watches["swept_ns"][H2] = 0
    serve(h2)
    reply(h2, 5, tx_ns=now())
    assert h2.tables.watches["silent"][H2] == h2.tables.watches["unanswered"][H2] == 0


def test_one_reply_of_any_ev_is_an_answer(h2: Bench) -> None:
    h2.tables.watches["swept_ns"][H2] = 0
    serve(h2)
    for n in range(40):
        tick(h2, 5)
        if n % 4 == 3:
            reply(h2, n % EVS, tx_ns=now())
    assert h2.tables.watches["silent"][H2] == 0


@pytest.mark.parametrize(
    "bench",
    [Setup(health="probe_interval_ms = 5000\nidle_interval_ms = 5000\nprobe_backoff_ms = 5000")],
    indirect=True,
    ids=[""],
)
def test_sweeps_in_quick_succession_are_not_silence(h2: Bench) -> None:
    for _ in range(20):
        h2.tables.watches["timed_out"][H2], h2.tables.watches["due_ns"][H2] = 1, 0
        tick(h2)
    assert h2.tables.watches["unanswered"][H2] == 20
    assert h2.tables.watches["silent"][H2] == 0


# ---- what the daemon asks for ----


def test_news_of_this_host_is_announced_by_one_probe(bench: Bench, wires: list[Tap]) -> None:
    bench.tables.watches["swept_ns"], bench.tables.node["idle_us"] = now(), 3_600_000_000
    tick(bench)
    asked(wires)
    bench.tables.watches["announce"], bench.tables.watches["due_ns"] = 1, 0
    tick(bench)
    assert asked(wires) == ([], [H1, H2, H5])
    assert not bench.tables.watches["announce"][[H1, H2, H5]].any()
    answered(bench)
    live(bench, 200)
    assert asked(wires) == ([], [])


def test_a_detached_host_only_tells_its_peers(h2: Bench, wires: list[Tap]) -> None:
    fall(h2, 5)
    h2.tables.node["status"] = abi.STATUS_DETACHED
    h2.reports(H2)["report_seq"], h2.reports(H2)["requested_ns"] = 1, now() - 3 * MS
    live(h2, 100)
    assert asked(wires) == ([], [])
    h2.tables.watches["swept_ns"][H2] = h2.tables.watches["due_ns"][H2] = 0
    tick(h2)
    assert len(asked(wires)[0]) == EVS
    assert h2.tables.watches["unanswered"][H2] == 0


def test_planes_that_have_no_link_are_not_probed(h2: Bench, wires: list[Tap]) -> None:
    h2.tables.node["plane_mask"] = 0b1001
    h2.tables.watches["swept_ns"][H2] = 0
    serve(h2)
    assert {ev // SLOTS for _, ev in asked(wires)[0]} == {0, PLANES - 1}
