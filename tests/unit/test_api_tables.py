"""Documents of the API are made in a thread, while a reload may take their tables away."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from mrcd.api import Api
from mrcd.daemon import Daemon
from mrcd.readers import Readers
from mrcd.reload import Reloader


def answer(peers: Callable[[SimpleNamespace], Any]) -> Any:
    """What /v1/peers says where `peers` makes the document, of a daemon."""

    async def ask() -> web.Response:
        daemon = SimpleNamespace(steering=None, readers=Readers())
        daemon.readers.go_on()
        daemon.view = SimpleNamespace(name="old", peers=lambda: peers(daemon))
        return await Api(cast(Daemon, daemon), cast(Reloader, None)).peers(cast(web.Request, None))

    return json.loads(asyncio.run(ask()).text or "")


@pytest.mark.parametrize("closed", [False, True])
def test_a_document_made_while_a_reload_changes_the_tables_is_made_of_the_new_ones(closed: bool) -> None:
    def peers(daemon: SimpleNamespace) -> list[str]:
        daemon.readers._stops += 1  # as Readers.stop, in the loop
        daemon.view = SimpleNamespace(name="new", peers=lambda: ["new"])
        if closed:
            raise AttributeError("peers")
        return ["neither"]

    assert answer(peers) == ["new"]


def test_what_no_reload_explains_is_an_error_at_once() -> None:
    made = []

    def peers(daemon: SimpleNamespace) -> None:
        made.append(daemon.view.name)
        raise AttributeError("peers")

    with pytest.raises(AttributeError):
        answer(peers)
    assert made == ["old"]
