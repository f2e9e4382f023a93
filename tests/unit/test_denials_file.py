# SPDX-License-Identifier: BSD-2-Clause
"""Tests the file of denials: written whole or not at all, and never an obstacle to a start."""

import errno
import json
import resource
import signal
from pathlib import Path

import pytest

from mrcd import state_dir
from mrcd.denials import record
from mrcd.denials.record import Denial
from mrcd.denials.targets import parse
from mrcd.errors import KernelError

ONE = Denial(parse(["t1:1:2"]), 10.0, 20.0, "fan tray", 0, drain=True)
TWO = Denial(parse(["peer:h1", "plane:1"]), 11.0)


def test_written_denials_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for it" / state_dir.DENIALS
    assert record.read(path) is None
    for denials in ([ONE, TWO], [TWO], []):
        record.write(path, denials)
        assert record.read(path) == denials
    assert [p.name for p in path.parent.iterdir()] == [state_dir.DENIALS]
    assert json.loads(path.read_text())["schema_version"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"\xff\xfe",
        b"[]",
        b'{"schema_version": 2, "denials": []}',
        b'{"schema_version": 1}',
        b'{"schema_version": 1, "denials": [1]}',
        b'{"schema_version": 1, "denials": [{"target": ["t1:1:2"]}]}',
        b"[" * 100_000,
        b"x" * (5 << 20),
    ],
    ids=lambda c: repr(c[:24]),
)
def test_an_invalid_file_is_reported_and_renamed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / state_dir.DENIALS
    path.write_bytes(content)
    with pytest.raises(record.Unreadable, match=str(path)):
        record.read(path)
    kept = state_dir.set_aside(path)
    assert kept.read_bytes() == content
    assert record.read(path) is None
    record.write(path, [ONE])
    assert kept.read_bytes() == content


def test_a_directory_instead_of_the_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / state_dir.DENIALS
    path.mkdir()
    with pytest.raises(record.Unreadable, match="Is a directory"):
        record.read(path)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """The kernel refuses half-way through: no file may grow beyond 100 bytes."""
    path = tmp_path / state_dir.DENIALS
    record.write(path, [TWO])
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(KernelError) as e:
            record.write(path, [ONE, TWO])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert e.value.errno == errno.EFBIG
    assert str(path) in str(e.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [state_dir.DENIALS]


def test_the_path_of_the_denials_file() -> None:
    assert state_dir.directory(Path("/run/mrcd")) == Path("/var/lib/mrcd")
    assert state_dir.directory(Path("/run/other")) == Path("/run/other")
    assert state_dir.directory(Path("/run/other"), Path("/x")) == Path("/x")
