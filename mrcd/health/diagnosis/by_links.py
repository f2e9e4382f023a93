# SPDX-License-Identifier: BSD-2-Clause
"""Leaves out elements that link probes rule out, where several would explain the same dead EVs. Pure.

A link probe turns round at this host's T0 or at a T1 (bpf/link_probe.h). One that came back after the EVs had failed
shows that what it crossed works. If none came back since then, the cause is on its way.
"""

from collections.abc import Iterator
from dataclasses import replace

from mrcd.health.diagnosis.cover import Element, Place
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.sentences import Nature, since_ns, target

_AFTER_NS = 500_000_000  # the median EV has failed: others fail until then
UNANSWERED = 5
"""Probes in a row on a link that shows that it, or what is before it, is dead."""


def narrowed(facts: Facts, e: Element) -> Element:
    """Returns the element, or the first of its alternatives that is left; as it was if nothing is left."""
    since = since_ns(facts, e)
    if facts.links is None or since is None or e.place in (Place.PEER, Place.SOME):
        return e
    named = [target(facts, e, Nature.FAILED), *e.or_targets]
    excluded = set(_excluded(facts, e.plane, named, since))
    left = [t for t in named if t not in excluded]
    if not left or len(left) == len(named):
        return e
    return replace(_element_of(facts, e, left[0]) if left[0] != named[0] else e, or_targets=tuple(left[1:]))


def _excluded(facts: Facts, plane: int, named: list[str], since: int) -> Iterator[str]:
    """Yields the targets that link probes rule out."""
    nic, t0 = f"nic:{facts.host}:{plane}", f"t0:{plane}:{facts.t0}"
    assert facts.links is not None
    for row, links in enumerate(facts.links):
        t1 = row - 1
        # A T0 that sends probes back may still have lost its links to all T1s.
        works = {nic} if not row else {nic, t0, f"link:{plane}:{facts.t0}:{t1}", f"t1:{plane}:{t1}"}
        crossed = works | {t0}
        if links["rx_ns"][plane] > since + _AFTER_NS and links["unanswered"][plane] < UNANSWERED:
            yield from works
        elif links["rx_ns"][plane] and links["unanswered"][plane] >= UNANSWERED and not crossed.isdisjoint(named):
            yield from (t for t in named if t not in crossed)


def _element_of(facts: Facts, e: Element, chosen: str) -> Element:
    """Returns the element that a target names, with the same EVs."""
    word, *numbers = chosen.split(":")
    if word == "nic":
        return replace(e, place=Place.PLANE if numbers[0] == facts.host else Place.NIC, t0=-1, t1=-1)
    if word == "t1":
        return replace(e, place=Place.T1, t0=-1, t1=int(numbers[1]))
    if word == "link":
        return replace(e, place=Place.LINK, t0=int(numbers[1]), t1=int(numbers[2]))
    own = int(numbers[1]) == facts.t0
    return replace(e, place=Place.UPLINKS if own else Place.T0, t0=int(numbers[1]), t1=-1)
