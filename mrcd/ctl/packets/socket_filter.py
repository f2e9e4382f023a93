"""Classic BPF for packet sockets: only what is ours is copied to the tool. Pure.

A tag, if it is still in the frame, and an SRH are stepped over; everything else in front of UDP is not ours.
"""

import struct
from collections.abc import Sequence

_LDH, _LDB, _LDH_X, _LDB_X, _LDX = 0x28, 0x30, 0x48, 0x50, 0x01  # load: absolute, behind X, into X
_MUL, _ADD, _ADD_X, _TAX = 0x24, 0x04, 0x0C, 0x07
_JA, _JEQ, _JSET, _RET = 0x05, 0x15, 0x45, 0x06
_ALL = 0x40000  # bytes: more than any frame has

# (operation, constant, label if it is true, label if it is not), or a label; None: the next
_Line = tuple[int, int, str | None, str | None] | str


def assemble(lines: Sequence[_Line]) -> bytes:
    """An array of struct sock_filter."""
    labels: dict[str, int] = {}
    operations: list[tuple[int, int, str | None, str | None]] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(operations)
        else:
            operations.append(line)
    code = b""
    for at, (operation, constant, yes, no) in enumerate(operations):
        jumps = [labels[x] - at - 1 if x else 0 for x in (yes, no)]
        if operation == _JA:
            constant, jumps = jumps[0], [0, 0]
        code += struct.pack("HBBI", operation, *jumps, constant)
    return code


def ours(udp_port: int, flag: int = 0, keep: int = _ALL) -> bytes:
    """Packets to the UDP port of MRC over IPv6; with `flag`, only those with that bit in mrc_hdr.flags.

    `keep`: bytes of a frame that are passed on.
    """
    lines: list[_Line] = [
        (_LDX, 0, None, None),
        (_LDH, 12, None, None),
        (_JEQ, 0x86DD, "ip6", None),
        (_JEQ, 0x8100, None, "no"),
        (_LDX, 4, None, None),
        (_LDH, 16, None, None),
        (_JEQ, 0x86DD, None, "no"),
        "ip6",
        (_LDB_X, 20, None, None),
        (_JEQ, 17, "udp", None),
        (_JEQ, 43, None, "no"),
        (_LDB_X, 54, None, None),  # what follows the routing header
        (_JEQ, 17, None, "no"),
        (_LDB_X, 55, None, None),  # its length
        (_MUL, 8, None, None),
        (_ADD, 8, None, None),
        (_ADD_X, 0, None, None),
        (_TAX, 0, None, None),
        "udp",
        (_LDH_X, 56, None, None),
        (_JEQ, udp_port, None, "no"),
    ]
    if flag:
        lines += [(_LDB_X, 64, None, None), (_JSET, flag, None, "no")]
    return assemble([*lines, (_RET, keep, None, None), "no", (_RET, 0, None, None)])
