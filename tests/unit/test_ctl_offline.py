# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl while the daemon is down, hangs or answers invalidly."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result

import mrcd
from mrcd.errors import MachineError
from mrcd.health import event_file
from mrcd.health.event_file import EventFile
from mrcd.health.events import EventLog
from mrcd.versions import ABI_VERSION
from tests.unit.canned_daemon import BAD_PATH, EVENT, KEYS, LINK, PATH, PEER, STATUS, Daemon

AGE: dict[str, float | None] = {"s": None}


class FakeView:
    def status(self) -> dict[str, Any]:
        return {**STATUS, "daemon": {"running": False}}

    def tick_age_s(self) -> float | None:
        return AGE["s"]

    def peers(self) -> list[dict[str, Any]]:
        return [PEER]

    def paths(
        self, peer: str | None = None, plane: int | None = None, state: str | None = None, decode: bool = False
    ) -> list[dict[str, Any]]:
        return [PATH] if (peer, plane, state) == ("h2", 1, "GOOD") else [BAD_PATH]

    def links(self) -> list[dict[str, Any]]:
        return [LINK | {"state": "unknown"}]

    def keys(self) -> dict[str, Any]:
        return KEYS | {"newest": None}

    def unread_events(self) -> list[dict[str, Any]]:
        return [EVENT | {"id": None}]


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    module = ModuleType("mrcd.view.documents")

    def open_pinned(where: Path) -> FakeView:
        assert where == run_dir
        return FakeView()

    module.open_pinned = open_pinned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mrcd.view.documents", module)


SAYS_SO = "mrcctl: mrcd is not running; from the pinned tables\n"


@pytest.mark.usefixtures("pinned")
def test_pinned_tables_answer_for_the_daemon(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("status", "--json")
    assert (result.exit_code, result.stderr) == (0, SAYS_SO)
    assert json.loads(result.stdout)["daemon"] == {"running": False}
    assert f"daemon      mrcd not running (tables: ABI {ABI_VERSION})\n" in mrcctl("status").stdout
    tables = {"schema_version": 2, "source": "tables"}
    assert json.loads(mrcctl("peers", "--json").stdout) == tables | {"peers": [PEER]}
    assert json.loads(mrcctl("paths", "--json").stdout) == tables | {"paths": [BAD_PATH]}
    result = mrcctl("paths", "--json", "--peer", "h2", "--plane", "1", "--state", "GOOD")
    assert (json.loads(result.stdout)["paths"], result.stderr) == ([PATH], SAYS_SO)
    assert json.loads(mrcctl("keys", "status", "--json").stdout) == tables | KEYS | {"newest": None}
    assert json.loads(mrcctl("links", "--json").stdout) == tables | {"links": [LINK | {"state": "unknown"}]}
    result = mrcctl("keys", "status")
    assert (result.exit_code, result.stderr) == (0, SAYS_SO)
    assert result.stdout.startswith("1 of 1 peers use secret 2\n")
    result = mrcctl("events", "--json")
    assert json.loads(result.stdout) == tables | {"events": [EVENT | {"id": None}]}
    assert result.stderr.startswith("mrcctl: mrcd is not running; from /")
    assert result.stderr.endswith("/events.jsonl and the pinned tables\n")


@pytest.mark.usefixtures("pinned")
def test_events_of_the_last_daemon_are_shown_before_the_unread_ones(
    mrcctl: Callable[..., Result], run_dir: Path
) -> None:
    log = EventLog(EventFile(run_dir / event_file.FILE))
    log.add("plane", reason="link_down", plane=2, before="up", after="down")
    found = json.loads(mrcctl("events", "--json").stdout)["events"]
    assert [(e["id"], e["reason"]) for e in found] == [(1, "link_down"), (None, "overdue")]
    assert [e["id"] for e in json.loads(mrcctl("events", "--json", "--plane", "2").stdout)["events"]] == [1]
    (run_dir / event_file.FILE).unlink()
    (run_dir / event_file.FILE).mkdir()
    result = mrcctl("events", "--json")
    assert "earlier events are not shown" in result.stderr
    assert [e["id"] for e in json.loads(result.stdout)["events"]] == [None]


@pytest.mark.usefixtures("pinned")
def test_a_dead_socket_means_that_the_daemon_is_down(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.stop()
    result = mrcctl("peers", "--json")
    assert (result.exit_code, result.stderr) == (0, SAYS_SO)


def test_down_and_no_pins(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mrcd.view.documents")

    def open_pinned(_: Path) -> None:
        raise MachineError("there are no pinned tables", hint="not this one")

    module.open_pinned = open_pinned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mrcd.view.documents", module)
    result = mrcctl("status")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "mrcctl: mrcd is not running, and there are no pinned tables\n"
        "  hint: start it with `systemctl start mrcd`, or `mrcd --config FILE`\n"
    )


@pytest.mark.parametrize("command", ["status", "status --check", "doctor", "trace h2"])
def test_where_nothing_runs_the_exit_status_is_2(mrcctl: Callable[..., Result], command: str) -> None:
    result = mrcctl(*command.split())
    assert result.exit_code == 2
    if command == "status --check":
        assert result.stderr == ""
        assert result.stdout.startswith("CRITICAL - mrcd is not running")
        assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "args", [["deny", "--peer", "h2"], ["detach"], ["attach"], ["events", "-f"], ["keys", "rotate"]], ids=" ".join
)
@pytest.mark.usefixtures("pinned")
def test_commands_that_need_the_daemon_fail_without_it(mrcctl: Callable[..., Result], args: list[str]) -> None:
    result = mrcctl(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mrcctl: mrcd is not running (no socket ")
    assert "\n  hint: start it with " in result.stderr


def test_version_does_not_need_the_daemon(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("version")
    assert (result.exit_code, result.stdout) == (
        0,
        f"mrcctl {mrcd.__version__} (ABI {ABI_VERSION}, wire 3, schema 2)\nmrcd not running\n",
    )
    assert json.loads(mrcctl("version", "--json").stdout)["daemon"] is None


@pytest.mark.parametrize(
    ("code", "document", "exit_code", "message"),
    [
        (
            404,
            {"error": "no peer 'h9'", "hint": "see `mrcctl peers`", "exit_code": 1},
            1,
            "mrcctl: no peer 'h9'\n  hint: see `mrcctl peers`\n",
        ),
        (500, {"error": "the kernel refused", "hint": None, "exit_code": 2}, 2, "mrcctl: the kernel refused\n"),
        (500, {"error": "no code"}, 2, "mrcctl: no code\n"),
        (500, b"<html>", 2, "mrcctl: mrcd answered 500 Internal Server Error without a JSON document\n"),
        (200, b"{", 2, "mrcctl: mrcd answered 200 OK without a JSON document\n"),
        (200, {"peers": 1}, 2, "mrcctl: mrcd's paths are not a list of objects\n  hint: "),
        (200, [{"state": 7, "since_s": "long"}], 2, "mrcctl: internal error: "),
    ],
)
def test_errors_of_the_daemon(
    mrcctl: Callable[..., Result], daemon: Daemon, code: int, document: object, exit_code: int, message: str
) -> None:
    daemon.answers["/v1/paths"] = (code, document)
    result = mrcctl("paths")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr


def test_a_daemon_that_hangs(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    # The long poll of an event that never comes stands for a hanging daemon.
    daemon.poll = lambda after, wait: Daemon.poll(daemon, after, 60)  # type: ignore[method-assign]
    result = mrcctl("events", "--timeout", "0.05")
    assert result.exit_code == 2
    assert result.stderr.startswith("mrcctl: mrcd did not answer within 0.05 s\n  hint: ")


def test_not_a_socket(mrcctl: Callable[..., Result], run_dir: Path) -> None:
    result = mrcctl("detach", "--run-dir", str(run_dir / ("long" * 40)))
    assert result.exit_code == 2
    assert "AF_UNIX path too long" in result.stderr


def test_to_detach_without_the_daemon_is_for_root(
    mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = mrcctl("detach", "--force")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mrcctl: mrcd is not running; only root can detach without it\n  hint: ")


def test_to_detach_where_mrcd_has_never_run(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = mrcctl("detach", "--force")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "mrcd has not run on this host yet" in result.stderr


@pytest.mark.usefixtures("pinned")
@pytest.mark.parametrize(
    ("command", "heading"),
    [
        ("paths", "STATE 40 s AGO"), ("paths --decode", "STATE 40 s AGO"), ("paths -i 0.1", "STATE 40 s AGO"),
        ("top -i 0.1", "STATE 40 s AGO"), ("watch -c 1", "STATE 40 s AGO"), ("links", ""),
        ("status", "EVS USABLE 40 s AGO"), ("peers", "EVS USABLE 40 s AGO"), ("peers -i 0.1", "EVS USABLE 40 s AGO"),
    ],
)  # fmt: skip
def test_the_age_of_states_that_nothing_refreshes_is_shown(
    mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, command: str, heading: str
) -> None:
    def shown(age_s: float, *options: str) -> str:
        monkeypatch.setitem(AGE, "s", age_s)
        monkeypatch.setitem(STATUS["probing"], "tick_age_s", age_s)  # type: ignore[arg-type]
        return mrcctl(*command.split(), *options).stdout

    old, fresh = shown(40.0), shown(0.01)  # fresh: the timer packet runs the tick
    assert heading in old
    assert "STATES ARE 40 s OLD: without mrcd, EVs are probed only while there is traffic" in old
    assert "AGO" not in fresh
    assert " OLD:" not in fresh
    assert command == "status" or json.loads(shown(40.0, "--json"))["tick_age_s"] == 40
