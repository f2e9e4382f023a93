# SPDX-License-Identifier: BSD-2-Clause
"""Makes the document of `mrcctl fleet links`: the parts that lose packets, since when, and which hosts see it."""

import itertools
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mrcd.errors import MachineError
from mrcd.fleet_links.counts import Direction, Element, Kind
from mrcd.fleet_links.read import PEER, PEER_T0, UPLINK, Names, Reader, Selection
from mrcd.fleet_links.search import LEAST_LOST, Found, localise
from mrcd.prometheus import Prometheus, one_of

HISTORY_S = 6 * 3600.0  # a loss that began earlier has no beginning, if the window is not longer
# A sample has the time at which its scrape began, and is stored when it is over. Of newer ones, one query could find
# the sent packets, and the next those that arrived by the scrape after.
_SCRAPE_S = 3.0
_STILL = 0.1  # of what is lost now: a window in which less was lost is before the beginning
_MOST_HOSTS = 64
_FAULT = "mrc_fault"  # by the hosts' diagnoses

Document = dict[str, Any]


def localised(server: Prometheus, window_s: float) -> Document:
    """Returns the parts that lose packets in the newest window. Raises MachineError if that cannot be told."""
    at = time.time() - _SCRAPE_S
    reader = Reader(server, at, window_s)
    sent, lost = (float(v.sum()) for v in (reader.fleet.peer_t0.sent, reader.fleet.peer_t0.lost))
    if not sent:
        raise MachineError(
            f"no host has sent packets in the last {window_s:g} s",
            hint="is /metrics/fabric scraped at least twice in that time? --window takes more of it",
        )
    found = sorted(localise(reader.fleet), key=lambda f: f.element.part)
    parts = [list(group) for _, group in itertools.groupby(found, key=lambda f: f.element.part)]
    parts.sort(key=lambda part: -sum(f.lost for f in part))
    history = _History(server, at, window_s, reader)
    return {
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
        "window_s": window_s,
        "hosts": reader.names.scraped,
        "packets": round(sent),
        "lost_packets": round(lost),
        "links": [_document(part, reader.names, history) for part in parts],
        **differing_hosts(server, at),
    }


def differing_hosts(server: Prometheus, at: float) -> Document:
    """Returns the hosts that differ, by the diagnoses of all: hosts refuse each other's packets, which count as lost.

    Where no host is sure, only some of the named hosts differ.
    """
    samples = server.query(f'{_FAULT}{{cause=~"wrong_key|config_differs", target!=""}}', at)
    is_sure = any(value >= 1 for _, value in samples)
    hosts = {labels["target"].partition(":")[2] for labels, value in samples if value >= 1 or not is_sure}
    return {"differing": sorted(hosts), "differing_is_sure": is_sure}


def _document(part: Sequence[Found], names: Names, history: "_History") -> Document:
    """Returns a part of the fabric that loses packets, in one or both directions."""
    first = part[0].element
    since_s = max((s for f in part if (s := history.since_s(f.element, f.lost)) is not None), default=None)
    hosts = history.hosts(part)
    return {
        "target": target(first, names),
        "kind": first.kind.value,
        "planes": list(history.planes_of(first)),
        "direction": (first.direction if len(part) == 1 else Direction.BOTH).value,
        "loss_ratio": max(f.ratio for f in part),
        "lost_packets": round(sum(f.lost for f in part)),
        "confidence": round(min(f.confidence for f in part), 3),
        "or_targets": sorted({target(o, names) for f in part for o in f.alternatives}),
        "since_s": since_s,
        "hosts": hosts[:_MOST_HOSTS],
        "host_count": len(hosts),
    }


def target(e: Element, names: Names) -> str:
    """Returns an element as `mrcctl deny` takes it."""
    if e.kind is Kind.NIC:
        return f"nic:{names.hosts[e.host]}:{e.plane}"
    if e.kind is Kind.T1:
        return f"t1:{e.plane}:{names.t1s[e.t1]}"
    t0 = f"{e.plane}:{names.t0s[e.t0]}"
    return f"t0:{t0}" if e.kind is Kind.T0 else f"link:{t0}:{names.t1s[e.t1]}"


class _History:
    """Asks when an element began to lose packets, and which hosts have lost some there."""

    def __init__(self, server: Prometheus, at: float, window_s: float, reader: Reader) -> None:
        self._server, self._at, self._window_s = server, at, window_s
        self._names, self._t0_of_host = reader.names, reader.fleet.t0_of_host
        self.planes_of = reader.fleet.planes_of

    def since_s(self, e: Element, lost: float) -> float | None:
        """Returns for how many seconds, at most, an element has lost packets; None if no window is without a loss."""
        least = max(LEAST_LOST / 2, _STILL * lost)
        start = self._at - max(HISTORY_S, self._window_s)
        began: float | None = None
        values = [dict(self._sums(s, start)) for s in self._selections(e)]
        for t in sorted(values[0], reverse=True):
            if min(v.get(t, 0.0) for v in values) < least:
                break
            began = t
        if began is None or began - start < self._window_s:
            return None
        return round(self._at - began + self._window_s, 1)

    def _sums(self, selection: Selection, start: float) -> list[tuple[float, float]]:
        """Returns the lost packets of each window since a time."""
        # The last step is at the end of the range, so that the newest window is one of them.
        step, end = self._window_s, self._at
        start = end - (end - start) // step * step
        series = self._server.query_range(f"sum({selection.lost(self._window_s)})", start, end, step)
        return series[0][1] if series else []

    def hosts(self, part: Sequence[Found]) -> list[str]:
        """Returns the hosts that have lost packets at a part, those that have lost most first."""
        lost: dict[str, float] = {}
        for f in part:
            by_host = [f"sum by (host) ({s.lost(self._window_s)}) > 0.5" for s in self._selections(f.element)]
            answers = [{labels["host"]: v for labels, v in self._server.query(q, self._at)} for q in by_host]
            for h in set.intersection(*(set(a) for a in answers)):
                lost[h] = max(lost.get(h, 0.0), min(a[h] for a in answers))
        return sorted(lost, key=lambda h: (-lost[h], h))

    def _selections(self, e: Element) -> list[Selection]:
        """Returns the series that count the losses of an element: what it loses is in all of them."""
        names, plane = self._names, one_of("plane", map(str, self.planes_of(e)))
        if e.kind is Kind.NIC:
            name = json.dumps(names.hosts[e.host])
            if e.direction is Direction.UP:
                return [Selection(PEER_T0, plane, f"host={name}")]
            t0 = names.t0s[int(self._t0_of_host[e.host])]
            return [Selection(PEER, f"peer={name}"), Selection(PEER_T0, f'{plane}, peer_t0="{t0}"')]
        via = f'{plane}, t1="{names.t1s[e.t1]}"' if e.t1 >= 0 else plane
        if e.kind is Kind.T1:
            return [Selection(UPLINK, via)]
        t0 = names.t0s[e.t0]
        if e.direction is Direction.UP:
            return [Selection(UPLINK if e.t1 >= 0 else PEER_T0, via, f't0="{t0}"')]
        to_t0 = Selection(PEER_T0, f'{plane}, peer_t0="{t0}"')
        return [to_t0, Selection(UPLINK, via)] if e.t1 >= 0 else [to_t0]
