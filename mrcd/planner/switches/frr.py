# SPDX-License-Identifier: BSD-2-Clause
"""Writes the configuration of a switch with FRR on Linux, as its configuration file. Pure.

Syntax: FRR's user guide, "SRv6" of static and of zebra (static-sids: FRR 10.3). FRR has neither MTUs nor packet
filters, so the file names the commands of iproute2 for them in comments.
"""

from mrcd.planner.switches import iproute2, reading
from mrcd.planner.switches.model import Switch
from mrcd.planner.switches.reading import Reading

PORT_NAMES = "swp{1}"
_COMMAND = "! run: "
_SID_DEVICE = "sr0"


def text(switch: Switch) -> str:
    """Returns the configuration as frr.conf."""
    commands = [f"sysctl -qw {key}={value}" for key, value in iproute2.sysctls(switch)]
    if switch.sids:
        commands += [iproute2.create_device(_SID_DEVICE, switch.mtu), f"ip link set dev {_SID_DEVICE} up"]
    commands += [*iproute2.mtus(switch), *(f"ip -6 {rule}" for rule in iproute2.source_filters(switch))]
    lines = [
        f"! {switch.name}, for FRR 10.3 or newer, but not 10.5.0 (it leaves static SIDs out).",
        "! FRR sets no MTU and filters no packets: run the following commands on the switch, too.",
        *(f"{_COMMAND}{command}" for command in commands),
        f"hostname {switch.name}",
        "interface lo",
        *(f" ipv6 address {own}/128" for own in switch.own),
        "exit",
    ]
    for port in switch.ports:
        lines += [f"interface {port.name}", f" ipv6 address {port.address}/64", "exit"]
    if switch.sids:
        lines += ["segment-routing", " srv6", "  locators"]
        for name, sid in switch.locators:
            lines += [f"   locator {name}", f"    prefix {sid} block-len 32 node-len 16 func-bits 16"]
            lines += ["    behavior usid", "   exit"]
        lines += [
            "  exit",
            "  static-sids",
            *(f"   sid {sid} locator {name} behavior uN" for name, sid in switch.locators),
            "  exit",
            " exit",
            "exit",
        ]
    for network, ports in switch.routes:
        lines += [f"ipv6 route {network} {port.next_hop} {port.name}" for port in ports]
        lines += [f"ipv6 route {network} reject"] * (not ports)
    return "\n".join(lines) + "\n"


def read(text: str) -> Reading:
    """Reads a configuration back. Raises UsageError for a line that is not understood."""
    found = Reading()
    inside = ""
    locators: dict[str, str] = {}

    def line(words: list[str]) -> None:
        nonlocal inside
        match words:
            case ["!", "run:", *command]:
                if command != ["ip", "link", "set", "dev", _SID_DEVICE, "up"]:
                    iproute2.read_line(found, command)
            case ["!", *_] | ["hostname", _] | ["exit"] | ["segment-routing"] | ["srv6"] | ["locators"]:
                pass
            case ["static-sids"] | ["behavior", "usid"]:
                pass
            case ["interface" | "locator", name]:
                inside = name
            case ["ipv6", "address", address]:
                found.address(inside, address)
            case ["prefix", prefix, "block-len", "32", "node-len", "16", "func-bits", "16"]:
                locators[inside] = prefix
            case ["sid", sid, "locator", locator, "behavior", behavior] if locators[locator] == sid:
                found.sids[sid] = behavior
            case ["ipv6", "route", prefix, "reject"]:
                found.routes[prefix] = []
            case ["ipv6", "route", prefix, next_hop, interface]:
                found.route(prefix, next_hop, interface)
            case _:
                raise ValueError(words)

    reading.lines(text, line, None)
    return found
