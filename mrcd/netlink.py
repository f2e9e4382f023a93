"""Every netlink write of mrcd, and its reading back.

Segments are given in travel order. Objects that mrcd owns carry its routing protocol number, so
reconciling can tell them from everybody else's: what is wanted and missing is written, what is
owned and not wanted is removed, the rest is left alone. Then the kernel is asked again, and an
answer that differs is an error: netlink accepts and ignores attributes that it does not know.
"""

import errno
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError
from pyroute2.netlink import rtnl
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.rtmsg import rtmsg_base

from mrcd.errors import KernelError, MachineError

PROTOCOL = 77  # rtm_protocol of what mrcd owns; `ip route show proto 77`
TABLE_MAIN, TABLE_LOCAL = 254, 255
_ENCAP_SEG6, _ENCAP_SEG6LOCAL = 5, 7
_ENCAP_RED = 3  # SEG6_IPTUN_MODE_ENCAP_RED
_NTF_EXT_LEARNED, _NTF_EXT_MANAGED = 0x10, 0x1
_NUD_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80  # REACHABLE STALE DELAY PROBE NOARP PERMANENT
_SCOPE_LINK, _SCOPE_NOWHERE = 253, 255
_IFA_F_NODAD = 0x02
_RTAX_RTO_MIN = 13
_IFF_UP, _IFF_NOARP, _IFF_LOWER_UP = 0x1, 0x80, 0x10000

# pyroute2 turns a mode it does not know into plain "encap" without a word.
_srh = rtmsg_base.seg6_encap_info.ipv6_sr_hdr
_srh.encapmodes["encap.red"] = _ENCAP_RED
_srh.r_encapmodes[_ENCAP_RED] = "encap.red"


@dataclass(frozen=True)
class Link:
    """A network interface, as the kernel describes it."""

    name: str
    ifindex: int
    mac: str
    enabled: bool  # administratively up
    up: bool  # and with carrier
    mtu: int
    kind: str | None  # None: a real NIC
    lower: int | None  # ifindex below a VLAN interface, or of a veth's peer, if in this namespace
    vlan: int  # 0: untagged
    noarp: bool
    gso_max_size: int = 0


@dataclass(frozen=True)
class Hop:
    """A next hop; `segments` in travel order make it a seg6 encap.red hop."""

    oif: int
    gateway: str | None = None
    segments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """A route that mrcd owns. `local` is a seg6local action: "End.DT6" or "End.DX4"."""

    dst: str
    metric: int
    hops: tuple[Hop, ...]
    mtu: int = 0
    reordering: int = 0
    source: str | None = None
    local: str | None = None
    rto_min_ms: int = 0

    @property
    def family(self) -> int:
        """Address family of the destination."""
        return socket.AF_INET6 if ":" in self.dst else socket.AF_INET

    @property
    def key(self) -> tuple[str, int]:
        """What makes two routes the same place in the table."""
        return self.dst, self.metric


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
            yield _link(msg)

    async def ensure_veth(self, name: str, peer: str, *, mtu: int, gso_max_size: int) -> tuple[Link, Link]:
        """A veth pair without neighbour discovery, up, with that MTU. Returns both ends."""
        links = await self.links()
        mine, other = links.get(name), links.get(peer)
        if mine and (mine.kind != "veth" or not other or mine.lower != other.ifindex):
            raise MachineError(
                f"interface {name} exists and is not mrcd's veth",
                hint="remove or rename it, or set overlay.interface in the configuration",
            )
        if name not in links:
            add = self._ipr.link("add", ifname=name, kind="veth", peer=peer)
            await self._do(f"create the veth pair {name}–{peer}", add)
            links = await self.links()
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

    # ---- addresses ----

    async def sync_addresses(self, ifindex: int, wanted: Sequence[str], ours: Callable[[str], bool]) -> None:
        """Add the addresses (/32 or /128) that the interface lacks, delete those that are `ours` and not wanted."""
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
                    route = _route(msg)
                    found[route.key] = route
        return found

    async def write_route(self, route: Route, verb: str) -> None:
        """Add or replace a route, and compare it with what the kernel says that it has now."""
        try:
            answers = await self._echo.route(verb, **_request(route))
        except NetlinkError as e:
            hint = "somebody else's route is in its place: remove that, or set other metrics in [overlay]"
            raise KernelError(
                f"write route {route.dst} metric {route.metric}", e.code, hint=hint if e.code == errno.EEXIST else None
            ) from None
        made = [_route(msg) for msg in answers if msg.get("event") == "RTM_NEWROUTE"]
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
            mac = msg.get("NDA_LLADDR")
            if msg.get("NDA_DST") == gateway and mac and msg["state"] & _NUD_USABLE:
                found[msg["ifindex"]] = mac
        return found

    # ---- events ----

    async def watch(self) -> AsyncIterator[bool]:
        """Yields when listening, then for every event of a link, a neighbour or an address.

        False: only a neighbour. Those change their state all the time, and rarely their address.
        """
        async with AsyncIPRoute() as monitor:
            await monitor.bind(rtnl.RTMGRP_LINK | rtnl.RTMGRP_NEIGH | rtnl.RTMGRP_IPV6_IFADDR)
            yield True  # what happened before is for the caller to look up
            while True:
                try:
                    async for msg in monitor.get():
                        yield "NEIGH" not in msg.get("event", "")
                except NetlinkError as e:
                    if e.code != errno.ENOBUFS:  # events were lost: the caller looks everything up anyway
                        raise KernelError("watch links and neighbours", e.code) from None
                    yield True


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


def _link(msg: Any) -> Link:
    info = msg.get("IFLA_LINKINFO")
    kind = info.get("IFLA_INFO_KIND") if info else None
    vlan, lower = 0, None
    if kind in ("vlan", "veth") and msg.get("IFLA_LINK_NETNSID") is None:
        lower = msg.get("IFLA_LINK")
    if kind == "vlan":
        vlan = info.get("IFLA_INFO_DATA").get("IFLA_VLAN_ID")
    flags = msg["flags"]
    return Link(
        name=msg.get("IFLA_IFNAME"),
        ifindex=msg["index"],
        mac=msg.get("IFLA_ADDRESS") or "00:00:00:00:00:00",
        enabled=bool(flags & _IFF_UP),
        up=bool(flags & _IFF_UP and flags & _IFF_LOWER_UP),
        mtu=msg.get("IFLA_MTU") or 0,
        kind=kind,
        lower=lower,
        vlan=vlan,
        noarp=bool(flags & _IFF_NOARP),
        gso_max_size=msg.get("IFLA_GSO_MAX_SIZE") or 0,
    )


def _request(route: Route) -> dict[str, Any]:
    """The attributes of RTM_NEWROUTE."""
    spec: dict[str, Any] = {
        "family": route.family,
        "dst": route.dst,
        "priority": route.metric,
        "proto": PROTOCOL,
        "table": TABLE_MAIN,
    }
    if route.family == socket.AF_INET and not any(h.gateway for h in route.hops):
        spec["scope"] = _SCOPE_LINK
    asked = {"mtu": route.mtu, "reordering": route.reordering, "rto_min": route.rto_min_ms}
    metrics = {k: v for k, v in asked.items() if v}
    if metrics:
        # TCP heeds a route's rto_min only where it is locked (dst_metric_locked in tcp_rto_min).
        spec["metrics"] = metrics | ({"lock": 1 << _RTAX_RTO_MIN} if route.rto_min_ms else {})
    if route.source:
        spec["prefsrc"] = route.source
    if route.local:
        spec["oif"] = route.hops[0].oif
        action: dict[str, Any] = {"type": "seg6local", "action": route.local}
        # For addresses of the host itself: table local. Any next hop: the inner destination.
        action |= {"table": TABLE_LOCAL} if route.local == "End.DT6" else {"nh4": "0.0.0.0"}
        spec["encap"] = action
    elif any(h.segments for h in route.hops) or len(route.hops) > 1:
        spec["multipath"] = [_hop_request(h) for h in route.hops]
    else:
        spec["oif"] = route.hops[0].oif
        if route.hops[0].gateway:
            spec["gateway"] = route.hops[0].gateway
    return spec


def _hop_request(hop: Hop) -> dict[str, Any]:
    attrs: list[tuple[str, Any]] = []
    if hop.gateway:
        attrs.append(("RTA_GATEWAY", hop.gateway))
    if hop.segments:
        # The kernel's array runs backwards: the last segment first (RFC 8754 §2).
        srh = {"mode": "encap.red", "segs": list(reversed(hop.segments))}
        attrs.append(("RTA_ENCAP_TYPE", _ENCAP_SEG6))
        attrs.append(("RTA_ENCAP", {"attrs": [("SEG6_IPTUNNEL_SRH", srh)]}))
    return {"oif": hop.oif, "hops": 0, "attrs": attrs}


def _route(msg: Any) -> Route:
    metrics = msg.get("RTA_METRICS")
    multipath = msg.get("RTA_MULTIPATH")
    parts = multipath if multipath else [msg]
    local = None
    if msg.get("RTA_ENCAP_TYPE") == _ENCAP_SEG6LOCAL:
        local = {5: "End.DX6", 6: "End.DX4", 7: "End.DT6"}.get(msg.get("RTA_ENCAP").get("SEG6_LOCAL_ACTION"), "?")
    plain = "0.0.0.0" if msg["family"] == socket.AF_INET else "::"
    return Route(
        dst=str(ip_network(f"{msg.get('RTA_DST') or plain}/{msg['dst_len']}")),
        metric=msg.get("RTA_PRIORITY") or 0,
        hops=tuple(_hop(part) for part in parts),
        mtu=(metrics.get("RTAX_MTU") or 0) if metrics else 0,
        reordering=(metrics.get("RTAX_REORDERING") or 0) if metrics else 0,
        source=msg.get("RTA_PREFSRC"),
        local=local,
        rto_min_ms=_locked_rto_min(metrics) if metrics else 0,
    )


def _hop(part: Any) -> Hop:
    oif = part["oif"] if "oif" in part else part.get("RTA_OIF")
    segments: tuple[str, ...] = ()
    if part.get("RTA_ENCAP_TYPE") == _ENCAP_SEG6:
        srh = part.get("RTA_ENCAP").get("SEG6_IPTUNNEL_SRH")
        if srh["encapmode"] == _ENCAP_RED:
            segments = tuple(reversed(srh["segs"]))
    hop = Hop(oif=oif, gateway=part.get("RTA_GATEWAY"), segments=segments)
    return replace(hop, gateway=None) if hop.gateway in ("0.0.0.0", "::") else hop


def _locked_rto_min(metrics: Any) -> int:
    """A route's least retransmission timeout, ms; 0 if it is not locked, for then it means nothing."""
    locked = (metrics.get("RTAX_LOCK") or 0) & (1 << _RTAX_RTO_MIN)
    return (metrics.get("RTAX_RTO_MIN") or 0) if locked else 0
