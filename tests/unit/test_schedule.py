# SPDX-License-Identifier: BSD-2-Clause
"""Tests how a run is divided among workers: what runs alone, and in which order."""

import fcntl
import os
from pathlib import Path

import pytest

from tests import schedule

LAB, UNTIMED, PACKET = "lab/test_faults.py", "lab/test_traffic.py", "packet/test_push.py"


def is_free(directory: Path, lock: int) -> bool:
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.mark.parametrize(("file", "others_may_run"), [(LAB, False), (UNTIMED, True), (PACKET, True)])
def test_only_a_lab_that_must_run_alone_waits_for_others_and_keeps_them_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, others_may_run: bool
) -> None:
    monkeypatch.setattr(schedule, "TESTS", tmp_path)
    with schedule.locked_for(tmp_path / file):
        assert is_free(tmp_path, fcntl.LOCK_SH) == others_may_run
        assert not is_free(tmp_path, fcntl.LOCK_EX)
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_every_test_file_has_a_place_in_the_order() -> None:
    found = {schedule.part(path) for path in schedule.TESTS.rglob("test_*.py")}
    assert found == set(schedule.ORDER)


def test_the_files_that_run_beside_others_exist() -> None:
    assert [file for file in schedule.BESIDE if not (schedule.TESTS / file).exists()] == []


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        ([""], 4),
        (["unit", "packet"], 4),
        (["unit/test_schedule.py"], 0),
        (["unit/test_schedule.py::test_every_test_file_has_a_place_in_the_order"], 0),
        (["lab"], 0),
        (["unit", "kernels"], 0),
    ],
)
def test_whole_directories_have_a_worker_per_cpu(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(schedule, "EMULATED", False)
    assert schedule.wanted([str(schedule.TESTS / a) for a in arguments]) == workers
    monkeypatch.setattr(schedule, "EMULATED", True)
    assert schedule.wanted([str(schedule.TESTS / a) for a in arguments]) == 0
