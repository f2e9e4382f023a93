# SPDX-License-Identifier: BSD-2-Clause
"""Tests the file of denials on a full disk."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrcd import state_dir
from mrcd.denials import record
from mrcd.denials.record import Denial
from mrcd.denials.targets import Target, parse
from mrcd.errors import KernelError
from tests.packet.wires import call, libc, unmount

ONE = [Denial(Target(plane=1), 1.0)]
MANY = [Denial(parse([f"ev:h{i}:{i}"]), 1.0, reason="x" * 100) for i in range(200)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Returns a file system of two pages."""
    call("mount a tmpfs", libc.mount(b"none", os.fsencode(tmp_path), b"tmpfs", 0, b"size=8k"))
    yield tmp_path
    unmount(tmp_path)


def test_a_full_disk_leaves_the_old_file(small: Path) -> None:
    path = small / state_dir.DENIALS
    record.write(path, ONE)
    with pytest.raises(KernelError, match="No space left on device") as e:
        record.write(path, MANY)
    assert e.value.errno == errno.ENOSPC
    assert record.read(path) == ONE
    assert [p.name for p in small.iterdir()] == [state_dir.DENIALS]


def test_a_read_only_disk_says_so(small: Path) -> None:
    path = small / state_dir.DENIALS
    record.write(path, ONE)
    call("remount", libc.mount(b"none", os.fsencode(small), b"tmpfs", 0x21, b""))  # MS_REMOUNT | MS_RDONLY
    with pytest.raises(KernelError, match="EROFS"):
        record.write(path, [])
    with pytest.raises(KernelError, match="EROFS"):
        state_dir.set_aside(path)
    assert record.read(path) == ONE
