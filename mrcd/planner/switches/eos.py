# SPDX-License-Identifier: BSD-2-Clause
"""Writes the configuration of a switch with Arista EOS. Pure.

The lines of `router srv6` follow second-hand sources, and so the text says: Arista's own page needs an account. The
others are EOS' common syntax.
"""

from mrcd.planner.switches import reading
from mrcd.planner.switches.model import Switch
from mrcd.planner.switches.reading import Reading

PORT_NAMES = "Ethernet{1}"
DOMAIN = "MRC"


def text(switch: Switch) -> str:
    """Returns the configuration."""
    lines = [
        f"! {switch.name}, for EOS 4.34.2F or newer.",
        "! The lines of `router srv6` follow second-hand sources: compare them with Arista's manual before use.",
        f"hostname {switch.name}",
        "ipv6 unicast-routing",
        "interface Loopback0",
        *(f"   ipv6 address {own}/128" for own in switch.own),
    ]
    for port in switch.ports:
        if port.source:
            lines += [
                f"ipv6 access-list MRC-{port.name}",
                f"   10 permit ipv6 {port.source}/128 any",
                "   20 permit ipv6 fe80::/10 any",
                "   30 deny ipv6 any any",
            ]
        lines += [
            f"interface {port.name}",
            "   no switchport",
            f"   mtu {switch.mtu}",
            "   ipv6 enable",
            f"   ipv6 address {port.address}/64 link-local",
        ]
        if port.source:
            lines.append(f"   ipv6 access-group MRC-{port.name} in")
    if switch.sids:
        lines += [
            "router srv6",
            "   vrf default",
            f"      micro-segment domain {DOMAIN}",
            f"         block {switch.block}/32",
        ]
    for (name, _), usid in zip(switch.locators, switch.usids, strict=True):
        lines += [
            f"      locator {name}",
            f"         prefix micro-segment domain {DOMAIN} end usid 0x{usid:04x}",
        ]
    lines.append("!")
    for network, ports in switch.routes:
        lines += [f"ipv6 route {network} {port.name} {port.next_hop}" for port in ports]
        lines += [f"ipv6 route {network} Null0"] * (not ports)
    return "\n".join([*lines, "end"]) + "\n"


def read(text: str) -> Reading:
    """Reads a configuration back. Raises UsageError for a line that is not understood."""
    found = Reading()
    rules: dict[str, list[tuple[str, str]]] = {}  # access list → action, source
    blocks: dict[str, str] = {}  # domain → block
    inside = ""

    def line(words: list[str]) -> None:
        nonlocal inside
        match words:
            case ["hostname", _] | ["ipv6", "unicast-routing"] | ["no", "switchport"] | ["ipv6", "enable"] | ["end"]:
                pass
            case ["router", "srv6"] | ["vrf", "default"] | ["locator", _]:
                pass
            case ["interface", name]:
                inside = "lo" if name == "Loopback0" else name
            case ["ipv6", "access-list", name]:
                inside, rules[name] = name, []
            case ["micro-segment", "domain", name]:
                inside = name
            case ["block", block]:
                blocks[inside] = block.removesuffix("::/32")
            case ["prefix", "micro-segment", "domain", domain, "end", "usid", usid]:
                block = blocks[domain] if ":" in blocks[domain] else f"{blocks[domain]}:0"
                found.sids[f"{block}:{int(usid, 16):x}::/48"] = "uN"
            case ["mtu", mtu]:
                found.mtus[inside] = int(mtu)
            case ["ipv6", "address", address, *_]:
                found.address(inside, address)
            case [_, "permit" | "deny" as action, "ipv6", source, "any"]:
                rules[inside].append((action, source))
            case ["ipv6", "access-group", name, "in"]:
                found.filter(inside, rules[name])
            case ["ipv6", "route", prefix, "Null0"]:
                found.routes[prefix] = []
            case ["ipv6", "route", prefix, interface, next_hop]:
                found.route(prefix, next_hop, interface)
            case _:
                raise ValueError(words)

    reading.lines(text, line, "!")
    return found
