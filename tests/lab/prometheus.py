# SPDX-License-Identifier: BSD-2-Clause
"""Runs a real Prometheus server over a lab: the hosts' endpoints are in namespaces, so a relay serves each."""

import http.client
import json
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit.cluster.api import Lab
from tests.lab.conftest import wait_until

RULES = Path(__file__).parents[2] / "scripts/deploy/prometheus"
METRICS = ("127.0.0.1", 9479)
EVERY = "250ms"
CONFIGURATION = """
global: {{scrape_interval: {every}, evaluation_interval: {every}, scrape_timeout: {every}}}
rule_files: ["{rules}/recording.yml", "{rules}/alerts.yml"]
alerting: {{alertmanagers: [{{static_configs: [{{targets: {alertmanagers}}}]}}]}}
scrape_configs:
  - job_name: mrcd
    static_configs: [{{targets: {targets}}}]
"""


def free_address() -> str:
    """Returns an address of this machine on which nothing listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Relay(ThreadingHTTPServer):
    """Serves GET /metrics of one host, at a port of this machine."""

    daemon_threads = True

    def __init__(self, lab: Lab, host: str) -> None:
        self._lab, self._host = lab, host
        super().__init__(("127.0.0.1", 0), _Relayed)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def target(self) -> str:
        """Returns the target as Prometheus names it."""
        return f"127.0.0.1:{self.server_address[1]}"

    def fetch(self) -> tuple[int, str, bytes]:
        """Returns status, content type and body of the host's answer. Raises OSError if it does not answer."""
        with self._lab.inside(self._host):
            s = socket.socket()
        s.settimeout(2)
        connection = http.client.HTTPConnection(*METRICS)
        connection.sock = s
        try:
            s.connect(METRICS)
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()


class _Relayed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Relay)
        try:
            status, kind, body = self.server.fetch()
        except OSError:
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
    """The server, scraping `hosts` of a lab four times a second, with mrcd's rules. Use as a context manager.

    `alertmanager` is an address that gets the alerts.
    """

    def __init__(
        self, lab: Lab, hosts: list[str], directory: Path, rules: Path = RULES, alertmanager: str = ""
    ) -> None:
        self._directory, self._rules, self._alertmanager = directory, rules, alertmanager
        self._relays = {host: Relay(lab, host) for host in hosts}

    def instance(self, host: str) -> str:
        """Returns the instance label of a host."""
        return self._relays[host].target

    def __enter__(self) -> "Prometheus":
        self._url = f"http://{free_address()}"
        targets = json.dumps([relay.target for relay in self._relays.values()])
        alertmanagers = json.dumps([self._alertmanager] if self._alertmanager else [])
        text = CONFIGURATION.format(every=EVERY, rules=self._rules, targets=targets, alertmanagers=alertmanagers)
        (self._directory / "prometheus.yml").write_text(text)
        argv = ["prometheus", f"--config.file={self._directory}/prometheus.yml", "--log.level=warn"]
        argv += [f"--storage.tsdb.path={self._directory}/data", f"--web.listen-address={self._url[7:]}"]
        argv += ["--rules.alert.resend-delay=1s"]
        with (self._directory / "log").open("w") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_until("Prometheus is ready", self._ready, 20)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **query: str) -> Any:
        """Returns an answer of the HTTP API."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{query}: {json.load(e)['error']}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns labels and value of each sample, now."""
        found = self.get("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def value(self, expression: str) -> float:
        """Returns the value of the only sample."""
        ((_, value),) = self.query(expression)
        return value

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        for relay in self._relays.values():
            relay.shutdown()
            relay.server_close()
