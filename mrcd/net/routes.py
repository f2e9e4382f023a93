# SPDX-License-Identifier: BSD-2-Clause
"""Computes the routes of a host from its plan and its links. Pure; netlink.py writes them.

overlay    peer's prefix → mrc0                while the peer's data plane is attached
fallback   peer's prefix → seg6 encap.red      always, at a worse metric: a hop per usable EV, up to hops_per_peer()
local SIDs uDT4 and uDT6 after the host's uSID decapsulate the peers' fallback traffic
fabric     own T0's uSID, plane's underlay → the plane's first hop
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv6Address

from mrcd.fabric.topology import UDT4, UDT6, Peer, Plan, carrier, host_usid, plane_network, t0_usid, usid_prefix
from mrcd.net.messages import Hop, Link, Route

MAX_HOPS = 32  # with 64 hops in a route, iproute2 prints empty dumps, also of other programs' routes
ALL_HOPS = 16_384  # of the routes to all peers together: each hop costs kernel memory, and time at a start
# Each destination behind mrc0 needs a neighbour entry, and above 1,024 (gc_thresh3) the kernel collects entries all
# the time. With more peers than this, all routes have one gateway that no host has; mrc0 does not resolve it. With
# fewer, routes have no gateway: the kernel does not accept a peer behind a gateway as the gateway of other IPv6 routes.
MAX_NEIGHBOURS = 512
BEHIND_MRC0 = "fe80::6d72:6330"  # "mrc0"
_METRIC = 1024  # of SIDs and fabric routes: the kernel's default for IPv6


def with_function(segment: IPv6Address, function: int) -> IPv6Address | None:
    """Returns a carrier with a uSID appended; None if it is full (a block of 32 bits and six uSIDs)."""
    value = int(segment)
    for shift in range(80, -1, -16):
        if not (value & ((1 << (shift + 16)) - 1)):
            return IPv6Address(value | function << shift)
    return None


def fabric_routes(plan: Plan, nics: Mapping[int, Link]) -> list[Route]:
    """Returns the routes that do not depend on the peers' health. `nics`: plane → NIC, of those that exist."""
    c = plan.config.cluster
    gateway = str(plan.config.interfaces.gateway)
    routes: dict[str, Route] = {}
    for plane, nic in nics.items():
        first_hop = (Hop(nic.ifindex, gateway),)
        wanted = [plane_network(c.underlay, plane)]
        if c.encapsulation != "ecmp":
            host = host_usid(plane, plan.host.port)
            for function, action in ((UDT4, "End.DX4"), (UDT6, "End.DT6")):
                dst = f"{carrier(c.block, [host, function])}/64"
                routes[dst] = Route(dst, _METRIC, (Hop(nic.ifindex),), local=action)
            wanted.append(usid_prefix(c.block, t0_usid(plane, plan.host.t0)))
        for network in wanted:
            routes.setdefault(str(network), Route(str(network), _METRIC, first_hop))
    for path in plan.config.paths:
        if path.source == plan.host.name and path.plane in nics:
            # The only segment of a fallback route ends with a function.
            functions = (UDT4, UDT6) if len(path.segments) == 1 else ()
            first = path.segments[0]
            for segment in (first, *(with_function(first, f) for f in functions)):
                if segment is not None:
                    dst = f"{segment}/128"
                    routes.setdefault(dst, Route(dst, _METRIC, (Hop(nics[path.plane].ifindex, gateway),)))
    return list(routes.values())


def peer_routes(
    plan: Plan, peer: Peer, nics: Mapping[int, Link], usable: Mapping[int, bool], mrc0: Link | None
) -> list[Route]:
    """Returns the routes to a peer's prefixes. `mrc0` is None while the peer's traffic must not be sprayed."""
    overlay = plan.config.overlay
    routes = []
    for prefix in peer.host.prefixes:
        source = own_address(plan, prefix.version)
        sprayed = Route(
            str(prefix),
            overlay.metric,
            (Hop(mrc0.ifindex, BEHIND_MRC0 if len(plan.peers) > MAX_NEIGHBOURS else None),) if mrc0 else (),
            mtu=plan.inner_mtu,
            reordering=overlay.reordering,
            source=source,
            rto_min_ms=overlay.rto_min_ms,
        )
        if mrc0 is not None:
            routes.append(sprayed)
        hops = tuple(_fallback_hops(plan, peer, nics, usable, prefix.version))
        if hops:
            mtu = plan.inner_mtu + _seg6_headroom(hops)
            routes.append(replace(sprayed, metric=overlay.fallback_metric, hops=hops, mtu=mtu))
    return routes


def _seg6_headroom(hops: tuple[Hop, ...]) -> int:
    """Returns the bytes that the kernel subtracts from a seg6 route's MTU: IPv6 and a full SRH, even for encap.red.

    The route's MTU is increased by them, so that a flow keeps its segment size when it changes to the fallback route.
    """
    return 40 + max(8 + 16 * len(h.segments) for h in hops)


def hops_per_peer(plan: Plan) -> int:
    """Returns the most hops of a fallback route: fewer if there are many peers, but at least one per plane."""
    return min(MAX_HOPS, max(plan.config.cluster.planes, ALL_HOPS // max(1, len(plan.peers))))


def _fallback_hops(
    plan: Plan, peer: Peer, nics: Mapping[int, Link], usable: Mapping[int, bool], version: int
) -> list[Hop]:
    c = plan.config.cluster
    if c.encapsulation == "ecmp":
        return []  # fallback routes need SRv6
    gateway = str(plan.config.interfaces.gateway) if version == 6 else None
    taken = Counter[int]()  # per plane
    ordered: list[tuple[int, int, int]] = []  # (rank in its plane, plane, EV): distributes hops equally over planes
    for ev in sorted(ev for ev, is_usable in usable.items() if is_usable):
        plane = ev // c.evs_per_plane
        if plane in nics:
            ordered.append((taken[plane], plane, ev))
            taken[plane] += 1
    most, hops = hops_per_peer(plan), list[tuple[int, int, Hop]]()
    order = [ev for _, _, ev in sorted(ordered)]
    for e in peer.some_evs(order if peer.explicit else order[:most]):
        last = with_function(e.segments[-1], UDT4 if version == 4 else UDT6)
        if last is not None and len(hops) < most:  # a carrier of an explicit path may be full
            segments = (*(str(s) for s in e.segments[:-1]), str(last))
            hops.append((e.plane, e.slot, Hop(nics[e.plane].ifindex, gateway, segments)))
    return [hop for _, _, hop in sorted(hops, key=lambda h: h[:2])]


def own_address(plan: Plan, version: int) -> str | None:
    """Returns this host's own overlay address of an IP version: its first /32 or /128 prefix."""
    for address in own_addresses(plan):
        if (":" in address) == (version == 6):
            return address
    return None


def own_addresses(plan: Plan) -> list[str]:
    """Returns the overlay addresses of the host itself; wider prefixes belong to networks behind it."""
    return [str(p.network_address) for p in plan.host.prefixes if p.prefixlen == p.max_prefixlen]
