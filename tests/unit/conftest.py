# SPDX-License-Identifier: BSD-2-Clause
"""Provides the fixtures of mrcctl's tests: the daemon of canned_daemon.py, and mrcctl in this process or its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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


@pytest.fixture
def mrcctl(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("MRCD_RUN_DIR", str(run_dir))
    return lambda *args: CliRunner().invoke(cli, args, prog_name="mrcctl")


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
