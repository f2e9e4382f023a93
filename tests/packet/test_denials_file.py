# SPDX-License-Identifier: BSD-2-Clause
"""Tests the file of denials on a full disk."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrcd.denials import file
from mrcd.denials.policy import Denial, Target, parse
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
    path = small / file.FILE
    file.write(path, ONE)
    with pytest.raises(KernelError, match="No space left on device") as e:
        file.write(path, MANY)
    assert e.value.errno == errno.ENOSPC
    assert file.read(path) == ONE
    assert [p.name for p in small.iterdir()] == [file.FILE]


def test_a_read_only_disk_says_so(small: Path) -> None:
    path = small / file.FILE
    file.write(path, ONE)
    call("remount", libc.mount(b"none", os.fsencode(small), b"tmpfs", 0x21, b""))  # MS_REMOUNT | MS_RDONLY
    with pytest.raises(KernelError, match="EROFS"):
        file.write(path, [])
    with pytest.raises(KernelError, match="EROFS"):
        file.set_aside(path)
    assert file.read(path) == ONE
