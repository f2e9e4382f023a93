# SPDX-License-Identifier: BSD-2-Clause
"""Tests how mrc_pop answers probe requests: the reply has this host's counts, and takes an EV of its choice."""

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import DIAGNOSTIC, MRC, PROBE_REPLY, PROBE_REQUEST, MRCCount, MRCProbe, MRCReport
from mrcd.kernel import abi
from mrcd.kernel.enums import EvState
from tests.packet.clock import now
from tests.packet.packets import EVS, H2, SLOTS, all_encapsulations
from tests.packet.reports import GENERATION
from tests.packet.rig import Bench, Setup, dropped
from tests.packet.wires import changed

pytestmark = pytest.mark.root

BALLAST = bytes(range(100, 100 + abi.BALLAST))


def request(
    bench: Bench, ev: int = 5, *, tail: bytes | None = None, sent_ns: int | None = None, vlan: int = 0, **probe: int
) -> Packet:
    """Returns a probe request of host h2 that has just arrived, followed by `tail`, or by the room for `counts`."""
    sent_ns = now() if sent_ns is None else sent_ns
    fields = {"seq": 1, "plane_mask": 0xF, "generation": GENERATION, "tx_ns": sent_ns, **probe}
    if tail is None:
        tail = BALLAST + bytes(8 * fields["counts"]) if fields.get("counts") else b""
    content = Raw(bytes(MRCProbe(**fields)) + tail)
    return bench.arriving("h2", ev, content, type=PROBE_REQUEST, seq=fields["seq"], tx_ns=sent_ns, vlan=vlan)


def answered(bench: Bench, frame: Packet) -> Packet:
    """Asserts each byte of the reply to a request without a report. Returns it dissected."""
    mrc, content = frame[MRC], bytes(frame[MRC].payload)
    verdict, out = bench.pop("tc", frame, mrc.ev // SLOTS)
    assert verdict == "redirect"
    reply = Ether(out)
    assert reply[MRC].tx_ns == now()
    probe, rest = MRCProbe(content[:32]), content[32:]
    for name, value in bench.told().items():
        setattr(probe, name, value)
    path = reply[UDP].sport - abi.SPORT_BASE
    fields = {"type": PROBE_REPLY, "ev": mrc.ev, "seq": mrc.seq, "tx_ns": reply[MRC].tx_ns, "flags": int(mrc.flags)}
    assert out == bytes(bench.sent(H2, path, Raw(bytes(probe) + rest), **fields))
    return reply


# ---- the answer ----


@all_encapsulations
def test_a_request_is_answered_with_the_right_bytes(bench: Bench) -> None:
    bench.tables.node["status"] = abi.STATUS_DETACHED
    for ev in range(EVS):
        reply = answered(bench, request(bench, ev, seq=2**32 - 1, report_seq=77))
        assert (reply[MRC].ev, reply[MRC].sender, reply[MRC].receiver) == (ev, 0, H2)
        assert (reply[MRC].seq, reply[MRCProbe].seq, reply[MRCProbe].report_seq) == (2**32 - 1, 2**32 - 1, 77)
        assert bench.tables.rxs["probes"][H2, ev] == 1
    assert bench.drops() == {}
    assert not bench.tables.path_stats["replies"].any()


@all_encapsulations
@pytest.mark.parametrize(("first", "counts"), [(0, EVS), (0, 1), (7, 9), (15, 1)])
def test_a_report_has_the_exact_counts(bench: Bench, first: int, counts: int) -> None:
    rxs = bench.tables.rxs[H2]
    rxs["packets"] = [2**40 + 100 * ev for ev in range(EVS)]
    rxs["probes"] = [2**16 + 7 * ev for ev in range(EVS)]
    rxs["ce"] = [2**16 - 1 + ev for ev in range(EVS)]
    _, out = bench.pop("tc", request(bench, 5, first=first, counts=counts, report_seq=3), 1)
    reply = Ether(out)
    assert [(c.packets, c.probes, c.ce) for c in reply[MRCReport].records] == [
        ((2**40 + 100 * ev) % 2**32, 7 * ev + (ev == 5), (ev - 1) % 2**16)  # this request included
        for ev in range(first, first + counts)
    ]
    assert (reply[MRCProbe].report_seq, reply[MRCProbe].first, reply[MRCProbe].counts) == (3, first, counts)
    assert reply[MRCReport].ballast == BALLAST
    assert bench.drops() == {}


@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("counts", [0, EVS])
@pytest.mark.parametrize("length", [0, 24, 88])
def test_a_reply_may_need_an_srh_of_another_length(bench: Bench, length: int, counts: int) -> None:
    """The request has the room for the longest SRH."""
    bench.tables.rxs["packets"][H2] = range(EVS)
    room = bytes(abi.SRH_MAX - int(bench.ev(H2, 5)["srh_len"]))
    bench.tables.evs["srh_len"][H2] = length
    tail = BALLAST + bytes(8 * counts) + room if counts else room
    frame = request(bench, 5, counts=counts, tail=tail)
    verdict, out = bench.pop("tc", frame, 1)
    assert (verdict, len(out), bench.drops()) == ("redirect", len(bytes(frame)), {})
    ip6 = IPv6(out[14:54])
    at = 54 + length + 8
    assert (ip6.plen, ip6.nh) == (len(out) - 54, 43 if length else 17)
    assert out[54 : 54 + length] == bench.tables.srhs["bytes"][H2 * EVS + ip6.fl].tobytes()[:length]
    mrc = MRC(out[at:])
    assert (mrc.type, mrc.ev, mrc[MRCProbe].counts) == (PROBE_REPLY, 5, counts)
    if counts:
        assert [c.packets for c in mrc[MRCReport].records] == list(range(EVS))


@pytest.mark.parametrize("bench", [Setup(evs=256)], indirect=True)
def test_replies_visit_all_evs_of_a_peer_with_a_partly_filled_table(bench: Bench) -> None:
    ways = [Ether(bench.pop("tc", request(bench, 65, seq=seq), 1)[1])[IPv6].fl for seq in range(8)]
    assert sorted(ways) == [64, 64, 65, 65, 66, 66, 67, 67]


def test_replies_use_usable_evs_only(bench: Bench) -> None:
    bench.set_state(H2, EvState.DENIED, 5, 7)
    ways = {answered(bench, request(bench, 5, seq=seq))[IPv6].fl for seq in range(8)}
    assert ways == {4, 6}


def test_without_a_usable_ev_the_reply_takes_the_mirror_of_the_path(bench: Bench) -> None:
    bench.set_state(H2, EvState.DENIED, *range(EVS))
    for ev in range(EVS):
        assert answered(bench, request(bench, ev))[IPv6].fl == ev


def test_a_request_on_an_ev_without_a_mirror_is_not_answered(bench: Bench) -> None:
    """The peer has a path that this host lacks, and no other EV is usable."""
    bench.set_state(H2, EvState.DENIED, *range(EVS))
    bench.ev(H2, 5)["configured"] = 0
    dropped(bench, request(bench, 5), "reply_failed", 1, counts=True)


@all_encapsulations
@pytest.mark.parametrize("vlan", [0, 100])
def test_a_real_reply_leaves_by_the_nic_the_request_came_by(bench: Bench, vlan: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    inlet, wires = bench.attach_pop(1, 6), bench.wires()
    sent = request(bench, 5, vlan=vlan, seq=2, counts=EVS)
    inlet.send(sent)
    found = [wire.frames() for wire in wires]
    assert [len(frames) for frames in found] == [0, 1, 0, 0]
    (frame,) = found[1]
    reply = Ether(frame.data)
    assert frame.vlan == (vlan or None)
    probe = MRCProbe(seq=2, tx_ns=sent[MRC].tx_ns, counts=EVS, **bench.told())
    report = MRCReport(ballast=BALLAST, records=[MRCCount(probes=int(ev == 5)) for ev in range(EVS)])
    fields = {"type": PROBE_REPLY, "ev": 5, "seq": 2, "tx_ns": reply[MRC].tx_ns}
    assert frame.data == bytes(bench.sent(H2, reply[IPv6].fl, probe / report, **fields))
    assert bench.drops() == {}


# ---- malformed requests ----


@pytest.mark.parametrize("kind", [PROBE_REQUEST, PROBE_REPLY])
@pytest.mark.parametrize("padding", [0, 100])
def test_probes_with_short_length_fields_are_dropped(bench: Bench, kind: int, padding: int) -> None:
    """Bytes behind the end of the UDP payload do not belong to the probe."""
    probe = bytes(request(bench)[MRC].payload)
    for length in (0, 1, len(probe) - 1):
        frame = bytes(bench.arriving("h2", 5, Raw(probe[:length]), type=kind))
        dropped(bench, frame + (probe[length:] + bytes(padding) if padding else b""), "truncated", 1)


@pytest.mark.parametrize("bench", ["srh"], indirect=True)
def test_a_request_for_a_report_that_is_shorter_than_the_headers_of_its_reply_is_dropped(bench: Bench) -> None:
    """It came by a path without an SRH."""
    frame = request(bench, counts=1, tail=b"")
    ip = changed(frame, IPv6, nh=17, plen=None)[IPv6]
    ip.remove_payload()
    dropped(bench, Ether(src=frame.src, dst=frame.dst) / ip / frame[UDP], "bad_probe", 1, counts=True)


@all_encapsulations
@pytest.mark.parametrize("counts", [1, EVS])
def test_requests_without_room_for_their_report_are_dropped(bench: Bench, counts: int) -> None:
    whole = bytes(request(bench, counts=counts))
    for length in range(1, abi.BALLAST + 8 * counts + 1):
        frame = Ether(whole[:-length])
        frame[IPv6].plen, frame[UDP].len = frame[IPv6].plen - length, frame[UDP].len - length
        dropped(bench, frame, "bad_probe", 1, counts=True)
    assert bench.pop("tc", whole, 1)[0] == "redirect"


# ---- diagnostic probes ----


@all_encapsulations
def test_a_diagnostic_request_is_answered_and_counted_nowhere(bench: Bench) -> None:
    before = bench.counted()
    frame = request(bench, 5, plane_mask=0, status=abi.STATUS_DETACHED, report_seq=77)
    frame[MRC].flags = DIAGNOSTIC
    reply = answered(bench, frame)
    assert (reply[MRC].flags, reply[MRCProbe].report_seq) == (DIAGNOSTIC, 77)
    assert (bench.counted() == before, bench.drops()) == (True, {})


@pytest.mark.parametrize("sender", ["h2", "h0"])
def test_a_diagnostic_reply_changes_nothing(bench: Bench, sender: str) -> None:
    """A reply of h2, and a packet of this host that a switch returned. Packet sockets are behind XDP, before tc."""
    before = bench.counted()
    content = Raw(bytes(MRCProbe(seq=1, generation=GENERATION, tx_ns=now())))
    back = bench.arriving("h2", 5, content, type=PROBE_REPLY, seq=1, tx_ns=now())
    back[MRC].flags = DIAGNOSTIC
    if sender == "h0":
        back[IPv6].src, back[MRC].sender = str(bench.plan.addresses[1]), 0
    assert bench.pop_xdp(bytes(back), bench.ifindex["n1"]) == ("pass", bytes(back))
    assert bench.pop("tc", back, 1)[0] == "drop"
    assert (bench.counted() == before, bench.drops()) == (True, {})
