# SPDX-License-Identifier: BSD-2-Clause
"""Tests the web page's server: paths, methods, headers, passwords, documents and their cache."""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import bcrypt
import pytest
from aiohttp import ClientConnectionError, ClientSession
from aiohttp.test_utils import TestClient, TestServer

from mrcd import __version__
from mrcd.api.metrics.endpoint import Endpoint
from mrcd.api.metrics.page import FILES, TYPES, Cached
from mrcd.api.metrics.web_config import WebConfig
from mrcd.config.cluster_file import Metrics
from mrcd.daemon.daemon import Daemon
from mrcd.fleet.source import FileSource
from tests.unit import simulated_time
from tests.unit.page_server import PageServer
from tests.unit.test_web_config import TLS, basic, certificate

PATHS = ["/", "/status.json", "/healthz", "/readyz", "/page/page.js", "/page/page.css", "/page/icon.svg"]
Client = TestClient[Any, Any]


@pytest.fixture
def server() -> PageServer:
    return PageServer()


def visit(server: PageServer, session: Callable[[Client], Awaitable[None]], config: WebConfig | None = None) -> None:
    """Runs a session with a client of the page."""

    async def run() -> None:
        async with TestClient(TestServer(server.application(config))) as client:
            await session(client)

    asyncio.run(run())


def fetch(server: PageServer, path: str, method: str = "GET", **how: Any) -> tuple[int, dict[str, str], str]:
    """Returns status, headers and text of an answer."""
    found: list[tuple[int, dict[str, str], str]] = []

    async def session(client: Client) -> None:
        async with client.request(method, path, **how) as answer:
            found.append((answer.status, dict(answer.headers), await answer.text()))

    visit(server, session)
    return found[0]


@pytest.mark.parametrize("path", PATHS)
def test_only_get_and_head_are_answered(server: PageServer, path: str) -> None:
    async def session(client: Client) -> None:
        async with client.get(path) as answer:
            assert (answer.status, bool(await answer.text())) == (200, True)
            content_type = answer.headers["Content-Type"]
        async with client.head(path) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
            assert await answer.text() == ""
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with client.request(method, path) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD"), method

    visit(server, session)


@pytest.mark.parametrize(
    "path", ["/x", "/page/", "/page/x.js", "/page/../page.py", "/page/..%2fpage.py", "/v1/status", "/status.json/"]
)
def test_there_is_nothing_else(server: PageServer, path: str) -> None:
    assert fetch(server, path)[0] == 404


@pytest.mark.parametrize("path", [*PATHS, "/x"])
def test_headers(server: PageServer, path: str) -> None:
    _, headers, _ = fetch(server, path)
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", [*PATHS, "/x"])
def test_all_is_behind_the_password(server: PageServer, tmp_path: Path, path: str) -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f'basic_auth_users:\n  reader: "{hashed}"\n')

    async def session(client: Client) -> None:
        for authorization, known in ((None, 401), (basic("reader", "guess"), 401), (basic("reader", "secret"), 200)):
            headers = {"Authorization": authorization} if authorization else {}
            async with client.get(path, headers=headers) as answer:
                assert answer.status == (404 if known == 200 and path == "/x" else known)

    visit(server, session, WebConfig(str(tmp_path / "web.yml")))


def test_tls_is_for_all_paths_and_rates_are_sampled_while_it_serves(server: PageServer, tmp_path: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate(tmp_path)))
    (tmp_path / "web.yml").write_text(TLS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = Metrics(address=address, web_config=str(tmp_path / "web.yml"))
    endpoint = Endpoint(cast(Daemon, server.daemon), FileSource(tmp_path / "mrcd.toml", tmp_path), settings)

    async def run() -> None:
        await endpoint.start()
        try:
            async with ClientSession() as client:
                for path in PATHS:
                    async with client.get(f"https://{address}{path}", ssl=trusting) as answer:
                        assert answer.status == 200
                    with pytest.raises(ClientConnectionError):
                        await client.get(f"http://{address}{path}")
        finally:
            await endpoint.stop()

    asyncio.run(run())
    rates = endpoint.page.rates.document()
    assert (len(rates["planes"]), rates["at_s"]) == (2, [])  # one sample


def test_a_taken_address_costs_only_the_metrics_and_is_tried_again(server: PageServer, tmp_path: Path) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    settings = Metrics(address=f"127.0.0.1:{port}")
    endpoint = Endpoint(cast(Daemon, server.daemon), FileSource(tmp_path / "mrcd.toml", tmp_path), settings)

    def is_served() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    async def run() -> list[bool]:
        await endpoint.start()
        await asyncio.sleep(20)  # simulated
        taken.close()
        found = [is_served()]
        await asyncio.sleep(6)
        found.append(is_served())
        await endpoint.stop()
        return [*found, is_served()]

    assert simulated_time.run(run()) == [False, True, False]


def test_health(server: PageServer) -> None:
    assert fetch(server, "/healthz")[::2] == (200, "mrcd works\n")
    server.view.tick_age = 12.0
    status, _, text = fetch(server, "/healthz")
    assert (status, "12 s ago" in text) == (503, True)
    server.daemon.started += 3595  # the last tick was that of an earlier daemon
    assert fetch(server, "/healthz")[0] == 200


def test_readiness(server: PageServer) -> None:
    assert fetch(server, "/readyz")[0] == 200
    server.are_programs_complete = False
    assert (fetch(server, "/readyz")[0], "mrcctl doctor" in fetch(server, "/readyz")[2]) == (503, True)
    server.daemon.detached = True
    assert (fetch(server, "/readyz")[0], "mrcctl attach" in fetch(server, "/readyz")[2]) == (503, True)


def test_the_document(server: PageServer) -> None:
    server.add_samples()
    server.fail(1, 2)
    found = json.loads(fetch(server, "/status.json")[2])
    assert (found["host"], found["level"], found["version"]) == ("h0", "ok", __version__)
    assert found["path_map"]["planes"][1]["t1s"][2] == [0, 0, 2, 0, 0]
    assert [p["peer"] for p in found["peers"]["shown"]] == ["h1", "h3", "h2"]  # the worst first
    assert found["rates"]["planes"][1]["loss_ratio"][-1] == pytest.approx(0.02, abs=0.01)
    assert found["events"][0]["text"].startswith("h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD")


def test_many_readers_cost_as_much_as_one(server: PageServer) -> None:
    server.view.may_end.clear()

    async def session(client: Client) -> None:
        async def read() -> str:
            async with client.get("/status.json") as answer:
                return await answer.text()

        readers = asyncio.gather(*(read() for _ in range(20)))
        assert await asyncio.to_thread(server.view.begun.wait, 10)
        server.view.may_end.set()
        texts = await readers
        assert len(set(texts)) == 1
        assert await read() == texts[0]

    visit(server, session)
    assert server.view.made == 1


def test_a_document_that_costs_more_is_served_for_longer() -> None:
    now, costs_s, made = [0.0], [0.001], [0]

    async def make() -> bytes:
        made[0] += 1
        now[0] += costs_s[0]
        return b"%d" % made[0]

    async def run() -> None:
        cached = Cached(make, clock=lambda: now[0])
        assert await cached.get() == b"1"
        now[0] += 0.9
        assert await cached.get() == b"1"
        now[0] += 0.2
        costs_s[0] = 0.2
        assert await cached.get() == b"2"
        now[0] += 3.9
        assert await cached.get() == b"2"
        now[0] += 0.2
        costs_s[0] = 60.0
        assert await cached.get() == b"3"
        now[0] += 10.1
        assert await cached.get() == b"4"

    asyncio.run(run())


def test_an_error_is_not_kept(server: PageServer) -> None:
    server.view.error = ValueError("wrong")

    async def session(client: Client) -> None:
        async with client.get("/status.json") as answer:
            assert answer.status == 500
            assert "wrong" not in await answer.text()
        server.view.error = None
        async with client.get("/status.json") as answer:
            assert answer.status == 200

    visit(server, session)


def test_files_have_types_and_no_outside_resources() -> None:
    for path in FILES.iterdir():
        text = path.read_text(encoding="utf-8")
        assert path.suffix in TYPES, path
        assert "SPDX-License" in text, path
        assert len(text.splitlines()) <= 400, path
        outside = [url for url in re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\"' ]*", text) if "www.w3.org" not in url]
        assert not outside, (path, outside)


def test_scripts_make_no_markup_of_data() -> None:
    for path in FILES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", text)
        assert not found, (path, found)
    html = (FILES / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", html)


def test_the_page_links_only_what_is_served(server: PageServer) -> None:
    texts = [path.read_text(encoding="utf-8") for path in FILES.iterdir()]
    links = {link for text in texts for link in re.findall(r'(?:href|src)="(/[^"]*)"', text)}
    links |= {f"/page/{name}" for text in texts for name in re.findall(r'from "\./(\w+\.js)"', text)}
    assert len(links) > 8
    for link in links - {"/metrics"}:
        assert fetch(server, link)[0] == 200, link
