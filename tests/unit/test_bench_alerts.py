# SPDX-License-Identifier: BSD-2-Clause
"""Tests how the bench compares the alerts of a fault with those expected, and how it shortens the rules."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from labkit.bench.alerts import judge
from labkit.bench.alerts.cases import CASES
from labkit.bench.alerts.part import PACE, lines
from labkit.bench.diagnosis.cases import CASES as DIAGNOSIS
from labkit.monitoring.alertmanager import Inbox, Notice
from labkit.monitoring.rules import FILES, RULES, Pace, shortened, write_shortened

NAME = "MrcFault critical target=t1:1:2"
EXPECTED = {NAME: ("mrcctl status", "mrcctl drain t1:1:2")}
LABELS = {"alertname": "MrcFault", "severity": "critical", "target": "t1:1:2"}
RIGHT = Notice(LABELS, {"summary": "t1:1:2 is dead", "description": "`mrcctl status`, then `mrcctl drain t1:1:2`."})


def with_text(summary: str, description: str) -> Notice:
    """Returns an alert with another text."""
    return Notice(LABELS, {"summary": summary, "description": description})


def test_the_expected_alert_alone_is_right() -> None:
    assert judge.errors(EXPECTED, {NAME: RIGHT}, ()) == []
    assert judge.errors(EXPECTED, {}, ()) == [f"{NAME} did not fire"]
    other = "MrcDrops warning instance=h0 reason=bad_tag"
    assert judge.errors(EXPECTED, {NAME: RIGHT, other: RIGHT}, ()) == [f"{other} fired"]
    assert judge.errors(EXPECTED, {NAME: RIGHT}, [NAME]) == []
    assert judge.errors(EXPECTED, {NAME: RIGHT}, [other]) == [f"{other} fired after the end"]


@pytest.mark.parametrize(
    ("notice", "lacks"),
    [
        (with_text("t1:1:2 is dead", "`mrcctl status`"), "the text does not name `mrcctl drain t1:1:2`"),
        (with_text("it is dead", RIGHT.annotations["description"]), "the summary does not name t1:1:2"),
        (with_text("t1:1:2 <no value>", RIGHT.annotations["description"]), "the text has an empty value"),
    ],
)
def test_a_text_must_name_the_target_and_the_commands(notice: Notice, lacks: str) -> None:
    assert judge.errors(EXPECTED, {NAME: notice}, ()) == [f"{NAME}: {lacks}"]


def test_a_loss_may_be_forgotten_ev_by_ev() -> None:
    loss, late = "MrcImpaired warning cause=loss target=link:1:1:2", "MrcImpaired warning cause=loss target=ev:h1:7"
    notice = with_text("link:1:1:2", "")
    labels = {"alertname": "MrcImpaired", "severity": "warning", "cause": "loss", "target": "link:1:1:2"}
    fired = {loss: Notice(labels, notice.annotations)}
    assert judge.errors({loss: ()}, fired, [late]) == []
    assert judge.errors({loss: ()}, {**fired, late: notice}, ()) == [f"{late} fired"]
    assert judge.errors({loss: ()}, fired, [NAME]) == [f"{NAME} fired after the end"]
    assert judge.errors(EXPECTED, {NAME: RIGHT}, [late]) == [f"{late} fired after the end"]


def test_each_fault_of_the_diagnosis_has_alerts_and_all_alerts_exist() -> None:
    assert {c.name for c in DIAGNOSIS} <= {c.name for c in CASES}
    text = (RULES / "alerts.yml").read_text(encoding="utf-8")
    severities = re.findall(r"- alert: (\w+)\n(?:(?!- alert).*\n)*? *severity: (\w+)", text)
    assert len(severities) == text.count("- alert:")
    expected = {tuple(name.split()[:2]) for case in CASES for name in case.alerts}
    assert expected <= set(severities)
    assert all(case.alerts and all(case.alerts.values()) for case in CASES)


def test_the_inbox_has_what_fires_and_what_has_fired() -> None:
    inbox = Inbox()

    def send(fingerprint: str, status: str) -> None:
        alert: dict[str, Any] = {"fingerprint": fingerprint, "status": status, "labels": {"alertname": fingerprint}}
        inbox.take(json.dumps({"alerts": [alert | {"annotations": {}}]}).encode())

    for fingerprint, status in (("a", "firing"), ("a", "firing"), ("b", "firing"), ("a", "resolved")):
        send(fingerprint, status)
    assert [n.labels["alertname"] for n in inbox.now()] == ["b"]
    assert [n.labels["alertname"] for n in inbox.fired] == ["a", "b"]
    send("a", "firing")
    assert [n.labels["alertname"] for n in inbox.fired] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("        for: 5m\n", "        for: 30000ms\n"),
        ("        for: 1m\n", "        for: 10000ms\n"),
        ("        for: 30m\n", "        for: 30000ms\n"),
        ("        # used for: 5m\n", "        # used for: 5m\n"),
        ("rate(x[5m]) + last_over_time(y[1d])", "rate(x[30000ms]) + last_over_time(y[8640000ms])"),
        ("rate(x[30s])", "rate(x[4000ms])"),
    ],
)
def test_durations_are_shortened_within_limits(rule: str, expected: str) -> None:
    assert shortened(rule, Pace(factor=10, least_for_s=10, most_for_s=30, least_range_s=4, scrape_s=1)) == expected


def test_nothing_else_in_the_rules_is_changed(tmp_path: Path) -> None:
    write_shortened(tmp_path, PACE)
    for name in FILES:
        before, after = ((d / name).read_text(encoding="utf-8") for d in (RULES, tmp_path))
        pattern = r"(?<=^        for: )\w+$|(?<=\[)\w+(?=\])"
        assert re.sub(pattern, "", before, flags=re.M) == re.sub(pattern, "", after, flags=re.M)
        assert set(re.findall(pattern, before, re.M)).isdisjoint(re.findall(pattern, after, re.M))


def test_the_table_has_a_row_per_alert() -> None:
    result = {"case": "T1 dead", "expected": [NAME], "fired": [NAME, "other"], "fired_after": [], "fired_s": 31.2}
    result |= {"over_s": None, "errors": ["other fired"], "right": False}
    rows = [line.split() for line in lines({"cases": [result]})[-3:]]
    assert rows == [
        ["T1", "dead", *NAME.split(), "yes", "31", "-", "WRONG"],
        ["-", "other"],
        ["T1", "dead:", "other", "fired"],
    ]
