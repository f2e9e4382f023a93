# SPDX-License-Identifier: BSD-2-Clause
"""Expands a [[hosts]] table whose name has ranges, "gpu[0001-4096]", to the tables of its hosts. Pure.

Host k of a range, from 0, has the k-th name, the id `id` + k, the k-th prefix behind each of `prefixes`, and the k-th
port behind (`t0`, `port`): `per_t0` ports of a T0 are used, from 0, then those of the next. A name may have several
ranges, "rack[1-8]-gpu[1-16]"; the last one counts fastest, as digits do: rack2-gpu1 follows rack1-gpu16.
"""

import math
import re
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

_RANGE = re.compile(r"\[(\d{1,9})-(\d{1,9})\]")


class Numbers(NamedTuple):
    """The numbers of one range, `[0001-4096]`: the first one, how many there are, and the digits of each at least."""

    first: int
    size: int
    digits: int


class Names(NamedTuple):
    """The names of a table: `texts` around its ranges, one more than these. Without a range it is one name."""

    texts: tuple[str, ...]
    numbers: tuple[Numbers, ...]

    @property
    def size(self) -> int:
        """Returns how many names there are."""
        return math.prod(n.size for n in self.numbers)

    def name(self, k: int) -> str:
        """Returns the name of host k."""
        found = self.texts[-1]
        for text, n in zip(reversed(self.texts[:-1]), reversed(self.numbers), strict=True):
            k, number = divmod(k, n.size)
            found = f"{text}{n.first + number:0{n.digits}}{found}"
        return found


def parse(name: str) -> Names:
    """Parses `gpu[0001-4096]` or `rack[1-8]-gpu[1-16]`; leading zeros are kept. Raises ValueError."""
    before, *rest = _RANGE.split(name)  # a text, then for each range its first number, its last, and the text behind
    ranges = list(zip(rest[::3], rest[1::3], strict=True))
    texts = (before, *rest[2::3])
    is_wrong = any(int(first) > int(last) or len(first) > len(last) for first, last in ranges)
    if is_wrong or any(bracket in text for text in texts for bracket in "[]"):
        raise ValueError(f'name {name!r} is not a range; write "gpu[0001-4096]", the first number and the last')
    found = (Numbers(int(first), int(last) - int(first) + 1, len(first)) for first, last in ranges)
    return Names(texts, tuple(found))


def place(t0: int, port: int, per_t0: int, k: int) -> tuple[int, int]:
    """Returns the T0 and the port of host k."""
    further, port_there = divmod(port + k, per_t0)
    return t0 + further, port_there


def shifted(prefix: IPv4Network | IPv6Network, k: int) -> IPv4Network | IPv6Network:
    """Returns the k-th prefix of the same length behind `prefix`. Raises ValueError if there is none."""
    first = int(prefix.network_address) + (k << (prefix.max_prefixlen - prefix.prefixlen))
    return type(prefix)((first, prefix.prefixlen))
