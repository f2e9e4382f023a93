# SPDX-License-Identifier: BSD-2-Clause
"""Tests that the event of a lost carrier takes the plane out of use, and that an unchanged neighbour is no event."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mrcd.daemon.netlink_watch import NetlinkWatch
from mrcd.daemon.plane_mask import PlaneMask
from mrcd.health.events import EventLog
from mrcd.kernel import abi
from mrcd.net.hooks import Port
from mrcd.net.messages import Change, Neighbour, read_change, read_neighbour
from mrcd.net.nics import Nics
from tests.unit import simulated_time
from tests.unit.interfaces import link


class Host:
    """Three planes: two NICs, and a VLAN on the second of them."""

    def __init__(self) -> None:
        cluster = SimpleNamespace(planes=3, mtu=9100)
        self.plan: Any = SimpleNamespace(config=SimpleNamespace(cluster=cluster), interfaces=("a", "b", "c"))
        self.events = EventLog()
        self.planes = PlaneMask(self.events)
        self.nics = Nics(
            cast(Any, self.plan), cast(Any, None), print, lambda: None
        )  # it does nothing but count carriers here
        self.nics.ports = {
            0: Port(0, link("p4", 4), link("p4", 4)),
            1: Port(1, link("p5", 5), link("p5", 5)),
            2: Port(2, link("p9", 9), link("p5", 5)),
        }
        self.tables = self.another_table()

    @staticmethod
    def another_table() -> Any:
        tables = SimpleNamespace(node=np.zeros((), abi.NODE))
        tables.node["plane_mask"] = 0b111
        return tables

    @property
    def mask(self) -> int:
        return int(self.tables.node["plane_mask"])

    def lose(self, ifindex: int, *more: Any) -> bool:
        self.nics.note_carrier_lost(ifindex)
        return self.planes.leave_lost(self.nics, (self.tables, *more))

    def use(self, mask: int) -> bool:
        return self.planes.use(mask, self.plan, self.nics, self.tables)

    def logged(self) -> list[tuple[int | None, str]]:
        return [(e["plane"], e["reason"]) for e in asyncio.run(self.events.after(0, 0))]


@pytest.fixture
def host() -> Host:
    return Host()


# What happens to which link or mask, whether that changes something, and the mask then; and the events of it all.
Step = tuple[str, int, bool, int]
STORIES: dict[str, tuple[list[Step], list[tuple[int, str]]]] = {
    "a plane is left once; the reconciliation that follows logs it": (
        [("lose", 4, True, 0b110), ("lose", 4, False, 0b110), ("use", 0b110, True, 0b110)], [(0, "link_down")]),
    "a carrier of all VLAN planes of a NIC": (
        [("lose", 5, True, 0b001), ("use", 0b001, True, 0b001)], [(1, "link_down"), (2, "link_down")]),
    "another link": ([("lose", 1, False, 0b111), ("lose", 77, False, 0b111)], []),
    "down already": ([("is", 0b110, True, 0b110), ("lose", 4, False, 0b110), ("use", 0b110, False, 0b110)], []),
    "back before links are read: peers are told again": (
        [("lose", 4, True, 0b110), ("use", 0b111, True, 0b111), ("use", 0b111, False, 0b111)], []),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "logged"), STORIES.values(), ids=STORIES)
def test_planes_in_use(host: Host, steps: list[Step], logged: list[tuple[int, str]]) -> None:
    for what, value, changes, mask in steps:
        if what == "is":
            host.tables.node["plane_mask"] = value
        else:
            assert (host.lose if what == "lose" else host.use)(value) is changes
        assert host.mask == mask
    assert host.logged() == logged


def test_a_plane_that_is_lost_while_new_tables_are_filled_is_left_in_both(host: Host) -> None:
    """The attached programs use the old tables until the new plan is in force."""
    attached = host.another_table()
    assert host.lose(4, attached)
    assert [host.mask, int(attached.node["plane_mask"])] == [0b110, 0b110]


def test_events_during_a_first_hop_lookup_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reconciled(Exception):
        pass

    async def work() -> None:
        watch = NetlinkWatch(asyncio.Lock())

        async def no_new_first_hop() -> bool:
            watch.look_again()  # as an event of a link does meanwhile
            return False

        async def reconcile() -> None:
            raise Reconciled

        async def changes() -> AsyncIterator[Change]:
            yield Change(Neighbour(4, FIRST_HOP, MAC))
            await asyncio.Event().wait()

        nics: Any = SimpleNamespace(first_hops_changed=no_new_first_hop, concerns=lambda _: True)
        netlink: Any = SimpleNamespace(watch=changes)
        failed = asyncio.Event()

        def fail(_: str, what: str) -> None:
            seen.append(what)
            failed.set()

        monkeypatch.setattr("mrcd.daemon.netlink_watch.log.error", fail)
        tasks = [
            asyncio.create_task(watch.watch(netlink, lambda: nics, print)),
            asyncio.create_task(watch.reconcile_forever(lambda: nics, reconcile, cast(Any, None))),
        ]
        await asyncio.wait_for(failed.wait(), 10)
        for task in tasks:
            task.cancel()

    seen: list[str] = []
    asyncio.run(work())
    assert seen[0] == repr(Reconciled())


FIRST_HOP, MAC = "fe80::1", "02:00:00:00:00:05"


@pytest.mark.parametrize(
    ("change", "looking", "news"),
    [
        (Change(Neighbour(4, FIRST_HOP, MAC)), False, False),
        (Change(Neighbour(4, FIRST_HOP, MAC)), True, True),  # what is being looked up may be older, or newer
        (Change(Neighbour(4, FIRST_HOP, "02:00:00:00:00:06")), False, True),
        (Change(Neighbour(4, FIRST_HOP, None)), False, True),
        (Change(Neighbour(5, FIRST_HOP, None)), False, False),  # it was not resolved before either
        (Change(Neighbour(5, FIRST_HOP, MAC)), False, True),
        (Change(Neighbour(4, "fe80::2", MAC)), False, False),
        (Change(Neighbour(77, FIRST_HOP, MAC)), False, False),
        (Change(), False, True),
        (Change(ifindex=5, name="renamed", up=True), False, True),
        (Change(ifindex=77, name="p4", up=False), False, True),
        (Change(ifindex=77, name="mrc0", up=True), False, True),
        (Change(ifindex=4), False, True),
        (Change(ifindex=77, name="veth1", up=True), False, False),
        (Change(ifindex=77, name="veth1", up=True), True, True),
        (Change(ifindex=77), False, False),
    ],
    ids=[
        *("as before", "while looking", "another", "lost", "lost as before", "found", "no first hop", "other link"),
        "anything",
        *("own link", "new link of a plane", "new mrc0", "own address"),
        *("a container's link", "the same while looking", "a container's address"),
    ],
)  # fmt: skip
def test_only_what_may_be_news_is_read(host: Host, change: Change, looking: bool, news: bool) -> None:
    async def changes() -> AsyncIterator[Change]:
        yield change
        noted.set()
        await asyncio.Event().wait()

    async def looked_up() -> bool:
        calls.append("first hops")
        return False

    async def reconcile() -> None:
        calls.append("links")

    async def write_changed() -> bool:
        calls.append("routes")
        return False

    async def work() -> None:
        lock = asyncio.Lock()
        watch = NetlinkWatch(lock)
        netlink: Any = SimpleNamespace(watch=changes)
        if looking:
            await lock.acquire()
        tasks = [asyncio.create_task(watch.watch(netlink, lambda: host.nics, print))]
        await asyncio.wait_for(noted.wait(), 10)
        if looking:
            lock.release()
        tasks.append(asyncio.create_task(watch.reconcile_forever(lambda: host.nics, reconcile, write_changed)))
        for _ in range(10):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    calls: list[str] = []
    noted = asyncio.Event()
    host.plan.config.interfaces = SimpleNamespace(gateway=FIRST_HOP)
    host.plan.config.overlay = SimpleNamespace(interfaces=("mrc0",))
    host.plan.interfaces = ("p4", "p5", "p9")
    host.nics.macs = {4: MAC}
    host.nics.first_hops_changed = looked_up  # type: ignore[method-assign]
    asyncio.run(work())
    links = ["links"] if change.neighbour is None else []
    assert calls == (["first hops", *links, "routes"] if news else [])


def test_errors_that_ask_for_a_retry_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each asks for another one when it fails again, and attempts become more and more."""
    asked: list[Callable[[], None]] = []
    cancelled: list[bool] = []

    def call_later(_: float, call: Callable[[], None]) -> Any:
        asked.append(call)
        return SimpleNamespace(cancel=lambda: cancelled.append(True))

    async def work() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
        watch = NetlinkWatch(asyncio.Lock())
        watch.retry()
        watch.retry()
        assert len(asked) == 1
        asked[0]()
        watch.retry()
        assert len(asked) == 2
        before = len(cancelled)
        watch.look_again()  # at once, so the other one is not needed
        assert len(cancelled) == before + 1

    asyncio.run(work())


@pytest.mark.parametrize(
    ("event", "state", "mac", "told"),
    [
        ("RTM_NEWNEIGH", 0x02, MAC, MAC),  # REACHABLE
        ("RTM_NEWNEIGH", 0x80, MAC, MAC),  # PERMANENT
        ("RTM_NEWNEIGH", 0x01, None, None),  # INCOMPLETE
        ("RTM_NEWNEIGH", 0x20, MAC, None),  # FAILED
        ("RTM_DELNEIGH", 0x02, MAC, None),
    ],
)
def test_a_neighbour_that_is_not_resolved_or_is_gone_has_no_mac(
    event: str, state: int, mac: str | None, told: str | None
) -> None:
    class Message(dict[str, Any]):
        """A message as pyroute2 returns it: attributes by get, the header by its keys."""

        def get(self, name: str, default: Any = None) -> Any:
            return {"NDA_DST": FIRST_HOP, "NDA_LLADDR": mac}.get(name, default)

    assert read_neighbour(Message(event=event, ifindex=4, state=state)) == Neighbour(4, FIRST_HOP, told)


@pytest.mark.parametrize("attributes", [[], [("IFLA_EVENT", 6)]], ids=["", "with IFLA_EVENT, as of changed offloads"])
def test_a_link_that_goes_down_is_one(attributes: list[tuple[str, int]]) -> None:
    message = ifinfmsg()
    message.update({"event": "RTM_NEWLINK", "index": 4, "flags": 0x1, "attrs": attributes})
    assert read_change(message) == Change(ifindex=4, up=False)


def test_nics_that_fail_are_tried_again_once_a_second_however_many_and_however_often_links_change() -> None:
    async def no() -> bool:
        return False

    async def work() -> int:
        watch, times = NetlinkWatch(asyncio.Lock()), 0
        nics = Nics(cast(Any, None), cast(Any, None), print, watch.retry)
        cast(Any, nics).first_hops_changed = no

        async def reconcile() -> None:
            nonlocal times
            times += 1
            for n in (4, 5, 9):  # each has no link-local address yet
                nics._without_link_local.clear()  # noqa: SLF001 - a NIC that fails needs no kernel here
                await nics._ensure_link_local(link(f"p{n}", n), set())  # noqa: SLF001 - likewise

        running = asyncio.create_task(watch.reconcile_forever(lambda: nics, reconcile, no))
        for _ in range(12):
            watch.look_again()
            await asyncio.sleep(0.13)
        assert times == 12
        await asyncio.sleep(10)
        running.cancel()
        return times - 12

    assert simulated_time.run(work()) in (9, 10)
