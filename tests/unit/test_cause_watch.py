# SPDX-License-Identifier: BSD-2-Clause
"""Tests the events of causes: one when a cause appears, one when it has ended, and none for a moment of either."""

import asyncio
from typing import Any

import pytest

from mrcd.ctl.phrases import sentence
from mrcd.health.diagnosis import watch
from mrcd.health.diagnosis.causes import Cause, Confidence, Kind, Share
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.rules import diagnose
from mrcd.health.diagnosis.watch import CauseWatch
from mrcd.health.events import EventLog, log_line
from mrcd.kernel.enums import EvState, Reason
from tests.unit.diagnosed_host import GONE, Host


class Watched:
    """A watch of h0's tables, and its events."""

    def __init__(self) -> None:
        self.host = Host()
        self.log = EventLog()
        self.watch = CauseWatch(self.log)

    def look(self, count: int = 1) -> list[str]:
        """Diagnoses some times. Returns the events of that time, as kind, target and what has become of it."""
        before = self.log.last_id
        for _ in range(count):
            self.host.changes["count"][EvState.GOOD, Reason.HEALED] += 1  # so that it looks
            self.watch.note(self.watch.diagnose(self.host.shown, self.host.plan))
        return [f"{e['reason']} {e['evidence']['target']} {e['to']}" for e in self.said()[before:]]

    def said(self) -> list[dict[str, Any]]:
        return asyncio.run(self.log.after(0, 0))


def test_one_event_when_a_cause_appears_and_one_when_it_has_ended() -> None:
    w = Watched()
    assert w.look(3) == []
    w.host.set("t1:1:2")
    assert w.look() == []
    assert w.look(5) == ["t1 t1:1:2 present"]
    assert [c.target for c in w.watch.causes] == ["t1:1:2"]
    w.host.set("t1:1:2", {"state": EvState.GOOD})
    assert w.look() == []
    assert [c.target for c in w.watch.causes] == ["t1:1:2"]
    assert w.look(5) == ["t1 t1:1:2 gone"]
    assert w.watch.causes == []


def test_a_moment_is_no_event() -> None:
    w = Watched()
    for _ in range(5):
        w.host.set("t1:1:2")
        assert w.look() == []
        w.host.set("t1:1:2", {"state": EvState.GOOD})
        assert w.look() == []
    w.host.set("t1:1:2")
    w.look(2)
    w.host.set("t1:1:2", {"state": EvState.GOOD})
    w.look()
    w.host.set("t1:1:2")
    assert w.look(9) == []  # it was not gone for long enough


def test_each_cause_has_its_own_events() -> None:
    w = Watched()
    w.host.set("t1:1:2")
    w.look(2)
    w.host.set("nic:h4:0")
    assert w.look(2) == ["peer_nic nic:h4:0 present"]
    w.host.set("t1:1:2", {"state": EvState.GOOD})
    assert w.look(2) == ["t1 t1:1:2 gone"]
    assert [c.target for c in w.watch.causes] == ["nic:h4:0"]


def test_the_event_says_how_much_it_explains() -> None:
    w = Watched()
    w.host.set("t1:1:2")
    w.look(2)
    (event,) = w.said()
    assert (event["kind"], event["peer"], event["plane"]) == ("fault", None, 1)
    assert event["evidence"] == {"target": "t1:1:2", "evs": "6/6", "peers": "6/6", "or": "link:1:0:2"}
    assert log_line(event) == "fault plane 1: present: t1 (target t1:1:2, evs 6/6, peers 6/6, or link:1:0:2)"
    assert "UTC fault t1:1:2: - → present, t1" in sentence(event)


def test_no_ev_is_read_while_no_state_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Watched()
    reads: list[int] = []

    def read(facts: Facts) -> Any:
        reads.append(1)
        return diagnose(facts)

    monkeypatch.setattr(watch, "diagnose", read)

    def count(times: int = 1) -> int:
        reads.clear()
        for _ in range(times):
            w.watch.diagnose(w.host.shown, w.host.plan)
        return len(reads)

    assert count() == 1
    assert count(30) == 0
    late_ns, (rows, evs) = w.host.path_stats["extra_delay_ns"], w.host.where("t1:1:2")
    late_ns[rows, evs] = 5_000_000
    assert count(10) == 1  # delays change without a state
    late_ns[rows, evs] = 0
    assert count(10) == 1
    assert count(20) == 0
    w.host.set("t1:1:2", GONE)
    w.host.changes["count"][EvState.ASSUMED_BAD, Reason.OVERDUE] += 6
    assert count(3) == 1
    assert count(10) == 1  # until all is well again
    w.host.set("t1:1:2", {"state": EvState.GOOD})
    w.host.changes["count"][EvState.GOOD, Reason.HEALED] += 6
    assert count(3) == 1
    peers = w.host.peers
    for table, name in ((peers, "plane_mask"), (peers, "status"), (peers, "fingerprint"), (w.host.watches, "silent")):
        table[name][4] += 1
        assert count(3) == 1
    w.host.node["plane_mask"] = 1
    assert count(3) == 1


@pytest.mark.parametrize(
    ("kind", "target", "peer", "plane"),
    [
        (Kind.DENIED, "peer:h2 plane:1", "h2", 1),
        (Kind.PEER_NIC, "nic:h2:1", "h2", 1),
        (Kind.OWN_CABLE, "nic:h0:1", None, 1),
        (Kind.LINK, "link:1:0:2", None, 1),
        (Kind.HOST, "host:h0", None, None),
    ],
)
def test_an_event_has_the_peer_and_the_plane_of_its_target(
    kind: Kind, target: str, peer: str | None, plane: int | None
) -> None:
    w = Watched()
    for _ in range(2):
        w.watch.note([Cause(kind, target, "", "", Confidence.CERTAIN, Share())])
    (event,) = w.said()
    assert (event["peer"], event["plane"]) == (peer, plane)
