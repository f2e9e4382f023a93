# SPDX-License-Identifier: BSD-2-Clause
"""Renders the fabric's data as lines for `ip -batch` and `tc -batch`, and as sysctls. Pure.

Every line uses `replace` or `set`, so that configuring a node twice, or again after one of its
ports was down, gives the same state.
"""

from collections.abc import Collection, Iterator

from labkit.cluster.fabric import Fabric, Node, Parameters, Port

# The device of a switch's SIDs. The kernel wants a device for a seg6local route, and drops the route when
# that device goes down, so it must not be a link. (lo is refused, and this kernel has no dummy.)
SID_DEVICE = "srv6"

# tbf: the bucket must hold a GSO super-packet with headers; a few milliseconds of burst
# keep the rate exact, and a queue of about 20 ms is that of a switch port.
_MIN_BURST = 70_000
_BURST_S = 0.002
_QUEUE_S = 0.020

# Set on the hosts, since the machine's own default may be another (here BBR).
CONGESTION_CONTROL = "cubic"


def sysctls(node: Node, p: Parameters) -> Iterator[tuple[str, str]]:
    """Yields (path below /proc/sys/net, value), to be written before a node gets its interfaces."""
    for scope in ("all", "default"):
        yield f"ipv6/conf/{scope}/addr_gen_mode", "1"  # the lab sets the link-local addresses
        yield f"ipv4/conf/{scope}/rp_filter", "0"
        for key in ("accept_dad", "dad_transmits", "accept_ra", "accept_redirects"):
            yield f"ipv6/conf/{scope}/{key}", "0"
        if node.kind != "host":
            yield f"ipv6/conf/{scope}/forwarding", "1"
            if p.encapsulation == "ecmp":  # a hashing switch skips a dead port; static uSID routes stay
                yield f"ipv6/conf/{scope}/ignore_routes_with_linkdown", "1"
    if node.kind == "host":
        yield "ipv4/tcp_congestion_control", CONGESTION_CONTROL
        yield "ipv4/tcp_rmem", "4096 131072 33554432"
        yield "ipv4/tcp_wmem", "4096 65536 33554432"
    else:
        yield "ipv4/ip_early_demux", "0"  # no socket lookup for forwarded packets, IPv4 and IPv6
        yield "ipv6/fib_multipath_hash_policy", "3"  # the fields that follow:
        yield "ipv6/fib_multipath_hash_fields", str(0x3F)  # addresses, protocol, flow label, both ports


def create_links(fabric: Fabric) -> list[str]:
    """Returns `ip -batch` lines for the root namespace: every interface, created in its own namespace."""
    mtu = fabric.parameters.mtu
    lines = []
    for node in fabric.nodes.values():
        if node.sids:
            lines.append(f"link add name {SID_DEVICE} netns {fabric.namespace(node.name)} mtu {mtu} type ifb")
    for link in fabric.links:
        upper, lower = fabric.port(link.upper), fabric.port(link.lower)
        lines.append(
            f"link add name {upper.name} netns {fabric.namespace(link.upper.node)} mtu {mtu} address {upper.mac} "
            f"type veth peer name {lower.name} netns {fabric.namespace(link.lower.node)} mtu {mtu} address {lower.mac}"
        )
    return lines


def configure(node: Node, encapsulation: str, down: Collection[str] = ()) -> list[str]:
    """Returns `ip -6 -batch` lines for a node: addresses, neighbours, routes; nothing for the ports in `down`."""
    lines = ["link set dev lo up"]
    if node.own:
        lines.append(f"address replace {node.own}/128 dev lo nodad")
    ports = [p for p in node.ports if p.name not in down]
    for port in ports:
        lines += _port(port)
    if node.sids:
        lines.append(f"link set dev {SID_DEVICE} up")
        action = "End" if encapsulation == "srh" else "End flavors next-csid lblen 32 nflen 16"
        lines += [f"route replace {sid} encap seg6local action {action} dev {SID_DEVICE}" for sid in node.sids]
    uplinks = [p for p in ports if p.uplink]
    if uplinks:
        nexthops = " ".join(f"nexthop via {p.gateway} dev {p.name}" for p in uplinks)
        lines += [f"route replace {network} {nexthops}" for network in node.multipath]
    return lines


def _port(port: Port) -> Iterator[str]:
    yield f"link set dev {port.name} up"
    # nodad: even with accept_dad 0 an address stays tentative until a kernel worker has run, and a route
    # with that source is refused until then.
    yield f"address replace {port.address}/64 dev {port.name} nodad"
    if port.gateway_mac:
        yield f"neighbour replace {port.gateway} lladdr {port.gateway_mac} dev {port.name} nud permanent"
    if port.own:
        yield f"address replace {port.own}/128 dev {port.name} nodad"
    source = f" src {port.own}" if port.own else ""
    for network in port.routes:
        yield f"route replace {network} via {port.gateway} dev {port.name}{source}"


def shape(port: str, rate_bits_per_s: int | None) -> str:
    """Returns a `tc -batch` line: a port's egress limited to a rate, or unlimited."""
    if rate_bits_per_s is None:
        return f"qdisc replace dev {port} root noqueue"
    burst = max(_MIN_BURST, int(rate_bits_per_s / 8 * _BURST_S))
    limit = burst + max(_MIN_BURST, int(rate_bits_per_s / 8 * _QUEUE_S))
    return f"qdisc replace dev {port} root tbf rate {rate_bits_per_s}bit burst {burst} limit {limit}"
