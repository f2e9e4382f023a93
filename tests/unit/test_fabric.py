# SPDX-License-Identifier: BSD-2-Clause
"""Tests the lab's fabric as data: a packet walked through it arrives where mrcd's plan says."""

from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest

from labkit.cluster import render
from labkit.cluster.fabric import Fabric, Parameters, PortRef, build, owns, parse_setting
from labkit.faults import inject, targets
from labkit.faults.inject import Fault, PortState
from mrcd.config import cluster_file as config
from mrcd.errors import MrcdError, UsageError
from mrcd.fabric import topology


def peers(fabric: Fabric) -> dict[PortRef, PortRef]:
    """Returns each end of each link → the other end."""
    return {a: b for k in fabric.links for a, b in ((k.upper, k.lower), (k.lower, k.upper))}


def walk(fabric: Fabric, start: PortRef, segments: tuple[IPv6Address, ...]) -> Iterator[PortRef]:
    """Yields the ports at which a packet arrives, by the rules of End and NEXT-C-SID (RFC 9800 §4.1.1)."""
    other = peers(fabric)
    at = other[start]
    dst, left = int(segments[0]), list(segments[1:])
    for _ in range(10):
        yield at
        switch = fabric.nodes[at.node].switch
        if switch is None:
            return
        if IPv6Address(dst) in IPv6Network(str(switch.sid)):
            if fabric.parameters.encapsulation == "srh":
                dst = int(left.pop(0))
            else:  # the block stays, the 96 bits behind it move up by one uSID
                dst = dst >> 96 << 96 | (dst << 16) % (1 << 96)
        exits = [p.name for p in switch.ports for network in p.networks if IPv6Address(dst) in IPv6Network(network)]
        if not exits:
            return
        assert len(exits) == 1, f"{at.node}: more than one way to {IPv6Address(dst)}"
        at = other[PortRef(at.node, exits[0])]


@pytest.mark.parametrize("encapsulation", ["usid", "srh"])
def test_every_ev_of_every_pair_arrives_by_its_own_t1(encapsulation: config.Encapsulation) -> None:
    fabric = build("x", Parameters(hosts=5, hosts_per_t0=2, planes=3, t1=3, encapsulation=encapsulation))
    for name in fabric.hosts:
        plan = topology.plan(fabric.config, name)
        for peer in plan.peers:
            assert peer.evs
            for ev in peer.evs:
                nic = PortRef(name, f"p{ev.plane}")
                path = list(walk(fabric, nic, ev.segments))
                assert path[-1] == PortRef(peer.host.name, f"p{ev.plane}")
                t1s = [p.node for p in path if p.node.startswith("t1-")]
                assert t1s == ([] if ev.t1 is None else [f"t1-{ev.plane}-{ev.t1}"])


def test_settings_of_health_and_overlay_reach_the_cluster_file() -> None:
    settings = dict(map(parse_setting, ("hold_down_ms=150", "loss_ratio=0.1", "loss_rule=any")))
    overlay = dict(map(parse_setting, ("dup_ack_us=0", "source_check=off")))
    parameters = Parameters(health=settings, overlay=overlay, rate_bits_per_s=1_000_000_000)
    found = build("x", parameters).config
    assert (found.health.hold_down_ms, found.health.loss_ratio, found.health.loss_rule) == (150, 0.1, "any")
    assert (found.overlay.dup_ack_us, found.overlay.burst_bytes, found.overlay.source_check) == (0, 65_535, "off")
    assert Parameters.from_json(parameters.as_json()) == parameters
    assert "[health]" not in build("x", Parameters()).toml
    for wrong in ("hold_down_ms", "hold_down_ms=", "=1"):
        with pytest.raises(UsageError, match="not a setting"):
            parse_setting(wrong)
    with pytest.raises(MrcdError, match="hold_down_ms"):
        build("x", Parameters(health=dict([parse_setting("hold_down_ms=soon")])))
    with pytest.raises(MrcdError, match="unknown key"):
        build("x", Parameters(health={"patience": 1}))


def test_hosts_back_to_back_reach_each_other_s_own_sid() -> None:
    fabric = build("x", Parameters(direct=True, hosts=9, mtu=1500))
    assert fabric.hosts == list(fabric.nodes) == ["h0", "h1"]
    assert [(k.upper, k.lower) for k in fabric.links] == [(("h0", f"p{p}"), ("h1", f"p{p}")) for p in range(4)]
    sids = topology.plan(fabric.config, "h1").sids
    evs = topology.plan(fabric.config, "h0").peers[0].evs
    assert [(e.plane, e.segments) for e in evs] == [(p, (sids[p],)) for p in range(4)]
    assert [p.gateway_mac for p in fabric.nodes["h0"].ports] == [p.mac for p in fabric.nodes["h1"].ports]
    with pytest.raises(UsageError, match="no switches"):
        targets.parse(fabric, "nic:h0:0")
    ecmp = build("x", Parameters(direct=True, encapsulation="ecmp")).config
    assert [e.ev for e in topology.plan(ecmp, "h0").peers[0].evs] == [0, 1, 2, 3]


def test_a_lab_owns_exactly_its_namespaces_and_stays_in_its_directory() -> None:
    for name in ("", "-a", "A", "a/b", "..", "a" * 32):
        with pytest.raises(UsageError):
            build(name, Parameters())
    assert owns("a", "mrc-a-h0")
    assert owns("a", "mrc-a-t1-0-12")
    for name in ("mrc-ab-h0", "mrc-a-t0-h0", "mrc-a-t0-t0-1-2", "mrc-a-h0-h0", "mrc-a-x", "a-h0"):
        assert not owns("a", name)
    assert owns("a-t0", "mrc-a-t0-t0-1-2")


# ---- faults ----

FABRIC = build("x", Parameters())


def test_fault_programs_see_every_packet_once_and_never_in_a_host() -> None:
    nic = targets.parse(FABRIC, "nic:h3:1")
    assert nic.taps == ((PortRef("t0-1-1", "h3"), "ingress"), (PortRef("t0-1-1", "h3"), "egress"))
    link = targets.parse(FABRIC, "link:2:0:3")
    assert link.taps == ((PortRef("t1-2-3", "t0-0"), "ingress"), (PortRef("t0-2-0", "t1-3"), "ingress"))
    t0 = targets.parse(FABRIC, "t0:0:1")
    assert {e.port for e, _ in t0.taps} == {"h2", "h3", "t1-0", "t1-1", "t1-2", "t1-3"}
    assert {(e.node, d) for e, d in t0.taps} == {("t0-0-1", "ingress")}
    assert t0.closers == tuple(e for e, _ in t0.taps)
    assert len(t0.ends) == 12


@pytest.mark.parametrize("text", ["t1:0", "t1:4:0", "t1:0:4", "t0:0:2", "link:0:0:4", "nic:h4:0", "nic:0:0", "h0", ""])
def test_unknown_targets_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError):
        targets.parse(FABRIC, text)


@pytest.mark.parametrize("text", ["nic:h3:1", "link:2:0:3", "t0:0:1"])
def test_the_two_directions_are_the_halves_of_both(text: str) -> None:
    both, up, down = (targets.parse(FABRIC, text, d) for d in targets.DIRECTIONS)
    assert set(up.taps).isdisjoint(down.taps)
    assert {*up.taps, *down.taps} == set(both.taps)
    assert {*up.ends, *down.ends} == set(both.ends)
    assert len(up.ends) == len(down.ends)
    assert both.closers == up.closers == down.closers


def test_faults_of_a_t1_have_no_direction() -> None:
    with pytest.raises(UsageError, match="has no direction") as caught:
        targets.parse(FABRIC, "t1:0:2", "up")
    assert "link:0:T0:2" in (caught.value.hint or "")


def test_overlapping_faults_add_up_and_healing_one_leaves_the_other() -> None:
    slow, cut = Fault(rate_bits_per_s=10**8), Fault(down=True)
    shared = PortRef("t1-0-1", "t0-0")
    both = inject.desired(FABRIC, {"t1:0:1": cut, "link:0:0:1": slow, "t0:0:0": Fault(rate_bits_per_s=10**9)})
    assert both[shared] == PortState(down=True, rate_bits_per_s=10**8)
    assert inject.desired(FABRIC, {"link:0:0:1": slow})[shared] == PortState(rate_bits_per_s=10**8)
    assert inject.desired(FABRIC, {"t1:0:1": Fault(drop=1.0)}) == {}


def test_a_node_is_configured_around_ports_that_are_down() -> None:
    lines = render.configure(FABRIC.nodes["t0-0-0"], down={"t1-2", "h1"})
    assert not any(word in ("t1-2", "h1") for line in lines for word in line.split())
    assert any("nexthop" in line for line in lines)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, None),
        ({"drop": 20.0}, None),
        ({"ce": -0.1}, None),
        ({"down": True, "drop": 1.0}, None),
        ({"down": True, "rate_bits_per_s": 10**6}, None),
        ({"down": True, "direction": "up"}, "both directions"),
        ({"drop": 1.0, "direction": "left"}, "not a direction"),
    ],
)
def test_invalid_faults_are_refused(wrong: dict[str, Any], why: str | None) -> None:
    with pytest.raises(UsageError, match=why):
        Fault(**wrong)
