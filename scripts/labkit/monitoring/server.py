# SPDX-License-Identifier: BSD-2-Clause
"""Runs servers of Prometheus' family on this machine, and the web servers of this process that they talk to."""

import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from labkit.cluster.patience import wait_for
from mrcd.errors import MachineError

_READY_S = 20.0
_END_S = 10.0


def free_address() -> str:
    """Returns an address of this machine on which nothing listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Silent(BaseHTTPRequestHandler):
    """A handler of requests that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


class WebServer(ThreadingHTTPServer):
    """A web server of this process, at a free port, until `end`."""

    daemon_threads = True

    def __init__(self, handler: type[Silent]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def end(self) -> None:
        """Ends it."""
        self.shutdown()
        self.server_close()


class Server:
    """A process with `/-/ready`, for the length of a block. Raises MachineError.

    Subclasses name the program and its options; its output goes to a file `log` of the directory. `webs` end with it.
    """

    program: str

    def __init__(self, directory: Path, options: Sequence[str], webs: Sequence[WebServer]) -> None:
        self.address, self._webs, self._log = free_address(), webs, directory / "log"
        self._argv = [self.program, *options, f"--web.listen-address={self.address}", "--log.level=warn"]
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def is_installed(cls) -> bool:
        """Returns whether there is the program."""
        return shutil.which(cls.program) is not None

    def __enter__(self) -> Self:
        try:
            with self._log.open("w") as log:
                self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
            wait_for(f"{self.program} is ready", self._is_ready, _READY_S)
        except FileNotFoundError:
            self.__exit__(None, None, None)
            raise MachineError(f"{self.program} is not installed", hint="`make set-up` installs it") from None
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = self._log.read_text(encoding="utf-8").splitlines()
            raise MachineError(f"{self.program} has ended: {said[-1] if said else 'without a word'}")
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for web in self._webs:
            web.end()
