# SPDX-License-Identifier: BSD-2-Clause
"""Tests every query of the dashboard, and the rules, with a Prometheus server that scraped a lab under faults."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.monitoring.prometheus import RULES, Prometheus
from tests.lab.conftest import a_lab, mrcctl, states, wait_until
from tests.lab.flows import tcp_flow

DASHBOARD = json.loads((RULES / "dashboard.json").read_text(encoding="utf-8"))
VARIABLES = {"$__rate_interval": "30s", "$__range": "5m", "$instance": ".+"}


def _queries() -> list[tuple[str, str]]:
    """Returns (panel, query), with the dashboard's variables replaced."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            assert "$" not in query, query
            found.append((panel["title"], query))
    return found


QUERIES = _queries()


@pytest.fixture(scope="module")
def fabric() -> Iterator[Lab]:
    if not Prometheus.is_installed():
        pytest.skip("Prometheus is not installed: `make set-up` installs it")
    with a_lab("prom", hosts=3, hosts_per_t0=1, planes=2, t1=4) as lab:
        yield lab


@pytest.fixture(scope="module")
def server(fabric: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The server after faults: a T1 failed and healed, another one failed; h1's daemon killed, h2's replaced."""

    def bad(ev: int) -> bool:
        return states(fabric, "h0", "h2")[ev] == "ASSUMED_BAD"

    with Prometheus(fabric, ["h0", "h1", "h2"], tmp_path_factory.mktemp("prometheus")) as made:
        wait_until("all is scraped", lambda: made.query('sum(up{job="mrcd"}) == 3'))
        with tcp_flow(fabric):
            fabric.fail("t1:0:1")
            wait_until("EV 1 is left", lambda: bad(1))
            fabric.heal()
            wait_until("EV 1 comes back", lambda: not bad(1))
            fabric.fail("t1:1:2")
            wait_until("EV 6 is left", lambda: bad(6))
            for host in ("h1", "h2"):
                pid = fabric.daemon_pid(host)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            down = [f'up{{instance="{made.instance(h)}"}} == 0' for h in ("h1", "h2")]
            wait_until("both are missed", lambda: all(made.query(q) for q in down))
            _start(fabric, "h2")
            wait_until("h2 is scraped again", lambda: not made.query(down[1]))
            wait_until(
                "what it lost is judged", lambda: made.query("max_over_time(instance_plane:mrc_loss:ratio1m[10m]) > 0")
            )
            wait_until("the newest is scraped", lambda: made.query('mrc_ev_state_timestamp_seconds{ev="6"}'))
        yield made
        fabric.heal()


def _samples(server: Prometheus, query: str) -> list[tuple[dict[str, str], float]]:
    """Returns the samples once there are some: after a scrape that a busy machine missed, an instant has none."""
    found: list[tuple[dict[str, str], float]] = wait_until(query, lambda: server.query(query))
    return found


def _value(server: Prometheus, query: str) -> float:
    """Returns the value of the only sample."""
    ((_, value),) = _samples(server, query)
    return value


def _start(lab: Lab, host: str) -> None:
    run_dir = lab.run_dir(host)
    lab.popen(
        host,
        ["mrcd", "--run-dir", str(run_dir), "--bpffs", str(run_dir / "bpf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{i}-{t}" for i, (t, _) in enumerate(QUERIES)])
def test_every_query_of_the_dashboard_has_data(server: Prometheus, title: str, query: str) -> None:
    samples = _samples(server, query)
    assert any(not math.isnan(value) for _, value in samples), query


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    rows = [p["title"] for p in DASHBOARD["panels"] if p["type"] == "row"]
    assert rows == ["Fleet", "Host", "Failover", "mrcd"]
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_all_rules_are_evaluated_without_an_error(server: Prometheus) -> None:
    groups = server.get("rules")["groups"]
    rules: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 15
    assert {rule["health"] for rule in rules} == {"ok"}, [r for r in rules if r["health"] != "ok"]


def test_a_dead_daemon_on_a_forwarding_host_has_an_alert_of_its_own(fabric: Lab, server: Prometheus) -> None:
    query = 'ALERTS{alertname="MrcdDownWhileForwarding", alertstate="pending"}'  # for a minute
    wait_until("that of h2 is over", lambda: len(server.query(query)) == 1)
    ((labels, _),) = server.query(query)
    assert (labels["host"], labels["instance"]) == ("h1", server.instance("h1"))
    fabric.exec("h0", ["ping", "-c2", "-i0.01", "-W1", "10.99.0.2"], check=True)


def test_kernel_counters_are_not_reset_by_a_new_daemon(server: Prometheus) -> None:
    """No counter of h2 has a reset, and there are more transitions than the new daemon has seen."""
    h2 = server.instance("h2")
    own = "mrc_tick_seconds_bucket|mrc_fabric_.+"  # of the daemon itself: they begin at 0 with it
    every = f'{{instance="{h2}", __name__=~"mrc_.+_(total|bucket)", __name__!~"{own}"}}[5m]'
    series = server.get("query", query=every)["result"]
    assert len({s["metric"]["__name__"] for s in series}) > 15
    for s in series:
        values = [float(value) for _, value in s["values"]]
        assert values == sorted(values), s["metric"]
    assert _value(server, f'changes(process_start_time_seconds{{instance="{h2}"}}[5m])') == 1
    assert _value(server, f'sum(mrc_ev_transitions_total{{instance="{h2}", reason="probed"}})') >= 16


def test_the_metrics_show_the_fault(fabric: Lab, server: Prometheus) -> None:
    h0 = f'instance="{server.instance("h0")}"'
    bad = _samples(server, f'mrc_ev_state_timestamp_seconds{{{h0}, state="ASSUMED_BAD", peer="h2"}}')
    assert [(labels["ev"], labels["plane"]) for labels, _ in bad] == [("6", "1")]
    assert _value(server, f'mrc_evs{{{h0}, peer="h2", state="ASSUMED_BAD"}}') == 1
    assert _value(server, f'sum(mrc_usable_evs{{{h0}, peer="h2"}})') == 7
    assert _value(server, f'sum(mrc_ev_transitions_total{{{h0}, to="ASSUMED_BAD"}})') >= 2
    assert _value(server, f"mrc_reinstatement_seconds_count{{{h0}}}") >= 1
    status = mrcctl(fabric, "h0", "status")
    assert _value(server, f"sum(mrc_plane_up{{{h0}}})") == sum(p["up"] for p in status["planes"])


@pytest.mark.parametrize("mode", ["groups", "off"])
def test_the_dashboard_has_data_without_series_by_peer(fabric: Lab, server: Prometheus, mode: str) -> None:
    """h0 and h2 reload the mode; h1's daemon is dead, and h0 has left EVs."""
    path = fabric.state.cluster_file
    before = path.read_text(encoding="utf-8")
    fault = f'mrc_evs{{instance="{server.instance("h0")}", state="ASSUMED_BAD"}}'
    left = f"sum({fault})"
    count = _value(server, left)
    path.write_text(f'{before}\n[metrics]\npeers = "{mode}"\n', encoding="utf-8")
    try:
        for host in ("h0", "h2"):
            fabric.exec(host, ["mrcctl", "reload"], check=True)
        wait_until("the mode is scraped", lambda: server.query(f'count(mrc_build_info{{peers="{mode}"}}) == 2'))
        with tcp_flow(fabric):
            wait_until("packets are sent", lambda: server.query("min(instance_plane:mrc_tx_packets:rate1m) > 0"))
            for title, query in QUERIES:
                if "mrc_ev_state_timestamp_seconds" not in query:
                    assert _samples(server, query), title
        assert not server.query('{__name__=~"mrc_.+", __name__!~"mrc_fabric_.+", peer!=""}')
        assert _value(server, left) == count > 0
    finally:
        path.write_text(before, encoding="utf-8")
        for host in ("h0", "h2"):
            fabric.exec(host, ["mrcctl", "reload"], check=True)
