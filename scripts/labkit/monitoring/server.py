# SPDX-License-Identifier: BSD-2-Clause
"""Starts a server of Prometheus' family on this machine, and ends it."""

import socket
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from labkit.cluster.patience import wait_for
from mrcd.errors import MachineError

_READY_S = 20.0
_END_S = 10.0


def free_address() -> str:
    """Returns an address of this machine on which nothing listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Server:
    """A process with `/-/ready`. `name` is for errors; `log` is a file that gets its output."""

    def __init__(self, name: str, argv: Sequence[str], address: str, log: Path) -> None:
        self._name, self._argv, self._address, self._log = name, argv, address, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it is ready. Raises MachineError."""
        with self._log.open("w") as log:
            try:
                self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
            except FileNotFoundError:
                raise MachineError(f"{self._name} is not installed", hint="`make set-up` installs it") from None
        wait_for(f"{self._name} is ready", self._is_ready, _READY_S)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = self._log.read_text(encoding="utf-8").splitlines()
            raise MachineError(f"{self._name} has ended: {said[-1] if said else 'without a word'}")
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def end(self) -> None:
        """Ends it, if it runs."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
