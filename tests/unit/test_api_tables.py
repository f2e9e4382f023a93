# SPDX-License-Identifier: BSD-2-Clause
"""Tests that a document requested during a reload is made of the new tables."""

import asyncio
import json
from types import SimpleNamespace
from typing import cast

from aiohttp import web

from mrcd.api.server import Api
from mrcd.daemon.daemon import Daemon
from mrcd.daemon.reload import Reloader
from mrcd.view.workers import Readers


def test_a_document_asked_for_during_a_reload_is_made_of_the_new_tables() -> None:
    async def ask() -> str | None:
        daemon = SimpleNamespace(encapsulation=None, readers=Readers(), view=SimpleNamespace(peers=lambda: ["old"]))
        api = Api(cast(Daemon, daemon), cast(Reloader, None))
        asking = asyncio.create_task(api.peers(cast(web.Request, None)))
        await asyncio.sleep(0)
        daemon.view = SimpleNamespace(peers=lambda: ["new"])
        daemon.readers.go_on()
        return (await asking).text

    assert json.loads(asyncio.run(ask()) or "") == ["new"]
