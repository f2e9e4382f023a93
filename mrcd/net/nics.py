"""The host's interfaces, as the plan wants them: mrc0, the planes' NICs, their addresses and first hops."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address

from mrcd.errors import MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.loader.links import Point
from mrcd.net import drivers, hooks, routes, rps
from mrcd.net.messages import Link, Neighbour
from mrcd.net.netlink import Netlink, made_with, set_offload
from mrcd.tables import abi

log = logging.getLogger("mrcd")

RETRY_S = 1.0
_TSO = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation")
_SEGMENTATION = (*_TSO, "tx-udp-segmentation")


class Nics:
    """What `look` found last. `look_again` is called when that should be done once more, `warn` with words for the
    operator, again and again."""

    def __init__(
        self, plan: Plan, netlink: Netlink, warn: Callable[[str], None], look_again: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.mrc0: Link
        self.mrc0_peer: Link
        self.timer: tuple[Link, Link] | None = None  # a veth, whose second end holds back what it sends
        self.merging = False  # mrc0 merges what mrc0_peer sends it
        self.ports: dict[int, hooks.Port] = {}  # plane → where it is attached; those that can be used
        self.macs: dict[int, str] = {}  # ifindex → first hop
        self._netlink, self._warn, self._look_again = netlink, warn, look_again
        self._links: dict[str, Link] = {}
        self._lost: set[int] = set()  # ifindexes that have no carrier, by events since links were looked at
        self._bare: set[int] = set()  # interfaces without a link-local address
        self._former: set[str] = set()  # addresses of this host by a plan before this one

    def follow(self, plan: Plan) -> None:
        """Another plan; `look` does the rest."""
        self._former |= own_addresses(self.plan)
        self._former -= own_addresses(plan)
        self.plan = plan

    async def look(self) -> None:
        """Actual state to desired state. Raises MrcdError where that cannot be; a NIC that is bad is only left out."""
        c, overlay = self.plan.config.cluster, self.plan.config.overlay
        online = rps.online_cpus()
        queues = min(len(online), abi.MERGE_QUEUES)
        rps_cpus = rps.select_cpus(overlay.rps_cpus, online) if rps.has_default_mask() else set()
        mtu, longest = self.plan.inner_mtu, overlay.burst_bytes - self.plan.overhead
        self.mrc0, self.mrc0_peer = await self._netlink.ensure_veth(
            overlay.interface,
            overlay.peer,
            mtu=mtu,
            gso_max_size=longest,
            queues=queues,
            rps_cpus=rps_cpus,
        )
        self._warn_if_made_otherwise(queues, rps_cpus)
        await self._pace(mtu, longest)
        burst = c.granularity == "burst"
        wanted = {"tx-generic-segmentation": burst} | dict.fromkeys(_SEGMENTATION, burst)
        wanted |= dict.fromkeys(drivers.TUNNELS, False)  # mrc0 cuts what mrc_push leaves: see bpf/tunnel.h
        set_offload(self.mrc0.name, wanted)
        hooks.enable_ipv6(self.mrc0.name)
        hooks.loosen(self.mrc0.name)
        await self._netlink.sync_addresses(self.mrc0.ifindex, routes.own_addresses(self.plan), self._is_a_peers)
        self._lost.clear()
        self._links = links = await self._netlink.links()
        self.ports = hooks.ports(self.plan.interfaces, links, drivers.read)
        for missing in set(range(c.planes)) - self.ports.keys():
            self._warn(f"plane {missing}: there is no interface {self.plan.interfaces[missing]}")
        if not self.ports:
            raise MachineError(
                f"none of the plane NICs {', '.join(self.plan.interfaces)} exists",
                hint="name them in [interfaces] names, or in the host's interfaces",
            )
        self._merge(hooks.merges(c.granularity, self.ports))
        self.macs = await self._first_hops()
        for plane, port in list(self.ports.items()):
            if port.nic.mtu < c.mtu:
                short = f"{port.nic.name} has MTU {port.nic.mtu}, less than the planes' {c.mtu}"
                self._warn(f"{short}: full packets are lost")
            try:
                await self._prepare(plane, port)
            except MrcdError as e:
                self._warn(f"plane {plane} is left out: {e}")
                del self.ports[plane]  # one bad NIC must not stop the others
                asyncio.get_running_loop().call_later(RETRY_S, self._look_again)

    def knows(self, neighbour: Neighbour) -> bool:
        """Whether this is no news since the last look: as it was, or of no first hop."""
        first_hop = neighbour.address == str(self.plan.config.interfaces.gateway)
        return not first_hop or self.macs.get(neighbour.ifindex) == neighbour.mac

    async def first_hops_changed(self) -> bool:
        """Whether they are others than at the last look."""
        return await self._first_hops() != self.macs

    async def release(self, names: Iterable[str]) -> None:
        """NICs that are no plane's any more keep no address of this host's."""
        for nic in (self._links[name] for name in names if name in self._links):
            await self._netlink.sync_addresses(nic.ifindex, [], own_addresses(self.plan).__contains__)

    # ---- carriers, by events ----

    def lose(self, ifindex: int) -> None:
        """A link has no carrier."""
        self._lost.add(ifindex)

    def regain(self, ifindex: int) -> None:
        """It has one again."""
        self._lost.discard(ifindex)

    def lost_planes(self) -> int:
        """The planes that lost theirs since the last look, as bits."""
        lost = (p for p, port in self.ports.items() if self._lost & {port.nic.ifindex, port.physical.ifindex})
        return sum(1 << p for p in lost)

    # ---- for routes and programs ----

    def enabled(self) -> dict[int, Link]:
        """Plane → NIC, those that can have routes: the kernel refuses them on one that is down."""
        return {p: port.nic for p, port in self.ports.items() if port.nic.enabled}

    def interfaces(self) -> set[int]:
        """Where programs are attached: ifindexes change when an interface goes and comes back."""
        own = {self.mrc0.ifindex, *(end.ifindex for end in self.timer or ())}
        return {port.physical.ifindex for port in self.ports.values()} | own

    def tc_hooks(self) -> list[tuple[int, Point]]:
        """Where an earlier run may have left filters."""
        return hooks.tc_hooks((self.mrc0, self.mrc0_peer), self._links.values())

    # ---- a look ----

    def _warn_if_made_otherwise(self, queues: int, rps_cpus: set[int]) -> None:
        """Warn if mrc0 has other queues or RPS CPUs than a new one would have: both are set when it is made."""
        name, alias, wanted = self.mrc0.name, self.mrc0.alias, made_with(queues, rps_cpus)
        if alias != wanted:
            self._warn(
                f"{name} was made with other queues or CPUs ({alias or 'no alias'}, and not {wanted}): "
                f"in a quiet moment `ip link del {name}`, and it is made anew"
            )

    async def _first_hops(self) -> dict[int, str]:
        return await self._netlink.neighbours(str(self.plan.config.interfaces.gateway))

    async def _pace(self, mtu: int, longest: int) -> None:
        """What goes round is held back on its way; without that it does not go round."""
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
            self._warn(f"{e}: while mrcd is dead, nobody probes where a flow has stopped")

    def _merge(self, wanted: bool) -> None:
        """Have mrc0 merge what its peer sends it (GRO): a veth does if its other end cannot send long segments."""
        try:
            set_offload(self.mrc0_peer.name, dict.fromkeys(_TSO, not wanted))
            set_offload(self.mrc0.name, {"rx-gro": wanted})
            self.merging = wanted
        except MrcdError as e:
            self.merging = False
            self._warn(f"{e}: TCP gets its segments one by one")

    async def _prepare(self, plane: int, port: hooks.Port) -> None:
        """One NIC: sysctls, its address, its first hop."""
        hooks.prepare_sysctls(port)
        wanted = [str(self.plan.addresses[plane])]
        had = await self._netlink.sync_addresses(port.nic.ifindex, wanted, self._in_underlay)
        if port.nic.up:
            await self._ensure_link_local(port.nic, had)
        if port.nic.up and port.nic.ifindex not in self.macs:
            await self._netlink.keep_resolved(port.nic.ifindex, str(self.plan.config.interfaces.gateway))

    async def _ensure_link_local(self, nic: Link, had: set[str]) -> None:
        """Without such an address the kernel cannot ask for the first hop. It makes one when the link comes up, so
        only where there is still none at a second look somebody has taken it away."""
        if any(IPv6Address(a).is_link_local for a in had if ":" in a):
            self._bare.discard(nic.ifindex)
        elif nic.ifindex in self._bare:
            self._bare.discard(nic.ifindex)
            address = await self._netlink.add_link_local(nic.ifindex, nic.mac)
            log.warning(
                "%s had no link-local address, without which its first hop is lost: added %s", nic.name, address
            )
        else:
            self._bare.add(nic.ifindex)
            asyncio.get_running_loop().call_later(RETRY_S, self._look_again)

    def _is_a_peers(self, address: str) -> bool:
        """An overlay address that has moved to another host."""
        a = ip_address(address)
        moved = any(a in n for p in self.plan.peers for n in p.host.prefixes if n.version == a.version)
        return moved or address in self._former

    def _in_underlay(self, address: str) -> bool:
        inside = ":" in address and IPv6Address(address) in self.plan.config.cluster.underlay
        return inside or address in self._former


def own_addresses(plan: Plan) -> set[str]:
    """Of the host itself, on mrc0 and on the planes."""
    return {*routes.own_addresses(plan), *map(str, plan.addresses)}
