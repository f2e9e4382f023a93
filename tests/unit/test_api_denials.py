# SPDX-License-Identifier: BSD-2-Clause
"""Tests the API of denials over a real unix socket: valid and invalid requests."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mrcd import state_dir
from mrcd.api.denials import DenialsApi
from mrcd.api.server import errors
from mrcd.ctl.client import Client, Json
from mrcd.errors import UsageError
from mrcd.versions import SCHEMA_VERSION
from tests.unit.test_denial_control import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / state_dir.DENIALS)


def asked(host: Host, directory: Path, *requests: Callable[[Client], Json]) -> list[Json]:
    """Returns the answers to the requests, one after the other; errors too."""

    def ask(request: Callable[[Client], Json]) -> Json:
        try:
            return request(Client(directory, 5))
        except UsageError as e:
            return e

    async def scenario() -> list[Json]:
        app = web.Application(middlewares=[errors])
        app.add_routes(DenialsApi(host.control).routes())
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(directory / "mrcd.sock")).start()
        try:
            return [await asyncio.to_thread(ask, r) for r in requests]
        finally:
            await runner.cleanup()

    found: list[Json] = host.run(scenario())
    return found


def test_deny_drain_and_allow(host: Host, tmp_path: Path) -> None:
    body = {"target": ["t1:1:2"], "peer": "h3", "for": "30m", "reason": "fan", "drain": True}
    deny, denials, allow, none = asked(
        host,
        tmp_path,
        lambda c: c.post("/v1/deny", body),
        lambda c: c.get("/v1/denials"),
        lambda c: c.post("/v1/allow", {"plane": 1}),
        lambda c: c.post("/v1/allow", {"all": True}),
    )
    assert (deny["target"], deny["changed"], deny["schema_version"]) == ("t1:1:2 peer:h3", 1, SCHEMA_VERSION)
    (denial,) = denials["denials"]
    assert (denial["uid"], denial["reason"], denial["action"]) == (os.getuid(), "fan", "drain")
    assert denial["remaining_s"] == 1800
    assert (allow["ended"], allow["changed"]) == (["t1:1:2 peer:h3"], 1)
    assert none["message"] == "nothing is denied"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "not a JSON object"),
        ({}, "the target is missing"),
        ({"target": "t1:1:2"}, "must be a list of strings"),
        ({"target": [1]}, "must be a list of strings"),
        ({"target": ["t1"]}, "is not a target"),
        ({"peer": 1}, "peer must be text"),
        ({"plane": "1"}, "plane must be a number"),
        ({"plane": True}, "plane must be a number"),
        ({"plane": -1}, "is not a target"),
        ({"plane": 1, "for": 30}, "for must be text"),
        ({"plane": 1, "for": "9" * 5000 + "d"}, "is not a duration"),
        ({"plane": 1, "reason": "x\n"}, "one line"),
        ({"plane": 1, "force": "no"}, "true or false"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_invalid_requests_are_refused(host: Host, tmp_path: Path, body: Any, message: str) -> None:
    (answer,) = asked(host, tmp_path, lambda c: c.post("/v1/deny", body))
    assert isinstance(answer, UsageError)
    assert message in str(answer)
    assert (host.denied(), host.targets) == (set(), [])
