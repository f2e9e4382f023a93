# SPDX-License-Identifier: BSD-2-Clause
"""Runs a real Prometheus server over a lab: the hosts' endpoints are in namespaces, so a relay serves each."""

import contextlib
import http.client
import json
import shutil
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit.cluster.api import Lab
from labkit.monitoring.rules import RULES
from labkit.monitoring.server import Server, free_address
from mrcd.errors import MachineError, MrcdError

PROGRAM = "prometheus"
METRICS = ("127.0.0.1", 9479)
_CONFIGURATION = """
global: {{scrape_interval: {every}, evaluation_interval: {every}, scrape_timeout: {every}}}
rule_files: ["{rules}/recording.yml", "{rules}/alerts.yml"]
alerting: {{alertmanagers: [{{static_configs: [{{targets: {alertmanagers}}}]}}]}}
scrape_configs:
  - job_name: mrcd
    static_configs: [{{targets: {targets}}}]
  - job_name: mrcd-fabric
    metrics_path: /metrics/fabric
    static_configs: [{{targets: {targets}}}]
"""


def is_installed() -> bool:
    """Returns whether there is the program."""
    return shutil.which(PROGRAM) is not None


class Relay(ThreadingHTTPServer):
    """Serves the metrics of one host, at a port of this machine."""

    daemon_threads = True

    def __init__(self, lab: Lab, host: str) -> None:
        self._lab, self._host = lab, host
        super().__init__(("127.0.0.1", 0), _Relayed)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def target(self) -> str:
        """Returns the target as Prometheus names it."""
        return f"127.0.0.1:{self.server_address[1]}"

    def fetch(self, path: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body of the host's answer. Raises OSError if it does not answer."""
        with self._lab.inside(self._host):
            s = socket.socket()
        s.settimeout(2)
        connection = http.client.HTTPConnection(*METRICS)
        connection.sock = s
        try:
            s.connect(METRICS)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()


class _Relayed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Relay)
        with contextlib.suppress(ConnectionError):  # Prometheus has given up, or has ended
            try:
                status, kind, body = self.server.fetch(self.path)
            except (OSError, MrcdError):  # no answer, or the lab is going down
                self.send_error(502)
                return
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Prometheus:
    """The server, scraping `hosts` of a lab, with mrcd's rules. Use as a context manager. Raises MachineError.

    `rules` is a directory with recording.yml and alerts.yml; `alertmanager` is an address that gets the alerts.
    """

    def __init__(
        self,
        lab: Lab,
        hosts: list[str],
        directory: Path,
        *,
        rules: Path = RULES,
        alertmanager: str = "",
        scrape_s: float = 1.0,
    ) -> None:
        self._relays = {host: Relay(lab, host) for host in hosts}
        address = free_address()
        self.url = f"http://{address}"
        self._text = _CONFIGURATION.format(
            every=f"{1000 * scrape_s:.0f}ms",
            rules=rules,
            targets=json.dumps([relay.target for relay in self._relays.values()]),
            alertmanagers=json.dumps([alertmanager] if alertmanager else []),
        )
        self._file = directory / "prometheus.yml"
        argv = [PROGRAM, f"--config.file={self._file}", "--log.level=warn", "--rules.alert.resend-delay=1s"]
        argv += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"]
        self._server = Server("Prometheus", argv, address, directory / "log")

    def instance(self, host: str) -> str:
        """Returns the instance label of a host."""
        return self._relays[host].target

    def host(self, instance: str) -> str:
        """Returns the host of an instance label."""
        return next(host for host in self._relays if self.instance(host) == instance)

    def __enter__(self) -> "Prometheus":
        self._file.write_text(self._text, encoding="utf-8")
        try:
            self._server.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def get(self, path: str, **query: str) -> Any:
        """Returns an answer of the HTTP API. Raises MachineError if the query is wrong."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise MachineError(f"Prometheus refuses {query}: {json.load(e)['error']}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns labels and value of each sample, now."""
        found = self.get("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.end()
        for relay in self._relays.values():
            relay.shutdown()
            relay.server_close()
