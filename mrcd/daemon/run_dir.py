# SPDX-License-Identifier: BSD-2-Clause
"""Keeps the files of the run directory: without them mrcctl finds neither the daemon nor the tables."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from mrcd import lock_file
from mrcd.errors import MachineError
from mrcd.health.events import EventLog
from mrcd.view.running_file import RUNNING_FILE

log = logging.getLogger("mrcd")

_INTERVAL_S = 0.5


class RunDir:
    """The run directory of this daemon, locked while the context lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> "RunDir":
        self._lock = lock_file.lock(self.path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._lock is not None:
            self._lock.close()

    def restore_lock(self) -> bool:
        """Lock the directory again if its lock has been removed. Returns whether it had.

        Raises AlreadyRuns if another daemon was faster, MachineError if the directory cannot be made.
        """
        if self._lock is not None and lock_file.is_at(self._lock, self.path):
            return False
        lost, self._lock = self._lock, lock_file.lock(self.path)
        if lost is not None:
            lost.close()
        return True


async def keep_run_dir(
    run_dir: RunDir, restore_socket: Callable[[], Awaitable[bool]], save_files: Callable[[], None], events: EventLog
) -> None:
    """Restore lost files of the run directory twice a second, until cancelled.

    `restore_socket` returns whether the socket was lost; `save_files` writes what else is in the directory. Raises
    AlreadyRuns if another daemon has taken the directory meanwhile.
    """
    last_error = ""
    while True:
        await asyncio.sleep(_INTERVAL_S)
        try:
            lost = ["mrcd.lock"] if run_dir.restore_lock() else []
            lost += ["mrcd.sock"] if await restore_socket() else []
            if not (run_dir.path / RUNNING_FILE).exists():
                save_files()
                lost += [RUNNING_FILE] if (run_dir.path / RUNNING_FILE).exists() else []
        except lock_file.AlreadyRuns:
            raise
        except (MachineError, OSError) as e:
            error = str(e.args[0]) if isinstance(e, MachineError) else f"{run_dir.path}: {e.strerror}"
            if error != last_error:
                log.error("%s: mrcctl cannot reach mrcd; `systemctl restart mrcd` makes the directory again", error)
            last_error = error
            continue
        last_error = ""
        if lost:
            events.add("daemon", reason="run_dir_restored", evidence={"lost": ", ".join(lost)})
            log.warning("%s: %s had been removed, and is there again", run_dir.path, ", ".join(lost))
