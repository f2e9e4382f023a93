# SPDX-License-Identifier: BSD-2-Clause
"""Tests scripts/deploy/prolog-slurmctld: which jobs start, and which hosts it drains. mrcctl, scontrol, logger are
replaced by scripts.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/deploy/prolog-slurmctld"
Prolog = Callable[[int, object], tuple[int, list[str]]]


@pytest.fixture
def prolog(tmp_path: Path) -> Prolog:
    """Returns a function: exit status and document of mrcctl → exit status of the script, and what it calls."""
    calls, answer, script = tmp_path / "calls", tmp_path / "answer", tmp_path / "prolog"
    text = SCRIPT.read_text(encoding="utf-8")
    assert "\nPATH=/usr/local/bin:" in text
    script.write_text(text.replace("\nPATH=", f"\nPATH={tmp_path}:"), encoding="utf-8")

    def program(name: str, then: str) -> None:
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{then}\n', encoding="utf-8")
        path.chmod(0o755)

    def run(status: int, document: object, *, can_drain: bool = True, warning: str = "") -> tuple[int, list[str]]:
        answer.write_text(json.dumps(document), encoding="utf-8")
        program("mrcctl", f"printf '{warning}' >&2; cat {answer}; printf '{warning}' >&2; exit {status}")
        program("scontrol", f"exit {0 if can_drain else 1}")
        program("logger", "")
        job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "gpu[1-4]", "PATH": os.environ["PATH"]}
        done = subprocess.run(["sh", script], env=job, capture_output=True, text=True)
        assert done.stderr == ""
        return done.returncode, calls.read_text(encoding="utf-8").splitlines()

    return run


def not_ready(hosts: list[str]) -> dict[str, object]:
    briefs = [("not_ready", "gpu[1-2] detached"), ("not_ready", "gpu3 down"), ("degraded", "plane 1 lacks t1:1:2")]
    return {"not_ready_hosts": hosts, "findings": [{"level": level, "brief": brief} for level, brief in briefs]}


ASKED = "mrcctl fleet check --hosts gpu[1-4] --timeout 10 --json"


def test_a_job_on_ready_hosts_starts(prolog: Prolog) -> None:
    assert prolog(0, {}) == (0, [ASKED])


def test_hosts_that_are_not_ready_are_drained_and_the_job_requeued(prolog: Prolog) -> None:
    assert prolog(2, not_ready(["gpu1", "gpu2", "gpu3"])) == (
        1,
        [
            ASKED,
            "logger -t mrc-prolog job 17: is requeued: gpu[1-2] detached; gpu3 down",
            "scontrol update NodeName=gpu1,gpu2,gpu3 State=DRAIN Reason=mrcctl: gpu[1-2] detached; gpu3 down",
        ],
    )


def test_many_hosts_are_not_drained(prolog: Prolog) -> None:
    status, calls = prolog(2, not_ready([f"gpu{i}" for i in range(9)]))
    assert (status, [call.split()[0] for call in calls]) == (1, ["mrcctl", "logger"])


def test_warnings_of_mrcctl_do_not_hide_its_answer(prolog: Callable[..., tuple[int, list[str]]]) -> None:
    status, calls = prolog(2, not_ready(["gpu3"]), warning="a warning\\n")
    assert (status, calls[-1].split()[2]) == (1, "NodeName=gpu3")


# 2 without a document: mrcctl itself failed, such as by an internal error.
@pytest.mark.parametrize("status", [1, 2, 3, 127])
def test_a_job_starts_unchecked_if_nothing_can_be_told(prolog: Prolog, status: int) -> None:
    assert prolog(status, "no answer") == (
        0,
        [ASKED, f'logger -t mrc-prolog job 17: starts unchecked (status {status}): "no answer"'],
    )


def test_a_host_that_cannot_be_drained_is_logged(prolog: Callable[..., tuple[int, list[str]]]) -> None:
    status, calls = prolog(2, not_ready(["gpu3"]), can_drain=False)
    assert (status, calls[-1]) == (1, "logger -t mrc-prolog job 17: cannot drain gpu3")
