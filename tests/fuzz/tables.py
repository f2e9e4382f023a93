# SPDX-License-Identifier: BSD-2-Clause
"""Writes the tables of the fuzzed host as a C header: host h0 of three, two planes, four T1s per plane.

The daemon's own functions fill them. Each of the two sets has its own encapsulation: 0 is usid, 1 is srh.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.fabric import links, topology
from mrcd.kernel import abi, settings
from tests.cluster_files import dual

PLANES, EVS, PEERS = 2, 8, 3
ENCAPSULATIONS = ("usid", "srh")
FIRST_IFINDEX = 10
"""Of the NIC of plane 0; the next plane's NIC has the next number."""


def plan(encapsulation: str, host: str = "h0") -> topology.Plan:
    """Returns the plan of a host of the cluster."""
    fabric = f"[cluster]\nplanes = {PLANES}\nt0s = 2\nt1s = 4\nmtu = 1500\nevs_per_peer = {EVS}\n"
    hosts = dual(0, 0, 0) + dual(1, 0, 1) + dual(2, 1, 0)
    return topology.plan(cluster_file.parse(f'{fabric}encapsulation = "{encapsulation}"\n{hosts}'), host)


def nic_mac(plane: int) -> bytes:
    """Returns the MAC address of this host's NIC."""
    return bytes([2, 0, 0, 0, 0, plane])


def wire_mac(plane: int) -> bytes:
    """Returns the MAC address of the T0 at the other end."""
    return bytes([2, 0, 0, 0, 1, plane])


def _filled(of: topology.Plan) -> dict[str, Any]:
    kinds = {"peers": abi.PEER, "auths": abi.AUTH, "reports": abi.REPORTS, "watches": abi.WATCH}
    tables: Any = SimpleNamespace(**{name: np.zeros(PEERS, kind) for name, kind in kinds.items()})
    tables.written = None
    tables.evs, tables.path_stats = np.zeros((PEERS, EVS), abi.EV), np.zeros((PEERS, EVS), abi.PATH_STATS)
    tables.srhs, tables.node = np.zeros(PEERS * EVS, abi.SRH), np.zeros((), abi.NODE)
    tables.links = np.zeros(links.table_size(of.config.cluster.t1s), abi.LINK)
    write_tables.write_peers(tables, of, lambda _: None)
    write_tables.write_links(tables, of)
    planes = np.zeros(abi.MAX_PLANES, abi.PLANE)
    for p in range(PLANES):
        planes["ifindex"][p] = FIRST_IFINDEX + p
        planes["smac"][p] = np.frombuffer(nic_mac(p), np.uint8)
        planes["dmac"][p] = np.frombuffer(wire_mac(p), np.uint8)
        planes["address"][p] = np.frombuffer(of.addresses[p].packed, np.uint8)
        planes["sid"][p] = np.frombuffer(of.sids[p].packed, np.uint8)
    return {
        "settings": settings.settings(of, peers=PEERS),
        "health": settings.health(of),
        "peers": tables.peers,
        "evs": tables.evs,
        "srhs": tables.srhs,
        "node": tables.node,
        "planes": planes,
        "links": tables.links,
    }


def header() -> str:
    """Returns the header."""
    lines = ["/* Written by tests/fuzz/tables.py. */"]
    lines += [f"#define PLANES {PLANES}", f"#define EVS {EVS}", f"#define PEERS {PEERS}"]
    lines += [f"#define FIRST_IFINDEX {FIRST_IFINDEX}", f"#define LINKS {len(_filled(plan('usid'))['links'])}"]
    sets = [_filled(plan(e)) for e in ENCAPSULATIONS]
    for name, first in sets[0].items():
        rows = ",\n".join("{" + ",".join(map(str, s[name].tobytes())) + "}" for s in sets)
        lines.append(f"static const __u8 made_{name}[{len(sets)}][{first.nbytes}] = {{{rows}}};")
    found = write_tables.prefixes(plan(ENCAPSULATIONS[0]))
    keys = ",".join("{" + ",".join(map(str, key)) + "}" for key in found)
    lines.append(f"static const __u8 made_prefixes[{len(found)}][{abi.PREFIX.itemsize}] = {{{keys}}};")
    lines.append(f"static const __u32 made_hosts[{len(found)}] = {{{','.join(map(str, found.values()))}}};")
    return "\n".join(lines) + "\n"
