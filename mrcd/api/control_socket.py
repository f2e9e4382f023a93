# SPDX-License-Identifier: BSD-2-Clause
"""Listens on the control socket, and on a new one if its file disappears."""

import asyncio
import contextlib
import grp
import os
from pathlib import Path

from aiohttp import web

from mrcd.api.connections import Connections

SOCKET = "mrcd.sock"
GROUP = "mrcd"
_KEEP_S = 15.0  # a connection without a request


class ControlSocket:
    """Serves an application on a unix socket in the run directory."""

    def __init__(self, run_dir: Path, application: web.Application) -> None:
        self._path = run_dir / SOCKET
        self._connections = Connections(str(self._path), application)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, keepalive_timeout=_KEEP_S)
        self._listener: asyncio.Server | None = None
        self._file: os.stat_result | None = None  # of the bound socket

    async def start(self) -> None:
        """Listen. Replaces the socket of a dead daemon; a running one would hold the lock. Raises OSError."""
        await self._runner.setup()
        self._connections.use(self._runner.server)
        await self._listen()

    async def restore(self) -> bool:
        """Listen on a new socket if the file of the present one was removed or replaced. Returns whether it was.

        Raises OSError.
        """
        with contextlib.suppress(FileNotFoundError):
            if self._file is not None and os.path.samestat(self._file, self._path.lstat()):
                return False
        await self._listen()
        return True

    async def stop(self) -> None:
        """Close all connections and remove the socket."""
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        self._path.unlink(missing_ok=True)

    async def _listen(self) -> None:
        self._path.unlink(missing_ok=True)
        old = os.umask(0o117)
        try:
            listener = await asyncio.get_running_loop().create_unix_server(self._connections, str(self._path))
        finally:
            os.umask(old)
        _share(self._path)
        before, self._listener, self._file = self._listener, listener, self._path.lstat()
        if before is not None:  # requests that it has accepted are still answered
            before.close()


def _share(path: Path) -> None:
    """Give the socket to the group mrcd, if it exists; only root can."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            os.chown(path, -1, grp.getgrnam(GROUP).gr_gid)
