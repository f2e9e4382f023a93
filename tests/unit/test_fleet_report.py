# SPDX-License-Identifier: BSD-2-Clause
"""Tests what is read out of etcd's keys, the documents made of all hosts' reports, and what mrcctl says of them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.commands import fleet as documents
from mrcd.denials import targets
from mrcd.denials.record import Denial
from mrcd.fleet import report
from mrcd.fleet.etcd import Value
from mrcd.fleet.keys import FleetFile, Keys, denial_value, report_value, trial_value
from mrcd.fleet.source import FileSource, Loaded, Refusal
from tests.cluster_files import host
from tests.unit.test_fleet_source import OWN

KEYS = Keys("/mrcd")
T1 = targets.parse(["t1:1:2"])
NOW = 1e9
HOSTS = ["h0", "h1", "h2"]


def denial() -> Denial:
    return Denial(T1, NOW, reason="fan", uid=0, host="h0")


def values(**of_hosts: dict[str, Any]) -> dict[str, Value]:
    """Returns the keys of a file of generation 7, a denial of T1, and reports of hosts."""
    found = {KEYS.file: Value(b"text", 7), KEYS.denial(T1): Value(denial_value(denial()), 8)}
    return found | {KEYS.host(name): Value(report_value(r), 9) for name, r in of_hosts.items()}


def said(
    generation: int | None = 7,
    refused: str | None = None,
    *,
    in_flight: int = 0,
    denies: bool = True,
    why: str = "",
    since: float = NOW,
    lost: int | None = 0,
    of: int = 7,
) -> dict[str, Any]:
    """Returns the report of a host. `why`: it refuses the denial that was made at `since`."""
    counts = {
        "evs": 2,
        "in_flight_packets": in_flight,
        "unreported_evs": 0,
        "lost_packets": lost,
        "empty": not in_flight,
    }
    return {
        "host": "h",
        "version": "0.1.0",
        "file": {
            "generation": generation,
            "sha256": "abc",
            "refused": {"generation": of, "why": refused} if refused else None,
        },
        "denials": [{"target": "t1:1:2", "since": since} | counts] if denies and not why else [],
        "refused_denials": [{"target": "t1:1:2", "since": since, "why": why}] if why else [],
    }


def document(more: dict[str, Value] | None = None, **of_hosts: dict[str, Any]) -> dict[str, Any]:
    found = values(**of_hosts) | (more or {})
    return report.fleet(KEYS.wanted(found), KEYS.reports(found), HOSTS, NOW) | {"connected": "http://e:2379"}


# ---- keys ----


def test_what_is_wanted_is_read_from_the_keys() -> None:
    wanted = KEYS.wanted(values() | {"/mrcd/want/other": Value(b"", 1), "/mrcd/hosts/h0": Value(b"", 1)})
    assert wanted.file == FleetFile(7, "text")
    assert wanted.denials == {T1: denial()}
    assert not wanted.unreadable


@pytest.mark.parametrize(
    ("key", "data", "why"),
    [
        (KEYS.file, b"\xff", "utf-8"),
        (KEYS.trial, b"{", "Expecting"),
        (KEYS.trial, b'{"schema_version": 1, "hosts": "h0", "text": ""}', "hosts"),
        (KEYS.denial(T1), b"{", "Expecting"),
        (KEYS.denial(T1), b"[" * 100_000, "recursion"),
        (KEYS.denial(T1), b'{"schema_version": 2}', "not a document of version 1"),
        (KEYS.denial(T1), b'{"schema_version": 1}', "denial"),
        (KEYS.denial(T1), b'{"schema_version": 1, "denial": {"target": ["t1"]}}', "lacks the field"),
        (KEYS.denial(targets.parse(["plane:1"])), denial_value(denial()), "it is about t1:1:2"),
    ],
)
def test_a_key_that_cannot_be_read_is_named_and_hides_no_other(key: str, data: bytes, why: str) -> None:
    good = {KEYS.denial(targets.parse(["plane:0"])): Value(denial_value(denial_of("plane:0")), 1)}
    wanted = KEYS.wanted(good | {key: Value(data, 2)})
    assert list(wanted.denials) == [targets.parse(["plane:0"])]
    assert why in wanted.unreadable[key]


def denial_of(word: str) -> Denial:
    return Denial(targets.parse([word]), NOW)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"schema_version": 2}',
        b'{"schema_version": 1}',
        report_value(said() | {"denials": [{"target": "t1:1:2"}]}),
        report_value(said() | {"file": {"generation": "7"}}),
        report_value(said() | {"denials": "t1:1:2"}),
    ],
)
def test_a_report_that_is_none_is_left_out(data: bytes) -> None:
    assert KEYS.reports({KEYS.host("h0"): Value(data, 1)}) == {}


def test_a_report_cannot_control_the_terminal() -> None:
    (found,) = KEYS.reports({KEYS.host("h0"): Value(report_value(said(5, "\x1b[2Jbad\n")), 1)}).values()
    assert found["file"]["refused"]["why"] == "?[2Jbad?"
    assert list(KEYS.reports({KEYS.host("\x1b[2J"): Value(report_value(said()), 1)})) == ["?[2J"]


# ---- the reports ----


def test_a_host_reports_its_file_and_what_it_refuses(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "mrcd.toml", tmp_path)
    source.running = Loaded(source.read(OWN), OWN, FleetFile(7, OWN))
    source.refusal = Refusal(FleetFile(8, "x"), "bad")
    found = report.document("h0", source, [], {denial(): "no"}, ["h7"], is_pending=False)
    assert (found["host"], found["file"]["generation"]) == ("h0", 7)
    assert found["file"]["refused"] == {"generation": 8, "why": "bad"}
    assert found["lost_peers"] == ["h7"]
    assert found["refused_denials"] == [{"target": "t1:1:2", "since": NOW, "why": "no"}]
    assert json.loads(report_value(found))["file"]["sha256"] == FleetFile(7, OWN).sha256


def test_the_states_of_hosts() -> None:
    found = document(h0=said(), h1=said(5, "bad"), h9=said(6))
    assert {h["host"]: h["state"] for h in found["hosts"]} == {
        "h0": "current",
        "h1": "refuses",
        "h2": "away",
        "h9": "behind",
    }


def test_hosts_of_a_trial_are_to_run_another_file() -> None:
    on_trial = {KEYS.trial: Value(trial_value("other", ["h0", "h1"], 5), 8)}
    found = document(on_trial, h0=said(8), h1=said(7), h2=said(7))
    assert [h["state"] for h in found["hosts"]] == ["current", "behind", "current"]
    assert found["trial"] | {"sha256": ""} == {"generation": 8, "sha256": "", "hosts": ["h0", "h1"]}
    lines = documents.fleet_lines(found, all_=False, colour=False)
    assert any(line.startswith("trial") and line.endswith("on h0, h1") for line in lines)


@pytest.mark.parametrize(
    ("reporting", "most", "names"),
    [
        ("h0 h1 h2 h3", 3, ["h0", "h2"]), ("h0 h1 h2 h3", 1, ["h0"]), ("h1 h2 h3", 3, ["h1"]), ("h0", 3, []),
        ("", 3, []),
    ],
)  # fmt: skip
def test_a_file_is_tried_on_half_of_the_hosts_at_most_under_different_t0s(
    reporting: str, most: int, names: list[str]
) -> None:
    text = "[cluster]\nt0s = 2\n" + "".join(host(n, t0=n // 2, port=n % 2) for n in range(4))
    hosts = cluster_file.parse(text).hosts
    refusing = {"h3": said(5, "bad")} if "h3" not in reporting else {}
    assert (
        report.first_hosts(hosts, refusing | {name: said() for name in reporting.split()} | {"h9": said()}, most)
        == names
    )


def test_without_a_file_in_etcd_no_host_is_behind() -> None:
    found = {KEYS.host(h): Value(report_value(said(None)), 1) for h in HOSTS}
    doc = report.fleet(KEYS.wanted(found), KEYS.reports(found), HOSTS, NOW) | {"connected": "http://e:2379"}
    assert {h["state"] for h in doc["hosts"]} == {"current"}
    assert documents.wrong(doc) == ""
    assert "file        none in etcd: each host runs its own" in documents.fleet_lines(doc, all_=False, colour=False)


def test_the_totals_of_a_denial() -> None:
    (d,) = document(h0=said(), h1=said(in_flight=3), h2=said(why="too few"))["denials"]
    assert (d["hosts"], d["denied_hosts"], d["drained_hosts"], d["in_flight_packets"]) == (3, 2, 1, 3)
    assert (d["waiting_hosts"], d["away_hosts"], d["not_empty_hosts"]) == ([], [], ["h1"])
    assert d["refused"] == [{"host": "h2", "why": "too few"}]


def test_what_hosts_say_of_an_earlier_denial_of_a_target_does_not_count() -> None:
    old = NOW - 60
    (d,) = document(h0=said(), h1=said(since=old), h2=said(why="too few", since=old))["denials"]
    assert (d["denied_hosts"], d["waiting_hosts"], d["refused"]) == (1, ["h1", "h2"], [])


def test_a_denial_that_has_ended_is_not_there() -> None:
    found = {KEYS.denial(T1): Value(denial_value(Denial(T1, NOW - 60, NOW)), 8)}  # etcd forgets it later
    assert report.fleet(KEYS.wanted(found), {}, HOSTS, NOW)["denials"] == []


# ---- progress ----


OK, FREE, BUSY, PENDING = said(), said(denies=False), said(in_flight=9), {"pending": True}
T, AWAY = "t1:1:2", "away, down or without etcd: h2"
denied, allowed, adopted = documents.denied, documents.allowed, documents.adopted
drained = partial(denied, drain=True)
GONE = "plane:0 is no longer in etcd: it was allowed, or has expired"


@pytest.mark.parametrize(
    ("how", "about", "hosts", "text", "done", "why"),
    [
        (drained, T, [OK, OK, OK], "3 of 3 hosts drained, 0 packets left, 0 lost", True, []),
        (drained, T, [OK, BUSY, OK], "2 of 3 hosts drained, 9 packets left", False, ["in flight from h1"]),
        (drained, T, [OK, FREE, OK], "2 of 3 hosts drained, 0 packets", False, ["not denied yet: h1"]),
        (drained, T, [OK, OK], "2 of 3 hosts drained, 0 packets left", False, [AWAY]),
        (drained, T, [OK, OK, said(why="few")], "2 of 3 hosts", False, ["h2 refuses to deny t1:1:2: few"]),
        (drained, T, [OK, said(lost=None), OK], "3 of 3 hosts drained, 0 packets left, losses unknown", True, []),
        (drained, "plane:0", [], GONE, False, []),
        (denied, T, [OK, BUSY, OK], "", True, []),
        (denied, T, [OK, OK], "2 of 3 hosts deny it", False, [AWAY]),
        (denied, T, [OK, OK | PENDING, OK], "2 of 3 hosts deny it", False, ["not denied yet: h1"]),
        (denied, "plane:0", [], GONE, False, []),
        (allowed, [T], [FREE, FREE, FREE], "", True, []),
        (allowed, [T], [FREE, OK], "1 of 3 hosts allow it", False, ["still denied on h1", AWAY]),
        (allowed, [T], [FREE, FREE | PENDING, FREE], "2 of 3 hosts allow it", False, ["still denied on h1"]),
        (allowed, ["plane:0"], [OK, FREE, FREE], "", True, []),
        (adopted, 7, [OK, OK, OK], "", True, []),
        (
            adopted, 7, [OK, said(5, "bad"), said(6)],
            "1 of 3 hosts run generation 7", False, ["h1 refuses the cluster file: bad", "behind: h2"],
        ),
        (adopted, 6, [OK], "generation 7 was put meanwhile", False, []),
    ],
)  # fmt: skip
def test_a_change_is_done_when_every_host_says_so(
    how: Callable[[dict[str, Any], Any], documents.Progress],
    about: str | list[str] | int,
    hosts: list[dict[str, Any]],
    text: str,
    done: bool,
    why: list[str],
) -> None:
    found = how(document(**dict(zip(HOSTS, hosts, strict=False))), about)
    assert found.text.startswith(text)
    assert found.done is done
    assert len(found.why) == len(why)
    assert all(want in have for want, have in zip(why, found.why, strict=True))


@pytest.mark.parametrize(
    ("hosts", "text", "done", "why"),
    [
        ([said(8), said(8)], "2 of 2 first hosts run it: h0, h1", True, []),
        ([said(8), OK], "1 of 2 first hosts run it: h0, h1", False, []),
        ([said(8), said(7, "bad", of=8)], "1 of 2", False, ["h1 refuses the cluster file: bad"]),
        ([said(8) | {"lost_peers": ["h2"]}, said(8)], "2 of 2", True, ["h0 has lost h2"]),
        ([said(7) | {"lost_peers": ["h2"]}, said(8)], "1 of 2", False, []),
        ([said(8)], "1 of 2", False, ["away, down or without etcd: h1"]),
    ],
)
def test_what_speaks_against_a_file_on_trial(hosts: list[Any], text: str, done: bool, why: list[str]) -> None:
    on_trial = {KEYS.trial: Value(trial_value("other", ["h0", "h1"], 5), 8)}
    found = documents.tried(document(on_trial, **dict(zip(HOSTS, hosts, strict=False))), 8)
    assert (found.text.startswith(text), found.done, list(found.why)) == (True, done, why)


def test_a_trial_that_is_over_is_not_done() -> None:
    found = documents.tried(document(h0=OK), 8)
    assert (found.done, found.why) == (False, ["the trial was ended by another command, or by its time"])


def test_hosts_that_refuse_for_one_reason_share_a_line() -> None:
    many = {f"g{n}": said(5, "bad") for n in range(8)} | {"g8": said(5, "worse")}
    found = documents.wrong(document(**many))
    assert "g0, g1, g2, g3, g4 and 3 more refuse the cluster file: bad; g8 refuses the cluster file: worse" in found
    lines = documents.fleet_lines(document(**many), all_=False, colour=False)
    assert lines[2] == "hosts       0 of 12 run it, 9 refusing it, 3 away"


@pytest.mark.parametrize("file", [None, {"generation": 6}])
def test_a_file_that_is_no_longer_in_etcd_is_not_done(file: dict[str, Any] | None) -> None:
    found = documents.adopted(document(h0=said(), h1=said(), h2=said()) | {"file": file}, 7)
    assert (found.text, found.done) == ("generation 7 is no longer in etcd", False)
