# SPDX-License-Identifier: BSD-2-Clause
"""Tests where the programs are attached, and the reason: drivers, offloads, and the facts of docs/hardware.md."""

import os
from pathlib import Path
from typing import cast

import pytest

from mrcd.config.cluster_file import Granularity, Hook
from mrcd.errors import KernelError, MachineError
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.links import Attachment, Links
from mrcd.net import drivers, hooks, offloads
from mrcd.net.drivers import MANGLE_ID, RX_CHECKSUM, UDP_TUNNEL, Device
from mrcd.net.hooks import Port
from mrcd.net.messages import Link
from mrcd.net.offloads import ReceiveChecksums
from tests.unit.interfaces import link

NOTHING_OFF = ReceiveChecksums(Path(os.devnull, offloads.FILE))


def by_name(*links: Link) -> dict[str, Link]:
    return {x.name: x for x in links}


# ---- ports ----


def test_a_port_is_its_nic() -> None:
    links = by_name(link("lo", 1), link("eth1", 3), link("eth0", 2))
    found = hooks.ports(("eth0", "eth1"), links)
    assert found == {0: Port(0, links["eth0"], links["eth0"]), 1: Port(1, links["eth1"], links["eth1"])}
    assert found[0].vlan == 0


def test_missing_nics_are_left_out_and_the_others_keep_their_planes() -> None:
    found = hooks.ports(("a", "b", "c"), by_name(link("c", 7)))
    assert {plane: p.nic.name for plane, p in found.items()} == {2: "c"}
    assert hooks.ports(("a", "b"), {}) == {}


def test_planes_may_be_vlans_of_one_nic() -> None:
    """A VLAN is served on the NIC below it; if that is in another namespace, the VLAN tags by itself."""
    eth0 = link("eth0", 2)
    vlans = [link(f"v{i}", 10 + i, kind="vlan", lower=2, vlan=100 + i) for i in range(2)]
    found = hooks.ports(("v0", "v1"), by_name(eth0, *vlans))
    assert found == {i: Port(i, vlan, eth0) for i, vlan in enumerate(vlans)}
    assert [port.vlan for port in found.values()] == [100, 101]
    (port,) = hooks.ports(("v0",), by_name(vlans[0])).values()
    assert (port.physical, port.vlan) == (vlans[0], 0)


# ---- pop ----

HONEST, VOUCHING = (Device("ice", {drivers.RX_CHECKSUM: on}) for on in (False, True))


@pytest.mark.parametrize("wanted", ["xdp", "xdp-generic"])
def test_xdp_is_refused_where_other_interfaces_are_below(wanted: Hook) -> None:
    for kind in ("bond", "macvlan", "vlan"):
        with pytest.raises(MachineError) as caught:
            hooks.choose(wanted, link("p0", 2, kind=kind), HONEST)
        assert f"p0 is a {kind}" in str(caught.value)
        assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("wanted", "kind", "points"),
    [
        ("auto", None, ["xdp"]),
        ("auto", "veth", []),
        ("auto", "bond", []),
        ("tc", None, []),
        ("tc", "veth", []),
        ("xdp", None, ["xdp"]),
        ("xdp", "veth", ["xdp"]),  # configured, so attached
        ("xdp-generic", None, ["xdp-generic"]),
        ("xdp-generic", "veth", ["xdp-generic"]),
    ],
)
def test_choice_of_the_pop_hook(wanted: Hook, kind: str | None, points: list[str]) -> None:
    found, reason = hooks.choose(wanted, link("p0", 2, kind=kind), HONEST)
    assert found == points
    assert bool(reason) == (not points)  # no XDP: it says why
    assert kind != "veth" or points or wanted == "tc" or reason.startswith("veth is a virtual interface")


class Recorder:
    """Stands in for the data plane: records the attachments, and refuses some points as a driver does."""

    def __init__(self, *refused: str) -> None:
        self.attached: list[Attachment] = []
        self._refused = refused

    def attach(self, wanted: Attachment) -> str:
        if wanted.point in self._refused:
            raise KernelError("link_create", 95)
        self.attached.append(wanted)
        return "xdp" if wanted.point.startswith("xdp") else "tcx"


class Card:
    """Stands in for the offloads of a NIC, p3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(offloads, "set_offload", self._set)
        self.on, self.fixed, self.path = True, False, tmp_path / offloads.FILE
        self.checksums = ReceiveChecksums(self.path)

    def _set(self, interface: str, features: dict[str, bool]) -> None:
        assert interface == "p3"
        if self.fixed:
            raise MachineError("p3 keeps rx-checksum on; the driver does not allow it")
        (self.on,) = features.values()

    def port(self) -> Port:
        nic = link("p3", 8)
        return Port(3, nic, nic, VOUCHING if self.on else HONEST)

    def attach(self, wanted: Hook, *refused: str) -> dict[str, object]:
        recorder = cast(Dataplane, Recorder(*refused))
        _, document = hooks.attach_pop(recorder, wanted, self.port(), 3, self.checksums)
        self.checksums.restore(hooks.with_xdp({3: self.port()}, [document]).keys())  # as the daemon does
        return document


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Card:
    return Card(monkeypatch, tmp_path)


def test_checksums_are_verified_behind_configured_xdp(card: Card) -> None:
    document = card.attach("xdp")
    assert (document["hook"], document["hook_reason"]) == ("xdp + tcx", "configured; rx-checksum is off")
    found = [card.on]
    card.checksums = ReceiveChecksums(card.path)  # a restart
    assert card.attach("xdp")["hook"] == "xdp + tcx"
    found.append(card.on)
    assert card.attach("auto")["hook"] == "tcx"  # as it was before mrcd came
    assert [*found, card.on] == [False, False, True]
    assert not card.path.exists()


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("after", ["tc", None])
def test_the_offload_of_a_nic_is_restored(card: Card, after: Hook | None, on: bool) -> None:
    card.on = on
    card.attach("xdp-generic")
    if after:
        card.attach(after)
    else:
        ReceiveChecksums(card.path).restore()  # detach, by whichever process
    assert card.on == on


def test_an_offload_that_cannot_be_restored_now_is_restored_later(card: Card) -> None:
    card.attach("xdp")
    card.fixed = True  # renamed, or in another namespace
    card.attach("tc")
    card.fixed = False
    ReceiveChecksums(card.path).restore()
    assert card.on
    assert not card.path.exists()


def test_a_refused_attach_changes_nothing(card: Card) -> None:
    with pytest.raises(KernelError):
        card.attach("xdp", "xdp")
    assert card.on
    assert not card.path.exists()


def test_a_fixed_offload_is_an_error_with_a_hint(card: Card) -> None:
    card.fixed = True
    with pytest.raises(MachineError) as caught:
        card.attach("xdp")
    assert caught.value.hint is not None
    assert '"tc"' in caught.value.hint
    assert not card.path.exists()


def test_an_offload_that_is_enabled_again_is_reported(card: Card) -> None:
    document = card.attach("xdp")
    assert not hooks.is_unsafe({3: card.port()}, [document])
    card.on = True
    assert hooks.is_unsafe({3: card.port()}, [document])
    assert not hooks.is_unsafe({3: card.port()}, [card.attach("tc")])


def attach(recorder: Recorder, wanted: Hook, **other: object) -> tuple[set[str], dict[str, object]]:
    nic = link("p3", 8, **other)
    return hooks.attach_pop(cast(Dataplane, recorder), wanted, Port(3, nic, nic, HONEST), 3, NOTHING_OFF)


@pytest.mark.parametrize("wanted", ["auto", "tc", "xdp", "xdp-generic"])
def test_tc_ingress_is_always_there(wanted: Hook) -> None:
    recorder = Recorder()
    pins, document = attach(recorder, wanted)
    xdp = [] if wanted == "tc" else [("mrc_pop_xdp", "p3", 8, wanted.replace("auto", "xdp"))]
    found = [(a.program, a.interface, a.ifindex, a.point) for a in recorder.attached]
    assert found == [("mrc_pop", "p3", 8, "ingress"), *xdp]
    assert pins == {a.name for a in recorder.attached}
    assert (document["plane"], document["hook"]) == (3, f"{xdp[0][3]} + tcx" if xdp else "tcx")
    assert document["hook_reason"]


def test_auto_falls_back_to_tc_and_says_why() -> None:
    recorder = Recorder("xdp")
    pins, document = attach(recorder, "auto")
    assert pins == {"pop-3"}
    assert document["hook"] == "tcx"
    assert "native XDP refused" in str(document["hook_reason"])
    assert "Operation not supported" in str(document["hook_reason"])
    assert "\n" not in str(document["hook_reason"])


@pytest.mark.parametrize("wanted", ["xdp", "xdp-generic"])
def test_a_refused_configured_hook_is_an_error_with_a_hint(wanted: Hook) -> None:
    with pytest.raises(KernelError) as caught:
        attach(Recorder(wanted), wanted)
    assert "p3" in str(caught.value)
    assert wanted in str(caught.value)
    assert caught.value.hint is not None
    assert '"tc"' in caught.value.hint
    assert caught.value.errno == 95


def test_pop_is_attached_below_a_vlan() -> None:
    recorder = Recorder()
    eth0, vlan = link("eth0", 2), link("v", 9, kind="vlan", lower=2, vlan=5)
    hooks.attach_pop(cast(Dataplane, recorder), "auto", Port(0, vlan, eth0, HONEST), 0, NOTHING_OFF)
    assert {(a.interface, a.ifindex) for a in recorder.attached} == {("eth0", 2)}


# ---- push ----


@pytest.mark.parametrize(
    ("granularity", "hook"),
    [("burst", "tc egress mrc0"), ("bundle", "tc egress mrc0"), ("packet", "tc ingress pmrc0")],
)
def test_push_sits_before_and_behind_segmentation(granularity: Granularity, hook: str) -> None:
    """A packet that the program before it leaves to the other one finds it there."""
    found, document = hooks.push_attachments(granularity, link("mrc0", 5), link("pmrc0", 6))
    assert found == [
        Attachment("push-ingress", "mrc_push", "pmrc0", 6, "ingress"),
        Attachment("push-egress", "mrc_push", "mrc0", 5, "egress"),
    ]
    assert document["hook"] == hook
    assert str(document["reason"]).startswith(granularity)


@pytest.mark.parametrize(
    ("granularity", "kinds", "merged"),
    [
        ("burst", ["veth", "veth"], False),
        ("burst", ["veth", None], True),
        ("burst", [None, None], True),
        ("bundle", ["veth", "veth"], True),
        ("bundle", [None, None], True),
        ("burst", ["veth", "bond"], True),
        ("packet", ["veth", "veth"], True),
        ("burst", [], False),
    ],
)
def test_single_segments_are_merged(granularity: Granularity, kinds: list[str | None], merged: bool) -> None:
    nics = [link(f"p{i}", i, kind=kind) for i, kind in enumerate(kinds)]
    assert hooks.merges(granularity, {i: Port(i, nic, nic) for i, nic in enumerate(nics)}) is merged
    vlan = link("v", 9, kind="vlan", lower=2, vlan=5)  # is as virtual as the NIC below it
    assert hooks.merges(granularity, {i: Port(i, vlan, nic) for i, nic in enumerate(nics)}) is merged


def test_the_timer_packet_has_a_veth_of_its_own() -> None:
    """Its length sets the queueing discipline: the packet tests compare it with the real length."""
    assert hooks.timer_attachment(link("tmrc0", 5)) == Attachment("timer-ingress", "mrc_timer", "tmrc0", 5, "ingress")
    lengths = [hooks.timer_packet_bytes(*of) for of in ((16, False), (16, True), (128, False), (256, False))]
    assert lengths == [318, 406, 1214, 1214]


# ---- sysctls ----


def sysctls(root: Path, rp_filter: dict[str, str]) -> Path:
    for name in ("all", "default", "p0", "p1"):
        directory = root / "ipv4/conf" / name
        directory.mkdir(parents=True)
        (directory / "rp_filter").write_text(f"{rp_filter.get(name, '0')}\n")
    return root


def read(root: Path) -> dict[str, str]:
    return {p.parent.name: p.read_text().strip() for p in root.glob("ipv4/conf/*/rp_filter")}


def loosen(root: Path, *names: str) -> None:
    for name in names:
        hooks.loosen_rp_filter(name, root)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"all": "0", "p0": "0", "p1": "0"}),
        ({"p0": "1"}, {"all": "0", "p0": "2", "p1": "0"}),
        # The kernel takes the larger of all's and the interface's: 2 wins over a strict 1.
        ({"all": "1"}, {"all": "1", "p0": "2", "p1": "2"}),
        ({"all": "2"}, {"all": "2", "p0": "0", "p1": "0"}),
        ({"all": "2", "p0": "2"}, {"all": "2", "p0": "2", "p1": "0"}),
    ],
)
def test_strict_reverse_path_filters_become_loose(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    root = sysctls(tmp_path, before)
    loosen(root, "p0", "p1")
    assert read(root) == {"default": "0"} | after


def test_programs_of_another_version_count_as_attached(tmp_path: Path) -> None:
    found, other = Links(tmp_path / "abi4"), tmp_path / "abi3" / "links"
    other.mkdir(parents=True)
    assert not found.attached()
    (other / "pop-0").touch()
    assert found.attached()


# ---- drivers ----


@pytest.mark.parametrize(
    ("driver", "offloads", "reason"),
    [
        ("virtio_net", {RX_CHECKSUM: True}, ""),  # its host vouches for nothing while XDP is on
        ("mlx5_core", {RX_CHECKSUM: False}, ""),
        ("mlx5_core", {RX_CHECKSUM: True}, "ethtool -K p0 rx off"),
        ("vmxnet3", {RX_CHECKSUM: False}, "drops XDP metadata"),
        ("e1000e", {}, "no native XDP"),
        (None, {RX_CHECKSUM: True}, "this driver verifies"),
        ("ice", {}, "does not report"),
    ],
)
def test_native_xdp_is_used_where_it_helps(driver: str | None, offloads: dict[str, bool], reason: str) -> None:
    found = drivers.without_native_xdp(link(), Device(driver, offloads))
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("kind", "driver", "point", "trusted"),
    [
        (None, "ice", "xdp", True),
        (None, "ice", "xdp-generic", True),
        (None, "virtio_net", "xdp", False),
        (None, "virtio_net", "xdp-generic", True),
        ("veth", None, "xdp", False),
        ("bond", None, "xdp", True),
        ("macvlan", None, "xdp-generic", True),
    ],
)
def test_drivers_with_trusted_checksums(kind: str | None, driver: str | None, point: str, trusted: bool) -> None:
    assert drivers.trusts_outer_checksum(link(kind=kind), Device(driver, {RX_CHECKSUM: True}), point) is trusted
    assert drivers.trusts_outer_checksum(link(kind=kind), Device(driver), point) is trusted  # the kernel does not tell
    assert not drivers.trusts_outer_checksum(link(kind=kind), Device(driver, {RX_CHECKSUM: False}), point)


CAN = frozenset({UDP_TUNNEL, MANGLE_ID})
ON, OFF, BOTH = {UDP_TUNNEL: True}, {UDP_TUNNEL: False}, {UDP_TUNNEL: True, MANGLE_ID: True}


@pytest.mark.parametrize(
    ("driver", "offloads", "srh", "port", "where", "remedy"),
    [
        ("ice", ON, False, 4797, "nic", ""),
        ("ice", ON, True, 4797, "cpu", ""),
        ("i40e", ON, True, 4797, "nic", ""),
        ("i40e", {UDP_TUNNEL: False}, False, 4797, "cpu", "ethtool -K p0 tx-udp_tnl-segmentation on"),
        ("ixgbe", ON, False, 4797, "cpu", "tx-tcp-mangleid-segmentation on"),
        ("ixgbe", BOTH, False, 4797, "nic", ""),
        ("mlx5_core", ON, False, 4797, "cpu", "udp_port = 6081"),
        ("mlx5_core", ON, False, 6081, "nic", ""),
        ("mlx5_core", ON, True, 6081, "cpu", ""),
        ("bnxt_en", ON, False, 4797, "cpu", ""),
        ("new_nic", ON, False, 4797, "unknown", ""),
        ("new_nic", OFF, False, 4797, "cpu", ""),
    ],
)
def test_drivers_that_segment_bursts(
    driver: str, offloads: dict[str, bool], srh: bool, port: int, where: str, remedy: str
) -> None:
    found = drivers.segmentation(link(), Device(driver, offloads, CAN), srh=srh, udp_port=port)
    assert found.where == where
    assert remedy in found.remedy
    assert bool(found.remedy) == bool(remedy)
    assert found.reason


def test_an_offload_that_cannot_be_switched_is_no_remedy() -> None:
    """For example a virtio_net whose host offers none: the kernel lists every offload of every NIC."""
    for driver, on in (("virtio_net", OFF), ("ixgbe", ON)):
        found = drivers.segmentation(link(), Device(driver, on), srh=False, udp_port=4797)
        assert (found.where, found.remedy) == ("cpu", "")


@pytest.mark.parametrize("kind", ["bond", "macvlan", "vlan"])
def test_segmentation_below_a_stacked_interface_is_unknown(kind: str) -> None:
    assert drivers.segmentation(link(kind=kind), Device(None, ON), srh=False, udp_port=4797).where == "unknown"


def test_a_virtual_link_leaves_bursts_whole() -> None:
    assert drivers.segmentation(link(kind="veth"), Device(), srh=False, udp_port=4797).where == "whole"


def test_nics_that_get_bursts_of_two_tunnels() -> None:
    assert drivers.accepts_nested_tunnels(link(kind="veth"), Device(None, ON))
    assert drivers.accepts_nested_tunnels(link(), Device("e1000e", {UDP_TUNNEL: False}))
    assert not drivers.accepts_nested_tunnels(link(), Device("ice", {"tx-gre-segmentation": True}))
