# SPDX-License-Identifier: BSD-2-Clause
"""Tests TLS and passwords of the metrics endpoint, over a real socket with a certificate made by openssl."""

import asyncio
import base64
import os
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from aiohttp import ClientConnectionError, ClientConnectorCertificateError, ClientSession, web
from prometheus_client import CollectorRegistry, Gauge

from mrcd.api.metrics.endpoint import application, scrape_route
from mrcd.api.metrics.web_config import WebConfig
from mrcd.errors import ConfigError

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
USERS = f'basic_auth_users:\n  prometheus: "{HASH}"\n'
TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


def certificate(directory: Path, name: str = "cert") -> Path:
    """Returns a self-signed certificate for 127.0.0.1; its key is beside it."""
    key = directory / name.replace("cert", "key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{key}.pem", "-out", str(directory / f"{name}.pem"), "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return directory / f"{name}.pem"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    for name in ("cert", "newcert", "client-cert"):
        certificate(directory, name)
    return directory


@pytest.fixture
def directory(tmp_path: Path, certificates: Path) -> Path:
    for path in certificates.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


Session = Callable[[ClientSession, str, WebConfig], Awaitable[None]]


def serve(path: Path, session: Session) -> None:
    """Runs a session with the endpoint of a web configuration file."""

    async def run() -> None:
        config = WebConfig(str(path))
        registry = CollectorRegistry()
        Gauge("mrc_test", "", registry=registry).set(7)
        runner = web.AppRunner(application([scrape_route(registry, asyncio.to_thread)], config), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=config.tls)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with ClientSession() as client:
                await session(client, f"http{'s' if config.tls else ''}://127.0.0.1:{port}/metrics", config)
        finally:
            await runner.cleanup()

    asyncio.run(run())


def basic(name: str, password: str) -> str:
    """Returns an Authorization header (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def get(client: ClientSession, url: str, auth: str | None = None, **how: Any) -> tuple[int, str]:
    """Returns status and text of an answer, on a connection of its own."""
    headers = {"Connection": "close"} | ({"Authorization": auth} if auth else {})
    async with client.get(url, headers=headers, **how) as answer:
        return answer.status, await answer.text()


def write(path: Path, text: str) -> Path:
    """Writes it with a new modification time, for any clock resolution of the file system."""
    path.write_text(text)
    os.utime(path, ns=(time.time_ns(), time.time_ns()))
    return path


def test_passwords(directory: Path) -> None:
    async def session(client: ClientSession, url: str, config: WebConfig) -> None:
        right, wrong = basic("prometheus", "secret"), basic("prometheus", "guess")
        assert (await get(client, url))[0] == 401
        assert (await get(client, url, auth=wrong))[0] == 401
        assert (await get(client, url, auth=basic("nobody", "secret")))[0] == 401
        assert (await get(client, url, auth=basic("nobody", "")))[0] == 401
        for _ in range(2):  # the second time it is known
            status, text = await get(client, url, auth=right)
            assert (status, "mrc_test 7.0" in text) == (200, True)
        assert (await get(client, url, auth=wrong))[0] == 401
        for odd in ("Basic", "Basic !", "Bearer x", "Basic " + base64.b64encode(b"\xff:x").decode()):
            assert not await config.allows(odd)
        assert not await config.allows(basic("prometheus", "x" * 100))

    serve(write(directory / "web.yml", USERS), session)


def test_tls(directory: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(directory / "cert.pem"))

    async def session(client: ClientSession, url: str, _: WebConfig) -> None:
        assert (await get(client, url, ssl=trusting))[0] == 200
        with pytest.raises(ClientConnectorCertificateError):
            await get(client, url)
        with pytest.raises(ClientConnectionError):
            await get(client, url.replace("https", "http"))

    serve(write(directory / "web.yml", TLS), session)


def test_client_certificates(directory: Path) -> None:
    text = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: client-cert.pem\n"

    async def session(client: ClientSession, url: str, _: WebConfig) -> None:
        trusting = ssl.create_default_context(cafile=str(directory / "cert.pem"))
        with pytest.raises(ClientConnectionError):  # whichever of its kinds: the server hangs up
            await get(client, url, ssl=trusting)
        trusting.load_cert_chain(directory / "client-cert.pem", directory / "client-key.pem")
        assert (await get(client, url, ssl=trusting))[0] == 200

    serve(write(directory / "web.yml", text), session)


def test_changed_files_are_read_again(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(directory / "web.yml", TLS + USERS)
    right, other = basic("prometheus", "secret"), basic("other", "secret")

    async def session(client: ClientSession, url: str, config: WebConfig) -> None:
        old = ssl.create_default_context(cafile=str(directory / "cert.pem"))
        assert (await get(client, url, ssl=old, auth=right))[0] == 200
        write(path, TLS + USERS.replace("prometheus", "other"))
        assert (await get(client, url, ssl=old, auth=right))[0] == 401
        assert (await get(client, url, ssl=old, auth=other))[0] == 200
        for name in ("cert", "key"):  # renewed
            write(directory / f"{name}.pem", (directory / f"new{name}.pem").read_text())
        config.refresh()
        new = ssl.create_default_context(cafile=str(directory / "newcert.pem"))
        assert (await get(client, url, ssl=new, auth=other))[0] == 200
        for wrong in ("basic_auth_users: 7\n", USERS, ":"):  # no such users, no TLS any more, no YAML
            write(path, wrong)
            assert (await get(client, url, ssl=new, auth=other))[0] == 200
        assert caplog.text.count("keeps its old settings") == 3

    serve(path, session)


_CLIENTS = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TLS, TLS + _CLIENTS),
        (TLS + _CLIENTS, TLS),
        (TLS, TLS + "  min_version: TLS13\n"),
        (TLS + _CLIENTS, TLS + _CLIENTS),  # other authorities
    ],
)
def test_changes_that_need_a_restart_are_logged_and_others_apply(
    directory: Path, caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    write(directory / "ca.pem", (directory / "client-cert.pem").read_text())
    config = WebConfig(str(write(directory / "web.yml", before)))
    if before == after:
        write(directory / "ca.pem", (directory / "cert.pem").read_text())
    write(directory / "web.yml", after + USERS)
    config.refresh()
    assert "need a restart of mrcd" in caplog.text
    assert not asyncio.run(config.allows(None))
    caplog.clear()
    config.refresh()  # nothing is new
    write(directory / "cert.pem", (directory / "newcert.pem").read_text())
    write(directory / "key.pem", (directory / "newkey.pem").read_text())
    config.refresh()
    assert caplog.text.count("read again, but") == 1


@pytest.mark.parametrize(("before", "after"), [(TLS, USERS), (USERS, TLS)], ids=["on", "off"])
def test_tls_is_not_switched_while_it_runs(
    directory: Path, caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    config = WebConfig(str(write(directory / "web.yml", before)))
    write(directory / "web.yml", after)
    config.refresh()
    assert "turning TLS on or off needs a restart of mrcd; the metrics endpoint keeps its old settings" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http_server_config:\n  http2: true\n", ["http_server_config", "tls_server_config"]),
        ("tls_server_config:\n  cert_file: cert.pem\n", ["tls_server_config.key_file"]),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", ["needs a client_ca_file"]),
        (TLS + "  cipher_suites: [X]\n", ["cipher_suites"]),
        (TLS.replace("key.pem", "newkey.pem"), ["cert.pem", "newkey.pem"]),
        (TLS.replace("cert.pem", "none.pem"), ["none.pem", "No such file"]),
        ("basic_auth_users:\n  a: secret\n", ["basic_auth_users.a"]),
        ("a: [", ["not valid YAML"]),
        ("- 1\n", ["web.yml"]),
    ],
)
def test_errors_name_the_key(directory: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        WebConfig(str(write(directory / "web.yml", text)))
    for word in ["web.yml", *words]:
        assert word in str(error.value)
    assert "secret" not in str(error.value)  # nor what may be a password


def test_a_missing_file_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml"):
        WebConfig(str(tmp_path / "none.yml"))
