# SPDX-License-Identifier: BSD-2-Clause
"""Parses prefixes and addresses of the cluster file, and checks that prefixes of two hosts do not overlap."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated

from pydantic import BeforeValidator

_V4_MAPPED = IPv6Network("::ffff:0:0/96")  # the overlay trie stores IPv4 as IPv4-mapped addresses


def _network(value: object) -> IPv4Network | IPv6Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is not a prefix; write it as text, e.g. "10.1.2.0/24"')
    try:
        return ip_network(value)
    except ValueError as e:
        raise ValueError(f"{e}; a prefix is written like 10.1.2.0/24 or fd00:1::/64") from None


def _network6(value: object) -> IPv6Network:
    network = _network(value)
    if network.version != 6:
        raise ValueError(f"{network} is not an IPv6 prefix")
    return network


def _address6(value: object) -> IPv6Address:
    if isinstance(value, IPv6Address):
        return value
    try:
        return IPv6Address(value if isinstance(value, str) else repr(value))
    except ValueError:
        raise ValueError(f"{value!r} is not an IPv6 address") from None


Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
Network6 = Annotated[IPv6Network, BeforeValidator(_network6)]
Address6 = Annotated[IPv6Address, BeforeValidator(_address6)]


def no_overlap(prefixes: Iterable[tuple[Network, str]], reserved: Sequence[IPv6Network]) -> None:
    """Raises ValueError if prefixes of two hosts overlap, or a prefix overlaps one of `reserved`.

    `prefixes` are pairs of (prefix, name of its host). Prefixes of one host may overlap: its own address usually lies
    in the network behind it.
    """
    ordered = sorted((n.version, int(n.network_address), n.prefixlen, n, host) for n, host in prefixes)
    around: list[tuple[int, int, Network, str]] = []  # version, last address: prefixes around the current one
    for version, first, length, n, host in ordered:
        while around and not (around[-1][0] == version and around[-1][1] >= first):
            around.pop()
        for *_, other, other_host in around:
            if other_host != host:
                raise ValueError(
                    f"hosts: prefix {other} of {other_host} overlaps {n} of {host}; give each host its own"
                )
        around.append((version, first | (1 << (n.max_prefixlen - length)) - 1, n, host))
    for kept in (_V4_MAPPED, *reserved):
        begin, end = int(kept.network_address), int(kept.broadcast_address)
        for version, first, length, n, host in ordered:
            if version == 4 or first > end or first | (1 << (128 - length)) - 1 < begin:
                continue
            if kept is _V4_MAPPED:
                raise ValueError(
                    f"hosts: prefix {n} of {host} overlaps {kept}, which is reserved for IPv4; write it as IPv4"
                )
            raise ValueError(f"hosts: prefix {n} of {host} overlaps the fabric's own {kept}; use another prefix")
