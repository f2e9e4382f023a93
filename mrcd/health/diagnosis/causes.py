# SPDX-License-Identifier: BSD-2-Clause
"""Defines what a diagnosis consists of: causes with target, evidence and confidence. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kinds of causes."""

    OWN_NIC = "own_nic"  # this host's interface does not exist, or is switched off
    OWN_CABLE = "own_cable"  # between this host's NIC and its T0
    WRONG_CABLE = "wrong_cable"  # this host's NIC gets packets that are meant for another NIC
    OWN_T0 = "own_t0"  # the T0 of this host on a plane
    T0 = "t0"  # another T0
    T1 = "t1"
    LINK = "link"  # between a T0 and a T1
    PEER_NIC = "peer_nic"  # a peer's NIC or cable on a plane
    PEER_DOWN = "peer_down"
    PEER_DETACHED = "peer_detached"  # by an administrator of the peer
    WRONG_KEY = "wrong_key"  # two hosts refuse each other's tags
    CONFIG_DIFFERS = "config_differs"  # two hosts have different cluster files or versions
    LOSS = "loss"  # some packets are lost, others arrive
    SMALL_MTU = "small_mtu"  # full-size packets are lost, and small ones arrive
    SLOW_PLANE = "slow_plane"  # packets take longer on a whole plane
    CONGESTION = "congestion"  # packets take longer through one element of a plane
    DENIED = "denied"  # by an administrator of this host
    DETACHED = "detached"  # this host, by its administrator
    OTHER_ROUTE = "other_route"  # the kernel takes another program's route to peers
    UNDELIVERED = "undelivered"  # this host drops what mrc0 sends or has received
    HOST = "host"  # nothing gets through to any peer: this host, or the whole fabric
    UNKNOWN = "unknown"  # no single element explains some failed EVs

    @property
    def severity(self) -> "Severity":
        """Returns how urgent a cause of this kind is."""
        if self is Kind.DENIED:
            return Severity.OK
        return Severity.WARNING if self in _WARNINGS else Severity.CRITICAL


class Severity(StrEnum):
    """The urgency of a cause, in the words of monitoring plugins."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


class Confidence(StrEnum):
    """The certainty of a cause. `AMBIGUOUS`: Cause.or_targets would explain the same."""

    CERTAIN = "certain"  # the kernel or the peer says so
    LIKELY = "likely"  # concluded from EVs
    AMBIGUOUS = "ambiguous"


_WARNINGS = (
    Kind.LOSS,
    Kind.SMALL_MTU,
    Kind.SLOW_PLANE,
    Kind.CONGESTION,
    Kind.PEER_DETACHED,
    Kind.DETACHED,
    Kind.UNDELIVERED,
    Kind.UNKNOWN,
)
_OF_ANY_TARGET = (Kind.LOSS, Kind.SMALL_MTU, Kind.CONGESTION, Kind.WRONG_KEY, Kind.CONFIG_DIFFERS)
_KINDS_OF_TARGETS = {
    "t0": Kind.T0, "t1": Kind.T1, "link": Kind.LINK, "nic": Kind.PEER_NIC, "peer": Kind.PEER_DOWN, "host": Kind.HOST,
}  # fmt: skip


@dataclass(frozen=True)
class Share:
    """Part of the EVs: `evs` of the `of_evs` EVs that cross the target, to `peers` of `of_peers` peers."""

    evs: int = 0
    of_evs: int = 0
    peers: int = 0
    of_peers: int = 0


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong."""

    kind: Kind
    target: str  # words that `mrcctl deny` takes; host:NAME for this host
    sentence: str
    do: str  # the next step, with a command
    confidence: Confidence
    share: Share
    since_ns: int | None = None  # CLOCK_MONOTONIC; None: not known
    or_targets: tuple[str, ...] = ()

    def candidates(self, host: str) -> list[tuple[Kind, str]]:
        """Returns the kind and the target of everything that would explain the same; `host` is this host's name."""
        return [(self.kind, self.target), *((self._kind_of(target, host), target) for target in self.or_targets)]

    def _kind_of(self, target: str, host: str) -> Kind:
        if self.kind in _OF_ANY_TARGET:
            return self.kind
        word, name = target.split(":")[:2]
        return Kind.OWN_CABLE if word == "nic" and name == host else _KINDS_OF_TARGETS[word]

    def document(self, now_ns: int) -> dict[str, Any]:
        """Returns the cause as a document of the API."""
        return {
            "cause": self.kind.value,
            "target": self.target,
            "or_targets": list(self.or_targets),
            "severity": self.kind.severity.value,
            "confidence": self.confidence.value,
            "since_s": None if self.since_ns is None else max(0, now_ns - self.since_ns) / 1e9,
            "evs": self.share.evs,
            "of_evs": self.share.of_evs,
            "peers": self.share.peers,
            "of_peers": self.share.of_peers,
            "sentence": self.sentence,
            "do": self.do,
        }
