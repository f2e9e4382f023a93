# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl links`, and the documents and metrics of links."""

import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from click.testing import Result
from prometheus_client.metrics_core import Metric

from mrcd.api.metrics.collector import MOST_LINK_SERIES, link_families
from mrcd.ctl.commands.links import over_interval
from mrcd.ctl.phrases import sentence
from mrcd.fabric import links
from mrcd.fabric.links import number
from mrcd.health.events import EventLog
from mrcd.health.links.verdicts import Counts, State
from mrcd.health.links.watch import LinkWatch, Verdicts
from mrcd.health.snapshot import Snapshot
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables
from mrcd.view import links as view
from tests.unit.canned_daemon import LINK, Daemon
from tests.unit.diagnosed_host import Host

S = 10**9


# ---- the command ----


def test_the_interval_counts_what_was_probed_meanwhile(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    later = LINK | {"probes": LINK["probes"] + 10, "lost_probes": LINK["lost_probes"] + 4}  # type: ignore[operator]
    (row,) = over_interval([LINK], [later])
    assert (row["recent_probes"], row["recent_lost_probes"], row["recent_loss_ratio"]) == (10, 4, 0.4)
    (row,) = over_interval([LINK], [LINK])
    assert row["recent_loss_ratio"] is None
    document = json.loads(mrcctl("links", "-i", "0.1", "--json").stdout)
    assert document["interval_s"] >= 0.1
    assert document["links"][0]["recent_probes"] == 0


def test_an_event_names_the_link() -> None:
    log = EventLog()
    words: dict[str, Any] = {"reason": "link_probes", "before": "ok", "after": "dead", "plane": 1}
    log.add("link", **words, evidence={"target": "nic:h0:1", "unanswered_probes": 12})
    event = log.last
    assert event
    assert sentence(event).endswith(" UTC link nic:h0:1: ok → dead, link_probes")


# ---- the documents ----


class Links(Host):
    """h0 of nine hosts, whose link probes all came back."""

    def __init__(self) -> None:
        super().__init__()
        self.links["sent"], self.links["received"], self.links["rtt_ns"] = 101, 100, 30_000
        self.links["tx_ns"] = self.links["rx_ns"] = self.now
        self.node["idle_us"] = 100_000
        c = self.plan.config.cluster
        shape = 1 + c.t1s, c.planes
        counts = np.full(shape, 100, np.int64)
        states, since = np.full(shape, State.OK, np.int8), np.full(shape, self.now - 5 * S)
        self.verdicts = Verdicts(states, since, Counts(counts, 0 * counts))

    def lose(self, plane: int, t1: int | None, state: State, lost: int) -> None:
        row = 0 if t1 is None else 1 + t1
        self.verdicts.states[row, plane], self.verdicts.recent.lost[row, plane] = state, lost

    def documents(self) -> dict[str, dict[str, Any]]:
        found = view.documents(Snapshot(cast(Tables, self), self.plan), self.verdicts)
        return {d["link"]: d for d in found}


def test_documents_name_each_link_as_deny_does() -> None:
    found = Links().documents()
    assert list(found)[:3] == ["nic:h0:0", "nic:h0:1", "link:0:0:0"]
    assert len(found) == 2 * (1 + 4)
    link = found["link:1:0:3"]
    assert (link["state"], link["probes"], link["lost_probes"], link["rtt_ns"]) == ("ok", 100, 0, 30_000)
    assert link["since_s"] == pytest.approx(5, abs=1)
    assert link["carrier"] == str(next(x.carrier for x in links.links(Links().plan) if (x.plane, x.t1) == (1, 3)))


def test_without_a_daemon_counts_are_known_and_states_are_not() -> None:
    host = Links()
    host.links["lost"][number(1, 2)] = 20
    found = view.documents(Snapshot(cast(Tables, host), host.plan), None)
    assert {d["state"] for d in found} == {"unknown"}
    assert {d["link"]: d["lost_probes"] for d in found if d["lost_probes"]} == {"link:1:0:2": 20}


def test_the_loss_of_a_link_is_without_that_of_the_nics() -> None:
    host = Links()
    host.lose(1, None, State.LOSSY, 20)
    host.lose(1, 2, State.LOSSY, 60)
    found = host.documents()
    assert found["nic:h0:1"]["recent_loss_ratio"] == pytest.approx(0.2)
    assert found["link:1:0:2"]["recent_loss_ratio"] == pytest.approx(0.5)
    assert found["link:1:0:2"]["recent_lost_probes"] == 60
    assert found["link:1:0:1"]["recent_loss_ratio"] == 0


def test_evs_tell_the_direction() -> None:
    host = Links()
    host.lose(1, 2, State.DEAD, 100)
    assert host.documents()["link:1:0:2"]["direction"] == "down"  # all data arrives
    width = host.plan.config.cluster.evs_per_plane
    across = width + 2  # the EV by T1 2 of plane 1, to all peers
    host.path_stats["loss_ns"][:, across] = host.now
    host.evs["state"][:, across] = EvState.ASSUMED_BAD
    found = host.documents()
    assert found["link:1:0:2"]["direction"] == "up"
    assert found["link:1:0:2"]["recent_loss_ratio"] == 1
    assert found["link:1:0:1"]["direction"] is None  # it is ok
    host.path_stats["loss_ns"][:, across] = host.now - 60 * S  # it lost something long ago
    assert host.documents()["link:1:0:2"]["direction"] == "down"
    host.watches["silent"] = 1
    assert host.documents()["link:1:0:2"]["direction"] is None


def test_a_nic_without_a_link_has_no_direction() -> None:
    host = Links()
    host.lose(1, None, State.DEAD, 0)
    host.node["plane_mask"] = 1
    found = host.documents()["nic:h0:1"]
    assert (found["state"], found["direction"], found["has_carrier"]) == ("dead", None, False)


def test_a_watch_judges_the_tables_once_a_second() -> None:
    host, watch = Links(), LinkWatch(EventLog())
    watch.use_plan(host.plan)
    for second in range(4):
        host.links["sent"] += 10
        host.links["received"] += 10
        watch.check(cast(Tables, host), 100.0 + second)
        watch.check(cast(Tables, host), 100.1 + second)
    assert watch.verdicts
    assert (watch.verdicts.states == State.OK).all()
    assert (watch.verdicts.recent.judged == 30).all()


# ---- metrics ----


def series(found: list[dict[str, Any]]) -> dict[str, dict[tuple[str, ...], float]]:
    made: list[Metric] = list(link_families(found))
    return {m.name: {tuple(s.labels.values()): s.value for s in m.samples} for m in made}


def test_metrics_sum_probes_by_plane_and_name_bad_links() -> None:
    host = Links()
    host.lose(0, None, State.LOSSY, 20)
    host.lose(1, 2, State.DEAD, 50)
    found = series(list(host.documents().values()))
    assert found["mrc_link_probe_judged"] == {("0", "t0"): 100, ("1", "t0"): 100, ("0", "t1"): 400, ("1", "t1"): 400}
    assert found["mrc_link_probe_loss_ratio"] == {("1", "2"): 1, ("0", ""): pytest.approx(0.2)}
    assert found["mrc_links"] == {("unknown",): 0, ("ok",): 8, ("lossy",): 1, ("dead",): 1}


def test_bad_links_have_a_bounded_number_of_series() -> None:
    found = series([LINK | {"t1": n, "state": "lossy", "recent_loss_ratio": n / 1000} for n in range(100)])
    shown = found["mrc_link_probe_loss_ratio"]
    assert len(shown) == MOST_LINK_SERIES
    assert min(shown.values()) == (100 - MOST_LINK_SERIES) / 1000  # the worst ones
