# SPDX-License-Identifier: BSD-2-Clause
"""Names the directory and the files that mrcd keeps over restarts, and replaces these files whole."""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from mrcd.errors import KernelError

DEFAULT = Path("/var/lib/mrcd")
DENIALS = "denials.json"
FLEET_DENIALS = "fleet-denials.json"
_DEFAULT_RUN_DIR = Path("/run/mrcd")


def directory(run_dir: Path, given: Path | None = None) -> Path:
    """Return the directory: the one given, else /var/lib/mrcd.

    With another run directory than /run/mrcd it is that one: several daemons on a machine must not share files.
    """
    return given or (DEFAULT if run_dir == _DEFAULT_RUN_DIR else run_dir)


def replace(path: Path, text: str) -> None:
    """Replace a file by text, so that a crash leaves the old or the new one. Raises KernelError."""
    new = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        _sync(path.parent)
    except OSError as e:
        raise KernelError(f"write {path}", e.errno or 0, hint="check disk space and directory permissions") from None


def _sync(path: Path) -> None:
    """Write the directory to the disk: only then does a rename survive a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def set_aside(path: Path) -> Path:
    """Rename an unreadable file and return its new path. Raises KernelError."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = path.with_name(f"{path.name}.unreadable-{stamp}")
    try:
        path.rename(kept)
    except OSError as e:
        raise KernelError(f"rename {path}", e.errno or 0) from None
    return kept
