# SPDX-License-Identifier: BSD-2-Clause
"""Checks what the daemon tells the garbage collector and the allocator."""

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from mrcd import heap


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


def test_two_threads_pause_the_collector_one_after_the_other() -> None:
    inside, release, entered = threading.Event(), threading.Event(), threading.Event()
    states: list[bool] = []

    def first() -> None:
        with heap.collector_paused():
            inside.set()
            release.wait(10)

    def second() -> None:
        with heap.collector_paused():
            entered.set()
            states.append(gc.isenabled())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    assert not entered.wait(0.2)
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
