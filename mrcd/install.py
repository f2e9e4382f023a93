"""Write a plan into the tables. What is the same path as before keeps its counters and its state."""

import ipaddress
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mrcd import abi
from mrcd.hooks import Port
from mrcd.tables import Tables, prefix_key
from mrcd.topology import EV, Plan

_ALL_PORTS = 0xFFFF
_UDP = 17
_POLICY_SHIFT = 16
_SRH_TYPE = 4


def reduced_srh(segments: tuple[ipaddress.IPv6Address, ...]) -> bytes:
    """The SRH of H.Encaps.Red (RFC 8986 §5.2): without the first segment, which is the destination.

    Layout by RFC 8754 §2; the list runs backwards. Empty for a single segment.
    """
    n = len(segments)
    if n == 1:
        return b""
    header = bytes([_UDP, 2 * (n - 1), _SRH_TYPE, n - 1, n - 2, 0, 0, 0])
    return header + b"".join(s.packed for s in reversed(segments[1:]))


def write_peers(tables: Tables, plan: Plan, refresh: Callable[[int], None]) -> list[int]:
    """Configure peers and EVs. Returns the rows (host ids) of which some path is new or another.

    `refresh` has the programs work out a row's usable EVs: a path leaves the rotation before it is forgotten.
    """
    changed = []
    wanted = {p.host.id for p in plan.peers}
    for row in np.flatnonzero(tables.peers["configured"]).tolist():
        if row not in wanted:
            for table in (tables.peers, tables.evs, tables.ledgers, tables.rounds):
                table[row] = np.zeros((), table.dtype)  # not what it was received from: its base is over there
    for peer in plan.peers:
        row = peer.host.id
        record = tables.peers[row : row + 1].reshape(())
        for plane, address in enumerate(peer.addresses):
            record["address"][plane] = np.frombuffer(address.packed, np.uint8)
        record["floor"] = plan.config.cluster.ev_min_active or default_floor(len(peer.evs))
        if not record["configured"]:
            record["ports"] = _ALL_PORTS  # until the peer says otherwise
            record["configured"] = 1
        evs = {e.ev: e for e in peer.evs}
        configured = tables.evs[row]["configured"] != 0
        stale = [ev for ev in np.flatnonzero(configured).tolist() if not _is(tables, row, ev, evs.get(ev))]
        if stale:
            tables.evs["configured"][row, stale] = 0
            refresh(row)
            tables.evs[row, stale] = np.zeros((), abi.EV)
            tables.ledgers[row, stale] = np.zeros((), abi.LEDGER)
        new = [ev for ev in evs if ev in stale or not configured[ev]]
        for ev in new:
            _write_ev(tables, row, evs[ev])
        if stale or new:
            changed.append(row)
        refresh(row)
    return changed


def default_floor(evs: int) -> int:
    """`ev_min_active` when the configuration is silent: a quarter of the peer's EVs, at least one."""
    return max(1, evs // 4)


def _is(tables: Tables, row: int, ev: int, wanted: EV | None) -> bool:
    """Whether a configured EV is the path that is wanted."""
    if wanted is None:
        return False
    record = tables.evs[row, ev]
    srh = reduced_srh(wanted.segments)
    same = record["dst"].tobytes() == wanted.segments[0].packed and record["srh_len"] == len(srh)
    stored = tables.srhs[row * tables.evs.shape[1] + ev]["bytes"][: len(srh)].tobytes() if srh else b""
    return bool(same and int(record["plane"]) == wanted.plane and stored == srh)


def _write_ev(tables: Tables, row: int, wanted: EV) -> None:
    srh = reduced_srh(wanted.segments)
    if srh:
        tables.srhs[row * tables.evs.shape[1] + wanted.ev]["bytes"][: len(srh)] = np.frombuffer(srh, np.uint8)
    new = np.zeros((), abi.EV)
    new["dst"] = np.frombuffer(wanted.segments[0].packed, np.uint8)
    new["plane"], new["srh_len"], new["weight"], new["configured"] = wanted.plane, len(srh), abi.WEIGHT_FULL, 1
    tables.evs[row, wanted.ev] = new  # in one piece: the programs may be using it


def write_planes(tables: Tables, plan: Plan, ports: dict[int, Port], macs: dict[int, str]) -> int:
    """Configure this host's NICs. `macs`: ifindex → first hop's MAC. Returns the bitmap of the planes
    that can send: carrier, and a resolved first hop."""
    bitmap = 0
    for plane in range(plan.config.cluster.planes):
        record = tables.planes[plane : plane + 1].reshape(())
        port = ports.get(plane)
        if port is None:
            record["ifindex"] = 0
            continue
        mac = macs.get(port.nic.ifindex)
        record["vlan"] = port.vlan
        record["smac"] = _mac(port.nic.mac)
        record["address"] = np.frombuffer(plan.addresses[plane].packed, np.uint8)
        record["sid"] = np.frombuffer(plan.sids[plane].packed, np.uint8)
        if mac is not None:
            record["dmac"] = _mac(mac)
        record["ifindex"] = port.physical.ifindex
        if port.nic.up and port.physical.up and record["dmac"].any():
            bitmap |= 1 << plane
    return bitmap


def _mac(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(text.replace(":", "")), np.uint8)


def prefixes(plan: Plan) -> dict[bytes, int]:
    """The overlay trie: key of struct mrc_prefix → host id, and the policy of a class of that destination above it."""
    classes = [(n, abi.Policy[k.policy.upper()]) for k in plan.config.classes for n in k.prefixes]
    found = {}
    for peer in plan.peers:
        networks = list(peer.host.prefixes)
        networks += [n for n, _ in classes if plan.config.owner(n).id == peer.host.id]
        for n in networks:
            policy = next((p for c, p in classes if c.version == n.version and n.subnet_of(c)), abi.Policy.NONE)  # type: ignore[arg-type]
            found[prefix_key(n.network_address.packed, n.prefixlen)] = peer.host.id | policy << _POLICY_SHIFT
    return found
