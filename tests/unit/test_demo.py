# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.demo: the report of a recording, and its texts."""

import copy
import dataclasses
import json
from typing import Any

import pytest

from labkit.demo import live, picture, report, screen, text
from labkit.demo.record import Happened, Recording
from labkit.demo.scenario import FAULTS, Fault
from labkit.measure.goodput import BIN_NS
from labkit.plot import chart
from labkit.traffic.flow import Ends, Sample

S, MS = 1_000_000_000, 1_000_000
BEGIN = 1000 * BIN_NS
HOLE = Fault("t1:1:2", False, "a black hole", 4.0, 8.0)
CUT = Fault("nic:h0:3", True, "a cut", 5.0, 9.0)
FULL = 50_000_000  # bytes in a bin of 20 ms: 20 Gbit/s


def at(seconds: float) -> int:
    return BEGIN + round(seconds * S)


def evs(peer: str, t1s: int = 4) -> list[dict[str, Any]]:
    return [
        {"peer": peer, "ev": 4 * p + s, "plane": p, "t1": s, "state": "GOOD", "tx_packets": 0, "tx_bytes": 0}
        for p in range(4)
        for s in range(t1s)
    ]


def event(seconds: float, peer: str, ev: int, to: str, reason: str = "unanswered") -> dict[str, Any]:
    place = {"plane": ev // 4, "t1": ev % 4}
    return {"kind": "ev", "monotonic_ns": at(seconds), "peer": peer, "ev": ev, "to": to, "reason": reason, **place} | {
        "evidence": {}
    }


def recording() -> Recording:
    """h0 and h2; all goes as it should."""
    events: dict[str, list[dict[str, Any]]] = {
        host: [
            event(4.09, peer, 6, "ASSUMED_BAD"),
            *(event(5.03, peer, n, "ASSUMED_BAD", "link_down") for n in range(12, 16)),
            event(9.1, peer, 6, "GOOD", "healed"),
            *(event(10.2, peer, n, "GOOD", "healed") for n in range(12, 16)),
        ]
        for host, peer in (("h0", "h2"), ("h2", "h0"))
    }
    after = [{**p, "tx_packets": 100 + p["ev"] % 2, "tx_bytes": 10_000} for p in evs("h2")]
    return Recording(
        begin_ns=BEGIN,
        end_ns=at(12),
        ends=Ends("h0", "10.99.0.1", "h2", "10.99.0.3"),
        bins={t: FULL for t in range(BEGIN, at(12), BIN_NS) if not at(4.02) <= t < at(4.22)},
        samples=tuple(Sample(at(n / 10), 7 if n > 41 else 0) for n in range(120)),
        congestion_control="cubic",
        mss_bytes=8968,
        faults=(Happened(HOLE, at(4), at(8)), Happened(CUT, at(5), at(9))),
        paths={"h0": evs("h2"), "h2": evs("h0")},
        events=events,
        spread=({"monotonic_ns": at(1), "paths": evs("h2")}, {"monotonic_ns": at(3), "paths": after}),
    )


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return report.build(recording())


def broken(r: Recording) -> list[str]:
    return [f"{p['target']} {p['promise']}" for p in report.build(r)["promises"] if not p["kept"]]


def without(r: Recording, host: str, ev: int, to: str) -> Recording:
    events = {h: [e for e in es if (h, e["ev"], e["to"]) != (host, ev, to)] for h, es in r.events.items()}
    return dataclasses.replace(r, events=events)


def test_a_good_run_meets_every_requirement(document: dict[str, Any]) -> None:
    assert report.kept(document)
    assert [p["promise"] for p in document["promises"] if not p["kept"]] == []
    assert document["unexpected_withdrawals"] == []


def test_the_times_of_a_fault(document: dict[str, Any]) -> None:
    hole, cut = document["faults"]
    assert (hole["flow_evs"]["hit"], hole["acknowledgement_evs"]["hit"], hole["all_evs"]["hit"]) == (1, 1, 2)
    assert hole["flow_evs"]["last_withdrawn_after_ms"] == pytest.approx(90)
    assert hole["flow_evs"]["last_returned_after_ms"] == pytest.approx(1100)
    assert (hole["longest_hole_ms"], hole["hole_begin_s"]) == (200, pytest.approx(4.02))
    assert hole["before_bits_per_s"] == pytest.approx(20e9)
    assert hole["during_bits_per_s"] == pytest.approx(19e9)
    assert hole["retransmitted_segments"] == 7
    assert hole["empty_bins_after_200_ms"] == 0
    assert (cut["flow_evs"]["hit"], cut["flow_evs"]["reasons"]) == (4, ["link_down"])
    assert cut["longest_hole_ms"] == 0
    assert cut["hole_begin_s"] is None


def test_an_ev_that_is_not_withdrawn_misses_the_requirement() -> None:
    assert len(broken(without(recording(), "h0", 6, "ASSUMED_BAD"))) == 2


def test_an_ev_that_is_withdrawn_late_misses_the_requirement() -> None:
    r = without(recording(), "h2", 6, "ASSUMED_BAD")
    r.events["h2"].append(event(4.3, "h0", 6, "ASSUMED_BAD"))
    assert [b.split()[0] for b in broken(r)] == ["t1:1:2"]


def test_an_ev_that_does_not_return_misses_the_requirement() -> None:
    assert broken(without(recording(), "h0", 13, "GOOD")) == ["nic:h0:3 every EV is GOOD again within 5 s of healing"]


def test_an_ev_withdrawn_without_a_fault_is_reported() -> None:
    r = copy.deepcopy(recording())
    r.events["h0"].append(event(2.0, "h2", 0, "ASSUMED_BAD", "loss"))
    told = report.build(r)["unexpected_withdrawals"]
    assert [(u["host"], u["ev"], u["at_s"], u["reason"]) for u in told] == [("h0", 0, 2.0, "loss")]
    assert len(broken(r)) == 1


def test_a_flow_that_stops_misses_the_requirement() -> None:
    r = recording()
    stalled = {t: n for t, n in r.bins.items() if not at(6) <= t < at(6.6)}
    assert len(broken(dataclasses.replace(r, bins=stalled))) == 2  # both faults are there then


def test_states_follow_each_other_without_a_gap(document: dict[str, Any]) -> None:
    spans = next(s for s in document["states"] if s["ev"] == 6)["spans"]
    assert [s["state"] for s in spans] == ["GOOD", "ASSUMED_BAD", "GOOD"]
    assert [s["begin_s"] for s in spans] == [0.0, *(s["end_s"] for s in spans[:-1])]
    assert spans[-1]["end_s"] == document["duration_s"] == 12


def test_the_document_is_plain_json(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document)) == document


def test_the_summary_shows_faults_and_requirements(document: dict[str, Any]) -> None:
    lines = "\n".join(text.summary(document, colour=False))
    for words in ("90 ms", "1.10 s", "200 ms", "EVS h0→h2", "cubic", "kept", "20.0"):
        assert words in lines
    assert "\033" not in lines
    assert "\033[32mkept\033[0m" in "\n".join(text.summary(document, colour=True))


def test_the_summary_of_a_run_in_which_nothing_worked() -> None:
    r = dataclasses.replace(recording(), bins={}, samples=(), events={"h0": [], "h2": []})
    found = report.build(r)
    lines = "\n".join(text.summary(found, colour=False))
    assert "never" in lines
    assert "BROKEN" in lines
    chart.draw(picture.picture(found))


def test_the_picture_shows_faults_and_states(document: dict[str, Any]) -> None:
    p = picture.picture(document)
    assert [(f.begin_s, f.end_s) for f in p.faults] == [(4, 8), (5, 9)]
    assert [g.label for g in p.groups] == ["plane 0", "plane 1", "plane 2", "plane 3"]
    assert "ASSUMED_BAD" in chart.draw(p)


@pytest.mark.parametrize(
    ("fault", "host", "path", "hit"),
    [
        (FAULTS[0], "h0", {"peer": "h2", "plane": 1, "t1": 2}, True),
        (FAULTS[0], "h3", {"peer": "h1", "plane": 1, "t1": 2}, True),
        (FAULTS[0], "h0", {"peer": "h2", "plane": 2, "t1": 2}, False),
        (FAULTS[0], "h0", {"peer": "h1", "plane": 1, "t1": None}, False),
        (FAULTS[1], "h0", {"peer": "h1", "plane": 3, "t1": None}, True),
        (FAULTS[1], "h2", {"peer": "h0", "plane": 3, "t1": 0}, True),
        (FAULTS[1], "h2", {"peer": "h1", "plane": 3, "t1": 0}, False),
        (FAULTS[1], "h0", {"peer": "h2", "plane": 0, "t1": 3}, False),
    ],
)
def test_a_fault_hits_the_paths_through_its_target(fault: Fault, host: str, path: dict[str, Any], hit: bool) -> None:
    assert fault.hits(host, path) is hit


def test_bars_grow_by_eighths() -> None:
    assert live.bars([0, 1, 8, 12, 16, 99], 2, 16) == ["   ▄██", " ▁████"]
    assert live.bars([1.0], 2, 0) == [" ", " "]


def test_events_of_a_kind_are_one_sentence() -> None:
    events = [event(5, "h2", n, "ASSUMED_BAD", "link_down") for n in (12, 13)]
    assert len({screen.kind(e) for e in events}) == 1
    assert screen.sentence(events) == "EVs 12, 13 to h2 (plane 3, T1 0, 1) are ASSUMED_BAD: link_down"
    assert screen.sentence([event(4, "h2", 6, "GOOD")]) == "EV 6 to h2 (plane 1, T1 2) is GOOD: unanswered"
