"""Probes: the sweep sends requests, mrc_pop reflects them and settles what comes back."""

import itertools
import time
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd import abi
from mrcd.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCProbe
from tests.packet.rig import EVS, H1, H2, H5, PLANES, SLOTS, Bench, Frame, Tap, changed

pytestmark = pytest.mark.root

all_steerings = pytest.mark.parametrize("bench", ["usid", "srh", "ecmp"], indirect=True)
PEER_GENERATION = 0xABCD0001


# ---- sweep ----


def own(bench: Bench) -> dict[str, int]:
    """What every probe says of this host."""
    node = bench.tables.node
    return {name: int(node[name]) for name in ("ports", "status", "generation")}


def requests(wires: list[Tap]) -> list[list[Frame]]:
    """The probe requests on each plane."""
    found = [wire.frames() for wire in wires]
    assert all(Ether(f.data)[MRC].type == PROBE_REQUEST for frames in found for f in frames)
    return found


@all_steerings
def test_a_sweep_asks_on_every_ev(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.node["status"] = abi.STATUS_DETACHED
    bench.tables.evs["tx_packets"][H2] = [1000 + ev for ev in range(EVS)]
    before = time.monotonic_ns()
    assert bench.dataplane.sweep(H2) == EVS
    after = time.monotonic_ns()
    for plane, frames in enumerate(requests(wires)):
        assert [Ether(f.data)[MRC].ev for f in frames] == [plane * SLOTS + slot for slot in range(SLOTS)]
        for frame in frames:
            packet = Ether(frame.data)
            ev, tx_ns = packet[MRC].ev, packet[MRC].tx_ns
            assert before <= tx_ns <= after
            probe = MRCProbe(seq=1, tx_packets=1000 + ev, tx_ns=tx_ns, **own(bench))
            assert frame == Frame(bytes(bench.sent(H2, ev, probe, tx_ns=tx_ns)))
            record = bench.ev(H2, ev)
            assert (record["probe_seq"], record["probe_ns"], record["tx_packets"]) == (1, tx_ns, 1000 + ev)
    assert not bench.tables.evs["probe_seq"][[H1, H5]].any()
    assert bench.drops() == {}


def test_each_sweep_counts_on(bench: Bench) -> None:
    wires = bench.wires()
    for seq in (1, 2, 3):
        assert bench.dataplane.sweep(H2) == EVS
        for frames in requests(wires):
            assert [Ether(f.data)[MRCProbe].seq for f in frames] == [seq] * SLOTS


def test_a_sweep_leaves_out_planes_without_a_link(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.node["ports"] = 0b1001
    assert bench.dataplane.sweep(H2) == 2 * SLOTS
    found = requests(wires)
    assert [len(frames) for frames in found] == [SLOTS, 0, 0, SLOTS]
    assert Ether(found[3][0].data)[MRCProbe].ports == 0b1001
    assert bench.tables.evs["probe_seq"][H2].tolist() == [1] * SLOTS + [0] * 2 * SLOTS + [1] * SLOTS


def test_a_sweep_asks_where_the_peer_has_no_link_and_where_nothing_is_usable(bench: Bench) -> None:
    """Or a path could never be found to have healed."""
    wires = bench.wires()
    bench.peer(H2)["ports"], bench.peer(H2)["usable"] = 0, 0
    assert bench.dataplane.sweep(H2) == EVS
    assert [len(frames) for frames in requests(wires)] == [SLOTS] * PLANES


def test_a_sweep_of_a_peer_under_the_same_t0(bench: Bench) -> None:
    wires = bench.wires()
    assert bench.dataplane.sweep(H1) == PLANES
    assert [[Ether(f.data)[MRC].ev for f in frames] for frames in requests(wires)] == [[0], [4], [8], [12]]


@pytest.mark.parametrize("host_id", [0, 3, 6, 2**32 - 1])
def test_a_sweep_of_nobody(bench: Bench, host_id: int) -> None:
    wires = bench.wires()
    assert bench.dataplane.sweep(host_id) == 0
    assert [wire.frames() for wire in wires] == [[]] * PLANES


@all_steerings
def test_a_sweep_tags_the_vlan_plane_only(bench: Bench) -> None:
    wires = bench.wires()
    bench.tables.planes["vlan"][1] = 100
    assert bench.dataplane.sweep(H2) == EVS
    for plane, frames in enumerate(requests(wires)):
        assert [f.vlan for f in frames] == [100 if plane == 1 else None] * SLOTS
        for f in frames:
            mrc = Ether(f.data)[MRC]
            probe = MRCProbe(seq=1, tx_ns=mrc.tx_ns, **own(bench))
            assert f.data == bytes(bench.sent(H2, mrc.ev, probe, tx_ns=mrc.tx_ns))


# ---- reflection ----


def request(bench: Bench, ev: int = 5, sent_ns: int | None = None, vlan: int = 0, **probe: int) -> Packet:
    """A probe request of host h2 that has just arrived."""
    now = time.monotonic_ns() if sent_ns is None else sent_ns
    fields = {"seq": 1, "ports": 0xF, "generation": PEER_GENERATION, "tx_packets": 77, "tx_ns": now, **probe}
    return bench.arriving("h2", ev, MRCProbe(**fields), tx_ns=now, vlan=vlan)


def reflected(bench: Bench, ask: Packet) -> Packet:
    """The reply to a request: every byte is as scapy builds it. Returns it dissected."""
    mrc = ask[MRC]
    before = time.monotonic_ns()
    verdict, out = bench.pop("tc", ask, mrc.ev // SLOTS)
    assert verdict == "redirect"
    reply = Ether(out)
    assert before <= reply[MRC].tx_ns <= time.monotonic_ns()
    packets, _, ce = bench.rx(H2, mrc.ev)
    probe = ask[MRCProbe].copy()
    for name, value in {**own(bench), "rx_packets": packets, "rx_ce": ce}.items():
        setattr(probe, name, value)
    path = reply[UDP].sport - abi.SPORT_BASE
    assert out == bytes(bench.sent(H2, path, probe, type=PROBE_REPLY, ev=mrc.ev, tx_ns=reply[MRC].tx_ns))
    return reply


@all_steerings
def test_a_request_is_reflected_with_what_came_by_that_ev(bench: Bench) -> None:
    bench.tables.node["status"] = abi.STATUS_DETACHED
    for ev in range(EVS):
        bench.tables.rxs[H2, ev]["packets"], bench.tables.rxs[H2, ev]["ce"] = 2**40 + ev, ev
        reply = reflected(bench, request(bench, ev, seq=2**32 - 1, tx_packets=2**63 + ev))
        assert (reply[MRC].ev, reply[MRC].sender, reply[MRC].seq) == (ev, 0, 0)
        assert (reply[MRCProbe].rx_packets, reply[MRCProbe].rx_ce) == (2**40 + ev, ev)
        assert (reply[MRCProbe].seq, reply[MRCProbe].tx_packets) == (2**32 - 1, 2**63 + ev)
    assert bench.drops() == {}
    assert not bench.tables.evs["replies"].any()


def test_a_request_is_not_data(bench: Bench) -> None:
    bench.pop("tc", changed(request(bench), IPv6, tc=3), 1)
    assert bench.rx(H2, 5) == (0, 0, 0)
    assert not bench.tables.evs["tx_packets"].any()


def test_replies_take_another_ev_of_the_plane_each_time(bench: Bench) -> None:
    ways = [reflected(bench, request(bench, 5, seq=seq))[IPv6].fl for seq in range(8)]
    assert sorted(ways) == [4, 4, 5, 5, 6, 6, 7, 7]
    assert all(a != b for a, b in itertools.pairwise(ways))
    ways = [reflected(bench, request(bench, ev))[IPv6].fl for ev in (4, 5, 6, 7)]
    assert sorted(ways) == [4, 5, 6, 7]  # a sweep comes back by all of them


def test_replies_keep_to_usable_evs(bench: Bench) -> None:
    bench.set_usable(H2, 5, False)
    bench.set_usable(H2, 7, False)
    ways = {reflected(bench, request(bench, 5, seq=seq))[IPv6].fl for seq in range(8)}
    assert ways == {4, 6}


def test_without_a_usable_ev_the_reply_takes_the_mirror_of_the_path(bench: Bench) -> None:
    bench.peer(H2)["usable"] = 0
    for ev in range(EVS):
        assert reflected(bench, request(bench, ev))[IPv6].fl == ev


def test_the_peers_ports_do_not_keep_a_reply_from_going_back(bench: Bench) -> None:
    assert reflected(bench, request(bench, 5, ports=0)) is not None


def test_a_request_by_an_ev_that_has_no_mirror(bench: Bench) -> None:
    """The peer's table has a path that ours lacks, and nothing else is usable."""
    bench.peer(H2)["usable"] = 0
    bench.ev(H2, 5)["configured"] = 0
    assert bench.pop("tc", request(bench, 5), 1)[0] == "drop"
    assert bench.drops() == {"reply_failed": 1}


@pytest.mark.parametrize("kind", [PROBE_REQUEST, PROBE_REPLY])
def test_xdp_leaves_probes_to_tc(bench: Bench, kind: int) -> None:
    frame, before = bytes(changed(request(bench), MRC, type=kind)), bench.counted()
    assert bench.pop_xdp(frame, bench.ifindex["n1"]) == ("pass", frame)
    assert (bench.counted(), bench.drops()) == (before, {})


@all_steerings
@pytest.mark.parametrize("vlan", [0, 100])
def test_a_real_reply_leaves_by_the_nic_the_request_came_by(bench: Bench, vlan: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    inlet, wires = bench.attach_pop(1, "ipv6"), bench.wires()
    ask = request(bench, 5, vlan=vlan, seq=2)
    inlet.send(ask)
    found = [wire.frames() for wire in wires]
    assert [len(frames) for frames in found] == [0, 1, 0, 0]
    (frame,) = found[1]
    reply = Ether(frame.data)
    assert frame.vlan == (vlan or None)
    probe = MRCProbe(seq=2, tx_packets=77, tx_ns=ask[MRC].tx_ns, **own(bench))
    fields = {"type": PROBE_REPLY, "ev": 5, "tx_ns": reply[MRC].tx_ns}
    assert frame.data == bytes(bench.sent(H2, reply[IPv6].fl, probe, **fields))
    assert bench.drops() == {}


# ---- what probes say of their sender ----


def test_port_status_is_learned_from_requests(bench: Bench) -> None:
    before = time.monotonic_ns()
    reflected(bench, request(bench, ports=0b0101, status=abi.STATUS_DETACHED))
    peer = bench.peer(H2)
    assert (peer["ports"], peer["status"], peer["generation"]) == (0b0101, abi.STATUS_DETACHED, PEER_GENERATION)
    assert before <= peer["heard_ns"] <= time.monotonic_ns()
    assert bench.peer(H5)["ports"] == 0xFFFF


def test_an_older_probe_does_not_undo_a_newer_one(bench: Bench) -> None:
    now = time.monotonic_ns()
    reflected(bench, request(bench, 5, now, ports=0b0001, status=1, generation=9))
    heard = int(bench.peer(H2)["heard_ns"])
    reflected(bench, request(bench, 6, now - 1000, ports=0b1111, status=0, generation=8))
    peer = bench.peer(H2)
    assert (peer["ports"], peer["status"], peer["generation"]) == (0b0001, 1, 9)
    assert peer["heard_ns"] > heard
    reflected(bench, request(bench, 7, now + 1, ports=0b0011, status=0, generation=9))
    assert (peer["ports"], peer["status"]) == (0b0011, 0)


def test_a_peer_whose_clock_starts_anew_is_believed(bench: Bench) -> None:
    now = time.monotonic_ns()
    reflected(bench, request(bench, 5, now, ports=0b0001))
    reflected(bench, request(bench, 5, now - 10**10, ports=0b0111, generation=PEER_GENERATION + 1))
    assert (bench.peer(H2)["ports"], bench.peer(H2)["generation"]) == (0b0111, PEER_GENERATION + 1)


# ---- settlement ----


def answer(bench: Bench, ev: int = 5, sent_ns: int | None = None, **probe: int) -> Packet:
    """A reply of host h2 to this host's newest probe on an EV, as it arrives."""
    record = bench.ev(H2, ev)
    fields = {
        "seq": int(record["probe_seq"]),
        "ports": 0xF,
        "generation": PEER_GENERATION,
        "tx_packets": int(record["tx_packets"]),
        "tx_ns": int(record["probe_ns"]),
        "rx_packets": int(record["tx_packets"]),
        **probe,
    }
    sent_ns = time.monotonic_ns() if sent_ns is None else sent_ns
    return bench.arriving("h2", ev, MRCProbe(**fields), type=PROBE_REPLY, tx_ns=sent_ns)


def settled(bench: Bench, reply: Packet) -> Any:
    """Take in a reply that must count. Returns the EV's record."""
    ev = reply[MRC].ev
    record = bench.ev(H2, ev)
    replies, drops = int(record["replies"]), bench.drops()
    assert bench.pop("tc", reply, ev // SLOTS)[0] == "drop"  # taken in, and no counted drop
    assert bench.drops() == drops
    assert record["replies"] == replies + 1
    return record


def loss(record: Any) -> int:
    """Packets that the newest settlement knows to be lost."""
    return int(record["settled_tx"]) - int(record["settled_rx"])


def send_data(bench: Bench, packets: int, ev: int = 5) -> None:
    """As if so many had been pushed onto an EV."""
    bench.ev(H2, ev)["tx_packets"] += packets


@all_steerings
def test_a_reply_settles_its_ev(bench: Bench) -> None:
    send_data(bench, 100)
    bench.dataplane.sweep(H2)
    before = bench.counted()
    record = settled(bench, answer(bench))
    now = time.monotonic_ns()
    assert (record["reply_seq"], record["replies"], record["rx_generation"]) == (1, 1, PEER_GENERATION)
    assert record["probe_ns"] < record["reply_ns"] <= now
    assert record["rtt_ns"] == record["reply_ns"] - record["probe_ns"]
    assert loss(record) == 0
    # Nothing but this EV and what is known of the peer.
    others = [ev for ev in range(EVS) if ev != 5]
    assert bench.counted() != before
    assert not bench.tables.evs["replies"][H2, others].any()
    assert not bench.tables.rxs["packets"].any()


def test_the_first_reply_sets_the_base_and_loss_shows_from_then_on(bench: Bench) -> None:
    send_data(bench, 1000)
    bench.dataplane.sweep(H2)
    record = settled(bench, answer(bench, rx_packets=12))  # the peer has counted before we were here, or after
    assert (record["settled_tx"], record["settled_rx"]) == (0, 0)
    for lost, total in ((0, 0), (3, 3), (0, 3), (50, 53)):
        send_data(bench, 50)
        bench.dataplane.sweep(H2)
        sent = int(record["settled_tx"]) + 50
        record = settled(bench, answer(bench, rx_packets=12 + sent - total, rx_ce=total))
        assert (record["settled_tx"], loss(record), record["rx_ce"]) == (sent, total, total), lost


def test_packets_sent_after_the_probe_are_not_lost(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    settled(bench, answer(bench))
    send_data(bench, 10)
    bench.dataplane.sweep(H2)
    reply = answer(bench)
    send_data(bench, 500)
    record = settled(bench, reply)
    assert (record["settled_tx"], record["settled_rx"]) == (10, 10)


def test_a_new_generation_of_the_peer_is_not_loss(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    settled(bench, answer(bench))
    send_data(bench, 100)
    bench.dataplane.sweep(H2)
    record = settled(bench, answer(bench, rx_packets=98))
    assert (record["settled_tx"], loss(record)) == (100, 2)
    # It starts anew, its counters at zero: the 30 of these 40 that came before are unknown, not lost.
    send_data(bench, 40)
    bench.dataplane.sweep(H2)
    record = settled(bench, answer(bench, rx_packets=10, generation=7))
    assert (record["rx_generation"], record["settled_tx"], loss(record)) == (7, 100, 2)
    send_data(bench, 60)
    bench.dataplane.sweep(H2)
    record = settled(bench, answer(bench, rx_packets=69, generation=7))
    assert (record["settled_tx"], loss(record)) == (160, 3)


def test_replies_to_older_probes_count_until_a_newer_one_is_answered(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    first = answer(bench)
    for _ in range(2):
        bench.dataplane.sweep(H2)
    third = answer(bench)
    assert settled(bench, first)["reply_seq"] == 1
    assert settled(bench, third)["reply_seq"] == 3


def test_the_rtt_is_smoothed(bench: Bench) -> None:
    record = bench.ev(H2, 5)
    bench.dataplane.sweep(H2)
    settled(bench, answer(bench))
    record["rtt_ns"] = 8_000_000
    bench.dataplane.sweep(H2)
    settled(bench, answer(bench))
    rtt = int(record["reply_ns"] - record["probe_ns"])
    assert record["rtt_ns"] == 7_000_000 + rtt // 8


def test_sequence_numbers_wrap(bench: Bench) -> None:
    record = bench.ev(H2, 5)
    record["probe_seq"] = record["reply_seq"] = 2**32 - 2
    for seq in (2**32 - 1, 0, 1):
        bench.dataplane.sweep(H2)
        assert settled(bench, answer(bench))["reply_seq"] == seq == record["probe_seq"]


def test_replies_tell_of_their_sender_too(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    settled(bench, answer(bench, ports=0b0110, status=1))
    peer = bench.peer(H2)
    assert (peer["ports"], peer["status"], peer["generation"]) == (0b0110, 1, PEER_GENERATION)


# ---- replies nobody asked for ----


def refused(bench: Bench, frame: Packet | bytes, reason: str = "unasked_reply", plane: int = 1) -> None:
    """A probe that is dropped under this reason and changes nothing."""
    before, drops = bench.counted(), bench.drops()
    assert bench.pop("tc", frame, plane)[0] == "drop"
    assert bench.drops() == {**drops, reason: drops.get(reason, 0) + 1}
    assert bench.counted() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"seq": 0},
        {"seq": 1},
        {"seq": 4},
        {"seq": 2**31 + 1},
        {"seq": 2**32 - 1},
        {"tx_packets": 101},
        {"tx_packets": 2**64 - 1},
        {"tx_ns": 2**63},
        {"tx_ns": 2**64 - 1},
    ],
    ids=str,
)
def test_replies_that_answer_no_probe(bench: Bench, fields: dict[str, int]) -> None:
    for _ in range(2):
        bench.dataplane.sweep(H2)
    settled(bench, answer(bench, seq=1))
    send_data(bench, 100)
    bench.dataplane.sweep(H2)  # the third
    refused(bench, answer(bench, **fields))
    settled(bench, answer(bench))


def test_a_reply_when_nothing_was_asked(bench: Bench) -> None:
    refused(bench, answer(bench))
    refused(bench, answer(bench, seq=1))


def test_a_reply_counts_once(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    reply = answer(bench)
    settled(bench, reply)
    refused(bench, reply)
    refused(bench, reply)


def test_a_reply_overtaken_by_a_newer_one_comes_too_late(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    first = answer(bench)
    bench.dataplane.sweep(H2)
    settled(bench, answer(bench))
    refused(bench, first)


def test_a_reply_from_the_future(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    refused(bench, answer(bench, tx_ns=time.monotonic_ns() + 10**9))


def test_a_reply_for_an_ev_that_is_not_there(bench: Bench) -> None:
    bench.ev(H2, 5)["configured"] = 0
    refused(bench, answer(bench, seq=1), "bad_ev")


def test_a_reply_of_another_host(bench: Bench) -> None:
    """Host h1 cannot answer for h2: where it may speak, nobody has asked it."""
    bench.dataplane.sweep(H2)
    probe = answer(bench, 4)[MRCProbe]
    refused(bench, bench.arriving("h1", 4, probe, type=PROBE_REPLY))
    refused(bench, bench.arriving("h1", 4, probe, type=PROBE_REPLY, sender=2), "wrong_source")


def test_a_reply_by_another_plane(bench: Bench) -> None:
    bench.dataplane.sweep(H2)
    refused(bench, changed(answer(bench, 4), MRC, ev=3), "wrong_plane")


# ---- malformed probes ----


@all_steerings
@pytest.mark.parametrize("kind", [PROBE_REQUEST, PROBE_REPLY])
def test_probes_cut_off_at_every_length(bench: Bench, kind: int) -> None:
    bench.dataplane.sweep(H2)
    whole = bytes(changed(answer(bench), MRC, type=kind))
    header = len(whole) - len(MRCProbe()) - len(MRC())
    for length in range(header, len(whole)):
        refused(bench, whole[:length], "truncated")
    assert bench.pop("tc", whole, 1)[0] == ("redirect" if kind == PROBE_REQUEST else "drop")
    assert bench.drops() == {"truncated": len(whole) - header}


@pytest.mark.parametrize("kind", [PROBE_REQUEST, PROBE_REPLY])
@pytest.mark.parametrize("padding", [0, 100])
def test_probes_whose_lengths_say_that_they_are_short(bench: Bench, kind: int, padding: int) -> None:
    """What lies behind the end of the UDP payload is no part of a probe."""
    bench.dataplane.sweep(H2)
    probe = bytes(answer(bench)[MRCProbe])
    for length in (0, 1, len(probe) - 1):
        frame = bench.arriving("h2", 5, Raw(probe[:length]), type=kind)
        refused(bench, bytes(frame) + (probe[length:] + bytes(padding) if padding else b""), "truncated")


def test_a_probe_may_be_longer_than_we_know(bench: Bench) -> None:
    """Room for later versions: what follows is ignored."""
    bench.dataplane.sweep(H2)
    reply = answer(bench)
    longer = bench.arriving("h2", 5, Raw(bytes(reply[MRCProbe]) + bytes(24)), type=PROBE_REPLY)
    assert settled(bench, longer)["reply_seq"] == 1
    ask = bench.arriving("h2", 5, Raw(bytes(request(bench)[MRCProbe]) + bytes(24)), type=PROBE_REQUEST)
    verdict, out = bench.pop("tc", ask, 1)
    assert (verdict, len(out)) == ("redirect", len(bytes(request(bench))))
