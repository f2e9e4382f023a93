# SPDX-License-Identifier: BSD-2-Clause
"""Tests the shares of probes in traffic and CPU, and their requirements."""

from typing import Any

import pytest

from labkit.bench.scale import control
from labkit.cluster.emulated_peers import Seen
from labkit.measure.progstats import Runs

FLOOR = 4000
HEADERS = 94


def reading(push_ns: int = 1000, probes: int = 1000) -> control.Reading:
    """Returns a second of 100,000 packets of 1,000 bytes in bursts of eight."""
    runs = {"mrc_tick": Runs(10**7, 50), "mrc_timer": Runs(10**6, 1000), "mrc_pop": Runs(2 * 10**6, probes)}
    runs["mrc_push"] = Runs(12_500 * push_ns, 12_500)
    kinds = {"traffic": probes - 100, "suspicion": 0, "retry": 0, "idle": 100}
    return control.Reading(1.0, 100_000, 10**8, kinds, Seen(12_500, 100_000, 10**8, probes, probes * 500), runs)


def busy(**other: Any) -> dict[str, Any]:
    """Returns a run with 256 busy peers."""
    document = control.summary([reading(), reading()], [reading(800, 50)], HEADERS)
    known = {"peers": 256, "wanted_packets_per_s": 256_000, "burst_packets": 8, "floor_probes_per_s": FLOOR}
    return {**known, **document, **other}


def test_shares_are_those_of_windows_with_piggybacked_probes() -> None:
    found = busy()
    assert found["packets_per_s"] == 100_000
    assert found["packets_ratio"] == 0.01
    assert found["bytes_ratio"] == pytest.approx(1000 * 500 / (10**8 + 100_000 * HEADERS))
    assert found["replies_per_s"] == 1000
    assert found["requests_per_s"] == {"traffic": 900, "suspicion": 0, "retry": 0, "idle": 100}
    assert found["cpu_ratio"] == pytest.approx(
        {"mrc_tick": 0.01, "mrc_timer": 0.001, "mrc_pop": 0.002, "mrc_push": 12_500 * 200 / 1e9}
    )


def test_a_faster_push_with_probes_costs_nothing() -> None:
    assert control.summary([reading(700)], [reading(800)], HEADERS)["cpu_ratio"]["mrc_push"] == 0


@pytest.mark.parametrize(
    ("other", "met"),
    [
        ({}, [True, True, True]),
        ({"packets_per_s": 300_000, "packets_ratio": 0.021}, [False, True, True]),
        ({"packets_per_s": 300_000, "bytes_ratio": 0.011}, [True, False, True]),
        ({"cpu_ratio_all": 0.051}, [True, True, False]),
        ({"packets_per_s": 1000, "packets_ratio": 1.0, "bytes_ratio": 1.0}, [True, True, True]),
        ({"packets_per_s": 1000, "packets_ratio": 5.0, "requests_per_s": {"idle": 5000}}, [False, True, True]),
        ({"packets_per_s": 0, "packets_ratio": None, "bytes_ratio": None}, [False, False, True]),
    ],
)
def test_a_host_may_send_two_percent_or_what_an_idle_one_sends(other: dict[str, Any], met: list[bool]) -> None:
    assert [r["met"] for r in control.requirements([busy(**other)])] == met


def test_the_table_has_a_line_for_each_number_of_peers() -> None:
    said = control.lines([busy(), busy(peers=1000)])
    assert sum("100,000 of 256,000" in line for line in said) == 2
    assert any(line.split()[0] == "1000" and "1.00%" in line for line in said)
