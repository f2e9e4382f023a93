# SPDX-License-Identifier: BSD-2-Clause
"""Writes the configuration of a Linux switch as commands of iproute2. Pure.

The lab's switches are configured by these commands. They may be run again: each replaces what was there.
"""

from collections.abc import Iterator

from mrcd.planner.switches import reading
from mrcd.planner.switches.model import Port, Switch
from mrcd.planner.switches.reading import Reading

PORT_NAMES = "{neighbour}"
SID_DEVICE = "srv6"
"""The device of the SIDs: the kernel drops a seg6local route when its device goes down, so it must not be a link."""

RULES = 109
"""The protocol of the rules of source filters, by which they are found again."""

_SYSCTLS = {
    "net.ipv6.conf.all.forwarding": "1",
    "net.ipv6.fib_multipath_hash_policy": "3",  # by the fields that follow:
    "net.ipv6.fib_multipath_hash_fields": str(0x3F),  # addresses, protocol, flow label, both ports
}


def text(switch: Switch) -> str:
    """Returns the configuration as a shell script."""
    lines = [
        "#!/bin/sh -e",
        f"# {switch.name}, for a Linux switch (kernel 6.1 or newer) without hardware: rules are not offloaded.",
        *(f"sysctl -qw {key}={value}" for key, value in sysctls(switch)),
        *([create_device(SID_DEVICE, switch.mtu)] if switch.sids else []),
        *mtus(switch),
        *(f"ip -6 {line}" for line in commands(switch)),
    ]
    return "\n".join(lines) + "\n"


def create_device(name: str, mtu: int) -> str:
    """Returns a shell command that makes a dummy device if there is none."""
    return f"ip link show dev {name} >/dev/null 2>&1 || ip link add name {name} mtu {mtu} type dummy"


def mtus(switch: Switch) -> list[str]:
    """Returns shell commands that set the MTU of every port."""
    return [f"ip link set dev {port.name} mtu {switch.mtu}" for port in switch.ports]


def sysctls(switch: Switch) -> Iterator[tuple[str, str]]:
    """Yields the sysctls of a switch with their values."""
    yield from _SYSCTLS.items()
    if switch.encapsulation == "ecmp":  # the hash leaves out a dead port; static uSID routes stay
        yield "net.ipv6.conf.all.ignore_routes_with_linkdown", "1"


def commands(switch: Switch) -> list[str]:
    """Returns lines for `ip -6 -batch`. They need the ports, and SID_DEVICE if the switch has a SID."""
    lines = ["link set dev lo up", *(f"address replace {own}/128 dev lo nodad" for own in switch.own)]
    for port in switch.ports:
        lines += _port(port)
    if switch.sids:
        lines.append(f"link set dev {SID_DEVICE} up")
        action = "End flavors next-csid lblen 32 nflen 16" if switch.encapsulation == "usid" else "End"
        lines += [f"route replace {sid} encap seg6local action {action} dev {SID_DEVICE}" for sid in switch.sids]
    if switch.uplinks:
        next_hops = " ".join(f"nexthop via {p.next_hop} dev {p.name}" for p in switch.uplinks)
        lines += [f"route replace {network} {next_hops}" for network in switch.over_uplinks]
    lines += [f"route replace unreachable {network}" for network in switch.unreachable]
    return [*lines, *source_filters(switch)]


def _port(port: Port) -> Iterator[str]:
    yield f"link set dev {port.name} up"
    # nodad: an address stays tentative until a kernel worker has run, and a route with that source is refused.
    yield f"address replace {port.address}/64 dev {port.name} nodad"
    for network in port.networks:
        yield f"route replace {network} via {port.next_hop} dev {port.name}"


def source_filters(switch: Switch) -> Iterator[str]:
    """Yields the rules that drop what hosts send from other addresses than their own.

    A host's own packets without a route are answered by an ICMPv6 error, by which mrcd leaves their EV at once.
    What is for the switch itself, as neighbour discovery, is in the local table, which comes first.
    """
    filtered = [port for port in switch.ports if port.source]
    if not filtered:
        return
    yield f"rule flush protocol {RULES}"
    for port in filtered:
        yield f"rule add pref 100 protocol {RULES} iif {port.name} from {port.source} lookup main"
    for port in filtered:
        yield f"rule add pref 150 protocol {RULES} iif {port.name} from {port.source} unreachable"
    for port in filtered:
        yield f"rule add pref 200 protocol {RULES} iif {port.name} blackhole"


def read(text: str) -> Reading:
    """Reads a configuration back. Raises UsageError for a line that is not understood."""
    found = Reading()
    reading.lines(text, lambda words: read_line(found, words), "#")
    return found


def read_line(found: Reading, words: list[str]) -> None:
    """Reads one command of the shell. Raises ValueError or IndexError if it is not understood."""
    match words:
        case ["sysctl", *_] | ["ip", "link", "show", *_] | ["ip", "-6", "link", "set", "dev", _, "up"]:
            pass
        case ["ip", "link", "set", "dev", interface, "mtu", mtu]:
            found.mtus[interface] = int(mtu)
        case ["ip", "-6", "address", "replace", address, "dev", interface, "nodad"]:
            found.address(interface, address)
        case ["ip", "-6", "route", "replace", "unreachable", prefix]:
            found.routes[prefix] = []
        case ["ip", "-6", "route", "replace", prefix, "via", next_hop, "dev", interface]:
            found.routes[prefix] = [(next_hop, interface)]
        case ["ip", "-6", "route", "replace", prefix, "encap", "seg6local", "action", "End", *flavors]:
            found.sids[prefix] = {"flavors": "uN", "dev": "End"}[flavors[0]]
        case ["ip", "-6", "route", "replace", prefix, "nexthop", *rest]:
            found.routes[prefix] = [(rest[i + 1], rest[i + 3]) for i in range(0, len(rest), 5)]
        case ["ip", "-6", "rule", "flush", "protocol", _]:
            pass
        case ["ip", "-6", "rule", "add", "pref", _, "protocol", _, "iif", interface, "from", source, "lookup", "main"]:
            found.permit(interface, f"{source}/128")
        case ["ip", "-6", "rule", "add", "pref", _, "protocol", _, "iif", _, "from", _, "unreachable"]:
            pass
        case ["ip", "-6", "rule", "add", "pref", _, "protocol", _, "iif", interface, "blackhole"]:
            found.filtered.add(interface)
        case _:
            raise ValueError(words)
