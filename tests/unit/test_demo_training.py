# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.demo.training: recorded steps → report, texts and picture; what the live view shows."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.fabric import Parameters
from labkit.demo.report import kept
from labkit.demo.training import picture, report, scenario, screen, text
from labkit.demo.training.kernel_path import KernelPath
from labkit.demo.training.record import Episode
from labkit.demo.training.screen import Moment
from labkit.plot import panels
from labkit.traffic.job import Step

S, MS = 1_000_000_000, 1_000_000
FAULTS = scenario.faults(KernelPath("h2", plane=1, t0=1, t1=2))


def steps(begin_ms: int, *ms: int) -> tuple[Step, ...]:
    """Returns steps of these lengths, one after the other."""
    ends = [begin_ms + sum(ms[: n + 1]) for n in range(len(ms))]
    return tuple(Step((end - length) * MS, end * MS) for end, length in zip(ends, ms, strict=True))


def episode(number: int, *ms: int, stuck: bool = False) -> Episode:
    """An episode of 10 s that begins after a gap of 1 s; a fault from its 4th second to its 6th."""
    begin_ms = 11_000 * number
    done = steps(begin_ms, *ms)
    return Episode(
        fault=FAULTS[number],
        begin_ns=begin_ms * MS,
        fail_ns=(begin_ms + 4000) * MS,
        heal_ns=(begin_ms + 6000) * MS,
        end_ns=(begin_ms + 10_000) * MS,
        steps=done,
        running_since_ns=done[-1].end_ns if stuck else (begin_ms + 9999) * MS,
        dropped_skbs=7,
    )


GOOD = [episode(0, *[100] * 39, 200, *[150] * 40), episode(1, *[100] * 99)]
SLOW = [episode(0, *[100] * 40, 4000, *[100] * 20), episode(1, *[100] * 40, stuck=True)]


def document(attached: list[Episode] = GOOD, detached: list[Episode] = SLOW) -> dict[str, Any]:
    return report.build({DETACHED: detached, ATTACHED: attached}, Parameters())


def test_the_steps_of_a_fault() -> None:
    first, second = report.of(document(), ATTACHED)["faults"]
    # 39 × 100 and one that ends at 4.1 s, with the fault; then 150 each: 12 end before 6 s, and one runs beyond
    assert (first["steps"], first["median_ms"], first["longest_ms"]) == (13, 150, 200)
    assert (second["steps"], second["median_ms"], second["longest_ms"]) == (20, 100, 100)
    assert first["dropped_skbs"] == 7
    assert not first["stuck"]


def test_time_between_slots_is_left_out() -> None:
    run = report.of(document(), ATTACHED)
    assert run["duration_s"] == 20
    assert [(f["begin_s"], f["heal_s"], f["end_s"]) for f in run["faults"]] == [(4, 6, 10), (14, 16, 20)]
    assert run["steps"][80] == {"begin_s": 10, "ms": 100}


def test_a_step_without_an_end_counts_with_its_time_so_far() -> None:
    slow, stuck = report.of(document(), DETACHED)["faults"]
    assert (slow["steps"], slow["longest_ms"], slow["stuck"]) == (0, 4000, False)
    assert (stuck["steps"], stuck["median_ms"], stuck["longest_ms"], stuck["stuck"]) == (0, 6000, 6000, True)
    assert report.of(document(), DETACHED)["steps"][-1] == {"begin_s": 14, "ms": 6000}


def test_only_steps_that_end_before_the_fault_are_without_a_fault() -> None:
    without = report.of(document(), ATTACHED)["without_a_fault"]
    assert (without["steps"], without["median_ms"], without["longest_ms"]) == (79, 100, 100)


@pytest.mark.parametrize(("longest", "met"), [(100, True), (200, True), (201, False)])
def test_a_step_with_mrcd_may_take_twice_the_longest_without_a_fault(longest: int, met: bool) -> None:
    found = document(attached=[episode(0, *[100] * 45, longest, *[100] * 10)])
    assert kept(found) is met
    assert [p["target"] for p in found["promises"]] == ["a T1 dies"]


def test_a_long_step_after_healing_misses_the_requirement() -> None:
    assert not kept(document(attached=[episode(0, *[100] * 70, 500)]))


def test_a_stuck_job_or_one_that_has_ended_misses_the_requirement() -> None:
    quick = episode(0, *[100] * 99)
    assert kept(document(attached=[quick]))
    assert not kept(document(attached=[replace(quick, running_since_ns=quick.heal_ns - 1)]))
    assert not kept(document(attached=[replace(quick, ended="the job's rank in h1 ended by itself: why")]))


def test_a_job_that_ends_at_once_is_reported() -> None:
    begin_ns = GOOD[0].begin_ns
    dead = replace(
        GOOD[0], steps=(), fail_ns=begin_ns, heal_ns=begin_ns, running_since_ns=begin_ns, ended="its rank has ended"
    )
    found = document(attached=[dead], detached=SLOW[:1])
    assert not kept(found)
    assert "its rank has ended" in "\n".join(text.summary(found, colour=False))
    panels.draw(picture.picture(found))


def test_without_mrcd_nothing_is_required() -> None:
    assert kept(document())


def test_the_document_is_plain_json() -> None:
    assert json.loads(json.dumps(document())) == document()


def test_the_summary_has_both_runs_beside_each_other() -> None:
    ended = [SLOW[0], replace(SLOW[1], ended="the job's rank in h1 ended by itself: why")]
    lines = text.summary(document(detached=ended), colour=False)
    row = next(line for line in lines if line.startswith("a T1 dies"))
    assert row.split()[3:] == ["t1:1:2", "13", "150", "ms", "200", "ms", "0", "4.00", "s", "4.00", "s"]
    assert any("stuck, 6.00 s and no end" in line for line in lines)
    assert any(line.endswith("a NIC is down: the job's rank in h1 ended by itself: why") for line in lines)
    assert sum(line.startswith("kept") for line in lines) == 2


def test_the_picture_has_a_panel_per_run() -> None:
    drawn = picture.picture(document())
    kernel, mrcd = drawn.panels
    assert [f.label for f in kernel.faults] == ["a T1 dies", "a NIC is down: stuck"]
    assert [f.label for f in mrcd.faults] == ["a T1 dies", "a NIC is down"]
    assert mrcd.goals[0].y == 200
    assert (kernel.begin, kernel.end) == (mrcd.begin, mrcd.end) == (0, 20)
    assert "With mrcd" in panels.draw(drawn)


def test_all_faults_are_on_the_kernels_path() -> None:
    assert [f.target for f in FAULTS] == ["t1:1:2", "nic:h2:1", "t0:1:1", "link:1:1:2", "link:1:1:2"]
    assert [f.drop for f in FAULTS if f.drop] == [0.2, 0.01]


# ---- the live view ----


def moment(now_ms: int, *ms: int, broken: str | None = None) -> Moment:
    return Moment(0, now_ms * MS, steps(0, *ms), broken)


def test_a_column_has_the_longest_step_that_ran_in_it() -> None:
    seen = moment(3600, 100, 300, 1200, 400)  # they end at 0.1, 0.4, 1.6 and 2.0 s
    assert seen.longest_ms(500 * MS, 8) == [1200, 1200, 1200, 1200, 1600, 1600, 1600, 1600]
    assert seen.longest_ms(500 * MS, 10) == [0, 0, 1200, 1200, 1200, 1200, 1600, 1600, 1600, 1600]
    assert moment(2000, *[100] * 20).longest_ms(1000 * MS, 2) == [100, 0]


def shown(seen: Moment, *, is_terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80, no_color=True)
    if is_terminal:
        terminal = screen.Terminal(console, "a job")
        with terminal:
            terminal.note(1.0, "fault: a T1 dies", "fault")
            terminal.show(seen)
    else:
        screen.Lines(console).show(seen)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_line_per_second_for_logs() -> None:
    assert shown(moment(1050, *[100] * 10), is_terminal=False) == "  1.1 s   10 steps, the longest 100 ms\n"
    waiting = shown(moment(4000, 100, broken="a T1 dies"), is_terminal=False)
    assert waiting == "  4.0 s  a step has run for 3.90 s   (a T1 dies)\n"


def test_a_board_for_terminals() -> None:
    printed = shown(moment(4000, 100, broken="a T1 dies"), is_terminal=True)
    for words in ("a job", "10 ms", "a step has run for 3.90 s", "fault: a T1 dies", "█"):
        assert words in printed
