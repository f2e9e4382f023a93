# SPDX-License-Identifier: BSD-2-Clause
"""Computes what a planned fabric still does when parts of it have failed. Pure.

The numbers are those of the worst places for a pair of hosts under different T0s (under the only one, if there is only
one): n NICs of one host, n T0s of one host, n T1s that the pair's EVs cross, n links of one host's T0s that they cross.
The EVs of all rails are taken to cross the same T1s.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mrcd.planner.fabric_plan import FabricPlan

Part = Literal["nic", "t0", "t1", "link", "plane"]
_FEW = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Outcome:
    """The hosts and paths that are left when `failed` parts of a kind have failed. A NIC stands for its cable, too."""

    part: Part
    of: int  # in the whole fabric
    failed: int
    evs: int  # left to the worst pair
    planes: int  # on which it has an EV left, at the worst
    hosts: int  # that lose EVs to all others
    capacity: float  # left of all links between T0s and T1s, as a share


def floor(p: FabricPlan) -> int:
    """Returns the default of `ev_min_active`: a quarter of a peer's EVs."""
    return max(1, p.evs_per_peer // 4)


def parts(p: FabricPlan) -> tuple[Part, ...]:
    """Returns the kinds of parts that a fabric has."""
    return ("nic", "t0", "t1", "link", "plane") if p.t1s else ("nic", "t0", "plane")


def evs_of(p: FabricPlan, part: Part) -> int:
    """Returns the EVs of a pair that one failed part takes, at the worst."""
    return {"t1": p.wanted.rails, "link": 1}.get(part, p.evs_per_plane)


def outcome(p: FabricPlan, part: Part, failed: int) -> Outcome:
    """Returns what is left after `failed` failures of a kind in the worst places."""
    t0s, t1s = p.planes * p.t0s, p.planes_with_t1s * p.t1s
    of = {"nic": p.nics, "t0": t0s, "t1": t1s, "link": p.links, "plane": p.planes}[part]
    of_t0 = min(p.hosts_per_t0, p.wanted.hosts)
    hosts = {"nic": 1, "t0": of_t0, "t1": p.wanted.hosts, "link": of_t0, "plane": p.wanted.hosts}[part]
    lost_evs = min(failed * evs_of(p, part), p.evs_per_peer)
    planes = p.wanted.rails * (failed // p.evs_per_plane) if part == "t1" else lost_evs // p.evs_per_plane
    lost_links = 0.0 if part == "nic" or not p.t1s else failed / of
    return Outcome(
        part,
        of,
        failed,
        p.evs_per_peer - lost_evs,
        max(0, p.planes - planes),
        hosts if failed else 0,
        1 - min(lost_links, 1.0),
    )


def first_below(p: FabricPlan, part: Part, evs: int) -> int:
    """Returns the fewest failures of a kind that leave a pair fewer than so many EVs."""
    return math.ceil((p.evs_per_peer - evs + 1) / evs_of(p, part))


def outcomes(p: FabricPlan) -> Iterator[Outcome]:
    """Yields the outcomes of growing numbers of failures of each kind, up to that which separates a pair."""
    for part in parts(p):
        last = first_below(p, part, 1)
        yield from (outcome(p, part, n) for n in (*(n for n in _FEW if n < last), last))


def document(p: FabricPlan) -> dict[str, Any]:
    """Returns the failures as a document: how many of each kind a pair of hosts endures, and what is left meanwhile."""
    limits = [
        {"part": part, "below_floor": first_below(p, part, floor(p)), "separated": first_below(p, part, 1)}
        for part in parts(p)
    ]
    return {"floor": floor(p), "limits": limits, "outcomes": [asdict(o) for o in outcomes(p)]}
