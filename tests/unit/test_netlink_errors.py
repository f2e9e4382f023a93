# SPDX-License-Identifier: BSD-2-Clause
"""Tests what becomes of errors of netlink sockets, which pyroute2 raises as they are."""

import asyncio
import errno
from typing import Any

import pytest

from mrcd.errors import KernelError
from mrcd.net import netlink
from mrcd.net.netlink import Netlink


class Overrun:
    """Stands in for a socket that has lost messages."""

    async def __aenter__(self) -> "Overrun":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def bind(self, _: int) -> None:
        pass

    def get(self) -> "Overrun":
        return self

    def __aiter__(self) -> "Overrun":
        return self

    async def __anext__(self) -> Any:
        raise OSError(errno.ENOBUFS, "No buffer space available")


def test_lost_events_end_the_watch_with_the_kernel_s_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "AsyncIPRoute", Overrun)

    async def watch() -> list[Any]:
        return [change async for change in Netlink.watch(None)]  # type: ignore[arg-type]

    with pytest.raises(KernelError, match=r"watch links and neighbours: .*ENOBUFS"):
        asyncio.run(watch())
