# SPDX-License-Identifier: BSD-2-Clause
"""Assembles classic BPF filters, so that packet sockets receive MRC packets only. Pure.

A filter accepts an IPv6 UDP packet with an optional VLAN tag and an optional SRH before UDP, and no other header.
"""

import struct
from collections.abc import Sequence

_LDH, _LDB, _LDH_X, _LDB_X, _LDX = 0x28, 0x30, 0x48, 0x50, 0x01  # load: absolute, relative to X, into X
_MUL, _ADD, _ADD_X, _TAX = 0x24, 0x04, 0x0C, 0x07
_JA, _JEQ, _JSET, _RET = 0x05, 0x15, 0x45, 0x06
_ALL = 0x40000  # bytes: more than the longest frame

# (operation, constant, label if true, label if false), or a label; None is the next line
_Line = tuple[int, int, str | None, str | None] | str


def assemble(lines: Sequence[_Line]) -> bytes:
    """Return the lines as an array of struct sock_filter."""
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


def mrc_packets(udp_port: int, flag: int = 0) -> bytes:
    """Return a filter for packets to MRC's UDP port; with `flag`, only those with that bit in mrc_hdr.flags."""
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
        (_LDB_X, 54, None, None),  # next header after the routing header
        (_JEQ, 17, None, "no"),
        (_LDB_X, 55, None, None),  # length of the routing header
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
    return assemble([*lines, (_RET, _ALL, None, None), "no", (_RET, 0, None, None)])
