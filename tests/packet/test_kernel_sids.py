# SPDX-License-Identifier: BSD-2-Clause
"""Tests which SRv6 packets without MRC headers reach the kernel's SIDs: of peers, while a side is detached."""

from ipaddress import IPv6Address

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic.wire import PROBE_REQUEST, MRCProbe
from mrcd.fabric.srv6 import UDT4, UDT6
from mrcd.kernel.abi import STATUS_DETACHED, STATUS_PLAIN
from mrcd.kernel.enums import AuthMode
from mrcd.kernel.pinned import CHANGING, with_wire
from mrcd.net.routes import with_function
from mrcd.versions import WIRE_VERSION
from tests.packet.clock import now
from tests.packet.packets import ALL_PLANES, H0, H2, both_hooks, ip, nic_mac, wire_mac
from tests.packet.rig import Bench, Hook, Setup, dropped, untouched

pytestmark = pytest.mark.root
EV, PLANE = 5, 1
functions = pytest.mark.parametrize("function", [UDT4, UDT6], ids=["uDT4", "uDT6"])


def plain(bench: Bench, function: int = UDT4, *, source: str = "", plane: int = PLANE, srh: bool = False) -> bytes:
    """Returns a packet for a SID of the kernel, by default from peer h2's address on its plane."""
    inner = ip(4 if function == UDT4 else 6, H2, H0)
    outer: Packet = IPv6(src=source or address(bench, PLANE), dst=str(with_function(bench.plan.sids[plane], function)))
    if srh:
        outer /= IPv6ExtHdrSegmentRouting(addresses=[outer.dst, "fd00::1"], segleft=0, lastentry=1)
    return bytes(Ether(src=wire_mac(PLANE), dst=nic_mac(PLANE)) / outer / inner / UDP() / Raw(bytes(100)))


def address(bench: Bench, plane: int) -> str:
    return str(IPv6Address(bytes(bench.peer(H2)["address"][plane])))


def hear(bench: Bench, *, ago_s: float = 0, detached: bool = False) -> None:
    at, peer = now(), bench.peer(H2)
    peer["heard_ns"] = at - int(ago_s * 1e9)
    peer["status"] = STATUS_DETACHED if detached else 0
    peer["plain_ns"] = at if detached else 1


@both_hooks
@functions
@pytest.mark.parametrize("srh", [False, True], ids=["", "srh"])
def test_nothing_reaches_the_kernels_sids_while_both_sides_are_attached(
    bench: Bench, hook: Hook, function: int, srh: bool
) -> None:
    hear(bench)
    for plane in (PLANE, PLANE + 1):  # the SID of another plane, too
        dropped(bench, plain(bench, function, plane=plane, srh=srh), "stray_srv6", PLANE, hook)


@both_hooks
@functions
def test_a_detached_peer_reaches_them(bench: Bench, hook: Hook, function: int) -> None:
    frame = plain(bench, function)
    hear(bench, detached=True)
    assert bench.pop(hook, frame, PLANE) == ("pass", frame)
    bench.peer(H2)["status"] = 0  # attached again: it still has packets on the way
    assert bench.pop(hook, frame, PLANE) == ("pass", frame)
    hear(bench)
    assert bench.pop(hook, frame, PLANE)[0] == "drop"


@functions
def test_every_peer_reaches_a_detached_host(bench: Bench, function: int) -> None:
    frame = plain(bench, function)
    hear(bench)
    bench.tables.node["status"] = STATUS_DETACHED
    assert bench.pop("tc", frame, PLANE) == ("pass", frame)
    bench.peer(H2)["status"] = STATUS_PLAIN  # its probes said so meanwhile
    bench.tables.node["status"] = 0
    assert bench.pop("tc", frame, PLANE) == ("pass", frame)  # its daemon may be dead, so its route stays
    bench.peer(H2)["status"] = 0
    assert bench.pop("tc", frame, PLANE)[0] == "drop"


def test_a_peer_that_changes_its_wire_version_reaches_them(bench: Bench) -> None:
    """Its programs are still the former ones, and their records do not say of each peer how it is reached."""
    hear(bench)
    for wire, verdict in ((CHANGING, "pass"), (WIRE_VERSION, "drop")):
        bench.peer(H2)["status"] = with_wire(0, wire)
        assert bench.pop("tc", plain(bench), PLANE)[0] == verdict


def test_probes_tell_who_sends_by_plain_srv6(bench: Bench) -> None:
    """Each host learns it from the other's probes: from then on, and for 3 s after it stops."""
    hear(bench)
    for plain_now in (1, 0):
        bench.tables.auths["status"][H2] = STATUS_PLAIN * plain_now
        content = MRCProbe(seq=1, plane_mask=ALL_PLANES, status=STATUS_PLAIN * plain_now, tx_ns=now())
        request = bench.arriving("h2", EV, content, type=PROBE_REQUEST, tx_ns=content.tx_ns)
        assert Ether(bench.pop("tc", request, PLANE)[1])[MRCProbe].status == STATUS_PLAIN * plain_now
        assert bench.peer(H2)["status"] == STATUS_PLAIN * plain_now
        assert bench.pop("tc", plain(bench), PLANE)[0] == "pass"
    bench.peer(H2)["plain_ns"] = now() - 4 * 10**9
    assert bench.pop("tc", plain(bench), PLANE)[0] == "drop"


@pytest.mark.parametrize(
    ("ago_s", "idle_s", "verdict"),
    [(None, 0, "pass"), (2, 0, "pass"), (200, 60, "pass"), (100, 60, "drop")],
    ids=["never", "2 s ago", "idle for long", "idle"],
)
def test_a_peer_that_was_not_heard_reaches_them(bench: Bench, ago_s: int | None, idle_s: int, verdict: str) -> None:
    """It has perhaps started anew, and sends so until it has heard this host. An idle one is heard more seldom."""
    bench.tables.node["idle_us"] = idle_s * 10**6
    hear(bench, ago_s=ago_s or 0)
    if ago_s is None:
        bench.peer(H2)["heard_ns"] = 0
    assert bench.pop("tc", plain(bench), PLANE)[0] == verdict


def test_a_peer_without_a_key_reaches_them_only_where_no_tag_is_required(bench: Bench) -> None:
    """By secrets of pairs a host may have none in common with a peer, which is then never heard."""
    bench.peer(H2)["heard_ns"] = 0
    for mode, key_id, verdict in (("PERMISSIVE", 0, "pass"), ("REQUIRED", 0, "drop"), ("REQUIRED", 7, "pass")):
        bench.tables.auths["mode"][H2], bench.tables.auths["rx_id"][H2, 1] = AuthMode[mode], key_id
        assert bench.pop("tc", plain(bench), PLANE)[0] == verdict


@both_hooks
@pytest.mark.parametrize("source", ["fd00:99::3", "2001:db8::3", "fd00::", "::", "last one"])
def test_unknown_hosts_do_not_reach_them(bench: Bench, hook: Hook, source: str) -> None:
    hear(bench, detached=True)
    bench.tables.node["status"] = STATUS_DETACHED
    if source == "last one":  # an id that no host has
        source = address(bench, PLANE)[:-1] + "f"
    dropped(bench, plain(bench, source=source), "stray_srv6", PLANE, hook)


@both_hooks
def test_other_destinations_are_not_looked_at(bench: Bench, hook: Hook) -> None:
    hear(bench)
    for target in (bench.plan.sids[PLANE], with_function(bench.plan.sids[PLANE], 0xE008), "2001:db8::1"):
        frame = Ether(plain(bench))
        frame[IPv6].dst = str(target)
        untouched(bench, frame, PLANE, hook)


@pytest.mark.parametrize("bench", [Setup(encapsulation="ecmp")], indirect=True, ids=["ecmp"])
def test_without_srv6_there_are_no_sids(bench: Bench) -> None:
    hear(bench)
    outer = IPv6(src=address(bench, PLANE), dst=str(bench.plan.sids[PLANE]))
    untouched(bench, Ether(src=wire_mac(PLANE), dst=nic_mac(PLANE)) / outer / IP() / UDP() / Raw(bytes(100)), PLANE)
