# SPDX-License-Identifier: BSD-2-Clause
"""Writes the configuration of a SONiC switch, as tables for its configuration database. Pure.

Tables: sonic-srv6, sonic-static-route, sonic-acl and sonic-interface of SONiC's YANG models. `config load FILE` merges
them into those of the switch. JSON has no comments: docs/fabric.md says what the switch must have.
"""

import json
from typing import Any

from mrcd.planner.switches.model import Switch
from mrcd.planner.switches.reading import Reading, unknown

PORT_NAMES = "Ethernet{0+4}"
LOCATOR = "MRC"
_FILTER, _LINK_LOCAL = "MRC_SOURCES", "fe80::/10"
_LOOPBACK = "Loopback0"
Tables = dict[str, dict[str, dict[str, Any]]]


def text(switch: Switch) -> str:
    """Returns the configuration as JSON."""
    tables: Tables = {
        "LOOPBACK_INTERFACE": {_LOOPBACK: {}, f"{_LOOPBACK}|{switch.own}/128": {}},
        "PORT": {port.name: {"mtu": str(switch.mtu), "admin_status": "up"} for port in switch.ports},
        "INTERFACE": {},
        "STATIC_ROUTE": {},
    }
    for port in switch.ports:
        tables["INTERFACE"] |= {port.name: {}, f"{port.name}|{port.address}/64": {}}
        for network in port.networks:
            tables["STATIC_ROUTE"][f"default|{network}"] = _route([(port.next_hop, port.name)])
    for network in switch.over_uplinks:
        tables["STATIC_ROUTE"][f"default|{network}"] = _route([(p.next_hop, p.name) for p in switch.uplinks])
    for network in switch.unreachable:
        tables["STATIC_ROUTE"][f"default|{network}"] = {"blackhole": "true", "advertise": "false"}
    if switch.sid:
        tables["SRV6_MY_LOCATORS"] = {LOCATOR: {"prefix": switch.sid.partition("/")[0]}}
        tables["SRV6_MY_SIDS"] = {f"{LOCATOR}|{switch.sid}": {"action": "uN", "decap_dscp_mode": "pipe"}}
    return json.dumps(tables | _filters(switch), indent=1) + "\n"


def _route(paths: list[tuple[str, str]]) -> dict[str, str]:
    next_hops, interfaces = zip(*paths, strict=True)
    return {"nexthop": ",".join(next_hops), "ifname": ",".join(interfaces), "advertise": "false"}


def _filters(switch: Switch) -> Tables:
    """Returns one ACL for all hosts' ports: the type has a match on the port, which the built-in ones lack."""
    filtered = [(port.name, port.source) for port in switch.ports if port.source]
    if not filtered:
        return {}
    rules: dict[str, dict[str, Any]] = {}
    for name, source in filtered:
        match = {"PRIORITY": "900", "PACKET_ACTION": "FORWARD", "IN_PORTS": name}
        rules[f"{_FILTER}|{name}"] = match | {"SRC_IPV6": f"{source}/128"}
    for name, priority, source, action in (
        ("LINK_LOCAL", "800", _LINK_LOCAL, "FORWARD"),
        ("OTHERS", "100", "::/0", "DROP"),
    ):
        rules[f"{_FILTER}|{name}"] = {"PRIORITY": priority, "PACKET_ACTION": action, "SRC_IPV6": source}
    matches = {"MATCHES": ["SRC_IPV6", "IN_PORTS"], "ACTIONS": ["PACKET_ACTION", "COUNTER"], "BIND_POINTS": ["PORT"]}
    table = {"type": _FILTER, "stage": "ingress", "policy_desc": "hosts send from their own plane address only"}
    ports: dict[str, Any] = {"ports": [name for name, _ in filtered]}
    return {"ACL_TABLE_TYPE": {_FILTER: matches}, "ACL_TABLE": {_FILTER: table | ports}, "ACL_RULE": rules}


def read(text: str) -> Reading:
    """Reads a configuration back. Raises UsageError for what is not understood."""
    found = Reading()
    try:
        tables: Tables = json.loads(text)
        if not isinstance(tables, dict):
            raise TypeError("no object of tables")
        for name in tables:
            _READERS[name](found, tables)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise unknown(f"{type(e).__name__} {e}") from None
    return found


def _read_ports(found: Reading, tables: Tables) -> None:
    found.mtus = {name: int(port["mtu"]) for name, port in tables["PORT"].items()}


def _read_addresses(found: Reading, tables: Tables) -> None:
    for key in tables["INTERFACE"]:
        interface, _, address = key.partition("|")
        if address:
            found.address(interface, address)


def _read_loopback(found: Reading, tables: Tables) -> None:
    found.address("lo", next(key.partition("|")[2] for key in tables["LOOPBACK_INTERFACE"] if "|" in key))


def _read_routes(found: Reading, tables: Tables) -> None:
    for key, route in tables["STATIC_ROUTE"].items():
        vrf, _, prefix = key.partition("|")
        if vrf != "default":
            raise ValueError(f"VRF {vrf}")
        if route.get("blackhole") == "true":
            found.routes[prefix] = []
        else:
            paths = zip(route["nexthop"].split(","), route["ifname"].split(","), strict=True)
            found.routes[prefix] = list(paths)


def _read_sids(found: Reading, tables: Tables) -> None:
    for key, sid in tables["SRV6_MY_SIDS"].items():
        locator, _, prefix = key.partition("|")
        if not prefix.startswith(tables["SRV6_MY_LOCATORS"][locator]["prefix"]):
            raise ValueError(f"SID {prefix} is not of locator {locator}")
        found.sids[prefix] = sid["action"]


def _read_rules(found: Reading, tables: Tables) -> None:
    """Reads the rules in the order of their priority: a rule for all sources ends the list."""
    ports = tables["ACL_TABLE"][_FILTER]["ports"]
    for rule in sorted(tables["ACL_RULE"].values(), key=lambda rule: -int(rule["PRIORITY"])):
        mine = rule["IN_PORTS"].split(",") if "IN_PORTS" in rule else ports
        if rule["PACKET_ACTION"] == "FORWARD":
            for port in mine:
                found.permit(port, rule["SRC_IPV6"])
        elif rule["SRC_IPV6"] == "::/0":
            found.filtered.update(mine)
        else:
            raise ValueError(f"rule {rule}")


def _nothing(found: Reading, tables: Tables) -> None:
    """Reads a table that another reader reads with its own."""


_READERS = {
    "PORT": _read_ports,
    "INTERFACE": _read_addresses,
    "LOOPBACK_INTERFACE": _read_loopback,
    "STATIC_ROUTE": _read_routes,
    "SRV6_MY_LOCATORS": _nothing,
    "SRV6_MY_SIDS": _read_sids,
    "ACL_TABLE_TYPE": _nothing,
    "ACL_TABLE": _nothing,
    "ACL_RULE": _read_rules,
}
