# SPDX-License-Identifier: BSD-2-Clause
"""Tests ICMPv6 errors of the fabric: the quoted packet is evidence against its EV, and against no other."""

import socket
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    ICMPv6ParamProblem,
    ICMPv6TimeExceeded,
    ICMPv6Unknown,
    IPv6,
    IPv6ExtHdrSegmentRouting,
)
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import DIAGNOSTIC, MRC, PROBE_REPLY, MRCProbe
from mrcd.kernel.enums import EvState, Reason
from tests.packet.clock import MS, now
from tests.packet.packets import H0, H2, H5, SLOTS, all_encapsulations, datagram, nic_mac, wire_mac
from tests.packet.reports import others, state
from tests.packet.rig import Bench, untouched
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root

INNER = datagram(H0, H2)
ROUTER = "fd10:0:0:1::ffff"
ICMP_ERROR = (EvState.ASSUMED_BAD, Reason.ICMP_ERROR)


def sent(bench: Bench, ev: int = 5, peer: int = H2, *, probe: bool = False, **mrc: int) -> Packet:
    """Returns a packet that this host has just sent on an EV, as its tables show it."""
    record = bench.ev(peer, ev)
    record["tx_packets"], bench.tables.auths["sent"][peer] = 100, 50
    content: Packet = MRCProbe(seq=50, tx_ns=now()) if probe else INNER
    return bench.sent(peer, ev, content, **{"seq": 50 if probe else 99, "tx_ns": now(), **mrc})


def error(bench: Bench, quoted: Packet | bytes, kind: Packet | None = None, plane: int = 1, vlan: int = 0) -> bytes:
    quote = bytes(quoted[IPv6]) if isinstance(quoted, Packet) else quoted
    frame = Ether(src=wire_mac(plane), dst=nic_mac(plane))
    if vlan:
        frame /= Dot1Q(vlan=vlan)
    frame /= IPv6(src=ROUTER, dst=str(bench.plan.addresses[plane]), hlim=63)
    return bytes(frame / (kind or ICMPv6DestUnreach(code=0)) / Raw(quote))


def passes(bench: Bench, frame: bytes) -> None:
    """Asserts that the stack gets the frame unchanged."""
    assert (bench.pop("tc", frame, 1), bench.drops()) == (("pass", frame), {})


def fails_ev_5(bench: Bench, frame: bytes) -> None:
    passes(bench, frame)
    assert state(bench, 5) == ICMP_ERROR


@all_encapsulations
@pytest.mark.parametrize("probe", [False, True], ids=["data", "probe"])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (ICMPv6DestUnreach(code=0), (1, 0)),
        (ICMPv6DestUnreach(code=3), (1, 3)),
        (ICMPv6PacketTooBig(mtu=1400), (2, 0)),
        (ICMPv6TimeExceeded(code=0), (3, 0)),
    ],
    ids=["no route", "unreachable", "too big", "time exceeded"],
)
def test_an_error_fails_the_ev_of_the_quoted_packet(
    bench: Bench, kind: Packet, numbers: tuple[int, int], probe: bool
) -> None:
    bench.path_stats(H2, 5)["arrived_ns"] = now() - MS
    passes(bench, error(bench, sent(bench, probe=probe), kind))
    assert (state(bench, 5), bench.usable(H2)) == (ICMP_ERROR, others(5))
    (event,) = bench.dataplane.events()
    told = [int(event[name]) for name in ("host_id", "ev", "before", "after", "reason", "icmp_type", "icmp_code")]
    assert told == [H2, 5, EvState.GOOD, *ICMP_ERROR, *numbers]
    assert (event["silent_ns"] >= MS, bench.ev(H2, 5)["flaps"]) == (True, 1)


@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("left", [2, 1, 0])
def test_the_quoted_srh_may_have_any_segments_left(bench: Bench, left: int) -> None:
    quoted = changed(sent(bench), IPv6ExtHdrSegmentRouting, segleft=left)
    quoted[IPv6].dst = "5f00::1"
    fails_ev_5(bench, error(bench, quoted))


def test_the_quoted_carrier_may_be_shifted(bench: Bench) -> None:
    fails_ev_5(bench, error(bench, changed(sent(bench), IPv6, dst="5f00:0:4801:c400::", hlim=1, tc=3)))


@all_encapsulations
def test_a_quote_may_end_with_the_mrc_header(bench: Bench) -> None:
    """With a shorter SRH than the longest, the packet is shorter than the most bytes that are read."""
    frame = error(bench, sent(bench))
    fails_ev_5(bench, frame[: len(frame) - len(INNER)])


@all_encapsulations
def test_a_shorter_quote_changes_nothing(bench: Bench) -> None:
    whole = error(bench, sent(bench))
    for length in range(54, len(whole) - len(INNER)):
        untouched(bench, whole[:length], 1)
    fails_ev_5(bench, whole)


@pytest.mark.parametrize("was", [EvState.SKIP, EvState.UNKNOWN, EvState.ASSUMED_BAD, EvState.DENIED])
def test_an_error_fails_only_evs_in_use(bench: Bench, was: EvState) -> None:
    bench.set_state(H2, was, 5)
    passes(bench, error(bench, sent(bench)))
    in_use = was == EvState.SKIP
    assert (state(bench, 5)[0], len(bench.dataplane.events())) == (EvState.ASSUMED_BAD if in_use else was, int(in_use))


@pytest.mark.parametrize("vlan", [0, 100])
@all_encapsulations
def test_real_errors_are_handled_and_go_to_the_stack(bench: Bench, vlan: int) -> None:
    bench.tables.planes["vlan"][1] = vlan
    inlet = bench.attach_pop(1, 6)
    quoted = sent(bench)
    inlet.send(error(bench, quoted, vlan=vlan))
    # No interface here has that tag, so the stack sees a packet of another host.
    kind = socket.PACKET_OTHERHOST if vlan else socket.PACKET_HOST
    assert inlet.frames() == [Frame(error(bench, quoted), kind=kind)]
    assert state(bench, 5) == ICMP_ERROR


# ---- forged ones ----


FORGED: list[tuple[type[Packet], str, list[Any]]] = [
    (MRC, "version", [1]),
    (MRC, "type", [0, PROBE_REPLY]),
    (MRC, "sender", [H5]),
    (MRC, "receiver", [3, 65535]),  # not there, beyond the tables
    (MRC, "ev", [16, 65535, 9]),  # not there, beyond all, of another plane
    (MRC, "seq", [100, (100 - 1 - 65536) % 2**32, 2**31]),  # not sent yet, sent long ago, of another sequence
    (IPv6, "src", ["fd10:0:2:1::1"]),
    (IPv6, "nh", [6]),
    (UDP, "dport", [4796]),
]


def test_forged_quotes_change_nothing(bench: Bench) -> None:
    sent(bench, 9)  # the counters of that EV agree with the quote
    true, probe = sent(bench), sent(bench, probe=True)
    forged = [changed(true, layer, **{field: value}) for layer, field, values in FORGED for value in values]
    forged += [changed(true, MRC, tx_ns=ns) for ns in (0, now() - 1001 * MS, now() + 10**12)]
    forged += [changed(probe, MRC, seq=seq % 2**32) for seq in (51, 50 - 65536)]  # not sent yet, sent long ago
    for quoted in forged:
        untouched(bench, error(bench, quoted), 1)
    fails_ev_5(bench, error(bench, sent(bench)))


@pytest.mark.parametrize("seq", [99, 100 - 65536])
def test_only_quotes_within_the_sequence_window_count(bench: Bench, seq: int) -> None:
    fails_ev_5(bench, error(bench, sent(bench, seq=seq % 2**32)))


def test_the_sequence_window_wraps(bench: Bench) -> None:
    quoted = sent(bench, seq=2**32 - 1)
    bench.ev(H2, 5)["tx_packets"] = 2**32 + 10
    fails_ev_5(bench, error(bench, quoted))


@pytest.mark.parametrize(
    "kind",
    [
        ICMPv6ParamProblem(code=0),
        ICMPv6EchoRequest(),
        ICMPv6Unknown(type=0),
        ICMPv6Unknown(type=4),
        ICMPv6Unknown(type=255),
    ],
    ids=["parameter problem", "echo", "0", "4", "255"],
)
def test_other_icmp_types_change_nothing(bench: Bench, kind: Packet) -> None:
    frame = bytearray(error(bench, sent(bench)))
    frame[54:62] = bytes(kind)[:4].ljust(8, b"\0")
    untouched(bench, bytes(frame), 1)


def test_errors_to_other_addresses_change_nothing(bench: Bench) -> None:
    frame = bytearray(error(bench, sent(bench)))
    frame[53] ^= 1  # the last byte of the destination
    untouched(bench, bytes(frame), 1)
    untouched(bench, error(bench, sent(bench)), 2)  # arrives on another NIC


@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("length", [11, 12, 255])
def test_a_quote_with_a_longer_srh_changes_nothing(bench: Bench, length: int) -> None:
    quoted = bytearray(bytes(sent(bench)[IPv6]))
    quoted[41] = length
    untouched(bench, error(bench, bytes(quoted).ljust(1200, b"\0")), 1)


# ---- rate limit ----


def test_one_error_per_millisecond_and_peer_is_handled(bench: Bench) -> None:
    quoted = [sent(bench, ev) for ev in range(SLOTS, 2 * SLOTS)]
    passes(bench, error(bench, quoted[0]))
    bench.reports(H2)["icmp_ns"] = now() + 1000 * MS  # only just
    for packet in quoted[1:]:
        untouched(bench, error(bench, packet), 1)
    assert bench.usable(H2) == others(SLOTS)
    passes(bench, error(bench, sent(bench, 5, H5)))  # another peer
    assert bench.ev(H5, 5)["state"] == EvState.ASSUMED_BAD
    bench.reports(H2)["icmp_ns"] = now() - MS
    passes(bench, error(bench, quoted[1]))
    assert bench.usable(H2) == others(SLOTS, SLOTS + 1)


def test_forged_errors_do_not_use_up_the_rate_limit(bench: Bench) -> None:
    quoted = sent(bench)
    for _ in range(5):
        untouched(bench, error(bench, changed(quoted, MRC, seq=100)), 1)
    fails_ev_5(bench, error(bench, quoted))


def test_an_error_about_a_diagnostic_probe_fails_no_ev(bench: Bench) -> None:
    untouched(bench, error(bench, sent(bench, probe=True, flags=DIAGNOSTIC)), 1)


@pytest.mark.parametrize("probe", [False, True], ids=["data", "probe"])
def test_an_error_from_the_peer_itself_fails_no_ev(bench: Bench, probe: bool) -> None:
    """The quoted packet arrived: a detached peer has no route for it."""
    frame = bytearray(error(bench, sent(bench, probe=probe)))
    frame[22:38] = bench.peer(H2)["address"][1].tobytes()
    untouched(bench, bytes(frame), 1)
    frame[22:38] = bench.peer(H2)["address"][2].tobytes()  # on another plane it would not arrive
    fails_ev_5(bench, bytes(frame))
