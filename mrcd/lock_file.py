# SPDX-License-Identifier: BSD-2-Clause
"""Locks a run directory for one daemon, and tells mrcctl whether a daemon holds the lock."""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO

from mrcd.errors import MachineError

LOCK = "mrcd.lock"
_TRIES, _PAUSE_S = 5, 0.02  # `holder` takes the lock for an instant, in which a daemon may start


class AlreadyRuns(MachineError):
    """Another daemon holds the lock."""


def lock(run_dir: Path) -> IO[str]:
    """Make the run directory and lock it: two daemons would overwrite each other's routes. Returns the open lock.

    Raises AlreadyRuns, MachineError.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = (run_dir / LOCK).open("a+")
        with contextlib.suppress(PermissionError):  # another user's file
            os.fchmod(file.fileno(), 0o644)  # members of the group mrcd look at it
    except OSError as e:
        raise MachineError(
            f"{run_dir}: {e.strerror}", hint="run as root, or name a writable directory with --run-dir"
        ) from None
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(_PAUSE_S)
    else:
        pid = _pid(file)
        file.close()
        raise AlreadyRuns(
            f"mrcd already runs on this host (pid {pid or 'unknown'})",
            hint="stop it first: two daemons would overwrite each other's routes",
        )
    with contextlib.suppress(OSError):  # on a full disk the error of a second daemon lacks the pid
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    return file


def is_at(file: IO[str], run_dir: Path) -> bool:
    """Return whether an open lock is still the file in the run directory."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), (run_dir / LOCK).stat())
    except OSError:
        return False


def holder(run_dir: Path) -> int | None:
    """Return the pid of the daemon that holds the lock; 0 if the pid is unknown; None without a daemon."""
    try:
        with (run_dir / LOCK).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _pid(file)
    except OSError:
        pass
    return None


def _pid(file: IO[str]) -> int:
    file.seek(0)
    text = file.read().strip()
    return int(text) if text.isdecimal() else 0
