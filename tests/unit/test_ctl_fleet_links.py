# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fleet links`: its exit codes, and what it says when Prometheus does not help."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from click.testing import Result

from mrcd.fleet_links.document import differing_hosts
from mrcd.fleet_links.read import Selection
from mrcd.prometheus import HttpConfig, Prometheus, one_of, read_config
from tests.unit import prometheus_server
from tests.unit.prometheus_server import Server

Mrcctl = Callable[..., Result]


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers that answer all requests alike."""
    servers: list[Server] = []

    def start(status: int = 200, body: str = "", length: int | None = None) -> Server:
        headers = {"Location": "http://127.0.0.1:1/elsewhere"} | ({"Content-Length": length} if length else {})
        servers.append(Server(lambda form: (status, body, headers)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def vector(*samples: tuple[dict[str, str], float]) -> str:
    return prometheus_server.vector(samples)


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (200, vector(), "Prometheus has no sums of the fabric", "scrape /metrics/fabric of each host"),
        (200, "<html>", "does not answer as Prometheus does", "the URL ends before /api/v1"),
        (200, "{}", "does not answer as Prometheus does", "the URL ends before /api/v1"),
        (200, "[" * 100_000, "does not answer as Prometheus does", "the URL ends before /api/v1"),
        (200, '{"status": "success", "data": {"result": null}}', "does not answer as Prometheus does", "the URL ends"),
        (200, '{"status": "success", "data": {"result": [1, "2"]}}', "does not answer as Prometheus does", "the URL"),
        (200, '{"status": "error", "error": "too many samples"}', "too many samples", ""),
        (404, "no page", "answers with status 404: Not Found", "the URL ends before /api/v1"),
        (401, "", "refuses the credentials (status 401)", "--http-config FILE with basic_auth"),
        (403, "", "refuses the credentials (status 403)", "--http-config FILE with basic_auth"),
        (302, "", "answers with status 302", ""),
        (422, '{"status": "error", "error": "query timed out"}', "status 422: query timed out", ""),
    ],
)
def test_what_cannot_be_told_is_said_with_a_remedy(
    mrcctl: Mrcctl, serve: Callable[..., Server], status: int, body: str, message: str, hint: str
) -> None:
    result = mrcctl("fleet", "links", "--prometheus", serve(status, body).url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert (f"\n  hint: {hint}" in result.stderr) if hint else ("hint" not in result.stderr)


@pytest.mark.parametrize(
    ("status", "message"), [(200, "does not answer: IncompleteRead"), (503, "status 503: Service Unavailable")]
)
def test_an_answer_that_ends_early(mrcctl: Mrcctl, serve: Callable[..., Server], status: int, message: str) -> None:
    result = mrcctl("fleet", "links", "--prometheus", serve(status, "{", length=100).url)
    assert (result.exit_code, "internal error" in result.stderr) == (2, False)
    assert message in result.stderr


def test_a_server_that_is_not_there(mrcctl: Mrcctl) -> None:
    result = mrcctl("fleet", "links", "--prometheus", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert result.stderr.startswith("mrcctl: Prometheus at http://127.0.0.1:1 does not answer: Connection refused")


def test_hosts_that_are_there_twice(mrcctl: Mrcctl, serve: Callable[..., Server]) -> None:
    labels = [{"host": host, "t0": "0", "replica": replica} for host in ("h0", "h1") for replica in ("a", "b")]
    result = mrcctl("fleet", "links", "--prometheus", serve(200, vector(*((each, 1.0) for each in labels))).url)
    assert result.exit_code == 2
    assert "Prometheus has the sums of h[0-1] more than once\n  hint: one scrape job per host" in result.stderr


def test_the_hosts_that_differ_are_those_of_which_a_host_is_sure(serve: Callable[..., Server]) -> None:
    def differing(*found: tuple[str, float]) -> tuple[list[str], bool]:
        server = serve(200, vector(*(({"target": target}, value) for target, value in found)))
        document = differing_hosts(Prometheus(server.url, 5, HttpConfig()), 1e9)
        return document["differing"], document["differing_is_sure"]

    assert differing() == ([], False)
    assert differing(("peer:h2", 0.5), ("peer:h1", 0.5)) == (["h1", "h2"], False)
    assert differing(("peer:h2", 0.5), ("peer:h1", 0.5), ("host:h2", 1.0)) == (["h2"], True)


def test_hosts_that_have_sent_nothing(mrcctl: Mrcctl, serve: Callable[..., Server]) -> None:
    labels = {"host": "h0", "t0": "0", "plane": "0", "t1": "0", "peer": "h1", "peer_t0": "1"}
    server = serve(200, vector((labels, 0.0)))
    result = mrcctl("fleet", "links", "--prometheus", server.url)
    assert result.exit_code == 2
    assert "no host has sent packets in the last 60 s" in result.stderr
    # All queries are of one time, before which no scrape is going on that could end between two of them.
    times = {float(parse_qs(body)["time"][0]) for _, body, _ in server.requests}
    assert len(times) == 1
    assert time.time() - times.pop() >= 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prometheus", "prometheus:9090"], "'prometheus:9090' is not a URL of Prometheus"),
        (["--prometheus", "ftp://x"], "'ftp://x' is not a URL of Prometheus"),
        (["--prometheus", "http://[::1"], "'http://[::1' is not a URL of Prometheus"),
        (["--prometheus", "http://x:port"], "'http://x:port' is not a URL of Prometheus"),
        (["--prometheus", "http://x/a b"], "'http://x/a b' is not a URL of Prometheus"),
        (["--prometheus", "http://:9090"], "'http://:9090' is not a URL of Prometheus"),
        (["--prometheus", "http://ops:s3@x"], "the URL of Prometheus has credentials\n  hint: --http-config FILE"),
        ([], "Missing option '--prometheus'"),
        (["--prometheus", "http://x", "--window", "1"], "Invalid value for '--window'"),
        (["--prometheus", "http://x", "--http-config", "/nowhere"], "/nowhere: No such file or directory"),
    ],
)
def test_wrong_usage_is_1(mrcctl: Mrcctl, args: list[str], message: str) -> None:
    result = mrcctl("fleet", "links", *args)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"mrcctl: {message}")


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("basic_auth: {username: ops, password: s3}", "Basic " + base64.b64encode(b"ops:s3").decode()),
        ("basic_auth: {username: ops, password_file: FILE}", "Basic " + base64.b64encode(b"ops:secret").decode()),
        ("authorization: {credentials: t0ken}", "Bearer t0ken"),
        ("authorization: {type: Token, credentials_file: FILE}", "Token secret"),
        ("", None),
    ],
)
def test_credentials_are_sent(serve: Callable[..., Server], tmp_path: Path, text: str, header: str | None) -> None:
    secret, config = tmp_path / "secret", tmp_path / "http.yml"
    secret.write_text("secret\n")
    config.write_text(text.replace("FILE", str(secret)))
    server = serve(200, vector())
    assert Prometheus(f"{server.url}/prefix/", 5, read_config(config)).query("up", 12.5) == []
    assert server.requests == [("/prefix/api/v1/query", "query=up&time=12.500&timeout=5s", header)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "basic_auth: {username: x}\nauthorization: {credentials: y}",
            "basic_auth and authorization exclude each other",
        ),
        ("basic_auht: {}", "basic_auht: Extra inputs are not permitted"),
        ("basic_auth: {password: x}", "basic_auth.username: Field required"),
        ("a: b: c", "is not YAML"),
        ("tls_config: {ca_file: /nowhere/ca.pem}", "certificates of /nowhere/ca.pem: No such file or directory"),
        ("authorization: {credentials_file: /nowhere/token}", "/nowhere/token: No such file or directory"),
    ],
)
def test_a_wrong_configuration_names_the_place(mrcctl: Mrcctl, tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "http.yml"
    config.write_text(text)
    result = mrcctl("fleet", "links", "--prometheus", "https://127.0.0.1:1", "--http-config", str(config))
    assert result.exit_code == 1
    assert message in result.stderr


def test_an_unknown_certificate_is_refused(mrcctl: Mrcctl, serve: Callable[..., Server]) -> None:
    """A server without TLS is as good as a wrong certificate here."""
    url = serve(200, vector()).url.replace("http:", "https:")
    result = mrcctl("fleet", "links", "--prometheus", url)
    assert result.exit_code == 2
    assert "does not answer: " in result.stderr


def test_names_are_quoted_for_promql() -> None:
    assert one_of("host", ["a.b", 'c"d']) == 'host=~"a\\\\.b|c\\"d"'
    assert Selection("mrc_fabric_t0", 'plane="1"', 't0="2"').packets("tx", 60) == (
        '(increase(mrc_fabric_t0_tx_packets_total{plane="1"}[60000ms]) '
        '* on (job, instance) group_left (host, t0) mrc_fabric_host_info{t0="2"})'
    )


def test_no_configuration_sends_no_credentials(serve: Callable[..., Server]) -> None:
    server = serve(200, vector(({"a": "b"}, 2.0)))
    assert Prometheus(server.url, 5, HttpConfig()).query("x", 0) == [({"a": "b"}, 2.0)]
    assert server.requests[0][2] is None
