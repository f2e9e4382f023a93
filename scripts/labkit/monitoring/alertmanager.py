# SPDX-License-Identifier: BSD-2-Clause
"""Runs a real Alertmanager, and a web server that it notifies."""

import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from labkit.monitoring.server import Server, free_address

PROGRAM = "prometheus-alertmanager"
# Each alert is a group of its own, so that every one is sent at once.
_CONFIGURATION = """
route: {{receiver: lab, group_by: ["..."], group_wait: 0s, group_interval: 200ms, repeat_interval: 1h}}
receivers:
  - name: lab
    webhook_configs: [{{url: "http://{receiver}/", send_resolved: true}}]
"""


def is_installed() -> bool:
    """Returns whether there is the program."""
    return shutil.which(PROGRAM) is not None


@dataclass(frozen=True)
class Notice:
    """An alert as Alertmanager has sent it."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def summary(self) -> str:
        """Returns the first line of the text."""
        return self.annotations["summary"]

    @property
    def text(self) -> str:
        """Returns summary and description."""
        return f"{self.summary}\n{self.annotations['description']}"


@dataclass
class Inbox:
    """The notices of alerts that fire now, and of all that have fired. Alertmanager's fingerprints are the keys."""

    firing: dict[str, Notice] = field(default_factory=dict)
    fired: list[Notice] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, document: bytes) -> None:
        """Takes the body of a request of Alertmanager."""
        with self._lock:
            for alert in json.loads(document)["alerts"]:
                key = alert["fingerprint"]
                if alert["status"] == "resolved":
                    self.firing.pop(key, None)
                elif key not in self.firing:
                    self.firing[key] = Notice(alert["labels"], alert["annotations"])
                    self.fired.append(self.firing[key])

    def now(self) -> list[Notice]:
        """Returns the notices of alerts that fire now."""
        with self._lock:
            return list(self.firing.values())


class _Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.inbox = Inbox()
        super().__init__(("127.0.0.1", 0), _Request)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Request(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Receiver)
        self.server.inbox.take(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Alertmanager:
    """The server, and the web server that it notifies. Use as a context manager. Raises MachineError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = free_address()
        argv = [PROGRAM, f"--config.file={directory}/alertmanager.yml", "--log.level=warn"]
        argv += [f"--storage.path={directory}/data", f"--web.listen-address={self.address}"]
        argv += ["--cluster.listen-address="]  # there is only one
        self._server = Server("Alertmanager", argv, self.address, directory / "log")

    @property
    def inbox(self) -> Inbox:
        """Returns what has arrived."""
        return self._receiver.inbox

    def __enter__(self) -> "Alertmanager":
        self._receiver = _Receiver()
        text = _CONFIGURATION.format(receiver=f"127.0.0.1:{self._receiver.server_address[1]}")
        (self._directory / "alertmanager.yml").write_text(text, encoding="utf-8")
        try:
            self._server.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.end()
        self._receiver.shutdown()
        self._receiver.server_close()
