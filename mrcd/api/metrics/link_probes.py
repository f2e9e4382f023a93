# SPDX-License-Identifier: BSD-2-Clause
"""Makes the metrics of link probes: four series per plane, one per state, and one per bad link, up to a limit."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from mrcd.health.links.verdicts import State

MOST_LINK_SERIES = 32

_BAD = (State.LOSSY.text, State.DEAD.text)


def families(documents: list[dict[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of the documents of GET /v1/links."""
    labels = ["plane", "end"]
    judged = CounterMetricFamily("mrc_link_probe_judged", "Link probes that came back or were lost.", labels=labels)
    lost = CounterMetricFamily("mrc_link_probe_lost", "Link probes that did not come back.", labels=labels)
    probes, losses = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for d in documents:
        key = str(d["plane"]), "t0" if d["t1"] is None else "t1"
        probes[key] += d["probes"]
        losses[key] += d["lost_probes"]
    for key, count in probes.items():
        judged.add_metric(key, count)
        lost.add_metric(key, losses[key])
    yield from (judged, lost)
    states = GaugeMetricFamily("mrc_links", "Number of links of this host, by state.", labels=["state"])
    for state in State:
        states.add_metric([state.text], sum(d["state"] == state.text for d in documents))
    yield states
    bad = GaugeMetricFamily(
        "mrc_link_probe_loss_ratio",
        "Ratio of packets that a lossy or dead link loses now, both directions together; only the worst links.",
        labels=["plane", "t1"],
    )
    for d in sorted((d for d in documents if d["state"] in _BAD), key=_loss, reverse=True)[:MOST_LINK_SERIES]:
        bad.add_metric([str(d["plane"]), "" if d["t1"] is None else str(d["t1"])], _loss(d))
    yield bad


def _loss(document: dict[str, Any]) -> float:
    return 1.0 if document["state"] == State.DEAD.text else float(document["recent_loss_ratio"] or 0)
