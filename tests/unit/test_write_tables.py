# SPDX-License-Identifier: BSD-2-Clause
"""Tests the writing of a plan into tables: bytes by the RFCs, and what survives a change of the configuration."""

import errno
import ipaddress
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.errors import KernelError
from mrcd.fabric import srv6, topology
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi, pinned
from mrcd.kernel.enums import EvState, Reason
from mrcd.net.hooks import Port
from mrcd.net.messages import Link
from tests.cluster_files import dual, host
from tests.unit.arrays import Arrays
from tests.unit.interfaces import link


def write(arrays: Arrays, plan: Plan, refresh: Callable[[int], None] = lambda row: None) -> list[int]:
    return write_tables.write_peers(cast(pinned.Tables, arrays), plan, refresh)


def plan(settings: str = "", hosts: str = "h0:0:0 h1:0:1 h2:1:0", paths: str = "", name: str = "h0") -> Plan:
    """Returns the plan of a host among hosts name:t0:port, whose ids are their numbers."""
    text = f"[cluster]\nplanes = 2\nt0s = 4\nt1s = 2\nevs_per_peer = 8\n{settings}\n"
    for entry in hosts.split():
        who, t0, port = entry.split(":")
        text += dual(int(who[1:]), int(t0), int(port))
    return topology.plan(cluster_file.parse(text + paths), name)


def test_paths_that_a_reload_takes_over_are_not_written_again() -> None:
    before = plan()
    arrays, refreshed = Arrays(4, 8), list[int]()
    write(arrays, before)
    after = topology.plan(plan(paths="[health]\nidle_interval_ms = 200\n").config, "h0", before)
    assert write(arrays, after, refreshed.append) == refreshed == []
    assert arrays.node["idle_us"] == 200_000
    assert write(arrays, plan(), refreshed.append) == []
    assert refreshed == [1, 2]


def test_paths_are_written_again_after_an_error() -> None:
    arrays, of, refreshed = Arrays(4, 8), plan(), list[int]()

    def fail(row: int) -> None:
        raise KernelError("refused", errno.EIO)

    write(arrays, of)
    with pytest.raises(KernelError):
        write(arrays, plan(), fail)
    write(arrays, of, refreshed.append)
    assert refreshed == [1, 2]


def path(plane: int, *segments: str) -> str:
    listed = ", ".join(f'"{s}"' for s in segments)
    return f'[[paths]]\nsource = "h0"\npeer = "h2"\nplane = {plane}\nsegments = [{listed}]\n'


# ---- the SRH ----


def addresses(*texts: str) -> tuple[IPv6Address, ...]:
    return tuple(IPv6Address(t) for t in texts)


def test_a_reduced_srh_by_hand() -> None:
    """RFC 8754 §2: next header, length in 8 bytes less one, type 4, segments left, last entry, flags, tag;
    RFC 8986 §5.2: without the first segment, so the last entry is one less than the segments left.
    """
    assert srv6.reduced_srh(addresses("5f00:0:1::")) == b""
    srh = srv6.reduced_srh(addresses("5f00:0:1::", "5f00:0:2::", "5f00:0:3::"))
    assert srh.hex() == (
        "11" "04" "04" "02" "01" "00" "0000"
        "5f000000000300000000000000000000"
        "5f000000000200000000000000000000"
    )  # fmt: skip


# ---- peers and EVs ----


def test_a_first_plan_is_written_whole() -> None:
    t = Arrays(3, 8)
    p = plan()
    assert write(t, p) == [1, 2]
    assert t.peers["configured"].tolist() == [0, 1, 1]
    assert t.peers["plane_mask"].tolist() == [0, 0xFFFF, 0xFFFF]  # until they say otherwise
    for peer in p.peers:
        for plane in range(2):
            assert t.peers[peer.host.id]["address"][plane].tobytes() == peer.addresses[plane].packed
        assert not t.peers[peer.host.id]["address"][2:].any()
    assert np.argwhere(t.evs["configured"]).tolist() == [[1, 0], [1, 4], [2, 0], [2, 1], [2, 4], [2, 5]]
    ev = t.evs[2, 5]
    assert IPv6Address(ev["dst"].tobytes()) == IPv6Address("5f00:0:4800:8801:4801:c400::")
    assert (ev["plane"], ev["srh_len"], ev["state"], ev["reason"]) == (1, 0, EvState.UNKNOWN, Reason.NEW)
    assert not t.peers["usable"].any()
    assert not t.srhs["bytes"].any()
    assert set(t.evs["weight"][t.evs["configured"] != 0].tolist()) == {abi.WEIGHT_FULL}
    assert t.peers["floor"].tolist() == [0, 1, 1]  # a quarter of two and of four
    assert t.peers["slots"].tolist() == [0, 1, 2]


def test_the_floor_is_the_configured_one() -> None:
    t = Arrays(3, 8)
    write(t, plan("ev_min_active = 3"))
    assert t.peers["floor"].tolist() == [0, 3, 3]
    assert [write_tables.default_floor(n) for n in (0, 1, 3, 4, 7, 8, 16, 256)] == [1, 1, 1, 1, 1, 2, 4, 64]


def live(t: Arrays) -> None:
    """Fills the tables as after a long run: every field of programs, judge and administrators has a value."""
    configured, here = t.evs["configured"] != 0, t.peers["configured"] != 0
    for field in ("probe_seq", "state_since_ns", "tx_packets", "tx_bytes", "last_tx_ns"):
        t.evs[field][configured] = 7
    for field, value in (("state", EvState.DENIED), ("reason", Reason.ADMIN), ("flaps", 3)):
        t.evs[field][configured] = value
    for field in abi.PATH_STATS.names or ():
        t.path_stats[field][configured] = 6
    for field in ("packets", "bytes", "ce", "probes"):
        t.rxs[field][here] = 9
    for field in ("generation", "plane_mask", "status", "heard_ns", "plane_mask_ns", "usable_changes"):
        t.peers[field][here] = 5
    t.peers["usable"][here] = 0xFF
    t.reports["report_seq"][here] = 4
    for field in abi.WATCH.names or ():
        t.watches[field][here] = 3


def snapshot(t: Arrays) -> list[bytes]:
    return [a.tobytes() for a in (t.peers, t.evs, t.path_stats, t.rxs, t.reports, t.watches, t.srhs, t.node)]


def running(rows: int = 3, **of_plan: str) -> Arrays:
    """Returns the tables of a plan after a long run."""
    t = Arrays(rows, 8)
    write(t, plan(**of_plan))
    live(t)
    return t


@pytest.mark.parametrize("settings", ["", 'encapsulation = "srh"', 'encapsulation = "ecmp"'])
def test_writing_the_same_plan_again_changes_nothing(settings: str) -> None:
    t = running(settings=settings)
    before = snapshot(t)
    assert write(t, plan(settings)) == []
    assert snapshot(t) == before


def test_a_new_peer_does_not_change_the_others() -> None:
    t = running(4)
    evs, rxs, peers = t.evs[1:3].tobytes(), t.rxs[1:3].tobytes(), t.peers[1:3].tobytes()
    assert write(t, plan(hosts="h0:0:0 h1:0:1 h2:1:0 h3:1:1")) == [3]
    assert (t.evs[1:3].tobytes(), t.rxs[1:3].tobytes(), t.peers[1:3].tobytes()) == (evs, rxs, peers)
    assert t.peers[3]["configured"] == 1
    assert t.evs[3]["configured"].sum() == 4


def test_a_removed_peer_is_cleared() -> None:
    t = running()
    assert write(t, plan(hosts="h0:0:0 h1:0:1")) == []
    for table in (t.peers, t.evs, t.path_stats, t.reports, t.watches):
        assert not any(table[2].tobytes())
    assert (t.evs[1, 0]["tx_packets"], t.watches[1]["unanswered"]) == (7, 3)
    write(t, plan())
    assert int(t.rxs[2, 0]["packets"]) == 9  # if it returns, it keeps its counters


def test_a_new_host_with_an_old_id_starts_at_zero() -> None:
    """h2 was moved from T0 1 to T0 2: other paths, and another source address."""
    t = running()
    moved = plan(hosts="h0:0:0 h1:0:1 h2:2:0")
    assert write(t, moved) == [2]
    assert t.peers[2]["address"][1].tobytes() == moved.peers[1].addresses[1].packed
    for ev in (0, 1, 4, 5):
        record = t.evs[2, ev]
        assert (record["configured"], record["state"], record["flaps"]) == (1, EvState.UNKNOWN, 0)
        assert not any(int(record[f]) for f in ("tx_packets", "probe_seq", "last_tx_ns"))
        assert not any(t.path_stats[2, ev].tobytes())
    assert (t.evs[1, 0]["tx_packets"], t.path_stats[1, 0]["judged"]) == (7, 6)


def test_a_changed_path_is_reset_and_the_others_are_kept() -> None:
    t = running(paths=path(0, "5f00:0:1::") + path(1, "5f00:0:2::"))
    assert write(t, plan(paths=path(0, "5f00:0:1::") + path(1, "5f00:0:3::"))) == [2]
    assert t.evs[2, 0]["tx_packets"] == 7
    assert t.evs[2, 4]["tx_packets"] == 0
    assert IPv6Address(t.evs[2, 4]["dst"].tobytes()) == IPv6Address("5f00:0:3::")


def test_a_removed_path_leaves_the_rotation_before_it_is_forgotten() -> None:
    """The programs select another EV while it is not configured any more but still has its address."""
    t = running()
    seen = []

    def refresh(row: int) -> None:
        seen.append((row, np.flatnonzero(t.evs[row]["configured"]).tolist(), bool(t.evs[row, 0]["dst"].any())))

    assert write(t, plan(paths=path(1, "5f00:0:2::")), refresh) == [2]
    assert seen == [(1, [0, 4], True), (2, [], True), (2, [4], False)]
    for ev in (0, 1, 5):
        assert not any(t.evs[2, ev].tobytes())
        assert not any(t.path_stats[2, ev].tobytes())


@pytest.mark.parametrize(
    "other",
    [
        ("5f00:0:1::", "5f00:0:2::", "5f00:0:4::"),  # another way
        ("5f00:0:1::", "5f00:0:2::"),  # shorter
        ("5f00:0:1::", "5f00:0:2::", "5f00:0:3::", "5f00:0:4::"),  # longer
        ("5f00:0:1::",),  # no SRH any more
        ("5f00:0:9::", "5f00:0:2::", "5f00:0:3::"),  # another first segment
    ],
)
def test_another_srh_is_another_path(other: tuple[str, ...]) -> None:
    t = running(paths=path(0, "5f00:0:1::", "5f00:0:2::", "5f00:0:3::"))
    assert write(t, plan(paths=path(0, *other))) == [2]
    srh = srv6.reduced_srh(addresses(*other))
    record = t.evs[2, 0]
    assert (record["tx_packets"], record["state"], record["srh_len"]) == (0, EvState.UNKNOWN, len(srh))
    assert t.srhs[2 * 8]["bytes"][: len(srh)].tobytes() == srh
    live(t)
    assert write(t, plan(paths=path(0, *other))) == []


@pytest.mark.parametrize(
    ("idle_probes", "idle_us", "idle_evs"),
    [(4000, 100_000, 0), (100, 480_000, 2)],  # two peers, six EVs: six requests, of 12.5 in a second
)
def test_the_pace_of_idle_probes_is_written(idle_probes: int, idle_us: int, idle_evs: int) -> None:
    t = Arrays(3, 8)
    write(t, plan(f"[health]\nidle_interval_ms = {60 if idle_evs else 100}\nidle_probes = {idle_probes}"))
    assert [int(t.node[name]) for name in ("idle_us", "idle_evs")] == [idle_us, idle_evs]


# ---- the host's own planes ----


def nic(name: str, ifindex: int, **other: object) -> Link:
    return link(name, ifindex, mac=f"02:00:00:00:00:{ifindex:02x}", **other)


def both(make: Callable[[int], Link]) -> dict[int, Port]:
    return {plane: Port(plane, make(plane), make(plane)) for plane in range(2)}


def planes(t: Arrays, ports: dict[int, Port], macs: dict[int, str], settings: str = "") -> int:
    return write_tables.write_planes(cast(pinned.Tables, t), plan(settings), ports, macs)


MACS = {10: "02:aa:00:00:00:01", 11: "02:aa:00:00:00:02"}


def test_planes_that_can_send() -> None:
    t = Arrays(1, 1)
    assert planes(t, both(lambda p: nic(f"p{p}", 10 + p)), MACS) == 0b11
    record = t.planes[1]
    assert (record["ifindex"], record["vlan"]) == (11, 0)
    assert record["smac"].tobytes().hex(":") == "02:00:00:00:00:0b"
    assert record["dmac"].tobytes().hex(":") == "02:aa:00:00:00:02"
    assert IPv6Address(record["address"].tobytes()) == IPv6Address("fd10:0:1::1")
    assert IPv6Address(record["sid"].tobytes()) == IPv6Address("5f00:0:c400::")
    assert not t.planes[2:]["ifindex"].any()


def test_a_nic_with_a_small_mtu_is_used_only_if_all_have_one() -> None:
    t = Arrays(1, 1)
    assert planes(t, both(lambda p: nic(f"p{p}", 10 + p, mtu=1400 if p else 9100)), MACS) == 0b01
    vlan = {0: Port(0, nic("p0.5", 12), nic("p0", 10, mtu=9099)), 1: Port(1, nic("p1", 11), nic("p1", 11))}
    assert planes(t, vlan, {12: MACS[10], 11: MACS[11]}) == 0b10
    assert planes(t, both(lambda p: nic(f"p{p}", 10 + p, mtu=1400)), MACS) == 0b11
    assert planes(t, both(lambda p: nic(f"p{p}", 10 + p, mtu=1400 + p, up=p == 0)), MACS) == 0b01


def test_a_plane_needs_a_carrier_a_first_hop_and_a_nic() -> None:
    t = Arrays(1, 1)
    assert planes(t, both(lambda p: nic(f"p{p}", 10 + p)), {11: MACS[11]}) == 0b10
    assert planes(t, both(lambda p: nic(f"p{p}", 10 + p, up=p == 0)), MACS) == 0b01
    assert planes(t, {1: Port(1, nic("p1", 11), nic("p1", 11))}, MACS) == 0b10
    assert t.planes["ifindex"].tolist()[:2] == [0, 11]
    assert planes(t, {}, MACS) == 0
    assert not t.planes["ifindex"].any()


def test_a_first_hop_in_probe_state_stays_in_use() -> None:
    t = Arrays(1, 1)
    ports = both(lambda p: nic(f"p{p}", 10 + p))
    planes(t, ports, MACS)
    assert planes(t, ports, {}) == 0b11
    assert t.planes[0]["dmac"].tobytes().hex(":") == MACS[10]
    planes(t, ports, {10: "02:bb:00:00:00:09"})  # the T0 was replaced
    assert t.planes[0]["dmac"].tobytes().hex(":") == "02:bb:00:00:00:09"


def test_a_vlan_is_sent_by_the_nic_below() -> None:
    t = Arrays(1, 1)
    vlan = nic("eth0.100", 20, kind="vlan", lower=10, vlan=100)
    macs = {20: "02:aa:00:00:00:07"}  # the neighbour is the VLAN interface's
    assert planes(t, {0: Port(0, vlan, nic("eth0", 10))}, macs) == 0b01
    record = t.planes[0]
    assert (record["ifindex"], record["vlan"]) == (10, 100)
    assert record["smac"].tobytes().hex(":") == "02:00:00:00:00:14"
    assert record["dmac"].tobytes().hex(":") == "02:aa:00:00:00:07"
    assert planes(t, {0: Port(0, vlan, nic("eth0", 10, up=False))}, macs) == 0


def test_with_ecmp_packets_arrive_at_the_plane_address() -> None:
    t = Arrays(1, 1)
    planes(t, both(lambda p: nic(f"p{p}", 10 + p)), MACS, 'encapsulation = "ecmp"')
    sids: NDArray[np.uint8] = t.planes["sid"][:2]
    assert np.array_equal(sids, t.planes["address"][:2])


# ---- the overlay trie ----


def key(text: str) -> bytes:
    """Returns the trie's key of a prefix: its length in host byte order, then the address; IPv4 as ::ffff:a.b.c.d."""
    network = ipaddress.ip_network(text)
    if isinstance(network, IPv6Network):
        return np.uint32(network.prefixlen).tobytes() + network.network_address.packed
    return np.uint32(network.prefixlen + 96).tobytes() + bytes(10) + b"\xff\xff" + network.network_address.packed


@pytest.mark.parametrize("name", ["h0", "h2"])
def test_the_trie_holds_the_prefixes_of_all_hosts_and_of_this_one(name: str) -> None:
    """On every host the same: source_check asks whose an address is, wherever the packet comes from."""
    assert write_tables.prefixes(plan(name=name)) == {
        key("10.99.0.1/32"): 0,
        key("fd00:99::1/128"): 0,
        key("10.99.0.2/32"): 1,
        key("fd00:99::2/128"): 1,
        key("10.99.0.3/32"): 2,
        key("fd00:99::3/128"): 2,
    }


def test_prefixes_of_networks_behind_a_host_have_its_id() -> None:
    """Also where the host has an address within such a network."""
    behind = host(3, t0=2, prefixes='["10.100.3.0/24", "10.100.3.1/32", "fd00:100:0:3::/64"]')
    for name, own in (("h0", 0), ("h3", 3)):
        found = write_tables.prefixes(plan(paths=behind, name=name))
        assert found[key("10.99.0.1/32")] == 0
        assert {found[key(text)] for text in ("10.100.3.0/24", "10.100.3.1/32", "fd00:100:0:3::/64")} == {3}
        assert own in found.values()


def test_classes_keep_the_ids_of_all_hosts() -> None:
    """The policy is above the id, which is the whole of the value where no class matches."""
    text = '[[classes]]\npolicy = "pinned"\nprefixes = ["10.99.0.1/32", "10.99.0.3/32"]\n'
    for name in ("h0", "h2"):
        found = write_tables.prefixes(plan(paths=text, name=name))
        assert [found[key(f"10.99.0.{n}/32")] & 0xFFFF for n in (1, 2, 3)] == [0, 1, 2]
        assert len(found) == 6


def test_a_class_of_a_part_of_own_prefixes_needs_no_entry() -> None:
    behind = host(3, t0=2, prefixes='["10.100.3.0/24"]')
    text = '[[classes]]\npolicy = "pinned"\nprefixes = ["10.100.3.128/25"]\n'
    assert key("10.100.3.128/25") not in write_tables.prefixes(plan(paths=behind + text, name="h3"))
    found = write_tables.prefixes(plan(paths=behind + text, name="h0"))
    assert found[key("10.100.3.128/25")] & 0xFFFF == 3


@pytest.mark.parametrize(
    ("packed", "length", "address", "stored"),
    [
        (4, 8, "::ffff:10.0.0.0", 104),
        (4, 0, "::ffff:0.0.0.0", 96),
        (4, 32, "::ffff:10.1.2.3", 128),
        (16, 32, "fd00:1::", 32),
    ],
)
def test_ipv4_prefixes_are_mapped(packed: int, length: int, address: str, stored: int) -> None:
    key = pinned.prefix_key(IPv6Address(address).packed[-packed:], length)
    assert key == np.uint32(stored).tobytes() + IPv6Address(address).packed
    assert len(key) == abi.PREFIX.itemsize


def test_another_host_with_the_same_id_and_paths_is_not_known() -> None:
    p, t = plan(), running()
    write_tables.write_peers(cast(pinned.Tables, t), p, lambda row: None, {1})
    fresh = Arrays(3, 8)
    write(fresh, p)
    for name in ("peers", "evs", "path_stats", "reports", "watches"):
        assert getattr(t, name)[1].tobytes() == getattr(fresh, name)[1].tobytes()
    assert t.peers["heard_ns"][2] == 5
    assert t.evs["state"][2, 0] == EvState.DENIED
