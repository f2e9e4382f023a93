# SPDX-License-Identifier: BSD-2-Clause
"""Watches a lab with Prometheus and Alertmanager, by mrcd's rules with shorter durations.

An alert is written as its name, its severity, and its other labels: `MrcFault critical target=t1:1:2`. The label
`instance` has the host's name.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.api import Lab
from labkit.cluster.patience import wait_for
from labkit.monitoring.alertmanager import Alertmanager, Notice
from labkit.monitoring.prometheus import RULES, Prometheus

_SCRAPED_S = 120.0
_FILES = ("recording.yml", "alerts.yml")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FOR = re.compile(r"(?m)(?<=^        for: )(\d+)([smhd])$")
_RANGE = re.compile(r"(?<=\[)(\d+)([smhd])(?=\])")


@dataclass(frozen=True)
class Pace:
    """The scale of time in the rules: durations are `factor` times shorter, within limits in seconds."""

    factor: float
    least_for_s: float
    most_for_s: float
    least_range_s: float
    scrape_s: float


@dataclass(frozen=True)
class WatchedLab:
    """A lab whose hosts Prometheus scrapes, and whose alerts arrive in the inbox of Alertmanager."""

    lab: Lab
    prometheus: Prometheus
    alertmanager: Alertmanager

    def name(self, labels: Mapping[str, str]) -> str:
        """Returns an alert in the words of this module."""
        left = {k: v for k, v in labels.items() if k != "job"}
        head = [left.pop("alertname"), left.pop("severity")]
        if "instance" in left:
            left["instance"] = self.prometheus.host(left["instance"])
        return " ".join([*head, *(f"{k}={v}" for k, v in sorted(left.items()))])

    def firing(self) -> set[str]:
        """Returns the alerts of which Alertmanager has sent that they fire, and not yet that they are over."""
        return {self.name(notice.labels) for notice in self.alertmanager.inbox.now()}

    def pending(self) -> set[str]:
        """Returns the alerts that fire soon, unless their condition ends."""
        alerts = self.prometheus.get("alerts")["alerts"]
        return {self.name(alert["labels"]) for alert in alerts if alert["state"] == "pending"}

    def fired(self, first: int) -> dict[str, Notice]:
        """Returns the alerts that have fired, but for the first ones."""
        return {self.name(notice.labels): notice for notice in self.alertmanager.inbox.fired[first:]}

    def unanswered(self) -> set[str]:
        """Returns the alerts MrcdDown of daemons that run, but have let Prometheus wait lately: of a busy machine."""
        found = self.prometheus.query('min_over_time(up{job="mrcd"}[10m]) == 0')
        hosts = {self.prometheus.host(labels["instance"]) for labels, _ in found}
        return {f"MrcdDown warning instance={host}" for host in hosts if self.lab.daemon_pid(host)}


def _shortened(text: str, pace: Pace) -> str:
    """Returns rules with a shorter `for` of each alert, and with shorter ranges of the queries. Pure."""

    def seconds(found: "re.Match[str]") -> float:
        return int(found[1]) * _UNITS_S[found[2]] / pace.factor

    def for_(found: "re.Match[str]") -> str:
        return f"{1000 * min(pace.most_for_s, max(pace.least_for_s, seconds(found))):.0f}ms"

    def range_(found: "re.Match[str]") -> str:
        return f"{1000 * max(pace.least_range_s, seconds(found)):.0f}ms"

    return _RANGE.sub(range_, _FOR.sub(for_, text))


@contextlib.contextmanager
def watched(lab: Lab, directory: Path, pace: Pace) -> Iterator[WatchedLab]:
    """A block in which a lab that is up is watched. Raises MachineError."""
    places = {name: directory / name for name in ("rules", "alertmanager", "prometheus")}
    for place in places.values():
        place.mkdir()
    for name in _FILES:
        text = _shortened((RULES / name).read_text(encoding="utf-8"), pace)
        (places["rules"] / name).write_text(text, encoding="utf-8")
    hosts = list(lab.fabric.hosts)
    with (
        Alertmanager(places["alertmanager"]) as alertmanager,
        Prometheus(
            lab,
            hosts,
            places["prometheus"],
            rules=places["rules"],
            alertmanager=alertmanager.address,
            scrape_s=pace.scrape_s,
        ) as prometheus,
    ):
        pairs = len(hosts) * (len(hosts) - 1)
        query = f"count(mrc_build_info) == {len(hosts)} and sum(mrc_peer_reachable) == {pairs}"
        wait_for("Prometheus has scraped all hosts", lambda: bool(prometheus.query(query)), _SCRAPED_S)
        yield WatchedLab(lab, prometheus, alertmanager)
