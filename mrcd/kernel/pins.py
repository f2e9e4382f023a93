# SPDX-License-Identifier: BSD-2-Clause
"""Manages pins in a BPF file system, which keep tables and links alive when no process has them open."""

import ctypes as ct
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from mrcd.errors import KernelError, MachineError
from mrcd.kernel import libbpf

BPFFS_MAGIC = 0xCAFE4A11


def in_bpffs(path: Path) -> bool:
    """Returns whether `path` exists and is in a BPF file system."""
    buffer = ct.create_string_buffer(256)
    if ct.CDLL(None).statfs(os.fsencode(path), buffer) != 0:
        return False
    (kind,) = struct.unpack_from("q", buffer.raw)
    return bool(kind & 0xFFFFFFFF == BPFFS_MAGIC)


def ensure_bpffs(path: Path) -> None:
    """Mounts a BPF file system at `path` if none is mounted there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise MachineError(f"{path}: {e.strerror}", hint="run mrcd as root, or name another --bpffs") from None
    if in_bpffs(path):
        return
    libc = ct.CDLL(None, use_errno=True)
    if libc.mount(b"bpf", os.fsencode(path), b"bpf", ct.c_ulong(0), None) != 0:
        code, hint = ct.get_errno(), f"`mount -t bpf bpf {path}` as root"
        raise KernelError(f"mount a BPF file system at {path}", code, hint=hint)


class PinDescriptors:
    """Open descriptors of pinned objects by pin name. They keep the objects alive if the pins are removed."""

    def __init__(self, source: "PinDescriptors | None" = None) -> None:
        """Duplicates the descriptors of `source`, if given."""
        self._fds: dict[str, int] = {name: os.dup(source[name]) for name in source} if source else {}

    def __getitem__(self, name: str) -> int:
        return self._fds[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fds

    def __iter__(self) -> Iterator[str]:
        return iter(self._fds)

    def add(self, name: str, fd: int) -> None:
        """Takes ownership of a descriptor, and closes the one that had its name."""
        self.discard(name)
        self._fds[name] = fd

    def discard(self, name: str) -> None:
        """Closes a descriptor; no error if there is none of that name."""
        fd = self._fds.pop(name, -1)
        if fd >= 0:
            os.close(fd)

    def pin(self, name: str, directory: Path) -> None:
        """Pins an object in a directory, if that has no such pin."""
        if not (directory / name).exists():
            libbpf.pin(self._fds[name], directory / name)

    def close(self) -> None:
        """Closes all descriptors."""
        for name in list(self._fds):
            self.discard(name)


def locked(directory: Path) -> int:
    """Locks a directory of pins: two daemons would overwrite each other's. Returns the descriptor of the lock.

    Only root can open the directory afterwards. Raises MachineError if another process has the lock.
    """
    directory.chmod(0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        hint = "stop it first, or give this one another --bpffs"
        raise MachineError(f"another mrcd uses the tables in {directory}", hint=hint) from None
    return fd


def version_of(pin: Path) -> int:
    """Returns the ABI version in the name of a pin's directory; 0 if it has none."""
    number = pin.parent.name.removeprefix("abi")
    return int(number) if number.isdigit() else 0


def remove(directory: Path) -> None:
    """Removes a directory of pins with all pins in it."""
    for path in directory.iterdir():
        if path.is_dir():
            remove(path)
        else:
            path.unlink()
    directory.rmdir()
