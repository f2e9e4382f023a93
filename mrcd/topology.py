"""Fabric → uSIDs → EVs. Pure arithmetic: the same file gives the same tables on every host.

The numbering of 16-bit uSIDs (RFC 9800 NEXT-C-SID behind a 32-bit block), one function per kind:

    T0      01ppp iii iiii iiii     0x4000 | plane << 11 | t0
    T1      10ppp iii iiii iiii     0x8000 | plane << 11 | t1
    host    110pp p   ii iiii iiii  0xc000 | plane << 10 | port of its T0
    local   111…                    0xe000 and up: functions of the node itself (RFC 9800 LIB)

As in MRC the plane is part of every uSID, the T1's number is the T0's uplink, and the host's is the
T0's downlink, so that an EV's address is arithmetic and a fault can be named by its link.
EV = plane × evs_per_plane + slot, on every host alike, because EVs travel in packets.
"""

import hashlib
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from mrcd.config import Cluster, Config, Host, Path_, Steering
from mrcd.errors import ConfigError

UDT4 = 0xE004  # decapsulate inner IPv4 (kernel fallback routes only)
UDT6 = 0xE006  # decapsulate inner IPv6

# Bytes in front of the inner packet, by steering: IPv6 + [SRH] + UDP + MRC (bpf/mrc_abi.h)
_IPV6, _UDP, _MRC, _SRH = 40, 8, 32, 8


def t0_usid(plane: int, t0: int) -> int:
    """uSID of a T0 switch."""
    return 0x4000 | plane << 11 | t0


def t1_usid(plane: int, t1: int) -> int:
    """uSID of a T1 switch."""
    return 0x8000 | plane << 11 | t1


def host_usid(plane: int, port: int) -> int:
    """uSID of a host NIC: meaningful at its T0 only."""
    return 0xC000 | plane << 10 | port


def carrier(block: IPv6Network, usids: list[int]) -> IPv6Address:
    """Pack uSIDs behind the block (RFC 9800 §4.1): at most six, in travel order."""
    if not 1 <= len(usids) <= 6:
        raise ValueError(f"a carrier holds 1 to 6 uSIDs, not {len(usids)}")
    value = int(block.network_address)
    for i, usid in enumerate(usids):
        value |= usid << (80 - 16 * i)
    return IPv6Address(value)


def usid_prefix(block: IPv6Network, usid: int) -> IPv6Network:
    """The /48 by which a switch matches a uSID."""
    return IPv6Network((carrier(block, [usid]), 48))


def plane_address(underlay: IPv6Network, plane: int, host: Host) -> IPv6Address:
    """A host's address on a plane: underlay : plane : T0 :: host id + 1."""
    return IPv6Address(int(underlay.network_address) | plane << 80 | host.t0 << 64 | (host.id + 1))


def plane_network(underlay: IPv6Network, plane: int, t0: int | None = None) -> IPv6Network:
    """All addresses of a plane (/48), or of one T0 in it (/64)."""
    value = int(underlay.network_address) | plane << 80
    return IPv6Network((value, 48)) if t0 is None else IPv6Network((value | t0 << 64, 64))


@dataclass(frozen=True)
class EV:
    """One path to one peer. `segments` are destination addresses in travel order (one = no SRH)."""

    peer: str
    peer_id: int
    ev: int
    plane: int
    slot: int
    t1: int | None  # None: under the same T0, explicit path, or ecmp
    segments: tuple[IPv6Address, ...]
    usids: tuple[int, ...]
    label: str = ""


@dataclass(frozen=True)
class Peer:
    """Another host, its addresses on the planes and the EVs to it, ordered by EV."""

    host: Host
    addresses: tuple[IPv6Address, ...]
    evs: tuple[EV, ...]


@dataclass(frozen=True)
class Plan:
    """What one host installs."""

    config: Config
    host: Host
    interfaces: tuple[str, ...]
    addresses: tuple[IPv6Address, ...]
    sids: tuple[IPv6Address, ...]  # the destination of packets that arrive, per plane
    peers: tuple[Peer, ...]

    @property
    def overhead(self) -> int:
        """Bytes in front of the inner packet on the longest path."""
        segments = max((len(e.segments) for p in self.peers for e in p.evs), default=1)
        return _IPV6 + srh_bytes(segments) + _UDP + _MRC

    @property
    def inner_mtu(self) -> int:
        """Largest inner packet: the planes' MTU less the overhead."""
        return self.config.cluster.mtu - self.overhead


def srh_bytes(segments: int) -> int:
    """Size of the reduced SRH (RFC 8754, H.Encaps.Red): the first segment is in the destination."""
    return 0 if segments <= 1 else _SRH + 16 * (segments - 1)


def plan(config: Config, host_name: str) -> Plan:
    """Compute everything that one host installs. Raises ConfigError if the host is not in the file."""
    me = config.host(host_name)
    c = config.cluster
    addresses = tuple(plane_address(c.underlay, p, me) for p in range(c.planes))
    if c.steering == "ecmp":
        sids = addresses
    else:
        sids = tuple(carrier(c.block, [host_usid(p, me.port)]) for p in range(c.planes))
    peers = tuple(_peer(config, me, h) for h in config.hosts if h.id != me.id)
    return Plan(config, me, tuple(config.interface_names(me)), addresses, sids, peers)


def _peer(config: Config, me: Host, other: Host) -> Peer:
    c = config.cluster
    addresses = tuple(plane_address(c.underlay, p, other) for p in range(c.planes))
    explicit = [p for p in config.paths if p.source == me.name and p.peer == other.name]
    if explicit:
        return Peer(other, addresses, _explicit(c, explicit, other))
    evs = []
    for plane in range(c.planes):
        for slot, t1 in enumerate(_choices(c, me, other, plane)):
            usids = [host_usid(plane, other.port)]
            if c.steering == "ecmp":
                t1, usids = None, []
            elif t1 is not None:
                usids = [t0_usid(plane, me.t0), t1_usid(plane, t1), t0_usid(plane, other.t0), *usids]
            else:
                usids = [t0_usid(plane, me.t0), *usids]
            segments = _segments(c, c.steering, usids) or (addresses[plane],)
            evs.append(
                EV(other.name, other.id, plane * c.evs_per_plane + slot, plane, slot, t1, segments, tuple(usids))
            )
    if not evs:
        raise ConfigError(
            f"there is no path {me.name} → {other.name}: they sit under different T0s, and t1s = 0",
            hint="set t1s, or list paths for this pair too",
        )
    return Peer(other, addresses, tuple(evs))


def _segments(c: Cluster, steering: Steering, usids: list[int]) -> tuple[IPv6Address, ...]:
    if steering == "srh":
        return tuple(carrier(c.block, [u]) for u in usids)
    return (carrier(c.block, usids),) if usids else ()


def _choices(c: Cluster, me: Host, other: Host, plane: int) -> list[int | None]:
    """The T1s to use in a plane, one per slot.

    More T1s than slots are thinned by a hash of (pair, plane): both directions of a pair choose the
    same T1s, so the mirror of an EV is the EV of the same number, and different pairs choose
    different ones, as MRC's random T1s within a plane do (paper §2).
    """
    if c.steering == "ecmp":
        return list(range(c.evs_per_plane if me.t0 != other.t0 else 1))
    if me.t0 == other.t0:
        return [None]
    if c.t1s <= c.evs_per_plane:
        return list(range(c.t1s))
    low, high = sorted((me.id, other.id))

    def rank(t1: int) -> bytes:
        return hashlib.blake2b(f"{low}-{high}-{plane}-{t1}".encode(), digest_size=8).digest()

    return sorted(sorted(range(c.t1s), key=rank)[: c.evs_per_plane])  # type: ignore[return-value]


def _explicit(c: Cluster, paths: list[Path_], other: Host) -> tuple[EV, ...]:
    used = [0] * c.planes
    evs = []
    for p in paths:
        slot = used[p.plane]
        used[p.plane] += 1
        if slot >= c.evs_per_plane:
            raise ConfigError(
                f"paths: more than {c.evs_per_plane} paths {p.source} → {p.peer} on plane {p.plane}",
                hint=f"evs_per_peer = {c.evs_per_peer} over {c.planes} planes leaves {c.evs_per_plane} each",
            )
        ev = p.plane * c.evs_per_plane + slot
        evs.append(EV(other.name, other.id, ev, p.plane, slot, None, tuple(p.segments), (), p.label))
    return tuple(sorted(evs, key=lambda e: e.ev))
