# SPDX-License-Identifier: BSD-2-Clause
"""Tests the tags of packets: what a forged, foreign or recorded packet changes, which is nothing but a drop count."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from siphash24 import siphash24

from labkit.traffic.wire import DATA, DIAGNOSTIC, MRC, PROBE_REPLY, PROBE_REQUEST, MRCCount, MRCProbe, MRCReport
from mrcd.auth.keyring import Keyring, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.kernel import abi
from mrcd.kernel.enums import AuthMode, EvState
from tests.packet.clock import MS, advance, now
from tests.packet.packets import (
    ALL_PLANES,
    EVS,
    H0,
    H1,
    H2,
    SLOTS,
    all_encapsulations,
    both_hooks,
    datagram,
    inner,
    nic_mac,
    versions,
    wire_mac,
)
from tests.packet.reports import GENERATION
from tests.packet.rig import NEVER, Bench, Hook, dropped
from tests.packet.wires import changed

pytestmark = pytest.mark.root


OLD, NEW = Secret(7, bytes(range(32))), Secret(8, bytes(range(32, 64)))
EV, PLANE = 5, 1
S = 1000 * MS
CLOCK_AHEAD_NS = 3600 * S  # of h2's clock


def authenticate(bench: Bench, *secrets: Secret) -> None:
    """Gives the bench the keys of its peers, and h2's clock."""
    bench.tables.auths[...] = np.zeros((), bench.tables.auths.dtype)
    keyring = Keyring(H0)
    keyring.use(AuthMode.REQUIRED, secrets)
    rows = np.array([p.host.id for p in bench.plan.peers])
    keyring.update(bench.tables.auths, bench.tables.peers, rows, anew=True)
    bench.tables.auths["clock_ns"][H2] = CLOCK_AHEAD_NS
    bench.peer(H2)["generation"] = GENERATION
    bench.peer(H2)["heard_ns"] = now() + 60 * S  # so it stays heard a moment ago


@pytest.fixture(autouse=True)
def authenticated(bench: Bench) -> None:
    authenticate(bench, OLD)


def tag_of(packet: Packet, secret: Secret, sender: int, receiver: int) -> int:
    """Returns the tag that a packet must have, by another SipHash, as the number that scapy writes into the header."""
    raw, kind = bytes(packet[MRC]), packet[MRC].type
    message = raw[:24] + (raw[32:64] if kind != DATA else b"")
    if kind == PROBE_REPLY:
        begin = 64 + abi.BALLAST
        message += raw[begin : begin + 8 * MRCProbe(raw[32:64]).counts]
    return int.from_bytes(siphash24(message, key=pair_key(secret.secret, sender, receiver)).digest(), "big")


def tagged(packet: Packet, secret: Secret = OLD, sender: int = H2, receiver: int = H0) -> Packet:
    """Tags a packet, of h2 to this host unless given."""
    packet[MRC].key_id = secret.key_id
    packet[MRC].auth = tag_of(packet, secret, sender, receiver)
    return packet


def its_clock(ago_ns: int = 0) -> int:
    return now() + CLOCK_AHEAD_NS - ago_ns


def data(bench: Bench, ago_ns: int = 0, host: str = "h2", **mrc: Any) -> Packet:
    return bench.arriving(host, EV, inner(), **{"tx_ns": its_clock(ago_ns), **mrc})


def request(bench: Bench, seq: int = 1, *, ago_ns: int = 0, flags: int = 0, **probe: Any) -> Packet:
    sent_ns = its_clock(ago_ns)
    fields = {"seq": seq, "plane_mask": ALL_PLANES, "generation": GENERATION, "tx_ns": sent_ns, **probe}
    room = bytes(abi.BALLAST + 8 * fields["counts"]) if fields.get("counts") else b""
    content = Raw(bytes(MRCProbe(**fields)) + room)
    return bench.arriving("h2", EV, content, type=PROBE_REQUEST, seq=seq, tx_ns=sent_ns, flags=flags)


def own_request(bench: Bench) -> Packet:
    """Has this host send a request for a report to h2. Returns it as sent."""
    bench.reports(H2)["requested_ns"] = 0
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER
    wires = bench.wires()
    bench.dataplane.sweep(H2)
    (frame,) = [Ether(f.data) for wire in wires for f in wire.frames()]
    return frame


def reply_to(bench: Bench, sent: Packet, *, packets: int = 0, plane_mask: int = ALL_PLANES) -> Packet:
    """Returns h2's reply to a request of this host."""
    probe = MRCProbe(bytes(sent[MRCProbe])[:32])
    probe.plane_mask, probe.generation = plane_mask, GENERATION
    counts = [MRCCount(packets=packets, probes=1) for _ in range(probe.counts)]
    content = Raw(bytes(probe) + (bytes(abi.BALLAST) + b"".join(map(bytes, counts)) if counts else b""))
    return bench.arriving("h2", sent[MRC].ev, content, type=PROBE_REPLY, seq=sent[MRC].seq, tx_ns=its_clock())


def refuses(bench: Bench, packet: Packet, reason: str, hook: Hook = "tc") -> None:
    dropped(bench, packet, reason, packet[MRC].ev // SLOTS, hook)


def forged_like(forged: Packet, genuine: Packet) -> Packet:
    """Returns a packet with the time and the tag of another one."""
    forged[MRC].tx_ns, forged[MRC].key_id, forged[MRC].auth = genuine[MRC].tx_ns, OLD.key_id, genuine[MRC].auth
    return forged


# ---- what this host sends ----


@all_encapsulations
@versions
def test_pushed_data_has_the_tag_of_an_independent_siphash(bench: Bench, version: int) -> None:
    for _ in range(EVS):
        _, out = bench.push(datagram(H0, H2, version))
        packet = Ether(out)
        assert (packet[MRC].key_id, packet[MRC].auth) == (7, tag_of(packet, OLD, H0, H2))


def test_a_request_is_tagged_and_names_the_accepted_keys(bench: Bench) -> None:
    authenticate(bench, OLD, NEW)
    packet = own_request(bench)
    assert (packet[MRC].key_id, packet[MRC].auth) == (7, tag_of(packet, OLD, H0, H2))
    assert list(packet[MRCProbe].key_ids) == [7, 8]


@all_encapsulations
@pytest.mark.parametrize("counts", [0, 1, EVS])
def test_a_reply_is_tagged_with_its_counts(bench: Bench, counts: int) -> None:
    bench.tables.rxs["packets"][H2] = range(100, 100 + EVS)
    verdict, out = bench.pop("tc", tagged(request(bench, counts=counts)), PLANE)
    reply = Ether(out)
    assert (verdict, reply[MRC].type, reply[MRC].key_id) == ("redirect", PROBE_REPLY, 7)
    assert reply[MRC].auth == tag_of(reply, OLD, H0, H2)
    if counts:
        assert [c.packets for c in reply[MRCReport].records] == list(range(100, 100 + counts))


# ---- data ----


@both_hooks
@pytest.mark.parametrize(
    ("field", "value"),
    [("seq", 99), ("segments", 3), ("tx_ns", None), ("ev", EV + 1), ("flags", 1), ("auth", None)],
    ids=lambda x: str(x),
)
def test_each_field_of_the_header_is_under_the_tag(bench: Bench, hook: Hook, field: str, value: int | None) -> None:
    packet = tagged(data(bench))
    setattr(packet[MRC], field, getattr(packet[MRC], field) ^ 1 if value is None else value)
    refuses(bench, packet, "bad_tag", hook)


@both_hooks
def test_data_of_another_time_is_stale(bench: Bench, hook: Hook) -> None:
    for ago_ns in (600 * MS, 3600 * S, -200 * MS):
        refuses(bench, tagged(data(bench, ago_ns)), "stale", hook)


# ---- requests ----


@pytest.mark.parametrize(
    ("field", "value"),
    [("plane_mask", 0), ("status", 1), ("generation", 3), ("first", 1), ("counts", 2), ("report_seq", 9)],
)
def test_each_field_of_a_request_is_under_the_tag(bench: Bench, field: str, value: int) -> None:
    genuine = tagged(request(bench, counts=1))
    refuses(bench, forged_like(request(bench, **{"counts": 1, field: value}), genuine), "bad_tag")


def test_a_request_is_believed_once(bench: Bench) -> None:
    packets = {seq: tagged(request(bench, seq)) for seq in (60, 61, 62, 80)}
    for seq in (61, 60, 80, 62):  # 60 and 62 are overtaken
        assert bench.pop("tc", packets[seq], PLANE)[0] == "redirect"
    assert bench.tables.rxs["probes"][H2, EV] == 4
    for packet in packets.values():
        refuses(bench, packet, "replayed")
    assert bench.pop("tc", tagged(request(bench, 9 + 32 * abi.REPLAY_WORDS)), PLANE)[0] == "redirect"
    refuses(bench, tagged(request(bench, 9)), "replayed")  # too old to tell


def test_a_recorded_diagnostic_request_is_answered_for_half_a_second(bench: Bench) -> None:
    """Its number is of one run of a tool, so only its time tells that it is new."""
    recorded = tagged(request(bench, flags=DIAGNOSTIC))
    for advanced in (0, 499 * MS):
        advance(advanced)
        assert bench.pop("tc", recorded, PLANE)[0] == "redirect"
    advance(MS)
    refuses(bench, recorded, "stale")
    bench.tables.auths["clock_ns"][H2] = 0  # unknown: nothing is believed, and every request is answered
    assert bench.pop("tc", recorded, PLANE)[0] == "redirect"
    assert not bench.tables.rxs["probes"][H2].any()


def test_a_request_of_the_tables_before_is_not_believed(bench: Bench) -> None:
    old = tagged(request(bench, 30, plane_mask=0))
    advance(1)
    assert bench.pop("tc", tagged(request(bench, 1, generation=GENERATION + 1)), PLANE)[0] == "redirect"
    refuses(bench, old, "stale")
    assert bench.peer(H2)["generation"] == GENERATION + 1


# ---- replies ----


def test_a_reply_is_believed_once_and_tells_the_clock(bench: Bench) -> None:
    bench.tables.auths["clock_ns"][H2] = 0
    packet = tagged(reply_to(bench, own_request(bench)))
    bench.pop("tc", packet, packet[MRC].ev // SLOTS)
    assert bench.drops() == {}
    error = int(bench.tables.auths["clock_ns"][H2]) - CLOCK_AHEAD_NS
    assert 0 <= error < 100 * MS
    assert bench.reports(H2)["applied_seq"] == bench.reports(H2)["report_seq"]
    refuses(bench, packet, "replayed")


@pytest.mark.parametrize("change", ["counts", "plane_mask", "clock"])
def test_what_a_reply_says_is_under_the_tag(bench: Bench, change: str) -> None:
    sent = own_request(bench)
    genuine = tagged(reply_to(bench, sent))
    mask = 0 if change == "plane_mask" else ALL_PLANES
    forged = forged_like(reply_to(bench, sent, packets=9 * (change == "counts"), plane_mask=mask), genuine)
    forged[MRC].tx_ns += change == "clock"
    refuses(bench, forged, "bad_tag")


@pytest.mark.parametrize(
    ("seq", "ago_ns", "reason"),
    [
        (-1, 600 * MS, "stale"),
        (-1, -MS, "stale"),
        (0, 0, "replayed"),
        (-65536, 0, "unsolicited_reply"),
        (-1, 0, "bad_tag"),
    ],
)
def test_the_tag_of_a_forged_reply_is_computed_last(bench: Bench, seq: int, ago_ns: int, reason: str) -> None:
    """The tag of a reply with 128 counts is of 1 KB; each reply here has a wrong one. `seq`: beside the newest."""
    own_request(bench)  # one more, whose number no reply has yet
    sent = own_request(bench)
    genuine = tagged(reply_to(bench, sent))
    bench.pop("tc", genuine, genuine[MRC].ev // SLOTS)
    assert bench.drops() == {}
    sent[MRC].seq = (sent[MRC].seq + seq) % 2**32
    sent[MRCProbe].tx_ns -= ago_ns
    forged = reply_to(bench, sent)
    forged[MRC].key_id = OLD.key_id
    refuses(bench, forged, reason)


def own_data(bench: Bench) -> Packet:
    while True:
        packet = Ether(bench.push(datagram(H0, H2))[1])
        if packet[MRC].ev == EV:
            return packet


@pytest.mark.parametrize("make", [own_data, own_request], ids=["data", "probe"])
def test_an_error_counts_only_if_it_quotes_the_tag_of_this_host(bench: Bench, make: Callable[[Bench], Packet]) -> None:
    bench.tables.reports["cursor"][H2] = PLANE + 4 * (EV % SLOTS)  # the EV of the next report
    sent = make(bench)
    bench.reports(H2)["applied_seq"] = bench.reports(H2)["report_seq"]
    head = Ether(src=wire_mac(PLANE), dst=nic_mac(PLANE))
    head /= IPv6(src="fd10:0:0:1::ffff", dst=str(bench.plan.addresses[PLANE]), hlim=63) / ICMPv6DestUnreach(code=0)
    for auth, after in ((sent[MRC].auth ^ 1, EvState.GOOD), (sent[MRC].auth, EvState.ASSUMED_BAD)):
        bench.pop("tc", head / Raw(bytes(changed(sent, MRC, auth=auth)[IPv6])), PLANE)
        assert bench.ev(H2, EV)["state"] == after


# ---- secrets of pairs of hosts ----


OF_H2 = Secret(OLD.key_id, b"", {H2: NEW.secret})
KEY = Secret(OLD.key_id, NEW.secret)  # as the test's own SipHash takes it


def test_data_to_a_peer_has_a_tag_of_the_pairs_secret(bench: Bench) -> None:
    authenticate(bench, OF_H2)
    packet, other = (Ether(bench.push(datagram(H0, peer))[1]) for peer in (H2, H1))
    assert (packet[MRC].key_id, packet[MRC].auth) == (OLD.key_id, tag_of(packet, KEY, H0, H2))
    assert (other[MRC].key_id, other[MRC].auth) == (0, 0)


@both_hooks
def test_a_third_host_is_refused(bench: Bench, hook: Hook) -> None:
    """In its own name, and in h2's; without a tag, with the pair's id, and with each secret."""
    authenticate(bench, OF_H2)
    bench.tables.auths["clock_ns"][H1] = CLOCK_AHEAD_NS

    def its_data() -> Packet:
        return bench.arriving("h1", PLANE * SLOTS, inner(), tx_ns=its_clock())  # at the same T0: one EV per plane

    assert bench.pop(hook, tagged(data(bench), KEY), PLANE)[0] == "pass"
    refuses(bench, its_data(), "untagged", hook)
    for secret in (OLD, NEW, KEY):
        refuses(bench, tagged(its_data(), secret, H1), "unknown_key", hook)
    for secret in (OLD, KEY):
        refuses(bench, tagged(data(bench), secret, H1), "bad_tag", hook)
