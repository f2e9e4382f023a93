# SPDX-License-Identifier: BSD-2-Clause
"""Tests the tags of packets: what a forged, foreign or recorded packet changes, which is nothing but a drop count.

tagging.py makes the tags.
"""

from collections.abc import Callable

import pytest
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.fabric.wire import DIAGNOSTIC, MRC, PROBE_REPLY, MRCProbe, MRCReport
from mrcd.kernel import abi
from mrcd.kernel.enums import AuthMode, EvState
from tests.packet.arrivals import both_hooks
from tests.packet.clock import MS, advance, now
from tests.packet.cluster import ALL_PLANES, EVS, H0, H1, H2, SLOTS, all_encapsulations, datagram, nic_mac, wire_mac
from tests.packet.reports import GENERATION, NEVER
from tests.packet.rig import Bench, Hook
from tests.packet.tagging import (
    CLOCK_AHEAD_NS,
    EV,
    NEW,
    OLD,
    PLANE,
    S,
    accepts,
    authenticate,
    data,
    own_request,
    refuses,
    reply_to,
    request,
    tag_of,
    tagged,
    written,
)

pytestmark = pytest.mark.root


# ---- what this host sends ----


@all_encapsulations
@pytest.mark.parametrize("version", [4, 6])
def test_pushed_data_has_the_tag_of_an_independent_siphash(bench: Bench, version: int) -> None:
    authenticate(bench)
    for _ in range(EVS):
        _, out = bench.push(datagram(H0, H2, version))
        packet = Ether(out)
        assert (packet[MRC].key_id, packet[MRC].auth) == (7, tag_of(packet, OLD, H0, H2))


def test_without_authentication_packets_have_no_tag(bench: Bench) -> None:
    _, out = bench.push(datagram(H0, H2))
    assert (Ether(out)[MRC].key_id, Ether(out)[MRC].auth) == (0, 0)
    assert own_request(bench)[MRC].auth == 0


def test_a_request_is_tagged_and_names_the_accepted_keys(bench: Bench) -> None:
    authenticate(bench, AuthMode.REQUIRED, OLD, NEW)
    packet = own_request(bench)
    assert (packet[MRC].key_id, packet[MRC].auth) == (7, tag_of(packet, OLD, H0, H2))
    assert list(packet[MRCProbe].key_ids) == [7, 8]


@all_encapsulations
@pytest.mark.parametrize("counts", [0, 1, EVS])
def test_a_reply_is_tagged_with_its_counts(bench: Bench, counts: int) -> None:
    authenticate(bench)
    bench.tables.rxs["packets"][H2] = range(100, 100 + EVS)
    verdict, out = bench.pop("tc", tagged(request(bench, counts=counts)), PLANE)
    reply = Ether(out)
    assert (verdict, reply[MRC].type, reply[MRC].key_id) == ("redirect", PROBE_REPLY, 7)
    assert reply[MRC].auth == tag_of(reply, OLD, H0, H2)
    if counts:
        assert [c.packets for c in reply[MRCReport].records] == list(range(100, 100 + counts))


# ---- data ----


@both_hooks
@pytest.mark.parametrize("mode", [AuthMode.PERMISSIVE, AuthMode.REQUIRED])
def test_tagged_data_is_delivered(bench: Bench, hook: Hook, mode: AuthMode) -> None:
    authenticate(bench, mode)
    accepts(bench, tagged(data(bench)), hook)
    assert bench.rx(H2, EV)[0] == 1
    assert bench.tables.auths["untagged"][H2] == 0


@both_hooks
@pytest.mark.parametrize(
    ("field", "value"),
    [("seq", 99), ("segments", 3), ("tx_ns", None), ("ev", EV + 1), ("flags", 1), ("auth", None)],
    ids=lambda x: str(x),
)
def test_each_field_of_the_header_is_under_the_tag(bench: Bench, hook: Hook, field: str, value: int | None) -> None:
    authenticate(bench)
    packet = tagged(data(bench))
    setattr(packet[MRC], field, getattr(packet[MRC], field) ^ 1 if value is None else value)
    refuses(bench, packet, "bad_tag", hook)


@both_hooks
def test_untagged_data_is_dropped_if_a_tag_is_required(bench: Bench, hook: Hook) -> None:
    authenticate(bench)
    refuses(bench, data(bench), "untagged", hook)


@both_hooks
def test_untagged_data_is_counted_if_tags_are_permissive(bench: Bench, hook: Hook) -> None:
    authenticate(bench, AuthMode.PERMISSIVE)
    accepts(bench, data(bench), hook)
    assert bench.tables.auths["untagged"][H2] == 1


def test_an_untagged_segment_that_xdp_leaves_to_tc_is_counted_once(bench: Bench) -> None:
    authenticate(bench, AuthMode.PERMISSIVE)
    accepts(bench, data(bench, segments=3), "xdp")
    assert bench.tables.auths["untagged"][H2] == 1


@both_hooks
def test_a_wrong_tag_is_dropped_even_if_tags_are_permissive(bench: Bench, hook: Hook) -> None:
    authenticate(bench, AuthMode.PERMISSIVE)
    packet = tagged(data(bench))
    packet[MRC].auth ^= 1
    refuses(bench, packet, "bad_tag", hook)


@both_hooks
def test_a_key_that_this_host_does_not_have_is_named(bench: Bench, hook: Hook) -> None:
    authenticate(bench)
    refuses(bench, tagged(data(bench), NEW), "unknown_key", hook)


@both_hooks
@pytest.mark.parametrize(("sender", "receiver"), [(H1, H0), (H0, H2), (H2, H1)])
def test_the_key_of_another_pair_or_direction_is_refused(bench: Bench, hook: Hook, sender: int, receiver: int) -> None:
    authenticate(bench)
    refuses(bench, tagged(data(bench), OLD, sender, receiver), "bad_tag", hook)


@both_hooks
@pytest.mark.parametrize("ago_ns", [600 * MS, 3600 * S, -200 * MS])
def test_recorded_data_is_stale(bench: Bench, hook: Hook, ago_ns: int) -> None:
    authenticate(bench)
    refuses(bench, tagged(data(bench, ago_ns)), "stale", hook)


@both_hooks
def test_data_of_the_last_moments_is_delivered(bench: Bench, hook: Hook) -> None:
    authenticate(bench)
    for ago_ns in (0, MS, 300 * MS):
        accepts(bench, tagged(data(bench, ago_ns)), hook)


@both_hooks
def test_both_secrets_are_accepted_during_a_rotation(bench: Bench, hook: Hook) -> None:
    authenticate(bench, AuthMode.REQUIRED, OLD, NEW)
    accepts(bench, tagged(data(bench), OLD), hook)
    accepts(bench, tagged(data(bench), NEW), hook)


# ---- requests ----


def test_a_forged_plane_mask_changes_nothing(bench: Bench) -> None:
    authenticate(bench)
    packet = request(bench, plane_mask=0)
    refuses(bench, packet, "untagged")
    packet[MRC].key_id, packet[MRC].auth = OLD.key_id, 12345
    refuses(bench, packet, "bad_tag")
    assert bench.peer(H2)["plane_mask"] & ALL_PLANES == ALL_PLANES


def test_without_authentication_a_forged_plane_mask_is_believed(bench: Bench) -> None:
    bench.pop("tc", request(bench, plane_mask=0), PLANE)
    assert bench.peer(H2)["plane_mask"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("plane_mask", 0), ("status", 1), ("generation", 3), ("first", 1), ("counts", 2), ("report_seq", 9)],
)
def test_each_field_of_a_request_is_under_the_tag(bench: Bench, field: str, value: int) -> None:
    authenticate(bench)
    genuine = tagged(request(bench, counts=1))
    forged = request(bench, **{"counts": 1, field: value})
    forged[MRC].tx_ns = genuine[MRC].tx_ns
    forged[MRC].key_id, forged[MRC].auth = OLD.key_id, genuine[MRC].auth
    refuses(bench, forged, "bad_tag")


def test_a_request_is_believed_once(bench: Bench) -> None:
    authenticate(bench)
    packets = {seq: tagged(request(bench, seq)) for seq in (60, 61, 62, 80)}
    for seq in (61, 60, 80, 62):  # 60 and 62 are overtaken
        assert bench.pop("tc", packets[seq], PLANE)[0] == "redirect"
    assert bench.tables.rxs["probes"][H2, EV] == 4
    for packet in packets.values():
        refuses(bench, packet, "replayed")
    assert bench.pop("tc", tagged(request(bench, 9 + 32 * abi.REPLAY_WORDS)), PLANE)[0] == "redirect"
    refuses(bench, tagged(request(bench, 9)), "replayed")  # too old to tell


def test_a_request_of_the_tables_before_is_not_believed(bench: Bench) -> None:
    authenticate(bench)
    old = tagged(request(bench, 30, plane_mask=0))
    advance(1)
    assert bench.pop("tc", tagged(request(bench, 1, generation=GENERATION + 1)), PLANE)[0] == "redirect"
    refuses(bench, old, "stale")
    assert bench.peer(H2)["generation"] == GENERATION + 1


def test_recorded_requests_are_stale(bench: Bench) -> None:
    authenticate(bench)
    refuses(bench, tagged(request(bench, ago_ns=S)), "stale")


def is_report_due(bench: Bench) -> bool:
    """Returns whether the tick is to request a report from h2 at once."""
    watch = bench.tables.watches[H2]
    return (int(watch["due_ns"]), int(watch["announce"])) == (0, 1)


@both_hooks
@pytest.mark.parametrize("make", [data, request])
def test_a_report_is_requested_from_a_peer_whose_clock_restarted(
    bench: Bench, hook: Hook, make: Callable[..., Packet]
) -> None:
    authenticate(bench)
    bench.tables.watches["due_ns"][H2] = NEVER
    for ago_ns, is_due in ((-S, False), (30 * MS, True)):
        bench.peer(H2)["heard_ns"] = now() - ago_ns
        assert bench.pop(hook, tagged(make(bench, ago_ns=1000 * S)), PLANE)[0] == "drop"
        assert is_report_due(bench) == is_due
    assert bench.drops() == {"stale": 2}


@both_hooks
def test_data_is_refused_until_the_peers_clock_is_known(bench: Bench, hook: Hook) -> None:
    """It may have been recorded before this host started."""
    authenticate(bench)
    bench.tables.auths["clock_ns"][H2] = bench.peer(H2)["heard_ns"] = 0
    bench.tables.watches["due_ns"][H2] = NEVER
    assert bench.pop(hook, tagged(data(bench)), PLANE)[0] == "drop"
    assert (bench.drops(), is_report_due(bench)) == ({"stale": 1}, True)


@both_hooks
def test_a_roll_out_loses_no_data_while_the_peers_clock_is_unknown(bench: Bench, hook: Hook) -> None:
    """Without a tag the same packet would pass, too."""
    authenticate(bench, AuthMode.PERMISSIVE)
    bench.tables.auths["clock_ns"][H2] = 0
    accepts(bench, tagged(data(bench)), hook)


def test_a_request_is_answered_but_not_believed_until_the_peers_clock_is_known(bench: Bench) -> None:
    authenticate(bench)
    bench.tables.auths["clock_ns"][H2] = bench.peer(H2)["heard_ns"] = 0
    bench.tables.watches["due_ns"][H2] = NEVER
    peer = bench.peer(H2).tobytes()
    packet = tagged(request(bench, plane_mask=0, generation=GENERATION + 1))
    for _ in range(2):  # it is not noted either: a recorded one must not make the peer's next ones old
        assert bench.pop("tc", packet, PLANE)[0] == "redirect"
    assert (bench.peer(H2).tobytes(), is_report_due(bench)) == (peer, True)
    assert not any(bench.tables.replays[H2].tobytes())


def test_a_diagnostic_request_is_answered_and_changes_nothing(bench: Bench) -> None:
    authenticate(bench)
    before = written(bench)
    packet = tagged(request(bench, flags=DIAGNOSTIC, plane_mask=0))
    verdict, out = bench.pop("tc", packet, PLANE)
    assert (verdict, written(bench)) == ("redirect", before)
    assert Ether(out)[MRC].auth == tag_of(Ether(out), OLD, H0, H2)
    refuses(bench, request(bench, flags=DIAGNOSTIC), "untagged")


# ---- replies ----


def deliver_reply(bench: Bench, packet: Packet) -> None:
    """Delivers a reply that must be believed."""
    drops = bench.drops()
    bench.pop("tc", packet, packet[MRC].ev // SLOTS)
    assert bench.drops() == drops


def refuses_reply(bench: Bench, packet: Packet, reason: str) -> None:
    """As refuses(), on the plane of the reply."""
    drops, before = bench.drops(), written(bench)
    bench.pop("tc", packet, packet[MRC].ev // SLOTS)
    assert bench.drops() == {**drops, reason: drops.get(reason, 0) + 1}
    assert written(bench) == before


def test_a_reply_is_believed_once_and_tells_the_clock(bench: Bench) -> None:
    authenticate(bench)
    bench.tables.auths["clock_ns"][H2] = 0
    packet = tagged(reply_to(bench, own_request(bench)))
    deliver_reply(bench, packet)
    error = int(bench.tables.auths["clock_ns"][H2]) - CLOCK_AHEAD_NS
    assert 0 <= error < 100 * MS
    assert bench.reports(H2)["applied_seq"] == bench.reports(H2)["report_seq"]
    refuses_reply(bench, packet, "replayed")


def test_a_reply_of_the_tables_before_does_not_hide_the_next_ones(bench: Bench) -> None:
    """Numbers of probes begin anew with new tables."""
    authenticate(bench)
    sent = own_request(bench)
    old = reply_to(bench, sent)
    old[MRC].seq += 5000
    refuses_reply(bench, tagged(old), "unsolicited_reply")
    deliver_reply(bench, tagged(reply_to(bench, sent)))


@pytest.mark.parametrize("change", ["counts", "plane_mask", "clock"])
def test_what_a_reply_says_is_under_the_tag(bench: Bench, change: str) -> None:
    authenticate(bench)
    sent = own_request(bench)
    genuine = tagged(reply_to(bench, sent))
    mask = 0 if change == "plane_mask" else ALL_PLANES
    forged = reply_to(bench, sent, packets=9 if change == "counts" else 0, plane_mask=mask)
    forged[MRC].tx_ns = genuine[MRC].tx_ns + (change == "clock")
    forged[MRC].key_id, forged[MRC].auth = OLD.key_id, genuine[MRC].auth
    refuses_reply(bench, forged, "bad_tag")


def test_an_old_reply_is_stale(bench: Bench) -> None:
    authenticate(bench)
    packet = reply_to(bench, own_request(bench))
    content = MRCProbe(bytes(packet[MRC].payload)[:32])
    content.tx_ns -= S
    packet[MRC].payload = Raw(bytes(content) + bytes(packet[MRC].payload)[32:])
    refuses_reply(bench, tagged(packet), "stale")


# ---- ICMPv6 errors ----


def icmp_error(bench: Bench, quoted: Packet) -> bytes:
    """Returns a switch's error that quotes a packet of this host."""
    frame = Ether(src=wire_mac(PLANE), dst=nic_mac(PLANE))
    frame /= IPv6(src="fd10:0:0:1::ffff", dst=str(bench.plan.addresses[PLANE]), hlim=63)
    return bytes(frame / ICMPv6DestUnreach(code=0) / Raw(bytes(quoted[IPv6])))


def own_data(bench: Bench) -> Packet:
    """Returns a packet that this host has sent on the EV."""
    while True:
        packet = Ether(bench.push(datagram(H0, H2))[1])
        if packet[MRC].ev == EV:
            return packet


@pytest.mark.parametrize("make", [own_data, own_request], ids=["data", "probe"])
def test_an_error_counts_only_if_it_quotes_the_tag_of_this_host(bench: Bench, make: Callable[[Bench], Packet]) -> None:
    authenticate(bench)
    bench.tables.reports["cursor"][H2] = PLANE + 4 * (EV % SLOTS)  # the EV of the next report
    sent = make(bench)
    number = sent[MRC].ev
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    forged = sent.copy()
    forged[MRC].auth ^= 1
    ifindex_plane = number // SLOTS
    assert ifindex_plane == PLANE
    bench.pop("tc", icmp_error(bench, forged), PLANE)
    assert bench.ev(H2, number)["state"] == EvState.GOOD
    bench.pop("tc", icmp_error(bench, sent), PLANE)
    assert bench.ev(H2, number)["state"] == EvState.ASSUMED_BAD
