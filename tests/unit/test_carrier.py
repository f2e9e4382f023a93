"""A plane whose link has lost its carrier is left with the event itself; a neighbour that is as it was is
no event."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mrcd.daemon.daemon import Daemon
from mrcd.health.events import EventLog
from mrcd.net.hooks import Port
from mrcd.net.messages import Change, Link, Neighbour, read_change, read_neighbour
from mrcd.net.nics import Nics
from mrcd.tables import abi


def link(ifindex: int) -> Link:
    numbers: Any = {"mtu": 9100, "kind": None, "lower": None, "vlan": 0, "noarp": False, "gso_max_size": 65536}
    words: Any = {"name": f"p{ifindex}", "mac": "02:00:00:00:00:01", "enabled": True, "up": True}
    return Link(ifindex=ifindex, **words, **numbers)


@pytest.fixture
def daemon() -> Daemon:
    """Three planes: two NICs, and a VLAN on the second of them."""
    found: Any = object.__new__(Daemon)
    found._left, found.told = 0, []
    found.plan = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(planes=3)), interfaces=("a", "b", "c"))
    found.events = EventLog()
    found.peers, found.refreshed = {7: None}, []
    found.dataplane = SimpleNamespace(refresh=found.refreshed.append)
    found._dirty, found._wake = set(), asyncio.Event()
    found.nics = Nics(found.plan, found, found.told, found.told)  # it does nothing but count carriers here
    found.nics.ports = {0: Port(0, link(4), link(4)), 1: Port(1, link(5), link(5)), 2: Port(2, link(9), link(5))}
    found.tables = SimpleNamespace(node=np.zeros((), abi.MAPS["mrc_node"]))
    found.tables.node["plane_mask"] = 0b111
    found._forwards_by = found.tables
    found.monitor = SimpleNamespace(announce=lambda: found.told.append(int(found.tables.node["plane_mask"])))
    assert isinstance(found, Daemon)
    return found


def test_a_lost_carrier_removes_the_plane_and_informs_the_peers_once(daemon: Any) -> None:
    daemon._lose(4)
    daemon._lose(4)
    assert int(daemon.tables.node["plane_mask"]) == 0b110
    assert daemon.told == [0b110]
    assert daemon._left == 0b001  # the reconciliation that follows makes events of it


def test_a_lost_carrier_removes_all_vlan_planes_of_the_nic(daemon: Any) -> None:
    daemon._lose(5)
    assert int(daemon.tables.node["plane_mask"]) == 0b001
    assert daemon._left == 0b110


@pytest.mark.parametrize("other", [1, 77])
def test_a_lost_carrier_of_another_link_changes_nothing(daemon: Any, other: int) -> None:
    daemon._lose(other)
    assert int(daemon.tables.node["plane_mask"]) == 0b111
    assert not daemon.told


def test_a_plane_that_is_already_down_changes_nothing(daemon: Any) -> None:
    daemon.tables.node["plane_mask"] = 0b110
    daemon._lose(4)
    assert not daemon.told
    assert daemon._left == 0


def test_a_plane_that_returns_before_the_next_check_is_used_and_announced(daemon: Any) -> None:
    daemon._lose(4)  # programs that work out usable EVs now leave this plane out
    asyncio.run(daemon._use_ports(0b111))
    assert int(daemon.tables.node["plane_mask"]) == 0b111
    assert daemon.told == [0b110, 0b111]
    assert daemon.refreshed == [7]
    asyncio.run(daemon._use_ports(0b111))
    assert (daemon.told, daemon.refreshed) == ([0b110, 0b111], [7])  # nothing is new


def test_events_during_a_first_hop_lookup_are_not_lost(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reconciled(Exception):
        pass

    async def nothing_new() -> bool:
        daemon._relink = True  # as an event of a link does meanwhile
        return False

    async def reconcile() -> None:
        raise Reconciled

    daemon._relink, daemon._reneighbour, daemon.netlink_lock = False, True, asyncio.Lock()
    daemon._look_again = list
    monkeypatch.setattr(daemon.nics, "first_hops_changed", nothing_new)
    seen: list[str] = []
    monkeypatch.setattr("mrcd.daemon.daemon.log.error", lambda _, what: seen.append(what))
    daemon._reconcile = reconcile
    asyncio.run(daemon._follow())
    assert seen == [repr(Reconciled())]


def test_a_carrier_lost_during_a_migration_is_removed_in_both_tables(daemon: Any) -> None:
    """What is attached forwards by the old ones until the new plan is in force."""
    daemon._forwards_by = SimpleNamespace(node=daemon.tables.node.copy())
    daemon._lose(4)
    assert [int(t.node["plane_mask"]) for t in (daemon.tables, daemon._forwards_by)] == [0b110, 0b110]


FIRST_HOP, MAC = "fe80::1", "02:00:00:00:00:05"


@pytest.mark.parametrize(
    ("neighbour", "looking", "news"),
    [
        (Neighbour(4, FIRST_HOP, MAC), False, False),
        (Neighbour(4, FIRST_HOP, MAC), True, True),  # what is being looked up may be older, or newer
        (Neighbour(4, FIRST_HOP, "02:00:00:00:00:06"), False, True),
        (Neighbour(4, FIRST_HOP, None), False, True),
        (Neighbour(5, FIRST_HOP, None), False, False),  # it was not resolved before either
        (Neighbour(5, FIRST_HOP, MAC), False, True),
        (Neighbour(4, "fe80::2", MAC), False, False),
        (None, False, True),
    ],
    ids=["as it was", "while looking", "another", "lost", "lost as before", "found", "no first hop", "no neighbour"],
)
def test_only_first_hops_that_are_others_than_before_are_looked_up(
    daemon: Any, neighbour: Neighbour | None, looking: bool, news: bool
) -> None:
    async def watch() -> AsyncIterator[Change]:
        yield Change(neighbour)
        watching[0].cancel()
        await asyncio.sleep(0)

    async def work() -> None:
        if looking:
            await daemon.netlink_lock.acquire()
        watching.append(asyncio.create_task(daemon._watch()))
        await asyncio.wait(watching)

    watching: list[asyncio.Task[None]] = []
    daemon._relink = daemon._reneighbour = False
    daemon.netlink_lock, daemon.netlink = asyncio.Lock(), SimpleNamespace(watch=watch)
    daemon.plan.config.interfaces = SimpleNamespace(gateway=FIRST_HOP)
    daemon.nics.macs = {4: MAC}
    asyncio.run(work())
    assert (daemon._reneighbour, daemon._wake.is_set()) == (news, news)
    assert daemon._relink is (neighbour is None)


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
        """What pyroute2 makes of one: attributes by get, the header by its keys."""

        def get(self, name: str, default: Any = None) -> Any:
            return {"NDA_DST": FIRST_HOP, "NDA_LLADDR": mac}.get(name, default)

    assert read_neighbour(Message(event=event, ifindex=4, state=state)) == Neighbour(4, FIRST_HOP, told)


@pytest.mark.parametrize("attributes", [[], [("IFLA_EVENT", 6)]], ids=["", "with IFLA_EVENT, as of changed offloads"])
def test_a_link_that_goes_down_is_one(attributes: list[tuple[str, int]]) -> None:
    message = ifinfmsg()
    message.update({"event": "RTM_NEWLINK", "index": 4, "flags": 0x1, "attrs": attributes})
    assert read_change(message) == Change(ifindex=4, up=False)
