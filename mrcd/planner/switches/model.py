# SPDX-License-Identifier: BSD-2-Clause
"""Computes what each switch needs from the cluster file: its uSID, and per port addresses, routes and filter. Pure.

A T0 has its hosts below and every T1 of its plane above, one link each. A T1 has every T0 of its plane below, or of a
plane of each rail ([cluster] rails): then it has a uSID and an address for each, and the name by its first plane.

On a host's link the T0 is [interfaces] gateway, and the host its `address`. On a link between switches the T0 is
fe80::2, and T1 number n is fe80::1:n: some systems key the next hops of a route by the address alone.

Besides the routes of uSIDs there are those of the underlay: by them ICMPv6 errors of switches reach the hosts, and with
encapsulation ecmp all packets.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv6Address, IPv6Network
from typing import Any, Literal

from mrcd.config.cluster_file import Config, Encapsulation, Host
from mrcd.errors import ConfigError, UsageError
from mrcd.fabric import srv6

T0_END = "fe80::2"
"""The link-local address of a T0 on its links to T1s."""

Kind = Literal["t0", "t1"]
_NAME = re.compile(r"(t0|t1)-(\d+)-(\d+)")
_LETTERS = re.compile(r"[A-Za-z0-9._/:-]+")
_PORT_NAME = re.compile(r"\{(?:(\d+)(?:\+(\d+))?|(neighbour))\}")


@dataclass(frozen=True, slots=True)
class Port:
    """A port, and what it leads to. Addresses and networks are text, since large fabrics have millions."""

    number: int  # on the switch, from 0
    name: str
    neighbour: str  # a host, or a switch without the plane: t0-3, t1-7; on a T1 of several planes with it: t0-2-3
    address: str  # link-local, of the switch
    next_hop: str  # link-local, of the neighbour
    networks: tuple[str, ...]  # routed to the neighbour
    source: str | None = None  # the only source address (besides link-local ones) that is forwarded from here
    is_uplink: bool = False
    plane: int = 0  # of the link
    far_switch: str | None = None  # name of the switch at the other end; None: a host


@dataclass(frozen=True)
class Switch:
    """Everything that a switch needs."""

    name: str
    kind: Kind
    planes: tuple[int, ...]
    number: int
    mtu: int
    encapsulation: Encapsulation
    block: str
    usids: tuple[int, ...]  # one for each plane; none with encapsulation ecmp
    own: tuple[str, ...]  # addresses of its loopback interface, one for each plane: the sources of its ICMPv6 errors
    ports: tuple[Port, ...]
    over_uplinks: tuple[str, ...] = ()  # networks routed over all uplinks, by a hash
    unreachable: tuple[str, ...] = ()  # networks that end here, but for longer prefixes

    @property
    def plane(self) -> int:
        """Returns the first of its planes."""
        return self.planes[0]

    @property
    def sids(self) -> list[str]:
        """Returns the prefixes of its uSIDs, or with encapsulation srh the addresses of its SIDs."""
        write = usid_prefix if self.encapsulation == "usid" else sid
        return [write(self.block, usid) for usid in self.usids]

    @property
    def locators(self) -> list[tuple[str, str]]:
        """Returns its SIDs with names of locators: MRC, and of further ones MRC1, MRC2, …."""
        return [(f"MRC{n or ''}", sid) for n, sid in enumerate(self.sids)]

    @property
    def uplinks(self) -> tuple[Port, ...]:
        """Returns the ports towards the T1s."""
        return tuple(p for p in self.ports if p.is_uplink)

    @property
    def routes(self) -> Iterator[tuple[str, list[Port]]]:
        """Yields each network, and the ports by which it is reached; none if packets to it end here."""
        yield from ((network, [port]) for port in self.ports for network in port.networks)
        yield from self.shared_routes

    @property
    def shared_routes(self) -> Iterator[tuple[str, list[Port]]]:
        """Yields the routes that are of no single port."""
        yield from ((network, list(self.uplinks)) for network in self.over_uplinks)
        yield from ((network, list[Port]()) for network in self.unreachable)

    def without(self, names: Collection[str]) -> "Switch":
        """Returns the switch without some ports, named as on the switch."""
        return dataclasses.replace(self, ports=tuple(p for p in self.ports if p.name not in names))


def t1_end(t1: int) -> str:
    """Returns the link-local address of a T1 on all of its links."""
    return f"fe80::1:{t1:x}"


def usid_prefix(block: str, usid: int) -> str:
    """Returns the /48 of a uSID. `block` is the address of the block."""
    return f"{_upper_words(block)}:{usid:x}::/48"


def sid(block: str, usid: int) -> str:
    """Returns the address of a uSID alone as /128."""
    return f"{_upper_words(block)}:{usid:x}::/128"


def _upper_words(block: str) -> str:
    """Returns the first two words of an address that ends in ::, as "5f00:0"."""
    words = block.removesuffix("::").split(":")
    return f"{words[0]}:{words[1] if len(words) > 1 else '0'}"


def interface_name(template: str, number: int, neighbour: str) -> str:
    """Returns a port's name: "swp{1}" and "Ethernet{0+4}" count ports, "{neighbour}" names the other end.

    Raises ConfigError if the template does neither.
    """
    match = _PORT_NAME.search(template)
    if not match or "{" in template[match.end() :]:
        raise ConfigError(
            f"[switches] port_names {template!r} has no number or neighbour",
            hint='write "swp{1}" (from 1), "Ethernet{0+4}" (from 0 by 4) or "{neighbour}"',
        )
    first, step, _ = match.groups()
    word = neighbour if first is None else str(int(first) + number * int(step or 1))
    return f"{template[: match.start()]}{word}{template[match.end() :]}"


class Switches:
    """The switches of a cluster file. Raises ConfigError if switches cannot be configured by it."""

    def __init__(self, config: Config, port_names: str, longest_name: int) -> None:
        """`port_names` is the template of port names if the file has none, `longest_name` the system's limit."""
        if config.interfaces.address is None:
            raise ConfigError(
                "[interfaces] address is not set, so T0s have no address to which they can route",
                hint='set it to "fe80::2": mrcd adds it to every plane NIC',
            )
        if config.paths:
            raise ConfigError(
                "[[paths]] lists paths that do not follow the numbering, so switches cannot be configured by it",
                hint="remove [[paths]], or configure these switches by hand",
            )
        self.config, self._longest_name = config, longest_name
        self._template = config.switches.port_names or port_names
        interface_name(self._template, 0, "")
        self._host_end = str(config.interfaces.address)
        self._gateway = str(config.interfaces.gateway)
        self._block = str(config.cluster.block.network_address)
        self._t1_planes = config.cluster.planes // config.cluster.rails  # planes with T1s of their own
        ports = max(h.port for h in config.hosts) + 1
        self._downlinks = config.switches.downlinks or ports
        if ports > self._downlinks:
            raise ConfigError(
                f"a host has port {ports - 1}, but [switches] downlinks is {self._downlinks}",
                hint="raise downlinks, which moves the T1s to other ports of every T0, or move the host",
            )

    @property
    def names(self) -> Iterator[str]:
        """Yields the name of every switch: t0-PLANE-NUMBER and t1-PLANE-NUMBER."""
        c = self.config.cluster
        for plane in range(c.planes):
            yield from (f"t0-{plane}-{t0}" for t0 in range(c.t0s))
            yield from (f"t1-{plane}-{t1}" for t1 in range(c.t1s) if plane < self._t1_planes)

    def switch(self, name: str) -> Switch:
        """Returns a switch by its name. Raises UsageError if the cluster has none of this name."""
        match, c = _NAME.fullmatch(name), self.config.cluster
        if match:
            kind, plane, number = match[1], int(match[2]), int(match[3])
            if kind == "t0" and plane < c.planes and number < c.t0s:
                return self._t0(plane, number)
            if kind == "t1" and plane < self._t1_planes and number < c.t1s:
                return self._t1(plane, number)
        t1s = f", t1-0-0 to t1-{self._t1_planes - 1}-{c.t1s - 1}" if c.t1s else ""
        raise UsageError(
            f"there is no switch {name!r}",
            hint=f"switches are t0-0-0 to t0-{c.planes - 1}-{c.t0s - 1}{t1s}: tier, plane, number",
        )

    @cached_property
    def _hosts(self) -> dict[int, list[Host]]:
        found: dict[int, list[Host]] = {}
        for host in self.config.hosts:
            found.setdefault(host.t0, []).append(host)
        return found

    def _t0(self, plane: int, t0: int) -> Switch:
        c = self.config.cluster
        down = [self._host_port(plane, host) for host in self._hosts.get(t0, [])]
        up = [self._uplink(plane, t1) for t1 in range(c.t1s)]
        own = srv6.plane_network(c.underlay, plane, t0)
        return self._switch(
            "t0",
            (plane,),
            t0,
            (*down, *up),
            over_uplinks=(str(srv6.plane_network(c.underlay, plane)),) if up else (),
            unreachable=(str(own),) if up else (),
        )

    def _t1(self, plane: int, t1: int) -> Switch:
        c = self.config.cluster
        ports = []
        planes = tuple(c.t1_planes(plane))
        for number, (each, t0) in enumerate(itertools.product(planes, range(c.t0s))):
            networks = self._to_switch(each, srv6.t0_usid(each, t0))
            hosts = str(srv6.plane_network(c.underlay, each, t0))
            far = f"t0-{each}-{t0}"
            name = far if c.rails > 1 else f"t0-{t0}"
            ports.append(self._port(number, name, t1_end(t1), T0_END, (hosts, *networks), plane=each, far_switch=far))
        return self._switch("t1", planes, t1, tuple(ports))

    def _switch(
        self, kind: Kind, planes: tuple[int, ...], number: int, ports: tuple[Port, ...], **routes: tuple[str, ...]
    ) -> Switch:
        c = self.config.cluster
        usids = [srv6.t0_usid(p, number) if kind == "t0" else srv6.t1_usid(p, number) for p in planes]
        networks = (_own_network(self.config, p, usid) for p, usid in zip(planes, usids, strict=True))
        return Switch(
            f"{kind}-{planes[0]}-{number}",
            kind,
            planes,
            number,
            c.mtu,
            c.encapsulation,
            self._block,
            () if c.encapsulation == "ecmp" else tuple(usids),
            tuple(str(IPv6Address(int(network.network_address) + 1)) for network in networks),
            ports,
            **routes,
        )

    def _host_port(self, plane: int, host: Host) -> Port:
        address = str(srv6.plane_address(self.config.cluster.underlay, plane, host))
        source = address if self.config.switches.source_filters else None
        networks = (f"{address}/128", *self._usid(srv6.host_usid(plane, host.port)))
        return self._port(host.port, host.name, self._gateway, self._host_end, networks, source=source, plane=plane)

    def _uplink(self, plane: int, t1: int) -> Port:
        networks = self._to_switch(plane, srv6.t1_usid(plane, t1))
        far, number = f"t1-{plane % self._t1_planes}-{t1}", self._downlinks + t1
        return self._port(number, f"t1-{t1}", T0_END, t1_end(t1), networks, is_uplink=True, plane=plane, far_switch=far)

    def _port(
        self,
        number: int,
        neighbour: str,
        address: str,
        next_hop: str,
        networks: tuple[str, ...],
        **more: Any,
    ) -> Port:
        name = interface_name(self._template, number, neighbour)
        if not _LETTERS.fullmatch(name) or len(name) > self._longest_name:
            raise ConfigError(
                f"{name!r} cannot be the name of a port: letters, digits and ._/:-, {self._longest_name} at most",
                hint='set [switches] port_names to count the ports, as "swp{1}"',
            )
        return Port(number, name, neighbour, address, next_hop, networks, **more)

    def _to_switch(self, plane: int, usid: int) -> tuple[str, ...]:
        """Returns the networks that lead to a switch: that of its own address, and its uSID."""
        return (str(_own_network(self.config, plane, usid)), *self._usid(usid))

    def _usid(self, usid: int) -> tuple[str, ...]:
        return () if self.config.cluster.encapsulation == "ecmp" else (usid_prefix(self._block, usid),)


def _own_network(config: Config, plane: int, usid: int) -> IPv6Network:
    """Returns the /64 of a switch's own address: its uSID (0x4000 and up) is in the field of the T0 number."""
    return srv6.plane_network(config.cluster.underlay, plane, usid)
