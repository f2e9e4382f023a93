# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.bench and its tools: a flow's two ends, CPU time, evenness."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from labkit import entry
from labkit.bench import cli, cpu, false_demotions, spread
from labkit.measure import evspread
from labkit.measure.goodput import BIN_NS
from labkit.traffic import flow
from mrcd.errors import UsageError

STAT = "cpu  100 20 300 4000 50 6 70 8 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"


def test_busy_time_excludes_idle_iowait_and_steal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda _: 100)
    used = cpu.parse(STAT)
    assert used.busy_s == pytest.approx(4.96)
    assert used.total_s == pytest.approx(45.54)
    assert used.stolen_s == pytest.approx(0.08)
    assert used.stolen_ratio == pytest.approx(0.08 / 45.54)
    assert used.since(used) == (0, 0, 0)
    assert used.since(used).busy_ratio == used.since(used).stolen_ratio == 0


def test_this_machine_has_busy_time() -> None:
    assert 0 < cpu.read().busy_ratio < 1


def paths(counts: list[int]) -> dict[str, Any]:
    evs = [{"ev": i, "plane": 0, "t1": i, "tx_packets": n, "tx_bytes": 1000 * n} for i, n in enumerate(counts)]
    return {"monotonic_ns": 5 * 10**9 if any(counts) else 0, "paths": evs}


def test_spread_is_the_worst_deviation_from_the_mean() -> None:
    found = evspread.spread(paths([0, 0, 0, 0]), paths([98, 100, 102, 108]))
    assert found["seconds"] == 5
    assert found["tx_packets"] == {"mean": 102, "min": 98, "max": 108, "worst_deviation_ratio": pytest.approx(6 / 102)}
    assert found["tx_bytes"]["mean"] == 102_000


def test_spread_of_nothing_is_no_number() -> None:
    assert evspread.spread(paths([0, 0]), paths([0, 0]))["tx_bytes"]["worst_deviation_ratio"] is None


@pytest.mark.parametrize(
    ("granularity", "counts", "met"),
    [
        ("burst", [100, 104], True),
        ("burst", [100, 112], False),
        ("packet", [100, 103], True),
        ("packet", [9, 10], False),
    ],
)
def test_the_bounds_of_the_spread(granularity: str, counts: list[int], met: bool) -> None:
    run = {"granularity": granularity, **evspread.spread(paths([0, 0]), paths(counts))}
    assert spread.required(run)["met"] is met


@pytest.mark.parametrize(("demotions", "skips", "said"), [(0, None, "0 demotions"), (2, 7, "2 demotions, 7 skips")])
def test_false_demotions_are_counted(demotions: int, skips: int | None, said: str) -> None:
    case = {"requirement": "none", "demotions": demotions, "skips": skips}
    assert false_demotions.required(case) == {"requirement": "none", "met": demotions == 0, "measured": said}


def test_kinds_of_failover_are_checked() -> None:
    assert cli.chosen_kinds(None) == ()
    assert cli.chosen_kinds("mptcp, drop-20") == ("mptcp", "drop-20")
    with pytest.raises(UsageError, match="not a kind of failover"):
        cli.chosen_kinds("drop-20,")


def test_a_lab_has_one_user_at_a_time() -> None:
    with entry.alone("unit-test"):
        with pytest.raises(UsageError, match="another run"), entry.alone("unit-test"):
            pass
        with entry.alone("unit-test-2"):
            pass
    with entry.alone("unit-test"):
        pass


def test_two_ends_of_a_flow_agree() -> None:
    """Over loopback: the receiver reports bins, the sender's TCP samples; closing stdin ends both."""
    pipe = subprocess.PIPE
    program = [sys.executable, "-I", str(flow.PROGRAM)]
    with subprocess.Popen([*program, "tcp", "receive", "127.0.0.1", str(BIN_NS)], stdin=pipe, stdout=pipe) as receiver:
        assert receiver.stdout is not None
        port = json.loads(receiver.stdout.readline())["port"]
        argv = [*program, "tcp", "send", "127.0.0.1", str(port), "127.0.0.1"]
        before = time.monotonic_ns()
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as sender:
            assert sender.stdout is not None
            first = json.loads(sender.stdout.readline())
            sample = json.loads(sender.stdout.readline())
            said, _ = sender.communicate(timeout=10)
        heard = [json.loads(line) for line in receiver.communicate(timeout=10)[0].splitlines()]
    after = time.monotonic_ns()
    assert first["congestion_control"]
    assert first["mss_bytes"] > 500
    assert before < sample["sample_ns"] < after
    assert json.loads(said.splitlines()[-1]) == {"end": "stopped"}
    *bins, end = heard
    assert end == {"end": "closed"}
    assert sum(b["bytes"] for b in bins) > 1_000_000
    assert all(b["bin_ns"] % BIN_NS == 0 and before - BIN_NS < b["bin_ns"] < after for b in bins)


def test_a_receiver_without_a_sender_ends_with_its_parent() -> None:
    argv = [sys.executable, "-I", str(flow.PROGRAM), "tcp", "receive", "::1", str(BIN_NS)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as receiver:
        said, _ = receiver.communicate(timeout=10)
    assert "port" in json.loads(said)
    assert receiver.returncode == 0
