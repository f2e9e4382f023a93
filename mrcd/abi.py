"""Python's view of bpf/mrc_abi.h: the same names, as numpy records and enumerations.

A test compares every offset, size and enumerator with the BTF of the compiled object.
"""

from enum import IntEnum

import numpy as np

ABI_VERSION = 1
WIRE_VERSION = 1
MAX_PLANES = 8
EV_WORDS = 4
SRH_MAX = 88
SPORT_BASE = 0xC000
STATUS_DETACHED = 0x1


class EvState(IntEnum):
    """enum mrc_ev_state"""

    UNKNOWN = 0
    GOOD = 1
    SKIP = 2
    ASSUMED_BAD = 3
    DENIED = 4


class Reason(IntEnum):
    """enum mrc_reason"""

    NEW = 0
    PROBED = 1
    UNANSWERED = 2
    LOSS = 3
    LINK_DOWN = 4
    PEER_LINK_DOWN = 5
    HEALED = 6
    ADMIN = 7

    @property
    def text(self) -> str:
        """The word that users see, in logs, mrcctl and metrics."""
        return self.name.lower()


class Drop(IntEnum):
    """enum mrc_drop: why a packet was dropped"""

    NONE = 0
    NOT_IP = 1
    NO_PEER = 2
    NO_USABLE_EV = 3
    TOO_BIG = 4
    PUSH_FAILED = 5
    TRUNCATED = 6
    BAD_VERSION = 7
    BAD_TYPE = 8
    BAD_SRH = 9
    UNKNOWN_SENDER = 10
    BAD_EV = 11
    WRONG_PLANE = 12
    WRONG_SOURCE = 13
    BAD_INNER = 14
    CE_NOT_ECT = 15
    GLUED = 16
    POP_FAILED = 17
    UNASKED_REPLY = 18
    REPLY_FAILED = 19

    @property
    def text(self) -> str:
        """The word that users see, in logs, mrcctl and metrics."""
        return self.name.lower()


_u8, _u16, _u32, _u64 = np.uint8, np.uint16, np.uint32, np.uint64

EV = np.dtype(
    [
        ("dst", _u8, 16),
        ("configured", _u8),
        ("plane", _u8),
        ("state", _u8),
        ("srh_len", _u8),
        ("probe_seq", _u32),
        ("state_since_ns", _u64),
        ("reply_seq", _u32),
        ("replies", _u32),
        ("probe_ns", _u64),
        ("reply_ns", _u64),
        ("rtt_ns", _u64),
        ("tx_packets", _u64),
        ("tx_bytes", _u64),
        ("settled_tx", _u64),
        ("settled_rx", _u64),
        ("base_tx", _u64),
        ("base_rx", _u64),
        ("rx_ce", _u64),
        ("rx_generation", _u32),
        ("reason", _u8),
        ("relapses", _u8),
        ("reserved", _u8, 2),
    ]
)
RX = np.dtype([("packets", _u64), ("bytes", _u64), ("ce", _u64), ("last_ns", _u64)])
SRH = np.dtype([("bytes", _u8, SRH_MAX)])
PEER = np.dtype(
    [
        ("configured", _u32),
        ("generation", _u32),
        ("ports", _u32),
        ("status", _u32),
        ("heard_ns", _u64),
        ("ports_ns", _u64),
        ("usable", _u64, (MAX_PLANES, EV_WORDS)),
        ("address", _u8, (MAX_PLANES, 16)),
    ]
)
PLANE = np.dtype(
    [
        ("ifindex", _u32),
        ("vlan", _u16),
        ("smac", _u8, 6),
        ("dmac", _u8, 6),
        ("reserved", _u8, 6),
        ("address", _u8, 16),
        ("sid", _u8, 16),
    ]
)
NODE = np.dtype([("generation", _u32), ("ports", _u32), ("status", _u32), ("reserved", _u32)])
PREFIX = np.dtype([("prefixlen", _u32), ("address", _u8, 16)])
ROTATION = np.dtype([("plane", _u32), ("slot", _u16, MAX_PLANES), ("reserved", _u32)])
SETTINGS = np.dtype(
    [
        ("planes", _u32),
        ("evs_per_peer", _u32),
        ("evs_per_plane", _u32),
        ("inner_mtu", _u32),
        ("host_id", _u16),
        ("udp_port", _u16),
        ("srh", _u32),
    ]
)

STRUCTS: dict[str, np.dtype] = {
    "mrc_ev": EV,
    "mrc_rx": RX,
    "mrc_srh": SRH,
    "mrc_peer": PEER,
    "mrc_plane": PLANE,
    "mrc_node": NODE,
    "mrc_prefix": PREFIX,
    "mrc_rotation": ROTATION,
    "mrc_settings": SETTINGS,
}

MAPS: dict[str, np.dtype] = {
    "mrc_evs": EV,
    "mrc_rxs": RX,
    "mrc_srhs": SRH,
    "mrc_peers": PEER,
    "mrc_planes": PLANE,
    "mrc_node": NODE,
}
"""The tables that are mapped into memory, by map name."""
