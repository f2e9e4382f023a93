# SPDX-License-Identifier: BSD-2-Clause
"""Follows EVs through the configurations of switches, as arrays of packets. Pure.

It does what RFC 9800 §4.1.1 says of a uN: a switch whose SID is the active uSID of the destination shifts the carrier
by one uSID, and forwards by its routes. It knows nothing of what the configurations were made from: the cables are
those of the plan, and everything else is what was read (switches/reading.py).
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import Config
from mrcd.fabric import srv6
from mrcd.fabric.paths import NO_T1, Paths
from mrcd.planner.switches.model import Port, Switch
from mrcd.planner.switches.reading import Reading

MOST_HOPS = 8
_NOWHERE = -1

Ints = NDArray[np.int64]


@dataclass
class Result:
    """The result of a walk: the number of packets followed, and the mistakes by kind, with an example of each."""

    followed: int = 0
    mistakes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, count: int, example: str) -> None:
        """Counts mistakes of a kind."""
        if count:
            self.mistakes[kind] += count
            self.examples.setdefault(kind, example)


class Network:
    """The switches of a fabric as their configurations make them, with the cables between them.

    `check` finds what is wrong with a configuration by itself; `follow_evs` sends the packets of EVs through all.
    """

    def __init__(self, config: Config, wiring: Iterable[Switch], readings: Mapping[str, Reading]) -> None:
        """`wiring` gives the ports of each switch and their neighbours; `readings` its configuration, by name."""
        self._config, c = config, config.cluster
        self._block = int(c.block.network_address) >> 96
        self.result = Result()
        self._host_number = {h.name: n for n, h in enumerate(config.hosts)}
        wired = list(wiring)
        self._node = {switch.name: n for n, switch in enumerate(wired)}
        self._usids: dict[str, int | None] = {}  # prefix → uSID
        self._sids: list[tuple[int, int]] = []  # (switch, uSID)
        self._next: dict[int, int] = {}  # switch << 16 | uSID → node
        self._underlay: dict[tuple[int, str], list[int]] = {}  # (switch, prefix) → nodes
        self._sources: dict[tuple[int, int], set[str] | None] = {}  # (T0, host) → what it forwards; None: everything
        for switch in wired:
            self._add(switch, readings[switch.name])
        self._keys = np.array(sorted(self._next), np.int64)
        self._values = np.array([self._next[k] for k in self._keys.tolist()], np.int64)
        self._t1_number = np.array([s.number if s.kind == "t1" else NO_T1 for s in wired], np.int64)
        self._shifts = np.array(sorted(switch << 16 | usid for switch, usid in self._sids), np.int64)

    @property
    def uses_usids(self) -> bool:
        """Returns whether EVs have carriers of uSIDs. With encapsulation ecmp they have addresses."""
        return self._config.cluster.encapsulation == "usid"

    # ---- from configurations to tables ----

    def _add(self, switch: Switch, found: Reading) -> None:
        """Adds a switch: resolves each next hop of its uSID routes to the node at the other end of the cable."""
        number, result = self._node[switch.name], self.result
        other_end = {port.name: port for port in switch.ports}
        for prefix, behaviour in found.sids.items():
            usid = self._usid_of(prefix)
            if usid is None or behaviour != "uN":
                result.add("SID that is no uSID", 1, f"{switch.name}: {prefix} {behaviour}")
            else:
                self._sids.append((number, usid))
        for port in switch.ports:
            if found.mtus.get(port.name, 0) < self._config.cluster.mtu:
                result.add("MTU too small", 1, f"{switch.name} {port.name}: {found.mtus.get(port.name)}")
            if f"{port.address}/64" not in found.addresses.get(port.name, []):
                result.add("address missing", 1, f"{switch.name} {port.name}: {port.address}")
            if port.far_switch is None:
                sources = found.sources.get(port.name, set()) if port.name in found.filtered else None
                self._sources[number, self._host_number[port.neighbour]] = sources
        for prefix, paths in found.routes.items():
            usid = self._usid_of(prefix)
            nodes = []
            for next_hop, interface in paths:
                there = other_end.get(interface)
                if there is None or there.next_hop != next_hop:
                    result.add("next hop without cable", 1, f"{switch.name}: {prefix} via {next_hop} {interface}")
                else:
                    nodes.append(self._far_node(there))
            if usid is None:
                self._underlay[number, prefix] = nodes
            elif len(nodes) == 1:
                self._next[number << 16 | usid] = nodes[0]
            else:
                result.add("uSID route without its one path", 1, f"{switch.name}: {prefix}")

    def _usid_of(self, prefix: str) -> int | None:
        """Returns the uSID of a prefix; None for one of the underlay."""
        if prefix not in self._usids:
            network = IPv6Network(prefix)
            address = int(network.network_address)
            inside = address >> 96 == self._block
            if inside and network.prefixlen != 48:
                self.result.add("prefix in the block that is no uSID's", 1, prefix)
            self._usids[prefix] = address >> 80 & 0xFFFF if inside else None
        return self._usids[prefix]

    def _far_node(self, port: Port) -> int:
        """Returns the number of what a port leads to: hosts are behind the switches."""
        if port.far_switch is None:
            return len(self._node) + self._host_number[port.neighbour]
        return self._node[port.far_switch]

    # ---- packets ----

    def follow_evs(self, source: int, peers: Sequence[int]) -> int:
        """Follows every EV of a host to some others. Hosts are given by their place in the cluster file.

        Returns the number of EVs. What goes wrong is counted in `result`.
        """
        hosts, c = self._config.hosts, self._config.cluster
        me, others = hosts[source], [hosts[n] for n in peers]
        paths = Paths(self._config, me, others)
        which = np.arange(len(others))
        block = paths.block(which, c.evs_per_peer)
        used = block.configured
        words = np.ascontiguousarray(block.dst[used]).view(">u2").astype(np.int64)  # (EVs, 8)
        planes = block.plane[used].astype(np.int64)
        peer = np.broadcast_to(which[:, None], used.shape)[used]
        t1s = paths.t1s[used[:, : paths.t1s.shape[1]]].astype(np.int64)
        target = len(self._node) + np.array(peers, np.int64)[peer]
        at = np.array([self._node[f"t0-{p}-{me.t0}"] for p in range(c.planes)], np.int64)[planes]
        self._check_sources(source, planes)
        seen_t1 = np.full(len(at), NO_T1, np.int64)
        arrived = np.zeros(len(at), bool)
        for _ in range(MOST_HOPS):
            moving = np.flatnonzero((at >= 0) & ~arrived)
            if not len(moving):
                break
            number = self._t1_number[at[moving]]
            seen_t1[moving] = np.where(number == NO_T1, seen_t1[moving], number)
            at[moving] = self._hop(at[moving], words, moving)
            arrived = at >= len(self._node)
        self._judge(me.name, planes, target, at, {
            "lost": ~arrived,
            "at another host": arrived & (at != target),
            "by another T1": arrived & (at == target) & (seen_t1 != t1s),
        }, words)  # fmt: skip
        self.result.followed += len(at)
        return len(at)

    def follow_address(self, start: str, target: int, choose: random.Random) -> None:
        """Follows one packet from a switch to a host's address on the switch's plane, as that of an ICMPv6 error.

        Where a route has several paths, `choose` takes one.
        """
        c, host, at = self._config.cluster, self._config.hosts[target], self._node[start]
        plane = int(start.split("-")[1])
        networks = (srv6.plane_network(c.underlay, plane, host.t0), srv6.plane_network(c.underlay, plane))
        prefixes = [f"{srv6.plane_address(c.underlay, plane, host)}/128", *map(str, networks)]
        hops = 0
        while at < len(self._node) and hops < MOST_HOPS:
            known = (self._underlay[at, prefix] for prefix in prefixes if (at, prefix) in self._underlay)
            nodes = next(known, [])
            if not nodes:
                break
            at, hops = choose.choice(nodes), hops + 1
        self.result.followed += 1
        self.result.add("address not reached", at != len(self._node) + target, f"{start} → {host.name}")

    def _hop(self, at: Ints, words: NDArray[np.int64], rows: Ints) -> Ints:
        """Shifts the carriers whose active uSID is the switch's, and returns the next nodes."""
        own = rows[_contains(self._shifts, at << 16 | words[rows, 2])]
        words[own, 2:7] = words[own, 3:8]
        words[own, 7] = 0
        keys = at << 16 | words[rows, 2]
        if not len(self._keys):
            return np.full(len(keys), _NOWHERE, np.int64)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._values[place], _NOWHERE)

    def _check_sources(self, source: int, planes: Ints) -> None:
        """Checks that each T0 forwards from the host's port what the host sends, and nothing of others."""
        c, me = self._config.cluster, self._config.hosts[source]
        for plane in np.unique(planes).tolist():
            t0 = f"t0-{plane}-{me.t0}"
            allowed = self._sources[self._node[t0], source]
            own = f"{srv6.plane_address(c.underlay, plane, me)}/128"
            if allowed is None:
                if self._config.switches.source_filters:
                    self.result.add("no source filter", 1, f"{t0}: port of {me.name}")
            elif own not in allowed:
                self.result.add("source filter drops the host", 1, f"{t0}: port of {me.name} lacks {own}")
            elif any(not IPv6Network(other).is_link_local for other in allowed - {own}):
                self.result.add("source filter lets others through", 1, f"{t0}: port of {me.name}: {sorted(allowed)}")

    def _judge(
        self, name: str, planes: Ints, target: Ints, at: Ints, wrong: Mapping[str, NDArray[np.bool_]], words: Ints
    ) -> None:
        """Counts packets that went wrong, and those that came to their host with more than its uSID."""
        hosts, number = self._config.hosts, target - len(self._node)
        usid = srv6.host_usid(planes, np.array([h.port for h in hosts], np.int64)[number])
        other = (at == target) & ((words[:, 2] != usid) | words[:, 3:].any(axis=1))
        for kind, which in {**wrong, "with another destination": other}.items():
            rows = np.flatnonzero(which)
            if len(rows):
                i = rows[0]
                destination = IPv6Address(words[i].astype(">u2").tobytes())
                self.result.add(kind, len(rows), f"{name} → {hosts[number[i]].name}, plane {planes[i]}: {destination}")


def _contains(ordered: Ints, keys: Ints) -> NDArray[np.bool_]:
    """Returns which keys are in an ascending array."""
    if not len(ordered):
        return np.zeros(len(keys), bool)
    place = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.asarray(ordered[place] == keys)
