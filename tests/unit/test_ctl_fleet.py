# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fleet` against a daemon that answers from documents: requests, waiting, output, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl.commands import fleet_control
from mrcd.ctl.commands.fleet import fleet as group
from tests.unit.canned_daemon import Daemon
from tests.unit.test_fleet_report import document, said

DONE = {"target": "t1:1:2", "ended": [], "refused": False, "message": "t1:1:2 is to be denied on all hosts"}
ALL = document(h0=said(), h1=said(), h2=said())


@pytest.fixture
def fleet(mrcctl: Callable[..., Result], daemon: Daemon) -> Callable[..., Result]:
    """Runs `mrcctl fleet`; all hosts have followed."""
    daemon.answers["/v1/fleet"] = (200, ALL)
    daemon.answers["/v1/fleet/deny"] = daemon.answers["/v1/fleet/allow"] = (200, DONE)
    return lambda *args: mrcctl("fleet", *args)


def sent(daemon: Daemon) -> dict[str, Any]:
    """Returns the body of the one POST."""
    (body,) = [given for method, _, given in daemon.requests if method == "POST"]
    return body


def test_a_denial_is_asked_for_and_awaited(fleet: Callable[..., Result], daemon: Daemon) -> None:
    result = fleet("deny", "t1:1:2", "--for", "2h", "--reason", "fan")
    assert (result.exit_code, result.stdout) == (0, "t1:1:2 is to be denied on all hosts\n3 of 3 hosts deny it\n")
    body = sent(daemon)
    assert (body["target"], body["for"], body["reason"], body["force"]) == (["t1:1:2"], "2h", "fan", False)


def test_a_drain_shows_its_progress_and_who_is_missing(fleet: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/fleet"] = (200, document(h0=said(), h1=said(in_flight=3)))
    result = fleet("drain", "t1:1:2", "--wait", "0.3", "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert (found["done"], found["progress"]) == (False, "1 of 3 hosts drained, 3 packets left, 0 lost")
    assert "mrcctl: 1 of 3 hosts drained, 3 packets left, 0 lost\n" in result.stderr
    assert "not done on all hosts after 0 s: away, down or without etcd: h2; packets may be in flight from h1" in (
        result.stderr
    )
    assert sent(daemon)["drain"]


def test_a_refusal_of_this_host_ends_it(fleet: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/fleet/deny"] = (200, DONE | {"refused": True, "message": "h0 would refuse it: too few"})
    result = fleet("deny", "plane:0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "mrcctl: h0 would refuse it: too few\n  hint: --force denies it nevertheless\n"


def test_an_etcd_that_is_away_meanwhile_is_waited_for(fleet: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/fleet"] = (500, {"error": "etcd is away: refused", "hint": None, "exit_code": 2})
    result = fleet("deny", "t1:1:2", "--wait", "0.3")
    assert result.exit_code == 2
    assert "not done on all hosts after 0 s: etcd is away: refused" in result.stderr


def test_an_allow_waits_for_the_denials_that_it_ended(fleet: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/fleet/allow"] = (200, DONE | {"ended": ["t1:1:2"], "message": "no longer denied: t1:1:2"})
    assert fleet("allow", "plane:1", "--wait", "0.2").exit_code == 2  # all still deny it
    free = said(denies=False)
    daemon.answers["/v1/fleet"] = (200, document(h0=free, h1=free, h2=free))
    daemon.requests.clear()
    assert fleet("allow", "--all").stdout == "no longer denied: t1:1:2\n3 of 3 hosts allow it\n"
    assert sent(daemon)["all"]


def test_a_file_is_put_and_awaited(fleet: Callable[..., Result], daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    file.write_text("[cluster]\n")
    daemon.answers["/v1/fleet/file"] = (200, {"generation": 7, "message": "generation 7 is in etcd"})
    result = fleet("put", str(file), "--if-generation", "6")
    assert result.stdout == "generation 7 is in etcd\n3 of 3 hosts run generation 7\n"
    assert sent(daemon) == {"text": "[cluster]\n", "force": False, "if_generation": 6}
    file.write_bytes(b"\xff")
    assert "not UTF-8 text" in fleet("put", str(file)).stderr
    assert fleet("put", str(tmp_path / "none")).exit_code == 1


def test_the_file_is_printed_as_it_is(fleet: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/fleet/file"] = (200, {"generation": 7, "sha256": "x", "text": "[cluster]\n\n# end\n"})
    assert fleet("get").stdout == "[cluster]\n\n# end\n"


def test_the_status_lists_hosts_that_differ(fleet: Callable[..., Result], daemon: Daemon) -> None:
    result = fleet("status")
    assert result.exit_code == 0
    assert "hosts       3 of 3 run it\n" in result.stdout
    assert "\nh0" not in result.stdout
    assert "\nh0    current" in fleet("status", "--all").stdout
    daemon.answers["/v1/fleet"] = (200, document(h0=said(), h1=said(5, "line 3: bad"), h2=said()))
    result = fleet("status")
    assert result.exit_code == 2
    assert "h1    refuses           5  abc      0.1.0  line 3: bad" in result.stdout
    assert result.stderr.startswith("mrcctl: h1 refuses the cluster file: line 3: bad\n  hint: ")


@pytest.mark.parametrize("command", ["deny", "drain", "allow"])
def test_a_target_is_needed(fleet: Callable[..., Result], command: str) -> None:
    result = fleet(command)
    assert result.exit_code == 1
    assert f"fleet {command} needs a target" in result.stderr


def test_the_group_has_all_commands() -> None:
    assert {c.name for c in fleet_control.COMMANDS} <= set(group.commands)
