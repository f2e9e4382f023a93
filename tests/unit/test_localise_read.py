# SPDX-License-Identifier: BSD-2-Clause
"""Tests what `mrcctl fleet links` reads: hosts that move to another T0, and since when a part loses packets."""

import re
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from mrcd.fleet_links.document import HISTORY_S, _History
from mrcd.fleet_links.elements import Direction, Element, Kind
from mrcd.fleet_links.read import HOST, Names, Reader
from mrcd.fleet_links.search import localise
from mrcd.prometheus import Prometheus, Sample, Series

MOST_STEPS = 11_000  # of Prometheus' API, in one answer


class Sums:
    """Answers the queries of a Reader: 1,000 packets in each series, of which all arrive."""

    def __init__(self, hosts: list[dict[str, str]], series: dict[str, list[dict[str, str]]]) -> None:
        self._hosts, self._series = hosts, series

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Returns the sums of some series by some labels."""
        if expression == HOST:
            return [(host, 1.0) for host in self._hosts]
        found = re.match(r"sum by \(([^)]*)\) \(increase\((\w+)_[tr]x_packets_total", expression)
        assert found
        names = found[1].split(", ")
        sums: dict[tuple[str, ...], float] = {}
        for labels in self._series[found[2]]:
            key = tuple(labels[name] for name in names)
            sums[key] = sums.get(key, 0.0) + 1000
        return [(dict(zip(names, key, strict=True)), value) for key, value in sums.items()]


def test_a_host_that_moves_to_another_t0() -> None:
    """h1 has its new cluster file already, and h0 sent packets to it under the T0 before, which is empty now."""
    h0, h1 = {"host": "h0", "t0": "0"}, {"host": "h1", "t0": "2"}
    sent = {
        "mrc_fabric_uplink": [h0 | {"plane": "0", "t1": "0"}, h1 | {"plane": "0", "t1": "0"}],
        "mrc_fabric_t0": [h0 | {"plane": "0", "peer_t0": "1"}, h1 | {"plane": "0", "peer_t0": "0"}],
        "mrc_fabric_peer": [h0 | {"peer": "h1", "peer_t0": "1"}, h1 | {"peer": "h0", "peer_t0": "0"}],
    }
    reader = Reader(cast(Prometheus, Sums([h0, h1], sent)), 0.0, 60.0)
    assert (reader.names.t0s, reader.names.hosts) == (["0", "1", "2"], ["h0", "h1"])
    assert reader.fleet.peer_t0.sent.tolist() == [[[0, 1000, 0], [0, 0, 0], [1000, 0, 0]]]
    assert localise(reader.fleet) == []


class Loss:
    """Answers range queries: 20 packets lost per second since a time."""

    def __init__(self, began: float) -> None:
        self._began = began

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Returns what was lost in the window before each step."""
        count = int((end - start) / step) + 1
        assert count <= MOST_STEPS
        times = [start + k * step for k in range(count)]
        return [({}, [(t, 20 * max(0.0, min(step, t - self._began))) for t in times])]


@pytest.mark.parametrize(
    ("window_s", "age_s", "since_s"),
    [
        (2.0, 7.0, 8.0),  # the least window
        (60.0, 150.0, 180.0),
        (60.0, HISTORY_S + 600, None),
        (4 * 3600.0, 3600.0, 4 * 3600.0),
        (24 * 3600.0, 3600.0, 24 * 3600.0),  # longer than the history
        (24 * 3600.0, 30 * 3600.0, None),
    ],
)
def test_since_when_a_part_loses_packets(window_s: float, age_s: float, since_s: float | None) -> None:
    at = 1e6
    reader = SimpleNamespace(
        names=Names(["0"], ["0"], ["h0"], 1), fleet=SimpleNamespace(t0_of_host=np.zeros(1, np.int64))
    )
    history = _History(cast(Prometheus, Loss(at - age_s)), at, window_s, cast(Reader, reader))
    link = Element(Kind.LINK, Direction.UP, 0, 0, 0)
    assert history.since_s(link, 20 * min(window_s, age_s)) == since_s
