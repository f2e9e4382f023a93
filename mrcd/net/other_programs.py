"""Programs of others at the hooks where mrcd's are: those in front of ours may keep packets from it."""

import asyncio
import contextlib
import ctypes as ct
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from mrcd.bpf import libbpf
from mrcd.errors import KernelError

Document = dict[str, Any]
Hook = tuple[int, str]  # ifindex; "xdp", "ingress" or "egress"
Found = tuple[int, str | None]  # id of a program, 0 if it has none; its name, if the hook tells

_PARENTS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_TCX = {"ingress": libbpf.TCX_INGRESS, "egress": libbpf.TCX_EGRESS}
_MOST = 64


def at(hooks: Iterable[Hook], ours: set[int]) -> list[Document]:
    """A document per program at these hooks that is not one of `ours`, by id. Raises KernelError.

    `position`: "before" ours or "after" it, by the order in which the kernel runs them; "alone" where ours is not.
    """
    found = []
    for ifindex, point in dict.fromkeys(hooks):
        with contextlib.suppress(OSError):  # gone meanwhile
            interface = socket.if_indextoname(ifindex)
            found += _documents(interface, point, programs(ifindex, point), ours)
    return found


def _documents(interface: str, point: str, there: Sequence[Found], ours: set[int]) -> list[Document]:
    """Pure."""
    mine = next((i for i, (number, _) in enumerate(there) if number in ours), None)
    return [
        {
            "interface": interface,
            "point": point,
            "position": "alone" if mine is None else "before" if i < mine else "after",
            "program_id": number or None,
            "program": name,
        }
        for i, (number, name) in enumerate(there)
        if number not in ours
    ]


def programs(ifindex: int, point: str) -> list[Found]:
    """What is at a hook, in the order in which it runs. Raises KernelError, OSError."""
    if point == "xdp":
        number = ct.c_uint32()
        libbpf.check("ask for the XDP program", libbpf.lib().bpf_xdp_query_id(ifindex, 0, ct.byref(number)))
        return [(number.value, None)] if number.value else []
    first: list[int] = []
    with contextlib.suppress(KernelError):  # a kernel without TCX
        first = tcx(ifindex, point)
    return [*((n, None) for n in first), *asyncio.run(_filters(ifindex, point))]


def tcx(ifindex: int, point: str) -> list[int]:
    """Ids of the programs at a TCX hook, which run before filters. Raises KernelError where there is no TCX."""
    numbers, count, flags = (ct.c_uint32 * _MOST)(), ct.c_uint32(_MOST), ct.c_uint32()
    result = libbpf.lib().bpf_prog_query(ifindex, _TCX[point], 0, ct.byref(flags), numbers, ct.byref(count))
    libbpf.check("ask which programs are attached", result)
    return [n for n in list(numbers)[: count.value] if n]


async def _filters(ifindex: int, point: str) -> list[Found]:
    """Filters of clsact, in the order of their priorities. Other kinds than bpf are named by their kind."""
    from pyroute2 import AsyncIPRoute

    found: dict[tuple[int, int, str], None] = {}
    async with AsyncIPRoute() as ipr:
        async for msg in await ipr.get_filters(index=ifindex, parent=_PARENTS[point]):
            kind, options = msg.get("TCA_KIND"), msg.get("TCA_OPTIONS")
            if not kind or not msg["handle"]:
                continue
            name, number = f"a {kind} filter", 0
            if kind == "bpf" and options is not None:
                # PROGRAM:[ID] if libbpf has attached it, FILE:[SECTION] if tc has.
                name = str(options.get("TCA_BPF_NAME")).partition(":[")[0]
                number = int(options.get("TCA_BPF_ID") or 0)
            found[msg["info"] >> 16, number, name] = None
    return [(number, name) for _, number, name in sorted(found)]
