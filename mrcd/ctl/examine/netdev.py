# SPDX-License-Identifier: BSD-2-Clause
"""Queries drivers' XDP features (kernel 6.3) and queue counters (6.10) through the generic netlink family `netdev`."""

import socket
import struct
from collections.abc import Iterator

_NETLINK_GENERIC, _CONTROL = 16, 16
_GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_DEV_GET, _QSTATS_GET = 1, 12
_IFINDEX, _XDP_FEATURES = 1, 3
_QUEUE_TYPE, _QUEUE_ID, _SCOPE, _RX_PACKETS = 2, 3, 4, 8  # of QSTATS_GET
_BY_QUEUE, _RECEIVE = 1, 0
_REQUEST, _DUMP = 0x1, 0x301
_ERROR, _DONE = 2, 3


def xdp_features(ifindex: int) -> int | None:
    """Return the NETDEV_XDP_ACT_* bits of an interface; None if the kernel has no such query."""
    for found in _query(_DEV_GET, _REQUEST, {_IFINDEX: ifindex}):
        if _XDP_FEATURES in found:
            return found[_XDP_FEATURES]
    return None


def receive_queues(ifindex: int) -> dict[int, int]:
    """Return the packets by receive queue; empty if the driver does not count them."""
    return {
        q[_QUEUE_ID]: q[_RX_PACKETS]
        for q in _query(_QSTATS_GET, _DUMP, {_IFINDEX: ifindex, _SCOPE: _BY_QUEUE})
        if q.get(_QUEUE_TYPE) == _RECEIVE and {_QUEUE_ID, _RX_PACKETS} <= q.keys()
    }


def _query(command: int, flags: int, attributes: dict[int, int]) -> list[dict[int, int]]:
    """Return the numeric attributes of each answer; empty if the kernel lacks the command."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as s:
            s.settimeout(2.0)
            name = struct.pack("HH", 11, _FAMILY_NAME) + b"netdev\0\0"
            family = [f[_FAMILY_ID] for f in _answers(s, _CONTROL, _GETFAMILY, _REQUEST, name) if _FAMILY_ID in f]
            body = b"".join(struct.pack("HHI", 8, kind, value) for kind, value in attributes.items())
            return list(_answers(s, family[0], command, flags, body)) if family else []
    except OSError:
        return []


def _answers(s: socket.socket, family: int, command: int, flags: int, body: bytes) -> Iterator[dict[int, int]]:
    body = struct.pack("BBH", command, 1, 0) + body
    s.send(struct.pack("IHHII", 16 + len(body), family, flags, 1, 0) + body)
    while True:
        data = s.recv(1 << 16)
        while len(data) >= 16:
            length, kind, _, _, _ = struct.unpack_from("IHHII", data)
            if kind in (_ERROR, _DONE) or length < 20:
                return
            yield dict(_numbers(data[20:length]))
            data = data[(length + 3) & ~3 :]
        if flags == _REQUEST:
            return


def _numbers(data: bytes) -> Iterator[tuple[int, int]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        if length < 4:
            return
        value = data[4:length]
        if len(value) in (2, 4, 8):
            yield kind & 0x3FFF, int.from_bytes(value, "little" if struct.pack("H", 1)[0] else "big")
        data = data[(length + 3) & ~3 :]
