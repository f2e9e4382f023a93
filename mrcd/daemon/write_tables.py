# SPDX-License-Identifier: BSD-2-Clause
"""Writes a plan into the tables. A path that is in both the old and the new plan keeps its counters and its state."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.config.hosts import Network
from mrcd.fabric.links import links
from mrcd.fabric.paths import Block
from mrcd.fabric.topology import Plan
from mrcd.health import probe_pace
from mrcd.kernel import abi, enums
from mrcd.kernel.pinned import Tables, prefix_key
from mrcd.net import drivers
from mrcd.net.hooks import Port
from mrcd.net.messages import Link

_ALL_PLANES = 0xFFFF
_AT_ONCE = 32  # peers: their EVs fit into a CPU cache
_POLICY_SHIFT = 16


class Erased:
    """Copies of records that were erased, by which a plan that is given up leaves what was known before."""

    def __init__(self) -> None:
        self._copies: list[tuple[int, NDArray[Any], Any, NDArray[Any]]] = []  # row, table, index, records

    def erase(self, row: int, table: NDArray[Any], at: Any) -> NDArray[Any]:
        """Set records of a row to zero. Returns the copy."""
        copy: NDArray[Any] = table[at].copy()
        self._copies.append((row, table, at, copy))
        table[at] = np.zeros((), table.dtype)
        return copy

    def put_back(self, refresh: Callable[[int], None]) -> None:
        """Write all records again. As in write_peers, a peer or path is not used while its record changes."""
        for row, table, at, copy in self._copies:
            if "configured" in (copy.dtype.names or ()):
                table["configured"][at] = 0
                refresh(row)
        for _, table, at, copy in reversed(self._copies):
            table[at] = copy
        for row in {row for row, *_ in self._copies}:
            refresh(row)


def write_peers(
    tables: Tables,
    plan: Plan,
    refresh: Callable[[int], None],
    replaced_hosts: AbstractSet[int] = frozenset(),
    erased: Erased | None = None,
) -> list[int]:
    """Configure peers and EVs. Returns the rows (host ids) with new or changed paths.

    `refresh` has the programs compute a row's usable EVs: a path leaves the rotation before its record is erased.
    `replaced_hosts`: rows whose host id belonged to another host before; their records are erased.
    Paths that the tables have already are not written again.
    """
    pace = probe_pace.of_plan(plan)
    tables.node["idle_us"] = min(pace.interval_ns // 1000, 2**32 - 1)
    tables.node["idle_evs"] = pace.window
    if tables.written is plan.paths:
        return []
    tables.written = None
    wanted, erased = {p.host.id for p in plan.peers} - replaced_hosts, erased or Erased()
    for row in np.flatnonzero(tables.peers["configured"]).tolist():
        if row not in wanted:
            for table in (tables.peers, tables.evs, tables.path_stats, tables.reports, tables.watches):
                erased.erase(row, table, row)  # the others stay: both ends count on if the peer comes back
            for name in ("clock_ns", "untagged"):  # another host may come
                erased.erase(row, tables.auths[name], row)
    rows = plan.rows
    changed = []
    for start in range(0, len(rows), _AT_ONCE):
        which = np.arange(start, min(start + _AT_ONCE, len(rows)))
        changed += _write_some(tables, plan, which, rows[which], refresh, erased)
    tables.written = plan.paths
    return changed


def _write_some(
    tables: Tables,
    plan: Plan,
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    refresh: Callable[[int], None],
    erased: Erased,
) -> list[int]:
    """Configure the peers `which`, by their number in the plan, whose rows are `rows`."""
    changed = []
    wanted, addresses = plan.paths.block(which, tables.evs.shape[1]), plan.paths.addresses(which)
    configured = tables.evs["configured"][rows] != 0
    same = configured & wanted.configured & _are(tables, rows, wanted)
    stale, new = configured & ~same, wanted.configured & ~same
    records = _records(wanted)
    for i, row in enumerate(rows.tolist()):
        peer = tables.peers[row : row + 1].reshape(())
        peer["address"][: addresses.shape[1]] = addresses[i]
        peer["floor"] = plan.config.cluster.ev_min_active or default_floor(int(plan.paths.counts[which[i]]))
        peer["slots"] = 1 + (np.flatnonzero(wanted.configured[i]) % plan.config.cluster.evs_per_plane).max()
        if not peer["configured"]:
            peer["plane_mask"] = _ALL_PLANES  # until the peer has sent its plane mask
            set_plain(tables, row, True)  # until its routes are written
            peer["configured"] = 1
        if stale[i].any():
            tables.evs["configured"][row, stale[i]] = 0
            refresh(row)
            erased.erase(row, tables.evs, (row, stale[i]))["configured"] = 1
            erased.erase(row, tables.path_stats, (row, stale[i]))
        if new[i].any():
            if wanted.srh is not None:
                _srhs(tables)[row, new[i]] = wanted.srh[i, new[i]]
            tables.evs[row, new[i]] = records[i, new[i]]  # one write per EV: the programs may be reading it
        if stale[i].any() or new[i].any():
            changed.append(row)
        refresh(row)
    return changed


def write_links(tables: Tables, plan: Plan) -> None:
    """Configure the links that this host watches. A link with the same carrier as before keeps its counters."""
    wanted = np.zeros(len(tables.links), abi.LINK)
    for link in links(plan):
        wanted["dst"][link.number] = np.frombuffer(link.carrier.packed, np.uint8)
        wanted["configured"][link.number], wanted["plane"][link.number] = 1, link.plane
    differ = (wanted["dst"] != tables.links["dst"]).any(axis=1)
    tables.links[differ] = wanted[differ]


def set_plain(tables: Tables, row: int, plain: bool) -> None:
    """Have probes tell a peer whether this host sends to it by plain SRv6."""
    status = int(tables.auths["status"][row]) & ~abi.STATUS_PLAIN
    tables.auths["status"][row] = status | (abi.STATUS_PLAIN if plain else 0)


def announce_plain(tables: Tables, row: int) -> None:
    """Have probes tell a peer that this host sends to it by plain SRv6: the first one at once, if that is new."""
    if not int(tables.auths["status"][row]) & abi.STATUS_PLAIN:
        set_plain(tables, row, True)
        tables.watches["announce"][row] = 1
        tables.watches["due_ns"][row] = 0


def default_floor(evs: int) -> int:
    """Return the default of `ev_min_active`: a quarter of the peer's EVs, at least one."""
    return max(1, evs // 4)


def _are(tables: Tables, rows: NDArray[np.int64], wanted: Block) -> NDArray[np.bool_]:
    """Return which EVs of the tables have the same path as in `wanted`, (peers, evs_per_peer)."""
    same: NDArray[np.bool_] = (tables.evs["dst"][rows] == wanted.dst).all(axis=2)
    for name, column in (("plane", wanted.plane), ("srh_len", wanted.srh_len)):
        same &= tables.evs[name][rows] == column
    if wanted.srh is not None:
        beyond = np.arange(abi.SRH_MAX) >= wanted.srh_len[..., None]  # bytes of a longer SRH before
        same &= ((_srhs(tables)[rows] == wanted.srh) | beyond).all(axis=2)
    return same


def _records(wanted: Block) -> NDArray[np.void]:
    """Return the wanted EVs as records of abi.EV."""
    made = np.zeros(wanted.configured.shape, abi.EV)
    made["dst"], made["plane"], made["srh_len"] = wanted.dst, wanted.plane, wanted.srh_len
    made["weight"], made["configured"] = abi.WEIGHT_FULL, wanted.configured
    return made


def _srhs(tables: Tables) -> NDArray[np.uint8]:
    """Return the SRHs of all EVs, (peers, evs_per_peer, SRH_MAX)."""
    return np.asarray(tables.srhs["bytes"].reshape(*tables.evs.shape, abi.SRH_MAX))


def write_planes(tables: Tables, plan: Plan, ports: dict[int, Port], macs: dict[int, str]) -> int:
    """Configure this host's NICs. `macs`: ifindex → first hop's MAC.

    Returns the plane mask of the planes that can send: those with a carrier, a resolved first hop and the cluster's
    MTU. If none has that MTU, they are used all the same.
    """
    plane_mask = fitting = 0
    for plane in range(plan.config.cluster.planes):
        record = tables.planes[plane : plane + 1].reshape(())
        port = ports.get(plane)
        if port is None:
            record["ifindex"] = 0
            continue
        mac = macs.get(port.nic.ifindex)
        record["vlan"] = port.vlan
        record["nested_gso"] = drivers.accepts_nested_tunnels(port.physical, port.device)
        record["smac"] = _mac(port.nic.mac)
        record["address"] = np.frombuffer(plan.addresses[plane].packed, np.uint8)
        record["sid"] = np.frombuffer(plan.sids[plane].packed, np.uint8)
        if mac is not None:
            record["dmac"] = _mac(mac)
        record["ifindex"] = port.physical.ifindex
        if port.nic.up and port.physical.up and record["dmac"].any():
            plane_mask |= 1 << plane
            fitting |= (min(port.nic.mtu, port.physical.mtu) >= plan.config.cluster.mtu) << plane
    return fitting or plane_mask


def write_receiver(tables: Tables, mrc0: Link, mrc0_peer: Link, *, merging: bool, xdp_too: bool) -> None:
    """Configure mrc0, which receives popped packets from its veth peer.

    `merging`: TCP segments pass GRO on the way; `xdp_too`: also those that XDP has popped.
    """
    node = tables.node
    node["overlay_eth"] = np.concatenate([_mac(mrc0.mac), _mac(mrc0_peer.mac)])
    node["merge_xdp"] = merging and xdp_too
    node["merge_ifindex"] = mrc0_peer.ifindex if merging else 0
    node["overlay_ifindex"] = mrc0.ifindex


def _mac(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(text.replace(":", "")), np.uint8)


def prefixes(plan: Plan) -> dict[bytes, int]:
    """Return the overlay trie: key of struct mrc_prefix → host id, and above it the policy of a class that matches."""
    named: dict[Network, tuple[int, enums.Policy]] = {}  # network → position, policy: the first class wins
    for k in plan.config.classes:
        for n in k.prefixes:
            named.setdefault(n, (len(named), enums.Policy[k.policy.upper()]))
    lengths = {(n.version, n.prefixlen) for n in named}
    networks = [(n, host.id) for host in (plan.host, *(p.host for p in plan.peers)) for n in host.prefixes]
    networks += [(n, host) for n in named if (host := plan.config.host_of(n).id) != plan.host.id]
    found = {}
    for n, host_id in networks:
        wider = [n.supernet(new_prefix=length) for v, length in lengths if v == n.version and length <= n.prefixlen]
        _, policy = min((named[c] for c in wider if c in named), default=(0, enums.Policy.NONE))
        found[prefix_key(n.network_address.packed, n.prefixlen)] = host_id | policy << _POLICY_SHIFT
    return found
