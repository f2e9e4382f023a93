# SPDX-License-Identifier: BSD-2-Clause
"""Writes links, addresses, routes and neighbours by netlink, and verifies each write.

mrcd's routes have a routing protocol number of their own, which distinguishes them from routes of other programs.
Callers add missing objects and delete those of mrcd that are not wanted; they leave all others alone. After a write,
this module reads the object back, because netlink accepts and ignores attributes that the kernel does not know. A
difference is an error.
"""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ipaddress import IPv6Address
from struct import Struct
from types import MappingProxyType
from typing import Any
from zlib import crc32

from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError
from pyroute2.iproute import AsyncIPRoute
from pyroute2.netlink import rtnl
from pyroute2.netlink.exceptions import NetlinkError

from mrcd.errors import KernelError, MachineError
from mrcd.net import rps
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
from mrcd.net.way import Way

_NO_IPV6 = "the sysctl net.ipv6.conf.NIC.disable_ipv6 must be 0"
_NTF_EXT_LEARNED, _NTF_EXT_MANAGED = 0x10, 0x1
_SCOPE_NOWHERE = 255
_IFA_F_NODAD = 0x02
_MEMORY_TRIES, _MEMORY_WAIT_S = 50, 0.02
_MAX_ALIAS = 254  # characters
_ETHERNET = 14  # bytes of the header
_LOCAL = 2  # RTN_LOCAL
ANY_SEGMENTS = 0xFFFF  # of a burst: the kernel's default (GSO_MAX_SEGS)
_LOOK_UP = 0x1000 | 0x2000  # RTM_F_LOOKUP_TABLE, RTM_F_FIB_MATCH: the route itself, with its table
_EVENTS = rtnl.RTMGRP_LINK | rtnl.RTMGRP_NEIGH | rtnl.RTMGRP_IPV4_IFADDR | rtnl.RTMGRP_IPV6_IFADDR
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_SEQUENCE, _SEQUENCE_AT = Struct("=I"), 8  # of struct nlmsghdr


class _Requests(AsyncIPRoute):  # type: ignore[misc]
    """A netlink socket for requests.

    Where the kernel acknowledges a request that its answer has already ended, pyroute2 keeps the ACK for a reader of
    events. Nothing reads events from this socket: 70 kB of fragmented memory stayed after each reload.
    """

    def enqueue(self, data: bytes, addr: object) -> None:
        (sequence,) = _SEQUENCE.unpack_from(data, _SEQUENCE_AT)
        if sequence in self.msg_queue.queues:
            super().enqueue(data, addr)


class Netlink:
    """An open netlink socket in this network namespace. Use as an async context manager."""

    def __init__(self) -> None:
        self._ipr = _Requests()
        self._echo = _Requests(nlm_echo=True)  # the kernel answers a write with the object that it made
        self._memory_tries = _MEMORY_TRIES

    async def __aenter__(self) -> "Netlink":
        await self._ipr.setup_endpoint()
        await self._echo.setup_endpoint()
        await self.links()  # the buffer of a socket's first dump is small; longer messages are lost silently
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._ipr.close()
        self._echo.close()

    async def _do(self, what: str, call: Any, hints: Mapping[int, str] = MappingProxyType({})) -> None:
        try:
            await call
        except NetlinkError as e:
            raise KernelError(what, e.code, hint=hints.get(e.code)) from None

    # ---- links ----

    async def links(self) -> dict[str, Link]:
        """Returns all interfaces by name."""
        return {link.name: link async for link in self._links()}

    async def _links(self) -> AsyncIterator[Link]:
        async for msg in await self._ipr.link("dump"):
            yield read_link(msg)

    async def rename_veth(self, former: tuple[str, str], names: tuple[str, str]) -> None:
        """Renames the ends of a veth pair, if there is one of the former names. `ensure_veth` sets them up again."""
        links = await self.links()
        ends = [links.get(name) for name in former]
        if not (ends[0] and ends[1]) or ends[0].kind != "veth" or ends[0].lower != ends[1].ifindex:
            return
        for end, name in zip(ends, names, strict=True):
            if end is None or end.name == name or name in links:
                continue
            try:
                await self._do(f"rename {end.name} to {name}", self._ipr.link("set", index=end.ifindex, ifname=name))
            except KernelError as e:
                if e.errno != errno.EBUSY:
                    raise
                # Before Linux 6.2 only an interface that is down can be renamed.
                await self._do(f"set {end.name} down", self._ipr.link("set", index=end.ifindex, state="down"))
                await self._do(f"rename {end.name} to {name}", self._ipr.link("set", index=end.ifindex, ifname=name))

    async def ensure_veth(
        self,
        name: str,
        peer: str,
        *,
        mtu: int,
        gso_max_size: int,
        gso_max_segs: int = ANY_SEGMENTS,
        queues: int = 1,
        rps_cpus: AbstractSet[int] = frozenset(),
    ) -> tuple[Link, Link]:
        """Makes sure that a veth pair exists, without neighbour discovery, up, and with an MTU. Returns both ends.

        `queues` (from `peer` to `name`) and `rps_cpus` (the CPUs for received flows) apply only to a pair that is
        created now; its alias records them (see made_with()).
        """
        links = await self.links()
        mine, other = links.get(name), links.get(peer)
        if mine and (mine.kind != "veth" or not other or mine.lower != other.ifindex):
            raise MachineError(
                f"interface {name} exists and is not mrcd's veth",
                hint="remove or rename it, or set overlay.interface in the configuration",
            )
        if name not in links:
            counts = {"num_tx_queues": queues, "num_rx_queues": queues}  # the default is one per CPU
            # Fixed MAC addresses, because udev soon replaces those that the kernel generates.
            other_end = {"ifname": peer, "address": _mac(peer), **counts}
            # The kernel keeps the number of a socket's transmit queue, unless there is one. The plane NIC would use it.
            counts["num_tx_queues"] = 1
            add = self._ipr.link("add", ifname=name, address=_mac(name), kind="veth", peer=other_end, **counts)
            with rps.default_cpus(rps_cpus) as applied_cpus:
                await self._do(f"create the veth pair {name}–{peer}", add)
            links = await self.links()
            alias = self._ipr.link("set", index=links[name].ifindex, ifalias=made_with(queues, applied_cpus))
            await self._do(f"set the alias of {name}", alias)
        for end in (peer, name):
            link = links[end]
            bursts = (link.gso_max_size, link.gso_max_segs)
            if link.mtu == mtu and link.noarp and link.up and bursts == (gso_max_size, gso_max_segs):
                continue
            # Without a link-local address the kernel sends no router solicitations: only the host's own traffic.
            spec = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]})]}
            no_address = self._ipr.link("set", index=link.ifindex, IFLA_AF_SPEC=spec)
            await self._do(f"switch off IPv6 address generation of {end}", no_address)
            setting = self._ipr.link(
                "set",
                index=link.ifindex,
                mtu=mtu,
                state="up",
                flags=_IFF_UP | _IFF_NOARP,
                change=_IFF_UP | _IFF_NOARP,
                gso_max_size=gso_max_size,
                gso_max_segs=gso_max_segs,
            )
            await self._do(f"set {end} up with MTU {mtu}", setting)
        links = await self.links()
        for end in (name, peer):
            if not links[end].noarp or links[end].mtu != mtu:
                raise MachineError(f"{end} does not have the settings that were written (MTU {mtu}, no ARP)")
        return links[name], links[peer]

    async def ensure_paced(self, link: Link, packet: int, interval_ns: int) -> None:
        """Paces packets of `packet` bytes to leave an interface `interval_ns` apart, by a root token bucket (tbf).

        After a pause, one MTU may leave at once, because the kernel warns of a smaller burst. Raises KernelError.
        """
        rate, burst = packet * 1_000_000_000 // interval_ns, link.mtu + _ETHERNET + packet
        if [rate] == [q async for q in self._token_buckets(link.ifindex)]:
            return
        # pyroute2 takes the rate in bytes per second.
        pace = self._ipr.tc("replace", "tbf", index=link.ifindex, rate=rate, burst=burst, limit=4 * burst)
        await self._do(f"pace {link.name} (tbf)", pace)
        if [rate] != (found := [q async for q in self._token_buckets(link.ifindex)]):
            raise MachineError(f"{link.name}: wrote tbf with {rate} bytes/s, but the kernel has {found or 'none'}")

    async def _token_buckets(self, ifindex: int) -> AsyncIterator[int]:
        """Yields the rate of an interface's root tbf in bytes per second, if it has one."""
        async for msg in await self._ipr.tc("dump", index=ifindex):
            if msg["index"] == ifindex and msg["parent"] == rtnl.TC_H_ROOT and msg.get("TCA_KIND") == "tbf":
                yield msg.get("TCA_OPTIONS").get("TCA_TBF_PARMS")["rate"]

    # ---- addresses ----

    async def sync_addresses(self, ifindex: int, wanted: Sequence[str], is_ours: Callable[[str], bool]) -> set[str]:
        """Adds the wanted addresses (/32 or /128) that are missing; deletes those that `is_ours` but are not wanted.

        Returns the addresses that it had before.
        """
        have = await self._addresses(ifindex)
        for address in sorted(a for a in have.keys() - set(wanted) if is_ours(a)):
            full = 128 if ":" in address else 32
            if have[address] != full:
                continue  # another program's: mrcd writes full prefixes only
            delete = self._ipr.addr("del", index=ifindex, address=address, prefixlen=full)
            await self._do(f"delete address {address}", delete)
        missing = [address for address in wanted if address not in have]
        for address in missing:
            full = 128 if ":" in address else 32
            # No duplicate detection: the host id makes the address unique, and it must be usable at once.
            flags = {"flags": _IFA_F_NODAD} if full == 128 else {}
            add = self._ipr.addr("add", index=ifindex, address=address, prefixlen=full, **flags)
            await self._do(f"add address {address}", add, {errno.EACCES: _NO_IPV6} if full == 128 else {})
        if missing and (still := set(missing) - (await self._addresses(ifindex)).keys()):
            raise MachineError(f"addresses {', '.join(sorted(still))} were added, but the kernel does not have them")
        return set(have)

    async def add_link_local(self, ifindex: int, mac: str) -> str:
        """Adds the link-local address of an interface's MAC (RFC 4291, appendix A). Returns the address."""
        octets = bytes.fromhex(mac.replace(":", ""))
        last = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
        address = str(IPv6Address(b"\xfe\x80" + bytes(6) + last))
        add = self._ipr.addr("add", index=ifindex, address=address, prefixlen=64, flags=_IFA_F_NODAD)
        await self._do(f"add address {address}", add)
        return address

    async def _addresses(self, ifindex: int) -> dict[str, int]:
        """Returns an interface's addresses: address → prefix length."""
        return {
            msg.get("IFA_LOCAL") or msg.get("IFA_ADDRESS"): msg["prefixlen"]
            async for msg in await self._ipr.addr("dump", index=ifindex)
        }

    # ---- routes ----

    async def routes(self) -> dict[tuple[str, int], Route]:
        """Returns mrcd's routes by (destination, metric)."""
        found = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            async for msg in await self._ipr.route("dump", family=family):
                if msg["proto"] == PROTOCOL and msg.get("RTA_TABLE") == TABLE_MAIN:
                    route = read_route(msg)
                    found[route.key] = route
        return found

    async def way_to(self, destination: str, source: str | None) -> Way:
        """Returns the route that the kernel takes to an address. Raises KernelError."""
        family = socket.AF_INET6 if ":" in destination else socket.AF_INET
        spec = {"src": source} if source else {}
        try:
            answers = await self._ipr.route("get", dst=destination, family=family, flags=_LOOK_UP, **spec)
        except NetlinkError as e:
            return Way(destination, source, error=e.code)
        (msg,) = answers
        plain = "0.0.0.0" if family == socket.AF_INET else "::"
        oif = msg.get("RTA_OIF") or msg.get("RTA_MULTIPATH", [{"oif": 0}])[0]["oif"]
        return Way(
            destination,
            source,
            table=msg.get("RTA_TABLE") or msg["table"],
            protocol=msg["proto"],
            is_local=msg["type"] == _LOCAL,
            dst=f"{msg.get('RTA_DST') or plain}/{msg['dst_len']}",
            metric=msg.get("RTA_PRIORITY") or 0,
            interface=_name(oif),
        )

    async def write_route(self, route: Route, verb: str) -> None:
        """Adds or replaces a route, and compares it with the kernel's answer. Raises KernelError, MachineError.

        Each hop with segments takes memory per CPU, which Linux gives it from a small reserve (GFP_ATOMIC) and refills
        behind it: while maps per CPU are made, by mrcd or by others, a route of many hops is refused on the way. After
        a route for which there was none for a second, each has one try, until one is written.
        """
        while True:
            self._memory_tries -= 1
            try:
                await self._write_once(route, verb)
                self._memory_tries = _MEMORY_TRIES
                return
            except KernelError as e:
                if e.errno != errno.ENOMEM or self._memory_tries <= 0:
                    raise
            await asyncio.sleep(_MEMORY_WAIT_S)

    async def _write_once(self, route: Route, verb: str) -> None:
        try:
            answers = await self._echo.route(verb, **route_request(route))
        except NetlinkError as e:
            hint = "another program has this route: remove that, or set other metrics in [overlay]"
            raise KernelError(
                f"write route {route.dst} metric {route.metric}", e.code, hint=hint if e.code == errno.EEXIST else None
            ) from None
        written = [read_route(msg) for msg in answers if event_of(msg) == "RTM_NEWROUTE"]
        if route not in written:
            raise MachineError(f"route {route.dst}: {route} was written, but the kernel has {written or 'none'}")

    async def delete_route(self, route: Route) -> None:
        """Deletes a route; no error if it does not exist."""
        spec = {"family": route.family, "dst": route.dst, "priority": route.metric, "proto": PROTOCOL}
        if route.family == socket.AF_INET:
            spec["scope"] = _SCOPE_NOWHERE  # matches any scope: otherwise IPv4 deletes only routes of the given scope
        try:
            await self._ipr.route("del", **spec)
        except NetlinkError as e:
            if e.code != errno.ESRCH:  # the kernel deleted it with its interface
                raise KernelError(f"delete route {route.dst}", e.code) from None

    # ---- neighbours ----

    async def keep_resolved(self, ifindex: int, gateway: str) -> None:
        """Makes the kernel resolve a first hop and keep it resolved: no other traffic would make it do so."""
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
        """Returns the MACs of a first hop by ifindex, for the interfaces on which it is resolved."""
        found = {}
        async for msg in await self._ipr.neigh("dump", family=socket.AF_INET6):
            neighbour = read_neighbour(msg)
            if neighbour.address == gateway and neighbour.mac:
                found[neighbour.ifindex] = neighbour.mac
        return found

    # ---- events ----

    async def watch(self) -> AsyncIterator[Change]:
        """Yields once after subscribing, then for every change of a link, a neighbour or an address."""
        async with AsyncIPRoute() as monitor:
            await monitor.bind(_EVENTS)
            yield Change()  # the caller reads the state from before the subscription
            while True:
                try:
                    async for msg in monitor.get():
                        yield read_change(msg)
                except (NetlinkError, OSError) as e:
                    # Also if events were lost (ENOBUFS): the caller watches anew, and reads the whole state then.
                    code = e.code if isinstance(e, NetlinkError) else e.errno
                    raise KernelError("watch links and neighbours", code or errno.EIO) from None


def _name(ifindex: int) -> str:
    try:
        return socket.if_indextoname(ifindex)
    except OSError:  # it has disappeared
        return f"interface {ifindex}"


def _mac(interface: str) -> str:
    """Returns a locally administered MAC for one end of a veth, which no other host sees. Pure."""
    return "02:6d:72:" + crc32(interface.encode()).to_bytes(4, "big")[1:].hex(":")


def made_with(queues: int, rps_cpus: AbstractSet[int]) -> str:
    """Returns the alias of the overlay's veth, which records the settings that are fixed at its creation."""
    text = f"mrcd: {queues} {'queue' if queues == 1 else 'queues'}, RPS on {rps.format_cpus(rps_cpus) or 'none'}"
    return text[:_MAX_ALIAS]


def set_offload(interface: str, features: dict[str, bool]) -> None:
    """Switches offloads by their ethtool names, e.g. {"tx-generic-segmentation": False}. Raises MachineError."""
    try:
        tool = IoctlEthtool(interface)
        offloads = tool.get_features()
        wanted = {name: on for name, on in features.items() if name in offloads}
        if all(offloads[name] == on for name, on in wanted.items()):
            return
        for name, on in wanted.items():
            offloads[name] = on
        tool.set_features(offloads)
        now = tool.get_features()
    except NotSupportedError:
        raise MachineError(f"{interface}: the driver cannot set offloads: {', '.join(features)}") from None
    except OSError as e:
        raise KernelError(f"set the offloads of {interface}", e.errno or errno.EINVAL) from None
    for name, on in wanted.items():
        if now[name] != on:
            raise MachineError(f"{interface}: the driver keeps {name} {'off' if on else 'on'}")
