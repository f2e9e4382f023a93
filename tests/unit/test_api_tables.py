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
from mrcd.reload import Reloader


def answer(peers: Callable[[SimpleNamespace], Any]) -> Any:
    """What /v1/peers says where `peers` makes the document, of a daemon."""
    daemon = SimpleNamespace(steering=None)
    daemon.view = SimpleNamespace(name="old", peers=lambda: peers(daemon))
    response = asyncio.run(Api(cast(Daemon, daemon), cast(Reloader, None)).peers(cast(web.Request, None)))
    return json.loads(response.text or "")


def test_a_document_of_tables_that_a_reload_has_closed_is_made_of_the_new_ones() -> None:
    def peers(daemon: SimpleNamespace) -> None:
        daemon.view = SimpleNamespace(name="new", peers=lambda: ["new"])
        raise AttributeError("peers")

    assert answer(peers) == ["new"]


def test_what_no_reload_explains_is_an_error_at_once() -> None:
    made = []

    def peers(daemon: SimpleNamespace) -> None:
        made.append(daemon.view.name)
        raise AttributeError("peers")

    with pytest.raises(AttributeError):
        answer(peers)
    assert made == ["old"]
