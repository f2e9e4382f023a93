# SPDX-License-Identifier: BSD-2-Clause
"""Reads what a switch reports that it runs: routes of FRR, CONFIG_DB of SONiC, routes of the Linux kernel. Pure.

FRR: `vtysh -c "show ipv6 route json"`. SONiC: `sonic-cfggen -d --print-data`. Linux: `ip -6 -j route show table all`.
"""

import json
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrcd.errors import UsageError
from mrcd.planner.switches import sonic
from mrcd.planner.switches.reading import Reading

_COMMANDS = (
    "the file must be the output of `vtysh -c 'show ipv6 route json'`, `sonic-cfggen -d --print-data` or "
    "`ip -6 -j route show table all`"
)
_SONIC_TABLES = {"DEVICE_METADATA", "PORT", "INTERFACE", "STATIC_ROUTE", "SRV6_MY_LOCATORS", "SRV6_MY_SIDS"}
_NO_FORWARDING = {"unreachable", "blackhole", "prohibit"}
_DOWN = {"dead", "linkdown"}
_OWN = {"connected", "local"}  # FRR's protocols of a switch's own addresses


@dataclass
class Report:
    """The state that a switch reports. `reading` has the SIDs and routes that forward packets, in canonical form."""

    system: str  # a name in FORMATS
    reading: Reading = field(default_factory=Reading)
    tells: frozenset[str] = frozenset()
    """Fields of the reading, besides SIDs and routes, that the report has."""
    notes: dict[str, str] = field(default_factory=dict)
    """Prefix → why a SID or route of the report, or one of its paths, forwards nothing."""


def read(text: str) -> Report:
    """Returns what a report says; its content tells the system. Raises UsageError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"is not JSON: {e}", hint=_COMMANDS) from None
    try:
        if isinstance(found, list):
            return _linux(found)
        if isinstance(found, dict) and found.keys() & _SONIC_TABLES:
            return _sonic(found)
        if isinstance(found, dict) and all(isinstance(routes, list) for routes in found.values()):
            return _frr(found)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(f"is not understood: {type(e).__name__} {e}", hint=_COMMANDS) from None
    raise UsageError("is no report that is known", hint=_COMMANDS)


def _prefix(text: str) -> str:
    return str(IPv6Network(text, strict=False))


# ---- Linux ----


def _linux(rows: list[dict[str, Any]]) -> Report:
    """Reads the main table, and addresses from the local one. Of routes to the same prefix the lowest metric counts."""
    report = Report("iproute2", tells=frozenset({"addresses"}))
    lengths: dict[str, list[IPv6Network]] = {}  # interface → prefixes of its addresses
    own: list[tuple[str, IPv6Address]] = []
    for row in sorted(rows, key=lambda row: int(row.get("metric", 0))):
        kind, table, prefix = row.get("type", "unicast"), row.get("table", "main"), row["dst"]
        if table == "local" and kind == "local" and "/" not in prefix:  # a whole prefix can be local, too
            own.append((row["dev"], IPv6Address(prefix)))
        elif table == "main" and row.get("protocol") == "kernel":
            lengths.setdefault(row["dev"], []).append(IPv6Network(prefix))
        elif table == "main" and prefix != "default":
            _linux_route(report, _prefix(prefix), row, kind)
    for interface, address in own:
        around = [n.prefixlen for n in lengths.get(interface, []) if address in n]
        report.reading.address(interface, f"{address}/{max(around, default=128)}")
    return report


def _linux_route(report: Report, prefix: str, row: dict[str, Any], kind: str) -> None:
    found = report.reading
    if prefix in found.sids or prefix in found.routes:
        return
    if kind in _NO_FORWARDING:
        found.routes[prefix] = []
        return
    down = [str(hop.get("dev")) for hop in row.get("nexthops", [row]) if _DOWN & set(hop.get("flags", []))]
    if down:
        report.notes[prefix] = f"{', '.join(down)} is down"
    if row.get("encap") == "seg6local":
        if not down:
            found.sids[prefix] = _behaviour(row)
        return
    for hop in row.get("nexthops", [row]):
        if not _DOWN & set(hop.get("flags", [])):
            found.route(prefix, hop.get("gateway") or hop.get("via", {}).get("host", ""), hop.get("dev", ""))


def _behaviour(row: dict[str, Any]) -> str:
    if row["action"] != "End" or "next-csid" not in row.get("flavors", []):
        return str(row["action"])
    lengths = row.get("lblen", 32), row.get("nflen", 16)
    return "uN" if lengths == (32, 16) else f"uN of {lengths[0]} + {lengths[1]} bits"


# ---- FRR ----


def _frr(tables: dict[str, list[dict[str, Any]]]) -> Report:
    """Reads FRR's routing table. Only what FRR has installed forwards packets.

    FRR 10.3 does not print the flavour of a SID, so each End with the lengths of a uSID is read as a uN.
    """
    report = Report("frr")
    for text, routes in tables.items():
        prefix = _prefix(text)
        for route in routes:
            if route["protocol"] not in _OWN:
                _frr_route(report, prefix, route)
    return report


def _frr_route(report: Report, prefix: str, route: dict[str, Any]) -> None:
    found, hops = report.reading, route["nexthops"]
    down = sorted({str(h.get("interfaceName", h.get("ip", "?"))) for h in hops if not h.get("active")})
    if not route.get("installed"):
        by = f": {', '.join(down)} is down or absent" if down else ""
        report.notes.setdefault(prefix, f"FRR knows it, but has not installed it{by}")
        return
    if not route.get("selected"):
        return
    if down:
        report.notes[prefix] = f"{', '.join(down)} is down"
    active = [h for h in hops if h.get("active") and h.get("fib")]
    sid = next((h["seg6local"] for h in active if "seg6local" in h), None)
    if sid:
        lengths = sid.get("sidStructure", {})
        usid = (sid["action"], lengths.get("blockLen"), lengths.get("nodeLen")) == ("End", 32, 16)
        found.sids[prefix] = "uN" if usid else str(sid["action"])
        return
    paths = [(h.get("ip", ""), h.get("interfaceName", "")) for h in active if not h.get("unreachable")]
    if paths or active:  # without paths: packets end here
        found.routes[prefix] = paths


# ---- SONiC ----


def _sonic(tables: sonic.Tables) -> Report:
    """Reads CONFIG_DB: what the switch was told, not what its ASIC does."""
    found, notes = sonic.read_database(tables)
    report = Report("sonic", found, frozenset({"addresses", "mtus", "sources", "filtered"}), notes)
    found.sids = {_prefix(prefix): behaviour for prefix, behaviour in found.sids.items()}
    found.routes = {
        _prefix(prefix): [(str(IPv6Address(hop)) if hop else "", interface) for hop, interface in paths]
        for prefix, paths in found.routes.items()
    }
    for interface, addresses in found.addresses.items():
        found.addresses[interface] = [address.lower() for address in addresses]
    return report
