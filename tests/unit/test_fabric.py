# SPDX-License-Identifier: BSD-2-Clause
"""Tests the lab's fabric as data: a packet walked through it arrives where mrcd's plan says."""

from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network

import pytest

from labkit.cluster import render
from labkit.cluster.fabric import Fabric, Parameters, PortRef, build, owns, parse_setting
from labkit.faults import targets
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


def test_a_node_is_configured_around_ports_that_are_down() -> None:
    lines = render.configure(build("x", Parameters()).nodes["t0-0-0"], down={"t1-2", "h1"})
    assert not any(word in ("t1-2", "h1") for line in lines for word in line.split())
    assert any("nexthop" in line for line in lines)
