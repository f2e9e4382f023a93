# SPDX-License-Identifier: BSD-2-Clause
"""Lists other programs at the hooks of mrcd's programs: one that runs earlier may keep packets from mrcd."""

import asyncio
import contextlib
import ctypes as ct
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from mrcd.errors import KernelError
from mrcd.kernel import libbpf

Document = dict[str, Any]
Hook = tuple[int, str]  # ifindex; "xdp", "ingress" or "egress"
Program = tuple[int, str | None]  # its id, 0 if it has none; its name, if the hook reports it

_PARENTS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_TCX = {"ingress": libbpf.TCX_INGRESS, "egress": libbpf.TCX_EGRESS}
_MAX_PROGRAMS = 64


def at(hooks: Iterable[Hook], ours: set[int]) -> list[Document]:
    """Returns a document per program at these hooks whose id is not in `ours`. Raises KernelError.

    `position`: the kernel runs the program "before" or "after" mrcd's; "alone" if mrcd has no program there.
    """
    found = []
    for ifindex, point in dict.fromkeys(hooks):
        with contextlib.suppress(OSError):  # the interface was deleted meanwhile
            interface = socket.if_indextoname(ifindex)
            found += documents(interface, point, programs(ifindex, point), ours)
    return found


def documents(interface: str, point: str, attached: Sequence[Program], ours: set[int]) -> list[Document]:
    """Returns the documents of one hook. Pure."""
    our_index = next((i for i, (number, _) in enumerate(attached) if number in ours), None)
    return [
        {
            "interface": interface,
            "point": point,
            "position": "alone" if our_index is None else "before" if i < our_index else "after",
            "program_id": number or None,
            "program": name,
        }
        for i, (number, name) in enumerate(attached)
        if number not in ours
    ]


def programs(ifindex: int, point: str) -> list[Program]:
    """Returns the programs at a hook in the order in which they run. Raises KernelError, OSError."""
    if point == "xdp":
        number = ct.c_uint32()
        libbpf.check("query the XDP program", libbpf.lib().bpf_xdp_query_id(ifindex, 0, ct.byref(number)))
        return [(number.value, None)] if number.value else []
    first: list[int] = []
    with contextlib.suppress(KernelError):  # a kernel without TCX
        first = tcx(ifindex, point)
    return [*((n, None) for n in first), *asyncio.run(_filters(ifindex, point))]


def tcx(ifindex: int, point: str) -> list[int]:
    """Returns the ids of the programs at a TCX hook, which run before filters. Raises KernelError without TCX."""
    numbers, count, flags = (ct.c_uint32 * _MAX_PROGRAMS)(), ct.c_uint32(_MAX_PROGRAMS), ct.c_uint32()
    result = libbpf.lib().bpf_prog_query(ifindex, _TCX[point], 0, ct.byref(flags), numbers, ct.byref(count))
    libbpf.check("query the attached TCX programs", result)
    return [n for n in list(numbers)[: count.value] if n]


async def _filters(ifindex: int, point: str) -> list[Program]:
    """Returns the clsact filters in the order of their priorities. A filter that is not bpf is named by its kind."""
    from pyroute2.iproute import AsyncIPRoute

    found: dict[tuple[int, int, str], None] = {}
    async with AsyncIPRoute() as ipr:
        async for msg in await ipr.get_filters(index=ifindex, parent=_PARENTS[point]):
            kind, options = msg.get("TCA_KIND"), msg.get("TCA_OPTIONS")
            if not kind or not msg["handle"]:
                continue
            name, number = f"a {kind} filter", 0
            if kind == "bpf" and options is not None:
                # libbpf names a filter PROGRAM:[ID], tc names it FILE:[SECTION].
                name = str(options.get("TCA_BPF_NAME")).partition(":[")[0]
                number = int(options.get("TCA_BPF_ID") or 0)
            found[msg["info"] >> 16, number, name] = None
    return [(number, name) for _, number, name in sorted(found)]
