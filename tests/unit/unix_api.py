# SPDX-License-Identifier: BSD-2-Clause
"""Asks parts of the control API over a real unix socket."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from mrcd.ctl.client import Client, Json
from mrcd.errors import MrcdError


def asked(application: web.Application, directory: Path, *requests: Callable[[Client], Json]) -> list[Json]:
    """Returns the answers to requests, one after the other; the errors of refused ones."""

    def ask(request: Callable[[Client], Json]) -> Json:
        try:
            return request(Client(directory, 5))
        except MrcdError as e:
            return e

    async def scenario() -> list[Json]:
        runner = web.AppRunner(application)
        await runner.setup()
        await web.UnixSite(runner, str(directory / "mrcd.sock")).start()
        try:
            return [await asyncio.to_thread(ask, r) for r in requests]
        finally:
            await runner.cleanup()

    return asyncio.run(scenario())
