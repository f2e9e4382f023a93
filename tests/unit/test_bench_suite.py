# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.bench.suite and cli: several parts in one run, one table of bounds, one document."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from labkit import entry
from labkit.bench import cli, pictures, suite
from labkit.bench.part import Options, Part, requirement
from labkit.cluster.api import Lab
from mrcd.errors import MachineError, UsageError

LAB = Lab("unit-whole")


def good(lab: Lab, options: Options) -> dict[str, Any]:
    return {"requirements": [requirement("fast", True, "1\nms"), requirement("small", False, "9 MB")]}


def broken(lab: Lab, options: Options) -> dict[str, Any]:
    raise MachineError("no such device")


GOOD = Part("good", good, lambda d: ["a table"], lambda d: "<svg/>")
BROKEN = Part("broken", broken, lambda d: ["never"])


def test_a_part_that_fails_leaves_the_others_results() -> None:
    found, failed = suite.measure(LAB, [BROKEN, GOOD], Options())
    assert list(found) == ["good"]
    assert found["good"]["taken_s"] >= 0
    assert failed == [{"part": "broken", "why": "no such device"}]
    with pytest.raises(MachineError, match="no such device"):
        suite.measure(LAB, [BROKEN], Options())


@pytest.mark.parametrize("error", [UsageError("no such cell"), BrokenPipeError(32, "Broken pipe")])
def test_any_error_of_a_part_is_reported(error: Exception) -> None:
    def late(lab: Lab, options: Options) -> dict[str, Any]:
        raise error

    part = Part("late", late, lambda d: ["never"])
    found, failed = suite.measure(LAB, [GOOD, part], Options())
    assert (list(found), [f["part"] for f in failed]) == (["good"], ["late"])
    with pytest.raises(type(error)):
        suite.measure(LAB, [part], Options())


def test_a_wrong_option_ends_it_before_anything_is_measured() -> None:
    def wrong(lab: Lab, options: Options) -> dict[str, Any]:
        raise UsageError("no such cell")

    with pytest.raises(UsageError):
        suite.measure(LAB, [Part("wrong", wrong, lambda d: []), GOOD], Options())


def test_the_result_directory_is_checked_before_the_run(tmp_path: Path) -> None:
    entry.check_writable(tmp_path / "a/b")
    assert not list((tmp_path / "a/b").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="file/b"):
        entry.check_writable(tmp_path / "file/b")


def test_all_bounds_are_in_one_table() -> None:
    found, failed = suite.measure(LAB, [BROKEN, GOOD], Options())
    assert 0 <= found["good"]["stolen_ratio"] <= 1
    found["good"]["stolen_ratio"] = 0.034
    bounds = suite.bounds(found, failed)
    machine = {"cpus": 2, "kernel": "6.18", "busy_ratio_before": 0.01, "idle": "idle CPUs wait"}
    said = suite.lines({"machine": machine, "parts": found, "bounds": bounds, "taken_s": 90.0}, [BROKEN, GOOD])
    assert said[1] == "idle CPUs wait"
    assert [" ".join(line.split()) for line in said[3:]] == [
        "a table",
        "",
        "PART BOUND MEASURED",
        "met good fast 1 ms",
        "NOT MET good small 9 MB",
        "NOT MET broken broken can be measured no such device",
        "1 of 3 bounds met; 1.5 minutes",
        "the hypervisor kept CPU time for others: good 3.4%",
    ]
    found["good"]["stolen_ratio"] = 0.004
    assert "hypervisor" not in "\n".join(
        suite.lines({"machine": machine, "parts": found, "bounds": bounds, "taken_s": 90.0}, [BROKEN, GOOD])
    )


def test_pictures_are_of_parts_that_were_measured(tmp_path: Path) -> None:
    found, _ = suite.measure(LAB, [BROKEN, GOOD], Options())
    assert suite.draw([BROKEN, GOOD], found, tmp_path / "new") == [tmp_path / "new/good.svg"]
    assert (tmp_path / "new/good.svg").read_text() == "<svg/>"


def test_make_bench_runs_the_documented_parts() -> None:
    every = ["throughput", "cost", "planes", "paper", "scale"]
    assert [p.name for p in cli.chosen_parts([])] == every
    assert [p.name for p in cli.chosen_parts(["all", "spread", "cost"])] == [*every, "spread"]
    assert [p.name for p in cli.chosen_parts(["planes", "planes", "calm"])] == ["planes", "calm"]


# ---- pictures ----


def candidate(name: str, rate: float, receive: str = "equal") -> dict[str, Any]:
    rates = {f"{k}_bits_per_s": rate for k in ("median", "min", "max")}
    return {
        "name": name,
        "shown": name,
        "receive": receive,
        "runs": [1],
        "congestion_control": "cubic",
        "median_cpu_s_per_gbit": 0.1,
    } | rates


def test_a_throughput_bound_is_drawn_at_its_share_of_the_peer() -> None:
    cell = {
        "name": "host to host",
        "where": "direct",
        "mtu_bytes": 1500,
        "granularity": "burst",
        "version": 6,
        "load": "tcp-1",
        "glimpse": False,
        "candidates": [
            *(candidate("mrcd", 5e9), candidate("mrcd", 5e9, "default")),
            *(candidate("kernel", 4e9), candidate("kernel", 2e9, "default")),
        ],
        "ratios": [{"peer": "kernel", "goodput": {"median": 1.25}, "cpu_per_gbit": {"median": None}}],
    }
    drawn = pictures.throughput({"seconds": 1.0, "cells": [cell], "notes": ["a note"]})
    ElementTree.fromstring(drawn)
    for words in ("wanted: 1.2 × kernel", "mrcd: 1.25 × kernel", "5.00 Gbit/s", "a note", "kernel, default"):
        assert words in drawn
    assert drawn.count("wanted") == 1  # of the row with the same settings
    glimpsed = pictures.throughput({"seconds": 1.0, "cells": [cell | {"glimpse": True}], "notes": []})
    assert "wanted" not in glimpsed


def test_costs_are_drawn_beside_the_first_case() -> None:
    def one(program: str, case: str, ns: float) -> dict[str, Any]:
        return {"program": program, "case": case, "median_ns": ns, "min_ns": ns, "max_ns": ns, "rounds": [ns]}

    document = {
        "cases": [one("mrc_push", "one peer", 100), one("mrc_push", "SRH", 150), one("mrc_pop", "one peer", 40)],
        "calls": [{"program": "mrc_push", "case": "one peer", "lookups": 8.0, "times": 0.0}],
        "statistics_ns": 20.0,
        "packet_bytes": 1400,
        "most_ratio": 1.3,
        "hosts": 4096,
        "evs_per_peer": 256,
    }
    drawn = pictures.cost(document)
    ElementTree.fromstring(drawn)
    for words in ("150 ns, 1.50 × one peer", "lookups 8<", "1.3 × one peer at most"):
        assert words in drawn
    assert drawn.count("at most") == 1  # of mrc_push alone


def test_lateness_below_a_kilobyte_is_one_bucket_and_shares_sum_to_one() -> None:
    late = [50, *[1] * 10, 20, 20, *[0] * 19]
    way = {"median_ratio": 0.97, "min_ratio": 0.96, "max_ratio": 0.98, "median_bits_per_s": 776e6, "runs": [1]}
    ways = [way | {"name": "mrcd", "late_skbs": late, "congestion_control": "cubic"}]
    ways.append(way | {"name": "mptcp", "late_skbs": [0] * 32, "congestion_control": "cubic"})
    case = {"case": "4 × 200 Mbit/s", "sum_bits_per_s": 800e6, "required_ratio": 0.97, "ways": ways}
    drawn = pictures.planes({"cases": [case], "mtu_bytes": 9100, "seconds": 1.0})
    ElementTree.fromstring(drawn)
    for words in ("mrcd: 50 %", "mrcd: 10 %", "mrcd: 20 %", "wanted: 97 %", "97 %, 776 Mbit/s"):
        assert words in drawn
    assert "mptcp: 0" not in drawn  # nothing was seen of it


def test_the_worst_ev_of_a_spread_is_drawn() -> None:
    worst = {"worst_deviation_ratio": 0.012}
    run = {"granularity": "burst", "evs": [1, 2], "bits_per_s": 4e10, "tx_bytes": worst, "tx_packets": worst}
    assert "1.2 %" in pictures.spread({"runs": [run], "seconds": 5.0})


def test_wrong_options_are_errors_and_defaults_are_valid() -> None:
    context = cli.bench.make_context("bench", ["planes"])
    assert context.params["parts"] == ("planes",)
    assert context.params["seconds"] is None
    with pytest.raises(click.UsageError, match="'plane' is not one of"):
        cli.bench.make_context("bench", ["plane"])
