# SPDX-License-Identifier: BSD-2-Clause
"""Lists where mrcd's programs are attached, as documents, and says whether they forward without the daemon.

The daemon's status contains these documents; mrcctl makes them itself if no daemon runs. So this module needs neither
numpy nor bcc.
"""

import ctypes as ct
import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mrcd.errors import KernelError, MachineError
from mrcd.kernel import libbpf
from mrcd.kernel.libbpf import LinkInfo, ProgramInfo

Document = dict[str, Any]

# enum bpf_link_type, bpf_attach_type: the ones that mrcd uses. Other types are shown by number.
_TRACEPOINT = "raw_tracepoint"
_LINK_TYPES = {1: _TRACEPOINT, 6: "xdp", 11: "tcx"}
_ATTACH_TYPES = {libbpf.TCX_INGRESS: "ingress", libbpf.TCX_EGRESS: "egress"}


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if not p.is_dir())
    except OSError as e:
        hint = "run as root" if isinstance(e, PermissionError) else "mrcd has not run on this host yet"
        raise MachineError(f"{directory}: {e.strerror}", hint=hint) from None


def links(pins: Path) -> list[Document]:
    """Returns a document per pinned link, and per clsact filter of mrcd, which has no pin.

    `interface` is None if the link has none or it is in another network namespace. `attached` is False if the
    interface is gone.
    """
    found = []
    for path in _files(pins / "links"):
        try:
            with libbpf.opened(path) as fd:
                info = libbpf.fill(LinkInfo(), fd)
        except KernelError as e:
            if e.errno != errno.ENOENT:
                raise
            continue  # removed after the directory was read
        kind = _LINK_TYPES.get(info.type, str(info.type))
        xdp = "xdp-generic" if path.name.startswith("pop-xdp-generic") else "xdp"
        found.append(
            {
                "link": path.name,
                "id": info.id,
                "type": kind,
                "point": {"xdp": xdp, _TRACEPOINT: "kfree_skb"}.get(kind, _ATTACH_TYPES.get(info.attach_type)),
                "interface": _name(info.ifindex),
                "ifindex": info.ifindex,
                "attached": kind == _TRACEPOINT or info.ifindex != 0,
                "pinned": True,
                "program_id": info.prog_id,
                "program": program_name(info.prog_id) or _program_of(path.name),
            }
        )
    return found + (_filters() if (pins / "clsact").exists() else [])


def _program_of(pin: str) -> str:
    """Returns the program that mrcd attaches under a pin's name: only CAP_SYS_ADMIN can read it from the kernel."""
    if pin.startswith("pop"):
        return "mrc_pop_xdp" if pin.startswith("pop-xdp") else "mrc_pop"
    return f"mrc_{pin.partition('-')[0]}"


def _filters() -> list[Document]:
    """Returns a document per clsact filter of mrcd. Such a filter stays attached as long as its interface exists."""
    found = []
    for ifindex, interface in socket.if_nameindex():
        for point, number in (("ingress", libbpf.TC_INGRESS), ("egress", libbpf.TC_EGRESS)):
            program = libbpf.query_clsact(ifindex, number)
            if program is not None:
                found.append(
                    {
                        "link": None,
                        "id": None,
                        "type": "clsact",
                        "point": point,
                        "interface": interface,
                        "ifindex": ifindex,
                        "attached": True,
                        "pinned": False,
                        "program_id": program,
                        "program": program_name(program),
                    }
                )
    return found


def _name(ifindex: int) -> str | None:
    try:
        return socket.if_indextoname(ifindex) if ifindex else None
    except OSError:
        return None


def program_name(number: int) -> str | None:
    """Returns a program's name; None if the program is unloaded, or this process may not read it."""
    try:
        fd = libbpf.check(f"open program {number}", libbpf.lib().bpf_prog_get_fd_by_id(ct.c_uint32(number)))
    except KernelError:
        return None
    try:
        return bytes(libbpf.fill(ProgramInfo(), fd).name).decode(errors="replace")
    finally:
        os.close(fd)


def without_daemon(
    found: Iterable[Document], planes: dict[int, int], *, detached: bool, encapsulation: str
) -> Document:
    """Returns whether this host forwards traffic if the daemon dies, and how: {"works", "how"}. Pure.

    `found` is the result of links(); `planes` maps a plane to its ifindex, 0 if the NIC is missing.
    """
    if detached:
        if encapsulation == "ecmp":
            return {
                "works": False,
                "how": "detached, and encapsulation ecmp has no SRv6 routes to fall back to",
            }
        return {"works": True, "how": "detached: the kernel's SRv6 routes forward, one path per flow"}
    alive = [link for link in found if link["attached"]]
    # If the kernel does not give a filter's program: mrc_pop is at the plane NICs, mrc_push is at other interfaces.
    nics = set(planes.values())
    push = [x for x in alive if x["program"] == "mrc_push" or (not x["program"] and x["ifindex"] not in nics)]
    pops = {x["ifindex"] for x in alive if str(x["program"] or "mrc_pop").startswith("mrc_pop")}
    deaf = [str(plane) for plane, ifindex in sorted(planes.items()) if ifindex not in pops]
    if not push:
        return {"works": False, "how": "mrc_push is not attached"}
    if len(deaf) == len(planes):
        return {"works": False, "how": "mrc_pop is not attached to any plane"}
    held = "pinned" if all(link["pinned"] for link in alive) else "held by tc filters"
    how = f"mrc_push at {push[0]['interface'] or 'mrc0'} and mrc_pop at {len(planes) - len(deaf)} planes are {held}"
    return {"works": True, "how": how + (f"; not at plane {', '.join(deaf)}" if deaf else "")}
