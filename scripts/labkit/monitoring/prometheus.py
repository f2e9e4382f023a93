# SPDX-License-Identifier: BSD-2-Clause
"""Runs a real Prometheus server over a lab: the hosts' endpoints are in namespaces, so a relay serves each."""

import contextlib
import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from labkit.cluster.api import Lab
from labkit.monitoring.server import Server, Silent, WebServer
from labkit.places import REPOSITORY
from mrcd.errors import MachineError, MrcdError

RULES = REPOSITORY / "scripts/deploy/prometheus"
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


class Relay(WebServer):
    """Serves the metrics of one host, at a port of this machine."""

    def __init__(self, lab: Lab, host: str) -> None:
        self._lab, self._host = lab, host
        super().__init__(_Relayed)

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


class _Relayed(Silent):
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


class Prometheus(Server):
    """The server, scraping `hosts` of a lab, with mrcd's rules. Use as a context manager. Raises MachineError.

    `rules` is a directory with recording.yml and alerts.yml; `alertmanager` is an address that gets the alerts.
    """

    program = "prometheus"

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
        file = directory / "prometheus.yml"
        text = _CONFIGURATION.format(
            every=f"{1000 * scrape_s:.0f}ms",
            rules=rules,
            targets=json.dumps([relay.address for relay in self._relays.values()]),
            alertmanagers=json.dumps([alertmanager] if alertmanager else []),
        )
        file.write_text(text, encoding="utf-8")
        options = [f"--config.file={file}", f"--storage.tsdb.path={directory}/data", "--rules.alert.resend-delay=1s"]
        super().__init__(directory, options, list(self._relays.values()))
        self.url = f"http://{self.address}"

    def instance(self, host: str) -> str:
        """Returns the instance label of a host."""
        return self._relays[host].address

    def host(self, instance: str) -> str:
        """Returns the host of an instance label."""
        return next(host for host in self._relays if self.instance(host) == instance)

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
