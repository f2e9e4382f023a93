# SPDX-License-Identifier: BSD-2-Clause
"""Reconciles the kernel's state with the cluster file: interfaces, tables, programs and routes.

Packets are forwarded without the daemon. It may be started, stopped or killed under load: everything that it
installs stays until `mrcctl detach`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import numpy as np

from mrcd import heap
from mrcd.auth import secrets_file
from mrcd.auth.keyring import Keyring
from mrcd.auth.secrets_file import Secret
from mrcd.daemon import wire_change, write_tables
from mrcd.daemon.attached_programs import AttachedPrograms
from mrcd.daemon.netlink_watch import NetlinkWatch
from mrcd.daemon.peer_routes import AT_ONCE, PeerRoutes
from mrcd.daemon.peer_ways import PeerWays
from mrcd.daemon.pin_keeper import keep_pins
from mrcd.daemon.plane_mask import PlaneMask
from mrcd.denials.deny_and_allow import DenialControl
from mrcd.errors import MrcdError
from mrcd.fabric.topology import Peer, Plan
from mrcd.file_thread import FileThread
from mrcd.health import event_file
from mrcd.health.diagnosis import watch
from mrcd.health.diagnosis.sizes import Round, SizeWatch
from mrcd.health.diagnosis.watch import CauseWatch
from mrcd.health.event_file import EventFile
from mrcd.health.events import EventLog
from mrcd.health.links.watch import LinkWatch
from mrcd.health.monitor import Monitor
from mrcd.kernel import enums, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.migration import own_layouts
from mrcd.kernel.pinned import Tables, is_detached
from mrcd.net import hooks, routes
from mrcd.net.messages import Route
from mrcd.net.netlink import Netlink
from mrcd.net.nics import Nics
from mrcd.net.route_keeper import watch_routes
from mrcd.state_dir import DENIALS, directory
from mrcd.view import documents, paths, running_file
from mrcd.view.workers import Readers

log = logging.getLogger("mrcd")
_NEW_NS = 10_000_000_000


@dataclass
class Setup:
    """A plan with the programs loaded for it, their tables, and the objects that read the tables."""

    plan: Plan
    dataplane: Dataplane
    tables: Tables
    secrets: Sequence[Secret]
    view: documents.View
    monitor: Monitor
    peers: dict[int, Peer]  # by row, which is the host id
    replaced_hosts: set[int]  # rows that were of other hosts in the setup before
    erased: write_tables.Erased = field(default_factory=write_tables.Erased)
    """Records that the setup after this one has erased in the same tables."""


class Daemon:
    """One host's control plane over its pinned data plane.

    Many attributes because this class connects the other parts, which get them as arguments.
    """

    def __init__(self, plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> None:
        self.plan = plan
        self.run_dir = run_dir
        state = directory(run_dir, state_dir)
        self.files = FileThread()
        self.events = EventLog(EventFile(state / event_file.FILE), self.files.put)
        self.faults = CauseWatch(self.events)
        self.sizes = SizeWatch(self.faults.memory)
        self.links = LinkWatch(self.events)
        self.denials = DenialControl(state / DENIALS, self.events, do=self.files.do)
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
        self.ways: PeerWays
        self.tables: Tables
        self.view: documents.View
        self.monitor: Monitor
        self._setup: Setup | None = None  # in force
        self._both: tuple[Tables, ...] = ()  # tables that attached programs may use, while a plan is being adopted
        self._planes = PlaneMask(self.events)
        self._watch = NetlinkWatch(self.netlink_lock)
        self._warned: set[str] = set()
        self._adopted = asyncio.Event()  # cleared while another plan is being adopted
        self._monitoring: asyncio.Task[None] | None = None

    # ---- start, and another plan ----

    async def start(self, netlink: Netlink) -> None:
        """Load the programs and put the plan in force."""
        self.netlink, self._routes = netlink, PeerRoutes(netlink, self._routes_of, self._note_written, self._watch.wake)
        self.ways = PeerWays(netlink, self.netlink_lock, self._routes.written, self.look_at_routes)
        self.nics = Nics(self.plan, netlink, self._warn, self._watch.retry)
        secrets = read_secrets(self.plan)
        libbpf.use_bcc()
        self.dataplane.load()
        await self.adopt(self.plan, self.dataplane, Tables(self.dataplane.tables, writable=True), secrets)
        self._note_routed()
        what = "tables are new" if self.dataplane.fresh else "tables of the last run are used"
        self.events.add("daemon", reason="started", after="detached" if self.detached else "attached")
        log.info("%s: %d peers, %d EVs; %s", self.plan.host.name, len(self.peers), self.plan.ev_count, what)

    async def adopt(self, plan: Plan, dataplane: Dataplane, tables: Tables, secrets: Sequence[Secret]) -> None:
        """Put a plan in force; `dataplane` is loaded for it, with `tables`. If a step fails, undo all.

        Meanwhile the attached programs forward by the plan before. Requests for documents wait. A start that fails is
        not undone.
        """
        async with self.netlink_lock:
            try:
                await self._hold()
                await self._walk(self._setup, self._make_setup(plan, dataplane, tables, secrets))
            finally:
                self._resume()
        heap.settle()

    def steps(self) -> tuple[Callable[[Setup | None, Setup], Awaitable[None]], ...]:
        """Returns the steps from one setup to another, in an order that loses nothing.

        The opposite of each step is the same step from the second setup to the first.
        """
        return (
            self._leave_removed_hosts,
            self._write_tables,
            self._deny_paths,
            self._replace_programs,
            self._commit_tables,
            self._write_routes,
        )

    async def _walk(self, before: Setup | None, after: Setup) -> None:
        """Take all steps. If one fails, undo it and those before it."""
        self._use(after)
        for n, step in enumerate(self.steps()):
            try:
                await step(before, after)
            except BaseException as e:
                if before is not None:
                    log.error("%s; going back to the configuration before", e.args[0] if e.args else repr(e))
                    await self._walk_back(after, before, n + 1)
                raise

    async def _walk_back(self, failed: Setup, before: Setup, count: int) -> None:
        """Undo the first steps in their order, which loses nothing either. An error of one does not stop the others."""
        self._use(before)
        for step in self.steps()[:count]:
            try:
                await step(failed, before)
            except Exception as e:
                log.error("%s; trying again", e.args[0] if e.args else repr(e))
                self.attach_anew()
        self.look_at_routes()

    async def _hold(self) -> None:
        """Hold requests for documents, and stop the monitor."""
        self._adopted.clear()
        await self.readers.stop()
        if self._monitoring:
            self._monitoring.cancel()
            await asyncio.wait({self._monitoring})
            self.monitor.log_events()  # events of the plan before, by the names that peers had

    def _resume(self) -> None:
        """Run the monitor and serve documents again."""
        self._both = ()
        self._adopted.set()
        self.readers.go_on()

    def _make_setup(self, plan: Plan, dataplane: Dataplane, tables: Tables, secrets: Sequence[Secret]) -> Setup:
        before, view = self._setup, documents.View(tables, plan, self.programs.hooks, dataplane.pins)
        view.memory, view.link_watch = self.faults.memory, self.links
        names = {row: p.host.name for row, p in self.peers.items()} or running_file.hosts_before(self.run_dir)
        replaced_hosts = running_file.replaced_hosts(names, plan)
        monitor = Monitor(plan, tables, dataplane, self.events, self._routes.mark, self._update_keys)
        if before:
            # The plan before may be put in force again, as it is now.
            before.secrets, before.erased, before.replaced_hosts = self.keyring.wanted, write_tables.Erased(), set()
            monitor.take_over(before.monitor, replaced_hosts)
            self._both = tables, before.tables
        peers = {p.host.id: p for p in plan.peers}
        return Setup(plan, dataplane, tables, secrets, view, monitor, peers, replaced_hosts)

    def _use(self, setup: Setup) -> None:
        """Have all parts of the daemon work with a setup."""
        self._setup, self.plan, self.peers = setup, setup.plan, setup.peers
        self.dataplane, self.tables = setup.dataplane, setup.tables
        self.view, self.monitor = setup.view, setup.monitor

    async def _leave_removed_hosts(self, before: Setup | None, after: Setup) -> None:
        """Delete the routes of hosts that are not in the plan: from here on nothing is sent to them."""
        self._routes.keep_only(after.peers.keys())
        if before:
            for row in before.peers.keys() - (after.peers.keys() - after.replaced_hosts):
                await self._routes.drop(row)

    async def _write_tables(self, before: Setup | None, after: Setup) -> None:
        """Write [health], peers, paths, links, keys and prefixes; new tables take over the states of former ones."""
        tables, plan, dataplane = after.tables, after.plan, after.dataplane
        dataplane.write_health(plan)  # first: it needs nothing, so the way back has it whatever fails
        after.erased.put_back(dataplane.refresh)
        self.use_secrets(plan, after.secrets)
        added = [row for row in after.peers if not tables.peers["configured"][row]]
        self.keyring.add(tables.auths, np.array(added, np.int64))  # first: packets of a new peer are refused until then
        erased = before.erased if before and before.tables is tables else write_tables.Erased()
        write_tables.write_peers(tables, plan, dataplane.refresh, after.replaced_hosts, erased)
        write_tables.write_links(tables, plan)
        layouts = running_file.layouts_before(self.run_dir)
        for n, _ in enumerate(dataplane.take_over(tables, after.replaced_hosts, layouts)):
            if n % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._update_keys(anew=True)
        dataplane.set_prefixes(write_tables.prefixes(plan))
        self.links.use_plan(plan)

    async def _deny_paths(self, _: Setup | None, after: Setup) -> None:
        await self.denials.use_paths(after.plan, after.tables, after.monitor)

    async def _replace_programs(self, before: Setup | None, after: Setup) -> None:
        """Set up interfaces and planes, then attach the programs."""
        shrinks = before is not None and after.plan.inner_mtu < before.plan.inner_mtu
        if shrinks:  # peers still send longer packets, which the veth would drop on the way through GRO
            for tables in self._both:
                tables.node["merge_ifindex"] = 0
        self.nics.use_plan(after.plan)
        await self._reconcile(merging=not shrinks)
        if before:
            await self.nics.remove_addresses(set(before.plan.interfaces) - set(after.plan.interfaces))
        if shrinks:  # packets must fit the new programs before these are attached
            await self.write_routes()
        if self._goes_back(before, after) and before.dataplane.changed:
            for tables in self._both:  # until all NICs use the same again: see Dataplane.replacing_programs
                tables.node["generation"] = 0
        other_wire, self.dataplane.other_wire = self.dataplane.other_wire, None
        if other_wire and not self.detached:
            parts = self.dataplane, self.tables, self.monitor.announce, self.write_routes
            await wire_change.leave(other_wire, *parts)
        self.attach_programs()
        wire_change.tell_wire(self.tables, self.dataplane)
        self._write_receiver(merging=True)

    async def _commit_tables(self, before: Setup | None, after: Setup) -> None:
        """Pin the tables in place of those before, and tell mrcctl and the peers."""
        if self._goes_back(before, after) and before.dataplane.is_committed:
            after.dataplane.repin_tables()
        after.dataplane.commit()
        self.monitor.announce()  # keys, mode, planes and status of this host may be others now
        self.save_running()

    @staticmethod
    def _goes_back(before: Setup | None, after: Setup) -> TypeGuard[Setup]:
        """Returns whether new tables are given up for those that were committed before."""
        return before is not None and before.tables is not after.tables and after.dataplane.is_committed

    async def _write_routes(self, before: Setup | None, _: Setup) -> None:
        """Write routes now if they are few. A start goes on if one is refused, tries again, and logs it then."""
        self.look_at_routes()
        if len(self.peers) <= AT_ONCE:
            with contextlib.nullcontext() if before else contextlib.suppress(MrcdError):
                await self._routes.write_changed()
            self._watch.look_again()

    def attach_anew(self) -> None:
        """Have the programs attached again as soon as possible."""
        self.programs.expire()
        self._watch.look_again()

    def save_running(self) -> None:
        """Write running.json, which mrcctl reads while no daemon runs."""
        try:
            running_file.save_running(self.run_dir, self.plan, self.dataplane.pins, self.programs.hooks, own_layouts())
        except OSError as e:
            self._warn(f"{self.run_dir}: {e.strerror}: while mrcd is down, mrcctl will show the configuration before")

    def save_files(self) -> None:
        """Write all files of the run directory that mrcctl and the next start read."""
        self.save_running()
        self.programs.save_checksums()

    async def close(self) -> None:
        """Close tables and programs; the data plane keeps forwarding."""
        await self.readers.stop()
        self.monitor.log_events()
        self.tables.close()
        self.dataplane.close()
        self.files.close()

    @property
    def detached(self) -> bool:
        """Whether an administrator has taken this host's data plane down."""
        return is_detached(self.tables.node)

    def reached(self) -> dict[str, bool]:
        """Returns for each peer whether it was heard lately, and has an EV in use, or a new one."""
        s = self.view.snapshot()
        is_new = time.monotonic_ns() - s.evs["state_since_ns"].astype(np.int64) < _NEW_NS
        is_alive = (s.state == enums.EvState.GOOD) | (s.state == enums.EvState.SKIP)
        is_alive |= (s.state == enums.EvState.UNKNOWN) & is_new
        found = s.is_reachable & (is_alive & (s.evs["configured"] != 0)).any(axis=1)
        return {p.host.name: bool(is_reached) for p, is_reached in zip(self.plan.peers, found, strict=True)}

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
        if self._planes.leave_lost(self.nics, (self.tables, *self._both)):
            self.monitor.announce()

    def _warn(self, text: str) -> None:
        """Log a warning once, although every netlink event repeats its cause."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def attach_programs(self) -> None:
        """Attach the programs that this host needs in its state, and detach others. Raises MrcdError."""
        self.programs.attach(self.plan, self.dataplane, self.nics, (self.tables, *self._both))

    # ---- routes ----

    def look_at_routes(self) -> None:
        """Have the kernel's routes read again soon, and those of all peers written where they differ."""
        self._routes.mark_all(self.peers)

    def _note_routes_changed(self) -> None:
        self.look_at_routes()
        self.ways.ask_soon()

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

    def _update_keys(self, *, anew: bool = False) -> None:
        if not anew and not self.keyring.has_news(self.tables.peers):
            return
        rows = np.fromiter(self.peers, np.int64)
        if self.keyring.update(self.tables.auths, self.tables.peers, rows, anew=anew) and not anew:
            self.monitor.announce()  # the peers learn at once which keys they may use

    # ---- diagnosis ----

    async def _watch_faults(self) -> None:
        while True:
            try:
                self.faults.memory.ways = self.ways.wrong(self.plan.peers)
                self.faults.note(await self.readers.read(lambda: self.faults.diagnose(self.tables, self.plan)))
            except Exception as e:  # an error here must not end the watch of paths
                self._warn(f"the diagnosis failed: {type(e).__name__}: {e}; mrcd continues")
            await asyncio.sleep(watch.INTERVAL_S)

    async def _next_sizes(self) -> Round | None:
        return await self.readers.read(lambda: self.sizes.next_round(self.tables, self.plan, self.dataplane.tables))

    # ---- work ----

    async def run(self) -> None:
        """Run all tasks of the daemon until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run_netlink())
            group.create_task(self._watch_paths())
            group.create_task(self._watch_faults())
            group.create_task(self.sizes.run(self._next_sizes, self._warn))
            group.create_task(self.links.run(self._in_force, lambda: self.monitor.is_calm, self._warn))
            group.create_task(self.denials.run())
            group.create_task(
                keep_pins(self.netlink_lock, lambda: self.dataplane, self.events, self.save_running, self.attach_anew),
            )
            # The more peers there are, the longer it takes to read all routes.
            watching = watch_routes(
                self._note_routes_changed, self.ways.ask_soon, lambda: min(0.5, max(0.05, len(self.peers) / 1000))
            )
            group.create_task(watching)
            group.create_task(self.ways.run(lambda: self.plan))

    async def run_netlink(self) -> None:
        """Follow links, neighbours and peers' usable EVs; keep the routes."""
        watching = asyncio.create_task(self._watch.watch(self.netlink, lambda: self.nics, self._lose))
        try:
            await self._watch.reconcile_forever(lambda: self.nics, self._reconcile_links, self._write_changed_routes)
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
