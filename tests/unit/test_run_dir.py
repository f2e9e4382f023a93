# SPDX-License-Identifier: BSD-2-Clause
"""Tests that a running daemon restores its run directory, and that mrcctl never takes it for dead meanwhile."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from click.testing import Result

from mrcd import lock_file, main
from mrcd.api.control_socket import ControlSocket
from mrcd.config import cluster_file
from mrcd.daemon.run_dir import RunDir, keep_run_dir
from mrcd.file_thread import put_now
from mrcd.fleet.source import FileSource, Loaded
from mrcd.health.events import EventLog
from mrcd.view.running_file import RUNNING_FILE
from tests.cluster_files import host
from tests.unit import simulated_time
from tests.unit.canned_daemon import Daemon
from tests.unit.conftest import TestClock


def test_only_one_daemon_gets_the_lock(tmp_path: Path) -> None:
    assert lock_file.holder(tmp_path) is None
    with RunDir(tmp_path / "run"):
        assert lock_file.holder(tmp_path / "run") == os.getpid()
        with (
            pytest.raises(lock_file.AlreadyRuns, match=r"already runs on this host \(pid \d+\)"),
            RunDir(tmp_path / "run"),
        ):
            pass
    assert lock_file.holder(tmp_path / "run") is None  # the file stays
    with RunDir(tmp_path / "run"):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_user_cannot_lock_out_the_daemon() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users may not enter a tmp_path
        Path(name).chmod(0o755)
        run_dir = Path(name, "run")
        run_dir.mkdir(mode=0o755)
        (run_dir / "mrcd.lock").touch(mode=0o644)  # of an earlier version
        with RunDir(run_dir):
            pass
        code = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH)"
        argv = [sys.executable, "-I", "-c", code, str(run_dir / "mrcd.lock")]
        done = subprocess.run(argv, user=65534, group=65534, capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(str(path))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("lost", ["mrcd.sock", "mrcd.lock", RUNNING_FILE, None])
def test_the_run_directory_returns_within_a_second(tmp_path: Path, lost: str | None) -> None:
    async def run() -> list[str]:
        run_dir, events = tmp_path / "run", EventLog()
        with RunDir(run_dir) as locked:
            control = ControlSocket(run_dir, web.Application())
            await control.start()

            def save() -> None:
                (run_dir / RUNNING_FILE).write_text("{}")

            save()
            keeping = asyncio.create_task(keep_run_dir(locked, control.restore, save, events))
            shutil.rmtree(run_dir) if lost is None else (run_dir / lost).unlink()
            await asyncio.sleep(1)  # simulated
            assert sorted(p.name for p in run_dir.iterdir()) == ["mrcd.lock", "mrcd.sock", RUNNING_FILE]
            assert lock_file.holder(run_dir)
            assert answers(run_dir / "mrcd.sock")
            await asyncio.sleep(0.6)  # and is left alone then
            keeping.cancel()
            await control.stop()
        return [e["evidence"]["lost"] for e in await events.after(0, 0)]

    assert simulated_time.run(run()) == [lost or f"mrcd.lock, mrcd.sock, {RUNNING_FILE}"]


def test_a_daemon_ends_if_another_one_has_taken_its_directory(tmp_path: Path) -> None:
    async def restored() -> bool:
        return False

    with RunDir(tmp_path) as first:
        (tmp_path / "mrcd.lock").unlink()
        with RunDir(tmp_path), pytest.raises(lock_file.AlreadyRuns):
            simulated_time.run(keep_run_dir(first, restored, lambda: None, EventLog()))


# ---- mrcctl ----


@pytest.fixture
def locked(run_dir: Path) -> Iterator[None]:
    with RunDir(run_dir):
        yield


@pytest.mark.usefixtures("locked")
def test_mrcctl_waits_for_the_socket_of_a_running_daemon(
    run_dir: Path, mrcctl: Callable[..., Result], clock: TestClock
) -> None:
    made: list[Daemon] = []
    clock.asleep = lambda: made.append(Daemon(run_dir))
    result = mrcctl("status", "--brief")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "mrcd up" in result.stdout
    made[0].stop()


@pytest.mark.usefixtures("locked")
def test_a_running_daemon_without_a_socket_is_not_called_dead(mrcctl: Callable[..., Result], clock: TestClock) -> None:
    began_ns = clock.ns
    for command in (["peers"], ["version"], ["detach", "--force"], ["deny", "plane:1"]):
        result = mrcctl("--timeout", "0.1", *command)
        assert result.exit_code == 2
        assert "is not running" not in result.output
        assert "not answer" in result.output
    assert clock.ns - began_ns < 5 * 10**9


def test_a_lost_run_directory_is_no_proof_that_the_daemon_is_dead(run_dir: Path, mrcctl: Callable[..., Result]) -> None:
    for command in ("peers", "denials", "reload"):
        result = mrcctl("--run-dir", str(run_dir / "gone"), command)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"mrcctl: mrcd is not running, or {run_dir}/gone was removed")
        assert "`systemctl restart mrcd` makes the directory again" in result.stderr


@pytest.mark.usefixtures("locked")
def test_version_says_that_a_running_daemon_does_not_answer(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("--timeout", "0.1", "version", "--json")
    assert "runs, but does not answer" in json.loads(result.stdout)["error"]


# ---- the daemon's main function ----


class StandIn:
    """Stands in for the daemon, its servers, its reloader and its part in a fleet."""

    denials = reload = reached = None

    def __init__(self, *_: object) -> None:
        self.events, self.routed, self.admin_lock = EventLog(), asyncio.Event(), asyncio.Lock()
        self.files = SimpleNamespace(put=put_now)

    async def __aenter__(self) -> "StandIn":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def restore_socket(self) -> bool:
        return False

    def save_files(self) -> None:
        pass

    def on_signal(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[RunDir], None]:
    """Returns a function that runs a daemon of stand-ins until it ends."""
    for name in ("daemon.daemon.running", "api.server.Servers", "daemon.reload.Reloader", "fleet.member.FleetMember"):
        monkeypatch.setattr(f"mrcd.{name}", StandIn)
    text = host(0) + host(1)
    source, loaded = FileSource(tmp_path / "mrcd.toml", tmp_path), Loaded(cluster_file.parse(text), text, None)
    return lambda run_dir: simulated_time.run(main.serve(source, loaded, "h0", run_dir, tmp_path, None))


def test_a_signal_ends_the_daemon(
    served: Callable[[RunDir], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_: StandIn) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(StandIn, "run", run)
    with RunDir(tmp_path) as locked:
        served(locked)


def test_a_daemon_whose_directory_another_one_has_taken_ends_with_an_error(
    served: Callable[[RunDir], None], tmp_path: Path
) -> None:
    with RunDir(tmp_path) as locked:
        (tmp_path / "mrcd.lock").unlink()
        with RunDir(tmp_path), pytest.raises(lock_file.AlreadyRuns, match="already runs on this host"):
            served(locked)
