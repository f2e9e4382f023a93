# SPDX-License-Identifier: BSD-2-Clause
"""Tests ICMPv6 errors of the fabric: the quoted packet is evidence against its EV, and against no other."""

import socket
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
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
from tests.packet.reports import others, state
from tests.packet.rig import H2, H5, SLOTS, Bench, all_encapsulations, nic_mac, wire_mac
from tests.packet.wires import Frame, changed

pytestmark = pytest.mark.root

INNER = IP(src="10.99.0.1", dst="10.99.0.3") / UDP(sport=1, dport=2) / Raw(b"x" * 100)
ROUTER = "fd10:0:0:1::ffff"
ICMP_ERROR = (EvState.ASSUMED_BAD, Reason.ICMP_ERROR)


def sent(bench: Bench, ev: int = 5, peer: int = H2, *, probe: bool = False, **mrc: int) -> Packet:
    """Returns a packet that this host has just sent on an EV, as its tables show it."""
    record = bench.ev(peer, ev)
    record["tx_packets"], bench.tables.auths["sent"][peer] = 100, 50
    content: Packet = MRCProbe(seq=50, tx_ns=now()) if probe else INNER
    return bench.sent(peer, ev, content, **{"seq": 50 if probe else 99, "tx_ns": now(), **mrc})


def error(bench: Bench, quoted: Packet | bytes, kind: Packet | None = None, plane: int = 1, vlan: int = 0) -> bytes:
    """Returns the error of a switch that cannot forward a packet."""
    quote = bytes(quoted[IPv6]) if isinstance(quoted, Packet) else quoted
    frame = Ether(src=wire_mac(plane), dst=nic_mac(plane))
    if vlan:
        frame /= Dot1Q(vlan=vlan)
    frame /= IPv6(src=ROUTER, dst=str(bench.plan.addresses[plane]), hlim=63)
    return bytes(frame / (kind or ICMPv6DestUnreach(code=0)) / Raw(quote))


def passes(bench: Bench, frame: bytes, plane: int = 1) -> None:
    """Asserts that the stack gets the frame unchanged."""
    assert bench.pop("tc", frame, plane) == ("pass", frame)
    assert bench.drops() == {}


def changes_nothing(bench: Bench, frame: bytes, plane: int = 1) -> None:
    """Asserts that the frame goes to the stack and changes no state."""
    before = bench.counted()
    passes(bench, frame, plane)
    assert bench.counted() == before


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
    assert (event["host_id"], event["ev"], event["before"], event["after"]) == (
        H2,
        5,
        EvState.GOOD,
        EvState.ASSUMED_BAD,
    )
    assert (event["reason"], event["icmp_type"], event["icmp_code"]) == (Reason.ICMP_ERROR, *numbers)
    assert (event["silent_ns"] >= MS, bench.ev(H2, 5)["flaps"]) == (True, 1)


@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("left", [2, 1, 0])
def test_the_quoted_srh_may_have_any_segments_left(bench: Bench, left: int) -> None:
    quoted = changed(sent(bench), IPv6ExtHdrSegmentRouting, segleft=left)
    quoted[IPv6].dst = "5f00::1"
    passes(bench, error(bench, quoted))
    assert state(bench, 5) == ICMP_ERROR


def test_the_quoted_carrier_may_be_shifted(bench: Bench) -> None:
    passes(bench, error(bench, changed(sent(bench), IPv6, dst="5f00:0:4801:c400::", hlim=1, tc=3)))
    assert state(bench, 5) == ICMP_ERROR


@all_encapsulations
def test_a_quote_may_end_with_the_mrc_header(bench: Bench) -> None:
    """With a shorter SRH than the longest, the packet is shorter than the most bytes that are read."""
    frame = error(bench, sent(bench))
    passes(bench, frame[: len(frame) - len(INNER)])
    assert state(bench, 5) == ICMP_ERROR


@all_encapsulations
def test_a_shorter_quote_changes_nothing(bench: Bench) -> None:
    for length in range(54, len(error(bench, sent(bench))) - len(INNER)):
        changes_nothing(
            bench, error(bench, sent(bench))[:length]
        )  # a new packet each time, since errors about old packets are ignored
    passes(bench, error(bench, sent(bench)))
    assert state(bench, 5) == ICMP_ERROR


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
    inlet = bench.attach_pop(1, "ipv6")
    quoted = sent(bench)
    inlet.send(error(bench, quoted, vlan=vlan))
    # No interface here has that tag, so the stack sees a packet of another host.
    kind = socket.PACKET_OTHERHOST if vlan else socket.PACKET_HOST
    assert inlet.frames() == [Frame(error(bench, quoted), kind=kind)]
    assert state(bench, 5) == ICMP_ERROR


# ---- forged ones ----


def _forged(bench: Bench) -> dict[str, Packet]:
    at = now()
    sent(bench, 9)  # the counters of that EV agree with the quote
    true = sent(bench)
    probe = sent(bench, probe=True)
    fields: dict[str, tuple[type[Packet], dict[str, Any]]] = {
        "another version": (MRC, {"version": 1}),
        "no type": (MRC, {"type": 0}),
        "a reply": (MRC, {"type": PROBE_REPLY}),
        "of another host": (MRC, {"sender": H5}),
        "to a host that is not there": (MRC, {"receiver": 3}),
        "to a host beyond the tables": (MRC, {"receiver": 65535}),
        "an EV that is not there": (MRC, {"ev": 16}),
        "an EV beyond all": (MRC, {"ev": 65535}),
        "an EV of another plane": (MRC, {"ev": 9}),
        "not sent yet": (MRC, {"seq": 100}),
        "sent long ago": (MRC, {"seq": (100 - 1 - 65536) % 2**32}),
        "another sequence": (MRC, {"seq": 2**31}),
        "a second old": (MRC, {"tx_ns": at - 1001 * MS}),
        "never sent": (MRC, {"tx_ns": 0}),
        "from the future": (MRC, {"tx_ns": at + 10**12}),
        "from another source": (IPv6, {"src": str(bench.plan.addresses[2])}),
        "to another port": (UDP, {"dport": 4796}),
        "not UDP": (IPv6, {"nh": 6}),
    }
    made = {name: changed(true, layer, **values) for name, (layer, values) in fields.items()}
    made |= {
        "a probe that was not sent yet": changed(probe, MRC, seq=51),
        "a probe of long ago": changed(probe, MRC, seq=(50 - 65536) % 2**32),
    }
    return made


def test_forged_quotes_change_nothing(bench: Bench) -> None:
    for name, quoted in _forged(bench).items():
        before = bench.counted()
        passes(bench, error(bench, quoted))
        assert bench.counted() == before, name
    passes(bench, error(bench, sent(bench)))
    assert state(bench, 5) == ICMP_ERROR


@pytest.mark.parametrize("seq", [99, 100 - 65536])
def test_only_quotes_within_the_sequence_window_count(bench: Bench, seq: int) -> None:
    passes(bench, error(bench, sent(bench, seq=seq % 2**32)))
    assert state(bench, 5) == ICMP_ERROR


def test_the_sequence_window_wraps(bench: Bench) -> None:
    quoted = sent(bench, seq=2**32 - 1)
    bench.ev(H2, 5)["tx_packets"] = 2**32 + 10
    passes(bench, error(bench, quoted))
    assert state(bench, 5) == ICMP_ERROR


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
    quote = bytes(sent(bench)[IPv6])
    head = bytes(kind)[:4].ljust(8, b"\0")
    frame = bytearray(error(bench, quote))
    frame[54:62] = head
    changes_nothing(bench, bytes(frame))


def test_errors_to_other_addresses_change_nothing(bench: Bench) -> None:
    frame = bytearray(error(bench, sent(bench)))
    frame[53] ^= 1  # the last byte of the destination
    changes_nothing(bench, bytes(frame))
    changes_nothing(bench, error(bench, sent(bench)), plane=2)  # arrives on another NIC


@pytest.mark.parametrize("bench", ["srh"], indirect=True)
@pytest.mark.parametrize("length", [11, 12, 255])
def test_a_quote_with_a_longer_srh_changes_nothing(bench: Bench, length: int) -> None:
    quoted = bytearray(bytes(sent(bench)[IPv6]))
    quoted[41] = length
    changes_nothing(bench, error(bench, bytes(quoted).ljust(1200, b"\0")))


# ---- rate limit ----


def test_one_error_per_millisecond_and_peer_is_handled(bench: Bench) -> None:
    quoted = [sent(bench, ev) for ev in range(SLOTS, 2 * SLOTS)]
    passes(bench, error(bench, quoted[0]))
    bench.reports(H2)["icmp_ns"] = now() + 1000 * MS  # only just
    for packet in quoted[1:]:
        changes_nothing(bench, error(bench, packet))
    assert bench.usable(H2) == others(SLOTS)
    passes(bench, error(bench, sent(bench, 5, H5)))  # another peer
    assert bench.ev(H5, 5)["state"] == EvState.ASSUMED_BAD
    bench.reports(H2)["icmp_ns"] = now() - MS
    passes(bench, error(bench, quoted[1]))
    assert bench.usable(H2) == others(SLOTS, SLOTS + 1)


def test_forged_errors_do_not_use_up_the_rate_limit(bench: Bench) -> None:
    quoted = sent(bench)
    for _ in range(5):
        changes_nothing(bench, error(bench, changed(quoted, MRC, seq=100)))
    passes(bench, error(bench, quoted))
    assert state(bench, 5) == ICMP_ERROR


def test_an_error_about_a_diagnostic_probe_fails_no_ev(bench: Bench) -> None:
    changes_nothing(bench, error(bench, sent(bench, probe=True, flags=DIAGNOSTIC)))


@pytest.mark.parametrize("probe", [False, True], ids=["data", "probe"])
def test_an_error_from_the_peer_itself_fails_no_ev(bench: Bench, probe: bool) -> None:
    """The quoted packet arrived: a detached peer has no route for it."""
    frame = bytearray(error(bench, sent(bench, probe=probe)))
    frame[22:38] = bench.peer(H2)["address"][1].tobytes()
    changes_nothing(bench, bytes(frame))
    frame[22:38] = bench.peer(H2)["address"][2].tobytes()  # on another plane it would not arrive
    passes(bench, bytes(frame))
    assert state(bench, 5) == ICMP_ERROR
