# SPDX-License-Identifier: BSD-2-Clause
"""Tests links, addresses, first hops, the overlay's veth, offloads and pacing by netlink, as iproute2 shows them."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mrcd.config.devices import former_names
from mrcd.errors import KernelError, MachineError
from mrcd.net import rps
from mrcd.net.messages import Link, Neighbour, read_link
from mrcd.net.netlink import Netlink, made_with, set_offload
from tests.packet.wires import Namespace, until
from tests.packet.witness import GATEWAY, as_root, ensure, eventually, ifindex, run

pytestmark = as_root


# ---- links ----


def test_links_are_described(ns: Namespace) -> None:
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    ns.ip("link", "set", "p0", "address", "02:00:00:00:00:2a", "mtu", "9100")
    links = run(lambda n: n.links())
    p0 = links["p0"]
    assert p0.ifindex == ifindex(ns, "p0")
    assert (p0.mac, p0.mtu, p0.kind, p0.noarp) == ("02:00:00:00:00:2a", 9100, "veth", False)
    assert (p0.lower, p0.vlan) == (links["q0"].ifindex, 0)
    assert links["lo"].kind is None


def test_a_vlan_interface_is_described() -> None:
    """From bytes as the kernel sends them: not every kernel has VLAN interfaces."""
    vlan = {"attrs": [("IFLA_INFO_KIND", "vlan"), ("IFLA_INFO_DATA", {"attrs": [("IFLA_VLAN_ID", 7)]})]}
    sent = ifinfmsg()
    sent["index"], sent["flags"] = 9, 0x10041  # RUNNING, LOWER_UP, UP
    sent["attrs"] = [("IFLA_IFNAME", "p0.7"), ("IFLA_LINK", 3), ("IFLA_MTU", 9100), ("IFLA_LINKINFO", vlan)]
    sent.encode()
    received = ifinfmsg(sent.data)
    received.decode()
    link = read_link(received)
    assert (link.name, link.ifindex, link.kind, link.lower, link.vlan) == ("p0.7", 9, "vlan", 3, 7)
    assert link.up


def test_a_link_is_up_only_when_enabled_and_with_carrier(ns: Namespace) -> None:
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    for p, q, enabled, up in (
        ("down", "down", False, False),
        ("up", "down", True, False),
        ("up", "up", True, True),
        ("down", "up", False, False),
    ):
        ns.ip("link", "set", "p0", p)
        ns.ip("link", "set", "q0", q)
        link = run(lambda n: n.links())["p0"]
        assert (link.enabled, link.up) == (enabled, up)


@pytest.mark.parametrize(
    ("change", "up"),
    [
        (("link", "set", "p0", "mtu", "8000"), True),
        (("link", "set", "q0", "down"), False),  # the carrier
        (("link", "set", "p0", "down"), False),
        (("link", "del", "p0"), None),
        (("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:05", "dev", "p0"), None),
        (("addr", "add", "fd10::5/128", "dev", "p0", "nodad"), None),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else str(x),
)
def test_changes_of_links_neighbours_and_addresses_are_seen(
    ns: Namespace, change: tuple[str, ...], up: bool | None
) -> None:
    """`up` says whether a link has a carrier; None: not an event of a link, or the link is gone."""
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "q0")
    for name in ("p0", "q0"):  # nothing that comes by itself
        ns.ip("link", "set", name, "addrgenmode", "none")
        ns.ip("link", "set", name, "up")

    async def work(n: Netlink) -> None:
        events = n.watch()
        await anext(events)  # listening
        ns.ip(*change)
        async with asyncio.timeout(2):
            seen = await anext(events)
            while up is not None and (seen.ifindex, seen.up) != (p0, up):
                seen = await anext(events)
        neighbour = Neighbour(p0, GATEWAY, "02:00:00:00:00:05") if change[0] == "neigh" else None
        assert seen.neighbour == neighbour
        await events.aclose()  # type: ignore[attr-defined]

    p0 = ifindex(ns, "p0")
    run(work)


# ---- addresses ----


def test_addresses_are_added_once_and_others_stay(ns: Namespace) -> None:
    mrc0, _ = ensure()
    ns.ip("addr", "add", "192.0.2.1/24", "dev", "mrc0")

    def shown() -> dict[str, Any]:
        return {a["local"]: a for link in ns.json("addr", "show", "dev", "mrc0") for a in link["addr_info"]}

    for _ in range(2):
        run(lambda n: n.sync_addresses(mrc0, ["10.99.0.1", "10.99.0.9", "fd00:99::1"], lambda _: False))
        assert {k: a["prefixlen"] for k, a in shown().items()} == {
            "192.0.2.1": 24, "10.99.0.1": 32, "10.99.0.9": 32, "fd00:99::1": 128,
        }  # fmt: skip
    run(lambda n: n.sync_addresses(mrc0, [], lambda _: False))
    assert len(shown()) == 4


def test_addresses_keep_their_order_and_unwanted_ones_of_mrcd_are_removed(ns: Namespace) -> None:
    mrc0, _ = ensure()

    def after(wanted: list[str], prefix: str) -> list[str]:
        run(lambda n: n.sync_addresses(mrc0, wanted, lambda a: a.startswith(prefix)))
        return [a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]]

    first = ["10.99.0.5", "10.99.0.3", "10.98.0.1", "10.99.0.9", "fd00:99::1"]
    assert after(first, "none") == first
    assert after(["10.99.0.2"], "10.99.") == ["10.98.0.1", "10.99.0.2", "fd00:99::1"]


def test_an_address_of_another_prefix_length_counts_as_present(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("addr", "add", "fd10::1/64", "dev", "p0", "nodad")
    run(lambda n: n.sync_addresses(nics[0], ["fd10::1"], lambda _: True))
    found = ns.json("addr", "show", "dev", "p0")[0]["addr_info"]
    assert [a["prefixlen"] for a in found if a.get("local") == "fd10::1"] == [64]


def test_an_address_of_another_interface_does_not_count(ns: Namespace, nics: tuple[int, int]) -> None:
    async def work(n: Netlink) -> None:
        for nic in nics:
            await n.sync_addresses(nic, ["fd10::1", "10.1.1.1"], lambda _: False)

    run(work)
    for name in ("p0", "p1"):
        shown = {a["local"]: a for a in ns.json("addr", "show", "dev", name)[0]["addr_info"] if a["scope"] == "global"}
        assert shown.keys() == {"fd10::1", "10.1.1.1"}
        assert "tentative" not in shown["fd10::1"]  # usable at once, without duplicate address detection


# ---- first hops ----


@pytest.fixture
def far(ns: Namespace) -> Iterator[Namespace]:
    namespace = Namespace()
    try:
        namespace.ip("link", "set", "lo", "up")
        yield namespace
    finally:
        namespace.close()


@pytest.fixture
def plane(ns: Namespace, far: Namespace) -> int:
    """p0, linked to a T0 in the far namespace which has the gateway's address. Returns p0's number."""
    ns.ip("link", "add", "p0", "type", "veth", "peer", "name", "t0")
    with ns.inside():
        subprocess.run(
            ["ip", "link", "set", "t0", "netns", f"/proc/self/fd/{far.fd}"], pass_fds=[far.fd], check=True, timeout=10
        )
    far.ip("link", "set", "t0", "address", "02:00:00:00:00:f0")
    far.ip("addr", "add", f"{GATEWAY}/64", "dev", "t0", "nodad")
    with far.inside():
        Path("/proc/sys/net/ipv6/conf/t0/ndisc_notify").write_text("1")
    far.ip("link", "set", "t0", "up")
    ns.ip("link", "set", "p0", "up")
    ns.ip("addr", "add", "fe80::2/64", "dev", "p0", "nodad")
    return ifindex(ns, "p0")


async def resolved(netlink: Netlink, plane: int, mac: str) -> None:
    async def check() -> bool:
        return await netlink.neighbours(GATEWAY) == {plane: mac}

    await eventually(f"{GATEWAY} is at {mac}", check)


def test_the_kernel_resolves_a_first_hop_keeps_it_and_follows_another(
    ns: Namespace, far: Namespace, plane: int
) -> None:
    async def work(n: Netlink) -> None:
        assert await n.neighbours(GATEWAY) == {}
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")
        await n.keep_resolved(plane, GATEWAY)  # asked again it stays
        await resolved(n, plane, "02:00:00:00:00:f0")
        far.ip("link", "set", "t0", "address", "02:00:00:00:00:f1")
        await resolved(n, plane, "02:00:00:00:00:f1")

    run(work)
    (entry,) = [e for e in ns.json("-d", "-6", "neigh", "show", "dev", "p0") if e["dst"] == GATEWAY]
    assert entry["lladdr"] == "02:00:00:00:00:f1"
    assert "managed" in ns.ip("-d", "-6", "neigh", "show", "dev", "p0")


def test_a_first_hop_that_appears_later_is_found(ns: Namespace, far: Namespace, plane: int) -> None:
    far.ip("link", "set", "t0", "down")

    async def work(n: Netlink) -> None:
        await n.keep_resolved(plane, GATEWAY)
        assert await n.neighbours(GATEWAY) == {}
        far.ip("link", "set", "t0", "up")
        far.ip("addr", "replace", f"{GATEWAY}/64", "dev", "t0", "nodad")
        await n.keep_resolved(plane, GATEWAY)
        await resolved(n, plane, "02:00:00:00:00:f0")

    run(work)


def test_neighbours_are_read_by_address(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("neigh", "add", "fe80::9", "lladdr", "02:00:00:00:00:09", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:01", "dev", "p0")
    ns.ip("neigh", "add", GATEWAY, "lladdr", "02:00:00:00:00:02", "dev", "p1", "nud", "stale")
    found = run(lambda n: n.neighbours(GATEWAY))
    assert found == {nics[0]: "02:00:00:00:00:01", nics[1]: "02:00:00:00:00:02"}
    ns.ip("neigh", "change", GATEWAY, "dev", "p0", "nud", "failed")
    assert run(lambda n: n.neighbours(GATEWAY)) == {nics[1]: "02:00:00:00:00:02"}


# ---- the overlay's veth ----


@pytest.mark.parametrize(("mtu", "gso_max_size"), [(9020, 65455), (8964, 65399)], ids=["made", "with a new MTU"])
def test_the_overlay_s_veth(ns: Namespace, mtu: int, gso_max_size: int) -> None:
    assert ensure() == ensure(mtu, gso_max_size)
    for name, other in (("mrc0", "pmrc0"), ("pmrc0", "mrc0")):
        (link,) = ns.json("-d", "link", "show", name)
        assert link["link"] == other
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])
        assert (link["mtu"], link["gso_max_size"], link["inet6_addr_gen_mode"]) == (mtu, gso_max_size, "none")
        assert ns.json("-6", "addr", "show", "dev", name)[0:1] in ([], [{}])  # no link-local address, no solicitations


@pytest.mark.parametrize("queues", [1, 2, 5])
def test_the_veth_has_the_queues_and_rps_cpus_that_are_set(ns: Namespace, queues: int) -> None:
    mask = Path("/proc/sys/net/core/rps_default_mask")
    if not mask.exists():
        pytest.skip("this kernel has no rps_default_mask (Linux 6.3)")
    before = mask.read_text()
    veth = {"mtu": 9020, "gso_max_size": 65455}
    link, _ = run(lambda n: n.ensure_veth("mrc0", "pmrc0", **veth, queues=queues, rps_cpus={0, 1}))
    assert link.alias == made_with(queues, {0, 1})
    assert mask.read_text() == before
    # sysfs shows the network namespace of the process that mounts it.
    queues_of = "for end in mrc0 pmrc0; do grep -H . $end/queues/rx-*/rps_cpus; ls $end/queues; done"
    show = f"mount -t sysfs sysfs /sys; cd /sys/class/net; {queues_of}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", show], capture_output=True, text=True, check=True)
    masks = dict(line.split(":") for line in done.stdout.splitlines() if "rps_cpus" in line)
    files = {f"{name}/queues/rx-{i}/rps_cpus" for name in ("mrc0", "pmrc0") for i in range(queues)}
    assert {file: rps.parse_mask(text) for file, text in masks.items()} == {file: {0, 1} for file in files}
    sending = sorted(word for word in done.stdout.split() if word.startswith("tx-"))
    assert sending == sorted(["tx-0", *(f"tx-{i}" for i in range(queues))])  # of mrc0 and pmrc0
    again, _ = run(lambda n: n.ensure_veth("mrc0", "pmrc0", **veth, queues=queues + 1, rps_cpus={0}))
    assert again == link


@pytest.mark.parametrize("up", ["up", "down"])
def test_interfaces_of_an_earlier_version_get_their_present_names(ns: Namespace, up: str) -> None:
    for former, peer in (("mrc0", "mrc0p"), ("mrc0b", "mrc0bp")):
        ns.ip("link", "add", former, "type", "veth", "peer", "name", peer)
        for end in (former, peer):
            ns.ip("link", "set", end, up)

    async def names(n: Netlink) -> dict[str, int]:
        return {name: link.ifindex for name, link in (await n.links()).items() if "mrc0" in name}

    async def rename(n: Netlink) -> None:
        for former, now in former_names("mrc0"):
            await n.rename_veth(former, now)

    before = run(names)
    run(rename)
    after = run(names)
    present = {"mrc0": "mrc0", "mrc0p": "pmrc0", "mrc0b": "tmrc0", "mrc0bp": "tpmrc0"}
    assert after == {present[name]: ifindex for name, ifindex in before.items()}
    run(rename)  # nothing is left to rename
    assert ensure() == (before["mrc0"], before["mrc0p"])


def test_an_interface_of_another_with_a_former_name_is_not_renamed(ns: Namespace) -> None:
    ns.ip("link", "add", "mrc0p", "type", "veth", "peer", "name", "other")
    run(lambda n: n.rename_veth(*former_names("mrc0")[0]))
    assert "mrc0p" in run(lambda n: n.links())


@pytest.mark.parametrize(
    "change",
    [("mrc0", "down"), ("pmrc0", "down"), ("mrc0", "mtu", "1400"), ("pmrc0", "mtu", "1400"), ("mrc0", "arp", "on")],
)
def test_a_veth_is_made_once_and_repaired_after_a_change(ns: Namespace, change: tuple[str, ...]) -> None:
    first = ensure()

    def is_settled() -> bool:  # the kernel works out the state of a link by and by
        return all(ns.json("link", "show", name)[0]["operstate"] == "UP" for name in ("mrc0", "pmrc0"))

    until("both ends are up", is_settled)
    before = ns.json("-d", "link", "show")
    assert (ensure(), ns.json("-d", "link", "show")) == (first, before)
    ns.ip("link", "set", *change)
    assert ensure() == first
    for name in ("mrc0", "pmrc0"):
        (link,) = ns.json("link", "show", name)
        assert link["mtu"] == 9020
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])


@pytest.mark.parametrize(
    "links",
    [
        ["mrc0 type bridge"],
        ["mrc0 type bridge", "pmrc0 type bridge"],
        ["mrc0 type veth peer name other"],
        ["mrc0 type veth peer name a", "pmrc0 type veth peer name b"],
    ],
    ids=["bridge", "bridges", "veth", "veths"],
)
def test_an_existing_interface_of_another_program_is_refused(ns: Namespace, links: list[str]) -> None:
    for link in links:
        ns.ip("link", "add", *link.split())
    before = ns.json("-d", "link", "show")
    with pytest.raises(MachineError) as caught:
        ensure()
    assert "mrc0 exists" in str(caught.value)
    assert "overlay.interface" in (caught.value.hint or "")
    assert ns.json("-d", "link", "show") == before


# ---- offloads ----

SEGMENTATION = ("tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation")
GROUPS = {"generic-segmentation-offload": "tx-generic-segmentation"}  # ethtool's name of the feature


def features(ns: Namespace, name: str) -> dict[str, str]:
    """Returns offloads as ethtool shows them: "on", "off", "off [fixed]", …"""
    with ns.inside():
        shown = subprocess.run(["ethtool", "-k", name], capture_output=True, text=True, check=True, timeout=10).stdout
    pairs = [line.strip().split(": ") for line in shown.splitlines()[1:]]
    return {GROUPS.get(key, key): value for key, value in pairs}


def test_only_the_requested_offloads_change(ns: Namespace) -> None:
    ensure()
    before = features(ns, "mrc0")
    assert {before[f] for f in SEGMENTATION} == {"on"}
    for _ in range(2):
        set_offload("mrc0", dict.fromkeys(SEGMENTATION, False))
        now = features(ns, "mrc0")
        assert {now[f].split()[0] for f in SEGMENTATION} == {"off"}
        changed = {f for f in before if before[f] != now[f]}
        assert changed >= set(SEGMENTATION)
        assert all("segmentation" in f for f in changed)  # the kernel changes related features too
    assert features(ns, "pmrc0") == before
    set_offload("mrc0", dict.fromkeys(SEGMENTATION, True))
    assert features(ns, "mrc0") == before


def test_unknown_and_fixed_offloads_with_the_wanted_value_are_no_error(ns: Namespace) -> None:
    ensure()
    set_offload("mrc0", {"tx-quantum-segmentation": False, "tx-tcp-segmentation": False})
    assert features(ns, "mrc0")["tx-tcp-segmentation"] == "off"
    assert features(ns, "lo")["loopback"] == "on [fixed]"
    set_offload("lo", {"loopback": True})


def test_offloads_that_cannot_be_set_are_named(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"offloads of none0: .*ENODEV"):
        set_offload("none0", {"tx-tcp-segmentation": False})
    with pytest.raises(MachineError, match="lo"):
        set_offload("lo", {"loopback": False})


# ---- pacing ----


def test_paced_packets_leave_one_by_one(ns: Namespace) -> None:
    """A token bucket is made once, and again for another rate, or after it was removed."""
    ensure()

    def paced(packet: int) -> tuple[str, int]:
        async def work(n: Netlink) -> None:
            await n.ensure_paced((await n.links())["pmrc0"], packet, 1_000_000)

        run(work)
        shown = subprocess.run(
            ["tc", "-j", "qdisc", "show", "dev", "pmrc0"], capture_output=True, check=True, timeout=10
        )
        (found,) = json.loads(shown.stdout)
        assert found["kind"] == "tbf"
        return found["handle"], found["options"]["rate"]

    first = paced(318)
    assert first[1] == 318_000
    assert paced(318) == first
    assert paced(406)[1] == 406_000
    subprocess.run(["tc", "qdisc", "del", "dev", "pmrc0", "root"], check=True, timeout=10)
    assert paced(406)[1] == 406_000


def test_what_the_kernel_refuses_is_named(ns: Namespace) -> None:
    with pytest.raises(KernelError, match="MTU 70000"):
        ensure(mtu=70000)
    with pytest.raises(KernelError, match=r"add address fd10::1: .*ENODEV"):
        run(lambda n: n.sync_addresses(4711, ["fd10::1"], lambda _: False))
    with pytest.raises(KernelError, match="pace gone"):
        run(lambda n: n.ensure_paced(Link("gone", 99, "", True, True, 1500, "veth", None, 0, True), 318, 1_000_000))
