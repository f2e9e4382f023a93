# SPDX-License-Identifier: BSD-2-Clause
"""Tests what the web page's document says: verdict, causes, map, rates, events, and its bounded size."""

import json
from typing import Any

import numpy as np
import pytest

from mrcd.api.metrics import page_document, rates, recent_events
from mrcd.api.metrics.rates import Rates, Sample
from mrcd.kernel.enums import EvState
from tests import cluster_files
from tests.unit import canned_daemon
from tests.unit.arrays import TEXT
from tests.unit.test_metrics import Host

NO_MAP: dict[str, Any] = {"states": [], "t1s": 0, "planes": []}
CAUSE = {
    "cause": "t1", "target": "t1:1:2", "or_targets": [], "severity": "critical", "confidence": "likely", "since_s": 3.0,
    "evs": 12, "of_evs": 12, "peers": 3, "of_peers": 3, "sentence": "Plane 1: T1 2 is dead", "do": "check T1 2",
}  # fmt: skip


def status(**changes: Any) -> dict[str, Any]:
    """Returns a status without faults, except for changes."""
    planes = [{"plane": p, "interface": f"p{p}", "hook": "tcx", "hook_reason": "", "up": True} for p in range(2)]
    well = {"planes": planes, "probing": {"tick_age_s": 0.01}, "evs": {"GOOD": 36}, "denials": []}
    return canned_daemon.STATUS | well | changes


def document(**changes: Any) -> dict[str, Any]:
    return page_document.document(status(**changes), [], NO_MAP, Rates().document(), [])


def test_all_is_well() -> None:
    found = document()
    assert (found["level"], found["headline"], found["causes"], found["notes"]) == ("ok", "All well", [], [])


def test_a_diagnosis_is_shown_as_it_is() -> None:
    found = document(diagnosis=[CAUSE, CAUSE | {"target": "t1:1:3", "severity": "warning"}])
    assert (found["level"], found["headline"], len(found["causes"])) == ("critical", "Wrong now: 2 causes", 2)
    assert found["causes"][0] == CAUSE
    assert document(diagnosis=[CAUSE | {"severity": "warning"}])["level"] == "warning"
    assert document(diagnosis=[CAUSE | {"severity": "ok"}])["headline"] == "All well"
    assert document(diagnosis=[], evs={"ASSUMED_BAD": 3})["headline"] == "All well"  # the diagnosis knows better


@pytest.mark.parametrize(("age_s", "words"), [(None, "just started"), (12.0, "12 s old")])
def test_old_states_are_not_called_well(age_s: float | None, words: str) -> None:
    found = document(probing={"tick_age_s": age_s})
    assert (found["level"], words in found["headline"]) == ("unknown", True)


def test_notes() -> None:
    planes = [{"plane": 0, "interface": "p0", "up": True, "fallback": True, "hook": "tcx", "hook_reason": "refused"}]
    other = {"program": "guard", "position": "before", "point": "xdp", "interface": "p0"}
    notes = document(planes=planes, other_programs=[other], pins={"lost": "nothing is pinned at /x"})["notes"]
    assert [word in note for word, note in zip(("/x", "native XDP", "guard runs before"), notes, strict=True)] == [
        1
    ] * 3


def test_the_map_counts_states() -> None:
    host = Host()
    host.evs["state"][1, 1] = EvState.SKIP  # h1: plane 0, T1 1
    host.evs["state"][3, 1] = EvState.ASSUMED_BAD
    found = host.view.path_map()
    assert found["states"] == ["GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNKNOWN"]
    assert found["planes"][0]["t1s"] == [[2, 0, 0, 0, 0], [0, 1, 1, 0, 0], [2, 0, 0, 0, 0], [2, 0, 0, 0, 0]]
    assert found["planes"][1]["without_t1"] == [1, 0, 0, 0, 0]  # h2 is under the same T0
    total = sum(sum(cell) for p in found["planes"] for cell in [*p["t1s"], p["without_t1"]] if cell)
    assert total == int((host.evs["configured"] != 0).sum())


def test_the_map_of_ecmp_and_of_a_host_without_peers() -> None:
    found = Host(TEXT.replace("[cluster]", '[cluster]\nencapsulation = "ecmp"')).view.path_map()
    assert {cell for p in found["planes"] for cell in p["t1s"]} == {None}
    assert all(sum(p["without_t1"]) for p in found["planes"])
    alone = Host(f"[cluster]\nt0s = 2\nt1s = 4\nplanes = 4\nevs_per_peer = 16\n{cluster_files.host(0, t0=0, port=0)}")
    assert {cell for p in alone.view.path_map()["planes"] for cell in [*p["t1s"], p["without_t1"]]} == {None}


def test_each_ev_is_counted_at_its_own_t1() -> None:
    """Also if there are more T1s than EVs in a plane, where a hash chooses them."""
    hosts = "".join(cluster_files.host(i, t0=i % 4, port=i // 4) for i in range(12))
    host = Host(f"[cluster]\nt0s = 4\nt1s = 32\nplanes = 2\nevs_per_peer = 16\n{hosts}", 12, 16)
    found = host.view.path_map()
    counted = np.zeros((2, 33), np.int64)
    for peer in host.plan.peers:
        for ev in peer.evs:
            counted[ev.plane, -1 if ev.t1 is None else ev.t1] += 1
    shown = [[sum(cell or ()) for cell in [*p["t1s"], p["without_t1"]]] for p in found["planes"]]
    assert shown == counted.tolist()


def test_the_worst_peers_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic_ns", lambda: 10**15)
    host = Host()
    host.peers["heard_ns"][[1, 2, 3]] = 10**15
    host.evs["state"][3, :3] = EvState.ASSUMED_BAD
    assert [p["peer"] for p in host.view.peers(most=2)] == ["h3", "h1"]
    host.peers["heard_ns"][2] = 0
    assert [p["peer"] for p in host.view.peers(most=2)] == ["h2", "h3"]
    assert [p["peer"] for p in host.view.peers()] == ["h1", "h2", "h3"]


# ---- rates ----


NET_DEV = """\
Inter-|   Receive                                             |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    1000      10    0    0    0     0          0         0     1000    10    0    0    0     0       0          0
   p0: 5000  10    0    0    0     0          0         0     7000      10    0    0    0     0       0          0
p0.100:12345      10    0    0    0     0          0         0     8      10    0    0    0     0       0          0
"""


def test_interface_counters() -> None:
    assert rates.read_interfaces(NET_DEV) == {"lo": (1000, 1000), "p0": (5000, 7000), "p0.100": (12345, 8)}
    assert rates.read_interfaces("") == {}


def test_rates() -> None:
    kept = Rates()
    assert kept.document()["planes"] == []
    kept.add(Sample(10.0, [0, None], [0, 5], [0, 0], [0, 0]))
    kept.add(Sample(12.0, [1000, None], [500, 3], [100, 0], [2, 0]))
    kept.add(Sample(16.0, [2000, 7], [500, 4], [200, 0], [1, 0]))
    found = kept.document()
    assert found["at_s"] == [12.0, 16.0]
    assert found["planes"][0]["tx_bits_per_s"] == [4000, 2000]
    assert found["planes"][0]["loss_ratio"] == [0.02, 0.0]  # a packet that was believed lost has arrived
    assert found["planes"][1]["tx_bits_per_s"] == [None, None]
    assert found["planes"][1]["rx_bits_per_s"] == [None, 2]  # the counter was reset
    assert found["planes"][1]["loss_ratio"] == [0.0, 0.0]
    for i in range(1000):
        kept.add(Sample(20.0 + 2 * i, [0, 0], [0, 0], [None, None], [None, None]))
    assert len(kept.document()["at_s"]) == 150
    kept.add(Sample(9000.0, [0], [0], [0], [0]))  # another plan
    assert kept.document()["at_s"] == []


def test_a_sample_of_the_tables() -> None:
    host = Host()
    sample = rates.take_sample(host, host.plan, 1.0)  # type: ignore[arg-type]
    assert (sample.sent_packets, sample.lost_packets) == ([0, 900], [0, 9])
    assert len(sample.tx_bytes) == 2


# ---- events ----


def event(number: int, seconds: float, **changes: Any) -> dict[str, Any]:
    found = canned_daemon.EVENT | {"id": number, "ev": number, "time": f"2030-01-02T12:00:{seconds:06.3f}+00:00"}
    return found | changes


def test_evs_that_change_together_share_a_line() -> None:
    together = [event(n, 30 - n / 10, peer=f"h{n % 3}") for n in range(9)]
    lines = recent_events.event_lines([*together, event(20, 10.0)])
    assert [line["count"] for line in lines] == [9, 1]
    assert lines[0]["text"] == "9 EVs to 3 peers (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue"
    assert (lines[0]["level"], lines[0]["time"]) == ("bad", together[0]["time"])
    lines = recent_events.event_lines([event(1, 30.0), event(2, 29.9, reason="loss"), event(3, 29.8, plane=2)])
    assert [line["count"] for line in lines] == [1, 1, 1]


def test_a_shared_line_names_what_its_evs_share() -> None:
    found = [event(n, 30.0, t1=n, **{"from": ("GOOD", "SKIP")[n % 2]}) for n in range(3)]
    assert recent_events.event_lines(found)[0]["text"] == "3 EVs to h2 (plane 1, T1s 0, 1, 2): → ASSUMED_BAD, overdue"
    started = {"from": "UNKNOWN", "to": "GOOD", "reason": "probed"}
    (line,) = recent_events.event_lines([event(n, 30.0, plane=n % 4, t1=n, **started) for n in range(32)])
    assert line["text"] == "32 EVs to h2 (planes 0, 1, 2, 3, 32 T1s): UNKNOWN → GOOD, probed"


def test_an_event_that_is_the_sum_of_many_counts_them() -> None:
    summed = event(9, 29.0, peer=None, ev=None, evidence={"evs": 4000, "peers": 1000})
    (line,) = recent_events.event_lines([event(n, 30.0, peer=f"h{n}") for n in range(3)] + [summed])
    assert (line["count"], line["text"]) == (
        4003,
        "4003 EVs to 1000 peers (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue",
    )
    (line,) = recent_events.event_lines([summed])
    assert line["text"].startswith("4000 EVs to 1000 peers (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue")


def test_other_events_have_lines_of_their_own() -> None:
    empty: dict[str, Any] = {"peer": None, "ev": None, "plane": None, "t1": None, "from": None, "evidence": {}}
    lines = recent_events.event_lines(
        [
            event(1, 3.0, **empty | {"kind": "daemon", "to": "attached", "reason": "started"}),
            event(2, 3.0, **empty | {"kind": "plane", "plane": 1, "from": "up", "to": "down", "reason": "link_down"}),
            event(
                3,
                3.0,
                **empty
                | {
                    "kind": "fault",
                    "to": "present",
                    "reason": "t1",
                    "evidence": {"target": "t1:1:2", "evs": "2/2", "peers": "2/3"},
                },
            ),
        ]
    )
    assert [line["text"] for line in lines] == [
        "daemon: attached, started",
        "plane 1: up → down, link_down",
        "fault: present, t1 (target t1:1:2, evs 2/2, peers 2/3)",
    ]
    assert [line["level"] for line in lines] == ["plain", "bad", "bad"]


# ---- size ----


def test_the_document_of_a_large_cluster_is_bounded() -> None:
    """127 peers, 8 planes of 512 T1s, all wrong: the documents of peers are those of the worst."""
    hosts = "".join(cluster_files.host(i, t0=i % 64, port=i // 64) for i in range(128))
    host = Host(f"[cluster]\nt0s = 64\nt1s = 512\nplanes = 8\nevs_per_peer = 256\n{hosts}", 128, 256)
    host.evs["state"] = np.arange(256) % len(EvState)
    kept = Rates()
    for i in range(200):
        kept.add(Sample(2.0 * i, [10**9 * i] * 8, [10**9 * i] * 8, [1000 * i] * 8, [i] * 8))
    events = recent_events.event_lines([event(n, 30.0, reason=f"reason {n}") for n in range(1000)])
    peers = host.view.peers(page_document.MOST_PEERS)
    wrong = status(diagnosis=[CAUSE] * 999, peers={"total": 4095}, denials=[{"action": "deny", "target": "x"}] * 99)
    found = page_document.document(wrong, peers, host.view.path_map(), kept.document(), events)
    assert (len(found["causes"]), found["causes_left_out"]) == (20, 979)
    assert (len(found["peers"]["shown"]), found["peers"]["left_out"]) == (24, 4071)
    assert (len(found["denials"]), found["denials_left_out"]) == (8, 91)
    assert len(found["events"]) == recent_events.MOST_LINES
    assert len(json.dumps(found, separators=(",", ":"))) < 200_000
