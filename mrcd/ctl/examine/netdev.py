"""What a driver can do with XDP, by the kernel's generic netlink family `netdev` (kernel 6.3)."""

import socket
import struct
from collections.abc import Iterator

_NETLINK_GENERIC, _CONTROL = 16, 16
_GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_DEV_GET, _IFINDEX, _XDP_FEATURES = 1, 1, 3
_REQUEST, _ERROR = 1, 2


def xdp_features(ifindex: int) -> int | None:
    """NETDEV_XDP_ACT_* bits of an interface; None if the kernel cannot be asked."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as s:
            s.settimeout(2.0)
            family = _ask(s, _CONTROL, _GETFAMILY, _FAMILY_NAME, b"netdev\0").get(_FAMILY_ID)
            if family is None:
                return None
            (number,) = struct.unpack("H", family[:2])
            features = _ask(s, number, _DEV_GET, _IFINDEX, struct.pack("I", ifindex)).get(_XDP_FEATURES)
            return struct.unpack("Q", features[:8])[0] if features else None
    except OSError:
        return None


def _ask(s: socket.socket, family: int, command: int, attribute: int, value: bytes) -> dict[int, bytes]:
    """One request with one attribute; the attributes of the answer, none if it is an error."""
    body = struct.pack("BBH", command, 1, 0) + struct.pack("HH", 4 + len(value), attribute) + _padded(value)
    s.send(struct.pack("IHHII", 16 + len(body), family, _REQUEST, 1, 0) + body)
    answer = s.recv(1 << 16)
    _, kind, _, _, _ = struct.unpack_from("IHHII", answer)
    return {} if kind == _ERROR else dict(_attributes(answer[20:]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


def _padded(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)
