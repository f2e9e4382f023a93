"""Every netlink write of mrcd, and its reading back.

Segments are given in travel order. Objects that mrcd owns carry its routing protocol number, so
reconciling can tell them from everybody else's: what is wanted and missing is written, what is
owned and not wanted is removed, the rest is left alone. Then the kernel is asked again, and an
answer that differs is an error: netlink accepts and ignores attributes that it does not know.
"""

import errno
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from ipaddress import IPv6Address
from typing import Any
from zlib import crc32

from pyroute2 import AsyncIPRoute
from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError
from pyroute2.netlink import rtnl
from pyroute2.netlink.exceptions import NetlinkError

from mrcd.errors import KernelError, MachineError
from mrcd.net import receive_steering
from mrcd.net.messages import (
    PROTOCOL,
    TABLE_MAIN,
    Change,
    Link,
    Route,
    event_of,
    read_change,
    read_link,
    read_neighbour,
    read_route,
    route_request,
)

_NTF_EXT_LEARNED, _NTF_EXT_MANAGED = 0x10, 0x1
_SCOPE_NOWHERE = 255
_IFA_F_NODAD = 0x02
_ALIAS_MOST = 254  # characters
_ETHERNET = 14  # bytes
_EVENTS = rtnl.RTMGRP_LINK | rtnl.RTMGRP_NEIGH | rtnl.RTMGRP_IPV4_IFADDR | rtnl.RTMGRP_IPV6_IFADDR
_IFF_UP, _IFF_NOARP = 0x1, 0x80


class Netlink:
    """An open netlink socket in this network namespace. Use as an async context manager."""

    def __init__(self) -> None:
        self._ipr = AsyncIPRoute()
        self._echo = AsyncIPRoute(nlm_echo=True)  # the kernel answers a write with what it made of it

    async def __aenter__(self) -> "Netlink":
        await self._ipr.setup_endpoint()
        await self._echo.setup_endpoint()
        await self.links()  # a socket's first dump has little room, and what is too long for it is lost silently
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._ipr.close()
        self._echo.close()

    async def _do(self, what: str, call: Any) -> None:
        try:
            await call
        except NetlinkError as e:
            raise KernelError(what, e.code) from None

    # ---- links ----

    async def links(self) -> dict[str, Link]:
        """All interfaces by name."""
        return {link.name: link async for link in self._links()}

    async def _links(self) -> AsyncIterator[Link]:
        async for msg in await self._ipr.link("dump"):
            yield read_link(msg)

    async def ensure_veth(
        self, name: str, peer: str, *, mtu: int, gso_max_size: int, queues: int = 1, rps: AbstractSet[int] = frozenset()
    ) -> tuple[Link, Link]:
        """A veth pair without neighbour discovery, up, with that MTU. Returns both ends.

        `queues`, of each end and direction, and `rps`, the CPUs for received flows, are for a pair that is made now;
        its alias tells of them (`made_with`).
        """
        links = await self.links()
        mine, other = links.get(name), links.get(peer)
        if mine and (mine.kind != "veth" or not other or mine.lower != other.ifindex):
            raise MachineError(
                f"interface {name} exists and is not mrcd's veth",
                hint="remove or rename it, or set overlay.interface in the configuration",
            )
        if name not in links:
            many = {"num_tx_queues": queues, "num_rx_queues": queues}  # of each end: it would have one for each CPU
            # Addresses of their own: those that the kernel makes up, udev would replace a moment later.
            far = {"ifname": peer, "address": _mac(peer), **many}
            add = self._ipr.link("add", ifname=name, address=_mac(name), kind="veth", peer=far, **many)
            with receive_steering.steering(rps) as steered:
                await self._do(f"create the veth pair {name}–{peer}", add)
            links = await self.links()
            alias = self._ipr.link("set", index=links[name].ifindex, ifalias=made_with(queues, steered))
            await self._do(f"name {name}", alias)
        for end in (peer, name):
            link = links[end]
            if link.mtu == mtu and link.noarp and link.up and link.gso_max_size == gso_max_size:
                continue
            # No router solicitations, no link-local address: nothing but the host's own traffic.
            spec = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]})]}
            await self._do(f"silence {end}", self._ipr.link("set", index=link.ifindex, IFLA_AF_SPEC=spec))
            setting = self._ipr.link(
                "set",
                index=link.ifindex,
                mtu=mtu,
                state="up",
                flags=_IFF_UP | _IFF_NOARP,
                change=_IFF_UP | _IFF_NOARP,
                gso_max_size=gso_max_size,
            )
            await self._do(f"set {end} up with MTU {mtu}", setting)
        links = await self.links()
        for end in (name, peer):
            if not links[end].noarp or links[end].mtu != mtu:
                raise MachineError(f"{end} did not take its settings (MTU {mtu}, no ARP)")
        return links[name], links[peer]

    async def ensure_paced(self, link: Link, packet: int, interval_ns: int) -> None:
        """Have packets of `packet` bytes leave an interface `interval_ns` apart: a token bucket (tbf) as its root.

        What its MTU is long may leave at once after a rest: the kernel warns of less. Raises KernelError.
        """
        rate, burst = packet * 1_000_000_000 // interval_ns, link.mtu + _ETHERNET + packet
        if [rate] == [q async for q in self._token_buckets(link.ifindex)]:
            return
        # pyroute2: a rate in bytes per second
        pace = self._ipr.tc("replace", "tbf", index=link.ifindex, rate=rate, burst=burst, limit=4 * burst)
        await self._do(f"pace {link.name} (tbf)", pace)
        if [rate] != (found := [q async for q in self._token_buckets(link.ifindex)]):
            raise MachineError(f"{link.name} was paced at {rate} bytes/s, but the kernel has {found or 'nothing'}")

    async def _token_buckets(self, ifindex: int) -> AsyncIterator[int]:
        """The rates of an interface's root tbf, bytes per second: one or none."""
        async for msg in await self._ipr.tc("dump", index=ifindex):
            if msg["index"] == ifindex and msg["parent"] == rtnl.TC_H_ROOT and msg.get("TCA_KIND") == "tbf":
                yield msg.get("TCA_OPTIONS").get("TCA_TBF_PARMS")["rate"]

    # ---- addresses ----

    async def sync_addresses(self, ifindex: int, wanted: Sequence[str], ours: Callable[[str], bool]) -> set[str]:
        """Add the addresses (/32 or /128) that the interface lacks, delete those that are `ours` and not wanted.
        Returns what it had."""
        have = await self._addresses(ifindex)
        for address in sorted(a for a in have.keys() - set(wanted) if ours(a)):
            full = 128 if ":" in address else 32
            if have[address] != full:
                continue  # not as mrcd writes them: somebody else's
            delete = self._ipr.addr("del", index=ifindex, address=address, prefixlen=full)
            await self._do(f"delete address {address}", delete)
        missing = [address for address in wanted if address not in have]
        for address in missing:
            full = 128 if ":" in address else 32
            # The address is computed from the host id, and usable at once.
            flags = {"flags": _IFA_F_NODAD} if full == 128 else {}
            add = self._ipr.addr("add", index=ifindex, address=address, prefixlen=full, **flags)
            await self._do(f"add address {address}", add)
        if missing and (still := set(missing) - (await self._addresses(ifindex)).keys()):
            raise MachineError(f"addresses {', '.join(sorted(still))} were added, but the kernel does not have them")
        return set(have)

    async def add_link_local(self, ifindex: int, mac: str) -> str:
        """Give an interface the link-local address of its MAC (RFC 4291, appendix A). Returns it."""
        octets = bytes.fromhex(mac.replace(":", ""))
        last = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
        address = str(IPv6Address(b"\xfe\x80" + bytes(6) + last))
        add = self._ipr.addr("add", index=ifindex, address=address, prefixlen=64, flags=_IFA_F_NODAD)
        await self._do(f"add address {address}", add)
        return address

    async def _addresses(self, ifindex: int) -> dict[str, int]:
        """Address → prefix length."""
        return {
            msg.get("IFA_LOCAL") or msg.get("IFA_ADDRESS"): msg["prefixlen"]
            async for msg in await self._ipr.addr("dump", index=ifindex)
        }

    # ---- routes ----

    async def routes(self) -> dict[tuple[str, int], Route]:
        """The routes that mrcd owns, by (destination, metric)."""
        found = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            async for msg in await self._ipr.route("dump", family=family):
                if msg["proto"] == PROTOCOL and msg.get("RTA_TABLE") == TABLE_MAIN:
                    route = read_route(msg)
                    found[route.key] = route
        return found

    async def write_route(self, route: Route, verb: str) -> None:
        """Add or replace a route, and compare it with what the kernel says that it has now."""
        try:
            answers = await self._echo.route(verb, **route_request(route))
        except NetlinkError as e:
            hint = "somebody else's route is in its place: remove that, or set other metrics in [overlay]"
            raise KernelError(
                f"write route {route.dst} metric {route.metric}", e.code, hint=hint if e.code == errno.EEXIST else None
            ) from None
        made = [read_route(msg) for msg in answers if event_of(msg) == "RTM_NEWROUTE"]
        if route not in made:
            raise MachineError(f"route {route.dst} was written, but the kernel has {made or 'nothing'}, not {route}")

    async def delete_route(self, route: Route) -> None:
        """Delete a route; no error if it is gone already."""
        spec = {"family": route.family, "dst": route.dst, "priority": route.metric, "proto": PROTOCOL}
        if route.family == socket.AF_INET:
            spec["scope"] = _SCOPE_NOWHERE  # any: IPv4 deletes only where the scope fits
        try:
            await self._ipr.route("del", **spec)
        except NetlinkError as e:
            if e.code != errno.ESRCH:  # gone with its interface meanwhile
                raise KernelError(f"delete route {route.dst}", e.code) from None

    # ---- neighbours ----

    async def keep_resolved(self, ifindex: int, gateway: str) -> None:
        """Have the kernel resolve a first hop and keep it resolved: nothing else sends to it."""
        add = self._ipr.neigh(
            "replace",
            family=socket.AF_INET6,
            dst=gateway,
            ifindex=ifindex,
            state=0,
            flags=_NTF_EXT_LEARNED,
            NDA_FLAGS_EXT=_NTF_EXT_MANAGED,
        )
        await self._do(f"resolve the first hop {gateway}", add)

    async def neighbours(self, gateway: str) -> dict[int, str]:
        """Link-layer addresses of a first hop: ifindex → MAC, resolved ones only."""
        found = {}
        async for msg in await self._ipr.neigh("dump", family=socket.AF_INET6):
            one = read_neighbour(msg)
            if one.address == gateway and one.mac:
                found[one.ifindex] = one.mac
        return found

    # ---- events ----

    async def watch(self) -> AsyncIterator[Change]:
        """Yields when listening, then for every event of a link, a neighbour or an address."""
        async with AsyncIPRoute() as monitor:
            await monitor.bind(_EVENTS)
            yield Change()  # what happened before is for the caller to look up
            while True:
                try:
                    async for msg in monitor.get():
                        yield read_change(msg)
                except NetlinkError as e:
                    if e.code != errno.ENOBUFS:  # events were lost: the caller looks everything up anyway
                        raise KernelError("watch links and neighbours", e.code) from None
                    yield Change()


def _mac(interface: str) -> str:
    """Of one end of a veth: locally administered, and seen by nobody else. Pure."""
    return "02:6d:72:" + crc32(interface.encode()).to_bytes(4, "big")[1:].hex(":")


def made_with(queues: int, rps: AbstractSet[int]) -> str:
    """What is fixed when the overlay's veth is made, in its alias."""
    text = f"mrcd: {queues} {'queue' if queues == 1 else 'queues'}, RPS on {receive_steering.words(rps) or 'none'}"
    return text[:_ALIAS_MOST]


def set_offload(interface: str, features: dict[str, bool]) -> None:
    """Switch offloads by their ethtool names, e.g. {"tx-generic-segmentation": False}."""
    try:
        tool = IoctlEthtool(interface)
        have = tool.get_features()
        wanted = {name: on for name, on in features.items() if name in have}
        if all(have[name] == on for name, on in wanted.items()):
            return
        for name, on in wanted.items():
            have[name] = on
        tool.set_features(have)
        now = tool.get_features()
    except NotSupportedError:
        raise MachineError(f"{interface} does not let its offloads be set: {', '.join(features)}") from None
    except OSError as e:
        raise KernelError(f"set the offloads of {interface}", e.errno or errno.EINVAL) from None
    for name, on in wanted.items():
        if now[name] != on:
            raise MachineError(f"{interface} keeps {name} {'off' if on else 'on'}; the driver does not allow it")
