# SPDX-License-Identifier: BSD-2-Clause
"""Tests the timer packet: after a flow stops, the programs alone probe every EV, driven by a circulating packet."""

import contextlib
import itertools
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from scapy.layers.inet import TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import DATA, MRC, PROBE_REQUEST, MRCProbe
from mrcd.config.cluster_file import Health
from mrcd.kernel import abi, libbpf
from mrcd.net import hooks
from mrcd.net.messages import Link
from mrcd.net.netlink import Netlink
from tests.packet.clock import MS
from tests.packet.packets import ETHERNET, EVS, H0, H2, all_encapsulations, datagram, ip
from tests.packet.reports import BURST_PROBES
from tests.packet.rig import Bench, Setup, setup_of
from tests.packet.wires import Frame, Gso, Sender, Tap, until
from tests.packet.witness import run

pytestmark = pytest.mark.root

SMALL = datagram(H0, H2, size=5)
BURST = (ip() / TCP(sport=1, dport=2, flags="A") / Raw(b"secret" * 3500), Gso("tcp4", 1000, 34))
SWEEPS = 3
TIMER = struct.Struct("3Q2I")  # struct mrc_timer
TIMEOUT_MS = 2
LOST_S = 0.021  # a timer packet that does not return for this long has ended
HURRIED = 257
MOST_DEBT = 128 * 67  # data packets that pay for the most probes at once


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Callable[[Setup], Bench]) -> Iterator[Bench]:
    """Host h0 with the kernel's clock: its timers and the pacing of the timer packet are in real time, too."""
    with benches(replace(setup_of(request), test_clock=False)).fresh() as b:
        yield b


class Stage:
    """A sending host, its timer packet, and its wires."""

    def __init__(self, bench: Bench, link: Link) -> None:
        self.bench, self.link, self.wires = bench, link, bench.wires()
        self.stack: Sender = bench.attach_push()
        self.timer_end: Tap = bench.attach_timer()
        self.requests: list[Frame] = []
        self.piggybacked_seq = 0  # the last report that traffic requested
        self.sent: tuple[Packet, Gso | None] = SMALL, None
        self.woken = False
        self.length = hooks.timer_packet_bytes(bench.tables.evs.shape[1], bench.plan.needs_srh)

    def pace(self, interval_ns: int = abi.TIMER_NS) -> None:
        run(lambda n: n.ensure_paced(self.link, self.length, interval_ns))

    def dense(self, packet: Packet = SMALL, gso: Gso | None = None, *, restart: bool = True) -> None:
        """Sends enough traffic for a request for a report, long after the last one; then nothing."""
        self.sent = packet, gso
        self.in_flight(1)
        if restart:
            self.rest()  # the timer packet of the previous test has ended
        reports = self.bench.reports(H2)
        reports["requested_ns"] = time.monotonic_ns() + 1000 * MS
        for _ in range(8):
            self.stack.send(ETHERNET / packet, gso)
        self.look()
        self.requests.clear()
        self.piggybacked_seq = int(reports["report_seq"]) + 1
        reports["requested_ns"] = 0
        self.stack.send(ETHERNET / packet, gso)

    def in_flight(self, packets: int) -> None:
        """Has no report told of so many packets of each EV. It is about packets that are sent later, too."""
        stats = self.bench.tables.path_stats[H2]
        stats["offset"] = self.bench.tables.evs["tx_packets"][H2] - packets - stats["rx"] - stats["deficit"]

    @contextlib.contextmanager
    def mtu(self, mtu: int) -> Iterator[None]:
        """A block with this MTU on both ends of mrc0."""
        with contextlib.ExitStack() as undo:
            for name in ("m0", "m0p", "m0b", "m0bp"):
                command = ["ip", "link", "set", name, "mtu"]
                undo.callback(subprocess.run, [*command, "1500"], check=True, timeout=10)
                subprocess.run([*command, str(mtu)], check=True, timeout=10)
            yield

    def rest(self, quiet_s: float = LOST_S) -> int:
        """Waits until no timer packet has returned for `quiet_s`. Returns how often one did."""
        found, last = 0, time.monotonic()

        def quiet() -> bool:
            nonlocal found, last
            if came := self.passes():
                found, last = found + came, time.monotonic()
            return time.monotonic() - last > quiet_s

        until("no timer packet circulates", quiet)
        return found

    def passes(self, word: bytes = b"") -> int:
        """Returns how often a timer packet has returned since the last call; only those with `word` in them."""
        return sum(f.data[12:14] == b"\x88\xb5" and word in f.data for f in self.timer_end.frames())

    def look(self) -> list[Frame]:
        for frame in (f for wire in self.wires for f in wire.frames()):
            seen = Ether(frame.data)
            assert seen[MRC].type in (DATA, PROBE_REQUEST)
            if seen[MRC].type == PROBE_REQUEST and seen[MRCProbe].report_seq != self.piggybacked_seq:
                self.requests.append(frame)
        return self.requests

    def reports(self) -> list[Frame]:
        return [f for f in self.look() if Ether(f.data)[MRCProbe].counts]

    def stood_still(self) -> bool:
        """Returns whether the idle timeout came so late that the timer packet counted as lost.

        Nothing else wakes the daemon.
        """
        requested_ns = int(self.bench.reports(H2)["requested_ns"])
        late = [int(e["ns"]) - requested_ns for e in self.bench.dataplane.events() if e["ns"] > requested_ns]
        assert all(ns > 15 * MS for ns in late), late
        return bool(late)

    def sweeps(self, packet: Packet = SMALL, gso: Gso | None = None) -> None:
        """Sends traffic, and waits until the sweeps after its end are over."""
        self.dense(packet, gso)
        self.wait_until_swept()

    def wait_until_swept(self) -> None:
        """Waits until the last sweep's report is requested, and the packets before it on other planes are seen.

        If the machine paused meanwhile, no timer packet returned in time and the daemon was woken: then this tries once
        more.
        """

        def swept() -> bool:
            if not self.woken and self.stood_still():
                self.woken = True
                self.dense(*self.sent)
            return len(self.reports()) == SWEEPS

        until("three reports are requested", swept)
        self.look()


@pytest.fixture
def stage(bench: Bench) -> Iterator[Stage]:
    link = next(x for x in run(Netlink.links).values() if x.name == "m0bp")
    stage = Stage(bench, link)
    stage.pace()
    yield stage
    bench.tables.node["timer_ifindex"] = 0


def well_formed(bench: Bench, frame: Frame) -> int:
    """Asserts each field of a request, whatever packet it was made of. Returns its EV."""
    seen = Ether(frame.data)
    mrc, probe = seen[MRC], seen[MRCProbe]
    content = MRCProbe(seq=probe.seq, report_seq=probe.report_seq, counts=probe.counts, tx_ns=mrc.tx_ns, **bench.told())
    begin = len(frame.data) - len(bytes(probe))
    rest = frame.data[begin + len(content) :]
    fields = {"type": PROBE_REQUEST, "seq": mrc.seq, "tx_ns": mrc.tx_ns}
    assert frame.data == bytes(bench.sent(H2, mrc.ev, Raw(bytes(content) + rest), **fields))
    # A reply's SRH may be longer.
    room = abi.SRH_MAX * (bench.setup.encapsulation == "srh") - int(bench.ev(H2, mrc.ev)["srh_len"])
    assert len(rest) >= abi.BALLAST + 8 * EVS + room
    return int(mrc.ev)


@all_encapsulations
@pytest.mark.parametrize(("packet", "gso"), [(SMALL, None), BURST], ids=["small", "burst"])
def test_after_a_flow_stops_evs_with_packets_in_flight_are_probed(
    stage: Stage, packet: Packet, gso: Gso | None
) -> None:
    stage.sweeps(packet, gso)
    evs = Counter(well_formed(stage.bench, f) for f in stage.requests if not Ether(f.data)[MRCProbe].counts)
    assert evs == dict.fromkeys(range(EVS), SWEEPS)
    seqs = [Ether(f.data)[MRCProbe].report_seq for f in stage.reports()]
    assert sorted(seqs) == [int(stage.bench.reports(H2)["report_seq"]) - n for n in (2, 1, 0)]
    for frame in stage.reports():
        well_formed(stage.bench, frame)
    assert not any(b"secret" in f.data for f in stage.requests)  # it is also sent to other peers
    assert stage.bench.reports(H2)["unpaid_packets"] == SWEEPS * EVS * 67
    assert {len(f.data) for f in stage.timer_end.frames() if f.data[12:14] == b"\x88\xb5"} == {stage.length}
    assert stage.bench.drops() == {}
    assert len(stage.bench.dataplane.events()) == 0  # the daemon is not woken


@pytest.mark.parametrize("bench", [Setup(health="probe_late_ms = 40")], indirect=True, ids=["late timeout"])
@pytest.mark.parametrize("uncertain", ["none", "in flight", "lagging"])
def test_evs_of_which_a_report_has_told_all_are_not_probed(stage: Stage, uncertain: str) -> None:
    stats = stage.bench.tables.path_stats[H2]
    stats["lag_ns"][5] = uncertain == "lagging"
    while True:
        stage.dense()
        stage.in_flight(0)
        stats["offset"][5] -= uncertain == "in flight"
        if not stage.look():  # else the machine paused, and a sweep came before
            break
    if uncertain == "none":
        stage.rest()
        assert stage.look() == []
        return
    until("three reports are requested", lambda: len(stage.reports()) == SWEEPS)
    evs = [Ether(f.data)[MRC].ev for f in stage.look() if not Ether(f.data)[MRCProbe].counts]
    assert evs == [5] * SWEEPS


@pytest.mark.parametrize("bench", [Setup("srh", evs=256), Setup(evs=256)], ids=["srh", "usid"], indirect=True)
def test_the_timer_packet_fits_mrc0_at_the_smallest_mtu(stage: Stage) -> None:
    with stage.mtu(stage.bench.plan.inner_mtu):
        stage.sweeps()
    assert stage.passes() > 0


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True)
def test_an_early_timer_packet_ends_no_sweep(stage: Stage) -> None:
    """After a pause some return at once, and a sweep may take long: the next is due half an interval after its end."""
    # The second packet after a sweep's start then returns just when the next would be due.
    stage.pace(abi.TIMER_NS // 4 + 5000)
    stage.sweeps()


def test_without_a_returning_timer_packet_the_daemon_is_woken(stage: Stage) -> None:
    with stage.mtu(stage.length - 19):  # the kernel allows for Ethernet and a VLAN tag
        stage.dense()
        until("an event", lambda: abi.EVENT_IDLE_TIMEOUT in stage.bench.dataplane.events()["ev"])
    assert (stage.look(), stage.passes()) == ([], 0)


def test_traffic_restarts_an_ended_timer_packet_at_once(stage: Stage) -> None:
    stage.dense()
    begun = time.monotonic()
    until("it has circulated for a while", lambda: stage.passes() > 0 and time.monotonic() - begun > LOST_S)
    stage.bench.tables.node["timer_ifindex"] = 0
    stage.rest(0.003)
    stage.bench.tables.node["timer_ifindex"] = stage.bench.ifindex["m0bp"]
    stage.dense(restart=False)
    until("it circulates again", lambda: stage.passes() > 0)


def test_sweeps_follow_the_idle_timeout_one_timer_interval_apart(stage: Stage) -> None:
    stage.sweeps()
    times = sorted(Ether(f.data)[MRC].tx_ns for f in stage.reports())
    reports = stage.bench.reports(H2)
    assert times[0] - int(reports["sent_ns"][int(reports["report_seq"] - SWEEPS) % abi.REPORT_SLOTS]) >= TIMEOUT_MS * MS
    assert all(b - a >= abi.TIMER_NS / 2 for a, b in itertools.pairwise(times))


def test_without_a_probe_budget_only_reports_are_requested(stage: Stage) -> None:
    stage.bench.reports(H2)["unpaid_packets"] = MOST_DEBT
    stage.sweeps()
    assert len(stage.requests) == SWEEPS
    assert stage.bench.reports(H2)["unpaid_packets"] == MOST_DEBT


@pytest.mark.parametrize("bench", [Setup(health="probe_late_ms = 40")], indirect=True, ids=["late timeout"])
def test_without_a_host_budget_only_reports_are_requested_and_data_pays_later(stage: Stage) -> None:
    """When hundreds of flows stop at once, sweeps of all EVs would flood the fabric."""
    left = Health().idle_probes // 8  # reserved for the tick
    stage.dense()
    stage.bench.tables.clock["budget"] = left
    stage.wait_until_swept()
    assert len(stage.requests) == SWEEPS
    assert stage.bench.tables.clock["budget"] == left
    assert stage.bench.reports(H2)["unpaid_packets"] == SWEEPS * BURST_PROBES * 67


@pytest.mark.parametrize("bench", [Setup(health="probe_late_ms = 40")], indirect=True, ids=["late timeout"])
def test_without_budget_and_data_nothing_is_requested(stage: Stage) -> None:
    stage.bench.reports(H2)["unpaid_packets"] = MOST_DEBT
    stage.dense()
    stage.bench.tables.clock["budget"] = 0
    stage.rest()
    assert stage.look() == []


def test_evs_in_backoff_are_not_probed(stage: Stage) -> None:
    stage.bench.tables.path_stats["probe_after_ns"][H2, 1:] = 2**63
    stage.sweeps()
    assert [Ether(f.data)[MRC].ev for f in stage.requests if not Ether(f.data)[MRCProbe].counts] == [0] * SWEEPS


def test_the_timer_packet_ends_after_the_traffic(stage: Stage) -> None:
    stage.dense()
    seen: list[float] = []

    def ended() -> bool:
        came = stage.passes()
        seen.extend([time.monotonic()] * bool(came))
        return bool(seen) and time.monotonic() - seen[-1] > 0.2

    until("no timer packet circulates", ended)
    assert seen[-1] - int(stage.bench.reports(H2)["sent_ns"].max()) / 1e9 > 0.05


@pytest.mark.clock
def test_the_timer_packet_continues_while_a_peer_is_due_for_a_sweep(stage: Stage) -> None:
    """As when hundreds of flows stop at once."""
    stage.pace(10 * abi.TIMER_NS)
    stage.dense()
    requested_ns = int(stage.bench.reports(H2)["requested_ns"])
    until("the idle timeout has expired", lambda: time.monotonic_ns() - requested_ns > 3 * TIMEOUT_MS * MS)
    timers = stage.bench.map_fd("mrc_timers")
    assert libbpf.map_info(timers)[1] == TIMER.size
    before = libbpf.lookup_elem(timers, bytes(4), TIMER.size)
    assert before is not None
    came_ns, made_ns, _, mark, hurried = TIMER.unpack(before)
    libbpf.update_elem(timers, bytes(4), TIMER.pack(came_ns, made_ns, requested_ns - 1000 * MS, mark, hurried))
    stage.wait_until_swept()
    stage.rest()


def test_an_unpaced_timer_packet_does_not_spin(stage: Stage) -> None:
    subprocess.run(["tc", "qdisc", "del", "dev", "m0bp", "root"], check=True, timeout=10)
    stage.dense()
    assert HURRIED <= stage.rest() < 20 * HURRIED  # a slow circulation does not count as hurried


def test_without_pacing_the_daemon_is_woken(stage: Stage) -> None:
    stage.bench.tables.node["timer_ifindex"] = 0
    stage.dense()
    until("an event", lambda: len(stage.bench.tables.unread_events()) > 0)
    assert stage.bench.events()["ev"].tolist() == [abi.EVENT_IDLE_TIMEOUT]
    assert (stage.look(), stage.passes()) == ([], 0)


def test_packets_of_the_kernel_pass_mrc_timer(stage: Stage) -> None:
    tap = stage.bench.tap("m0b", "m0bp")
    tap.send(ETHERNET / IPv6(src="fe80::1", dst="fe80::2") / Raw(b"other"))
    until("it has come", lambda: any(b"other" in f.data for f in tap.frames()))


def test_other_packets_do_not_circulate(stage: Stage) -> None:
    """Another program's packet of that type, and a timer packet of replaced programs."""
    stage.dense()
    until("it circulates", lambda: bool(stage.passes()))
    stage.dense(restart=False)  # and continues
    stage.timer_end.send(Ether(src=ETHERNET.src, dst=ETHERNET.dst, type=0x88B5) / Raw(b"unknown" * 40))
    came: list[bytes] = []

    def own_packet_circulates() -> bool:
        came.extend(f.data for f in stage.timer_end.frames() if f.data[12:14] == b"\x88\xb5")
        unknown = [n for n, data in enumerate(came) if b"unknown" in data]
        return bool(unknown) and len(came) - unknown[0] > 3

    until("the own timer packet has returned several times after it", own_packet_circulates)
    assert sum(b"unknown" in data for data in came) == 1
