# SPDX-License-Identifier: BSD-2-Clause
"""Tests POST /v1/reload over a real unix socket: valid and invalid bodies."""

import asyncio
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from mrcd.api.server import Api
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.fleet.member import FleetMember


class Asked:
    """Stands in for a reloader, and records its calls."""

    def __init__(self) -> None:
        self.force: list[bool] = []

    async def reload(self, *, force: bool) -> dict[str, Any]:
        """Does nothing."""
        self.force.append(force)
        return {}


def reload(directory: Path, body: bytes | None) -> tuple[int, dict[str, Any], list[bool]]:
    """Returns status and answer, and the recorded calls."""
    asked, path = Asked(), str(directory / "s")

    async def scenario() -> tuple[int, dict[str, Any]]:
        runner = web.AppRunner(Api(cast(Daemon, None), cast(Reloader, asked), cast(FleetMember, None)).application())
        await runner.setup()
        await web.UnixSite(runner, path).start()
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
                session.post("http://mrcd/v1/reload", data=body) as answer,
            ):
                return answer.status, await answer.json()
        finally:
            await runner.cleanup()

    return *asyncio.run(scenario()), asked.force


@pytest.mark.parametrize(
    ("body", "force"), [(None, False), (b"{}", False), (b'{"force": false}', False), (b'{"force": true}', True)]
)
def test_a_reload_passes_the_force_flag(tmp_path: Path, body: bytes | None, force: bool) -> None:
    assert reload(tmp_path, body) == (200, {}, [force])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the request's body is not JSON"),
        (b"[" * 100_000, "the request's body is not JSON"),
        (b"[true]", "the request's body is not a JSON object"),
        (b'{"force": "no"}', "force must be true or false, not 'no'"),
        (b'{"force": 0}', "force must be true or false, not 0"),
    ],
    ids=["cut off", "deep", "list", "text", "number"],
)
def test_an_invalid_body_reloads_nothing(tmp_path: Path, body: bytes, said: str) -> None:
    """A body that is not understood may mean something else than a forced reload."""
    status, answer, asked = reload(tmp_path, body)
    assert (status, answer["error"], answer["exit_code"], asked) == (400, said, 1, [])
