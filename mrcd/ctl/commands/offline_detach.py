# SPDX-License-Identifier: BSD-2-Clause
"""Detaches the data plane while mrcd is down: removes routes into mrc0, then the programs of every version.

It follows the daemon's order (mrcd/daemon/attachment.py). Probes tell the peers, if the tables have this version.
"""

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrcd.config.devices import peer_of
from mrcd.daemon.quiet import QUIET_MS, QUIET_TRIES, wait_quiet
from mrcd.errors import KernelError, MachineError, MrcdError
from mrcd.health import probe_pace
from mrcd.kernel import abi, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.links import Links, Point
from mrcd.kernel.pinned import Tables, change_field
from mrcd.kernel.pins import in_bpffs, locked
from mrcd.net.hooks import tc_hooks
from mrcd.net.netlink import Netlink
from mrcd.net.offloads import FILE, ReceiveChecksums
from mrcd.view import running_file

_NOWHERE = Path(os.devnull, "pins")


@dataclass(frozen=True)
class Running:
    """The keys of running.json that a detach needs.

    The rest of its configuration is not checked: the package may have been upgraded since that mrcd started.
    """

    pins: Path
    interface: str
    ecmp: bool
    document: dict[str, Any]
    file: os.stat_result

    @classmethod
    def read(cls, path: Path) -> "Running":
        """Read running.json. Raises MachineError."""
        try:
            document, file = running_file.read_running(path)
            config = document["config"]
            overlay, cluster = config["overlay"], config["cluster"]
            key = "encapsulation" if "encapsulation" in cluster else "steering"  # the former name
            ecmp = cluster[key] == "ecmp"
            return cls(Path(document["pins"]), str(overlay["interface"]), ecmp, document, file)
        except (OSError, ValueError, KeyError, TypeError) as e:
            why = e.strerror if isinstance(e, OSError) else repr(e)
            raise MachineError(f"no usable {path}: {why}", hint="mrcd has not run on this host yet") from None


def without_mrcd(run_dir: Path) -> dict[str, Any]:
    """Tell the peers, remove the routes into mrc0, wait until peers stop spraying to this host, detach all programs.

    The tables stay, and keep the status "detached". Raises MachineError.
    """
    if os.geteuid() != 0:
        raise MachineError(
            "mrcd is not running; only root can detach without it", hint="start mrcd, or run mrcctl as root"
        )
    running = Running.read(run_dir / running_file.RUNNING_FILE)
    home = running.pins.parent
    with contextlib.ExitStack() as stack:
        lock = -1
        versions: list[Path] = []
        refuse_links(home)  # running.json is written by mrcd, which is not root, so it may name any path
        if in_bpffs(home):
            stack.callback(os.close, lock := locked(home))
            versions = sorted(p for p in home.glob("abi*") if p.is_dir())
            for path in versions:
                refuse_links(path, path / "links", path / "mrc_node")
        attached = any(Links(p).attached() for p in versions)
        for path in versions:
            with contextlib.suppress(KernelError):  # the map does not exist
                change_field(path / "mrc_node", "status", lambda status: status | abi.STATUS_DETACHED)
        unrouted, hooks = asyncio.run(_unroute(running))
        # Without attached programs nothing counts sprayed packets: then assume that peers with routes spray.
        quiet = _wait_quiet(running, lock) if attached else not unrouted
        for path in versions or [_NOWHERE]:  # clsact filters exist without pins
            Links(path).detach_others(set(), hooks)
        ReceiveChecksums(run_dir / FILE).restore()
        _forget_hooks(run_dir / running_file.RUNNING_FILE, running)
    return {"attached": False, "message": _message(running, attached, unrouted, quiet)}


def _message(running: Running, attached: bool, unrouted: int, quiet: bool) -> str:
    if not attached and not unrouted:
        return "nothing is attached"
    text = "detached, without mrcd: "
    text += "this host is cut off" if running.ecmp else "traffic takes the kernel's SRv6 routes, flow by flow"
    return text if quiet else text + "; some peers may still spray to this host, and what they send is lost"


async def _unroute(running: Running) -> tuple[int, list[tuple[int, Point]]]:
    """Remove the routes into mrc0, so that the fallback routes apply.

    Returns the number of removed routes, and the hooks where filters may be.
    """
    removed = 0
    async with Netlink() as netlink:
        links = await netlink.links()
        former_peer = running.interface + "p"  # its name before it was peer_of()
        names = (running.interface, peer_of(running.interface), former_peer)
        ends = [links[n] for n in names if n in links]
        into = {end.ifindex for end in ends}
        for route in (await netlink.routes()).values():
            if into & {hop.oif for hop in route.hops}:
                await netlink.delete_route(route)
                removed += 1
    return removed, tc_hooks(ends, links.values())


def _wait_quiet(running: Running, lock: int) -> bool:
    """Tell all peers until no sprayed packet arrives. Returns False if that fails, or peers cannot be told."""
    with contextlib.ExitStack() as stack:
        try:
            plan = running_file.plan_in(running.document)
            tables = Tables(running.pins, writable=False)
            stack.callback(tables.close)
            libbpf.use_bcc()
            dataplane = Dataplane(plan, running.pins.parents[1], lock=lock)
            stack.callback(dataplane.close)
            dataplane.load()
            if dataplane.fresh:
                dataplane.remove_staged()
                raise MachineError("the pinned tables have another version")
            window = probe_pace.of_plan(plan).window
            peers = plan.rows.tolist()
            return asyncio.run(wait_quiet(tables, lambda: [dataplane.sweep(row, 0, window) for row in peers]))
        except (MrcdError, OSError, ValueError, KeyError, TypeError):  # also: another version wrote the configuration
            time.sleep(QUIET_MS * QUIET_TRIES / 1000)  # the programs tell each peer that sends a probe meanwhile
            return False


def refuse_links(*paths: Path) -> None:
    """Raise MachineError if a path is a symbolic link; a BPF file system may contain them."""
    for path in paths:
        if path.is_symlink():
            raise MachineError(f"{path} is a symbolic link", hint="remove it; nothing was changed")


def _forget_hooks(path: Path, running: Running) -> None:
    """Write running.json without hooks, which `mrcctl status` shows. The file keeps its owner and mode.

    O_EXCL keeps root from writing through a file that the owner has put there.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, running.file.st_mode & 0o777)
    with os.fdopen(descriptor, "w") as f:
        os.fchown(descriptor, running.file.st_uid, running.file.st_gid)
        json.dump(running.document | {"hooks": []}, f)
    new.rename(path)
