# SPDX-License-Identifier: BSD-2-Clause
"""Lists pinned maps and links, and the programs that use these maps, as documents.

The daemon's status contains these documents; mrcctl makes them itself if no daemon runs. So this module needs neither
numpy nor bcc.
"""

import ctypes as ct
import errno
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mrcd.bpf import libbpf
from mrcd.bpf.structs import LinkInfo
from mrcd.errors import KernelError, MachineError

Document = dict[str, Any]

# enum bpf_map_type, bpf_prog_type, bpf_link_type: the ones that mrcd uses. Others are shown by number.
_MAP_TYPES = {2: "array", 6: "percpu_array", 11: "lpm_trie", 27: "ringbuf"}
_PROGRAM_TYPES = {3: "sched_cls", 6: "xdp", 26: "tracing"}
_TRACEPOINT = "raw_tracepoint"
_LINK_TYPES = {1: _TRACEPOINT, 6: "xdp", 11: "tcx"}
_ATTACH_TYPES = {libbpf.TCX_INGRESS: "ingress", libbpf.TCX_EGRESS: "egress"}
_MAPS_OF_A_PROGRAM = 64


class ProgramInfo(ct.Structure):
    """struct bpf_prog_info."""

    _fields_ = [
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("tag", ct.c_uint8 * 8),
        ("jited_prog_len", ct.c_uint32),
        ("xlated_prog_len", ct.c_uint32),
        ("_insns", ct.c_uint64 * 2),
        ("load_time", ct.c_uint64),
        ("created_by_uid", ct.c_uint32),
        ("nr_map_ids", ct.c_uint32),
        ("map_ids", ct.c_uint64),
        ("name", ct.c_char * 16),
        ("_device", ct.c_uint32 * 2),
        ("_netns", ct.c_uint64 * 2),
        ("_ksyms", ct.c_uint32 * 2),
        ("_pointers", ct.c_uint64 * 2),
        ("_btf", ct.c_uint32 * 2),
        ("_func_info", ct.c_uint64),
        ("_nr_info", ct.c_uint32 * 2),
        ("_line_info", ct.c_uint64 * 2),
        ("_nr_lines", ct.c_uint32 * 4),
        ("_tags", ct.c_uint64),
        ("run_time_ns", ct.c_uint64),
        ("run_cnt", ct.c_uint64),
        ("recursion_misses", ct.c_uint64),
        ("verified_insns", ct.c_uint32),
        ("_rest", ct.c_uint32 * 3),
    ]


# ---- maps ----


def maps(pins: Path) -> list[Document]:
    """Returns a document per pinned map; sizes in bytes, `memory_bytes` as the kernel counts it. Raises MrcdError."""
    found = []
    for path in _files(pins):
        with libbpf.opened(path) as fd:
            info = libbpf.info(fd)
            memory = _fdinfo(fd).get("memlock")
        found.append(
            {
                "map": path.name,
                "id": info.id,
                "type": _MAP_TYPES.get(info.type, str(info.type)),
                "key_bytes": info.key_size,
                "value_bytes": info.value_size,
                "entries": info.max_entries,
                "memory_bytes": int(memory) if memory else None,
                "pin": str(path),
            }
        )
    return found


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if not p.is_dir())
    except OSError as e:
        hint = "run as root" if isinstance(e, PermissionError) else "mrcd has not run on this host yet"
        raise MachineError(f"{directory}: {e.strerror}", hint=hint) from None


def _fdinfo(fd: int) -> dict[str, str]:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


# ---- links ----


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
            program = libbpf.query_clsact(ifindex, number, libbpf.CLSACT_HANDLE, libbpf.CLSACT_PRIORITY)
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


# ---- programs ----


def programs(pins: Path) -> list[Document]:
    """Returns a document per loaded program that uses one of the pinned maps, whichever process loaded it.

    `hooks` come from links(). The list is empty for programs that the daemon runs itself, and for programs left by a
    version that no longer runs. `run_time_ns` and `runs` count only while kernel.bpf_stats_enabled is 1.
    """
    pinned = {m["id"]: m["map"] for m in maps(pins)}
    hooks: dict[int, list[Document]] = {}
    for link in links(pins):
        if link["attached"]:
            hook = {key: link[key] for key in ("type", "point", "interface")}
            hooks.setdefault(link["program_id"], []).append(hook)
    found = []
    for number in _program_ids():
        try:
            info, used = _program(number)
        except KernelError:
            continue  # unloaded meanwhile
        used_maps = sorted(pinned[m] for m in used if m in pinned)
        if used_maps:
            loaded_s = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - info.load_time / 1e9)
            found.append(
                {
                    "program": info.name.decode(errors="replace"),
                    "id": info.id,
                    "type": _PROGRAM_TYPES.get(info.type, str(info.type)),
                    "tag": bytes(info.tag).hex(),
                    "loaded_s": round(loaded_s, 3),
                    "instructions_bytes": info.xlated_prog_len,
                    "jited_bytes": info.jited_prog_len,
                    "verified_instructions": info.verified_insns,
                    "runs": info.run_cnt,
                    "run_time_ns": info.run_time_ns,
                    "hooks": hooks.get(info.id, []),
                    "maps": used_maps,
                }
            )
    return sorted(found, key=lambda p: (p["program"], p["id"]))


def _program_ids() -> Iterator[int]:
    number = ct.c_uint32(0)
    while (result := libbpf.lib().bpf_prog_get_next_id(number, ct.byref(number))) == 0:
        yield number.value
    if result != -errno.ENOENT:  # ENOENT marks the end of the list
        libbpf.check("list the programs", result, hint="run as root, or with CAP_SYS_ADMIN")


def _program(number: int) -> tuple[ProgramInfo, list[int]]:
    """Returns a program's data and the ids of its maps. Raises KernelError if the program does not exist."""
    fd = libbpf.check(f"open program {number}", libbpf.lib().bpf_prog_get_fd_by_id(ct.c_uint32(number)))
    try:
        ids = (ct.c_uint32 * _MAPS_OF_A_PROGRAM)()
        info = ProgramInfo(nr_map_ids=_MAPS_OF_A_PROGRAM, map_ids=ct.addressof(ids))
        libbpf.fill(info, fd)
    finally:
        os.close(fd)
    return info, list(ids[: min(info.nr_map_ids, _MAPS_OF_A_PROGRAM)])


def program_name(number: int) -> str | None:
    """Returns a program's name; None if the program is unloaded, or this process may not read it."""
    try:
        return bytes(_program(number)[0].name).decode(errors="replace")
    except KernelError:
        return None


# ---- forwarding without the daemon ----


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
