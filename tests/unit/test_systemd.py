# SPDX-License-Identifier: BSD-2-Clause
"""Tests the messages to systemd, and their times."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrcd.daemon import systemd


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """systemd's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield s


def heard(s: socket.socket) -> list[str]:
    found = []
    try:
        while True:
            found.append(s.recv(100).decode())
    except BlockingIOError:
        return found


def test_without_systemd_no_message_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify("READY=1")


@pytest.mark.parametrize(
    ("usec", "pid", "wanted"),
    [("10000000", "", 10.0), ("10000000", "own", 10.0), ("10000000", "1", None), ("0", "", None), ("x", "", None)],
)
def test_the_watchdog_interval_is_read(
    usec: str, pid: str, wanted: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert systemd.watchdog_s() == wanted


def test_ready_is_sent_when_all_first_hops_are_known(told: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "PATIENCE_S", 3600)

    async def run() -> None:
        routed = asyncio.Event()
        task = asyncio.create_task(systemd.report(routed))
        for _ in range(10):
            await asyncio.sleep(0)
        assert heard(told) == []
        routed.set()
        await task

    asyncio.run(run())
    assert heard(told) == ["READY=1"]


def test_a_host_without_planes_is_ready_too(told: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "PATIENCE_S", 0.02)
    asyncio.run(systemd.report(asyncio.Event()))
    assert heard(told) == ["READY=1"]


def test_the_watchdog_is_fed_three_times_per_interval(told: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000")
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    async def run() -> None:
        routed = asyncio.Event()
        routed.set()
        monkeypatch.setattr("mrcd.daemon.systemd.asyncio.sleep", sleep)
        with contextlib.suppress(asyncio.CancelledError):
            await systemd.report(routed)

    asyncio.run(run())
    assert heard(told) == ["READY=1", *["WATCHDOG=1"] * 3]
    assert pauses == [pytest.approx(0.02)] * 3
