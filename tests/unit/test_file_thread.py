# SPDX-License-Identifier: BSD-2-Clause
"""Tests the thread that writes files: a disk that does not answer delays nobody for long, and loses what it must."""

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrcd import file_thread
from mrcd.errors import KernelError, MachineError
from mrcd.file_thread import FileThread, LogThread
from mrcd.health.event_file import EventFile
from mrcd.health.events import EventLog


class Disk:
    """A disk that answers once `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.written: list[Any] = []

    def write(self, what: Any = "job") -> Any:
        self.answers.wait()
        self.written.append(what)
        return what


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.answers.set()


def test_a_job_has_a_result_or_an_error(disk: Disk) -> None:
    disk.answers.set()
    thread = FileThread()
    assert asyncio.run(thread.do(lambda: disk.write(7))) == 7

    def fail() -> None:
        raise KernelError("write", 28)

    with pytest.raises(KernelError, match="No space left"):
        asyncio.run(thread.do(fail))
    thread.close()


def test_a_disk_that_does_not_answer_is_an_error_and_the_job_goes_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_thread, "_LIMIT_S", 0.0)
    thread = FileThread()
    with pytest.raises(MachineError, match="the disk does not answer"):
        asyncio.run(thread.do(disk.write))
    disk.answers.set()
    thread.close()
    assert disk.written == ["job"]


def test_close_waits_for_jobs_in_their_order(disk: Disk) -> None:
    thread = FileThread()
    for n in range(100):
        assert thread.put(lambda n=n: disk.write(n))  # type: ignore[misc]
    disk.answers.set()
    thread.close()
    assert disk.written == list(range(100))


def test_lines_of_events_that_a_disk_does_not_take_are_counted(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_thread, "_MOST", 3)
    thread, path = FileThread(), tmp_path / "events.jsonl"
    begun = threading.Event()
    thread.put(lambda: disk.write(begun.set()))  # type: ignore[func-returns-value]
    begun.wait()
    log = EventLog(EventFile(path), thread.put)
    for _ in range(10):
        log.add("daemon", reason="started")
    disk.answers.set()
    done = threading.Event()
    while not thread.put(done.set):
        pass
    done.wait()
    with caplog.at_level(logging.ERROR):
        log.add("daemon", reason="started")
    thread.close()
    assert len(path.read_text().splitlines()) == 4
    assert "7 events are missing there" in caplog.text
    assert len(log.newest(100)) == 11


def test_a_journal_that_reads_nothing_costs_lines_but_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_thread, "_MOST", 3)
    journal, fd = os.pipe()
    os.set_blocking(journal, False)
    os.write(fd, bytes(fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)))  # it is full
    handler, log = LogThread(fd), logging.Logger("test")
    log.addHandler(handler)
    for n in range(10):
        log.info("line %d", n)
    text = ""
    while "line 0\n" not in text:
        with contextlib.suppress(BlockingIOError):
            text += os.read(journal, 1 << 20).decode().strip("\0")
    log.info("wrong %d", "argument")
    handler.close()
    text += os.read(journal, 1 << 20).decode()
    os.close(journal)
    os.close(fd)
    lost = int(text.split("ERROR ")[1].split()[0])
    assert text.count("line ") + lost == 10


def test_the_traceback_of_an_unexpected_error_is_logged() -> None:
    program = "import sys; sys.modules['mrcd.daemon.run_dir'] = None; from mrcd.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "--verbose", "--host", "h0"], capture_output=True, text=True)
    assert "Traceback" in done.stderr
