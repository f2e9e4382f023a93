# SPDX-License-Identifier: BSD-2-Clause
"""Provides the fixtures of mrcctl's tests: the daemon of canned_daemon.py, and mrcctl in this process or its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mrcd.clock import Clock
from mrcd.ctl.base import Options
from mrcd.ctl.main import cli
from tests.unit.canned_daemon import Daemon


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[Daemon]:
    server = Daemon(run_dir)
    yield server
    server.stop()


class TestClock:
    """A clock of mrcctl that moves only while mrcctl sleeps. It begins at 2030-01-02T03:04:10 UTC."""

    __test__ = False

    def __init__(self) -> None:
        self.ns = 1_893_553_450 * 10**9
        self.asleep: Callable[[], object] = lambda: None
        """Called at each pause: what happens meanwhile."""
        self.clock = Clock(lambda: self.ns, lambda: self.ns, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)
        self.asleep()


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def mrcctl(run_dir: Path, clock: TestClock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("MRCD_RUN_DIR", str(run_dir))
    return lambda *args: CliRunner().invoke(cli, args, prog_name="mrcctl", obj=Options(clock=clock.clock))


@pytest.fixture
def complete(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Completes as bash does: the last one of words broken at colons, joined by line feeds."""

    def run(*words: str) -> list[str]:
        monkeypatch.setenv("_MRCCTL_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        result = mrcctl()
        assert result.stderr == ""
        return [line.split(",", 1)[1] for line in result.stdout.splitlines() if line]

    return run


@pytest.fixture
def spawn(run_dir: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Runs mrcctl as a process of its own, for what CliRunner cannot show."""
    children: list[subprocess.Popen[str]] = []

    def start(*args: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", "from mrcd.ctl.entry import main; main()", *args],
            # Without PYTHONUNBUFFERED Python would drop what a pipe does not take, and never see the broken pipe.
            env={**os.environ, "MRCD_RUN_DIR": str(run_dir), "PYTHONUNBUFFERED": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
