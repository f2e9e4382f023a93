# SPDX-License-Identifier: BSD-2-Clause
"""Writes the configuration of a SONiC switch, as tables for its configuration database. Pure.

Tables: sonic-srv6, sonic-static-route, sonic-acl and sonic-interface of SONiC's YANG models. `config load FILE` merges
them into those of the switch. JSON has no comments: docs/fabric.md says what the switch must have.
"""

import json
from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrcd.planner.switches.model import Switch
from mrcd.planner.switches.reading import Reading, unknown

PORT_NAMES = "Ethernet{0+4}"
_DEFAULT_MTU = "9100"  # of a port without one
_FILTER, _LINK_LOCAL = "MRC_SOURCES", "fe80::/10"
_LOOPBACK = "Loopback0"
Tables = dict[str, dict[str, dict[str, Any]]]


def text(switch: Switch) -> str:
    """Returns the configuration as JSON."""
    tables: Tables = {
        "LOOPBACK_INTERFACE": {_LOOPBACK: {}, **{f"{_LOOPBACK}|{own}/128": {} for own in switch.own}},
        "PORT": {port.name: {"mtu": str(switch.mtu), "admin_status": "up"} for port in switch.ports},
        "INTERFACE": {},
        "STATIC_ROUTE": {},
    }
    for port in switch.ports:
        tables["INTERFACE"] |= {port.name: {}, f"{port.name}|{port.address}/64": {}}
    for network, ports in switch.routes:
        by = {"nexthop": ",".join(p.next_hop for p in ports), "ifname": ",".join(p.name for p in ports)}
        tables["STATIC_ROUTE"][f"default|{network}"] = (by if ports else {"blackhole": "true"}) | {"advertise": "false"}
    if switch.sids:
        behaviour = {"action": "uN", "decap_dscp_mode": "pipe"}
        tables["SRV6_MY_LOCATORS"] = {name: {"prefix": sid.partition("/")[0]} for name, sid in switch.locators}
        tables["SRV6_MY_SIDS"] = {f"{name}|{sid}": behaviour for name, sid in switch.locators}
    return json.dumps(tables | _filters(switch), indent=1) + "\n"


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
        for name, table in tables.items():
            _read(found, name, table, tables)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise unknown(f"{type(e).__name__} {e}") from None
    return found


def _is_of(sid: str, locator: Mapping[str, str]) -> bool:
    """Returns whether a SID is that of its locator itself. Raises ValueError, KeyError."""
    return IPv6Network(sid).network_address == IPv6Address(locator["prefix"].partition("/")[0])


def read_database(tables: Tables) -> tuple[Reading, dict[str, str]]:
    """Reads a whole CONFIG_DB. Returns what it has in the tables that `text` writes, and prefixes without effect: why.

    Other tables, VRFs, IPv4 routes and ACLs of others are left out. Raises ValueError, KeyError, TypeError,
    AttributeError for what is not understood.
    """
    locators = tables.get("SRV6_MY_LOCATORS", {})
    notes, sids = dict[str, str](), dict[str, dict[str, Any]]()
    for key, sid in tables.get("SRV6_MY_SIDS", {}).items():
        locator, _, prefix = key.partition("|")
        if locator not in locators:
            notes[prefix] = f"CONFIG_DB has the SID, but not its locator {locator}"
        elif not _is_of(prefix, locators[locator]):
            notes[prefix] = f"CONFIG_DB has the SID, but its locator {locator} is {locators[locator]['prefix']}"
        else:
            sids[key] = sid
    routes = {}
    for key, route in tables.get("STATIC_ROUTE", {}).items():
        vrf, _, prefix = key.rpartition("|")
        if vrf in ("", "default") and ":" in prefix:
            hops = max(route.get("nexthop", "").count(","), route.get("ifname", "").count(","))
            routes[f"default|{prefix}"] = {"nexthop": "," * hops, "ifname": "," * hops} | route
    known = {
        "PORT": {name: {"mtu": _DEFAULT_MTU} | port for name, port in tables.get("PORT", {}).items()},
        "INTERFACE": tables.get("INTERFACE", {}),
        "LOOPBACK_INTERFACE": tables.get("LOOPBACK_INTERFACE", {}),
        "STATIC_ROUTE": routes,
        "SRV6_MY_SIDS": sids,
        "ACL_RULE": {k: rule for k, rule in tables.get("ACL_RULE", {}).items() if k.startswith(f"{_FILTER}|")},
    }
    found = Reading()
    for name, table in known.items():
        _read(found, name, table, tables)
    return found, notes


def _read(found: Reading, name: str, table: dict[str, dict[str, Any]], tables: Tables) -> None:
    match name:
        case "PORT":
            found.mtus = {port: int(settings["mtu"]) for port, settings in table.items()}
        case "INTERFACE" | "LOOPBACK_INTERFACE":
            for interface, _, address in (key.partition("|") for key in table):
                if address:
                    found.address(interface if name == "INTERFACE" else "lo", address)
        case "STATIC_ROUTE":
            for key, route in table.items():
                vrf, _, prefix = key.partition("|")
                if vrf != "default":
                    raise ValueError(f"VRF {vrf}")
                if route.get("blackhole") == "true":
                    found.routes[prefix] = []
                else:
                    paths = zip(route["nexthop"].split(","), route["ifname"].split(","), strict=True)
                    found.routes[prefix] = list(paths)
        case "SRV6_MY_SIDS":
            for key, sid in table.items():
                locator, _, prefix = key.partition("|")
                if not _is_of(prefix, tables["SRV6_MY_LOCATORS"][locator]):
                    raise ValueError(f"SID {prefix} is not of locator {locator}")
                found.sids[prefix] = sid["action"]
        case "ACL_RULE":  # in the order of their priority: a rule for all sources ends the list
            for rule in sorted(table.values(), key=lambda rule: -int(rule["PRIORITY"])):
                ports = rule.get("IN_PORTS", ",".join(tables["ACL_TABLE"][_FILTER]["ports"])).split(",")
                action = {"FORWARD": "permit", "DROP": "deny"}[rule["PACKET_ACTION"]]
                for port in ports:
                    found.filter(port, [(action, "any" if rule["SRC_IPV6"] == "::/0" else rule["SRC_IPV6"])])
        case "SRV6_MY_LOCATORS" | "ACL_TABLE_TYPE" | "ACL_TABLE":
            pass  # read with the tables that refer to them
        case _:
            raise KeyError(name)
