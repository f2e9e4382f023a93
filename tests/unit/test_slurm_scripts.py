# SPDX-License-Identifier: BSD-2-Clause
"""Tests scripts/deploy/task-prolog and health-check: mrcctl, scontrol and logger are replaced by scripts."""

import os
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "scripts/deploy"


def run(tmp_path: Path, name: str, answer: str, status: int) -> tuple[str, list[str]]:
    """Returns what a script prints, and what it calls but mrcctl."""
    calls, script = tmp_path / "calls", tmp_path / name
    calls.touch()
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert "\nPATH=/usr/local/" in text
    script.write_text(text.replace("\nPATH=", f"\nPATH={tmp_path}:"), encoding="utf-8")
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    for program, then in (
        ("mrcctl", f"cat {tmp_path}/answer; exit {status}"),
        *((n, f'echo "{n} $*" >>{calls}; cat {tmp_path}/state 2>/dev/null || true') for n in ("scontrol", "logger")),
    ):
        path = tmp_path / program
        path.write_text(f"#!/bin/sh\n{then}\n", encoding="utf-8")
        path.chmod(0o755)
    environment = {"SLURMD_NODENAME": "gpu7", "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, calls.read_text(encoding="utf-8").splitlines()


def test_tasks_get_the_environment(tmp_path: Path) -> None:
    assert run(tmp_path, "task-prolog", "export A=mrc0\n", 0) == ("export A=mrc0\n", [])


def test_tasks_without_mrc0_start_with_a_word_to_the_user(tmp_path: Path) -> None:
    out, _ = run(tmp_path, "task-prolog", "", 2)
    assert out.startswith("print this host has no mrc0")


def test_a_node_that_is_drained_keeps_its_reason(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("State=IDLE+DRAIN ThreadsPerCore=1", encoding="utf-8")
    _, calls = run(tmp_path, "health-check", "CRITICAL - gpu7: mrcd is not running", 2)
    assert calls == ["scontrol show node gpu7"]


@pytest.mark.parametrize(("status", "word"), [(0, "OK"), (1, "WARNING"), (127, "not found")])
def test_a_node_that_works_is_not_drained(tmp_path: Path, status: int, word: str) -> None:
    assert run(tmp_path, "health-check", f"{word} - gpu7: fine | evs=3", status) == ("", [])


def test_a_critical_node_is_drained(tmp_path: Path) -> None:
    _, calls = run(tmp_path, "health-check", "CRITICAL - gpu7: mrcd is not running | faults=1\nhint", 2)
    assert calls[-1:] == ["scontrol update NodeName=gpu7 State=DRAIN Reason=CRITICAL - gpu7: mrcd is not running"]
