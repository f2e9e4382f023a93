# SPDX-License-Identifier: BSD-2-Clause
"""Configures the host's interfaces by the plan: mrc0, the plane NICs, their addresses and first hops."""

import logging
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address

from mrcd.config.devices import former_names
from mrcd.errors import MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi
from mrcd.kernel.links import Point
from mrcd.net import drivers, hooks, routes, rps
from mrcd.net.messages import Change, Link
from mrcd.net.netlink import ANY_SEGMENTS, Netlink, made_with, set_offload

log = logging.getLogger("mrcd")

_TSO = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation")
_SEGMENTATION = (*_TSO, "tx-udp-segmentation")


class Nics:
    """The interfaces as the last reconcile() found them.

    `reconcile_later` is called, perhaps more than once, if reconcile() must run again in a while. `warn` is called with
    a text for the operator at each reconcile().
    """

    def __init__(
        self, plan: Plan, netlink: Netlink, warn: Callable[[str], None], reconcile_later: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.mrc0: Link
        self.mrc0_peer: Link
        self.timer: tuple[Link, Link] | None = None  # a veth pair; the second end paces the timer packet
        self.merging = False  # mrc0 merges the segments from mrc0_peer (GRO)
        self.ports: dict[int, hooks.Port] = {}  # plane → its NIC; only usable planes
        self.macs: dict[int, str] = {}  # ifindex → MAC of the first hop
        self._netlink, self._warn, self._reconcile_later = netlink, warn, reconcile_later
        self._links: dict[str, Link] = {}
        self._without_carrier: set[int] = set()  # ifindexes that lost their carrier since the links were read
        self._without_link_local: set[int] = set()  # ifindexes
        self._former_addresses: set[str] = set()  # of this host in earlier plans

    def use_plan(self, plan: Plan) -> None:
        """Adopts another plan, which the next reconcile() applies."""
        self._former_addresses |= own_addresses(self.plan)
        self._former_addresses -= own_addresses(plan)
        self.plan = plan

    async def reconcile(self) -> None:
        """Configures the interfaces by the plan. Leaves out NICs that fail; raises MrcdError for other failures."""
        c, overlay = self.plan.config.cluster, self.plan.config.overlay
        online = rps.online_cpus()
        queues = min(len(online), abi.MERGE_QUEUES)
        rps_cpus = rps.select_cpus(overlay.rps_cpus, online) if rps.has_default_mask() else set()
        mtu, longest = self.plan.inner_mtu, overlay.burst_bytes - self.plan.overhead
        for former, names in former_names(overlay.interface):
            await self._netlink.rename_veth(former, names)
        self.mrc0, self.mrc0_peer = await self._netlink.ensure_veth(
            overlay.interface,
            overlay.peer,
            mtu=mtu,
            gso_max_size=longest,
            gso_max_segs=c.bundle_segments if c.granularity == "bundle" else ANY_SEGMENTS,
            queues=queues,
            rps_cpus=rps_cpus,
        )
        self.warn_if_made_otherwise(queues, rps_cpus)
        await self._pace(mtu, longest)
        burst = c.granularity != "packet"
        wanted = {"tx-generic-segmentation": burst} | dict.fromkeys(_SEGMENTATION, burst)
        # Without these offloads the kernel segments the bursts that mrc_push passes on (bpf/tunnel.h).
        wanted |= dict.fromkeys(drivers.TUNNELS, False)
        set_offload(self.mrc0.name, wanted)
        hooks.enable_ipv6(self.mrc0.name)
        hooks.loosen_rp_filter(self.mrc0.name)
        addresses = routes.own_addresses(self.plan)
        await self._netlink.sync_addresses(self.mrc0.ifindex, addresses, self._has_moved)
        self._without_carrier.clear()
        self._links = links = await self._netlink.links()
        self.ports = hooks.ports(self.plan.interfaces, links, drivers.read_device)
        for missing in set(range(c.planes)) - self.ports.keys():
            self._warn(f"plane {missing}: interface {self.plan.interfaces[missing]} does not exist")
        if not self.ports:
            raise MachineError(
                f"none of the plane NICs {', '.join(self.plan.interfaces)} exists",
                hint="set [interfaces] names, or the host's interfaces, in the cluster file",
            )
        self._merge(hooks.merges(c.granularity, self.ports))
        self.macs = await self._first_hops()
        for plane, port in list(self.ports.items()):
            if port.nic.mtu < c.mtu:
                mtus = f"its MTU {port.nic.mtu} is less than cluster.mtu {c.mtu}"
                self._warn(f"{port.nic.name}: {mtus}, so the plane is left, unless all have a small one")
            try:
                await self._prepare(plane, port)
            except MrcdError as e:
                self._warn(f"plane {plane} is not used: {e}")
                del self.ports[plane]  # one bad NIC must not stop the others
                self._reconcile_later()

    def concerns(self, change: Change) -> bool:
        """Returns whether a change may be news to reconcile(): a host has many links, such as of its containers.

        Of neighbours only a first hop is, with another MAC than the last reconcile() found.
        """
        names = {*self.plan.interfaces, *self.plan.config.overlay.interfaces}
        own = {self._links[name].ifindex for name in names if name in self._links}
        own |= {port.physical.ifindex for port in self.ports.values()}
        if change.neighbour:
            ifindex, address, mac = change.neighbour
            is_first_hop = ifindex in own and address == str(self.plan.config.interfaces.gateway)
            return is_first_hop and self.macs.get(ifindex) != mac
        return change.ifindex in (0, *own) or change.name in names

    async def first_hops_changed(self) -> bool:
        """Returns whether the first hops differ from those of the last reconcile()."""
        return await self._first_hops() != self.macs

    async def remove_addresses(self, names: Iterable[str]) -> None:
        """Removes this host's addresses from NICs that belong to no plane any more."""
        for nic in (self._links[name] for name in names if name in self._links):
            await self._netlink.sync_addresses(nic.ifindex, [], own_addresses(self.plan).__contains__)

    # ---- carrier changes ----

    def note_carrier_lost(self, ifindex: int) -> None:
        """Records that a link has no carrier."""
        self._without_carrier.add(ifindex)

    def note_carrier_back(self, ifindex: int) -> None:
        """Records that a link has a carrier again."""
        self._without_carrier.discard(ifindex)

    def lost_plane_mask(self) -> int:
        """Returns the mask of the planes that lost their carrier since the last reconcile()."""
        lost = self._without_carrier
        planes = (p for p, port in self.ports.items() if lost & {port.nic.ifindex, port.physical.ifindex})
        return sum(1 << p for p in planes)

    # ---- for routes and programs ----

    def enabled(self) -> dict[int, Link]:
        """Returns the NICs by plane that can have routes: the kernel refuses routes on a NIC that is down."""
        return {p: port.nic for p, port in self.ports.items() if port.nic.enabled}

    def interfaces(self) -> set[int]:
        """Returns the ifindexes with programs. An ifindex changes if an interface is deleted and created again."""
        own = {self.mrc0.ifindex, *(end.ifindex for end in self.timer or ())}
        return {port.physical.ifindex for port in self.ports.values()} | own

    def tc_hooks(self) -> list[tuple[int, Point]]:
        """Returns the hooks where an earlier run may have left filters."""
        return hooks.tc_hooks((self.mrc0, self.mrc0_peer), self._links.values())

    # ---- parts of reconcile() ----

    def warn_if_made_otherwise(self, queues: int, rps_cpus: set[int]) -> None:
        """Warns if mrc0 has other queues or RPS CPUs than a new one would have: both are fixed when it is created."""
        name, alias, wanted = self.mrc0.name, self.mrc0.alias, made_with(queues, rps_cpus)
        if alias != wanted:
            self._warn(
                f"{name} was created with other queues or CPUs ({alias or 'no alias'}, and not {wanted}): "
                f"run `ip link del {name}` when traffic is low; mrcd creates it again"
            )

    async def _first_hops(self) -> dict[int, str]:
        nics = {self._links[name].ifindex for name in self.plan.interfaces if name in self._links}
        found = await self._netlink.neighbours(str(self.plan.config.interfaces.gateway))
        return {ifindex: mac for ifindex, mac in found.items() if ifindex in nics}

    async def _pace(self, mtu: int, longest: int) -> None:
        """Makes the veth of the timer packet, and paces it. If that fails, there is no timer packet."""
        overlay = self.plan.config.overlay
        packet = hooks.timer_packet_bytes(self.plan.config.cluster.evs_per_peer, self.plan.needs_srh)
        try:
            timer, peer = await self._netlink.ensure_veth(
                overlay.timer, overlay.timer_peer, mtu=mtu, gso_max_size=longest
            )
            await self._netlink.ensure_paced(peer, packet, abi.TIMER_NS)
            self.timer = timer, peer
        except MrcdError as e:
            self.timer = None
            self._warn(f"{e}: while mrcd is not running, paths of flows that have stopped are not probed")

    def _merge(self, wanted: bool) -> None:
        """Switches GRO of mrc0: a veth merges segments if its other end cannot send long ones (TSO off)."""
        try:
            set_offload(self.mrc0_peer.name, dict.fromkeys(_TSO, not wanted))
            set_offload(self.mrc0.name, {"rx-gro": wanted})
            self.merging = wanted
        except MrcdError as e:
            self.merging = False
            self._warn(f"{e}: TCP receives its segments one by one")

    async def _prepare(self, plane: int, port: hooks.Port) -> None:
        """Configures the reverse path filter, the addresses and the first hop of a NIC."""
        for name in sorted({port.nic.name, port.physical.name}):
            hooks.loosen_rp_filter(name)
        wanted = [str(self.plan.addresses[plane]), *_link_local(self.plan)]
        previous = await self._netlink.sync_addresses(port.nic.ifindex, wanted, self._in_underlay)
        if port.nic.up:
            await self._ensure_link_local(port.nic, previous)
        if port.nic.up and port.nic.ifindex not in self.macs:
            await self._netlink.keep_resolved(port.nic.ifindex, str(self.plan.config.interfaces.gateway))

    async def _ensure_link_local(self, nic: Link, addresses: set[str]) -> None:
        """Adds a link-local address if a NIC has had none in two calls: the kernel needs one to resolve the first hop.

        The kernel makes the address when the link comes up, so at the first call it may only be late.
        """
        if any(IPv6Address(a).is_link_local for a in addresses if ":" in a):
            self._without_link_local.discard(nic.ifindex)
        elif nic.ifindex in self._without_link_local:
            self._without_link_local.discard(nic.ifindex)
            address = await self._netlink.add_link_local(nic.ifindex, nic.mac)
            log.warning(
                "%s had no link-local address, so the kernel could not resolve its first hop: added %s",
                nic.name,
                address,
            )
        else:
            self._without_link_local.add(nic.ifindex)
            self._reconcile_later()

    def _has_moved(self, address: str) -> bool:
        """Returns whether an overlay address belongs to a peer, or to this host in an earlier plan only."""
        a = ip_address(address)
        moved = any(a in n for p in self.plan.peers for n in p.host.prefixes if n.version == a.version)
        return moved or address in self._former_addresses

    def _in_underlay(self, address: str) -> bool:
        """Returns whether an address is in the underlay, or belonged to this host in an earlier plan."""
        inside = ":" in address and IPv6Address(address) in self.plan.config.cluster.underlay
        return inside or address in self._former_addresses


def own_addresses(plan: Plan) -> set[str]:
    """Returns the host's own addresses on mrc0 and on the planes."""
    return {*routes.own_addresses(plan), *map(str, plan.addresses), *_link_local(plan)}


def _link_local(plan: Plan) -> list[str]:
    """Returns the address of every plane NIC to which the T0s route, if the cluster file has one."""
    address = plan.config.interfaces.address
    return [str(address)] if address else []
