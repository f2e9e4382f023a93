# SPDX-License-Identifier: BSD-2-Clause
"""Runs a real Alertmanager that notifies a web server of the test, and shortens the durations in mrcd's rules."""

import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from tests.lab.conftest import wait_until
from tests.lab.prometheus import RULES, free_address

PROGRAM = "prometheus-alertmanager"
FASTER = 150
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Each alert is a group of its own, so that every one is sent at once.
_CONFIGURATION = """
route: {{receiver: test, group_by: ["..."], group_wait: 0s, group_interval: 200ms, repeat_interval: 1h}}
receivers:
  - name: test
    webhook_configs: [{{url: "http://{receiver}/", send_resolved: true}}]
"""


def write_faster_rules(directory: Path, least_for_s: float, least_window_s: float) -> None:
    """Writes the rules with `for` and ranges `FASTER` times shorter, but not shorter than the given times."""

    def shortened(found: "re.Match[str]") -> str:
        head, number, unit, tail = found.groups()
        least_s = least_for_s if head.startswith("for") else least_window_s
        return f"{head}{round(1000 * max(least_s, int(number) * _UNITS_S[unit] / FASTER))}ms{tail}"

    for name in ("recording.yml", "alerts.yml"):
        text = (RULES / name).read_text(encoding="utf-8")
        text = re.sub(r"(for: )(\d+)([smhd])($)", shortened, text, flags=re.MULTILINE)
        (directory / name).write_text(re.sub(r"(\[)(\d+)([smhd])(\])", shortened, text), encoding="utf-8")


@dataclass(frozen=True)
class Notice:
    """What Alertmanager has sent of an alert."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def text(self) -> str:
        """Returns summary and description."""
        return f"{self.annotations['summary']}\n{self.annotations['description']}"


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
    """The server, and the web server that it notifies. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = free_address()

    @property
    def inbox(self) -> Inbox:
        """Returns what has arrived."""
        return self._receiver.inbox

    def __enter__(self) -> "Alertmanager":
        self._receiver = _Receiver()
        text = _CONFIGURATION.format(receiver=f"127.0.0.1:{self._receiver.server_address[1]}")
        (self._directory / "alertmanager.yml").write_text(text)
        argv = [PROGRAM, f"--config.file={self._directory}/alertmanager.yml", "--log.level=warn"]
        argv += [f"--storage.path={self._directory}/data", f"--web.listen-address={self.address}"]
        argv += ["--cluster.listen-address="]  # there is only one
        with (self._directory / "log").open("w") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_until("Alertmanager is ready", self._is_ready, 20)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._receiver.shutdown()
        self._receiver.server_close()
