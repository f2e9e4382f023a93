# SPDX-License-Identifier: BSD-2-Clause
"""Reads and writes the JSON file that keeps denials over restarts of the daemon and the host.

A write replaces the whole file by a rename, so a reader never sees half of it.
"""

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from mrcd.denials.policy import Denial, as_json, from_json
from mrcd.errors import KernelError, MachineError

_FORMAT = 1  # version of this file; the documents of the API have SCHEMA_VERSION
FILE = "denials.json"
FLEET_FILE = "fleet-denials.json"
DEFAULT_DIR = Path("/var/lib/mrcd")
_DEFAULT_RUN_DIR = Path("/run/mrcd")
_MOST_BYTES = 4 << 20


class Unreadable(MachineError):
    """The file exists, but its content is not what `write` makes."""


def directory(run_dir: Path, given: Path | None = None) -> Path:
    """Return the directory of the file: the one given, else /var/lib/mrcd.

    With another run directory than /run/mrcd it is that one: several daemons on a machine must not share the file.
    """
    return given or (DEFAULT_DIR if run_dir == _DEFAULT_RUN_DIR else run_dir)


def read(path: Path) -> list[Denial] | None:
    """Return the denials; None if there is no file. Raises Unreadable."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        document = json.loads(content)
        if not isinstance(document, dict) or document.get("schema_version") != _FORMAT:
            raise ValueError(f"not a document of version {_FORMAT}")
        if not isinstance(document.get("denials"), list):
            raise ValueError("it has no list of denials")
        return [from_json(d) for d in document["denials"]]
    except FileNotFoundError:
        return None
    except OSError as e:
        raise Unreadable(f"{path}: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise Unreadable(f"{path}: {e}") from None


def write(path: Path, denials: list[Denial]) -> None:
    """Replace the file. Raises KernelError and then leaves the old file unchanged."""
    document = {"schema_version": _FORMAT, "denials": [as_json(d) for d in denials]}
    replace(path, json.dumps(document, indent=1) + "\n")


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


def _sync(directory_: Path) -> None:
    """Write the directory to the disk: only then does a rename survive a power failure."""
    fd = os.open(directory_, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
