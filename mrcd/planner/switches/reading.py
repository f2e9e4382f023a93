# SPDX-License-Identifier: BSD-2-Clause
"""Defines what a reader finds in a switch's configuration. Pure.

Each format reads its own text back, so that what was written can be followed packet by packet (mrcd/planner/walk.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mrcd.errors import UsageError


@dataclass
class Reading:
    """The routes, addresses and filters that a configuration gives a switch. Prefixes and addresses are text."""

    sids: dict[str, str] = field(default_factory=dict)
    """Prefix → behaviour: "uN" or "End"."""
    routes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Prefix → (next hop, interface) of each path; none if packets end here."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """Interface → addresses with prefix length."""
    mtus: dict[str, int] = field(default_factory=dict)
    sources: dict[str, set[str]] = field(default_factory=dict)
    """Interface → source prefixes that it forwards; an interface that is not in `filtered` forwards all."""
    filtered: set[str] = field(default_factory=set)

    def route(self, prefix: str, next_hop: str, interface: str) -> None:
        """Adds a path of a route."""
        self.routes.setdefault(prefix, []).append((next_hop, interface))

    def address(self, interface: str, address: str) -> None:
        """Adds an address of an interface."""
        self.addresses.setdefault(interface, []).append(address)

    def permit(self, interface: str, prefix: str) -> None:
        """Adds a source that an interface forwards."""
        self.sources.setdefault(interface, set()).add(prefix)

    def filter(self, interface: str, rules: Iterable[tuple[str, str]]) -> None:
        """Adds rules of an access list, as action and source: sources that are permitted, then all others denied."""
        for action, source in rules:
            if action == "permit":
                self.permit(interface, source)
            elif source.lower() == "any":
                self.filtered.add(interface)
            else:
                raise ValueError(f"{action} {source}")


def lines(text: str, read_line: Callable[[list[str]], None], comment: str | None) -> None:
    """Calls `read_line` with the words of each line that is not empty, and that does not begin with `comment`.

    It raises ValueError or IndexError for a line that it does not know, which becomes a UsageError.
    """
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or (comment and words[0].startswith(comment)):
            continue
        try:
            read_line(words)
        except (ValueError, IndexError, KeyError):
            raise unknown(f"line {number}: {line.strip()!r}") from None


def unknown(what: str) -> UsageError:
    """Returns an error for a part of a configuration that mrcctl does not write."""
    return UsageError(f"{what} is not understood", hint="only what `mrcctl fabric config` writes can be read back")
