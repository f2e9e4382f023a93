"""Pins in a BPF file system: what holds tables and links when nobody else does."""

import ctypes as ct
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from mrcd.bpf import libbpf
from mrcd.errors import KernelError, MachineError

BPFFS_MAGIC = 0xCAFE4A11


def in_bpffs(path: Path) -> bool:
    """Whether `path` is there, in a BPF file system."""
    buffer = ct.create_string_buffer(256)
    if ct.CDLL(None).statfs(os.fsencode(path), buffer) != 0:
        return False
    (kind,) = struct.unpack_from("q", buffer.raw)
    return bool(kind & 0xFFFFFFFF == BPFFS_MAGIC)


def ensure_bpffs(path: Path) -> None:
    """Mount a BPF file system at `path` unless one is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise MachineError(f"{path}: {e.strerror}") from None
    if in_bpffs(path):
        return
    libc = ct.CDLL(None, use_errno=True)
    if libc.mount(b"bpf", os.fsencode(path), b"bpf", ct.c_ulong(0), None) != 0:
        raise KernelError(f"mount a BPF file system at {path}", ct.get_errno())


class Held:
    """Descriptors of what is pinned, by the pins' names: it lives on if somebody takes the pins away."""

    def __init__(self, of: "Held | None" = None) -> None:
        """`of`: another's; these are copies."""
        self._fds: dict[str, int] = {name: os.dup(fd) for name, fd in of._fds.items()} if of else {}

    def __getitem__(self, name: str) -> int:
        return self._fds[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fds

    def __iter__(self) -> Iterator[str]:
        return iter(self._fds)

    def hold(self, name: str, fd: int) -> None:
        """Take over a descriptor."""
        self.let_go(name)
        self._fds[name] = fd

    def let_go(self, name: str) -> None:
        """No error if it is not held."""
        fd = self._fds.pop(name, -1)
        if fd >= 0:
            os.close(fd)

    def pin(self, name: str, directory: Path) -> None:
        """Pin it again, unless it is pinned there."""
        if not (directory / name).exists():
            libbpf.pin(self._fds[name], directory / name)

    def close(self) -> None:
        """Let go of all."""
        for name in list(self._fds):
            self.let_go(name)


def locked(directory: Path) -> int:
    """Hold the pins: two daemons would fight over them. Nobody but root may open the directory."""
    directory.chmod(0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise MachineError(f"another mrcd uses the tables in {directory}", hint="stop it first") from None
    return fd


def version_of(pin: Path) -> int:
    """The ABI version that a table's directory is named after."""
    number = pin.parent.name.removeprefix("abi")
    return int(number) if number.isdigit() else 0


def remove(directory: Path) -> None:
    """A directory of pins with all that is in it."""
    for path in directory.iterdir():
        if path.is_dir():
            remove(path)
        else:
            path.unlink()
    directory.rmdir()
