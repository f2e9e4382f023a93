# SPDX-License-Identifier: BSD-2-Clause
"""Converts links, neighbours and routes from and to pyroute2's netlink messages. Pure.

Segments are in travel order. The end of the module works around defects of pyroute2 (0.9): each function names the
behaviour that it replaces.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any, NamedTuple

from pyroute2.netlink.rtnl.rtmsg import rtmsg_base

PROTOCOL = 77  # rtm_protocol of mrcd's routes: `ip route show proto 77`
TABLE_MAIN, TABLE_LOCAL = 254, 255
_ENCAP_SEG6LOCAL = 7  # LWTUNNEL_ENCAP_SEG6_LOCAL
_SCOPE_LINK = 253
_RTAX_RTO_MIN = 13
_IFF_UP, _IFF_NOARP, _IFF_LOWER_UP = 0x1, 0x80, 0x10000
_NUD_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80  # REACHABLE STALE DELAY PROBE NOARP PERMANENT


@dataclass(frozen=True)
class Link:
    """A network interface, as the kernel describes it."""

    name: str
    ifindex: int
    mac: str
    enabled: bool  # administratively up
    up: bool  # administratively up, and with carrier
    mtu: int
    kind: str | None  # None: a physical NIC
    lower: int | None  # ifindex of the NIC below a VLAN interface, or of a veth's peer, if it is in this namespace
    vlan: int  # 0: untagged
    noarp: bool
    gso_max_size: int = 0
    gso_max_segs: int = 0
    alias: str | None = None


@dataclass(frozen=True)
class Hop:
    """A next hop. If it has `segments`, in travel order, it is a seg6 encap.red hop."""

    oif: int
    gateway: str | None = None
    segments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """A route of mrcd. `local` is a seg6local action: "End.DT6" or "End.DX4"."""

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
        """Returns the address family of the destination."""
        return socket.AF_INET6 if ":" in self.dst else socket.AF_INET

    @property
    def key(self) -> tuple[str, int]:
        """Returns what identifies the route in the table: destination and metric."""
        return self.dst, self.metric


class Neighbour(NamedTuple):
    """A neighbour on an interface. `mac` is None if it is not resolved, or deleted."""

    ifindex: int
    address: str
    mac: str | None


class Change(NamedTuple):
    """A change of a link, a neighbour or an address in the kernel.

    `neighbour`: the neighbour that changed; None for other changes. Its state changes often, its address rarely.
    `ifindex`: the link that changed, or that the address is of; 0: the caller cannot know what has changed.
    `name`, `up`: of a link: its name, and whether it has a carrier; None for other changes.
    """

    neighbour: Neighbour | None = None
    ifindex: int = 0
    name: str | None = None
    up: bool | None = None


def read_link(msg: Any) -> Link:
    """Returns the link in an RTM_NEWLINK message."""
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
        up=_up(flags),
        mtu=msg.get("IFLA_MTU") or 0,
        kind=kind,
        lower=lower,
        vlan=vlan,
        noarp=bool(flags & _IFF_NOARP),
        gso_max_size=msg.get("IFLA_GSO_MAX_SIZE") or 0,
        gso_max_segs=msg.get("IFLA_GSO_MAX_SEGS") or 0,
        alias=msg.get("IFLA_IFALIAS"),
    )


def read_neighbour(msg: Any) -> Neighbour:
    """Returns the neighbour in an RTM_NEWNEIGH or RTM_DELNEIGH message."""
    is_resolved = msg["state"] & _NUD_USABLE and event_of(msg) != "RTM_DELNEIGH"
    return Neighbour(msg["ifindex"], msg.get("NDA_DST") or "", msg.get("NDA_LLADDR") or None if is_resolved else None)


def read_change(msg: Any) -> Change:
    """Returns the change in a notification about links, neighbours or addresses."""
    event = event_of(msg)
    if "NEIGH" in event:
        return Change(neighbour=read_neighbour(msg))
    if event != "RTM_NEWLINK":
        return Change(ifindex=msg["index"])
    return Change(ifindex=msg["index"], name=msg.get("IFLA_IFNAME"), up=_up(msg["flags"]))


def _up(flags: int) -> bool:
    return bool(flags & _IFF_UP and flags & _IFF_LOWER_UP)


def route_request(route: Route) -> dict[str, Any]:
    """Returns pyroute2's arguments for an RTM_NEWROUTE request."""
    spec: dict[str, Any] = {
        "family": route.family,
        "dst": route.dst,
        "priority": route.metric,
        "proto": PROTOCOL,
        "table": TABLE_MAIN,
    }
    if route.family == socket.AF_INET and not any(h.gateway and ":" not in h.gateway for h in route.hops):
        spec["scope"] = _SCOPE_LINK  # destinations with scope link may be the gateways of other routes
    wanted = {"mtu": route.mtu, "reordering": route.reordering, "rto_min": route.rto_min_ms}
    metrics = {k: v for k, v in wanted.items() if v}
    if metrics:
        # TCP uses a route's rto_min only if it is locked (dst_metric_locked in tcp_rto_min).
        spec["metrics"] = metrics | ({"lock": 1 << _RTAX_RTO_MIN} if route.rto_min_ms else {})
    if route.source:
        spec["prefsrc"] = route.source
    if route.local:
        spec["oif"] = route.hops[0].oif
        action: dict[str, Any] = {"type": "seg6local", "action": route.local}
        # End.DT6 looks up the host's own addresses in table local. nh4 0.0.0.0 means the inner destination.
        action |= {"table": TABLE_LOCAL} if route.local == "End.DT6" else {"nh4": "0.0.0.0"}
        spec["encap"] = action
    elif any(h.segments for h in route.hops) or len(route.hops) > 1:
        spec["multipath"] = [_hop_request(h) for h in route.hops]
    else:
        hop = route.hops[0]
        spec["oif"] = hop.oif
        if hop.gateway and (":" in hop.gateway) != (":" in route.dst):
            spec["via"] = {"family": socket.AF_INET6, "addr": hop.gateway}  # IPv4 through an IPv6 gateway
        elif hop.gateway:
            spec["gateway"] = hop.gateway
    return spec


def _hop_request(hop: Hop) -> dict[str, Any]:
    attrs: list[tuple[str, Any]] = []
    if hop.gateway:
        attrs.append(("RTA_GATEWAY", hop.gateway))
    if hop.segments:
        attrs += _seg6_hop_attributes(hop.segments)
    return {"oif": hop.oif, "hops": 0, "attrs": attrs}


def read_route(msg: Any) -> Route:
    """Returns the route in an RTM_NEWROUTE message, without unlocked metrics and encapsulations of others."""
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
        segments = _seg6_segments(part.get("RTA_ENCAP").get("SEG6_IPTUNNEL_SRH"))
    via = part.get("RTA_VIA")
    hop = Hop(oif=oif, gateway=via["addr"] if via else part.get("RTA_GATEWAY"), segments=segments)
    return replace(hop, gateway=None) if hop.gateway in ("0.0.0.0", "::") else hop


def _locked_rto_min(metrics: Any) -> int:
    """Returns a route's least retransmission timeout in ms; 0 if it is not locked, because TCP ignores it then."""
    locked = (metrics.get("RTAX_LOCK") or 0) & (1 << _RTAX_RTO_MIN)
    return (metrics.get("RTAX_RTO_MIN") or 0) if locked else 0


# ---- workarounds for pyroute2 ----

_ENCAP_SEG6 = 5  # LWTUNNEL_ENCAP_SEG6
_ENCAP_RED = 3  # SEG6_IPTUN_MODE_ENCAP_RED


# pyroute2 writes and reads a seg6 mode that it does not know as "encap", silently.
_SRH = rtmsg_base.seg6_encap_info.ipv6_sr_hdr
_SRH.encapmodes["encap.red"] = _ENCAP_RED
_SRH.r_encapmodes[_ENCAP_RED] = "encap.red"


def event_of(msg: Any) -> str:
    """Returns the type of a message, as "RTM_NEWLINK".

    pyroute2's get("event") returns the number in the attribute IFLA_EVENT if a link has one.
    """
    return str(dict.get(msg, "event", ""))


def _seg6_hop_attributes(segments: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the netlink attributes of a seg6 next hop; `segments` are in travel order.

    pyroute2 drops the seg6 encapsulation of the hops that it builds itself. It writes the segments in the order of the
    list; the kernel's array has the last segment first (RFC 8754 §2).
    """
    srh = {"mode": "encap.red", "segs": list(reversed(list(segments)))}
    return [("RTA_ENCAP_TYPE", _ENCAP_SEG6), ("RTA_ENCAP", {"attrs": [("SEG6_IPTUNNEL_SRH", srh)]})]


def _seg6_segments(srh: Any) -> tuple[str, ...]:
    """Returns the segments of a seg6 encap.red SRH in travel order; none for other modes.

    pyroute2 reads the segments in the order of the kernel's array, the last one first.
    """
    return tuple(reversed(srh["segs"])) if srh["encapmode"] == _ENCAP_RED else ()
