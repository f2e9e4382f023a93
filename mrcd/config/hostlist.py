# SPDX-License-Identifier: BSD-2-Clause
"""Expands lists of host names as Slurm writes them, `gpu[001-004,007],login1`, and writes them so. Pure."""

import re
from collections.abc import Iterable
from itertools import groupby

from mrcd.config import ranges
from mrcd.config.sizes import MAX_HOST_ID
from mrcd.errors import UsageError

_MOST = MAX_HOST_ID + 1
_COMMA = re.compile(r",(?![^\[]*\])")  # outside of brackets
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")


def expand(text: str) -> list[str]:
    """Returns the names of a list, each once, in its order. A name may have several brackets. Raises UsageError."""
    names: dict[str, None] = {}
    for part in _COMMA.split(text):
        if not part.strip():
            raise _wrong(text, "a name is missing")
        names |= dict.fromkeys(_expanded([part.strip()], text))
        if len(names) > _MOST:
            raise _too_long(text)
    return list(names)


def _expanded(names: list[str], text: str) -> list[str]:
    """Returns the names with their first brackets expanded, and then those that follow."""
    while "[" in names[0] or "]" in names[0]:
        found = []
        for name in names:
            match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\](.*)", name)
            if not match:
                raise _wrong(text, "brackets do not match")
            before, inside, after = match.groups()
            for item in inside.split(","):
                found += [f"{before}{number}{after}" for number in _numbers(item, text)]
                if len(found) > _MOST:
                    raise _too_long(text)
        names = found
    return names


def _numbers(item: str, text: str) -> Iterable[str]:
    """Returns the numbers of `001-004`, or of a single number."""
    if re.fullmatch(r"\d{1,9}", item):
        return [item]
    try:
        numbers = ranges.parse(f"[{item}]")
    except ValueError:
        raise _wrong(text, f"{item!r} is neither a number nor a range") from None
    if numbers.size > _MOST:
        raise _too_long(text)
    return (numbers.name(k) for k in range(numbers.size))


def _too_long(text: str) -> UsageError:
    return _wrong(text, f"it has more than {_MOST} names")


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is not a list of hosts: {why}", hint="such as gpu[1-512] or gpu[001-004,007],login1")


def compress(names: Iterable[str]) -> str:
    """Returns names as a list that expand() takes: names that differ in their last number only share brackets."""
    matches = {name: _NUMBERED.fullmatch(name) for name in names}
    split = [(m[1], m[2]) for m in matches.values() if m]
    padded = {(before, len(number)) for before, number in split if number.startswith("0") and len(number) > 1}
    groups: dict[tuple[str, int], list[int]] = {}
    for before, number in split:  # with leading zeros, numbers of one length share brackets; else all do
        digits = len(number) if (before, len(number)) in padded else 0
        groups.setdefault((before, digits), []).append(int(number))
    alone = [name for name, m in matches.items() if not m]
    written = [_written(before, digits, sorted(numbers)) for (before, digits), numbers in groups.items()]
    return ",".join(written + alone)


def _written(before: str, digits: int, numbers: list[int]) -> str:
    runs = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(f"{run[0]:0{digits}}" + (f"-{run[-1]:0{digits}}" if len(run) > 1 else ""))
    if len(numbers) == 1:
        return before + runs[0]
    return f"{before}[{','.join(runs)}]"
