# SPDX-License-Identifier: BSD-2-Clause
"""Defines the input of a diagnosis: what this host knows of itself, its peers and its EVs, as plain arrays. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.kernel.enums import Drop
from mrcd.net.link_state import LinkState

Bools = NDArray[np.bool_]
Ints = NDArray[Any]


NOT_TOLD, SAME_FILE = -1, 0


class Verdict(IntEnum):
    """The evidence of one EV for the elements that it crosses."""

    NOTHING = 0  # there is no such EV, or it has not been probed yet
    GOOD = 1
    IDLE = 2  # good, but it carried no data lately: its loss is not known
    SLOW = 3  # good, but slower than others to the same peer
    LOSSY = 4  # left for its loss
    FAILED = 5  # left because nothing arrives
    DENIED = 6


@dataclass(frozen=True)
class OwnPlane:
    """This host's NIC on a plane. `is_usable`: it has a carrier, and its first hop is resolved.

    `unroutable`: packets that arrived there lately for addresses that are not on that interface.
    """

    interface: str
    is_usable: bool
    link: LinkState
    unroutable: int = 0


@dataclass(frozen=True)
class Facts:
    """All that a host knows at one moment. Peers are in the order of `names`; a column is an EV number.

    Many attributes because a diagnosis weighs all that the host knows.

    verdicts  (peers, EVs) Verdict              t1s       (peers, EVs) the T1 of an EV, or fabric.paths.NO_T1
    since_ns  (peers, EVs) start of the state of an EV, CLOCK_MONOTONIC; 0 if it is not known
    t0s       (peers,) the T0 of a peer         planes    (peers,) mask of the planes that the peer says are up
    is_silent, is_detached  (peers,) of peers that answer nothing, or that say that they are detached
    heard_ns  (peers,) when a peer was heard last; 0: never
    files     (peers,) SAME_FILE, NOT_TOLD, or the fingerprint of the peer's other cluster file (config/cluster_file.py)
    links     (1 + T1s, planes) abi.LINK: what link probes counted (bpf/link_probe.h); None if there are none
    has_new   whether an EV is UNKNOWN still, and not counted as failed
    refused   reason → packets that this host has dropped lately because hosts disagree (memory.py)
    """

    host: str
    t0: int
    encapsulation: str
    is_host_detached: bool
    own_planes: Sequence[OwnPlane]
    names: Sequence[str]
    t0s: Ints
    planes: Ints
    is_silent: Bools
    is_detached: Bools
    heard_ns: Ints
    verdicts: Ints
    t1s: Ints
    since_ns: Ints
    files: Ints
    has_new: bool = False
    refused: Mapping[Drop, int] = field(default_factory=dict)
    links: NDArray[np.void] | None = None

    @property
    def width(self) -> int:
        """Returns the number of columns of a plane."""
        return int(self.verdicts.shape[1] // max(1, len(self.own_planes)))

    def columns(self, plane: int) -> slice:
        """Returns the EV numbers of a plane."""
        return slice(plane * self.width, (plane + 1) * self.width)
