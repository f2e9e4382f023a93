# SPDX-License-Identifier: BSD-2-Clause
"""Makes the tcpdump command of `mrcctl capture`: a filter expression for MRC packets, and where to capture."""

from collections.abc import Mapping, Sequence
from typing import Any

from mrcd.ctl.client import understood
from mrcd.errors import UsageError, no_peer
from mrcd.probes.raw_socket import name_of

KINDS = {"data": 1, "request": 2, "reply": 3}  # enum mrc_type

# Bytes from the outer IPv6 header on. With an SRH, everything behind it is further by its length.
_HEADERS = {
    "ip6[6] = 17": "",
    "ip6[6] = 43 and ip6[40] = 17": "ip6[41] * 8 + 8 + ",
}
_PORT, _TYPE, _SENDER, _EV, _RECEIVER = 42, 49, 52, 54, 62


def filter_expression(
    udp_port: int,
    *,
    ev: int | None = None,
    kind: str | None = None,
    host: int | None = None,
    may_be_tagged: bool = False,
) -> str:
    """Return a pcap filter for MRC packets: of an EV, of a kind of KINDS, and with a host id at either end.

    With `may_be_tagged` it takes packets with a VLAN tag too. libpcap knows no tags on the interface `any`.
    """
    forms = []
    for headers, skip in _HEADERS.items():
        terms = [headers, f"ip6[{skip}{_PORT}:2] = {udp_port}"]
        if kind is not None:
            terms.append(f"ip6[{skip}{_TYPE}] = {KINDS[kind]}")
        if ev is not None:
            terms.append(f"ip6[{skip}{_EV}:2] = {ev}")
        if host is not None:
            terms.append(f"(ip6[{skip}{_SENDER}:2] = {host} or ip6[{skip}{_RECEIVER}:2] = {host})")
        forms.append(f"({' and '.join(terms)})")
    expression = " or ".join(forms)
    return f"{expression} or (vlan and ({expression}))" if may_be_tagged else expression


def host_id(peer: str, status: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> int:
    """Return the id of this host or a peer, by its name or id. Raises UsageError."""
    with understood():
        ids = {str(p["peer"]): int(p["host_id"]) for p in peers} | {str(status["host"]): int(status["host_id"])}
    if peer in ids:
        return ids[peer]
    if peer.isascii() and peer.isdigit() and int(peer) < 1 << 16:
        return int(peer)
    raise no_peer(peer, ids)


def interface(status: Mapping[str, Any], plane: int | None) -> tuple[str, bool]:
    """Return the interface to capture on, and whether its packets may have VLAN tags. Raises UsageError.

    Without a plane it is `any`, of which the filter takes MRC packets only. The packets of a VLAN's interface are
    those of the NIC below it.
    """
    with understood():
        names = {int(p["plane"]): name_of(p["ifindex"], p["interface"]) for p in status["planes"]}
        has_vlans = any(names[int(p["plane"])] != p["interface"] for p in status["planes"])
    if plane is None and has_vlans:
        raise UsageError("planes are on VLANs, which tcpdump cannot filter on all interfaces", hint="give a --plane")
    if plane is None:
        return "any", False
    if plane not in names:
        raise UsageError(f"there is no plane {plane}", hint=f"planes: {', '.join(map(str, names)) or 'none'}")
    return names[plane], True


def command(
    where: str,
    expression: str,
    *,
    count: int | None = None,
    seconds: float | None = None,
    to: str | None = None,
    snap: int | None = None,
) -> list[str]:
    """Return the words of the tcpdump command; with `seconds` it ends after that time."""
    argv = ["timeout", "--preserve-status", "--signal=INT", f"{seconds:g}"] if seconds else []
    argv += ["tcpdump", "-n", "-i", where]
    for option, value in (("-c", count), ("-w", to), ("-s", snap)):
        if value is not None:
            argv += [option, str(value)]
    return [*argv, *([] if to else ["-l"]), expression]
