# SPDX-License-Identifier: BSD-2-Clause
"""Writes the configuration of a switch with Cumulus Linux, as NVUE commands. Pure.

Syntax: NVIDIA's "NVUE Command Reference", segment routing (5.14, Spectrum-4), static routing and ACLs.
"""

from mrcd.planner.switches import reading
from mrcd.planner.switches.model import Port, Switch
from mrcd.planner.switches.reading import Reading

PORT_NAMES = "swp{1}"
_SRV6, _STATIC = "router segment-routing srv6", "router segment-routing static srv6-sid"


def text(switch: Switch) -> str:
    """Returns the configuration as a shell script of nv commands."""
    lines = [f"system hostname {switch.name}", *(f"interface lo ip address {own}/128" for own in switch.own)]
    lines += [f"{_SRV6} state enabled"] if switch.sids else []
    for name, sid in switch.locators:
        locator = f"{_SRV6} locator {name}"
        lines += [
            f"{locator} prefix {sid}",
            f"{locator} block-length 32",
            f"{locator} node-length 16",
            f"{locator} func-length 0",
            f"{_STATIC} {sid} locator-name {name}",
            f"{_STATIC} {sid} behavior uN",
        ]
    for port in switch.ports:
        interface = f"interface {port.name}"
        lines += [f"{interface} link mtu {switch.mtu}", f"{interface} ip address {port.address}/64"]
        lines += [line for network in port.networks for line in _route(network, [port])]
        if port.source:
            lines += _filter(port.name, port.source)
    lines += [line for route in switch.shared_routes for line in _route(*route)]
    title = f"# {switch.name}, for Cumulus Linux 5.14 or newer on Spectrum-4."
    return "\n".join([title, *(f"nv set {line}" for line in lines), "nv config apply"]) + "\n"


def _route(network: str, ports: list[Port]) -> list[str]:
    paths = [f"{port.next_hop} interface {port.name}" for port in ports] or ["blackhole type blackhole"]
    return [f"vrf default router static {network} via {path}" for path in paths]


def _filter(interface: str, source: str) -> list[str]:
    acl = f"acl MRC-{interface}"
    return [
        f"{acl} type ipv6",
        f"{acl} rule 10 match ip source-ip {source}/128",
        f"{acl} rule 10 action permit",
        f"{acl} rule 20 match ip source-ip fe80::/10",
        f"{acl} rule 20 action permit",
        f"{acl} rule 30 match ip source-ip ANY",
        f"{acl} rule 30 action deny",
        f"interface {interface} {acl} inbound",
    ]


def read(text: str) -> Reading:
    """Reads a configuration back. Raises UsageError for a line that is not understood."""
    found = Reading()
    locators: dict[str, str] = {}
    sources: dict[tuple[str, str], str] = {}  # by ACL and number of the rule
    rules: dict[str, list[tuple[int, str, str]]] = {}  # ACL → number, action, source

    def line(words: list[str]) -> None:
        match words[2:]:
            case ["system", "hostname", _] | ["acl", _, "type", "ipv6"] | ["apply"]:
                pass
            case ["router", "segment-routing", "srv6", "state", "enabled"]:
                pass
            case ["router", "segment-routing", "srv6", "locator", name, "prefix", prefix]:
                locators[name] = prefix
            case ["router", "segment-routing", "srv6", "locator", _, key, length]:
                if {"block-length": "32", "node-length": "16", "func-length": "0"}[key] != length:
                    raise ValueError(words)
            case ["router", "segment-routing", "static", "srv6-sid", sid, "locator-name", name]:
                if locators[name] != sid:
                    raise ValueError(words)
            case ["router", "segment-routing", "static", "srv6-sid", sid, "behavior", behavior]:
                found.sids[sid] = behavior
            case ["interface", interface, "link", "mtu", mtu]:
                found.mtus[interface] = int(mtu)
            case ["interface", interface, "ip", "address", address]:
                found.address(interface, address)
            case ["interface", interface, "acl", acl, "inbound"]:
                found.filter(interface, [rule[1:] for rule in sorted(rules[acl])])
            case ["vrf", "default", "router", "static", prefix, "via", next_hop, "interface", interface]:
                found.route(prefix, next_hop, interface)
            case ["vrf", "default", "router", "static", prefix, "via", "blackhole", "type", "blackhole"]:
                found.routes[prefix] = []
            case ["acl", acl, "rule", number, "match", "ip", "source-ip", source]:
                sources[acl, number] = source
            case ["acl", acl, "rule", number, "action", action]:
                rules.setdefault(acl, []).append((int(number), action, sources[acl, number]))
            case _:
                raise ValueError(words)

    reading.lines(text, line, "#")
    return found
