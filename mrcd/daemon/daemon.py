"""The daemon: reconciles what the configuration wants with what the kernel has, probes, judges.

Forwarding does not need it. It may be started, stopped or killed under load; what it installs stays
until `mrcctl detach`.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import numpy as np

from mrcd.bpf import libbpf
from mrcd.daemon import install
from mrcd.daemon.pin_keeper import keep_pins
from mrcd.denials import file
from mrcd.denials.control import DenialControl
from mrcd.errors import MrcdError
from mrcd.fabric.topology import Peer, Plan
from mrcd.health.events import EventLog
from mrcd.health.monitor import Monitor
from mrcd.loader.dataplane import Dataplane
from mrcd.net import hooks, offloads, routes
from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink
from mrcd.net.nics import RETRY_S, Nics
from mrcd.net.route_keeper import RouteKeeper
from mrcd.net.route_watch import watch_routes
from mrcd.tables.pinned import Tables, is_detached
from mrcd.view import documents
from mrcd.view.workers import Readers

log = logging.getLogger("mrcd")

_SETTLE_S = 0.05  # netlink events come in bursts: reconcile once for each burst
_AT_ONCE = 256  # peers; with more, a start does not wait for their routes, and the event loop serves others in between


class Daemon:
    """One host's control plane over its pinned data plane."""

    def __init__(self, plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self.events = EventLog()
        self.denials = DenialControl(file.directory(run_dir, state_dir) / file.FILE, self.events)
        self.started = time.monotonic()
        self.dataplane = Dataplane(plan, bpffs)
        self.checksums = offloads.ReceiveChecksums(run_dir / offloads.FILE)
        self.peers: dict[int, Peer] = {}
        self._fabric: list[Route] = []
        self._dirty: set[int] = set()  # rows whose routes must be made anew
        self._look_at_routes = True  # the kernel's may be others than those written
        self._tidy = False  # when no row is dirty any more, delete what nobody wants
        self._wake = asyncio.Event()
        self.netlink_lock = asyncio.Lock()
        self.admin_lock = asyncio.Lock()  # taken before the other
        self.readers = Readers()
        self._relink = False  # links or addresses may be others than before
        self._reneighbour = False  # so may first hops
        self._left = 0  # planes that were left because of lost carriers, of which nothing else knows yet
        self._warned: set[str] = set()
        self._attached_at: set[int] | None = None  # the interfaces when all was attached
        self.settled = asyncio.Event()  # a peer could be sprayed to, and routes were made of it, since this daemon came
        self.nics: Nics
        self.tables: Tables
        self._forwards_by: Tables  # what is attached; others only while another plan is being adopted
        self.view: documents.View
        self.monitor: Monitor
        self._adopted = asyncio.Event()  # not while another plan is being adopted
        self._monitoring: asyncio.Task[None] | None = None

    # ---- start, and another plan ----

    async def start(self, netlink: Netlink) -> None:
        """Bring the host to what the plan wants."""
        self.netlink, self._routes = netlink, RouteKeeper(netlink)
        self.nics = Nics(self.plan, netlink, self._warn, self._look_again)
        libbpf.use_bcc()
        self.dataplane.load()
        self._forwards_by = tables = Tables(self.dataplane.tables, writable=True)
        await self.adopt(self.plan, self.dataplane, tables)
        self._note_settled()
        what = "tables are new" if self.dataplane.fresh else "carries on with the tables it found"
        self.events.add("daemon", reason="started", after="detached" if self.detached else "attached")
        log.info("%s: %d peers, %d EVs; %s", self.plan.host.name, len(self.peers), self.plan.ev_count, what)

    async def adopt(self, plan: Plan, dataplane: Dataplane, tables: Tables) -> None:
        """Make this plan the one in force, in an order that loses nothing; `dataplane` is loaded for it, with `tables`.
        What is attached meanwhile forwards by the plan before; requests for documents wait."""
        in_force = self._adopted.is_set()  # and not one that was refused half-way
        self._adopted.clear()
        await self.readers.stop()
        if self._monitoring:
            self._monitoring.cancel()
            await asyncio.wait({self._monitoring})
            self.monitor.log_events()  # events of the plan before, by the names that peers had
        shrinks = plan.inner_mtu < self.plan.inner_mtu
        self.nics.follow(plan)
        left = set(self.plan.interfaces) - set(plan.interfaces)
        self.plan, self.dataplane, self.tables = plan, dataplane, tables
        dataplane.plan = plan
        before = {row: p.host.name for row, p in self.peers.items()} or documents.hosts_before(self.run_dir)
        replaced_hosts = documents.replaced_hosts(before, plan)
        gone = self.peers.keys() - {p.host.id for p in plan.peers} | self.peers.keys() & replaced_hosts
        self.peers = {p.host.id: p for p in plan.peers}
        self._dirty &= self.peers.keys()
        for row in gone:
            if in_force:  # nobody is to send to hosts that are no more
                _log_changes(await self._routes.set_routes(row, ()))
            self._routes.forget(row)
        install.write_peers(tables, plan, dataplane.refresh, replaced_hosts)
        for n, _ in enumerate(dataplane.take_over(tables, replaced_hosts)):
            if n % _AT_ONCE == 0:
                await asyncio.sleep(0)
        dataplane.set_prefixes(install.prefixes(plan))
        self.view = documents.View(tables, plan, [], dataplane.pins)
        monitor = Monitor(plan, tables, dataplane, self.events, self._mark)
        if self._monitoring:
            monitor.follow(self.monitor, replaced_hosts)
        self.monitor = monitor
        await self.denials.follow(plan, tables, self.monitor)
        if shrinks:  # mrc0's veth drops what is longer, and peers yet send it
            self._forwards_by.node["merge_ifindex"] = 0
        await self._reconcile(merging=not shrinks)
        await self.nics.remove_addresses(left)
        if shrinks:  # first let packets be as small as the new programs want them
            await self.write_routes(set(self.peers))
        self.attach_programs()
        self._write_receiver(merging=True)
        dataplane.commit()
        self._forwards_by = tables
        self.save_running()
        self._dirty, self._look_at_routes = set(self.peers), True
        if len(self.peers) <= _AT_ONCE:
            await self._write_dirty_routes()
        else:
            self._wake.set()
        self.resume()

    def resume(self) -> None:
        """Watch the paths; where adopting has failed, by whatever it got to."""
        self._adopted.set()
        self.readers.go_on()

    def attach_anew(self) -> None:
        """Programs, as soon as may be: those of another plan may be attached, or such as answer no probe."""
        self._attached_at = None
        self._look_again()

    def save_running(self) -> None:
        """Writes what mrcctl needs while no daemon runs; nothing else needs the file."""
        try:
            documents.save_running(self.run_dir, self.plan, self.dataplane.pins, self.view.hooks)
        except OSError as e:
            self._warn(f"{self.run_dir}: {e.strerror}: without mrcd, mrcctl will not know what has changed since")

    async def close(self) -> None:
        """Closes tables and programs; the data plane goes on."""
        await self.readers.stop()
        self.tables.close()
        self.dataplane.close()

    @property
    def detached(self) -> bool:
        """Whether an administrator has taken this host's data plane down."""
        return is_detached(self.tables.node)

    # ---- links, neighbours, addresses ----

    async def _reconcile(self, *, merging: bool = True) -> None:
        """Interfaces, addresses, first hops: actual state to desired state."""
        await self.nics.reconcile()
        self.view.cuts = hooks.segmentations(self.plan, self.nics.ports)
        self._write_receiver(merging=merging)
        bitmap = (
            install.write_planes(self.tables, self.plan, self.nics.ports, self.nics.macs) & ~self.nics.lost_plane_mask()
        )
        self._fabric = routes.fabric_routes(self.plan, self.nics.enabled())
        await self._use_ports(bitmap)

    def _write_receiver(self, *, merging: bool) -> None:
        nics, packet = self.nics, self.plan.config.cluster.granularity == "packet"
        merging = merging and nics.merging
        install.write_receiver(self.tables, nics.mrc0, nics.mrc0_peer, merging=merging, xdp_too=packet)

    async def _use_ports(self, bitmap: int) -> None:
        """These planes, as bits, can send. What was left meanwhile and is back is news too: peers know of the loss."""
        left, self._left = self._left, 0
        before = int(self.tables.node["plane_mask"]) | left
        self.tables.node["plane_mask"] = bitmap
        if left or bitmap != before:
            await self._ports_changed(before, bitmap)

    def _lose(self, ifindex: int) -> None:
        """A link has no carrier: not one packet more on its plane, and the peers are told. The rest comes with
        everything else that is looked at then, which takes its time and waits for more of the same flock of events."""
        self.nics.note_carrier_lost(ifindex)
        ports, lost = int(self.tables.node["plane_mask"]), self.nics.lost_plane_mask()
        if ports & lost:
            self._left |= ports & lost
            for tables in (self.tables, self._forwards_by):
                tables.node["plane_mask"] = int(tables.node["plane_mask"]) & ~lost
            self.monitor.announce()

    def _look_again(self) -> None:
        self._relink = True
        self._wake.set()

    def look_at_routes(self) -> None:
        """The kernel's may be others than those written."""
        self._dirty |= set(self.peers)
        self._look_at_routes = True
        self._wake.set()

    def _warn(self, text: str) -> None:
        """Once; reconciling comes with every netlink event."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    async def _ports_changed(self, before: int, now: int) -> None:
        for plane in range(self.plan.config.cluster.planes):
            bit = 1 << plane
            if (before ^ now) & bit:
                up = bool(now & bit)
                nic = self.plan.interfaces[plane]
                port = self.nics.ports.get(plane)
                reason = "link_up" if up else "no_interface" if port is None else "link_down"
                if port is not None and port.nic.up and not up and not self.nics.lost_plane_mask() & bit:
                    reason = "first_hop_unresolved"
                self.events.add(
                    "plane",
                    plane=plane,
                    reason=reason,
                    before="down" if up else "up",
                    after="up" if up else "down",
                    evidence={"interface": nic},
                )
        self.monitor.announce()  # tell the peers
        for row in self.peers:
            self.dataplane.refresh(row)
            self._mark(row)

    def attach_programs(self) -> None:
        """Pop before push: this host can receive before it asks anyone to reply.

        A detached host has no push; pop stays for peers that have yet to notice, unless it was taken
        away by force. Requests ride on what is pushed: mrc_probe is there before they do, and until they stop.
        """
        self.view.hooks.clear()
        for tables in (self.tables, self._forwards_by):  # what is attached arms clones for what comes
            tables.node["probe_ifindex"] = tables.node["timer_ifindex"] = 0
        self._attached_at = None  # until the last step has succeeded
        if self.detached and not self.dataplane.attached():
            self.checksums.restore()
            self._attached_at = self.nics.interfaces()
            return
        ports, keep = self.nics.ports, set[str]()
        wanted = self.plan.config.hook(self.plan.host)
        with self.dataplane.replacing_programs(self.tables.node):
            for port in ports.values():
                first = min(p for p, other in ports.items() if other.physical.ifindex == port.physical.ifindex)
                used, document = hooks.attach_pop(self.dataplane, wanted, port, first, self.checksums)
                keep |= used
                self.view.hooks.append(document)
            if not self.detached:
                probe = hooks.probe_attachment(self.nics.mrc0_peer)
                self.dataplane.attach(probe)
                self.tables.node["probe_ifindex"] = self.nics.mrc0_peer.ifindex
                if self.nics.timer:
                    end, peer = self.nics.timer
                    timer = hooks.timer_attachment(end)
                    self.dataplane.attach(timer)
                    self.tables.node["timer_ifindex"] = peer.ifindex
                    keep.add(timer.name)
                unsent = hooks.unsent_attachment()
                self.dataplane.attach(unsent)
                keep.add(unsent.name)
                push, document = hooks.push_attachment(
                    self.plan.config.cluster.granularity, self.nics.mrc0, self.nics.mrc0_peer
                )
                self.view.hooks.append(document | {"how": self.dataplane.attach(push)})
                keep |= {probe.name, push.name}
                if push.point == "egress":
                    tunnels = hooks.tunnels_attachment(self.nics.mrc0_peer)
                    self.dataplane.attach(tunnels)
                    keep.add(tunnels.name)
            self.dataplane.detach_others(keep, self.nics.tc_hooks())
        self.checksums.restore(hooks.with_xdp(ports, self.view.hooks).keys())
        self._attached_at = self.nics.interfaces()

    # ---- routes ----

    async def _write_dirty_routes(self) -> None:
        """Those of some peers; `_dirty` says whether there are more."""
        if self._look_at_routes:
            self._look_at_routes, self._tidy = False, True
            await self._routes.read_routes()
        rows = list(itertools.islice(self._dirty, _AT_ONCE))
        self._dirty.difference_update(rows)
        await self.write_routes(rows)
        if self._tidy and not self._dirty:
            self._tidy = False
            _log_changes(await self._routes.remove_others())

    async def write_routes(self, rows: Iterable[int]) -> None:
        """Make the routes of these peers what they should be."""
        nics = self.nics.enabled()
        _log_changes(await self._routes.set_routes(RouteKeeper.FABRIC, self._fabric))
        for n, row in enumerate(rows):
            if n % _AT_ONCE == 0:
                await asyncio.sleep(0)
            peer = self.peers[row]
            mrc0 = self.nics.mrc0 if self.monitor.peerwatch.can_spray(row) else None
            usable = documents.usable_evs(peer, self.monitor.peerwatch.usable_for_routes(row))
            wanted = routes.peer_routes(self.plan, peer, nics, usable, mrc0)
            _log_changes(await self._routes.set_routes(row, wanted))

    def _note_settled(self) -> None:
        """Until a peer has answered, its traffic takes the fallback routes."""
        if self.settled.is_set() or not int(self.tables.node["plane_mask"]):
            return
        rows = np.fromiter(self.peers, np.int64)
        if self.detached or not len(rows) or self.monitor.peerwatch.can_spray(rows).any():
            self.settled.set()

    def _mark(self, row: int) -> None:
        """A peer's routes are to be made anew."""
        self._dirty.add(row)
        self._wake.set()

    async def run_netlink(self) -> None:
        """Follow links, neighbours and peers' usable EVs; keep the routes."""
        watcher = asyncio.create_task(self._watch())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._follow()
        finally:
            watcher.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                async for change in self.netlink.watch():
                    looking = self.netlink_lock.locked()  # what is known may be of before this change, or of after
                    if change.neighbour and not looking and self.nics.is_known(change.neighbour):
                        continue
                    if change.ifindex and change.up:
                        self.nics.note_carrier_back(change.ifindex)
                    elif change.ifindex:
                        self._lose(change.ifindex)
                    self._relink |= change.neighbour is None
                    self._reneighbour = True
                    self._wake.set()
            except MrcdError as e:
                log.error("%s; watching links anew", e)
            except Exception:  # as of a message that pyroute2 cannot read
                log.exception("watching links anew")
            await asyncio.sleep(1.0)

    async def _follow(self) -> None:
        async with self.netlink_lock:
            try:
                if self._reneighbour:
                    self._reneighbour = False
                    if await self.nics.first_hops_changed():  # not |=, which would forget what is told meanwhile
                        self._relink = True
                if self._relink:
                    self._relink = False
                    await self._reconcile()
                    unsafe = hooks.is_unsafe(self.nics.ports, self.view.hooks)
                    if unsafe or self.nics.interfaces() != self._attached_at:
                        self.attach_programs()
                        self.save_running()
                    self.look_at_routes()
                await self._write_dirty_routes()
                self._note_settled()
                if self._dirty:
                    self._wake.set()
                    return
            except Exception as e:  # interfaces come and go under our hands: look again, whatever it was
                log.error("%s; trying again", e if isinstance(e, MrcdError) else repr(e))
                log.debug("", exc_info=e)
                self._relink = False
                asyncio.get_running_loop().call_later(RETRY_S, self._look_again)
        await asyncio.sleep(_SETTLE_S)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run_netlink())
            group.create_task(self._watch_paths())
            group.create_task(self.denials.run())
            group.create_task(keep_pins(self.netlink_lock, lambda: self.dataplane, self.events, self.save_running))
            group.create_task(watch_routes(self.look_at_routes))

    async def _watch_paths(self) -> None:
        """Run the monitor, and another one when another plan is adopted."""
        while True:
            await self._adopted.wait()
            if not self._adopted.is_set():
                continue
            self._monitoring = asyncio.create_task(self.monitor.run())
            try:
                await asyncio.wait({self._monitoring})
            finally:
                self._monitoring.cancel()
            if not self._monitoring.cancelled():
                self._monitoring.result()


def _log_changes(changes: Iterable[str]) -> None:
    for change in changes:
        log.debug("route %s", change)


@contextlib.asynccontextmanager
async def running(plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> AsyncIterator[Daemon]:
    """A started daemon; closed on exit."""
    async with Netlink() as netlink:
        daemon = Daemon(plan, run_dir, bpffs, state_dir)
        await daemon.start(netlink)
        try:
            yield daemon
        finally:
            await daemon.close()
