# SPDX-License-Identifier: BSD-2-Clause
"""Renders the fabric's data as lines for `ip -batch` and `tc -batch`, and as sysctls. Pure.

Every line uses `replace` or `set`, so that configuring a node twice, or again after one of its
ports was down, gives the same state.
"""

from collections.abc import Collection, Iterator

from labkit.cluster.fabric import Fabric, Node, Port
from mrcd.planner.switches import iproute2

# tbf: the bucket must hold a GSO super-packet with headers; a few milliseconds of burst
# keep the rate exact, and a queue of about 20 ms is that of a switch port.
_MIN_BURST = 70_000
_BURST_S = 0.002
_QUEUE_S = 0.020

# Set on the hosts, since the machine's own default may be another (here BBR).
CONGESTION_CONTROL = "cubic"


def sysctls(node: Node) -> Iterator[tuple[str, str]]:
    """Yields (path below /proc/sys/net, value), to be written before a node gets its interfaces."""
    for scope in ("all", "default"):
        yield f"ipv6/conf/{scope}/addr_gen_mode", "1"  # the lab sets the link-local addresses
        yield f"ipv4/conf/{scope}/rp_filter", "0"
        for key in ("accept_dad", "dad_transmits", "accept_ra", "accept_redirects"):
            yield f"ipv6/conf/{scope}/{key}", "0"
    if node.kind == "host":
        yield "ipv4/tcp_congestion_control", CONGESTION_CONTROL
        yield "ipv4/tcp_rmem", "4096 131072 33554432"
        yield "ipv4/tcp_wmem", "4096 65536 33554432"
    else:
        yield "ipv4/ip_early_demux", "0"  # no socket lookup for forwarded packets, IPv4 and IPv6
    if node.switch:
        for key, value in iproute2.sysctls(node.switch):
            path = key.removeprefix("net.").replace(".", "/")
            yield path, value
            if "/all/" in path:  # interfaces that are made later
                yield path.replace("/all/", "/default/"), value


def create_links(fabric: Fabric) -> list[str]:
    """Returns `ip -batch` lines for the root namespace: every interface, created in its own namespace."""
    mtu = fabric.parameters.mtu
    lines = []
    for node in fabric.nodes.values():
        if node.switch and node.switch.sids:  # ifb, because this kernel may have no dummy
            device = f"link add name {iproute2.SID_DEVICE} netns {fabric.namespace(node.name)}"
            lines.append(f"{device} mtu {mtu} type ifb")
    for link in fabric.links:
        upper, lower = fabric.port(link.upper), fabric.port(link.lower)
        lines.append(
            f"link add name {upper.name} netns {fabric.namespace(link.upper.node)} mtu {mtu} address {upper.mac} "
            f"type veth peer name {lower.name} netns {fabric.namespace(link.lower.node)} mtu {mtu} address {lower.mac}"
        )
    return lines


def configure(node: Node, down: Collection[str] = ()) -> list[str]:
    """Returns `ip -6 -batch` lines for a node: addresses, neighbours, routes; nothing for the ports in `down`."""
    ports = [p for p in node.ports if p.name not in down]
    if node.switch:
        lines = iproute2.commands(node.switch.without(down))
        return lines + [line for port in ports for line in _neighbour(port)]
    return ["link set dev lo up", *(line for port in ports for line in _port(port))]


def _neighbour(port: Port) -> Iterator[str]:
    if port.gateway_mac:
        yield f"neighbour replace {port.gateway} lladdr {port.gateway_mac} dev {port.name} nud permanent"


def _port(port: Port) -> Iterator[str]:
    yield f"link set dev {port.name} up"
    # nodad: even with accept_dad 0 an address stays tentative until a kernel worker has run, and a route
    # with that source is refused until then.
    yield f"address replace {port.address}/64 dev {port.name} nodad"
    yield from _neighbour(port)
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
