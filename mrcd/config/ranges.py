# SPDX-License-Identifier: BSD-2-Clause
"""Expands a [[hosts]] table whose name has a range, "gpu[0001-4096]", to the tables of its hosts. Pure.

Host k of a range, from 0, has the name with the k-th number, the id `id` + k, the k-th prefix behind each of
`prefixes`, and the k-th port behind (`t0`, `port`): `per_t0` ports of a T0 are used, from 0, then those of the next.
"""

import re
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

_BRACKETS = re.compile(r"[\[\]]")
_RANGE = re.compile(r"([^\[\]]*)\[(\d{1,9})-(\d{1,9})\]([^\[\]]*)")


class Names(NamedTuple):
    """The names of a range. A name without a range is a range of one."""

    before: str
    first: int
    size: int
    digits: int
    after: str

    def name(self, k: int) -> str:
        """Returns the name of host k."""
        return f"{self.before}{self.first + k:0{self.digits}}{self.after}" if self.digits else self.before


def parse(name: str) -> Names:
    """Parses `gpu[0001-4096]`; leading zeros are kept. Raises ValueError."""
    if not _BRACKETS.search(name):
        return Names(name, 0, 1, 0, "")
    match = _RANGE.fullmatch(name)
    if not match or int(match[2]) > int(match[3]) or len(match[2]) > len(match[3]):
        raise ValueError(f'name {name!r} is not a range; write "gpu[0001-4096]", the first number and the last')
    before, first, last, after = match.groups()
    return Names(before, int(first), int(last) - int(first) + 1, len(first), after)


def place(t0: int, port: int, per_t0: int, k: int) -> tuple[int, int]:
    """Returns the T0 and the port of host k."""
    further, port_there = divmod(port + k, per_t0)
    return t0 + further, port_there


def shifted(prefix: IPv4Network | IPv6Network, k: int) -> IPv4Network | IPv6Network:
    """Returns the k-th prefix of the same length behind `prefix`. Raises ValueError if there is none."""
    first = int(prefix.network_address) + (k << (prefix.max_prefixlen - prefix.prefixlen))
    return type(prefix)((first, prefix.prefixlen))
