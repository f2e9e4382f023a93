# SPDX-License-Identifier: BSD-2-Clause
"""Tests the API of the fleet: what is written to etcd, and what is refused before."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from mrcd import state_dir
from mrcd.api.fleet import FleetApi
from mrcd.api.server import errors
from mrcd.ctl.client import Client, Json
from mrcd.daemon.reload import Reloader
from mrcd.denials import record, targets
from mrcd.fleet.etcd import Value
from mrcd.fleet.keys import FleetFile, Keys, denial_value, report_value
from mrcd.fleet.source import FileSource
from mrcd.net.messages import Link
from tests.unit.arrays import TEXT
from tests.unit.interfaces import link
from tests.unit.memory_etcd import MemoryEtcd
from tests.unit.test_denials import Host
from tests.unit.unix_api import asked

KEYS = Keys("/mrcd")
T1 = targets.parse(["t1:1:2"])


class Fleet:
    """The API of h0 over a unix socket, and an etcd."""

    def __init__(self, directory: Path) -> None:
        self.host, self.etcd, self._directory = Host(directory / state_dir.DENIALS), MemoryEtcd(), directory
        self.links = {"p0": link()}
        daemon: Any = self.host.as_daemon(netlink=SimpleNamespace(links=self._links))
        member: Any = SimpleNamespace(connected=lambda: (self.etcd, KEYS), brief=lambda: {"etcd": []})
        self._api = FleetApi(daemon, Reloader(daemon, FileSource(directory / "mrcd.toml", directory)), member)

    async def _links(self) -> dict[str, Link]:
        return self.links

    def ask(self, request: Callable[[Client], Json]) -> Json:
        """Returns the answer to a request, or its error."""
        application = web.Application(middlewares=[errors])
        application.add_routes(self._api.routes())
        return asked(application, self._directory, request)[0]

    def post(self, path: str, **body: Any) -> Json:
        """Returns the answer to a POST."""
        return self.ask(lambda client: client.post(f"/v1/fleet/{path}", body))

    def denial(self) -> record.Denial:
        """Returns the denial of T1 in etcd."""
        return KEYS.wanted(self.etcd.values).denials[T1]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_denial_is_written_with_its_end_and_its_author(fleet: Fleet) -> None:
    answer = fleet.post("deny", target=["t1:1:2"], **{"for": "2h"}, reason="fan", drain=True)
    assert (answer["target"], answer["refused"]) == ("t1:1:2", False)
    found = fleet.denial()
    assert found.until is not None
    assert (found.until - found.since, found.reason, found.drain, found.host) == (7200, "fan", True, "h0")
    assert fleet.etcd.leases == {KEYS.denial(T1): 7260}
    assert fleet.host.denied() == set()  # the watch applies it


def test_a_repeated_denial_keeps_its_end_and_its_reason(fleet: Fleet) -> None:
    fleet.post("deny", target=["t1:1:2"], **{"for": "2h"}, reason="fan")
    first = fleet.denial()
    fleet.post("deny", target=["t1:1:2"])
    again = fleet.denial()
    assert again.until == pytest.approx(first.until)
    assert again.reason == "fan"
    fleet.post("deny", target=["t1:1:2"], **{"for": "always"})
    assert fleet.denial().until is None
    assert fleet.etcd.leases == {KEYS.denial(T1): 0}


def test_a_denial_that_has_ended_leaves_no_end_to_the_next(fleet: Fleet) -> None:
    ended = record.Denial(T1, fleet.host.wall - 60, fleet.host.wall - 1, "fan")
    fleet.etcd.values[KEYS.denial(T1)] = Value(denial_value(ended), 1)
    fleet.post("deny", target=["t1:1:2"])
    assert (fleet.denial().until, fleet.denial().reason) == (None, "")


def test_the_end_of_a_denial_is_by_the_clock_of_etcd(fleet: Fleet) -> None:
    fleet.etcd.ahead_s = 3600.0
    fleet.post("deny", target=["t1:1:2"], **{"for": "2h"})
    found = fleet.denial()
    assert (found.since, found.until) == (fleet.host.wall + 3600, fleet.host.wall + 3600 + 7200)
    assert list(fleet.etcd.leases.values()) == [7260]


def test_hosts_of_a_file_that_this_host_does_not_run_are_counted(fleet: Fleet) -> None:
    for text, hosts in ((TEXT.replace('"h0"', '"hx"'), 1), ("planets = 4", 0)):
        fleet.etcd.values[KEYS.file] = Value(text.encode(), len(text))
        found = fleet.ask(lambda c: c.get("/v1/fleet"))["hosts"]
        assert sum(h["host"] == "hx" for h in found) == hosts
        assert sum(h["host"] == "h0" for h in found) == 1


def test_a_denial_that_this_host_would_refuse_is_not_written(fleet: Fleet) -> None:
    answer = fleet.post("deny", target=["plane:9"])
    assert (answer["refused"], answer["message"]) == (
        True,
        "plane:9 is not denied: h0 would refuse it: there is no plane 9",
    )
    assert not fleet.etcd.values


def test_an_allow_ends_the_denials_within_its_target(fleet: Fleet) -> None:
    for word in ("t1:1:2", "t1:1:1", "t1:0:1"):
        fleet.post("deny", target=[word])
    assert sorted(fleet.post("allow", target=["plane:1"])["ended"]) == ["t1:1:1", "t1:1:2"]
    assert fleet.post("allow", target=["plane:1"])["message"] == "no fleet-wide denial to end"
    assert fleet.post("allow", all=True)["ended"] == ["t1:0:1"]
    assert not fleet.etcd.values


def test_a_file_is_written_if_this_host_could_run_it(fleet: Fleet) -> None:
    answer = fleet.post("file", text=TEXT + "[health]\noverdue_ms = 11\n")
    assert [s["key"] for s in answer["settings"]] == ["health.overdue_ms"]
    assert fleet.ask(lambda c: c.get("/v1/fleet/file"))["generation"] == answer["generation"]
    assert "mrcctl fleet get" in fleet.post("file", text=TEXT, if_generation=answer["generation"] + 1).hint
    assert fleet.post("file", text=TEXT, if_generation=answer["generation"])["changed"] is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "[cluster2]\n", "cluster2: unknown key"),
        (TEXT.replace('"h0"', '"hx"'), "no host named 'h0'"),
        (TEXT.replace("[cluster]", "[cluster]\nudp_port = 4798"), "cluster.udp_port must be equal on all hosts"),
        (TEXT + f"# 1 {'0aF3' * 16}\n", "has what looks like a secret"),
        (TEXT + "# -----BEGIN EC PRIVATE KEY-----\n", "has what looks like a secret"),
    ],
)
def test_a_file_that_no_host_should_run_is_not_written(fleet: Fleet, text: str, message: str) -> None:
    error = fleet.post("file", text=text)
    assert message in str(error)
    assert "0aF3" not in str(error)
    assert not fleet.etcd.values


def test_a_file_whose_secrets_or_nics_this_host_lacks_is_not_written(fleet: Fleet, tmp_path: Path) -> None:
    text = TEXT + f'[auth]\nmode = "required"\nsecret_file = "{tmp_path / "none"}"\n'
    assert str(tmp_path / "none") in str(fleet.post("file", text=text))
    fleet.links.clear()
    assert "none of the plane NICs" in str(fleet.post("file", text=TEXT))
    assert not fleet.etcd.values


def report_of(fleet: Fleet, *hosts: str) -> None:
    """Has these hosts say that they are there."""
    said = {"version": "1", "file": {"generation": None, "sha256": "", "refused": None}}
    for host in hosts:
        value = Value(report_value(said | {"denials": [], "refused_denials": []}), 1)
        fleet.etcd.values[KEYS.host(host)] = value


def test_a_file_is_tried_by_half_of_the_hosts_until_it_is_put_or_its_time_ends(fleet: Fleet) -> None:
    report_of(fleet, "h0", "h1", "h2", "h3")
    text = TEXT + "[health]\noverdue_ms = 11\n"
    answer = fleet.post("trial", text=text, first=3, wait_s=10, watch_s=30)
    assert len(answer["hosts"]) == 2
    assert fleet.etcd.leases == {KEYS.trial: 100}
    trial = KEYS.wanted(fleet.etcd.values).trial
    assert trial
    assert (trial.file, trial.hosts) == (FleetFile(answer["generation"], text), answer["hosts"])
    assert "another file is on trial" in str(fleet.post("trial", text=text, first=1))
    fleet.post("file", text=text)
    assert (KEYS.trial in fleet.etcd.values, KEYS.file in fleet.etcd.values) == (False, True)
    answer = fleet.post("trial", text=text, first=1)
    fleet.post("trial/end", lease=answer["lease"] + 1)  # of another trial
    assert KEYS.trial in fleet.etcd.values
    fleet.post("trial/end", lease=answer["lease"])
    assert KEYS.trial not in fleet.etcd.values
    assert "lease must be a number" in str(fleet.post("trial/end"))


def test_a_host_alone_tries_nothing(fleet: Fleet) -> None:
    report_of(fleet, "h0")
    answer = fleet.post("trial", text=TEXT, first=3, wait_s=10, watch_s=30)
    assert (answer["hosts"], answer["generation"]) == ([], None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"first": 0}, "first must be a number of hosts"),
        ({"first": True}, "first must be a number of hosts"),
        ({"wait_s": -1}, "wait_s must be a number of seconds"),
        ({"watch_s": 1e9}, "watch_s must be a number of seconds"),
        ({"watch_s": "1"}, "watch_s must be a number of seconds"),
        ({"if_generation": 3}, "another one was put meanwhile"),
        ({"text": "planets = 4"}, "planets: unknown key"),
    ],
)
def test_a_trial_that_makes_no_sense_is_refused(fleet: Fleet, more: dict[str, Any], message: str) -> None:
    report_of(fleet, "h0", "h1", "h2", "h3")
    assert message in str(fleet.post("trial", **{"text": TEXT, "first": 2} | more))
    assert KEYS.trial not in fleet.etcd.values


def test_a_setting_of_all_hosts_is_written_with_force(fleet: Fleet) -> None:
    text = TEXT.replace("[cluster]", "[cluster]\nudp_port = 4798")
    assert fleet.post("file", text=text, force=True)["all_hosts"] == ["cluster.udp_port"]


def test_without_a_file_in_etcd_none_is_returned(fleet: Fleet) -> None:
    assert "etcd has no cluster file" in str(fleet.ask(lambda c: c.get("/v1/fleet/file")))
    assert fleet.ask(lambda c: c.get("/v1/fleet"))["file"] is None
