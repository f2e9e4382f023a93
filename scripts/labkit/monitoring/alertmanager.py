# SPDX-License-Identifier: BSD-2-Clause
"""Runs a real Alertmanager, and a web server that it notifies."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.monitoring.server import Server, Silent, WebServer

# Each alert is a group of its own, so that every one is sent at once.
_CONFIGURATION = """
route: {{receiver: lab, group_by: ["..."], group_wait: 0s, group_interval: 200ms, repeat_interval: 1h}}
receivers:
  - name: lab
    webhook_configs: [{{url: "http://{receiver}/", send_resolved: true}}]
"""


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


class _Receiver(WebServer):
    def __init__(self) -> None:
        self.inbox = Inbox()
        super().__init__(_Request)


class _Request(Silent):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Receiver)
        self.server.inbox.take(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()


class Alertmanager(Server):
    """The server, which notifies `inbox`. Use as a context manager. Raises MachineError."""

    program = "prometheus-alertmanager"

    def __init__(self, directory: Path) -> None:
        receiver = _Receiver()
        self.inbox = receiver.inbox
        file = directory / "alertmanager.yml"
        file.write_text(_CONFIGURATION.format(receiver=receiver.address), encoding="utf-8")
        # There is only one: it needs no cluster.
        options = [f"--config.file={file}", f"--storage.path={directory}/data", "--cluster.listen-address="]
        super().__init__(directory, options, [receiver])
