# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fleet check`: what it asks Prometheus, what it makes of the answers, and its exit status."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from click.testing import Result

from tests.unit.arrays import TEXT
from tests.unit.prometheus_server import Server, vector

Mrcctl = Callable[..., Result]
Samples = list[tuple[dict[str, str], float]]

HOSTS = ("h0", "h1", "h2", "h3")
CONFIG = {"t0": "0", "agreed": "a1b2", "sha256": "0123456789ab", "generation": "7", "key_ids": "3,4"}


class Hosts:
    """Answers queries by regular expressions, and keeps what was asked. The hosts are healthy at first."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.builds: Samples = [(self.of(host) | {"host": host, "version": "1.0"}, 3.0) for host in HOSTS]
        self.scrapes: Samples = []
        for host in HOSTS:
            self.add(host, "mrc_config_info", 1, **CONFIG)
            self.add(host, "mrc_auth_mode_info", 1, mode="required")
            self.add(host, "mrc_attached", 1)
            self.add(host, "mrc_evs_in_use_ratio", 1)
            self.add(host, "mrc_full_sweep_age_seconds", 0.5)
            self.add(host, "mrc_full_sweep_seconds", 1)
        self.faults: Samples = []
        self.down: Samples = []
        self.fresh: Samples = []

    @staticmethod
    def of(host: str) -> dict[str, str]:
        """Returns the labels of a host's series."""
        return {"job": "mrcd", "instance": f"{host}:9479"}

    def add(self, host: str, name: str, value: float, **labels: str) -> None:
        """Adds a sample to the last scrape of a host."""
        self.scrapes.append(({"__name__": name} | self.of(host) | labels, value))

    def answer(self, query: str) -> Samples:
        """Returns the samples of an expression."""
        self.asked.append(query)
        if query.startswith("count_values"):
            found: dict[tuple[str, ...], int] = {}
            for labels, value in self.faults:
                key = labels["cause"], labels["target"], f"{value:g}"
                found[key] = found.get(key, 0) + 1
            return [({"cause": c, "target": t, "share": s}, n) for (c, t, s), n in found.items()]
        for beginning, samples in (
            ("time() - timestamp", self.builds),
            ("{__name__", self.scrapes),
            ("topk", self.faults),
            ("max by", self.down),
            ("count(timestamp", self.fresh),
        ):
            if query.startswith(beginning):
                return [(labels, value) for labels, value in samples if _is_chosen(labels, query)]
        raise AssertionError(query)

    def reply(self, form: str) -> tuple[int, str, dict[str, Any]]:
        """Returns the answer to a request."""
        fields = parse_qs(form)
        assert "time" not in fields  # the server's clock counts, not that of the machine which asks
        return self.status, vector(self.answer(fields["query"][0])), {}


def _is_chosen(labels: dict[str, str], query: str) -> bool:
    """Returns whether a series is of a host that the query names; those of other hosts have no name."""
    names = re.search(r'host=~"([^"]*)"', query)
    return names is None or "host" not in labels or bool(re.fullmatch(names[1], labels["host"]))


@pytest.fixture
def server() -> Hosts:
    return Hosts()


@pytest.fixture
def check(mrcctl: Mrcctl, server: Hosts) -> Iterator[Mrcctl]:
    """Runs the command on a machine without a cluster file."""
    prometheus = Server(server.reply)

    def run(hosts: str = "h[0-3]", *args: str) -> Result:
        return mrcctl("fleet", "check", "--hosts", hosts, "--prometheus", prometheus.url, *args)

    yield run
    prometheus.stop()


def test_ready(check: Mrcctl, server: Hosts) -> None:
    result = check()
    assert (result.exit_code, result.stdout) == (0, "READY: 4 hosts, last full sweep 0.5 s ago\n")
    assert len(server.asked) == 3
    assert all('host=~"h0|h1|h2|h3"' in query for query in server.asked)
    document = json.loads(check("h[0-3]", "--json").stdout)
    del document["schema_version"]
    assert document == {"verdict": "ready", "hosts": 4, "not_ready_hosts": [], "sweep_age_s": 0.5, "findings": []}


def test_only_the_hosts_of_the_job_count(check: Mrcctl, server: Hosts) -> None:
    server.add("h3", "mrc_plane_up", 0, plane="1")
    assert check("h[0-2]").stdout.startswith("READY: 3 hosts")


def test_degraded_is_a_failure_only_with_strict(check: Mrcctl, server: Hosts) -> None:
    server.add("h2", "mrc_plane_up", 0, plane="1")
    result = check()
    assert result.exit_code == 0
    assert result.stdout.startswith("READY, degraded: h2 without plane 1\n  plane 1 of h2 is down: ")
    assert check("h[0-3]", "--strict").exit_code == 1


def test_not_ready(check: Mrcctl, server: Hosts) -> None:
    server.scrapes = [
        (labels, 0.0 if labels["__name__"] == "mrc_attached" and labels["instance"] == "h1:9479" else value)
        for labels, value in server.scrapes
    ]
    result = check("h[0-3]", "--strict")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (2, "NOT READY: h1 detached")
    document = json.loads(check("h[0-3]", "--json").stdout)
    assert (document["verdict"], document["not_ready_hosts"]) == ("not_ready", ["h1"])
    assert [(f["level"], f["cause"], f["hosts"]) for f in document["findings"]] == [("not_ready", "detached", ["h1"])]


def test_faults_are_summed_by_prometheus_and_some_hosts_named(check: Mrcctl, server: Hosts) -> None:
    fault = {"cause": "t1", "target": "t1:1:2"}
    server.faults = [(server.of(host) | fault, 1.0) for host in ("h3", "h1")]
    server.scrapes = [
        (m | {"t0": "1"} if m["instance"] == "h3:9479" and "t0" in m else m, v) for m, v in server.scrapes
    ]
    assert check().stdout.splitlines() == [
        "READY, degraded: plane 1 lacks t1:1:2",
        "  t1:1:2 is dead: 2 of 4 hosts see it",
        "    Do: on h3: `mrcctl status` says how to confirm it",
    ]
    assert len(server.asked) == 4


def test_hosts_that_prometheus_does_not_reach(check: Mrcctl, server: Hosts) -> None:
    del server.builds[2]
    server.down = [(server.of("h2") | {"host": "h2"}, 0.0)]
    result = check()
    assert (result.exit_code, result.stdout.splitlines()[0]) == (2, "NOT READY: h2 down")
    (asked,) = [query for query in server.asked if query.startswith("max by")]
    assert 'host=~"h2"' in asked
    server.down = [(server.of("h2") | {"host": "h2"}, 1.0)]  # but it did within --max-age
    result = check()
    assert result.exit_code == 0
    assert result.stdout.startswith("READY, degraded: h2 not reached by the last scrape\n")


def test_the_newest_series_of_a_host_counts(check: Mrcctl, server: Hosts) -> None:
    """Its address has changed, or two jobs scrape it."""
    server.builds.insert(0, ({"job": "mrcd", "instance": "old", "host": "h1", "version": "0.9"}, 200.0))
    assert check().exit_code == 0


@pytest.mark.parametrize("age", ["none", "old"])
def test_without_any_fresh_sample_it_cannot_tell(check: Mrcctl, server: Hosts, age: str) -> None:
    server.builds = [(labels, 100.0) for labels, _ in server.builds] if age == "old" else []
    result = check()
    assert (result.exit_code, result.stdout) == (3, "")
    assert "has no sample of any host that is newer than 60 s\n  hint: is the URL that of the right" in result.stderr
    server.fresh = [({}, 1.0)]  # of other hosts: so these are not ready
    assert check().exit_code == 2


def test_without_prometheus_it_cannot_tell(mrcctl: Mrcctl) -> None:
    result = mrcctl("fleet", "check", "--hosts", "h0", "--prometheus", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("mrcctl: Prometheus at http://127.0.0.1:1 does not answer: Connection refused")


def test_a_host_that_is_not_in_the_cluster_file_is_an_error(check: Mrcctl, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(TEXT)
    result = check("h[0-5]", "--config", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"mrcctl: h[4-5]: not in the cluster file {file}\n  hint: its hosts: h[0-3]\n"


def test_without_a_cluster_file_prometheus_does_not_know_the_host(check: Mrcctl) -> None:
    result = check("h[0-4]")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (2, "NOT READY: h4 not known to Prometheus")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--hosts", "h[0-", "--prometheus", "http://x"], "'h[0-' is not a list of hosts: brackets do not match"),
        (["--prometheus", "http://x"], "Missing option '--hosts'"),
        (["--hosts", "h0"], "Missing option '--prometheus'"),
        (["--hosts", "h0", "--prometheus", "x"], "'x' is not a URL of Prometheus"),
        (["--hosts", "h0", "--prometheus", "http://x", "--max-age", "0"], "Invalid value for '--max-age'"),
    ],
)
def test_wrong_usage_is_1(mrcctl: Mrcctl, args: list[str], message: str) -> None:
    result = mrcctl("fleet", "check", *args)
    assert (result.exit_code, result.stderr[: len(message) + 8]) == (1, f"mrcctl: {message}")
