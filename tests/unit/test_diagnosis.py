# SPDX-License-Identifier: BSD-2-Clause
"""Tests the diagnosis: each cause alone, two at once, nothing wrong; at its limits, and with what else is known."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrcd.config import cluster_file
from mrcd.config.cluster_file import AGREED, FABRIC, fingerprint
from mrcd.health.diagnosis.causes import Kind, Severity
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.memory import GREY_NS, WINDOW_NS, Growth, Memory
from mrcd.health.diagnosis.rules import diagnose
from mrcd.kernel import abi
from mrcd.kernel.enums import Drop, EvState, Reason
from mrcd.net.link_state import LinkState, link_state, unroutable_packets
from mrcd.net.nic_rates import NicRate
from tests.unit.diagnosed_host import GONE, LARGE_AND_SMALL, LOSSY, LOST, SLOW, Host, S, text

Make = Callable[[], Host]
GOOD, DENIED = {"state": EvState.GOOD}, {"state": EvState.DENIED}
UNANSWERED = {"state": EvState.UNKNOWN, "probe_seq": 20}
DOWN, PEER_DOWN = GONE | {"reason": Reason.LINK_DOWN}, GONE | {"reason": Reason.PEER_LINK_DOWN}
SMALL, PAIR = text(t0s=2), text(t0s=2, hosts=1)
RAILS = text(planes=4, evs=16, more="rails = 2")
LARGE_ECMP = text(more='encapsulation = "ecmp"')
T1, T1_OR = "t1 t1:1:2", "t1 t1:1:2 or link:1:0:2"
CABLE_0, CABLE_1 = "own_cable nic:h0:0 or t0:0:0", "own_cable nic:h0:1 or t0:1:0"
SAYS_DIFFERENT = "has another cluster file: block, underlay, planes, evs_per_peer, "


def ecmp() -> Host:
    return Host(LARGE_ECMP)


def h4_detached() -> Host:
    return Host().put("peers.status", 4, abi.STATUS_DETACHED)


def no_t1s(*planes: int) -> Host:
    h = Host()
    for plane in planes:
        for t1 in range(4):
            h.set(f"t1:{plane}:{t1}")
    return h


def slow_t1s(t0s: int) -> Host:
    h = Host(text(t0s=t0s))
    for t1 in range(4):
        h.delay(f"t1:1:{t1}")
    return h


def slow_to_h6() -> Host:
    h = Host().put("peers.slow_planes", 6, 2).put("peers.slow_ns", 6, 200_000)
    h.put("evs.tx_packets", 6, 10).put("evs.tx_bytes", 6, 10_000)
    return h.slow_nic(1, NicRate(None, "tbf", 40_000_000))


def six_evs() -> Host:
    h = ecmp()
    for peer in range(3, 9):
        h.set(f"ev:h{peer}:6")
    return h


def only_h3_has_traffic() -> Host:
    h = Host().set("ev:h3:6", LOSSY)
    return h.put("evs.last_tx_ns", slice(1, None), h.now - 300 * S).put("evs.last_tx_ns", 3, h.now)


def loss_lately(returned_s: float = 60, everywhere: bool = False) -> Host:
    """Returns a host whose EVs over a link lost something 5 s ago, and returned `returned_s` ago."""
    h = Host().set("ev:h6:7", LOSSY)
    places = slice(None) if everywhere else h.where("link:1:2:3")
    h.path_stats["loss_ns"][places] = h.now - 5 * S
    h.evs["state_since_ns"][h.where("link:1:2:3")] = h.now - int(returned_s * S)
    return h


# Name → the host, its causes, and words of the first one.
CASES: dict[str, tuple[Make, list[str], list[str]]] = {
    "nothing": (Host, [], []),
    "congested EVs and new ones": (
        lambda: Host().set("t1:1:2", {"state": EvState.SKIP}).set("t1:0:1", {"state": EvState.UNKNOWN}, ago_s=1)
        .put("evs.probe_seq", ..., 9), [], []),
    # ---- a dead element ----
    "T1": (lambda: Host().set("t1:1:2"), [T1_OR], [
        "Plane 1: T1 2 lets nothing through: 6 of 6 EVs through it have failed, to 6 of 6 peers",
        "`mrcctl trace h3 --ev 6` tells which it is"]),
    "T1 of two rails": (
        lambda: Host(RAILS).set("t1:2:2"), ["t1 t1:0:2"],
        ["Planes 0, 2: T1 2 lets nothing through: 12 of 12 EVs through it have failed, to 6 of 6 peers"]),
    "links of two T1s of other ports": (
        lambda: Host(RAILS).set("link:0:0:2").set("link:1:0:2"),
        ["t1 t1:0:2 or link:0:0:2", "t1 t1:1:2 or link:1:0:2"], []),
    "lossy T1 of two rails": (lambda: Host(RAILS).set("t1:1:3", LOSSY), ["loss t1:1:3"],
                              ["Planes 1, 3: T1 3 loses packets"]),
    "all EVs through the T1 cross the link": (lambda: Host().set("link:1:0:2"), [T1_OR], []),
    "link": (lambda: Host().set("link:1:2:3"), ["link link:1:2:3"], []),
    "T0": (lambda: Host().set("t0:1:2"), ["t0 t0:1:2"], []),
    "plane": (lambda: Host().set("plane:0"), [CABLE_0], []),
    "own NIC": (lambda: Host().set("nic:h0:1"), [CABLE_1], []),
    "own T0": (lambda: Host().set("t0:1:0"), [CABLE_1], []),
    "NIC of a peer": (lambda: Host().set("nic:h4:1"), ["peer_nic nic:h4:1"], []),
    "NIC under the same T0": (lambda: Host().set("nic:h1:1"), ["peer_nic nic:h1:1"], []),
    "peer": (lambda: Host().set("peer:h4"), ["peer_down peer:h4"], []),
    "EV": (lambda: Host().set("ev:h4:6"), ["unknown ev:h4:6"], []),
    "EVs of a peer": (lambda: Host().set("ev:h4:6").set("ev:h4:7"), ["unknown peer:h4 plane:1"],
                      ["no switch or link explains them"]),
    "EVs of a plane": (lambda: Host().set("ev:h3:4").set("ev:h4:6").set("ev:h6:5"), ["unknown plane:1"],
                       ["no switch or link explains them"]),
    "a late good EV of many": (
        lambda: Host(text(t0s=4, hosts=4)).set("t1:1:2").set("ev:h5:6", GOOD), [T1_OR], []),
    "half of the EVs cross the T1 well": (
        lambda: Host().set("t1:1:2").set("link:1:1:2", GOOD), ["link link:1:2:2"], []),
    "dead since before the start": (lambda: Host().set("t1:1:2", UNANSWERED, ago_s=30), [T1_OR], []),
    "the link of a T0 with most peers": (lambda: Host(LARGE_AND_SMALL).set("link:1:2:3"), ["link link:1:2:3"], []),
    # ---- this host's planes, and what peers say of theirs ----
    "own NIC missing": (lambda: Host().set("plane:1", DOWN).own_planes(1, p1=LinkState.MISSING),
                        ["own_nic nic:h0:1!"], ["p1 does not exist"]),
    "own NIC off": (lambda: Host().set("plane:1", DOWN).own_planes(1, p1=LinkState.DISABLED),
                    ["own_nic nic:h0:1!"], ["p1 is switched off"]),
    "own NIC without IPv6": (lambda: Host().set("plane:1", DOWN).own_planes(1, p1=LinkState.NO_IPV6),
                             ["own_nic nic:h0:1!"], ["IPv6 is switched off on p1"]),
    "own NIC with a small MTU": (lambda: Host().set("plane:1", DOWN).own_planes(1, p1=LinkState.SMALL_MTU),
                                 ["own_nic nic:h0:1!"], ["MTU of p1 is less than the 9100", "ip link set p1 mtu 9100"]),
    "a small MTU on all of them": (
        lambda: Host().set("plane:1", LOSSY).own_planes(3, p0=LinkState.SMALL_MTU, p1=LinkState.SMALL_MTU),
        ["own_nic nic:h0:1!", "own_nic nic:h0:0!"], []),
    "own carrier": (lambda: Host().set("plane:1", DOWN).own_planes(1), ["own_cable nic:h0:1!"],
                    ["p1 has no carrier"]),
    "first hop": (lambda: Host().set("plane:1", DOWN).own_planes(1, p1=LinkState.UP), ["own_t0 t0:1:0!"],
                  ["T0 0 does not answer as first hop"]),
    "neighbours have no carrier either": (
        lambda: Host().set("plane:1").own_planes(1).put("peers.plane_mask", slice(1, 3), 1),
        ["own_t0 t0:1:0!"], []),
    "one of the neighbours has": (
        lambda: Host().set("plane:1").own_planes(1).put("peers.plane_mask", 1, 1), ["own_cable nic:h0:1!"], []),
    "no neighbour tells cable from T0": (
        lambda: Host(text(hosts=1)).own_planes(1), ["own_cable nic:h0:1 or t0:1:0"], []),
    "one neighbour neither": (
        lambda: Host(text(hosts=2)).own_planes(1).put("peers.plane_mask", 1, 1), ["own_t0 t0:1:0 or nic:h0:1"], []),
    "a peer's NIC is down": (
        lambda: Host().set("nic:h4:1", PEER_DOWN).put("peers.plane_mask", 4, 1), ["peer_nic nic:h4:1!"],
        ["on h4: `mrcctl status`"]),
    "all NICs under a T0": (lambda: Host().put("peers.plane_mask", slice(3, 6), 1), ["t0 t0:1:1"], []),
    "two of three NICs": (lambda: Host().put("peers.plane_mask", slice(3, 5), 1),
                          ["peer_nic nic:h3:1!", "peer_nic nic:h4:1!"], []),
    "no plane in common": (
        lambda: Host().put("peers.plane_mask", 4, 2).silent(4).own_planes(1),
        ["own_cable nic:h0:1!", "peer_nic nic:h4:0!"], []),
    # ---- silent and detached ----
    "silent": (lambda: Host().silent(4).heard(4, 30), ["peer_down peer:h4!"], []),
    "silent ever": (lambda: Host().silent(4).put("peers.heard_ns", 4, 0), ["peer_down peer:h4!"],
                    ["h4 has never answered"]),
    "silent, with one plane": (lambda: Host(text(planes=1, evs=4)).silent(4).heard(4, 30), ["peer_down peer:h4"], []),
    "what a silent peer's EVs said": (
        lambda: Host(text(t0s=2, hosts=2)).set("t1:1:2").set("ev:h2:6", GOOD).silent(2),
        ["t1 t1:1:2 or link:1:0:2 or link:1:1:2", "peer_down peer:h2!"], []),
    "peer detached": (h4_detached, ["peer_detached peer:h4!"], []),
    "peer detached, then down": (lambda: h4_detached().heard(4, 30), ["peer_down peer:h4!"], []),
    "a detached peer shows that this host works": (
        lambda: Host().silent(*range(2, 9)).heard(slice(2, None), 30).put("peers.status", 1, abi.STATUS_DETACHED),
        [*(f"peer_down peer:h{i}!" for i in range(2, 9)), "peer_detached peer:h1!"], []),
    "unless it is silent as long": (
        lambda: Host().silent(*range(2, 9)).heard(slice(1, None), 30).put("peers.status", 1, abi.STATUS_DETACHED),
        ["host host:h0"], []),
    "this host is detached": (
        lambda: Host().set("t1:1:2").put("node.status", (), abi.STATUS_DETACHED), ["detached host:h0!"], []),
    # ---- loss, delay, denials ----
    "lossy T1": (lambda: Host().set("t1:1:2", LOSSY), ["loss t1:1:2 or link:1:0:2"],
                 ["loses packets", "--count 500` tells which it is"]),
    "lossy link": (lambda: Host().set("link:1:2:3", LOSSY), ["loss link:1:2:3"], ["--count 500` confirms it"]),
    "lossy T0": (lambda: Host().set("t0:1:2", LOSSY), ["loss t0:1:2"], []),
    "lossy NIC": (lambda: Host().set("nic:h4:1", LOSSY), ["loss nic:h4:1"], []),
    "lossy EV": (lambda: Host().set("ev:h3:6", LOSSY), ["loss ev:h3:6"], []),
    "only EVs with traffic show loss": (only_h3_has_traffic, ["loss t1:1:2 or link:1:0:2 or link:1:1:2"], []),
    "a lossy T1 whose EVs failed in part": (
        lambda: Host().set("t1:1:2", LOSSY).set("link:1:1:2", GONE | {"reason": Reason.LOSS}),
        ["loss t1:1:2 or link:1:0:2"], []),
    "loss lately does not acquit a link": (loss_lately, ["loss link:1:2:3"], []),
    "what returned since does": (lambda: loss_lately(4), ["loss ev:h6:7"], []),
    "everything loses something": (lambda: loss_lately(everywhere=True), ["loss ev:h6:7"], []),
    # ---- a small MTU ----
    "MTU of a link": (
        lambda: Host().full_size_lost("link:1:2:3", full="plane:1"), ["small_mtu link:1:2:3"], [
            "the link between T0 2 and T1 3 has too small an MTU: 3 of 3 EVs through it lose all full-size packets",
            "set the MTU of its ports to 9100", "`mrcctl probe h6 --ev 7 --size 9100` confirms it"]),
    "MTU of a T1": (lambda: Host().full_size_lost("t1:1:2", full="plane:1"),
                    ["small_mtu t1:1:2 or link:1:0:2"], []),
    "MTU of a T0": (lambda: Host().full_size_lost("t0:1:2", full="plane:1"), ["small_mtu t0:1:2"], []),
    "MTU of a peer's port": (lambda: Host().full_size_lost("nic:h4:1", full="plane:1"), ["small_mtu nic:h4:1"],
                             ["the NIC of h4, or its port, has"]),
    "MTU of this host's T0": (lambda: Host().full_size_lost("plane:1"), ["small_mtu nic:h0:1 or t0:1:0"],
                              ["T0 0, this host's own, or its port to this host, has"]),
    "MTU, told by an ICMPv6 error": (
        lambda: Host().full_size_lost("t0:1:2", full="plane:1", fields=LOST | {"reason": Reason.ICMP_ERROR}),
        ["small_mtu t0:1:2"], []),
    "MTU on the way of one flow, EVs of other peers are in use": (
        lambda: Host().full_size_lost("plane:1", fields=GOOD).set("nic:h4:1", LOST),
        ["small_mtu nic:h0:1 or t0:1:0"], []),
    "MTU of a T1, and not all of its EVs were probed": (
        lambda: Host().full_size_lost("ev:h3:6", "ev:h6:6", full="t1:1:1").set("t1:1:2", LOST)
        .put("path_stats.arrived_ns", ..., sys.maxsize), ["small_mtu t1:1:2 or link:1:0:2"], []),
    "MTU of one link, and another is lossy": (
        lambda: Host().full_size_lost("link:1:2:3", full="plane:1").set("link:1:1:1", LOSSY),
        ["small_mtu link:1:2:3", "loss link:1:1:1"], []),
    "MTU of one link, and another is dead": (
        lambda: Host().full_size_lost("link:1:2:3", full="plane:1").set("link:1:1:1"),
        ["link link:1:1:1", "small_mtu link:1:2:3"], []),
    "full-size packets pass": (lambda: Host().full_size_lost(full="plane:1").set("link:1:2:3", LOSSY),
                               ["loss link:1:2:3"], []),
    "no EV has failed": (lambda: Host().full_size_lost("link:1:2:3", fields=GOOD), [], []),
    "this host's MTU is known to be small": (
        lambda: Host().full_size_lost("plane:1").own_planes(3, p1=LinkState.SMALL_MTU), ["own_nic nic:h0:1!"], []),
    "slow plane": (lambda: Host().delay("plane:1"), ["slow_plane plane:1"], []),
    "slow T1": (lambda: Host().delay("t1:1:2"), ["congestion t1:1:2 or link:1:0:2"], []),
    "slow link": (lambda: Host().delay("link:1:2:3"), ["congestion link:1:2:3"], []),
    "slow plane to one peer": (lambda: Host().put("peers.slow_planes", 6, 2), ["congestion nic:h6:1"], []),
    "slow EVs": (lambda: Host().set("link:1:2:3", SLOW), ["congestion link:1:2:3"], []),
    "shaped NIC": (slow_to_h6, ["slow_plane nic:h0:1"],
                   ["p1 has the qdisc tbf of 40 Mbit/s, and carries 40 Mbit/s", "`tc -statistics qdisc show dev p1`"]),
    "slow own link": (lambda: Host().delay("plane:1").slow_nic(0, NicRate(10**11)).slow_nic(1, NicRate(10**10)),
        ["slow_plane nic:h0:1"], []),
    "hardly slow": (lambda: Host().delay("plane:1", 1_000_000), [], []),
    "a plane slow between two T0s": (lambda: slow_t1s(2), ["slow_plane plane:1"],
                                     ["all its paths through T1s delay packets"]),
    "a plane slow between its T0s": (lambda: slow_t1s(3), ["slow_plane plane:1"], []),
    # ---- two at once; what explains most comes first ----
    "T1s of two planes": (lambda: Host().set("t1:1:2").set("t1:0:3"), ["t1 t1:0:3 or link:0:0:3", T1_OR], []),
    "T1s of a plane": (lambda: Host().set("t1:1:2").set("t1:1:3"), [T1_OR, "t1 t1:1:3 or link:1:0:3"], []),
    "T1 and T0": (lambda: Host().set("t1:1:2").set("t0:1:2"), ["t0 t0:1:2", T1_OR], []),
    "T1 and link": (lambda: Host().set("t1:1:2").set("link:1:2:3"), [T1_OR, "link link:1:2:3"], []),
    "T1 and NIC": (lambda: Host().set("t1:1:2").set("nic:h4:1"), [T1_OR, "peer_nic nic:h4:1"], []),
    "T0 and peer": (lambda: Host().set("t0:1:2").set("peer:h4"), ["t0 t0:1:2", "peer_down peer:h4"], []),
    "plane and T1": (lambda: Host().set("plane:0").set("t1:1:2"), [CABLE_0, T1_OR], []),
    "two NICs": (lambda: Host().set("nic:h4:1").set("nic:h7:1"), ["peer_nic nic:h4:1", "peer_nic nic:h7:1"], []),
    "T1 and EV": (lambda: Host().set("t1:1:2").set("ev:h4:5"), [T1_OR, "unknown ev:h4:5"], []),
    "a T0 on both planes": (lambda: Host().set("t0:0:2").set("t0:1:2"), ["t0 t0:0:2", "t0 t0:1:2"], []),
    "own plane and T1": (
        lambda: Host().set("plane:0", DOWN).set("t1:1:2").own_planes(2), ["own_cable nic:h0:0!", T1_OR], []),
    "a T0 of most peers": (lambda: Host(LARGE_AND_SMALL).set("t0:1:2"), ["t0 t0:1:2"], []),
    "and a T1": (lambda: Host(LARGE_AND_SMALL).set("t0:1:2").set("t1:1:3"),
                 ["t0 t0:1:2", "t1 t1:1:3 or link:1:0:3"], []),
    # ---- everything, few hosts, other encapsulations ----
    "all EVs": (lambda: Host().set("plane:0").set("plane:1"), ["host host:h0"], []),
    "all peers silent": (lambda: Host().silent(), ["host host:h0"], []),
    "no own plane": (lambda: Host().silent().own_planes(0), [CABLE_0, CABLE_1], []),
    "no T1 of a plane": (lambda: no_t1s(1), ["own_t0 t0:1:0"], []),
    "no T1 at all": (lambda: no_t1s(0, 1), ["own_t0 t0:0:0", "own_t0 t0:1:0"], []),
    "one peer, a plane": (lambda: Host(PAIR).set("plane:1"),
                          ["own_cable nic:h0:1 or t0:1:0 or t0:1:1 or nic:h1:1"], []),
    "one peer, both planes": (lambda: Host(PAIR).set("plane:1").set("plane:0"), ["peer_down peer:h1 or host:h0"], []),
    "one peer, silent": (lambda: Host(PAIR).silent(1), ["peer_down peer:h1 or host:h0"], []),
    "no peer": (lambda: Host(text(t0s=1, hosts=1)), [], []),
    "an SRH names the T1": (lambda: Host(text(more='encapsulation = "srh"')).set("t1:1:2"), [T1_OR],
                            ["`mrcctl trace h3 --ev 6` confirms it"]),  # it cannot tell the T1 from the link either
    "a plane of one T1": (lambda: Host(text(t1s=1)).set("t1:1:0"), ["t1 t1:1:0 or link:1:0:0"], ["confirms it"]),
    "ecmp": (six_evs, ["unknown plane:1"], ["with encapsulation ecmp the switches choose the T1",
                                            "`mrcctl probe h3 --ev 6` confirms it"]),
    "a T0 with ecmp": (lambda: ecmp().set("t0:1:2"), ["t0 t0:1:2"], []),
    "a NIC with ecmp": (lambda: ecmp().set("nic:h4:1"), ["peer_nic nic:h4:1"], []),
    "more T1s than EVs of a plane": (
        lambda: Host(text(t0s=4, hosts=4, t1s=16)).set("t1:1:5"), ["t1 t1:1:5 or link:1:0:5"], []),
    # ---- link probes rule out what EVs alone cannot tell apart ----
    "EVs alone": (lambda: Host(SMALL).set("link:1:1:2"), ["t1 t1:1:2 or link:1:0:2 or link:1:1:2"], []),
    "the T1 answers": (lambda: Host(SMALL).with_links().set("link:1:1:2"), ["link link:1:1:2"],
                       ["Plane 1: the link between T0 1 and T1 2 lets nothing through: 3 of 3 EVs"]),
    "the T1 does not": (lambda: Host(SMALL).with_links().set("t1:1:2").lose_probes(1, 2), [T1_OR], []),
    "since a moment": (lambda: Host(SMALL).with_links().set("t1:1:2").lose_probes(1, 2, ago_s=3), [T1_OR], []),
    "the T0 answers: it has lost its T1s": (
        lambda: Host().with_links().set("plane:1").lose_probes(1, 0, 1, 2, 3), ["own_t0 t0:1:0"], []),
    "the T0 does not answer": (
        lambda: Host().with_links().set("plane:1").lose_probes(1, None, 0, 1, 2, 3), [CABLE_1], []),
    "younger than the last probe's return": (
        lambda: Host(SMALL).with_links().set("link:1:1:2", ago_s=0.2), ["t1 t1:1:2 or link:1:0:2 or link:1:1:2"], []),
    "no probe ever came back": (
        lambda: Host(SMALL).with_links().set("link:1:1:2").put("links.rx_ns", ..., 0).put("links.unanswered", ..., 600),
        ["t1 t1:1:2 or link:1:0:2 or link:1:1:2"], []),
    "ruling out everything rules out nothing": (lambda: Host().with_links().set("t1:1:2"), [T1_OR], []),
    "loss is not ruled out": (
        lambda: Host(SMALL).with_links().set("link:1:1:2", LOSSY), ["loss t1:1:2 or link:1:0:2 or link:1:1:2"], []),
    "a far T0 is told from this host's own": (
        lambda: Host(PAIR).with_links().set("plane:1"), ["t0 t0:1:1 or nic:h1:1"], []),
    # ---- hosts with other files ----
    "another file": (lambda: Host().told(4), ["config_differs peer:h4!"],
                     [f"h4 says that it {SAYS_DIFFERENT}", "give h4 the file of the others"]),
    "this host has another file": (lambda: Host().told(*range(1, 9)), ["config_differs host:h0!"],
                                   ["give h0 the file of the others"]),
    "EVs of other numbers": (lambda: Host().told(4).set("peer:h4 plane:1").set("t1:0:2"),
                             ["t1 t1:0:2 or link:0:0:2", "config_differs peer:h4!"], []),
    "T1s of a wrong file": (
        lambda: Host().told(*range(1, 9)).set("t1:0:3").set("t1:1:3"), ["config_differs host:h0!"], []),
    "one of two files": (lambda: Host(PAIR).told(1), ["config_differs peer:h1 or host:h0"], []),
    "three files": (lambda: Host().told(4, 5).put("peers.fingerprint", 6, 4321),
                    [f"config_differs peer:h{i}!" for i in (4, 5, 6)], ["3 of 8 peers say so"]),
    "many hosts with a new file": (lambda: Host(text(t0s=2, hosts=20)).told(*range(1, 20)),
                                   [f"config_differs peer:h{i}!" for i in range(1, 9)], ["19 of 39 peers say so"]),
    "an older version tells no file": (lambda: Host().told(4, by=0), [], []),
    "a silent peer's file": (lambda: Host().told(4).silent(4), ["peer_down peer:h4!"], []),
    "the file of one never heard": (lambda: Host().told(4).put("peers.heard_ns", 4, 0), [], []),
    # ---- this host's routes ----
    "another route to a peer": (
        lambda: Host().other_way(4), ["other_route host:h0!"],
        ["Traffic to h4 does not take the route of mrcd: the kernel takes the route 10.0.0.0/8 dev p0",
         "`ip route get fibmatch 10.0.4.1 from 10.0.0.1` shows it"]),
    "another route to all peers": (
        lambda: Host().other_way(*range(1, 9)), ["other_route host:h0!"], ["to 8 of 8 peers, such as h1, does not"]),
    "another route on a detached host": (
        lambda: Host().put("node.status", (), abi.STATUS_DETACHED).other_way(4),
        ["other_route host:h0!", "detached host:h0!"], []),
    # ---- after mrc_pop ----
    "a firewall": (
        lambda: Host().refused(Drop.FIREWALL), ["undelivered host:h0!"],
        ["h0 drops packets that mrc0 has received: 7 firewall in the last", "`nft list ruleset`: let mrc0 pass"]),
    "a reverse-path filter": (
        lambda: Host().refused(Drop.REVERSE_PATH), ["undelivered host:h0!"], ["`sysctl net.ipv4.conf.mrc0.rp_filter`"]),
    "another program": (
        lambda: Host().refused(Drop.OTHER_PROGRAM), ["undelivered host:h0!"],
        ["h0 drops packets that mrc0 sends or has received: 7 other_program in the last",
         "`tc filter show dev mrc0 egress`"]),
    # ---- a NIC that only sends ----
    "a NIC that receives nothing": (
        lambda: Host().with_links().lose_probes(1, None), ["own_cable nic:h0:1 or t0:1:0"],
        ["Plane 1: packets leave by p1, but none of its link probes comes back", "a program may drop what p1 gets"]),
    "a T0 that has never sent a link probe back": (
        lambda: Host().with_links().put("links.rx_ns", ..., 0).put("links.unanswered", ..., 600), [], []),
    # ---- hosts of other versions ----
    "another version": (lambda: Host().wire(4), ["config_differs peer:h4!"],
                        ["h4 speaks wire version 9, h0 2: traffic between them takes the kernel's own routes"]),
    "another version, ecmp": (lambda: Host(LARGE_ECMP).wire(4), ["config_differs peer:h4!"],
                              ["h0 2: there is no traffic between them"]),
    "two other versions": (lambda: Host().wire(4, 5), ["config_differs peer:h4!", "config_differs peer:h5!"],
                           ["(2 peers speak another one)"]),
    "this host has another version": (lambda: Host().wire(*range(1, 8)), ["config_differs host:h0!"],
                                      ["7 of 8 peers speak another wire version (9), h0 2"]),
    "a new version goes round": (lambda: Host(text(t0s=2, hosts=20)).wire(*range(1, 20)),
                                 [f"config_differs peer:h{i}!" for i in range(1, 9)], []),
    "it died": (lambda: Host().wire(4).silent(4), ["peer_down peer:h4!"], []),
    "another one died": (lambda: Host().wire(4).silent(6), ["config_differs peer:h4!", "peer_down peer:h6!"], []),
    "its paths are watched": (lambda: Host().wire(4).set("nic:h4:1"),
                              ["peer_nic nic:h4:1", "config_differs peer:h4!"], []),
    # ---- refused packets ----
    "of peers that answer": (lambda: Host().refused(Drop.BAD_TAG, Drop.BAD_EV, Drop.WRONG_PLANE), [], []),
    "a key before a file": (
        lambda: Host().silent(4).refused(Drop.BAD_TAG, Drop.WRONG_RECEIVER), ["wrong_key peer:h4"], []),
    "of several silent peers": (
        lambda: Host().silent(4, 6).refused(Drop.BAD_TAG),
        ["wrong_key peer:h4 or peer:h6", "peer_down peer:h4!", "peer_down peer:h6!"], []),
    "of the only peer": (lambda: Host(PAIR).silent(1).refused(Drop.BAD_TAG), ["wrong_key peer:h1 or host:h0"], []),
    "a dead T1 beside": (
        lambda: Host().set("t1:1:2").refused(Drop.WRONG_PLANE, unroutable=(1,)), [T1_OR], []),
    "swapped cables, by packets for another NIC": (
        lambda: Host().set("nic:h0:1").refused(Drop.WRONG_RECEIVER), ["wrong_cable nic:h0:1"], ["7 wrong_receiver"]),
    "the cables of both planes": (
        lambda: Host().set("nic:h0:1").set("nic:h0:0").refused(Drop.WRONG_PLANE),
        ["wrong_cable nic:h0:0", "wrong_cable nic:h0:1"], ["7 wrong_plane"]),
    "swapped cables, by packets without a route": (
        lambda: Host().set("nic:h0:1").refused(unroutable=(1,)), ["wrong_cable nic:h0:1"],
        ["39 without a route on p1"]),
    "which come on another plane": (lambda: Host().set("nic:h0:1").refused(unroutable=(0,)), [CABLE_1], []),
    "which come on both": (lambda: Host().set("nic:h0:1").set("nic:h0:0").refused(unroutable=(0, 1)),
                           ["wrong_cable nic:h0:0", "wrong_cable nic:h0:1"], []),
    "packets for other addresses on all planes": (
        lambda: Host().silent().refused(unroutable=(0, 1)), ["config_differs host:h0"],
        ["39 on p0, 39 on p1 in 10 s"]),
    "and on one": (lambda: Host().silent().refused(unroutable=(1,)), ["host host:h0"], []),
}  # fmt: skip
REFUSED = {
    **dict.fromkeys((Drop.BAD_TAG, Drop.UNKNOWN_KEY, Drop.UNTAGGED), ("wrong_key", "mrcctl keys status")),
    **dict.fromkeys((Drop.BAD_EV, Drop.UNKNOWN_SENDER, Drop.WRONG_RECEIVER), ("config_differs", "mrcctl config show")),
    Drop.BAD_VERSION: ("config_differs", "mrcctl version"),
}


@pytest.mark.parametrize("target", ["t1:1:2", "link:1:2:3", "t0:1:2", "plane:1", "nic:h4:1", "peer:h4", "ev:h4:6"])
def test_denied_evs_are_named_and_no_fault(target: str) -> None:
    assert Host().set(target, DENIED).found() == [f"denied {target}!"]


@pytest.mark.parametrize("drop", REFUSED, ids=str)
def test_silent_peers_whose_packets_are_refused(drop: Drop) -> None:
    kind, remedy = REFUSED[drop]
    for h, target in ((Host().silent(4), "peer:h4"), (Host().silent(), "host:h0")):
        assert h.refused(drop).found() == [f"{kind} {target}"]
        (c,) = h.causes()
        assert (f"7 {drop.text}" in c.sentence, remedy in c.do) == (True, True)


@pytest.mark.parametrize(("make", "found", "words"), CASES.values(), ids=CASES)
def test_a_diagnosis(make: Make, found: list[str], words: list[str]) -> None:
    h = make()
    assert h.found() == found
    for word in words:
        assert word in h.causes()[0].sentence + "; " + h.causes()[0].do


@pytest.mark.parametrize(("received", "refused"), [(7_000, {}), (600, {Drop.FIREWALL: 7}), (0, {Drop.FIREWALL: 7})])
def test_a_firewall_that_drops_little_is_not_named(received: int, refused: dict[Drop, int]) -> None:
    memory = Memory()
    memory.note_counters(0, {}, {}, 100)
    memory.note_counters(S, {"firewall": 7}, {}, 100 + received)
    assert memory.refused == refused


def test_kinds_have_a_severity_and_the_urgent_and_what_explains_most_come_first() -> None:
    of = {severity: {kind for kind in Kind if kind.severity is severity} for severity in Severity}
    assert of[Severity.OK] == {Kind.DENIED}
    assert of[Severity.WARNING] == {
        Kind.PEER_DETACHED, Kind.LOSS, Kind.SMALL_MTU, Kind.SLOW_PLANE, Kind.CONGESTION, Kind.DETACHED,
        Kind.UNDELIVERED, Kind.UNKNOWN,
    }  # fmt: skip
    h = Host().set("plane:0", DENIED).set("t0:1:2", LOSSY).set("t1:1:3")
    assert [c.kind.severity for c in h.causes()] == [Severity.CRITICAL, Severity.WARNING, Severity.OK]
    assert Host().set("plane:0", DOWN).set("t1:1:2").own_planes(2).found() == ["own_cable nic:h0:0!", T1_OR]


def test_a_cause_says_how_much_it_explains_and_since_when() -> None:
    h = Host().set("t1:1:2")
    h.set("ev:h4:6", ago_s=90)  # had failed before
    (c,) = h.causes()
    assert c.since_ns == h.now - 60 * S
    document = c.document(h.now)
    assert (document["cause"], document["target"], document["since_s"]) == ("t1", "t1:1:2", 60)
    assert (document["severity"], document["confidence"]) == ("critical", "ambiguous")
    assert [document[k] for k in ("evs", "of_evs", "peers", "of_peers")] == [6, 6, 6, 6]  # not h1 and h2
    for name, evs, peers, since_s in (
        ("EVs of a peer", 2, 1, 60), ("EVs of a plane", 3, 3, 60), ("own carrier", 6 * 4 + 2, 8, 60),
        ("a peer's NIC is down", 4, 1, 60), ("all EVs", 52, 8, 60), ("all peers silent", 0, 8, 0),
        ("silent", 0, 1, 30),
    ):  # fmt: skip
        h = CASES[name][0]()
        (c,) = h.causes()
        ago_s = (h.now - (c.since_ns or 0)) / S
        assert (c.share.evs, c.share.peers, ago_s) == (evs, peers, since_s), name


def test_candidates_of_an_ambiguous_cause() -> None:
    found = {name: [c.candidates("h0") for c in CASES[name][0]().causes() if c.or_targets] for name in (
        "of several silent peers", "one of two files")}  # fmt: skip
    assert found == {
        "of several silent peers": [[(Kind.WRONG_KEY, "peer:h4"), (Kind.WRONG_KEY, "peer:h6")]],
        "one of two files": [[(Kind.CONFIG_DIFFERS, "peer:h1"), (Kind.CONFIG_DIFFERS, "host:h0")]],
    }


# ---- large clusters ----


@pytest.fixture(scope="module")
def large() -> Host:
    return Host(text(t0s=256, hosts=16, t1s=32, planes=8, evs=256))


def lines_run(work: Callable[[], object]) -> int:
    """Returns how many lines of Python a call runs."""
    count = 0

    def trace(*_: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("target", ["", "t1:1:2", "t0:1:2", "nic:h0:1", "nic:h40:1", "unknown"])
def test_a_million_evs_take_no_loop_over_evs(large: Host, target: str) -> None:
    """4,096 × 256: some lines per peer, and a few per element that may explain a fault."""
    large.evs["state"][large.evs["configured"] != 0] = EvState.GOOD
    t0s = np.array([p.host.t0 for p in large.plan.peers])
    random = np.random.default_rng(1)
    bad = {
        "": np.zeros((4095, 32), bool),
        "t1:1:2": large.plan.paths.t1s[:, 32:64] == 2,
        "t0:1:2": np.repeat(t0s == 2, 32).reshape(-1, 32),
        "nic:h0:1": np.ones((4095, 32), bool),
        "nic:h40:1": np.repeat(np.arange(1, 4096) == 40, 32).reshape(-1, 32),
        "unknown": random.random((4095, 32)) < 0.01,  # a thousand EVs at random have nothing in common
    }[target]
    large.evs["state"][1:, 32:64][bad & (large.evs["configured"][1:, 32:64] != 0)] = EvState.ASSUMED_BAD
    found = large.causes()
    assert target in ("", "unknown") or [c.target for c in found] == [target]
    assert target or not found
    assert target != "unknown" or {c.kind for c in found} == {Kind.UNKNOWN}
    assert lines_run(large.causes) < 10 * len(large.plan.peers)


# ---- what is known from more than one look ----


def test_counters_count_for_a_window_and_only_if_they_grew_by_several() -> None:
    g = Growth[str]()
    assert g.update(0, {"a": 90, "b": 3}) == {}  # of the past
    assert g.update(S, {"a": 92, "b": 3}) == {}
    assert g.update(2 * S, {"a": 95, "b": 3, "new": 70}) == {"a": 5}
    for n in range(3, 12):
        assert g.update(n * S, {"a": 95})["a"] == (5 if n <= 10 else 3), n
    assert g.update(2 * S + WINDOW_NS + S, {"a": 95}) == {}
    g.update(30 * S, {"a": 90})
    assert g.update(31 * S, {"a": 5}) == {}  # smaller: it begins anew
    assert g.update(32 * S, {"a": 9}) == {"a": 4}


def test_drops_that_do_not_mean_that_hosts_disagree_are_left_out() -> None:
    memory = Memory()
    memory.note_counters(0, {}, {})
    memory.note_counters(S, {"too_big": 99, "stale": 99, "bad_tag": 9}, {})
    assert memory.refused == {Drop.BAD_TAG: 9}


def test_an_ev_that_returned_after_a_grey_loss_still_counts_for_a_minute() -> None:
    h = Host().set("link:1:2:3", LOSSY)
    h.memory = Memory()
    for _ in range(2):
        assert h.found() == ["loss link:1:2:3"]
        h.set("link:1:2:3", GOOD)
    assert diagnose(Facts(h.shown, h.plan)) == []  # without memory
    is_grey = np.zeros_like(Facts(h.shown, h.plan).verdicts, bool)
    h.memory.lately_grey(time.monotonic_ns() + GREY_NS, h.plan, is_grey)
    assert h.found() == []
    assert h.set("t1:1:2").found() == [T1_OR]
    assert h.set("t1:1:2", GOOD).found() == []  # what failed otherwise is forgotten at once


def test_each_key_that_hosts_must_agree_on_changes_the_fingerprint_and_no_other() -> None:
    values: dict[str, Any] = {
        "block": "5f01::/32", "underlay": "fd11::/32", "planes": 3, "evs_per_peer": 12, "encapsulation": "ecmp",
        "udp_port": 4798, "t0s": 4, "t1s": 5,
    }  # fmt: skip
    here = cluster_file.parse(text()).cluster
    assert values.keys() == {*AGREED, *FABRIC}
    prints = {fingerprint(here.model_copy(update={key: value})) for key, value in values.items()}
    assert len(prints - {fingerprint(here)}) == len(values)
    assert fingerprint(here.model_copy(update={"name": "other", "mtu": 1500})) == fingerprint(here)
    assert all(0 < n < 1 << 16 for n in prints)
    # Hosts compare it across versions: changing it makes all hosts differ while they are upgraded.
    assert fingerprint(cluster_file.Cluster()) == 30534


def test_what_the_kernel_says_of_interfaces(tmp_path: Path) -> None:
    assert link_state("lo") in (LinkState.UP, LinkState.DISABLED)
    assert link_state("no-such-nic") is LinkState.MISSING
    if link_state("lo") is LinkState.UP:
        assert link_state("lo", 1 << 20) is LinkState.SMALL_MTU
        assert link_state("lo", 1500) is LinkState.UP
        (tmp_path / "lo").mkdir()
        (tmp_path / "lo/disable_ipv6").write_text("1\n")
        assert link_state("lo", 1500, tmp_path) is LinkState.NO_IPV6
        assert link_state("lo", 1500, tmp_path / "no-ipv6") is LinkState.UP
    (tmp_path / "p0").write_text("ifIndex                         \t3\nIp6InNoRoutes                   \t39\n")
    assert unroutable_packets("p0", tmp_path) == 39
    assert unroutable_packets("p1", tmp_path) == 0
    assert "Ip6InNoRoutes" in Path("/proc/net/dev_snmp6/lo").read_text()  # the name has not changed
