# SPDX-License-Identifier: BSD-2-Clause
"""Tests what a diagnosis knows from more than one look: refused packets, and EVs left for a grey loss lately."""

import time
from pathlib import Path

import numpy as np
import pytest

from mrcd.health.diagnosis.causes import Cause, Confidence, Kind, Severity
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.memory import GREY_NS, WINDOW_NS, Growth, Memory
from mrcd.health.diagnosis.rules import diagnose
from mrcd.kernel.enums import Drop, EvState
from mrcd.net.link_state import unroutable_packets
from tests.unit.test_diagnosis import GONE, LOSSY, Host, text

S = 10**9


def causes(h: Host, *refused: Drop, unroutable: tuple[int, ...] = ()) -> list[Cause]:
    """Returns the causes on a host that refuses packets for these reasons, or gets some without a route on planes."""
    memory = Memory()
    memory.note_counters(0, {}, dict.fromkeys(unroutable, 100))
    memory.note_counters(S, {reason.text: 7 for reason in refused}, dict.fromkeys(unroutable, 139))
    return diagnose(Facts(h.shown, h.plan, memory))


def silent(*rows: int, file: str = "") -> Host:
    """Returns a host to which these peers answer nothing; without any, none does."""
    h = Host(file)
    h.watches["silent"][list(rows) or slice(None)] = 1
    return h


# ---- refused packets ----


def test_counters_count_for_a_window_and_only_if_they_grew_by_several() -> None:
    g = Growth[str]()
    assert g.update(0, {"a": 90, "b": 3}) == {}  # of the past
    assert g.update(S, {"a": 92, "b": 3}) == {}
    assert g.update(2 * S, {"a": 95, "b": 3, "new": 70}) == {"a": 5}
    for n in range(3, 12):
        assert g.update(n * S, {"a": 95})["a"] == (5 if n <= 10 else 3), n
    assert g.update(2 * S + WINDOW_NS + S, {"a": 95}) == {}


def test_smaller_counters_begin_anew() -> None:
    g = Growth[str]()
    g.update(0, {"a": 90})
    assert g.update(S, {"a": 5}) == {}
    assert g.update(2 * S, {"a": 9}) == {"a": 4}


def test_drops_that_do_not_mean_that_hosts_disagree_are_left_out() -> None:
    memory = Memory()
    memory.note_counters(0, {}, {})
    memory.note_counters(S, {"too_big": 99, "stale": 99, "bad_tag": 9}, {})
    assert memory.refused == {Drop.BAD_TAG: 9}


@pytest.mark.parametrize(
    ("reason", "kind", "do"),
    [
        (Drop.BAD_TAG, Kind.WRONG_KEY, "mrcctl keys status"),
        (Drop.UNKNOWN_KEY, Kind.WRONG_KEY, "mrcctl keys status"),
        (Drop.UNTAGGED, Kind.WRONG_KEY, "mrcctl keys status"),
        (Drop.BAD_EV, Kind.CONFIG_DIFFERS, "mrcctl config show"),
        (Drop.UNKNOWN_SENDER, Kind.CONFIG_DIFFERS, "mrcctl config show"),
        (Drop.WRONG_RECEIVER, Kind.CONFIG_DIFFERS, "mrcctl config show"),
        (Drop.BAD_VERSION, Kind.CONFIG_DIFFERS, "mrcctl version"),
    ],
)
def test_a_silent_peer_whose_packets_are_refused(reason: Drop, kind: Kind, do: str) -> None:
    (c,) = causes(silent(4), reason)
    assert (c.kind, c.target, c.confidence) == (kind, "peer:h4", Confidence.LIKELY)
    assert c.kind.severity is Severity.CRITICAL
    assert f"7 {reason.text}" in c.sentence
    assert do in c.do
    (c,) = causes(silent(), reason)
    assert (c.kind, c.target, c.share.peers) == (kind, "host:h0", 8)


def test_a_key_is_named_before_a_file_because_an_unknown_tag_says_nothing_of_files() -> None:
    (c,) = causes(silent(4), Drop.BAD_TAG, Drop.WRONG_RECEIVER)
    assert c.kind is Kind.WRONG_KEY


def test_refused_packets_of_peers_that_answer_are_no_cause() -> None:
    assert causes(Host(), Drop.BAD_TAG, Drop.BAD_EV, Drop.WRONG_PLANE) == []


def test_of_several_silent_peers_one_has_another_key_and_nobody_knows_which() -> None:
    found = causes(silent(4, 6), Drop.BAD_TAG)
    assert {(c.kind, c.target, c.or_targets) for c in found} == {
        (Kind.WRONG_KEY, "peer:h4", ("peer:h6",)),
        (Kind.PEER_DOWN, "peer:h4", ()),
        (Kind.PEER_DOWN, "peer:h6", ()),
    }
    (wrong,) = (c for c in found if c.kind is Kind.WRONG_KEY)
    assert wrong.candidates("h0") == [(Kind.WRONG_KEY, "peer:h4"), (Kind.WRONG_KEY, "peer:h6")]


def test_the_only_peer_or_this_host_has_the_wrong_key() -> None:
    (c,) = causes(silent(1, file=text(t0s=2, hosts=1)), Drop.BAD_TAG)
    assert (c.kind, c.target, c.or_targets, c.confidence) == (
        Kind.WRONG_KEY, "peer:h1", ("host:h0",), Confidence.AMBIGUOUS,
    )  # fmt: skip


@pytest.mark.parametrize("reason", [Drop.WRONG_PLANE, Drop.WRONG_RECEIVER])
def test_packets_for_another_nic_mean_swapped_cables(reason: Drop) -> None:
    h = Host().set("nic:h0:1")
    (c,) = causes(h, reason)
    assert (c.kind, c.target, c.or_targets) == (Kind.WRONG_CABLE, "nic:h0:1", ())
    assert f"7 {reason.text}" in c.sentence
    h.set("nic:h0:0")  # the cables of both planes
    assert {(c.kind, c.target) for c in causes(h, reason)} == {
        (Kind.WRONG_CABLE, "nic:h0:0"), (Kind.WRONG_CABLE, "nic:h0:1"),
    }  # fmt: skip


def test_packets_without_a_route_mean_swapped_cables_of_the_planes_on_which_they_arrive() -> None:
    h = Host().set("nic:h0:1")
    (c,) = causes(h, unroutable=(1,))
    assert (c.kind, c.target) == (Kind.WRONG_CABLE, "nic:h0:1")
    assert "39 without a route on p1" in c.sentence
    (c,) = causes(h, unroutable=(0,))
    assert (c.kind, c.target, c.or_targets) == (Kind.OWN_CABLE, "nic:h0:1", ("t0:1:0",))
    h.set("nic:h0:0")
    assert {(c.kind, c.target) for c in causes(h, unroutable=(0, 1))} == {
        (Kind.WRONG_CABLE, "nic:h0:0"), (Kind.WRONG_CABLE, "nic:h0:1"),
    }  # fmt: skip


def test_the_kernel_counts_packets_without_a_route_by_interface(tmp_path: Path) -> None:
    (tmp_path / "p0").write_text("ifIndex                         \t3\nIp6InNoRoutes                   \t39\n")
    assert unroutable_packets("p0", tmp_path) == 39
    assert unroutable_packets("p1", tmp_path) == 0
    assert "Ip6InNoRoutes" in Path("/proc/net/dev_snmp6/lo").read_text()  # the name has not changed


def test_packets_for_another_nic_do_not_explain_a_dead_t1() -> None:
    (c,) = causes(Host().set("t1:1:2"), Drop.WRONG_PLANE, unroutable=(1,))
    assert (c.kind, c.target) == (Kind.T1, "t1:1:2")


# ---- grey losses ----


def test_an_ev_that_returned_after_a_grey_loss_still_counts_for_a_minute() -> None:
    h, memory = Host().set("link:1:2:3", LOSSY), Memory()

    def found() -> list[tuple[str, str]]:
        return [(str(c.kind), c.target) for c in diagnose(Facts(h.shown, h.plan, memory))]

    assert found() == [("loss", "link:1:2:3")]
    h.set("link:1:2:3", {"state": EvState.GOOD})
    assert found() == [("loss", "link:1:2:3")]
    assert diagnose(Facts(h.shown, h.plan)) == []  # without memory
    is_grey = np.zeros_like(Facts(h.shown, h.plan).verdicts, bool)
    memory.lately_grey(time.monotonic_ns() + GREY_NS, h.plan, is_grey)
    assert found() == []


def test_an_ev_that_failed_otherwise_is_forgotten_at_once() -> None:
    h, memory = Host().set("t1:1:2", GONE), Memory()
    assert diagnose(Facts(h.shown, h.plan, memory))
    h.set("t1:1:2", {"state": EvState.GOOD})
    assert diagnose(Facts(h.shown, h.plan, memory)) == []


def test_evs_that_lost_something_lately_do_not_acquit_their_link() -> None:
    """The grey-loss test takes some seconds longer for one of the peers under a T0 than for another."""
    h = Host().set("ev:h6:7", LOSSY)
    assert h.found() == [("loss", "ev:h6:7")]
    rows, evs = h.where("link:1:2:3")
    h.path_stats["loss_ns"][rows, evs] = h.now - 5 * S
    assert h.found() == [("loss", "link:1:2:3")]
    h.evs["state_since_ns"][rows, evs] = h.now - 4 * S  # they have returned since
    assert h.found() == [("loss", "ev:h6:7")]
    h.evs["state_since_ns"][rows, evs] = h.now - 60 * S
    h.path_stats["loss_ns"] = h.now - 5 * S  # everything loses something
    assert h.found() == [("loss", "ev:h6:7")]
