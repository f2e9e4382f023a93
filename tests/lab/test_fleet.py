# SPDX-License-Identifier: BSD-2-Clause
"""Tests fleet control: all hosts follow a real etcd of three members, whose packets mrcd carries itself."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.cluster.etcd import PREFIX, EtcdMembers
from labkit.traffic.stream import streams
from tests.lab.conftest import a_lab, all_good, mrcctl, states, wait_until

LAB = {"hosts": 4, "planes": 2, "t1": 2}
RATE = 5_000  # packets per second, of each flow
SETTING = "\n[health]\ngrey_false_alarms = 2.0\n"
PROGRAM_SETTING = "[overlay]\nflowlet_us = 77\n"
"""The programs are loaded with it."""

missing = EtcdMembers.missing()
pytestmark = pytest.mark.skipif(missing is not None, reason=str(missing))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab("fleet", **LAB) as made:
        yield made


@pytest.fixture(scope="module")
def etcd(lab: Lab) -> Iterator[EtcdMembers]:
    """The etcd that all hosts follow, by [fleet] in the file that each has on its disk."""
    members = EtcdMembers(lab, ["h0", "h1", "h2"])
    members.start()
    file = lab.state.cluster_file
    file.write_text(file.read_text() + members.section)
    for host in lab.fabric.hosts:
        mrcctl(lab, host, "reload")
    yield members
    members.kill()


@pytest.fixture
def whole(lab: Lab, etcd: EtcdMembers) -> Iterator[EtcdMembers]:
    """All members of etcd run, nothing is denied, and all EVs are GOOD, before and after."""

    def restore() -> None:
        etcd.start()
        lab.heal()
        wait_until("etcd answers all hosts", lambda: all(_connected(lab, h) for h in lab.fabric.hosts))
        assert fleet(lab, "h1", "allow", "--all")["done"]
        wait_until("all EVs are GOOD", lambda: all_good(lab))

    restore()
    yield etcd
    restore()


def _connected(lab: Lab, host: str) -> bool:
    return mrcctl(lab, host, "status")["fleet"]["connected"] is not None


def fleet(lab: Lab, host: str, *words: str, code: int = 0) -> Any:
    """Returns what `mrcctl fleet` prints on a host."""
    done = lab.exec(host, ["mrcctl", "fleet", *words, "--json"])
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def put(lab: Lab, host: str, text: str) -> Any:
    """Gives all hosts a cluster file, and returns the answer."""
    done = lab.exec(host, ["mrcctl", "fleet", "put", "-", "--watch", "1", "--json"], input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def refused(lab: Lab, host: str, *words: str, code: int = 2, given: str | None = None) -> str:
    """Returns the error of `mrcctl fleet` on a host."""
    done = lab.exec(host, ["mrcctl", "fleet", *words], input=given)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


def generations(lab: Lab) -> set[int | None]:
    """Returns the generations that all hosts run, by their own daemons."""
    return {mrcctl(lab, h, "status")["fleet"]["generation"] for h in lab.fabric.hosts}


def denied_everywhere(lab: Lab) -> bool:
    """Returns whether T1 1 of plane 0, which is EV 1, is denied to a host of another T0 on each host."""
    return all(states(lab, h, "h3" if h < "h2" else "h0")[1] == "DENIED" for h in lab.fabric.hosts)


def test_a_denial_reaches_all_hosts_and_ends_in_time(lab: Lab, whole: EtcdMembers) -> None:
    answer = fleet(lab, "h3", "deny", "t1:0:1", "--for", "3s", "--reason", "fan tray")
    assert answer["progress"] == "4 of 4 hosts deny it"
    assert denied_everywhere(lab)
    (seen,) = mrcctl(lab, "h0", "denials")
    assert (seen["target"], seen["reason"], seen["host"]) == ("t1:0:1", "fan tray", "h3")
    assert "`mrcctl fleet allow t1:0:1`" in lab.exec("h0", ["mrcctl", "allow", "t1:0:1"]).stderr
    wait_until("it has ended on all hosts", lambda: not any(mrcctl(lab, h, "denials") for h in lab.fabric.hosts))


def test_a_denial_that_hosts_would_refuse_is_not_made(lab: Lab, whole: EtcdMembers) -> None:
    fleet(lab, "h1", "deny", "t1:0:0")
    fleet(lab, "h1", "deny", "t1:0:1")
    fleet(lab, "h1", "deny", "t1:1:0")
    assert "h1 would refuse it: too few usable EVs would be left" in refused(lab, "h1", "deny", "t1:1:1")
    assert len(fleet(lab, "h1", "status")["denials"]) == 3


def test_a_drained_t1_is_taken_out_without_losing_a_packet_while_a_member_of_etcd_dies(
    lab: Lab, whole: EtcdMembers
) -> None:
    with streams(lab, RATE) as load:
        whole.kill("h2")
        answer = fleet(lab, "h3", "drain", "t1:0:1")
        assert answer["progress"] == "4 of 4 hosts drained, 0 packets left, 0 lost"
        assert denied_everywhere(lab)
        lab.fail("t1:0:1")
        load.go_on()
        lab.heal()
        fleet(lab, "h3", "allow", "t1:0:1")
        load.go_on()
        assert load.finish()[1] == 0


def test_a_file_reaches_all_hosts_without_a_lost_packet(lab: Lab, whole: EtcdMembers) -> None:
    text = lab.state.cluster_file.read_text()
    with streams(lab, RATE) as load:
        first = put(lab, "h3", text + SETTING)
        load.go_on()
        whole.kill("h1")
        second = put(lab, "h3", text + SETTING + PROGRAM_SETTING)
        load.go_on()
        assert load.finish()[1] == 0
    assert [s["key"] for s in second["settings"]] == ["overlay.flowlet_us"]
    assert (first["programs"], second["programs"]) == (False, True)
    assert second["progress"] == f"4 of 4 hosts run generation {second['generation']}"
    assert generations(lab) == {second["generation"]}
    assert fleet(lab, "h2", "get")["text"] == text + SETTING + PROGRAM_SETTING
    stale = ["put", "-", "--if-generation", str(first["generation"])]
    assert "another one was put meanwhile" in refused(lab, "h3", *stale, code=1, given=text)


def test_a_bad_file_is_refused_by_all_hosts_and_they_say_why(lab: Lab, whole: EtcdMembers) -> None:
    text = fleet(lab, "h0", "get")["text"]
    good = put(lab, "h0", text)["generation"]
    bad = text.replace("[cluster]", "[cluster]\nplanets = 4")
    assert "cluster.planets: unknown key" in refused(lab, "h0", "put", "-", code=1, given=bad)
    whole.ctl("put", f"{PREFIX}/want/file", given=bad)
    wait_until("all refuse it", lambda: _states(lab) == {"refuses"})
    seen = fleet(lab, "h0", "status", code=2)
    assert all("cluster.planets: unknown key; did you mean planes" in h["refused"]["why"] for h in seen["hosts"])
    assert generations(lab) == {good}
    assert "h0, h1, h2, h3 refuse the cluster file" in refused(lab, "h0", "status")
    put(lab, "h0", text)
    assert _states(lab) == {"current"}


def test_a_file_that_costs_the_first_hosts_a_peer_is_taken_back(lab: Lab, whole: EtcdMembers) -> None:
    text = lab.state.cluster_file.read_text()
    good = put(lab, "h0", text)["generation"]
    tables = text.split("[[hosts]]")
    (far,) = (n for n, table in enumerate(tables) if 'name = "h3"' in table)
    tables[far] = re.sub(r"port = \d+", "port = 77", tables[far])  # there is no host at that port
    said = refused(lab, "h0", "put", "-", "--watch", "60", given="[[hosts]]".join(tables))
    assert "2 first hosts run it: h0, h2" in said
    assert re.search(r"h[02] has lost h3.*; h0, h2 went back to the file before", said)
    wait_until("all run the file before", lambda: _states(lab) == {"current"} and generations(lab) == {good})
    wait_until("all EVs are GOOD", lambda: all_good(lab))


def _states(lab: Lab) -> set[str]:
    document = json.loads(lab.exec("h0", ["mrcctl", "fleet", "status", "--json"]).stdout)
    return {h["state"] for h in document["hosts"]}


def test_without_etcd_daemons_restart_and_go_on_with_what_they_knew(lab: Lab, whole: EtcdMembers) -> None:
    fleet(lab, "h0", "deny", "t1:0:1")
    text = lab.state.cluster_file.read_text() + SETTING + PROGRAM_SETTING
    generation = put(lab, "h0", text + "# the last\n")["generation"]
    with streams(lab, RATE) as load:
        whole.kill()
        wait_until("all miss etcd", lambda: not any(_connected(lab, h) for h in lab.fabric.hosts))
        assert denied_everywhere(lab)
        pids = {h: lab.daemon_pid(h) for h in lab.fabric.hosts}
        for host, pid in pids.items():
            assert pid is not None
            os.kill(pid, signal.SIGKILL if host < "h2" else signal.SIGTERM)
        wait_until("all daemons are gone", lambda: not any(lab.daemon_pid(h) for h in lab.fabric.hosts))
        lab.up(**LAB)
        assert generations(lab) == {generation}
        assert denied_everywhere(lab)
        assert "flowlet_us = 77" in lab.exec("h3", ["mrcctl", "config", "show"]).stdout
        assert not mrcctl(lab, "h3", "config", "diff")["changed"]
        load.go_on()
        assert load.finish()[1] == 0
    wait_until("h0 knows why", lambda: "no endpoint" in mrcctl(lab, "h0", "status")["fleet"]["away"])
    assert "etcd is away" in refused(lab, "h0", "deny", "t1:0:0")
    whole.start()
    wait_until("etcd answers all hosts", lambda: all(_connected(lab, h) for h in lab.fabric.hosts))
    assert fleet(lab, "h0", "status")["file"]["generation"] == generation
