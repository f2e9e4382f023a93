"""The daemon: reconciles what the configuration wants with what the kernel has, probes, judges.

Forwarding does not need it. It may be started, stopped or killed under load; what it installs stays
until `mrcctl detach`.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import numpy as np

from mrcd import abi, health, hooks, install, libbpf, routes, view
from mrcd.abi import EvState, Reason
from mrcd.dataplane import Dataplane
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.events import EventLog
from mrcd.netlink import Link, Netlink, Route, set_offload
from mrcd.tables import Tables
from mrcd.topology import EV, Peer, Plan

log = logging.getLogger("mrcd")

_MS = 1_000_000
_SETTLE_S = 0.05  # netlink events come in flocks: reconcile once for each
_QUIET_MS, _QUIET_TRIES = 200, 15  # `detach` waits this long for the peers to stop spraying
_GSO_LIMIT = 65535
_BUSY_NS = 2_000_000_000  # a peer counts as busy for this long after its last packet
_SEGMENTATION = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation")


class Daemon:
    """One host's control plane over its pinned data plane."""

    def __init__(self, plan: Plan, run_dir: Path, bpffs: Path) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self.events = EventLog()
        self.transitions: Counter[tuple[EvState, Reason]] = Counter()
        self.started = time.monotonic()
        self._dataplane = Dataplane(plan, bpffs)
        self._peers: dict[int, Peer] = {p.host.id: p for p in plan.peers}
        self._evs: dict[tuple[int, int], EV] = {(p.host.id, e.ev): e for p in plan.peers for e in p.evs}
        self._rows = np.array(sorted(self._peers), np.int64)
        self._ports: dict[int, hooks.Port] = {}
        self._mrc0: Link | None = None
        self._fabric: list[Route] = []
        self._peer_routes: dict[int, list[Route]] = {}
        self._dirty: set[int] = set()  # rows whose routes must be made anew
        self._wake = asyncio.Event()
        self._netlink_lock = asyncio.Lock()
        self._relink = False

    # ---- start ----

    async def start(self, netlink: Netlink) -> None:
        """Bring the host to what the plan wants, in an order that loses nothing."""
        self._netlink = netlink
        libbpf.use_bcc()
        self._dataplane.load()
        self.tables = Tables(self._dataplane.pins, writable=True)
        self._judge = health.Judge(self.plan.config.health, *self.tables.evs.shape)
        self._silent: set[int] = set()
        self._statuses: dict[int, tuple[bool, int, int]] = {}
        n = len(self.tables.peers)
        self._due_ns, self._swept_ns, self._traffic, self._busy_ns = (np.zeros(n, np.int64) for _ in range(4))
        install.write_peers(self.tables, self.plan)
        self._dataplane.set_prefixes(install.prefixes(self.plan))
        self.view = view.View(self.tables, self.plan, [])
        await self._reconcile()
        if not self.detached:
            self._attach()
        view.save_running(self.run_dir, self.plan, self._dataplane.pins, self.view.hooks)
        for row in self._peers:
            self._update_usable(row)
        await self._write_routes(set(self._peers))
        what = "tables are new" if self._dataplane.fresh else "carries on with the tables it found"
        self.events.add("daemon", reason="started", after="detached" if self.detached else "attached")
        log.info("%s: %d peers, %d EVs; %s", self.plan.host.name, len(self._peers), len(self._evs), what)

    def close(self) -> None:
        """Let go of everything; the data plane goes on."""
        self.tables.close()
        self._dataplane.close()

    @property
    def detached(self) -> bool:
        """Whether an administrator has taken this host's data plane down."""
        return bool(int(self.tables.node["status"]) & abi.STATUS_DETACHED)

    # ---- links, neighbours, addresses ----

    async def _reconcile(self) -> None:
        """Interfaces, addresses, first hops: actual state to desired state."""
        c, overlay = self.plan.config.cluster, self.plan.config.overlay
        gateway = str(self.plan.config.interfaces.gateway)
        mrc0, peer = await self._netlink.ensure_veth(
            overlay.interface,
            overlay.interface + "p",
            mtu=self.plan.inner_mtu,
            gso_max_size=_GSO_LIMIT - self.plan.overhead,
        )
        self._mrc0, self._mrc0_peer = mrc0, peer
        burst = c.granularity == "burst"
        set_offload(mrc0.name, {"tx-generic-segmentation": burst} | dict.fromkeys(_SEGMENTATION, burst))
        await self._netlink.ensure_addresses(mrc0.ifindex, routes.own_addresses(self.plan))
        links = await self._netlink.links()
        self._ports = hooks.ports(self.plan.interfaces, links)
        for missing in set(range(c.planes)) - self._ports.keys():
            log.warning("plane %d: there is no interface %s", missing, self.plan.interfaces[missing])
        if not self._ports:
            raise MachineError(
                f"none of the plane NICs {', '.join(self.plan.interfaces)} exists",
                hint="name them in [interfaces] names, or in the host's interfaces",
            )
        hooks.prepare_sysctls(self._ports)
        neighbours = await self._netlink.neighbours(gateway)
        for plane, port in self._ports.items():
            if port.nic.mtu < c.mtu:
                log.warning("%s has MTU %d, less than the planes' %d", port.nic.name, port.nic.mtu, c.mtu)
            await self._netlink.ensure_addresses(port.nic.ifindex, [str(self.plan.addresses[plane])])
            if port.nic.up and port.nic.ifindex not in neighbours:
                await self._netlink.keep_resolved(port.nic.ifindex, gateway)
        bitmap = install.write_planes(self.tables, self.plan, self._ports, neighbours)
        self._fabric = routes.fabric_routes(self.plan, {p: port.nic for p, port in self._ports.items()})
        before = int(self.tables.node["ports"])
        self.tables.node["ports"] = bitmap
        if bitmap != before:
            self._ports_changed(before, bitmap)

    def _ports_changed(self, before: int, now: int) -> None:
        for plane in range(self.plan.config.cluster.planes):
            bit = 1 << plane
            if (before ^ now) & bit:
                up = bool(now & bit)
                nic = self.plan.interfaces[plane]
                port = self._ports.get(plane)
                reason = "link_up" if up else "no_interface" if port is None else "link_down"
                if port is not None and port.nic.up and not up:
                    reason = "first_hop_unresolved"
                self.events.add(
                    "plane",
                    plane=plane,
                    reason=reason,
                    before="down" if up else "up",
                    after="up" if up else "down",
                    evidence={"interface": nic},
                )
        for row in self._peers:  # tell the peers, and leave the plane's EVs here
            self._dataplane.sweep(row)
            self._due_ns[row] = 0
        self._dirty |= set(self._peers)
        self._wake.set()

    def _attach(self) -> None:
        """Pop before push: this host can receive before it asks anyone to reply."""
        assert self._mrc0 is not None
        pins: set[str] = set()
        documents: list[view.Document] = []
        wanted = self.plan.config.hook(self.plan.host)
        for port in self._ports.values():
            used, document = hooks.attach_pop(self._dataplane, wanted, port)
            pins |= used
            documents.append(document)
        push, document = hooks.push_attachment(self.plan.config.cluster.granularity, self._mrc0, self._mrc0_peer)
        how = self._dataplane.attach(push)
        documents.append(document | {"how": how})
        self._dataplane.detach_others(pins | {push.name})
        self.view.hooks[:] = documents

    # ---- routes ----

    def _sprayed(self, row: int) -> bool:
        """Whether a peer's traffic goes into mrc0: both data planes are attached, and it has been heard."""
        peer = self.tables.peers[row]
        return not self.detached and bool(peer["heard_ns"]) and not int(peer["status"]) & abi.STATUS_DETACHED

    async def _write_routes(self, rows: Iterable[int]) -> None:
        nics = {p: port.nic for p, port in self._ports.items()}
        for row in rows:
            peer = self._peers[row]
            mrc0 = self._mrc0 if self._sprayed(row) else None
            self._peer_routes[row] = routes.peer_routes(self.plan, peer, nics, self.view.usable(peer), mrc0)
        wanted = self._fabric + [r for found in self._peer_routes.values() for r in found]
        for change in await self._netlink.sync_routes(wanted):
            log.debug("route %s", change)

    async def run_netlink(self) -> None:
        """Follow links, neighbours and the judge's verdicts; keep the routes."""
        watcher = asyncio.create_task(self._watch())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._follow()
        finally:
            watcher.cancel()

    async def _watch(self) -> None:
        async for _ in self._netlink.watch():
            self._relink = True
            self._wake.set()

    async def _follow(self) -> None:
        async with self._netlink_lock:
            try:
                if self._relink:
                    self._relink = False
                    known = {p: port.physical.ifindex for p, port in self._ports.items()}
                    await self._reconcile()
                    if known != {p: port.physical.ifindex for p, port in self._ports.items()} and not self.detached:
                        self._attach()
                    self._dirty |= set(self._peers)
                rows, self._dirty = self._dirty, set()
                await self._write_routes(rows)
            except MrcdError as e:
                log.error("%s; trying again", e)
                self._relink = True
                asyncio.get_running_loop().call_later(1.0, self._wake.set)
        await asyncio.sleep(_SETTLE_S)

    # ---- health ----

    async def run_health(self) -> None:
        """Judge what the last probes brought, then send the next."""
        interval = self.plan.config.health.probe_interval_ms / 1000
        loop = asyncio.get_running_loop()
        next_tick = loop.time()
        while True:
            self._tick(time.monotonic_ns())
            next_tick = max(next_tick + interval, loop.time())
            await asyncio.sleep(next_tick - loop.time())

    def _tick(self, now: int) -> None:
        due = self._rows[self._due_ns[self._rows] <= now]
        if not len(due):
            return
        evs = self.tables.evs[due]  # a copy: the judge sees one moment
        self._note_statuses(due)
        judged = np.array([self._judged(int(r)) for r in due])
        if judged.any():
            rows = due[judged]
            ports = self.tables.peers["ports"][rows]
            self._apply(self._judge.judge(rows, evs[judged], ports, int(self.tables.node["ports"]), now), now)
        if not judged.all():
            self._judge.forget(due[~judged])
        for row in due[self._schedule(due, evs, now)].tolist():
            self._dataplane.sweep(row)

    def _schedule(self, due: health.Ints, evs: health.Records, now: int) -> health.Bools:
        """Which of the due peers to sweep now; sets when to look at them again.

        Peers with traffic are swept at every visit. Idle ones are swept seldom, but looked at soon
        after: if a reply is missing then, they are probed fast until it is clear why.
        """
        h = self.plan.config.health
        traffic = evs["tx_packets"].sum(axis=1).astype(np.int64) + self.tables.rxs[due]["packets"].sum(axis=1)
        self._busy_ns[due] = np.where(traffic != self._traffic[due], now, self._busy_ns[due])
        self._traffic[due] = traffic
        watched = (evs["configured"] != 0) & (evs["state"] != EvState.ASSUMED_BAD) & (evs["state"] != EvState.DENIED)
        missing = (watched & (evs["probe_seq"] != evs["reply_seq"])).any(axis=1) & ~np.isin(due, list(self._silent))
        # A stalled flow sends nothing, and needs the probes most.
        fast = (missing | (now - self._busy_ns[due] < _BUSY_NS)) & (not self.detached)
        slack = h.probe_interval_ms * _MS // 2
        sweep: health.Bools = fast | (now - self._swept_ns[due] >= h.idle_interval_ms * _MS - slack)
        self._swept_ns[due] = np.where(sweep, now, self._swept_ns[due])
        soon = now + h.probe_interval_ms * _MS - slack
        self._due_ns[due] = np.where(sweep, soon, self._swept_ns[due] + h.idle_interval_ms * _MS - slack)
        return sweep

    def _judged(self, row: int) -> bool:
        return self._sprayed(row) or (not self.detached and not self.tables.peers[row]["heard_ns"])

    def _note_statuses(self, rows: health.Ints) -> None:
        """Attached, detached or restarted peers: seen in what their probes say."""
        for row in rows.tolist():
            record = self.tables.peers[row]
            detached = bool(int(record["status"]) & abi.STATUS_DETACHED)
            status = (bool(record["heard_ns"]), int(record["status"]), int(record["ports"]))
            before = self._statuses.get(row)
            if before == status:
                continue
            self._statuses[row] = status
            name = self._peers[row].host.name
            if before is None or before[0] != status[0] or before[1] != status[1]:
                if status[0]:
                    self.events.add(
                        "peer", peer=name, reason="port_status", after="detached" if detached else "attached"
                    )
                self._judge.forget(np.array([row]))
            elif before[2] != status[2]:
                up = [p for p in range(self.plan.config.cluster.planes) if status[2] & (1 << p)]
                self.events.add("peer", peer=name, reason="port_status", evidence={"planes_up": up})
            self._update_usable(row)
            self._mark(row)

    def _apply(self, verdict: health.Verdict, now: int) -> None:
        touched = set()
        for t in verdict.transitions:
            self._transit(t.row, t.ev, t.after, t.reason, now, relapses=t.relapses, evidence=t.evidence)
            touched.add(t.row)
        for row in touched:
            self._update_usable(row)
            self._mark(row)
        for row in set(verdict.silent) - self._silent:
            self.events.add("peer", peer=self._peers[row].host.name, reason="unreachable", after="unreachable")
        for row in set(verdict.heard) & self._silent:
            self.events.add("peer", peer=self._peers[row].host.name, reason="answers", after="reachable")
        self._silent = (self._silent | set(verdict.silent)) - set(verdict.heard)

    def _transit(
        self,
        row: int,
        number: int,
        after: EvState,
        reason: Reason,
        now: int,
        *,
        relapses: int | None = None,
        evidence: dict[str, int | float] | None = None,
    ) -> None:
        record = self.tables.evs[row, number : number + 1].reshape(())
        before = EvState(int(record["state"]))
        record["state"], record["reason"], record["state_since_ns"] = after, reason, now
        if relapses is not None:
            record["relapses"] = relapses
        self.transitions[after, reason] += 1
        ev = self._evs[row, number]
        self.events.add(
            "ev",
            peer=ev.peer,
            ev=ev.ev,
            plane=ev.plane,
            t1=ev.t1,
            before=before.name,
            after=after.name,
            reason=reason.text,
            evidence=evidence,
        )

    def _linked(self, row: int) -> health.Bools:
        both = int(self.tables.node["ports"]) & int(self.tables.peers[row]["ports"])
        linked: health.Bools = (np.left_shift(1, self.tables.evs[row]["plane"].astype(np.int64)) & both) != 0
        return linked

    def _floor(self, row: int) -> int:
        return self.plan.config.cluster.ev_min_active or health.default_floor(len(self._peers[row].evs))

    def _update_usable(self, row: int) -> None:
        c = self.plan.config.cluster
        usable = health.usable_evs(self.tables.evs[row], self._floor(row), self._linked(row))
        bits = health.bitmap(usable, c.planes, c.evs_per_plane, abi.MAX_PLANES, abi.EV_WORDS)
        self.tables.peers[row]["usable"][:] = bits

    def _mark(self, row: int) -> None:
        self._dirty.add(row)
        self._wake.set()

    # ---- what administrators ask for ----

    def deny(self, peer: str | None, ev: int | None, plane: int | None) -> tuple[list[EV], list[EV]]:
        """Take EVs out of use; those below the floor are refused. Returns (denied, refused)."""
        done: list[EV] = []
        refused: list[EV] = []
        for e in self._selected(peer, ev, plane):
            record = self.tables.evs[e.peer_id]
            if record[e.ev]["state"] == EvState.DENIED:
                continue
            left = (record["configured"] != 0) & (record["state"] != EvState.DENIED)
            if int(left.sum()) <= self._floor(e.peer_id):
                refused.append(e)
                continue
            self._transit(e.peer_id, e.ev, EvState.DENIED, Reason.ADMIN, time.monotonic_ns())
            done.append(e)
        self._after_admin(done)
        return done, refused

    def allow(self, peer: str | None, ev: int | None, plane: int | None) -> list[EV]:
        """Give denied EVs back: they are probed before they carry traffic again."""
        done = [e for e in self._selected(peer, ev, plane) if self._state(e) is EvState.DENIED]
        for e in done:
            self._transit(e.peer_id, e.ev, EvState.UNKNOWN, Reason.ADMIN, time.monotonic_ns())
        self._after_admin(done)
        return done

    def _state(self, e: EV) -> EvState:
        return EvState(int(self.tables.evs[e.peer_id, e.ev]["state"]))

    def _selected(self, peer: str | None, ev: int | None, plane: int | None) -> list[EV]:
        names = {p.host.name for p in self._peers.values()}
        if peer is not None and peer not in names:
            raise UsageError(f"there is no peer {peer!r}", hint=f"peers: {', '.join(sorted(names)[:10])}")
        found = [
            e
            for e in self._evs.values()
            if (peer is None or e.peer == peer) and (ev is None or e.ev == ev) and (plane is None or e.plane == plane)
        ]
        if not found:
            raise UsageError("no path fits that choice", hint="`mrcctl paths` lists them")
        return found

    def _after_admin(self, evs: list[EV]) -> None:
        for row in {e.peer_id for e in evs}:
            self._update_usable(row)
            self._mark(row)

    async def detach(self, force: bool) -> str:
        """Take the data plane down: tell the peers, wait until they stop spraying, leave by plain SRv6."""
        if self.detached:
            return "already detached"
        if self.plan.config.cluster.steering == "ecmp" and not force:
            raise UsageError(
                "with steering ecmp there is no SRv6 to fall back to: peers would be cut off",
                hint="--force does it all the same",
            )
        self.tables.node["status"] = int(self.tables.node["status"]) | abi.STATUS_DETACHED
        quiet = await self._wait_quiet()
        if not quiet and not force:
            self.tables.node["status"] = int(self.tables.node["status"]) & ~abi.STATUS_DETACHED
            self._announce()
            raise MachineError(
                "some peers still spray to this host; nothing was detached",
                hint="is mrcd down on them? `mrcctl peers` on them tells; --force detaches all the same",
            )
        async with self._netlink_lock:
            await self._write_routes(set(self._peers))
        self._dataplane.detach_others(set())
        self.events.add("daemon", reason="admin", before="attached", after="detached")
        return "detached: traffic takes the kernel's SRv6 routes, flow by flow"

    async def _wait_quiet(self) -> bool:
        """Announce until no sprayed packet arrives for a while; False if they keep coming."""
        last = -1
        for _ in range(_QUIET_TRIES):
            self._announce()
            await asyncio.sleep(_QUIET_MS / 1000)
            count = int(self.tables.rxs["packets"].sum())
            if count == last:
                return True
            last = count
        return False

    def _announce(self) -> None:
        for row in self._peers:
            self._dataplane.sweep(row)

    async def attach(self) -> str:
        """Bring the data plane up again."""
        if not self.detached:
            return "already attached"
        self._attach()
        self.tables.node["status"] = int(self.tables.node["status"]) & ~abi.STATUS_DETACHED
        self._judge.forget(self._rows)
        self._announce()
        async with self._netlink_lock:
            await self._write_routes(set(self._peers))
        self.events.add("daemon", reason="admin", before="detached", after="attached")
        return "attached"

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run_netlink())
            group.create_task(self.run_health())


@contextlib.asynccontextmanager
async def running(plan: Plan, run_dir: Path, bpffs: Path) -> AsyncIterator[Daemon]:
    """A started daemon; closed on exit."""
    async with Netlink() as netlink:
        daemon = Daemon(plan, run_dir, bpffs)
        await daemon.start(netlink)
        try:
            yield daemon
        finally:
            daemon.close()
