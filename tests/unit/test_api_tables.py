# SPDX-License-Identifier: BSD-2-Clause
"""Tests that a document requested during a reload is made of the new tables, and which secret is the newest."""

import asyncio
import json
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from mrcd.api.server import Api
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.fleet.member import FleetMember
from mrcd.view.workers import Readers


def test_a_document_asked_for_during_a_reload_is_made_of_the_new_tables() -> None:
    async def ask() -> str | None:
        daemon = SimpleNamespace(encapsulation=None, readers=Readers(), view=SimpleNamespace(peers=lambda: ["old"]))
        api = Api(cast(Daemon, daemon), cast(Reloader, None), cast(FleetMember, None))
        asking = asyncio.create_task(api.listed("peers")(cast(web.Request, None)))
        await asyncio.sleep(0)
        daemon.view = SimpleNamespace(peers=lambda: ["new"])
        daemon.readers.go_on()
        return (await asking).text

    assert json.loads(asyncio.run(ask()) or "") == ["new"]


@pytest.mark.parametrize(("ids", "newest"), [([], None), ([7], 7), ([255, 1], 1)])
def test_keys_are_those_of_the_tables_and_the_newest_that_of_the_file(ids: list[int], newest: int | None) -> None:
    async def ask() -> str | None:
        view = SimpleNamespace(keys=lambda: {"mode": "required", "newest": None, "peers": []})
        daemon = SimpleNamespace(readers=Readers(), view=view, keyring=SimpleNamespace(ids=ids))
        daemon.readers.go_on()
        return (
            await Api(cast(Daemon, daemon), cast(Reloader, None), cast(FleetMember, None)).keys(cast(web.Request, None))
        ).text

    assert json.loads(asyncio.run(ask()) or "") == {"mode": "required", "newest": newest, "peers": []}
