"""Write a plan into the tables. What is the same path as before keeps its counters and its state."""

import ipaddress

import numpy as np
from numpy.typing import NDArray

from mrcd import abi
from mrcd.health import bitmap
from mrcd.hooks import Port
from mrcd.tables import Tables, prefix_key
from mrcd.topology import EV, Plan

_ALL_PORTS = 0xFFFF
_UDP = 17
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


def write_peers(tables: Tables, plan: Plan) -> list[int]:
    """Configure peers and EVs. Returns the rows (host ids) of which some path is new or another."""
    changed = []
    c = plan.config.cluster
    wanted = {p.host.id for p in plan.peers}
    for row in np.flatnonzero(tables.peers["configured"]).tolist():
        if row not in wanted:
            tables.peers[row] = np.zeros((), abi.PEER)
            tables.evs[row] = np.zeros((), abi.EV)  # not what it was received from: its base is over there
    for peer in plan.peers:
        row = peer.host.id
        record = tables.peers[row : row + 1].reshape(())
        for plane, address in enumerate(peer.addresses):
            record["address"][plane] = np.frombuffer(address.packed, np.uint8)
        if not record["configured"]:
            record["ports"] = _ALL_PORTS  # until the peer says otherwise
            record["configured"] = 1
        evs = {e.ev: e for e in peer.evs}
        kept = np.zeros(tables.evs.shape[1], bool)
        kept[list(evs)] = True
        # Out of the rotation before its path is forgotten.
        record["usable"] &= bitmap(kept, c.planes, c.evs_per_plane, abi.MAX_PLANES, abi.EV_WORDS)
        different = False
        for ev in range(tables.evs.shape[1]):
            different |= _write_ev(tables, row, ev, evs.get(ev))
        if different:
            changed.append(row)
    return changed


def _write_ev(tables: Tables, row: int, ev: int, wanted: EV | None) -> bool:
    record = tables.evs[row, ev : ev + 1].reshape(())
    if wanted is None:
        was = bool(record["configured"])
        if was:
            tables.evs[row, ev] = np.zeros((), abi.EV)
        return was
    srh = reduced_srh(wanted.segments)
    dst = np.frombuffer(wanted.segments[0].packed, np.uint8)
    index = row * tables.evs.shape[1] + ev
    same = bool(record["configured"]) and np.array_equal(record["dst"], dst) and record["srh_len"] == len(srh)
    same = same and int(record["plane"]) == wanted.plane
    if same and srh:
        same = tables.srhs[index]["bytes"][: len(srh)].tobytes() == srh
    if same:
        return False
    if srh:
        tables.srhs[index]["bytes"][: len(srh)] = np.frombuffer(srh, np.uint8)
    new = np.zeros((), abi.EV)
    new["dst"], new["plane"], new["srh_len"], new["configured"] = dst, wanted.plane, len(srh), 1
    tables.evs[row, ev] = new  # in one piece: the programs may be using it
    return True


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
    """The overlay trie: key of struct mrc_prefix → host id."""
    return {
        prefix_key(n.network_address.packed, n.prefixlen): peer.host.id
        for peer in plan.peers
        for n in peer.host.prefixes
    }
