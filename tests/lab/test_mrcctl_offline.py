# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcctl shows of a real host: with its daemon, and from the pinned tables without it."""

import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, mrcctl, wait_until
from tests.lab.flows import tcp_transfer


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts, two planes, two T1s in each: four EVs."""
    with a_lab("offline", **TWO_HOSTS) as made:
        yield made


def json_of(lab: Lab, *arguments: str) -> Any:
    """Returns the whole JSON that mrcctl prints in h0."""
    return json.loads(lab.exec("h0", ["mrcctl", *arguments, "--json"], check=True).stdout)


def _left_under_traffic(lab: Lab, ev: int) -> bool:
    """Returns whether an EV was left; sends traffic, since without the daemon only traffic carries probes."""
    tcp_transfer(lab, 4, target=1)
    return bool(mrcctl(lab, "h0", "paths")[ev]["state"] == "ASSUMED_BAD")


def test_status_shows_programs_and_links_of_the_kernel(lab: Lab) -> None:
    status = json_of(lab, "status")
    assert status["daemon"]["running"]
    assert status["forwarding_without_daemon"] == {
        "works": True,
        "how": "mrc_push at mrc0 and mrc_pop at 2 planes are pinned",
    }
    assert {k: status["tables"][k]["used"] for k in ("peers", "evs", "events")} == {"peers": 1, "evs": 4, "events": 0}
    assert (status["last_transition"]["peer"], status["last_transition"]["state"]) == ("h1", "GOOD")
    links = {(x["program"], x["point"], x["interface"]) for x in status["links"]}
    assert links == {
        ("mrc_push", "egress", "mrc0"), ("mrc_push", "ingress", "pmrc0"),
        ("mrc_probe", "egress", "pmrc0"), ("mrc_timer", "ingress", "tmrc0"), ("mrc_unsent", "kfree_skb", None),
        ("mrc_pop", "ingress", "p0"), ("mrc_pop", "ingress", "p1"),
    }  # fmt: skip
    assert (status["receive"]["interface"], status["receive"]["gro"]) == ("mrc0", False)  # bursts arrive whole


def test_mrcctl_shows_hops(lab: Lab) -> None:
    for path in json_of(lab, "paths", "--decode")["paths"]:
        assert [(h["kind"], h["number"]) for h in path["hops"]] == [
            ("t0", 0), ("t1", path["t1"]), ("t0", 1), ("host", 0),
        ]  # fmt: skip


def test_without_the_daemon_mrcctl_reads_the_tables_and_the_ring(lab: Lab, tmp_path: Path) -> None:
    pid = lab.daemon_pid("h0")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until("mrcd is gone", lambda: lab.daemon_pid("h0") is None)
    told = json_of(lab, "events")
    assert told["source"] == "tables"
    assert {"started"} <= {e["reason"] for e in told["events"] if e["id"]}  # kept in the file
    assert not [e for e in told["events"] if e["id"] is None]
    lab.fail("t1:1:1")
    try:
        wait_until("EV 3 is left", lambda: _left_under_traffic(lab, 3))
        status = lab.exec("h0", ["mrcctl", "status", "--json"], check=True)
        assert status.stderr == "mrcctl: mrcd is not running; from the pinned tables\n"
        document = json.loads(status.stdout)
        assert document["forwarding_without_daemon"]["works"]
        assert (document["last_transition"]["ev"], document["last_transition"]["state"]) == (3, "ASSUMED_BAD")
        ours = [e for e in mrcctl(lab, "h0", "events") if e["to"] == "ASSUMED_BAD" and e["id"] is None]
        assert [(e["peer"], e["ev"], e["t1"], e["id"]) for e in ours] == [("h1", 3, 1, None)]
        look = json_of(lab, "watch", "--count", "1")
        assert (look["source"], [p["ev"] for p in look["worst"]]) == ("tables", [3])
        report = tmp_path / "report.tar.gz"
        lab.exec("h0", ["mrcctl", "bugreport", "-o", str(report)], check=True)
        with tarfile.open(report) as archive:
            names = {n.partition("/")[2] for n in archive.getnames()}
        assert {"mrcd/paths.json", "mrcd/events.json", "config/mrcd.toml", "bpf/net.txt", "manifest.json"} <= names
        lab.up(**TWO_HOSTS)  # starts the daemon: the ring still has the events that mrcctl showed
        told = [e for e in mrcctl(lab, "h0", "events") if e["to"] == "ASSUMED_BAD"]
        assert told[-1]["monotonic_ns"] == ours[0]["monotonic_ns"]
    finally:
        lab.heal()
        lab.up(**TWO_HOSTS)
    wait_until("all EVs are GOOD", lambda: all_good(lab))
