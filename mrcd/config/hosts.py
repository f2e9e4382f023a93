# SPDX-License-Identifier: BSD-2-Clause
"""Defines the [[hosts]] tables of the cluster file: one host each, or a range of hosts (ranges.py); and prefixes."""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mrcd.config import ranges
from mrcd.config.sections import Section
from mrcd.config.sizes import MAX_HOST_ID, MAX_PORTS, MAX_T0S

_V4_MAPPED = IPv6Network("::ffff:0:0/96")  # the overlay trie stores IPv4 as IPv4-mapped addresses
_HOST_NAME = re.compile(r"[\w\[][\w.\[\]-]*")
Hook = Literal["auto", "xdp", "xdp-generic", "tc"]


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


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        allowed = "a name begins with a letter or digit, and has those, '.', '_' and '-' only, or ranges [FIRST-LAST]"
        raise ValueError(f"{allowed}; not {text!r}")
    return text


def printable(text: str) -> str:
    """Returns a text that may be printed on a terminal. Raises ValueError for another one."""
    if not text.isprintable():
        raise ValueError(f"control characters in {text!r}; remove them")
    return text


class Host(Section):
    """One host, or a range of hosts: its place in the fabric, and the overlay prefixes behind it."""

    name: Annotated[str, AfterValidator(_host_name), Field(max_length=64)]
    id: Annotated[int, Field(ge=0, le=MAX_HOST_ID)]
    t0: Annotated[int, Field(ge=0, le=MAX_T0S - 1)] = 0
    port: Annotated[int, Field(ge=0, le=MAX_PORTS - 1)]
    per_t0: Annotated[int, Field(ge=1, le=MAX_PORTS)] | None = Field(
        default=None,
        description='a range of hosts, as name = "gpu[0001-4096]", has so many ports of a T0 each, from port 0',
    )
    prefixes: Annotated[list[Network], Field(min_length=1)]
    interfaces: list[str] | None = Field(
        default=None, description="this host's NICs, if their names differ from [interfaces] names"
    )
    hook: Hook | None = Field(
        default=None, description="where mrc_pop is attached on this host, if not as in [interfaces]"
    )

    @model_validator(mode="after")
    def _range_fits(self) -> Self:
        names = ranges.parse(self.name)
        if bool(names.numbers) != bool(self.per_t0):
            raise ValueError(
                f"{self.name}: per_t0 is for a range of hosts, as gpu[0001-4096]; remove it"
                if self.per_t0
                else f"{self.name}: a range of hosts needs per_t0, the number of ports that it has of each T0"
            )
        if self.per_t0 is None:
            return self
        last = names.size - 1
        if self.port >= self.per_t0:
            raise ValueError(f"{self.name}: port = {self.port}, but the range has the ports 0 to {self.per_t0 - 1}")
        t0, _ = ranges.place(self.t0, self.port, self.per_t0, last)
        for what, found, most in (("id", self.id + last, MAX_HOST_ID), ("t0", t0, MAX_T0S - 1)):
            if found > most:
                raise ValueError(f"{self.name}: the last host would have {what} {found}; {most} is the highest")
        for prefix in self.prefixes:
            try:
                ranges.shifted(prefix, last)
            except ValueError:
                raise ValueError(
                    f"{self.name}: {names.size} prefixes from {prefix} on go beyond the last address"
                ) from None
        return self

    def expanded(self) -> list[Self]:
        """Returns the hosts of a range, by the rule of ranges.py; else this host alone."""
        names, per_t0 = ranges.parse(self.name), self.per_t0
        if per_t0 is None:
            return [self]
        alike = {"per_t0": None, "interfaces": self.interfaces, "hook": self.hook}
        found = []
        for k in range(names.size):  # without validation: _range_fits has seen the last one
            t0, port = ranges.place(self.t0, self.port, per_t0, k)
            prefixes = [ranges.shifted(prefix, k) for prefix in self.prefixes]
            found.append(
                self.model_construct(
                    None, name=names.name(k), id=self.id + k, t0=t0, port=port, prefixes=prefixes, **alike
                )
            )
        return found


class Hosts(list[Host]):
    """All hosts, expanded from the tables of the file. They are written as the tables."""

    def __init__(self, tables: list[Host]) -> None:
        super().__init__(host for table in tables for host in table.expanded())
        self.tables = tables


def tables_of(hosts: list[Host]) -> list[Host]:
    """Returns the tables of the file that the hosts were expanded from."""
    return hosts.tables if isinstance(hosts, Hosts) else hosts


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
