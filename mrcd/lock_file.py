# SPDX-License-Identifier: BSD-2-Clause
"""Locks a run directory for one daemon, and tells mrcctl whether a daemon holds the lock."""

import fcntl
import os
from pathlib import Path
from typing import IO

from mrcd.errors import MachineError

LOCK = "mrcd.lock"
_LOCKS = Path("/proc/locks")


class AlreadyRuns(MachineError):
    """Another daemon holds the lock."""


def lock(run_dir: Path) -> IO[str]:
    """Make the run directory and lock it: two daemons would overwrite each other's routes. Returns the open lock.

    Whoever can open a file can lock it, so only its owner can. Raises AlreadyRuns, MachineError.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+")
        os.fchmod(file.fileno(), 0o600)  # an earlier version let others read it
    except OSError as e:
        raise MachineError(
            f"{run_dir}: {e.strerror}", hint="run as root, or name a writable directory with --run-dir"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise AlreadyRuns(
            f"mrcd already runs on this host (pid {holder(run_dir) or 'unknown'})",
            hint="stop it first: two daemons would overwrite each other's routes",
        ) from None
    return file


def is_at(file: IO[str], run_dir: Path) -> bool:
    """Return whether an open lock is still the file in the run directory."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), (run_dir / LOCK).stat())
    except OSError:
        return False


def holder(run_dir: Path) -> int | None:
    """Return the pid of the daemon that holds the lock; None without a daemon.

    The kernel's list of locks (proc_locks(5)) tells it to users who may not open the file.
    """
    try:
        found = (run_dir / LOCK).stat()
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        _, kind, _, access, pid, where, *_ = line.split()
        if (kind, access, where) == ("FLOCK", "WRITE", place):
            return int(pid)
    return None
