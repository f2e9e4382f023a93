# SPDX-License-Identifier: BSD-2-Clause
"""Reconciles the kernel's state with the cluster file: interfaces, tables, programs and routes.

Packets are forwarded without the daemon. It may be started, stopped or killed under load: everything that it
installs stays until `mrcctl detach`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np

from mrcd import heap
from mrcd.auth import secrets_file
from mrcd.auth.keyring import Keyring
from mrcd.auth.secrets_file import Secret
from mrcd.daemon import write_tables
from mrcd.daemon.attached_programs import AttachedPrograms
from mrcd.daemon.link_prober import probe_links
from mrcd.daemon.netlink_watch import NetlinkWatch
from mrcd.daemon.peer_routes import AT_ONCE, PeerRoutes
from mrcd.daemon.pin_keeper import keep_pins
from mrcd.daemon.plane_mask import PlaneMask
from mrcd.denials.deny_and_allow import DenialControl
from mrcd.errors import MrcdError
from mrcd.fabric.topology import Peer, Plan
from mrcd.health import event_file
from mrcd.health.diagnosis import watch
from mrcd.health.diagnosis.watch import CauseWatch
from mrcd.health.event_file import EventFile
from mrcd.health.events import EventLog
from mrcd.health.links.watch import LinkWatch
from mrcd.health.monitor import Monitor
from mrcd.kernel import enums, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import Tables, is_detached
from mrcd.net import hooks, routes
from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink
from mrcd.net.nics import Nics
from mrcd.net.route_watch import watch_routes
from mrcd.state_dir import DENIALS, directory
from mrcd.view import documents, paths, running_file
from mrcd.view.workers import Readers

log = logging.getLogger("mrcd")
_KEYS_S = 0.1  # between two looks at the keys that the peers accept


class Daemon:
    """One host's control plane over its pinned data plane.

    Many attributes because this class connects the other parts, which get them as arguments.
    """

    def __init__(self, plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> None:
        self.plan = plan
        self.run_dir = run_dir
        state = directory(run_dir, state_dir)
        self.events = EventLog(EventFile(state / event_file.FILE))
        self.faults = CauseWatch(self.events)
        self.links = LinkWatch(self.events)
        self.denials = DenialControl(state / DENIALS, self.events)
        self.started = time.monotonic()
        self.dataplane = Dataplane(plan, bpffs)
        self.programs = AttachedPrograms(run_dir)
        self.peers: dict[int, Peer] = {}
        self.netlink_lock = asyncio.Lock()
        self.admin_lock = asyncio.Lock()  # taken before netlink_lock
        self.readers = Readers()
        self.keyring = Keyring(plan.host.id)
        self.routed = asyncio.Event()  # set when a peer has routes to mrc0, or none needs any
        self.nics: Nics
        self.tables: Tables
        self.view: documents.View
        self.monitor: Monitor
        self._forwards_by: Tables  # of the attached programs; other than `tables` only while a plan is being adopted
        self._planes = PlaneMask(self.events)
        self._watch = NetlinkWatch(self.netlink_lock)
        self._warned: set[str] = set()
        self._adopted = asyncio.Event()  # cleared while another plan is being adopted
        self._monitoring: asyncio.Task[None] | None = None

    # ---- start, and another plan ----

    async def start(self, netlink: Netlink) -> None:
        """Load the programs and put the plan in force."""
        self.netlink, self._routes = netlink, PeerRoutes(netlink, self._routes_of, self._note_written, self._watch.wake)
        self.nics = Nics(self.plan, netlink, self._warn, self._watch.look_again)
        self.use_secrets(self.plan, read_secrets(self.plan))
        libbpf.use_bcc()
        self.dataplane.load()
        self._forwards_by = tables = Tables(self.dataplane.tables, writable=True)
        await self.adopt(self.plan, self.dataplane, tables)
        self._note_routed()
        what = "tables are new" if self.dataplane.fresh else "tables of the last run are used"
        self.events.add("daemon", reason="started", after="detached" if self.detached else "attached")
        log.info("%s: %d peers, %d EVs; %s", self.plan.host.name, len(self.peers), self.plan.ev_count, what)

    async def adopt(self, plan: Plan, dataplane: Dataplane, tables: Tables) -> None:
        """Put a plan in force, in an order that loses nothing; `dataplane` is loaded for it, with `tables`.

        Meanwhile the attached programs forward by the plan before. Requests for documents wait.
        """
        in_force = self._adopted.is_set()  # false at the start, and if the last plan failed half-way
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
        before = {row: p.host.name for row, p in self.peers.items()} or running_file.hosts_before(self.run_dir)
        replaced_hosts = running_file.replaced_hosts(before, plan)
        gone = self.peers.keys() - {p.host.id for p in plan.peers} | self.peers.keys() & replaced_hosts
        self.peers = {p.host.id: p for p in plan.peers}
        self._routes.keep_only(self.peers.keys())
        for row in gone:
            await self._routes.drop(row, delete=in_force)  # from here on nothing is sent to removed hosts
        added = [row for row in self.peers if not tables.peers["configured"][row]]
        self.keyring.add(tables.auths, np.array(added, np.int64))  # first: packets of a new peer are refused until then
        write_tables.write_peers(tables, plan, dataplane.refresh, replaced_hosts)
        write_tables.write_links(tables, plan)
        for n, _ in enumerate(dataplane.take_over(tables, replaced_hosts)):
            if n % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._follow_keys(anew=True)
        dataplane.set_prefixes(write_tables.prefixes(plan))
        self.view = documents.View(tables, plan, self.programs.hooks, dataplane.pins)
        self.view.memory, self.view.link_watch = self.faults.memory, self.links
        self.links.follow(plan)
        monitor = Monitor(plan, tables, dataplane, self.events, self._routes.mark)
        if self._monitoring:
            monitor.follow(self.monitor, replaced_hosts)
        self.monitor = monitor
        await self.denials.use_paths(plan, tables, self.monitor)
        if shrinks:  # peers still send longer packets, which the veth would drop on the way through GRO
            self._forwards_by.node["merge_ifindex"] = 0
        await self._reconcile(merging=not shrinks)
        await self.nics.remove_addresses(left)
        if shrinks:  # packets must fit the new programs before these are attached
            await self.write_routes()
        self.attach_programs()
        self._write_receiver(merging=True)
        dataplane.commit()
        self._forwards_by = tables
        self.monitor.announce()  # keys, mode, planes and status of this host may be others now
        self.save_running()
        self.look_at_routes()
        if len(self.peers) <= AT_ONCE:
            # A reload is undone if a route is refused. A start goes on, tries again, and logs it then.
            with contextlib.nullcontext() if in_force else contextlib.suppress(MrcdError):
                await self._routes.write_changed()
            self._watch.look_again()
        heap.settle()
        self.resume()

    def resume(self) -> None:
        """Run the monitor and serve documents again, after a plan was adopted or has failed half-way."""
        self._adopted.set()
        self.readers.go_on()

    def attach_anew(self) -> None:
        """Have the programs attached again as soon as possible."""
        self.programs.expire()
        self._watch.look_again()

    def save_running(self) -> None:
        """Write running.json, which mrcctl reads while no daemon runs."""
        try:
            running_file.save_running(self.run_dir, self.plan, self.dataplane.pins, self.programs.hooks)
        except OSError as e:
            self._warn(f"{self.run_dir}: {e.strerror}: while mrcd is down, mrcctl will show the configuration before")

    def save_files(self) -> None:
        """Write all files of the run directory that mrcctl and the next start read."""
        self.save_running()
        self.programs.save_checksums()

    async def close(self) -> None:
        """Close tables and programs; the data plane keeps forwarding."""
        await self.readers.stop()
        self.tables.close()
        self.dataplane.close()

    @property
    def detached(self) -> bool:
        """Whether an administrator has taken this host's data plane down."""
        return is_detached(self.tables.node)

    # ---- links, neighbours, addresses, programs ----

    async def _reconcile(self, *, merging: bool = True) -> None:
        """Bring interfaces, addresses and first hops from their actual to their desired state."""
        await self.nics.reconcile()
        self.view.cuts = hooks.segmentations(self.plan, self.nics.ports)
        self._write_receiver(merging=merging)
        mask = write_tables.write_planes(self.tables, self.plan, self.nics.ports, self.nics.macs)
        mask &= ~self.nics.lost_plane_mask()
        self._routes.use_fabric(routes.fabric_routes(self.plan, self.nics.enabled()))
        if self._planes.use(mask, self.plan, self.nics, self.tables):
            self.monitor.announce()
            for row in self.peers:
                self.dataplane.refresh(row)
                self._routes.mark(row)

    async def _reconcile_links(self) -> None:
        """Reconcile after links have changed, also hooks and routes, which depend on interfaces."""
        await self._reconcile()
        if not self.programs.are_complete(self.nics):
            try:
                self.attach_programs()
            except MrcdError as e:  # such as of one NIC: routes, and the programs of other NICs, do not wait for it
                log.error("%s; trying again", e)
                self._watch.retry()
            self.save_running()
        self.look_at_routes()

    def _write_receiver(self, *, merging: bool) -> None:
        nics, packet = self.nics, self.plan.config.cluster.granularity == "packet"
        merging = merging and nics.merging
        write_tables.write_receiver(self.tables, nics.mrc0, nics.mrc0_peer, merging=merging, xdp_too=packet)

    def _lose(self, ifindex: int) -> None:
        """Leave the planes of a link without a carrier, and tell the peers. `_reconcile` does the rest."""
        self.nics.note_carrier_lost(ifindex)
        if self._planes.leave_lost(self.nics, (self.tables, self._forwards_by)):
            self.monitor.announce()

    def _warn(self, text: str) -> None:
        """Log a warning once, although every netlink event repeats its cause."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def attach_programs(self) -> None:
        """Attach the programs that this host needs in its state, and detach others. Raises MrcdError."""
        self.programs.attach(self.plan, self.dataplane, self.nics, (self.tables, self._forwards_by))

    # ---- routes ----

    def look_at_routes(self) -> None:
        """Have the kernel's routes read again soon, and those of all peers written where they differ."""
        self._routes.mark_all(self.peers)

    async def write_routes(self) -> None:
        """Write the routes of all peers now. Raises MrcdError."""
        await self._routes.write_all(self.peers)

    def _routes_of(self, row: int) -> Sequence[Route]:
        peer = self.peers[row]
        mrc0 = self.nics.mrc0 if self.monitor.peerwatch.can_spray(row) else None
        if mrc0 is None:  # before the route changes: probes tell the peer, which refuses plain SRv6 otherwise
            write_tables.announce_plain(self.tables, row)
        usable = paths.usable_evs(peer, self.monitor.peerwatch.usable_for_routes(row))
        return routes.peer_routes(self.plan, peer, self.nics.enabled(), usable, mrc0)

    def _note_written(self, row: int, written: Sequence[Route]) -> None:
        mrc0 = self.nics.mrc0.ifindex
        if any(hop.oif == mrc0 for route in written for hop in route.hops):
            write_tables.set_plain(self.tables, row, False)

    async def _write_changed_routes(self) -> bool:
        has_more = await self._routes.write_changed()
        self._note_routed()
        return has_more

    def _note_routed(self) -> None:
        """Set `routed` if a peer has answered: before that, its traffic takes the fallback routes."""
        if self.routed.is_set() or not int(self.tables.node["plane_mask"]):
            return
        rows = np.fromiter(self.peers, np.int64)
        if self.detached or not len(rows) or self.monitor.peerwatch.can_spray(rows).any():
            self.routed.set()

    # ---- keys ----

    def use_secrets(self, plan: Plan, secrets: Sequence[Secret]) -> None:
        """Have packets authenticated as `plan` says, by these secrets, from the next moment on."""
        self.keyring.use(enums.AuthMode[plan.config.auth.mode.upper()], secrets)

    def _follow_keys(self, *, anew: bool = False) -> None:
        if not anew and not self.keyring.has_news(self.tables.peers):
            return
        rows = np.fromiter(self.peers, np.int64)
        if self.keyring.update(self.tables.auths, self.tables.peers, rows, anew=anew) and not anew:
            self.monitor.announce()  # the peers learn at once which keys they may use

    async def _watch_keys(self) -> None:
        while True:
            if self._adopted.is_set():
                self._follow_keys()
            await asyncio.sleep(_KEYS_S)

    # ---- diagnosis ----

    async def _watch_faults(self) -> None:
        while True:
            try:
                self.faults.note(await self.readers.read(lambda: self.faults.diagnose(self.tables, self.plan)))
            except Exception as e:  # an error here must not end the watch of paths
                self._warn(f"the diagnosis failed: {type(e).__name__}: {e}; mrcd continues")
            await asyncio.sleep(watch.INTERVAL_S)

    # ---- work ----

    async def run(self) -> None:
        """Run all tasks of the daemon until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run_netlink())
            group.create_task(self._watch_paths())
            group.create_task(self._watch_keys())
            group.create_task(self._watch_faults())
            group.create_task(probe_links(self.links, self._in_force, self._warn))
            group.create_task(self.denials.run())
            group.create_task(
                keep_pins(self.netlink_lock, lambda: self.dataplane, self.events, self.save_running, self.attach_anew),
            )
            group.create_task(watch_routes(self.look_at_routes))

    async def run_netlink(self) -> None:
        """Follow links, neighbours and peers' usable EVs; keep the routes."""
        watching = asyncio.create_task(self._watch.watch(self.netlink, lambda: self.nics, self._lose))
        try:
            await self._watch.follow(lambda: self.nics, self._reconcile_links, self._write_changed_routes)
        finally:
            watching.cancel()

    def _in_force(self) -> tuple[Dataplane, Tables] | None:
        return (self.dataplane, self.tables) if self._adopted.is_set() and not self.detached else None

    async def _watch_paths(self) -> None:
        """Run the monitor, and a new one after each adopted plan."""
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


def read_secrets(plan: Plan) -> tuple[Secret, ...]:
    """Returns the secrets that a plan needs, the newest last. Raises ConfigError."""
    auth = plan.config.auth
    if auth.mode == "off":
        return ()
    hosts = {h.name: h.id for h in plan.config.hosts}
    return secrets_file.read(secrets_file.path_of(auth.secret_file), hosts, plan.host.name)


@contextlib.asynccontextmanager
async def running(plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> AsyncIterator[Daemon]:
    """Starts a daemon, and closes it on exit."""
    async with Netlink() as netlink:
        daemon = Daemon(plan, run_dir, bpffs, state_dir)
        await daemon.start(netlink)
        try:
            yield daemon
        finally:
            await daemon.close()
