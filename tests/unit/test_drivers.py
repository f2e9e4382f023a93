# SPDX-License-Identifier: BSD-2-Clause
"""Tests conclusions from a driver and its offloads; the facts are those of docs/hardware.md."""

import pytest

from mrcd.net import drivers
from mrcd.net.drivers import MANGLE_ID, RX_CHECKSUM, UDP_TUNNEL, Device
from tests.unit.interfaces import link


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
    for driver, offloads in (("virtio_net", OFF), ("ixgbe", ON)):
        found = drivers.segmentation(link(), Device(driver, offloads), srh=False, udp_port=4797)
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
