# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fleet links`: simulated faults are named and nothing else; the likelihood; what is read, and when."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from labkit.cluster import simulated_fabric
from labkit.cluster.simulated_fabric import Fabric, Fault, Simulation, directions
from mrcd.fleet_links.counts import Direction, Element, Fleet, HostSums, Kind, Sums
from mrcd.fleet_links.document import HISTORY_S, _History
from mrcd.fleet_links.likelihood import NOTHING, Cells, Fit, Views, fit
from mrcd.fleet_links.read import HOST, Names, Reader
from mrcd.fleet_links.search import Found, Result, better, localise
from mrcd.prometheus import Prometheus, Sample, Series

FABRIC = Fabric(planes=2, t0s=4, t1s=4, hosts_per_t0=8, slots=4)
UP, DOWN, BOTH = Direction.UP, Direction.DOWN, Direction.BOTH
LINK, NIC = Element(Kind.LINK, BOTH, 1, 2, 3), Element(Kind.NIC, BOTH, 0, host=21)
T1, T0 = Element(Kind.T1, BOTH, 1, t1=2), Element(Kind.T0, BOTH, 0, 3)


def simulated(fabric: Fabric) -> Simulation:
    rng = np.random.default_rng(5)
    return Simulation(fabric, simulated_fabric.draw(fabric, rng), rng)


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulated(FABRIC)


def named(simulation: Simulation, *faults: Fault) -> set[Element]:
    return {f.element for f in localise(simulation.observe(simulation.losses(faults)))}


def truth(*elements: Element) -> set[Element]:
    return {replace(e, direction=d) for e in elements for d in directions(e)}


@pytest.mark.parametrize("ratio", [0.005, 1.0])
@pytest.mark.parametrize(
    "element",
    [
        *(replace(LINK, direction=d) for d in Direction),
        *(replace(NIC, direction=d) for d in Direction),
        *(replace(T0, direction=d) for d in Direction),
        T1,
    ],
    ids=lambda e: f"{e.kind}-{e.direction}",
)
def test_one_fault_is_named_with_its_direction(simulation: Simulation, element: Element, ratio: float) -> None:
    assert named(simulation, Fault(element, ratio)) == truth(element)


@pytest.mark.parametrize("ratio", [0.005, 1.0])
def test_faults_in_several_planes_and_in_one(simulation: Simulation, ratio: float) -> None:
    everywhere = (LINK, T0)
    assert named(simulation, *(Fault(e, ratio) for e in everywhere)) == truth(*everywhere)
    in_one = (Element(Kind.LINK, DOWN, 1, 2, 3), Element(Kind.NIC, DOWN, 1, host=3), Element(Kind.T0, BOTH, 1, 1))
    assert named(simulation, *(Fault(e, ratio) for e in in_one)) == truth(*in_one)


@pytest.mark.parametrize(("planes", "rails"), [(4, 2), (4, 4)])
def test_a_t1_of_several_planes_is_one_element(planes: int, rails: int) -> None:
    """Where all planes share their T1s, what a T1 loses must not count as congestion."""
    shared = simulated(replace(FABRIC, planes=planes, rails=rails))
    t1 = Element(Kind.T1, BOTH, 0, t1=2)
    others = truth(Element(Kind.LINK, BOTH, 3, 1, 3))
    assert named(shared) == set()
    for ratio in (0.0001, 0.005, 1.0):  # few packets in each plane, many, all
        assert named(shared, Fault(t1, ratio)) == {t1}
        assert named(shared, Fault(t1, ratio), *(Fault(e, 0.01) for e in others)) == {t1, *others}
    t1s = {replace(t1, plane=p) for p in range(planes // rails)}
    assert named(shared, *(Fault(t, 0.01) for t in t1s)) == t1s


def test_t1s_of_all_planes_at_once() -> None:
    """Each of them has a small part of the losses by peer, which all planes have."""
    t1s = {Element(Kind.T1, BOTH, plane, t1=n) for plane, n in ((0, 1), (0, 5), (1, 3), (1, 5))}
    link = Element(Kind.LINK, UP, 3, 1, 6)
    shared = simulated(Fabric(planes=4, t0s=8, t1s=8, hosts_per_t0=16, slots=8, rails=2))
    assert named(shared, *(Fault(e, 0.2) for e in (*t1s, link))) == {*t1s, link}


def test_without_a_fault_nothing_is_named(simulation: Simulation) -> None:
    assert named(simulation) == set()


@pytest.mark.parametrize("rails", [1, 2])
def test_loss_on_all_planes_is_no_fault_of_the_fabric(rails: int) -> None:
    """A receiver that is too busy drops packets of all planes alike."""
    simulation = simulated(replace(FABRIC, rails=rails))
    fleet = simulation.observe(simulation.losses([]))
    busy, t0 = 20, 20 // FABRIC.hosts_per_t0
    pairs = np.flatnonzero(fleet.peer_host == busy)
    lost = fleet.peer.sent[pairs] * 1e-4
    fleet.peer.lost[pairs] += lost
    for p in range(FABRIC.planes):
        sources = fleet.peer_source[pairs]
        np.add.at(fleet.peer_t0.lost[p, :, t0], sources, lost / FABRIC.planes)
        far = sources != t0
        by_t1 = np.repeat(lost[far, None] / FABRIC.planes / FABRIC.t1s, FABRIC.t1s, axis=1)
        np.add.at(fleet.uplink.lost[p], sources[far], by_t1)
    assert localise(fleet) == []


def test_the_ratio_the_lost_packets_and_the_confidence(simulation: Simulation) -> None:
    (found,) = localise(simulation.observe(simulation.losses([Fault(replace(LINK, direction=UP), 0.001)])))
    assert 0.0009 < found.ratio < 0.0011
    sent = simulation.observe(simulation.losses([])).uplink.sent[1, 2, 3]
    assert 0.0009 * sent < found.lost < 0.0011 * sent
    assert (found.confidence, found.alternatives) == (1.0, ())


def tiny(lost_by_uplink: list[list[float]]) -> Fleet:
    """One plane, two T0s with a host each, two T1s. Both hosts send a million packets, half of them by each T1."""
    sent = np.full((1, 2, 2), 500_000.0)
    lost = np.array([lost_by_uplink])
    to = np.array([[[0.0, 1e6], [1e6, 0.0]]])
    lost_to = np.zeros((1, 2, 2))
    lost_to[0, [0, 1], [1, 0]] = lost[0].sum(axis=1)
    of_peer, lost_of_peer = np.array([1e6, 1e6]), lost[0].sum(axis=1)

    def read(hosts: object) -> list[HostSums]:
        return [
            HostSums(
                Sums(sent[:, h], lost[:, h]), Sums(to[:, h], lost_to[:, h]),
                Sums(of_peer[h : h + 1], lost_of_peer[h : h + 1]), np.array([1 - h]),
            )
            for h in hosts  # type: ignore[attr-defined]
        ]  # fmt: skip

    return Fleet(
        Sums(sent, lost), Sums(to, lost_to), Sums(of_peer, lost_of_peer), np.array([0, 1]), np.array([1, 0]),
        Sums(np.full((2, 1), 1e6), lost[0].sum(axis=1, keepdims=True)), np.array([0, 1]), read,
    )  # fmt: skip


def only(fleet: Fleet) -> Found:
    (found,) = localise(fleet)
    return found


def test_what_cannot_be_told_apart_is_said() -> None:
    """All packets of T0 0 by T1 1 also come down to T0 1; and a T0 with one host is as its NIC."""
    found = only(tiny([[0, 500], [0, 0]]))
    ends = {Element(Kind.LINK, UP, 0, 0, 1), Element(Kind.LINK, DOWN, 0, 1, 1)}
    assert {found.element, *found.alternatives} == ends
    assert found.confidence == pytest.approx(0.5)
    found = only(tiny([[500, 500], [0, 0]]))
    assert {e.kind for e in (found.element, *found.alternatives)} == {Kind.NIC, Kind.T0}
    assert found.confidence < 0.5


def test_few_lost_packets_name_nothing() -> None:
    assert localise(tiny([[0, 7], [0, 0]])) == []
    assert localise(tiny([[0, 40], [0, 0]])) != []


def test_a_fleet_without_traffic_and_one_without_t1s() -> None:
    fleet = tiny([[0, 0], [0, 0]])
    for sums in (fleet.uplink, fleet.peer_t0, fleet.peer, fleet.host):
        sums.sent[...] = 0
    assert localise(fleet) == []
    fleet = tiny([[0, 900], [0, 0]])
    none = Sums(np.zeros((1, 0)), np.zeros((1, 0)))
    found = only(replace(
        fleet,
        uplink=Sums(np.zeros((1, 2, 0)), np.zeros((1, 2, 0))),
        read=lambda hosts: [replace(sums, uplink=none) for sums in fleet.read(hosts)],
    ))  # fmt: skip
    assert {e.kind for e in (found.element, *found.alternatives)} <= {Kind.NIC, Kind.T0}


def cells(lost: list[float], crossing: list[float]) -> Cells:
    size = len(lost)
    usual = np.full(size, 0.1)
    return Cells(np.array(lost), usual, usual, np.array(crossing), np.ones(size, bool), np.ones(size))


def test_a_fit_has_the_same_losses_in_all_views() -> None:
    """The third view overstates what crossed: its ratio is smaller, its losses are the same."""
    found = fit(Views(cells([50, 50], [1000, 1000]), cells([100], [2000]), cells([100], [20_000])))
    assert found.lost == pytest.approx(100, rel=0.01)
    assert (found.ratio, found.pair_ratio) == pytest.approx((0.05, 0.005), rel=0.01)
    assert found.even == pytest.approx(1.0, rel=0.02)
    assert found.least == pytest.approx(0.998, rel=0.01)


def test_a_fit_says_how_evenly_and_where_losses_are() -> None:
    uneven = fit(Views(cells([100, 0, 0, 0], [1000] * 4), cells([100], [4000]), cells([100], [4000])))
    assert uneven.even == pytest.approx(0.25, abs=0.02)
    elsewhere = fit(Views(cells([0], [1000]), cells([100], [1000]), cells([100], [1000])))
    assert elsewhere.least < 0


def test_one_view_alone_is_no_second_one() -> None:
    alone = fit(Views(cells([300], [1000]), cells([0], [1000]), cells([0], [1000])))
    agreed = fit(Views(*(cells([300], [1000]) for _ in range(3))))
    assert alone.second < 0 < agreed.second


@pytest.mark.parametrize("crossing", [0.0, 1000.0])
def test_nothing_lost_or_nothing_sent_is_no_fit(crossing: float) -> None:
    assert fit(Views(*(cells([0], [crossing]) for _ in range(3)))) == NOTHING
    assert fit(Views(*(cells([9], [0.0]) for _ in range(3)))) == NOTHING


def test_more_elements_must_explain_much_more() -> None:
    def result(value: float, *elements: Element) -> Result:
        return Result(value, {e: Fit(100, 1000, 0.1, 0.1, 1, 1, 1000, 1000) for e in elements})

    links = [Element(Kind.LINK, UP, 2, t0, 6) for t0 in range(3)]
    one, many = result(1000, T1), result(1030, *links)
    assert better(one, many) is one
    assert better(many, one) is one
    assert better(one, result(1100, *links)).chosen.keys() == set(links)
    both = result(1001, Element(Kind.LINK, UP, 2, 0, 6), Element(Kind.LINK, DOWN, 2, 0, 6))
    assert better(one, both) is both  # one cable


# ---- what is read ----

MOST_STEPS = 11_000  # of Prometheus' API, in one answer


class Answers:
    """Answers the queries of a Reader: 1,000 packets in each series, of which all arrive."""

    def __init__(self, hosts: list[dict[str, str]], series: dict[str, list[dict[str, str]]]) -> None:
        self._hosts, self._series = hosts, series

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Returns the sums of some series by some labels."""
        if expression == HOST:
            return [(host, 1.0) for host in self._hosts]
        found = re.match(r"sum by \(([^)]*)\) \(increase\((\w+)_[tr]x_packets_total", expression)
        assert found
        names = found[1].split(", ")
        sums: dict[tuple[str, ...], float] = {}
        for labels in self._series[found[2]]:
            key = tuple(labels[name] for name in names)
            sums[key] = sums.get(key, 0.0) + 1000
        return [(dict(zip(names, key, strict=True)), value) for key, value in sums.items()]


@pytest.mark.parametrize(
    ("rails", "found"), [(["2", "2"], 2), (["", "", "2"], 2), (["3", "3"], 1), (["x", "0"], 1), ([""], 1)]
)
def test_the_rails_that_most_hosts_say(rails: list[str], found: int) -> None:
    """Hosts of an older version say none; four planes are no multiple of three rails."""
    hosts = [{"host": f"h{i}", "t0": "0"} | ({"rails": r} if r else {}) for i, r in enumerate(rails)]
    to_t0 = [hosts[0] | {"plane": "3", "peer_t0": "0"}]
    sent = {"mrc_fabric_uplink": [], "mrc_fabric_t0": to_t0, "mrc_fabric_peer": []}
    assert Reader(cast(Prometheus, Answers(hosts, sent)), 0.0, 60.0).fleet.rails == found


def test_a_host_that_moves_to_another_t0() -> None:
    """h1 has its new cluster file already, and h0 sent packets to it under the T0 before, which is empty now."""
    h0, h1 = {"host": "h0", "t0": "0"}, {"host": "h1", "t0": "2"}
    sent = {
        "mrc_fabric_uplink": [h0 | {"plane": "0", "t1": "0"}, h1 | {"plane": "0", "t1": "0"}],
        "mrc_fabric_t0": [h0 | {"plane": "0", "peer_t0": "1"}, h1 | {"plane": "0", "peer_t0": "0"}],
        "mrc_fabric_peer": [h0 | {"peer": "h1", "peer_t0": "1"}, h1 | {"peer": "h0", "peer_t0": "0"}],
    }
    reader = Reader(cast(Prometheus, Answers([h0, h1], sent)), 0.0, 60.0)
    assert (reader.names.t0s, reader.names.hosts) == (["0", "1", "2"], ["h0", "h1"])
    assert reader.fleet.peer_t0.sent.tolist() == [[[0, 1000, 0], [0, 0, 0], [1000, 0, 0]]]
    assert localise(reader.fleet) == []


class Loss:
    """Answers range queries: 20 packets lost per second since a time."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.expression = ""

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Returns what was lost in the window before each step."""
        self.expression = expression
        count = int((end - start) / step) + 1
        assert count <= MOST_STEPS
        times = [start + k * step for k in range(count)]
        return [({}, [(t, 20 * max(0.0, min(step, t - self._began))) for t in times])]


@pytest.mark.parametrize(
    ("window_s", "age_s", "since_s"),
    [
        (2.0, 7.0, 8.0),  # the least window
        (60.0, 150.0, 180.0),
        (60.0, HISTORY_S + 600, None),
        (4 * 3600.0, 3600.0, 4 * 3600.0),
        (24 * 3600.0, 3600.0, 24 * 3600.0),  # longer than the history
        (24 * 3600.0, 30 * 3600.0, None),
    ],
)
def test_since_when_a_part_loses_packets(window_s: float, age_s: float, since_s: float | None) -> None:
    at = 1e6
    reader = SimpleNamespace(
        names=Names(["0"], ["0"], ["h0"], 1),
        fleet=SimpleNamespace(t0_of_host=np.zeros(1, np.int64), planes_of=lambda e: [e.plane]),
    )
    history = _History(cast(Prometheus, Loss(at - age_s)), at, window_s, cast(Reader, reader))
    link = Element(Kind.LINK, UP, 0, 0, 0)
    assert history.since_s(link, 20 * min(window_s, age_s)) == since_s


def test_the_series_of_a_t1_are_those_of_all_its_planes() -> None:
    shared = simulated(replace(FABRIC, planes=4, rails=2))
    reader = SimpleNamespace(names=Names([], ["0", "1", "2"], [], 1), fleet=shared.observe(shared.losses([])))
    server = Loss(0.0)
    _History(cast(Prometheus, server), 1e6, 60.0, cast(Reader, reader)).since_s(replace(T1, plane=0), 20.0)
    assert '{plane=~"0|2", t1="2"}' in server.expression
