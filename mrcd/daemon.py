"""The daemon: reconciles what the configuration wants with what the kernel has, probes, judges.

Forwarding does not need it. It may be started, stopped or killed under load; what it installs stays
until `mrcctl detach`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from mrcd import abi, hooks, install, libbpf, routes, statefile, view
from mrcd.dataplane import Dataplane, Point
from mrcd.errors import MachineError, MrcdError, UsageError
from mrcd.events import EventLog
from mrcd.monitor import Monitor
from mrcd.netlink import Link, Netlink, Route, set_offload
from mrcd.steering import Steering
from mrcd.tables import Tables
from mrcd.topology import Peer, Plan

log = logging.getLogger("mrcd")

_RETRY_S = 1.0
_SETTLE_S = 0.05  # netlink events come in flocks: reconcile once for each
_QUIET_MS, _QUIET_TRIES = 200, 15  # `detach` waits this long for the peers to stop spraying
_GSO_LIMIT = 65535
_SEGMENTATION = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation")


class Daemon:
    """One host's control plane over its pinned data plane."""

    def __init__(self, plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self.events = EventLog()
        self.steering = Steering(statefile.directory(run_dir, state_dir) / statefile.FILE, self.events)
        self.started = time.monotonic()
        self._dataplane = Dataplane(plan, bpffs)
        self._peers: dict[int, Peer] = {p.host.id: p for p in plan.peers}
        self._ports: dict[int, hooks.Port] = {}
        self._mrc0: Link | None = None
        self._fabric: list[Route] = []
        self._peer_routes: dict[int, list[Route]] = {}
        self._dirty: set[int] = set()  # rows whose routes must be made anew
        self._wake = asyncio.Event()
        self._netlink_lock = asyncio.Lock()
        self._admin_lock = asyncio.Lock()  # taken before the other
        self._links: dict[str, Link] = {}
        self._relink = False  # links or addresses may be others than before
        self._reneighbour = False  # so may first hops
        self._macs: dict[int, str] = {}
        self._warned: set[str] = set()
        self._attached_at: set[int] | None = None  # the interfaces when all was attached
        self.settled = asyncio.Event()  # a plane could send, and routes were made of it, since this daemon came

    # ---- start ----

    async def start(self, netlink: Netlink) -> None:
        """Bring the host to what the plan wants, in an order that loses nothing."""
        self._netlink = netlink
        libbpf.use_bcc()
        self._dataplane.load()
        self.tables = Tables(self._dataplane.tables, writable=True)
        install.write_peers(self.tables, self.plan, self._dataplane.refresh)
        self._dataplane.set_prefixes(install.prefixes(self.plan))
        self.view = view.View(self.tables, self.plan, [], self._dataplane.pins)
        self.monitor = Monitor(self.plan, self.tables, self._dataplane, self.events, self._mark)
        self.view.bad_ns = self.monitor.bad_ns
        await self.steering.follow(self.plan, self.tables, self.monitor)
        await self._reconcile()
        self._attach()
        self._dataplane.commit()
        view.save_running(self.run_dir, self.plan, self._dataplane.pins, self.view.hooks)
        await self._write_routes(set(self._peers))
        self._note_settled()
        what = "tables are new" if self._dataplane.fresh else "carries on with the tables it found"
        self.events.add("daemon", reason="started", after="detached" if self.detached else "attached")
        evs = sum(len(p.evs) for p in self.plan.peers)
        log.info("%s: %d peers, %d EVs; %s", self.plan.host.name, len(self._peers), evs, what)

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
        hooks.enable_ipv6(mrc0.name)
        await self._netlink.sync_addresses(mrc0.ifindex, routes.own_addresses(self.plan), self._is_a_peers)
        self._links = links = await self._netlink.links()
        self._ports = hooks.ports(self.plan.interfaces, links)
        for missing in set(range(c.planes)) - self._ports.keys():
            self._warn(f"plane {missing}: there is no interface {self.plan.interfaces[missing]}")
        if not self._ports:
            raise MachineError(
                f"none of the plane NICs {', '.join(self.plan.interfaces)} exists",
                hint="name them in [interfaces] names, or in the host's interfaces",
            )
        self._macs = await self._netlink.neighbours(gateway)
        for plane, port in list(self._ports.items()):
            if port.nic.mtu < c.mtu:
                short = f"{port.nic.name} has MTU {port.nic.mtu}, less than the planes' {c.mtu}"
                self._warn(f"{short}: full packets are lost")
            try:
                await self._prepare(plane, port, gateway)
            except MrcdError as e:
                self._warn(f"plane {plane} is left out: {e}")
                del self._ports[plane]  # one bad NIC must not stop the others
                asyncio.get_running_loop().call_later(_RETRY_S, self._look_again)
        bitmap = install.write_planes(self.tables, self.plan, self._ports, self._macs)
        self._fabric = routes.fabric_routes(self.plan, self._nics())
        before = int(self.tables.node["ports"])
        self.tables.node["ports"] = bitmap
        if bitmap != before:
            self._ports_changed(before, bitmap)

    async def _prepare(self, plane: int, port: hooks.Port, gateway: str) -> None:
        """One NIC: sysctls, its address, its first hop."""
        hooks.prepare_sysctls(port)
        await self._netlink.sync_addresses(port.nic.ifindex, [str(self.plan.addresses[plane])], self._in_underlay)
        if port.nic.up and port.nic.ifindex not in self._macs:
            await self._netlink.keep_resolved(port.nic.ifindex, gateway)

    def _look_again(self) -> None:
        self._relink = True
        self._wake.set()

    def _is_a_peers(self, address: str) -> bool:
        """An overlay address that has moved to another host."""
        a = ip_address(address)
        return any(a in n for p in self.plan.peers for n in p.host.prefixes if n.version == a.version)

    def _in_underlay(self, address: str) -> bool:
        return ":" in address and IPv6Address(address) in self.plan.config.cluster.underlay

    def _nics(self) -> dict[int, Link]:
        """The plane NICs that can have routes: the kernel refuses them on one that is down."""
        return {p: port.nic for p, port in self._ports.items() if port.nic.enabled}

    def _interfaces(self) -> set[int]:
        """Where programs are attached: ifindexes change when an interface goes and comes back."""
        return {port.physical.ifindex for port in self._ports.values()} | {self._mrc0.ifindex if self._mrc0 else 0}

    def _warn(self, text: str) -> None:
        """Once; reconciling comes with every netlink event."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

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
        self.monitor.announce()  # tell the peers
        for row in self._peers:
            self._dataplane.refresh(row)
            self._mark(row)

    def _attach(self) -> None:
        """Pop before push: this host can receive before it asks anyone to reply.

        A detached host has no push; pop stays for peers that have yet to notice, unless it was taken
        away by force. Requests ride on what is pushed: mrc_probe is there before they do, and until they stop.
        """
        self.view.hooks.clear()
        self.tables.node["probe_ifindex"] = 0
        self._attached_at = None  # until the last step has succeeded
        if self.detached and not self._dataplane.attached():
            self._attached_at = self._interfaces()
            return
        assert self._mrc0 is not None
        keep: set[str] = set()
        wanted = self.plan.config.hook(self.plan.host)
        for port in self._ports.values():
            first = min(p for p, other in self._ports.items() if other.physical.ifindex == port.physical.ifindex)
            used, document = hooks.attach_pop(self._dataplane, wanted, port, first)
            keep |= used
            self.view.hooks.append(document)
        if not self.detached:
            probe = hooks.probe_attachment(self._mrc0_peer)
            self._dataplane.attach(probe)
            self.tables.node["probe_ifindex"] = self._mrc0_peer.ifindex
            push, document = hooks.push_attachment(self.plan.config.cluster.granularity, self._mrc0, self._mrc0_peer)
            self.view.hooks.append(document | {"how": self._dataplane.attach(push)})
            keep |= {probe.name, push.name}
        self._dataplane.detach_others(keep, self._tc_hooks())
        self._attached_at = self._interfaces()

    def _tc_hooks(self) -> list[tuple[int, Point]]:
        """Where an earlier run may have left filters."""
        assert self._mrc0 is not None
        peer = self._mrc0_peer.ifindex
        found: list[tuple[int, Point]] = [(self._mrc0.ifindex, "egress"), (peer, "ingress"), (peer, "egress")]
        return found + [(link.ifindex, "ingress") for link in self._links.values() if link.kind != "loopback"]

    # ---- routes ----

    async def _write_routes(self, rows: Iterable[int]) -> None:
        nics = self._nics()
        for row in rows:
            peer = self._peers[row]
            mrc0 = self._mrc0 if self.monitor.sprayed(row) else None
            usable = view.usable_evs(peer, self.monitor.routed(row))
            self._peer_routes[row] = routes.peer_routes(self.plan, peer, nics, usable, mrc0)
        wanted = self._fabric + [r for found in self._peer_routes.values() for r in found]
        for change in await self._netlink.sync_routes(wanted):
            log.debug("route %s", change)

    def _note_settled(self) -> None:
        if int(self.tables.node["ports"]):
            self.settled.set()

    def _mark(self, row: int) -> None:
        """A peer's routes are to be made anew."""
        self._dirty.add(row)
        self._wake.set()

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
        while True:
            try:
                async for more in self._netlink.watch():
                    self._relink |= more
                    self._reneighbour = True
                    self._wake.set()
            except Exception as e:
                log.error("%s; watching links anew", e if isinstance(e, MrcdError) else repr(e))
            await asyncio.sleep(1.0)

    async def _follow(self) -> None:
        async with self._netlink_lock:
            try:
                if self._reneighbour:
                    self._reneighbour = False
                    gateway = str(self.plan.config.interfaces.gateway)
                    if await self._netlink.neighbours(gateway) != self._macs:
                        self._relink = True
                if self._relink:
                    self._relink = False
                    await self._reconcile()
                    if self._interfaces() != self._attached_at:
                        self._attach()
                        view.save_running(self.run_dir, self.plan, self._dataplane.pins, self.view.hooks)
                    self._dirty |= set(self._peers)
                rows, self._dirty = self._dirty, set()
                await self._write_routes(rows)
                self._note_settled()
            except Exception as e:  # interfaces come and go under our hands: look again, whatever it was
                log.error("%s; trying again", e if isinstance(e, MrcdError) else repr(e))
                log.debug("", exc_info=e)
                self._relink = False
                asyncio.get_running_loop().call_later(_RETRY_S, self._look_again)
        await asyncio.sleep(_SETTLE_S)

    # ---- what administrators ask for ----

    async def detach(self, force: bool) -> str:
        """Stop spraying, here and by telling the peers; leave by plain SRv6. `force` takes mrc_pop away too,
        after the peers have had time to notice."""
        async with self._admin_lock:
            if self.detached and not self._dataplane.pushes() and not (force and self._dataplane.attached()):
                return "already detached"
            if self.plan.config.cluster.steering == "ecmp" and not force:
                raise UsageError(
                    "with steering ecmp there is no SRv6 to fall back to: peers would be cut off",
                    hint="--force does it all the same",
                )
            before = "detached" if self.detached else "attached"
            self.tables.node["status"] = int(self.tables.node["status"]) | abi.STATUS_DETACHED
            self.monitor.announce()
            async with self._netlink_lock:
                await self._write_routes(set(self._peers))  # before push goes: if this fails, detach again
                self._attach()  # all but push
            quiet = await self._wait_quiet() if force else True
            if force:
                self._dataplane.detach_others(set(), self._tc_hooks())
                self.view.hooks.clear()
            view.save_running(self.run_dir, self.plan, self._dataplane.pins, self.view.hooks)
            self.events.add("daemon", reason="admin", before=before, after="detached")
            text = "detached: traffic takes the kernel's SRv6 routes, flow by flow"
            if not force:
                return text + "; mrc_pop stays for peers that have yet to notice (--force removes it)"
            return text if quiet else text + "; some peers still spray to this host, and what they send is lost"

    async def _wait_quiet(self) -> bool:
        """Announce until no sprayed packet arrives for a while; False if they keep coming."""
        last = -1
        for _ in range(_QUIET_TRIES):
            self.monitor.announce()
            await asyncio.sleep(_QUIET_MS / 1000)
            count = int(self.tables.rxs["packets"].sum())
            if count == last:
                return True
            last = count
        return False

    async def attach(self) -> str:
        """Bring the data plane up again."""
        async with self._admin_lock, self._netlink_lock:
            if not self.detached:
                return "already attached"
            self.tables.node["status"] = int(self.tables.node["status"]) & ~abi.STATUS_DETACHED
            try:
                self._attach()
            except MrcdError:
                self.tables.node["status"] = int(self.tables.node["status"]) | abi.STATUS_DETACHED
                raise
            view.save_running(self.run_dir, self.plan, self._dataplane.pins, self.view.hooks)
            self.monitor.forget()
            self.monitor.announce()
            await self._write_routes(set(self._peers))
            self.events.add("daemon", reason="admin", before="detached", after="attached")
            return "attached"

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run_netlink())
            group.create_task(self.monitor.run())
            group.create_task(self.steering.run())


@contextlib.asynccontextmanager
async def running(plan: Plan, run_dir: Path, bpffs: Path, state_dir: Path | None = None) -> AsyncIterator[Daemon]:
    """A started daemon; closed on exit."""
    async with Netlink() as netlink:
        daemon = Daemon(plan, run_dir, bpffs, state_dir)
        await daemon.start(netlink)
        try:
            yield daemon
        finally:
            daemon.close()
