# SPDX-License-Identifier: BSD-2-Clause
"""Reads the sums of a fleet from Prometheus.

Prometheus sums over the hosts of each T0, so that answers stay small: with 8 planes, 64 T0s and 64 T1s they have
70,000 numbers. Only hosts whose NIC may be bad are read one by one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mrcd.config.hostlist import compress
from mrcd.errors import MachineError
from mrcd.fleet_links.counts import Fleet, HostSums, Ints, Sums
from mrcd.prometheus import Prometheus, Sample, one_of

HOST = "mrc_fabric_host_info"
UPLINK, PEER_T0, PEER = "mrc_fabric_uplink", "mrc_fabric_t0", "mrc_fabric_peer"
_WAYS = ("tx", "rx")


@dataclass(frozen=True)
class Names:
    """The names behind the indexes of a fleet, and the number of its hosts that Prometheus scrapes."""

    t0s: Sequence[str]
    t1s: Sequence[str]
    hosts: Sequence[str]
    scraped: int


@dataclass(frozen=True)
class Selection:
    """The series of a family with some labels, of hosts with some labels."""

    family: str
    labels: str = ""
    of_hosts: str = ""

    def packets(self, way: str, window_s: float) -> str:
        """Returns an expression for the packets (`tx`) or arrived packets (`rx`) of a window, by host and T0."""
        counter = f"{self.family}_{way}_packets_total{{{self.labels}}}[{round(window_s * 1000)}ms]"
        return f"(increase({counter}) * on (job, instance) group_left (host, t0) {HOST}{{{self.of_hosts}}})"

    def lost(self, window_s: float) -> str:
        """Returns an expression for the lost packets of a window."""
        return f"({self.packets('tx', window_s)} - {self.packets('rx', window_s)})"


class Reader:
    """Reads the counts of a window before the time `at` (Unix time). Raises MachineError if there are none."""

    def __init__(self, server: Prometheus, at: float, window_s: float) -> None:
        self._server, self._at, self._window_s = server, at, window_s
        info = [labels for labels, _ in server.query(HOST, at)]
        if not info:
            raise MachineError(
                "Prometheus has no sums of the fabric",
                hint="scrape /metrics/fabric of each host: see docs/fleet.md; is the URL that of the right server?",
            )
        _require_once(labels["host"] for labels in info)
        pairs = self._packets(PEER, ("t0", "peer", "peer_t0"))
        t0_of = {labels["peer"]: labels["peer_t0"] for labels, _ in pairs["tx"]}
        t0_of |= {labels["host"]: labels["t0"] for labels in info}
        hosts = sorted(t0_of)
        uplinks = self._packets(UPLINK, ("t0", "plane", "t1"))
        t1s = sorted({labels["t1"] for labels, _ in uplinks["tx"]}, key=_number)
        to_t0 = self._packets(PEER_T0, ("t0", "plane", "peer_t0"))
        # Also those that have no host any more: one that moves to another T0 has both for a while.
        found = {labels[name] for labels, _ in to_t0["tx"] for name in ("t0", "peer_t0")}
        t0s = sorted({*t0_of.values()} | found, key=_number)
        self.names = Names(t0s, t1s, hosts, len({labels["host"] for labels in info}))
        planes = max((int(labels["plane"]) for labels, _ in to_t0["tx"]), default=0) + 1
        # Hosts of older versions do not say it, and while a new cluster file goes from host to host they differ.
        said = [int(text) for labels in info if (text := labels.get("rails", "")).isascii() and text.isdecimal()]
        ((rails, _),) = Counter(said or [1]).most_common(1)
        names = {"plane": [str(p) for p in range(planes)], "t0": t0s, "t1": t1s, "host": hosts}
        names |= {"peer_t0": t0s, "peer": hosts}
        self._places = {label: {name: i for i, name in enumerate(of_label)} for label, of_label in names.items()}
        table, keys = self._sums(pairs, ("t0", "peer")), {(labels["t0"], labels["peer"]) for labels, _ in pairs["tx"]}
        source = np.array(sorted(self._places["t0"][t] * len(hosts) + self._places["peer"][h] for t, h in keys))
        source, peer = np.divmod(source.astype(np.int64), len(hosts))
        self.fleet = Fleet(
            uplink=self._sums(uplinks, ("plane", "t0", "t1")),
            peer_t0=self._sums(to_t0, ("plane", "t0", "peer_t0")),
            peer=Sums(table.sent[source, peer], table.lost[source, peer]),
            peer_source=source,
            peer_host=peer,
            host=self._sums(self._packets(PEER_T0, ("host", "plane")), ("host", "plane")),
            t0_of_host=np.array([self._places["t0"][t0_of[h]] for h in hosts], np.int64),
            read=self._read,
            rails=rails if rails > 0 and planes % rails == 0 else 1,
        )

    def _packets(self, family: str, labels: Sequence[str], of_hosts: str = "") -> dict[str, list[Sample]]:
        """Returns the sent and the arrived packets of a family, summed by these labels."""
        series, by = Selection(family, of_hosts=of_hosts), ", ".join(labels)
        return {
            way: self._server.query(f"sum by ({by}) {series.packets(way, self._window_s)}", self._at) for way in _WAYS
        }

    def _sums(self, samples: dict[str, list[Sample]], labels: Sequence[str], host: str | None = None) -> Sums:
        """Returns an array with a dimension per label, of one host or of all."""
        ways = np.zeros((len(_WAYS), *(len(self._places[label]) for label in labels)))
        for to, way in zip(ways, _WAYS, strict=True):
            for names, value in samples[way]:
                if host in (None, names.get("host")):
                    to[tuple(self._places[label][names[label]] for label in labels)] += value
        return Sums(ways[0], np.maximum(ways[0] - ways[1], 0.0))

    def _read(self, hosts: Sequence[int]) -> list[HostSums]:
        """Returns the sums of single hosts."""
        names = [self.names.hosts[h] for h in hosts]
        families = ((UPLINK, ("plane", "t1")), (PEER_T0, ("plane", "peer_t0")), (PEER, ("peer",)))
        selector = one_of("host", names)
        samples = [(self._packets(family, ("host", *labels), selector), labels) for family, labels in families]
        found = []
        for name in names:
            uplink, peer_t0, to_all = (self._sums(of_family, labels, name) for of_family, labels in samples)
            peers: Ints = np.flatnonzero(to_all.sent)
            found.append(HostSums(uplink, peer_t0, Sums(to_all.sent[peers], to_all.lost[peers]), peers))
        return found


def _require_once(hosts: Iterable[str]) -> None:
    """Raises MachineError if a host is there twice: its packets would count twice."""
    doubled = [host for host, n in Counter(hosts).items() if n > 1]
    if doubled:
        raise MachineError(
            f"Prometheus has the sums of {compress(doubled)} more than once",
            hint="one scrape job per host should have /metrics/fabric; of replicas, ask the server that merges them",
        )


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (1 << 30, text)
