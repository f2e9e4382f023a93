# SPDX-License-Identifier: BSD-2-Clause
"""Sends the packets of doctor: probes of three sizes per EV, and datagrams of two sizes to each peer through mrc0."""

import errno
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mrcd.ctl.examine.checks import Answers
from mrcd.ctl.packets import probe, probe_packet
from mrcd.ctl.packets.exchange import Exchange, local_host

_COUNT = 3
_PER_SECOND = 5000  # probes
_LEAST_S, _WAIT_S = 0.01, 0.5
_DISCARD = 9  # port
_MTU_DISCOVER = {4: (socket.IPPROTO_IP, 10), 6: (socket.IPPROTO_IPV6, 23)}
_PMTUDISC_DO = 2
_HEADERS = {4: 28, 6: 48}


def answers(
    status: Mapping[str, Any], peers: Sequence[Mapping[str, Any]], paths: Sequence[Mapping[str, Any]]
) -> list[Answers]:
    """Probe every EV with the smallest size, the planes' MTU, and a byte more. Raises MachineError."""
    local, reserved = local_host(status), probe.reserved_bytes(paths)
    ids = {p["peer"]: int(p["host_id"]) for p in peers}
    routes = {(p["peer"], p["ev"]): probe.route(p, ids[p["peer"]], size=0, reserved=reserved) for p in paths}
    if not routes or local.mtu < max(probe_packet.size_of(r.segments, r.reserved) for r in routes.values()):
        return []
    small = [replace(r, key=(*key, 0)) for key, r in routes.items()]
    sizes = (local.mtu, local.mtu + 1)
    large = [replace(r, key=(*key, size), size=size) for key, r in routes.items() for size in sizes]
    with Exchange(local, [r.plane for r in small]) as exchange:
        found = exchange.run(small, _COUNT, max(_LEAST_S, len(small) / _PER_SECOND), _WAIT_S)
        found |= exchange.run(large, _COUNT, max(_LEAST_S, len(large) / _PER_SECOND), _WAIT_S)
    return [
        Answers(p["peer"], p["ev"], p["plane"], p["state"], *(found[p["peer"], p["ev"], size] for size in (0, *sizes)))
        for p in paths
    ]


def overlay(status: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Send datagrams of the inner MTU and a byte more. Returns peer → problem; the text is empty if there is none.

    Only peers to which this host sprays get them, at the discard port.
    """
    if not status["attached"]:
        return {}
    found = {}
    for p in peers:
        addresses = [x.partition("/")[0] for x in p["prefixes"] if x.endswith(("/32", "/128"))]
        if p["status"] == "attached" and addresses:
            wrong = [why for a in addresses if (why := _datagrams(a, int(status["inner_mtu"])))]
            found[str(p["peer"])] = wrong[0] if wrong else ""
    return found


def _datagrams(address: str, mtu: int) -> str:
    version = 6 if ":" in address else 4
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(*_MTU_DISCOVER[version], _PMTUDISC_DO)
        full = mtu - _HEADERS[version]
        try:
            s.sendto(bytes(full), (address, _DISCARD))
        except OSError as e:
            return f"the kernel refuses a packet of {mtu} bytes, the inner MTU: {e.strerror}"
        try:
            s.sendto(bytes(full + 1), (address, _DISCARD))
        except OSError as e:
            return "" if e.errno == errno.EMSGSIZE else f"a packet of {mtu + 1} bytes: {e.strerror}"
        return f"the kernel accepts a packet of {mtu + 1} bytes, more than the inner MTU, which will be lost"
