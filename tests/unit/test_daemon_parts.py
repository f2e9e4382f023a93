# SPDX-License-Identifier: BSD-2-Clause
"""Tests parts of the daemon: messages to systemd, its memory, and what others have removed."""

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mrcd import heap
from mrcd.daemon import pin_keeper, systemd
from mrcd.errors import KernelError
from mrcd.health.events import EventLog
from mrcd.kernel.dataplane import Dataplane
from tests.unit.test_monitor import until


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


# ---- memory ----


class Node:
    """An object that refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    assert gc.isenabled()


def test_what_is_left_of_an_earlier_configuration_is_freed_and_the_rest_is_exempt() -> None:
    first, second = Node(), Node()
    freed, kept = weakref.ref(first), weakref.ref(second)
    heap.settle()
    assert gc.get_freeze_count() > 0
    del first
    gc.collect()
    assert freed() is not None  # exempt, and so not found
    heap.settle()
    assert freed() is None
    assert kept() is second


class WatchedLock:
    """A lock that says when a thread has to wait for it."""

    def __init__(self) -> None:
        self.lock, self.waited_for = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            self.waited_for.set()
            self.lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self.lock.release()


def test_two_threads_pause_the_collector_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, release, lock = threading.Event(), threading.Event(), WatchedLock()
    states: list[bool] = []
    monkeypatch.setattr(heap, "_pausing", lock)

    def first() -> None:
        with heap.collector_paused():
            inside.set()
            release.wait(10)

    def second() -> None:
        with heap.collector_paused():
            states.append(gc.isenabled())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    assert lock.waited_for.wait(10)
    assert states == []
    release.set()
    for thread in threads:
        thread.join(10)
    assert states == [False]
    assert gc.isenabled()


def test_threads_allocate_from_one_arena() -> None:
    """glibc's malloc_info(3) lists the arenas as `<heap nr=…>`; each thread keeps an allocation until all have one."""
    code = (
        "import ctypes, sys, tempfile, threading\n"
        "from mrcd import heap\n"
        "if len(sys.argv) > 1: heap.use_one_arena()\n"
        "c = ctypes.CDLL(None)\n"
        "c.malloc.restype, c.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p\n"
        "met = threading.Barrier(8)\n"
        "def allocate():\n"
        "    c.malloc(ctypes.c_size_t(100_000)); met.wait()\n"
        "threads = [threading.Thread(target=allocate) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "with tempfile.TemporaryFile() as f:\n"
        "    stream = ctypes.c_void_p(c.fdopen(f.fileno(), b'w'))\n"
        "    assert c.malloc_info(0, stream) == 0 and c.fflush(stream) == 0\n"
        "    f.seek(0); print(f.read().count(b'<heap nr='))\n"
    )

    def arenas(*arguments: str) -> int:
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert arenas() > 1
    assert arenas("one") == 1


# ---- removed filters and pins ----


class Kernel:
    """A data plane whose filters and pins disappear. What is attached anew stays away for two more looks."""

    def __init__(self) -> None:
        self.filters, self.pins = list[str](), list[str]()
        self.is_refused = False
        self.looks = self.attached = self.saved = 0

    def missing_filter(self) -> str:
        self.looks += 1
        return self.filters.pop(0) if self.filters else ""

    def missing_pin(self) -> str:
        return self.pins[0] if self.pins else ""

    def restore_pins(self) -> None:
        if self.is_refused:
            raise KernelError("pin", 1)
        self.pins.clear()

    def attach_anew(self) -> None:
        self.attached += 1

    def save(self) -> None:
        self.saved += 1


def keep(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, looks: int = 5) -> list[dict[str, Any]]:
    """Lets the keeper look some times. Returns the events."""
    log = EventLog()
    monkeypatch.setattr(pin_keeper, "INTERVAL_S", 0)

    async def run() -> None:
        dataplane = cast(Dataplane, kernel)
        keeper = pin_keeper.keep_pins(asyncio.Lock(), lambda: dataplane, log, kernel.save, kernel.attach_anew)
        task = asyncio.create_task(keeper)
        end = kernel.looks + looks
        await until(lambda: kernel.looks >= end)
        task.cancel()

    asyncio.run(run())
    return asyncio.run(log.after(0, 0))


def test_nothing_is_done_while_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    assert keep(kernel, monkeypatch) == []
    assert (kernel.attached, kernel.saved) == (0, 0)


def test_a_removed_filter_is_attached_until_it_is_there_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.filters = ["pop-0", "pop-0", "push-egress"]
    (event,) = keep(kernel, monkeypatch)
    assert (event["reason"], event["evidence"]) == ("filters_removed", {"lost": "pop-0"})
    assert kernel.attached == 3
    kernel.filters = ["pop-0", "", "pop-0"]
    assert len(keep(kernel, monkeypatch)) == 2


def test_removed_pins_are_restored_and_a_refusal_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.pins = ["mrc_evs does not exist"]
    (event,) = keep(kernel, monkeypatch)
    assert (event["reason"], kernel.saved) == ("pins_restored", 1)
    kernel.pins, kernel.is_refused = ["mrc_evs does not exist"], True
    (event,) = keep(kernel, monkeypatch)
    assert event["reason"] == "pins_lost"
    assert kernel.saved == 1
