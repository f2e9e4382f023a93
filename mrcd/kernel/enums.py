# SPDX-License-Identifier: BSD-2-Clause
"""Defines the enums of bpf/mrc_abi.h and bpf/mrc_events.h. A test compares each enumerator with the object's BTF."""

from enum import IntEnum, IntFlag

from mrcd.kernel.abi import MAX_PLANES


class _Named(IntEnum):
    @property
    def text(self) -> str:
        """Returns the name that logs, mrcctl and metrics show."""
        return self.name.lower()


class EvState(IntEnum):
    """enum mrc_ev_state"""

    UNKNOWN = 0
    GOOD = 1
    SKIP = 2
    ASSUMED_BAD = 3
    DENIED = 4


class Policy(IntEnum):
    """enum mrc_policy"""

    NONE = 0
    SPRAY = 1
    FLOWLET = 2
    PINNED = 3
    CRITICAL = 4


class Reason(_Named):
    """enum mrc_reason"""

    NEW = 0
    PROBED = 1
    OVERDUE = 2
    LOSS = 3
    GREY_LOSS = 4
    ICMP_ERROR = 5
    LINK_DOWN = 6
    PEER_LINK_DOWN = 7
    HEALED = 8
    ADMIN = 9
    CONGESTED = 10
    LAGGING = 11
    SLOW = 12


class Histogram(IntEnum):
    """enum mrc_histogram; RTT is that of plane 0, the other planes' follow it"""

    DETECTION = 0
    AFTER_GOOD = 1
    RTT = 2
    REINSTATEMENT = 2 + MAX_PLANES


HISTOGRAMS = len(Histogram) + MAX_PLANES - 1


class Drop(_Named):
    """enum mrc_drop: why a packet was dropped"""

    NONE = 0
    NOT_IP = 1
    NO_PEER = 2
    NO_USABLE_EV = 3
    TOO_BIG = 4
    PUSH_FAILED = 5
    PROBE_FAILED = 6
    TRUNCATED = 7
    BAD_VERSION = 8
    BAD_TYPE = 9
    BAD_SRH = 10
    UNKNOWN_SENDER = 11
    BAD_EV = 12
    WRONG_PLANE = 13
    WRONG_SOURCE = 14
    BAD_INNER = 15
    CE_NOT_ECT = 16
    MERGED = 17
    POP_FAILED = 18
    UNSOLICITED_REPLY = 19
    REPLY_FAILED = 20
    BAD_PROBE = 21
    WRONG_RECEIVER = 22
    UNTAGGED = 23
    UNKNOWN_KEY = 24
    BAD_TAG = 25
    STALE = 26
    REPLAYED = 27
    WRONG_INNER_SOURCE = 28
    WRONG_INNER_DESTINATION = 29
    FOREIGN_SOURCE = 30
    STRAY_SRV6 = 31
    FIREWALL = 32
    REVERSE_PATH = 33
    OTHER_PROGRAM = 34
    TRIMMED = 35


class AuthMode(IntEnum):
    """enum mrc_auth_mode"""

    OFF = 0
    PERMISSIVE = 1
    REQUIRED = 2


class ProbeKind(_Named):
    """enum mrc_probe_kind: why a probe request is sent"""

    TRAFFIC = 0
    SUSPICION = 1
    RETRY = 2
    IDLE = 3
    LINK = 4


class KernelHas(IntFlag):
    """enum mrc_kernel_has: features that not every kernel has"""

    KERN_CTX = 0x1
    DECAP_L3 = 0x2
