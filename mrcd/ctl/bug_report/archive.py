# SPDX-License-Identifier: BSD-2-Clause
"""Writes the archive of `mrcctl bugreport`: removes secrets from each file and lists it in a manifest."""

import io
import json
import os
import tarfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import mrcd
from mrcd.ctl.bug_report import secrets
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION

MOST_BYTES = 4 << 20  # of one file; a longer one keeps its end, where logs have the newest lines


@dataclass
class Report:
    """An archive under construction. Its manifest lists each file, and the error of each missing one."""

    archive: tarfile.TarFile
    root: str
    manifest: list[dict[str, Any]] = field(default_factory=list)
    removed: int = 0

    def add(self, name: str, content: str, *, how: str, error: str | None = None) -> None:
        """Add a text file without secrets; of a long one its end."""
        content, removed = secrets.from_text(content)
        self._write(name, content, how, error, removed)

    def add_document(self, name: str, document: Any, *, how: str) -> None:
        """Add a JSON document without secrets."""
        document, removed = secrets.from_document(document)
        self._write(name, json.dumps(document, indent=2, ensure_ascii=False) + "\n", how, None, removed)

    def miss(self, name: str, how: str, error: str) -> None:
        """List a file that could not be collected."""
        self.manifest.append({"file": None, "wanted": name, "how": how, "error": error, "secrets_removed": 0})

    def _write(self, name: str, content: str, how: str, error: str | None, removed: int) -> None:
        data = content.encode(errors="replace")
        cut = max(0, len(data) - MOST_BYTES)
        entry = tarfile.TarInfo(f"{self.root}/{name}")
        entry.size, entry.mtime, entry.mode = len(data) - cut, int(time.time()), 0o600
        self.archive.addfile(entry, io.BytesIO(data[cut:]))
        self.removed += removed
        self.manifest.append(
            {"file": name, "how": how, "error": error, "secrets_removed": removed, "bytes_cut_at_the_beginning": cut}
        )

    def close(self) -> None:
        """Add the manifest as the last file."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "mrcctl": mrcd.__version__,
            "abi_version": ABI_VERSION,
            "wire_version": WIRE_VERSION,
            "uid": os.geteuid(),
            "secrets_removed": self.removed,
            "files": self.manifest,
        }
        data = (json.dumps(secrets.from_document(document)[0], indent=2) + "\n").encode()
        entry = tarfile.TarInfo(f"{self.root}/manifest.json")
        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
        self.archive.addfile(entry, io.BytesIO(data))
