# SPDX-License-Identifier: BSD-2-Clause
"""Tests plans of fabrics: sizes, what is refused, the cluster file, cables, and what failures leave."""

import itertools
from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from mrcd.config import cluster_file
from mrcd.errors import UsageError
from mrcd.fabric import topology
from mrcd.planner import failures
from mrcd.planner.fabric_plan import FabricPlan, Wanted, plan
from mrcd.planner.switches.formats import FORMATS

LARGEST = Wanted(hosts=16_384, planes=8, radix=256)


@pytest.mark.parametrize(
    ("wanted", "t0s", "t1s", "hosts_per_t0", "evs"),
    [
        (LARGEST, 128, 128, 128, 256),
        (Wanted(hosts=65_535, planes=2, radix=512), 256, 256, 256, 256),
        (Wanted(hosts=100, planes=4, radix=64), 4, 25, 25, 100),  # evenly over as few T0s as there can be
        (Wanted(hosts=32, planes=4, radix=64), 1, 0, 32, 4),  # one T0 needs no T1
        (Wanted(hosts=1, planes=1, radix=2), 1, 0, 1, 1),
        (Wanted(hosts=96, radix=64, hosts_per_t0=48, t1s=16), 2, 16, 48, 64),
        (Wanted(hosts=64, planes=3, radix=64, evs_per_peer=32), 2, 32, 32, 30),
    ],
)
def test_sizes(wanted: Wanted, t0s: int, t1s: int, hosts_per_t0: int, evs: int) -> None:
    p = plan(wanted)
    assert (p.t0s, p.t1s, p.hosts_per_t0, p.evs_per_peer) == (t0s, t1s, hosts_per_t0, evs)
    assert p.nics == wanted.hosts * wanted.planes


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(hosts=4096, radix=64), ["128 T0s", "64", "third tier", "wire 2048 hosts"]),
        (Wanted(hosts=65_536, planes=2, radix=512), ["65536 hosts", "1 to 65535", "host ids"]),
        (Wanted(hosts=0, planes=17), ["0 hosts", "17 planes", "1 to 16"]),
        (Wanted(hosts=8, evs_per_peer=3), ["3 evs", "every plane"]),
        (Wanted(hosts=8, evs_per_peer=257), ["257 evs"]),
        (Wanted(hosts=64, radix=64, hosts_per_t0=60, t1s=8), ["60 + 8 ports", "a switch has 64"]),
        (Wanted(hosts=128, radix=64, t1s=0), ["4 T0s without a T1"]),
        (Wanted(hosts=30_000, radix=1024, hosts_per_t0=50, t1s=16), ["600 T0s", "mrcd knows 512"]),
        (Wanted(hosts=8, radix=1), ["1 radix"]),
        (Wanted(hosts=8, planes=4, rails=3), ["4 planes", "3 rails"]),
        (Wanted(hosts=8, planes=16, rails=16, radix=8), ["16 × 2 T0s", "16 ports at least"]),
        (Wanted(hosts=1024, planes=4, rails=4, radix=64), ["4 × 32 T0s", "512 hosts"]),
        (Wanted(hosts=300, radix=64, prefixes=(IPv4Network("255.255.255.0/32"),)), ["300 prefixes from 255"]),
    ],
    ids=lambda w: str(w) if isinstance(w, Wanted) else "",
)
def test_what_cannot_be_wired_is_refused_with_its_reasons(wanted: Wanted, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        plan(wanted)
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("wanted", [Wanted(hosts=100), Wanted(hosts=1), Wanted(hosts=32), Wanted(hosts=70, planes=3)])
def test_the_cluster_file_has_every_host_at_its_cable(wanted: Wanted) -> None:
    p = plan(wanted)
    config = cluster_file.parse(p.cluster_file())
    assert [h.name for h in config.hosts] == [p.host_name(n) for n in range(wanted.hosts)]
    cables = {lower: (upper, port) for lower, nic, upper, port in p.cables() if nic == "nic 0"}
    assert cables == {h.name: (f"t0-0-{h.t0}", str(h.port)) for h in config.hosts}
    mine = topology.plan(config, config.hosts[0].name)
    far = [peer for peer in mine.peers if peer.host.t0 != 0]
    assert all(peer.ev_count == p.evs_per_peer for peer in far)


@pytest.mark.parametrize("wanted", [Wanted(hosts=12, planes=2, radix=8), Wanted(hosts=12, planes=4, rails=2, radix=8)])
def test_the_cables_are_those_of_the_switches_ports(wanted: Wanted) -> None:
    p = plan(wanted)
    switches = FORMATS["iproute2"].switches(cluster_file.parse(p.cluster_file()))
    found = set()
    for switch in map(switches.switch, switches.names):
        for port in switch.ports:
            if switch.kind == "t0" and not port.is_uplink:
                found.add((port.neighbour, f"nic {switch.plane}", switch.name, str(port.number)))
            elif port.is_uplink:
                t1 = switches.switch(port.far_switch or "")
                (end,) = (end for end in t1.ports if end.far_switch == switch.name)
                found.add((switch.name, str(port.number), t1.name, str(end.number)))
    assert found == set(p.cables())
    assert len(list(switches.names)) == p.switches


# ---- failures, beside all of them one by one ----


def evs_of_pair(p: FabricPlan) -> list[tuple[int, int]]:
    """The (plane, T1) of each EV between the first and the last host."""
    config = cluster_file.parse(p.cluster_file())
    (peer,) = (x for x in topology.plan(config, config.hosts[0].name).peers if x.host.name == config.hosts[-1].name)
    return [(ev.plane, ev.t1 if ev.t1 is not None else -1) for ev in peer.evs]


def failed(p: FabricPlan, part: failures.Part) -> list[frozenset[tuple[int, int]]]:
    """The (plane, T1) that each part of the first host takes away."""
    everything = [(plane, t1) for plane in range(p.planes) for t1 in (range(p.t1s) if p.t1s else (-1,))]
    if part == "t1":  # a switch of all rails
        first = [place for place in everything if place[0] < p.planes_with_t1s]
        return [frozenset((rail, t1) for rail in range(plane, p.planes, p.planes_with_t1s)) for plane, t1 in first]
    if part == "link":
        return [frozenset([place]) for place in everything]
    return [frozenset(x for x in everything if x[0] == plane) for plane in range(p.planes)]


def worst(p: FabricPlan, part: failures.Part, n: int) -> Iterator[tuple[int, int]]:
    """Yields EVs and planes that are left, for each choice of n parts."""
    evs = evs_of_pair(p)
    for chosen in itertools.combinations(failed(p, part), n):
        left = [ev for ev in evs if not any(ev in taken for taken in chosen)]
        yield len(left), len({plane for plane, _ in left})


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(hosts=6, planes=2, radix=6),
        Wanted(hosts=12, planes=2, radix=12, evs_per_peer=4),  # thinned: six T1s, two EVs in each plane
        Wanted(hosts=4, planes=3, radix=64),  # one T0
        Wanted(hosts=6, planes=4, rails=2, radix=6),
    ],
)
def test_what_is_left_is_the_worst_of_all_failures(wanted: Wanted) -> None:
    p = plan(wanted)
    for part in failures.parts(p):
        for n in range(len(failed(p, part)) + 1):
            found = failures.outcome(p, part, n)
            each = list(worst(p, part, n))
            assert (found.evs, found.planes) == (min(e for e, _ in each), min(planes for _, planes in each)), (part, n)
        for evs in (1, failures.floor(p)):
            fewest = failures.first_below(p, part, evs)
            assert min(e for e, _ in worst(p, part, fewest)) < evs <= min(e for e, _ in worst(p, part, fewest - 1))


def test_with_rails_and_fewer_evs_than_t1s_more_may_be_left_than_is_said() -> None:
    """As if the EVs of all rails crossed the same T1s; they are spread over more."""
    p = plan(Wanted(hosts=12, planes=4, rails=2, radix=12, evs_per_peer=8))
    for n in range(len(failed(p, "t1")) + 1):
        found = failures.outcome(p, "t1", n)
        assert all(found.evs <= evs and found.planes <= planes for evs, planes in worst(p, "t1", n))


def test_capacity_and_hosts_of_failures() -> None:
    p = plan(Wanted(hosts=64, planes=4, radix=16))
    assert (p.t0s, p.t1s) == (8, 8)
    assert [failures.outcome(p, part, 2).capacity for part in failures.parts(p)] == [
        *(1.0, 1 - 2 / 32, 1 - 2 / 32, 1 - 2 / 256, 0.5),
    ]
    assert [failures.outcome(p, part, 1).hosts for part in failures.parts(p)] == [1, 8, 64, 8, 64]
    assert failures.outcome(p, "t1", 0).hosts == 0
