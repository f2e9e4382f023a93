# SPDX-License-Identifier: BSD-2-Clause
"""Tests the throughput matrix of labkit.bench: its cells and their requirements."""

import itertools
from typing import Any

import pytest

from labkit.bench import candidates, cells, control, receive_settings, throughput
from labkit.bench.candidates import KERNEL, MRCD, MRCD_ONE, PLAIN
from labkit.bench.cells import Bound, Cell
from labkit.bench.control import Sent
from labkit.bench.probing import Wire
from labkit.cluster.fabric import Parameters, build
from labkit.traffic import datagrams
from labkit.traffic.flow import Ends
from mrcd.denials import policy
from mrcd.errors import UsageError
from mrcd.fabric import topology


def runs(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"bits_per_s": rate, "cpu_s_per_gbit": cpu} for rate, cpu in pairs]


def cell(where: cells.Where = "direct", granularity: Any = "burst", load: str = "tcp-1", mtu: int = 1500) -> Cell:
    wanted = next(x for x in cells.LOADS if x.name == load)
    return Cell(where, mtu, granularity, 6, wanted, (MRCD, KERNEL, PLAIN))


def test_ratios_are_of_two_runs_in_one_round() -> None:
    found = cells.compared(KERNEL, runs((10, 1), (20, 1), (12, 3)), runs((10, 2), (10, 2), (10, 2)))
    assert found["peer"] == KERNEL
    assert found["goodput"]["ratios"] == [1, 2, 1.2]
    assert found["goodput"]["median"] == 1.2
    assert found["cpu_per_gbit"]["ratios"] == [0.5, 0.5, 1.5]


def test_the_default_is_what_is_required_and_a_glimpse_of_the_rest() -> None:
    assert all(bool(cells.bounds(c)) is not c.glimpse for c in cells.default(None))
    assert {c.load.name for c in cells.default(None)} == {x.name for x in cells.LOADS}
    assert {c.version for c in cells.default(None)} == {4, 6}
    assert not any(cells.bounds(c) for c in cells.default(4000) if c.granularity == "burst")


@pytest.mark.parametrize(
    ("measured", "bounds"),
    [
        (cell(), (Bound(KERNEL, 1.2, 1.0), Bound(PLAIN, 0.85))),
        (cell(granularity="packet"), (Bound(KERNEL, 1.1),)),
        (cell("lab", mtu=9100), (Bound(KERNEL, 1.05, 1.0),)),
        (cell("lab", mtu=1500), ()),
        (cell(load="tcp-8"), (Bound(KERNEL, 1.0, 1.0),)),
        (cell("lab", load="tcp-8", mtu=9100), (Bound(KERNEL, 0.95, 1.1),)),
        (cell("lab", load="tcp-8", mtu=1500), ()),
        (cell(granularity="packet", load="tcp-8"), ()),
        (cell(load="udp-64"), ()),
    ],
)
def test_what_is_required_of_a_cell(measured: Cell, bounds: tuple[Bound, ...]) -> None:
    assert cells.bounds(measured) == bounds


def test_requirements_are_judged_by_the_median() -> None:
    kernel = cells.compared(KERNEL, runs((13, 1), (10, 1), (12.5, 1)), runs((10, 0.9), (10, 2), (10, 2)))
    plain = cells.compared(PLAIN, runs((8, 1)), runs((10, 1)))
    found = cells.requirements(cell(), [kernel, plain])
    assert [r["met"] for r in found] == [True, True, False]
    assert "mrcd / kernel, goodput, is at least 1.2" in found[0]["requirement"]
    assert found[0]["measured"].startswith("median 1.250 (1.00–1.30)")


def test_what_is_asked_stands_beside_what_there_is_to_have() -> None:
    kernel = cells.compared(KERNEL, runs((11, 1)), runs((10, 1)))
    bare = cells.compared(KERNEL, runs((12, 1)), runs((10, 1)))
    found = cells.requirements(cell(), [kernel], bare)
    assert "without any encapsulation median 1.200" in found[0]["measured"]
    assert "without" not in found[1]["measured"]  # CPU


def test_nothing_measured_is_not_met() -> None:
    nothing = cells.compared(KERNEL, runs((0, 0)), runs((0, 0)))
    assert [r["met"] for r in cells.requirements(cell(), [nothing])] == [False, False]


def test_the_matrix_is_whole_and_its_labs_are_built_once() -> None:
    every = cells.full(None)
    assert len({c.words for c in every}) == len(every) == 2 * 2 * 2 * 5
    labs = [(c.where, c.mtu, c.granularity) for c in every]
    assert sum(a != b for a, b in itertools.pairwise(labs)) + 1 == len(set(labs))
    assert all(c.fits for c in every)
    assert not any(c.load.packet_bytes > 1420 for c in cells.full(1500))


def test_cells_are_chosen_by_their_words() -> None:
    found = cells.chosen(cells.full(None), (6,), ("udp-64", "lab"))
    assert [c.words for c in found] == [
        ("lab", "burst", "ipv6", "udp-64"),
        ("lab", "packet", "ipv6", "udp-64"),
    ]
    with pytest.raises(UsageError, match="no cell has this word"):
        cells.chosen(cells.full(None), (6,), ("udp-65",))
    with pytest.raises(UsageError, match="no cell is selected"):
        cells.chosen(cells.default(None), (4,), ("direct",))


def test_the_kernel_s_ways_are_told_apart_by_gso() -> None:
    assert cells.name_of(cell(granularity="packet"), KERNEL) == "kernel, GSO off"
    assert cells.name_of(cell(granularity="packet"), MRCD) == MRCD
    assert cells.name_of(cell("lab", granularity="packet"), MRCD_ONE) == MRCD_ONE
    assert cells.name_of(cell(), KERNEL) == KERNEL


@pytest.mark.parametrize(("size", "version", "payload"), [(64, 4, 36), (64, 6, 16), (1400, 6, 1352)])
def test_packet_sizes_have_headers_in_them(size: int, version: int, payload: int) -> None:
    assert datagrams.payload_bytes(size, version) == payload


def test_a_packet_without_room_for_headers_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        datagrams.payload_bytes(48, 6)


def test_what_is_denied_leaves_one_path_between_t0s() -> None:
    fabric = build("test", Parameters(planes=4, t1=4))
    plan = topology.plan(fabric.config, "h0")
    denied = {
        ev
        for target in candidates.others(fabric.parameters)
        for ev in policy.selected(plan, policy.parse(["peer:h2", target]))[fabric.config.host("h2").id]
    }
    (left,) = {e.ev for p in plan.peers if p.host.name == "h2" for e in p.evs} - denied
    assert left == 0


def controlled(name: str) -> dict[str, Any] | None:
    wire, sent = Wire(headers=100, probe=130, report=300), Sent(980, 10**6, (9, 1, 0, 0, 0), 0, 10, 5)
    return control.document({"h0": sent}, {"h0": wire}, 1.0) if name == MRCD else None


def document(settings: str, name: str, rate: float, runs: int) -> dict[str, Any]:
    return {
        "name": name,
        "shown": name,
        "receive": settings,
        "what": f"{name}'s way",
        "congestion_control": "cubic",
        "mss_bytes": 1440,
        "median_cpu_s_per_gbit": 0.1,
        "median_cpu_busy_ratio": 0.9,
        "median_retransmitted_segments": 0,
        "control": controlled(name),
        "runs": [{}] * runs,
    } | {f"{k}_bits_per_s": rate for k in ("median", "min", "max")}


def test_every_candidate_has_a_row_with_each_of_the_receive_settings() -> None:
    ratios = {s: cells.compared(KERNEL, runs((12, 1)), runs((base, 1))) for s, base in (("equal", 10), ("default", 6))}
    measured = {
        "name": "host to host",
        "candidates": [
            document(settings, name, rate * 1e9, number)
            for name, rate in ((MRCD, 12), (KERNEL, 10))
            for settings, number in (("equal", 8), ("default", 2))
        ],
        "ratios": [ratios["equal"]],
        "default_ratios": [ratios["default"]],
        "bare": None,
        "withdrawals_without_a_fault": 0,
    }
    found = throughput.lines({"seconds": 0.7, "cells": [measured], "notes": []})
    assert [line.split()[:2] for line in found[1:3]] == [["RECEIVE", "equal:"], ["RECEIVE", "default:"]]
    rows = [line.split()[:4] for line in found if line.startswith(("  mrcd ", "  kernel "))]
    assert rows == [
        [MRCD, "equal", "8", "12.00"],
        [MRCD, "default", "2", "12.00"],
        [KERNEL, "equal", "8", "10.00"],
        [KERNEL, "default", "2", "10.00"],
    ]
    assert [line.split()[10:12] for line in found if line.startswith("  mrcd ")] == [["2", "0.236"]] * 2
    assert sum("control packets are 2 % of all packets" in line for line in found) == 2
    said = [line for line in found if "mrcd / kernel" in line]
    assert ["equal: mrcd / kernel: goodput median 1.200" in said[0], "default:" in said[1]] == [True, True]


def test_what_bounds_judge_is_measured_in_every_round() -> None:
    lab = cell("lab", mtu=9100)
    ways = {name: candidates.Candidate(name, 6, "", Ends("h0", "", "h2", "")) for name in (MRCD, KERNEL, MRCD_ONE)}
    assert {
        (name, settings)
        for name, way in ways.items()
        for settings in receive_settings.SETTINGS
        if throughput.in_every_round(lab, way, settings)
    } == {(MRCD, receive_settings.EQUAL), (KERNEL, receive_settings.EQUAL)}
