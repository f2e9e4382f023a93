# SPDX-License-Identifier: BSD-2-Clause
"""Tests the overlay's veth: made once, repaired after changes, never another program's; and offloads."""

import json
import subprocess
from pathlib import Path

import pytest

from labkit.cluster import netns
from mrcd.config.devices import former_names
from mrcd.errors import KernelError, MachineError
from mrcd.net import rps
from mrcd.net.messages import Link
from mrcd.net.netlink import Netlink, made_with, set_offload
from tests.packet.wires import Namespace
from tests.packet.witness import as_root, ensure, run

pytestmark = as_root


def test_the_overlay_s_veth(ns: Namespace) -> None:
    ensure()
    for name, other in (("mrc0", "pmrc0"), ("pmrc0", "mrc0")):
        (link,) = ns.json("-d", "link", "show", name)
        assert link["link"] == other
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])
        assert (link["mtu"], link["gso_max_size"], link["inet6_addr_gen_mode"]) == (9020, 65455, "none")
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
    assert done.stdout.split().count(f"tx-{queues - 1}") == 2
    assert f"tx-{queues}" not in done.stdout
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
    link, peer_link = run(lambda n: n.ensure_veth("mrc0", "pmrc0", mtu=9020, gso_max_size=65455))
    assert (link.ifindex, peer_link.ifindex, peer_link.up) == (before["mrc0"], before["mrc0p"], True)


def test_an_interface_of_another_with_a_former_name_is_not_renamed(ns: Namespace) -> None:
    ns.ip("link", "add", "mrc0p", "type", "veth", "peer", "name", "other")
    run(lambda n: n.rename_veth(*former_names("mrc0")[0]))
    assert "mrc0p" in run(lambda n: n.links())


@pytest.mark.parametrize("queues", [1, 3])
def test_the_bench_sets_and_restores_rps(ns: Namespace, queues: int) -> None:
    run(lambda n: n.ensure_veth("mrc0", "pmrc0", mtu=9020, gso_max_size=65455, queues=queues))
    with ns.inside():
        before = netns.swap_rps({"mrc0": "3", "pmrc0": "1"})
        assert {name: rps.parse_mask(mask) for name, mask in before.items()} == {
            "mrc0": set(),
            "pmrc0": set(),
        }
        there = netns.swap_rps(before)
        assert {name: rps.parse_mask(mask) for name, mask in there.items()} == {"mrc0": {0, 1}, "pmrc0": {0}}
        assert netns.swap_rps(before) == before
        with pytest.raises(MachineError, match="set rps_cpus of none0"):
            netns.swap_rps({"none0": "1"})


def test_the_veth_is_made_once(ns: Namespace) -> None:
    first = ensure()
    before = ns.json("-d", "link", "show")
    assert ensure() == first
    assert ns.json("-d", "link", "show") == before


@pytest.mark.parametrize(
    "change",
    [("mrc0", "down"), ("pmrc0", "down"), ("mrc0", "mtu", "1400"), ("pmrc0", "mtu", "1400"), ("mrc0", "arp", "on")],
)
def test_a_changed_veth_is_repaired(ns: Namespace, change: tuple[str, ...]) -> None:
    first = ensure()
    ns.ip("link", "set", *change)
    assert ensure() == first
    for name in ("mrc0", "pmrc0"):
        (link,) = ns.json("link", "show", name)
        assert link["mtu"] == 9020
        assert {"UP", "LOWER_UP", "NOARP"} <= set(link["flags"])


def test_a_new_mtu_is_set(ns: Namespace) -> None:
    first = ensure()
    assert ensure(mtu=8964, gso_max_size=65399) == first
    for name in ("mrc0", "pmrc0"):
        (link,) = ns.json("-d", "link", "show", name)
        assert (link["mtu"], link["gso_max_size"]) == (8964, 65399)


@pytest.mark.parametrize(
    "links",
    [["mrc0 type bridge"], ["mrc0 type bridge", "pmrc0 type bridge"], ["mrc0 type veth peer name other"]],
    ids=["bridge", "bridges", "veth"],
)
def test_an_existing_interface_of_another_program_is_refused(ns: Namespace, links: list[str]) -> None:
    for link in links:
        ns.ip("link", "add", *link.split())
    before = ns.json("-d", "link", "show")
    with pytest.raises(MachineError) as caught:
        ensure()
    assert "mrc0 exists" in str(caught.value)
    assert caught.value.hint is not None
    assert "overlay.interface" in caught.value.hint
    assert ns.json("-d", "link", "show") == before


def test_ends_of_two_different_veths_are_refused(ns: Namespace) -> None:
    ns.ip("link", "add", "mrc0", "type", "veth", "peer", "name", "a")
    ns.ip("link", "add", "pmrc0", "type", "veth", "peer", "name", "b")
    with pytest.raises(MachineError, match="mrc0 exists"):
        ensure()


def test_a_refused_mtu_is_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match="MTU 70000"):
        ensure(mtu=70000)


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


def test_unknown_offloads_are_no_error(ns: Namespace) -> None:
    ensure()
    set_offload("mrc0", {"tx-quantum-segmentation": False, "tx-tcp-segmentation": False})
    assert features(ns, "mrc0")["tx-tcp-segmentation"] == "off"


def test_a_fixed_offload_with_the_wanted_value_is_no_error(ns: Namespace) -> None:
    assert features(ns, "lo")["loopback"] == "on [fixed]"
    set_offload("lo", {"loopback": True})


def test_offloads_of_a_missing_interface_are_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"offloads of none0: .*ENODEV"):
        set_offload("none0", {"tx-tcp-segmentation": False})


def test_an_offload_that_the_driver_refuses_is_named(ns: Namespace) -> None:
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


def test_pacing_a_missing_interface_is_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match="pace gone"):
        run(lambda n: n.ensure_paced(Link("gone", 99, "", True, True, 1500, "veth", None, 0, True), 318, 1_000_000))
