"""The routes that a host wants, from its plan and its links. Pure; netlink.py writes them.

overlay    peer's prefix → mrc0                          while the peer's data plane is attached
    fallback   peer's prefix → seg6 encap.red, a hop per usable EV (as many as hops_per_peer), at a worse metric, always
local SIDs where the peers' fallback traffic arrives: uDT4 and uDT6 behind the host's uSID
fabric     own T0's uSID, and the plane's underlay, via the plane's first hop
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv6Address

from mrcd.fabric.topology import UDT4, UDT6, Peer, Plan, carrier, host_usid, plane_network, t0_usid, usid_prefix
from mrcd.net.messages import Hop, Link, Route

MAX_HOPS = 32  # with 64 hops in a route iproute2's dumps come out empty, those of other programs' routes too
ALL_HOPS = 16_384  # of the routes to all peers: each costs memory in the kernel, and a start its time
# Each destination behind mrc0 is a neighbour, and above 1,024 (gc_thresh3) the kernel collects them all the time: so
# many peers are one, by a gateway that nobody has; mrc0 asks for nobody. Fewer have none: the kernel takes no peer that
# has one as the gateway of others' IPv6 routes.
NEIGHBOURS = 512
BEHIND_MRC0 = "fe80::6d72:6330"  # "mrc0"
_METRIC = 1024  # of SIDs and fabric routes: the kernel's own default for IPv6


def with_function(segment: IPv6Address, function: int) -> IPv6Address | None:
    """Append a uSID to a carrier; None if it is full (block of 32 bits and six uSIDs)."""
    value = int(segment)
    for shift in range(80, -1, -16):
        if not (value & ((1 << (shift + 16)) - 1)):
            return IPv6Address(value | function << shift)
    return None


def fabric_routes(plan: Plan, nics: Mapping[int, Link]) -> list[Route]:
    """Routes that do not depend on peers' health. `nics`: plane → NIC, those present."""
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
            # A fallback route's only segment ends in a function.
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
    """The routes to one peer's prefixes. `mrc0` is None while its traffic must not be sprayed."""
    overlay = plan.config.overlay
    routes = []
    for prefix in peer.host.prefixes:
        source = own_address(plan, prefix.version)
        sprayed = Route(
            str(prefix),
            overlay.metric,
            (Hop(mrc0.ifindex, BEHIND_MRC0 if len(plan.peers) > NEIGHBOURS else None),) if mrc0 else (),
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
    """What the kernel takes off a seg6 route's MTU: IPv6 and a full SRH, even where encap.red needs none.
    Added before, so that a flow keeps its segment size when it changes over."""
    return 40 + max(8 + 16 * len(h.segments) for h in hops)


def hops_per_peer(plan: Plan) -> int:
    """Most hops of a fallback route: fewer where there are many peers, but one for each plane."""
    return min(MAX_HOPS, max(plan.config.cluster.planes, ALL_HOPS // max(1, len(plan.peers))))


def _fallback_hops(
    plan: Plan, peer: Peer, nics: Mapping[int, Link], usable: Mapping[int, bool], version: int
) -> list[Hop]:
    c = plan.config.cluster
    if c.encapsulation == "ecmp":
        return []  # a fabric without SRv6 has no segment routing to fall back to
    gateway = str(plan.config.interfaces.gateway) if version == 6 else None
    taken = Counter[int]()  # per plane
    turns: list[tuple[int, int, int]] = []  # equally over the planes
    for ev in sorted(ev for ev, is_usable in usable.items() if is_usable):
        plane = ev // c.evs_per_plane
        if plane in nics:
            turns.append((taken[plane], plane, ev))
            taken[plane] += 1
    most, hops = hops_per_peer(plan), list[tuple[int, int, Hop]]()
    order = [ev for _, _, ev in sorted(turns)]
    for e in peer.some_evs(order if peer.explicit else order[:most]):
        last = with_function(e.segments[-1], UDT4 if version == 4 else UDT6)
        if last is not None and len(hops) < most:  # a listed path may have no room for it
            segments = (*(str(s) for s in e.segments[:-1]), str(last))
            hops.append((e.plane, e.slot, Hop(nics[e.plane].ifindex, gateway, segments)))
    return [hop for _, _, hop in sorted(hops, key=lambda h: h[:2])]


def own_address(plan: Plan, version: int) -> str | None:
    """This host's own overlay address of that IP version: its first /32 or /128 prefix."""
    for address in own_addresses(plan):
        if (":" in address) == (version == 6):
            return address
    return None


def own_addresses(plan: Plan) -> list[str]:
    """The overlay addresses of the host itself; wider prefixes are routed behind it by others."""
    return [str(p.network_address) for p in plan.host.prefixes if p.prefixlen == p.max_prefixlen]
