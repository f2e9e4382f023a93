# SPDX-License-Identifier: BSD-2-Clause
"""Tests the diagnosis: each cause alone, two at once, and nothing wrong."""

import time
from collections.abc import Callable, Mapping
from typing import cast
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.denials import targets
from mrcd.fabric import topology
from mrcd.health.diagnosis.causes import Cause, Confidence, Kind, Severity
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.rules import diagnose
from mrcd.kernel import abi, pinned
from mrcd.kernel.enums import EvState, Reason
from mrcd.net.link_state import LinkState
from tests.cluster_files import host
from tests.unit.arrays import Arrays

S = 10**9
GONE = {"state": EvState.ASSUMED_BAD, "reason": Reason.OVERDUE}
LOSSY = {"state": EvState.ASSUMED_BAD, "reason": Reason.GREY_LOSS}


def text(t0s: int = 3, hosts: int = 3, t1s: int = 4, planes: int = 2, evs: int = 8, more: str = "") -> str:
    """Returns a cluster file with `hosts` hosts under each T0: h0, h1, h2 under T0 0, and so on."""
    head = f"[cluster]\nt0s = {t0s}\nt1s = {t1s}\nplanes = {planes}\nevs_per_peer = {evs}\n{more}\n"
    names = (
        host(i, t0=i // hosts, port=i % hosts, prefixes=f'["10.{i >> 8}.{i & 255}.1/32"]') for i in range(t0s * hosts)
    )
    return head + "".join(names)


LARGE_AND_SMALL = text(t0s=2, hosts=1).replace("t0s = 2", "t0s = 3") + "".join(
    host(i, t0=2, port=i - 2, prefixes=f'["10.9.{i}.1/32"]') for i in range(2, 40)
)
"""h1 alone under T0 1, and 38 hosts under T0 2."""


class Host(Arrays):
    """The tables of h0, with all EVs GOOD and all peers heard."""

    def __init__(self, file: str = "") -> None:
        self.plan = topology.plan(cluster_file.parse(file or text()), "h0")
        c = self.plan.config.cluster
        super().__init__(1 + len(self.plan.peers), c.evs_per_peer)
        self.shown = cast(pinned.Tables, self)
        write_tables.write_peers(self.shown, self.plan, lambda row: None)
        self.now = time.monotonic_ns()
        self.evs["state"][self.evs["configured"] != 0] = EvState.GOOD
        self.evs["last_tx_ns"] = self.now
        self.peers["heard_ns"] = self.now
        self.node["plane_mask"] = (1 << c.planes) - 1
        self.nic_links: dict[str, LinkState] = {}
        self.t0s = {p.host.id: p.host.t0 for p in self.plan.peers}

    def where(self, target: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the rows and EVs that cross a target of `mrcctl deny`."""
        rows = targets.selected(self.plan, targets.parse(target.split()))
        pairs = [(row, ev) for row, evs in rows.items() for ev in evs]
        return np.array([r for r, _ in pairs]), np.array([e for _, e in pairs])

    def set(self, target: str, fields: Mapping[str, int] = GONE, ago_s: float = 60) -> "Host":
        """Gives the EVs that cross a target other values, since `ago_s`."""
        rows, evs = self.where(target)
        for name, value in fields.items():
            self.evs[name][rows, evs] = value
        self.evs["state_since_ns"][rows, evs] = self.now - int(ago_s * S)
        return self

    def causes(self) -> list[Cause]:
        state = self.nic_links.get
        with mock.patch("time.monotonic_ns", return_value=self.now):
            return diagnose(Facts(self.shown, self.plan, None, lambda name: state(name, LinkState.NO_CARRIER)))

    def found(self) -> list[tuple[str, str]]:
        return [(str(c.kind), c.target) for c in self.causes()]

    def cause(self) -> Cause:
        (cause,) = self.causes()
        return cause


def test_nothing_is_wrong() -> None:
    assert Host().causes() == []


def test_congested_evs_and_new_ones_are_no_fault() -> None:
    h = Host().set("t1:1:2", {"state": EvState.SKIP}).set("t1:0:1", {"state": EvState.UNKNOWN}, ago_s=1)
    h.evs["probe_seq"] = 9
    assert h.causes() == []


# ---- each cause alone ----


@pytest.mark.parametrize(
    ("target", "cause", "named", "or_targets"),
    [
        ("t1:1:2", "t1", "t1:1:2", ["link:1:0:2"]),
        ("link:1:0:2", "t1", "t1:1:2", ["link:1:0:2"]),  # all EVs of this host through the T1 cross that link
        ("link:1:2:3", "link", "link:1:2:3", []),
        ("t0:1:2", "t0", "t0:1:2", []),
        ("plane:0", "own_cable", "nic:h0:0", ["t0:0:0"]),
        ("nic:h0:1", "own_cable", "nic:h0:1", ["t0:1:0"]),
        ("t0:1:0", "own_cable", "nic:h0:1", ["t0:1:0"]),
        ("nic:h4:1", "peer_nic", "nic:h4:1", []),
        ("nic:h1:1", "peer_nic", "nic:h1:1", []),  # under the same T0
        ("peer:h4", "peer_down", "peer:h4", []),
        ("ev:h4:6", "unknown", "ev:h4:6", []),
    ],
)
def test_a_dead_element(target: str, cause: str, named: str, or_targets: list[str]) -> None:
    c = Host().set(target).cause()
    assert (str(c.kind), c.target, list(c.or_targets)) == (cause, named, or_targets)
    assert c.confidence is (Confidence.AMBIGUOUS if or_targets else Confidence.LIKELY)
    assert c.kind.severity is (Severity.WARNING if cause == "unknown" else Severity.CRITICAL)
    targets.parse(c.target.split())


def test_a_cause_says_how_much_it_explains_and_since_when() -> None:
    h = Host().set("t1:1:2")
    h.set("ev:h4:6", ago_s=90)  # had failed before
    c = h.cause()
    assert (c.share.evs, c.share.of_evs, c.share.peers, c.share.of_peers) == (6, 6, 6, 6)  # not h1 and h2
    assert c.since_ns == h.now - 60 * S
    assert c.sentence == "Plane 1: T1 2 lets nothing through: 6 of 6 EVs through it have failed, to 6 of 6 peers"
    assert c.do == "`mrcctl trace h3 --ev 6` tells which it is"
    document = c.document(h.now)
    assert (document["cause"], document["target"], document["since_s"]) == ("t1", "t1:1:2", 60)
    assert (document["severity"], document["confidence"]) == ("critical", "ambiguous")
    assert (document["evs"], document["of_evs"], document["peers"], document["of_peers"]) == (6, 6, 6, 6)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (lambda: Host(text(t0s=4, hosts=4)).set("t1:1:2").set("ev:h5:6", {"state": EvState.GOOD}), "t1:1:2"),
        (lambda: Host().set("t1:1:2").set("link:1:1:2", {"state": EvState.GOOD}), "link:1:2:2"),
        (lambda: Host().set("t1:1:2", {"state": EvState.UNKNOWN, "probe_seq": 20}, ago_s=30), "t1:1:2"),
        (lambda: Host(LARGE_AND_SMALL).set("link:1:2:3"), "link:1:2:3"),
    ],
    ids=[
        "a late good EV of many does not hide a dead T1",
        "half of the EVs cross the T1 well",
        "dead since before the start: no probe is answered",
        "the link of a T0 with most peers is not its T1",
    ],
)
def test_a_t1_or_its_link(host: Callable[[], Host], found: str) -> None:
    assert host().found() == [(found.partition(":")[0], found)]


@pytest.mark.parametrize(
    ("evs", "named", "peers"), [("h4:6 h4:7", "peer:h4 plane:1", 1), ("h3:4 h4:6 h6:5", "plane:1", 3)]
)
def test_evs_without_a_common_element(evs: str, named: str, peers: int) -> None:
    h = Host()
    for ev in evs.split():
        h.set(f"ev:{ev}")
    c = h.cause()
    assert (c.kind, c.target, c.share.evs, c.share.peers) == (Kind.UNKNOWN, named, len(evs.split()), peers)
    assert "no switch or link explains them" in c.sentence


@pytest.mark.parametrize(
    ("link", "cause", "target", "said"),
    [
        (LinkState.MISSING, "own_nic", "nic:h0:1", "p1 does not exist"),
        (LinkState.DISABLED, "own_nic", "nic:h0:1", "p1 is switched off"),
        (LinkState.NO_CARRIER, "own_cable", "nic:h0:1", "p1 has no carrier"),
        (LinkState.UP, "own_t0", "t0:1:0", "T0 0 does not answer as first hop"),
    ],
)
def test_an_own_plane_is_down(link: LinkState, cause: str, target: str, said: str) -> None:
    h = Host().set("plane:1", GONE | {"reason": Reason.LINK_DOWN})
    h.node["plane_mask"], h.nic_links["p1"] = 0b01, link
    c = h.cause()
    assert (str(c.kind), c.target, c.confidence) == (cause, target, Confidence.CERTAIN)
    assert said in c.sentence
    assert c.since_ns == h.now - 60 * S
    assert (c.share.evs, c.share.peers) == (6 * 4 + 2, 8)


def test_neighbours_without_a_carrier_too_mean_the_own_t0() -> None:
    h = Host().set("plane:1")
    h.node["plane_mask"] = 0b01
    h.peers["plane_mask"][1:3] = 0b01
    assert h.found() == [("own_t0", "t0:1:0")]
    h.peers["plane_mask"][2] = 0b11
    assert h.found() == [("own_cable", "nic:h0:1")]


@pytest.mark.parametrize(("hosts", "named"), [(1, ("nic:h0:1", "t0:1:0")), (2, ("t0:1:0", "nic:h0:1"))])
def test_a_host_of_at_most_one_neighbour_cannot_tell_cable_from_t0(hosts: int, named: tuple[str, str]) -> None:
    h = Host(text(hosts=hosts))
    h.node["plane_mask"] = h.peers["plane_mask"][1:hosts] = 0b01
    c = h.cause()
    assert ((c.target, *c.or_targets), c.confidence) == (named, Confidence.AMBIGUOUS)


def test_a_peer_says_that_its_nic_is_down() -> None:
    h = Host().set("nic:h4:1", GONE | {"reason": Reason.PEER_LINK_DOWN})
    h.peers["plane_mask"][4] = 0b01
    c = h.cause()
    assert (c.kind, c.target, c.confidence, c.share.evs) == (Kind.PEER_NIC, "nic:h4:1", Confidence.CERTAIN, 4)
    assert c.do == "on h4: `mrcctl status`"


def test_all_peers_under_a_t0_say_that_their_nics_are_down() -> None:
    h = Host()
    h.peers["plane_mask"][3:6] = 0b01
    assert h.found() == [("t0", "t0:1:1")]
    h.peers["plane_mask"][5] = 0b11
    assert h.found() == [("peer_nic", "nic:h3:1"), ("peer_nic", "nic:h4:1")]


def test_a_silent_peer() -> None:
    h = Host()
    h.watches["silent"][4], h.peers["heard_ns"][4] = 1, h.now - 30 * S
    c = h.cause()
    assert (c.kind, c.target, c.since_ns, c.confidence) == (
        Kind.PEER_DOWN, "peer:h4", h.now - 30 * S, Confidence.CERTAIN,
    )  # fmt: skip
    h.peers["heard_ns"][4] = 0
    assert "h4 has never answered" in h.cause().sentence


def test_what_a_silent_peer_s_evs_said_does_not_count() -> None:
    h = Host(text(t0s=2, hosts=2)).set("t1:1:2")  # h2 and h3 are under T0 1
    h.evs["state"][2, 6], h.watches["silent"][2] = EvState.GOOD, 1
    assert h.found() == [("t1", "t1:1:2"), ("peer_down", "peer:h2")]


def test_a_detached_peer_is_a_warning_and_down_if_it_answers_no_more() -> None:
    h = Host()
    h.peers["status"][4] = abi.STATUS_DETACHED
    c = h.cause()
    assert (c.kind, c.target, c.kind.severity) == (Kind.PEER_DETACHED, "peer:h4", Severity.WARNING)
    h.peers["heard_ns"][4] = h.now - 30 * S
    assert h.found() == [("peer_down", "peer:h4")]


def test_a_detached_peer_that_answers_shows_that_this_host_works() -> None:
    h = Host()
    h.watches["silent"][2:] = 1
    h.peers["heard_ns"][2:] = h.now - 30 * S
    h.peers["status"][1] = abi.STATUS_DETACHED
    assert h.found() == [*(("peer_down", f"peer:h{i}") for i in range(2, 9)), ("peer_detached", "peer:h1")]
    h.peers["heard_ns"][1] = h.now - 30 * S  # silent as long as the others
    assert h.found() == [("host", "host:h0")]


def test_a_peer_without_a_plane_in_common_is_still_explained() -> None:
    h = Host()
    h.peers["plane_mask"][4], h.watches["silent"][4] = 0b10, 1
    h.node["plane_mask"] = 0b01
    assert ("peer_nic", "nic:h4:0") in h.found()


def test_a_silent_peer_is_likely_down_if_there_is_one_plane() -> None:
    h = Host(text(planes=1, evs=4))
    h.watches["silent"][4], h.peers["heard_ns"][4] = 1, h.now - 30 * S
    assert h.cause().confidence is Confidence.LIKELY


def test_this_host_is_detached() -> None:
    h = Host().set("t1:1:2")  # nobody watches paths meanwhile
    h.node["status"] = abi.STATUS_DETACHED
    assert h.found() == [("detached", "host:h0")]


@pytest.mark.parametrize("target", ["t1:1:2", "link:1:2:3", "t0:1:2", "nic:h4:1"])
def test_a_lossy_element(target: str) -> None:
    c = Host().set(target, LOSSY).cause()
    assert (c.kind, c.target, c.kind.severity) == (Kind.LOSS, target, Severity.WARNING)
    assert "loses packets" in c.sentence
    assert c.do.endswith(f"--count 500` {'tells which it is' if c.or_targets else 'confirms it'}")


def test_loss_is_concluded_only_from_evs_with_traffic() -> None:
    """Only h3 is sent anything, so that it alone shows the loss of the T1."""
    h = Host().set("ev:h3:6", LOSSY)
    assert h.found() == [("loss", "ev:h3:6")]
    h.evs["last_tx_ns"][1:] = h.now - 300 * S
    h.evs["last_tx_ns"][3] = h.now
    c = h.cause()
    assert (c.kind, c.target, c.or_targets) == (Kind.LOSS, "t1:1:2", ("link:1:0:2", "link:1:1:2"))


def test_a_t1_that_loses_most_packets_is_lossy_although_some_evs_failed() -> None:
    h = Host().set("t1:1:2", LOSSY).set("link:1:1:2", GONE)
    h.evs["reason"][4:6, 6] = Reason.LOSS
    assert h.found() == [("loss", "t1:1:2")]


@pytest.mark.parametrize(
    ("target", "kind"),
    [("plane:1", Kind.SLOW_PLANE), ("t1:1:2", Kind.CONGESTION), ("link:1:2:3", Kind.CONGESTION)],
)
def test_a_slow_element(target: str, kind: Kind) -> None:
    h = Host()
    rows, evs = h.where(target)
    h.path_stats["extra_delay_ns"][rows, evs] = 5_000_000
    c = h.cause()
    assert (c.kind, c.target, c.kind.severity) == (kind, target, Severity.WARNING)
    h.path_stats["extra_delay_ns"][rows, evs] = 1_000_000
    assert h.causes() == []


@pytest.mark.parametrize("t0s", [2, 3])
def test_a_plane_that_is_slow_between_its_t0s(t0s: int) -> None:
    h = Host(text(t0s=t0s))
    for t1 in range(4):
        rows, evs = h.where(f"t1:1:{t1}")
        h.path_stats["extra_delay_ns"][rows, evs] = 5_000_000
    c = h.cause()
    assert (c.kind, c.target, c.confidence) == (Kind.SLOW_PLANE, "plane:1", Confidence.LIKELY)
    assert "all its paths through T1s delay packets" in c.sentence


@pytest.mark.parametrize("target", ["t1:1:2", "link:1:2:3", "t0:1:2", "plane:1", "nic:h4:1", "peer:h4", "ev:h4:6"])
def test_denied_evs_are_named_and_no_fault(target: str) -> None:
    c = Host().set(target, {"state": EvState.DENIED}).cause()
    assert (c.kind, c.target, c.kind.severity, c.or_targets) == (Kind.DENIED, target, Severity.OK, ())


# ---- several at once ----


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (["t1:1:2", "t1:0:3"], {("t1", "t1:1:2"), ("t1", "t1:0:3")}),
        (["t1:1:2", "t1:1:3"], {("t1", "t1:1:2"), ("t1", "t1:1:3")}),
        (["t1:1:2", "t0:1:2"], {("t1", "t1:1:2"), ("t0", "t0:1:2")}),
        (["t1:1:2", "link:1:2:3"], {("t1", "t1:1:2"), ("link", "link:1:2:3")}),
        (["t1:1:2", "nic:h4:1"], {("t1", "t1:1:2"), ("peer_nic", "nic:h4:1")}),
        (["t0:1:2", "peer:h4"], {("t0", "t0:1:2"), ("peer_down", "peer:h4")}),
        (["plane:0", "t1:1:2"], {("own_cable", "nic:h0:0"), ("t1", "t1:1:2")}),
        (["nic:h4:1", "nic:h7:1"], {("peer_nic", "nic:h4:1"), ("peer_nic", "nic:h7:1")}),
        (["t1:1:2", "ev:h4:5"], {("t1", "t1:1:2"), ("unknown", "ev:h4:5")}),
        (["t0:0:2", "t0:1:2"], {("t0", "t0:0:2"), ("t0", "t0:1:2")}),  # fewer than its three peers
    ],
)
def test_two_at_once(targets: list[str], found: set[tuple[str, str]]) -> None:
    h = Host()
    for target in targets:
        h.set(target)
    assert set(h.found()) == found
    assert len(h.causes()) == len(found)


def test_an_own_plane_down_and_a_t1_of_another() -> None:
    h = Host().set("plane:0", GONE | {"reason": Reason.LINK_DOWN}).set("t1:1:2")
    h.node["plane_mask"] = 0b10
    assert h.found() == [("own_cable", "nic:h0:0"), ("t1", "t1:1:2")]  # what explains most comes first


def test_the_urgent_comes_first() -> None:
    h = Host().set("plane:0", {"state": EvState.DENIED}).set("t0:1:2", LOSSY).set("t1:1:3")
    assert [c.kind.severity for c in h.causes()] == [Severity.CRITICAL, Severity.WARNING, Severity.OK]


def test_a_small_t0_beside_a_large_one_that_is_dead() -> None:
    """Nearly all EVs of each T1 are bad, and still it is the T0."""
    h = Host(LARGE_AND_SMALL).set("t0:1:2")
    assert h.found() == [("t0", "t0:1:2")]
    assert set(h.set("t1:1:3").found()) == {("t0", "t0:1:2"), ("t1", "t1:1:3")}
