"""Taking down what a mrcd that does not run has left: routes into mrc0, and programs, of whichever version.

As the daemon does it (switch.py), and by the same means: peers are told with probes, if the tables are this version's.
"""

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrcd.bpf import libbpf
from mrcd.bpf.pins import in_bpffs, locked
from mrcd.config.devices import peer_of
from mrcd.daemon.attachment import QUIET_MS, QUIET_TRIES, wait_quiet
from mrcd.errors import KernelError, MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.health.probe_pace import pace
from mrcd.loader.dataplane import Dataplane
from mrcd.loader.links import Links, Point
from mrcd.net.hooks import tc_hooks
from mrcd.net.netlink import Netlink
from mrcd.net.offloads import FILE, ReceiveChecksums
from mrcd.tables import abi
from mrcd.tables.pinned import Tables, change_field
from mrcd.view import documents

_NOWHERE = Path(os.devnull, "pins")


@dataclass(frozen=True)
class _Left:
    """The keys of the file beside mrcd's socket without which nothing can be detached. The rest of its configuration
    is not checked here: a package may have been upgraded since that mrcd started."""

    pins: Path
    interface: str
    ecmp: bool
    document: dict[str, Any]
    file: os.stat_result

    @classmethod
    def read(cls, path: Path) -> "_Left":
        """Raises MachineError."""
        try:
            document, file = documents.read_running(path)
            config = document["config"]
            overlay, cluster = config["overlay"], config["cluster"]
            ecmp = cluster["encapsulation"] == "ecmp"
            return cls(Path(document["pins"]), str(overlay["interface"]), ecmp, document, file)
        except (OSError, ValueError, KeyError, TypeError) as e:
            why = e.strerror if isinstance(e, OSError) else repr(e)
            raise MachineError(f"no usable {path}: {why}", hint="mrcd has not run on this host yet") from None

    def plan(self) -> Plan:
        """Raises MrcdError if another version wrote it, whose configuration is none of this."""
        try:
            return documents.plan_in(self.document)
        except (ValueError, KeyError, TypeError) as e:
            raise MachineError(f"another version's configuration: {e!r}") from None


def without_mrcd(run_dir: Path) -> dict[str, Any]:
    """Tell the peers, remove the routes into mrc0, wait until peers spray no more to this host, and detach all
    programs. The tables stay, and with them the word that this host is detached. Raises MachineError."""
    if os.geteuid() != 0:
        raise MachineError("mrcd is not running, and to detach without it is for root", hint="start it, or be root")
    left = _Left.read(run_dir / documents.RUNNING_FILE)
    home = left.pins.parent
    with contextlib.ExitStack() as stack:
        lock = -1
        versions: list[Path] = []
        _leads_nowhere_else(home)  # what mrcd, which is not root, has written may name anything
        if in_bpffs(home):
            stack.callback(os.close, lock := locked(home))
            versions = sorted(p for p in home.glob("abi*") if p.is_dir())
            for path in versions:
                _leads_nowhere_else(path, path / "links", path / "mrc_node")
        attached = any(Links(p).attached() for p in versions)
        for path in versions:
            with contextlib.suppress(KernelError):  # there is none
                change_field(path / "mrc_node", "status", lambda status: status | abi.STATUS_DETACHED)
        unrouted, hooks = asyncio.run(_unroute(left))
        quiet = _wait_quiet(left, lock) if attached else not unrouted  # who sprays cannot be told
        for path in versions or [_NOWHERE]:  # filters are held by nothing that is pinned
            Links(path).detach_others(set(), hooks)
        ReceiveChecksums(run_dir / FILE).restore()
        _forget_hooks(run_dir / documents.RUNNING_FILE, left)
    return {"attached": False, "message": _message(left, attached, unrouted, quiet)}


def _message(left: _Left, attached: bool, unrouted: int, quiet: bool) -> str:
    if not attached and not unrouted:
        return "nothing is attached"
    text = "detached, without mrcd: "
    text += "this host is cut off" if left.ecmp else "traffic takes the kernel's SRv6 routes, flow by flow"
    return text if quiet else text + "; some peers may still spray to this host, and what they send is lost"


async def _unroute(left: _Left) -> tuple[int, list[tuple[int, Point]]]:
    """Leave the fallback routes alone in charge. Returns how many routes were removed, and where filters may be."""
    removed = 0
    async with Netlink() as netlink:
        links = await netlink.links()
        ends = [links[n] for n in (left.interface, peer_of(left.interface)) if n in links]
        into = {end.ifindex for end in ends}
        for route in (await netlink.routes()).values():
            if into & {hop.oif for hop in route.hops}:
                await netlink.delete_route(route)
                removed += 1
    return removed, tc_hooks(ends, links.values())


def _wait_quiet(left: _Left, lock: int) -> bool:
    """Tell all peers until no sprayed packet comes; False if they keep coming, or cannot be told."""
    with contextlib.ExitStack() as stack:
        try:
            plan = left.plan()
            tables = Tables(left.pins, writable=False)
            stack.callback(tables.close)
            libbpf.use_bcc()
            dataplane = Dataplane(plan, left.pins.parents[1], lock=lock)
            stack.callback(dataplane.close)
            dataplane.load()
            if dataplane.fresh:
                dataplane.forget_staged()
                raise MachineError("the tables are others than this version's")
            window = pace(plan.config.health, len(plan.peers), plan.ev_count, plan.config.cluster.evs_per_peer).window
            peers = [p.host.id for p in plan.peers]
            return asyncio.run(wait_quiet(tables, lambda: [dataplane.sweep(row, 0, window) for row in peers]))
        except (MrcdError, OSError):
            time.sleep(QUIET_MS * QUIET_TRIES / 1000)  # many ask meanwhile, and are told
            return False


def _leads_nowhere_else(*paths: Path) -> None:
    """A BPF file system has symbolic links, too."""
    for path in paths:
        if path.is_symlink():
            raise MachineError(f"{path} is a symbolic link", hint="remove it; nothing was changed")


def _forget_hooks(path: Path, left: _Left) -> None:
    """Nothing is attached any more: `mrcctl status` tells by this file. It stays its owner's, who may not have root
    write elsewhere."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, left.file.st_mode & 0o777)
    with os.fdopen(descriptor, "w") as f:
        os.fchown(descriptor, left.file.st_uid, left.file.st_gid)
        json.dump(left.document | {"hooks": []}, f)
    new.rename(path)
