# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl links`: faults of this host's links show within seconds, and end when they are healed."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.cluster.observe import client
from tests.lab.conftest import a_lab, all_good, wait_until

SMALL = {"hosts": 4, "planes": 2, "t1": 2, "health": {"hold_down_ms": 100, "hold_down_max_ms": 500}}
Bad = dict[str, str]


@pytest.fixture(scope="module")
def links_lab() -> Iterator[Lab]:
    """Four hosts, two planes of two T1s. EVs return soon."""
    with a_lab("links", **SMALL) as made:
        wait_until("all links are ok", lambda: bad(made) == {})
        yield made


def rows(lab: Lab, host: str = "h0") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client(lab, host).get("/v1/links")
    return found


def bad(lab: Lab, host: str = "h0") -> Bad:
    """Returns the links that are not ok, with their states."""
    return {r["link"]: r["state"] for r in rows(lab, host) if r["state"] != "ok"}


def expect(lab: Lab, expected: Bad, host: str = "h0") -> None:
    wait_until(f"the bad links of {host} are {expected}", lambda: bad(lab, host) == expected)


def heal(lab: Lab) -> None:
    """Heals all faults, and waits until every link and every EV is well."""
    lab.heal()
    for host in lab.fabric.hosts:
        expect(lab, {}, host)
    wait_until("all EVs are GOOD", lambda: all_good(lab))


def row(lab: Lab, link: str) -> dict[str, Any]:
    return next(r for r in rows(lab) if r["link"] == link)


def wait_direction(lab: Lab, link: str, direction: str) -> None:
    wait_until(f"{link} loses packets {direction}", lambda: row(lab, link)["direction"] == direction)


def test_a_dead_link_is_seen_by_all_hosts_under_its_t0_and_by_no_other(links_lab: Lab) -> None:
    links_lab.fail("link:0:0:1")
    expect(links_lab, {"link:0:0:1": "dead"})
    expect(links_lab, {"link:0:0:1": "dead"}, "h1")
    assert bad(links_lab, "h2") == {}
    found = links_lab.exec("h0", ["mrcctl", "links"])
    assert found.returncode == 1
    assert "may be the T1" in found.stdout
    heal(links_lab)
    assert links_lab.exec("h0", ["mrcctl", "links"]).returncode == 0


def test_a_dead_t1_is_seen_as_dead_links_under_both_t0s(links_lab: Lab) -> None:
    links_lab.fail("t1:1:0")
    expect(links_lab, {"link:1:0:0": "dead"})
    expect(links_lab, {"link:1:1:0": "dead"}, "h2")
    heal(links_lab)


def test_a_lossy_link_is_told_with_its_loss(links_lab: Lab) -> None:
    links_lab.fail("link:1:0:1", drop=0.2)  # of 36 % of the probes, which cross it twice
    expect(links_lab, {"link:1:0:1": "lossy"})
    wait_until("its loss is known", lambda: 0.2 < row(links_lab, "link:1:0:1")["recent_loss_ratio"] < 0.5)
    found = links_lab.exec("h0", ["mrcctl", "links", "-i", "2", "--plane", "1", "--json"])
    assert found.returncode == 1
    over = {r["link"]: r for r in json.loads(found.stdout)["links"]}
    assert over.keys() == {"nic:h0:1", "link:1:0:0", "link:1:0:1"}
    assert over["link:1:0:1"]["recent_lost_probes"] > over["link:1:0:0"]["recent_lost_probes"] == 0
    heal(links_lab)


def test_loss_of_the_nic_is_not_that_of_the_links_behind_it(links_lab: Lab) -> None:
    links_lab.fail("nic:h0:0", drop=0.2)
    expect(links_lab, {"nic:h0:0": "lossy"})
    assert bad(links_lab, "h1") == {}
    heal(links_lab)


@pytest.mark.parametrize("target", ["nic:h0:1", "link:0:0:0"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_the_direction_of_a_loss_is_told(links_lab: Lab, target: str, direction: Any) -> None:
    links_lab.fail(target, direction=direction)
    wait_until(f"{target} is dead", lambda: bad(links_lab).get(target) == "dead")
    wait_direction(links_lab, target, direction)
    heal(links_lab)


def test_a_nic_without_a_link_is_dead_and_the_links_behind_it_unknown(links_lab: Lab) -> None:
    links_lab.fail("nic:h0:1", down=True)
    expect(links_lab, {"nic:h0:1": "dead", "link:1:0:0": "unknown", "link:1:0:1": "unknown"})
    heal(links_lab)


def test_each_fault_has_one_event_at_its_beginning_and_one_at_its_end(links_lab: Lab) -> None:
    since = client(links_lab, "h0").get("/v1/events", after=0, wait=0)["last_id"]
    links_lab.fail("link:1:0:0")
    expect(links_lab, {"link:1:0:0": "dead"})
    heal(links_lab)
    found = client(links_lab, "h0").get("/v1/events", after=since, wait=0)["events"]
    told = [(e["evidence"]["target"], e["from"], e["to"]) for e in found if e["kind"] == "link"]
    assert told == [("link:1:0:0", "ok", "dead"), ("link:1:0:0", "dead", "ok")]


def test_links_answer_from_the_tables_while_mrcd_is_down(links_lab: Lab) -> None:
    pid = links_lab.daemon_pid("h1")
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_until("mrcd of h1 has ended", lambda: links_lab.daemon_pid("h1") is None)
    found = links_lab.exec("h1", ["mrcctl", "links", "--json"])
    document = json.loads(found.stdout)
    assert (found.returncode, document["source"]) == (0, "tables")
    assert {r["state"] for r in document["links"]} == {"unknown"}
    assert all(r["probes"] > 0 for r in document["links"])
    links_lab.up(**SMALL)
    expect(links_lab, {}, "h1")
