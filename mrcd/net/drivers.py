# SPDX-License-Identifier: BSD-2-Clause
"""Describes NIC drivers: native XDP, checksums, and segmentation of encapsulated bursts.

docs/hardware.md has the source of each fact.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrcd.net.messages import Link  # pyroute2 takes mrcctl longer to import than all else

UDP_TUNNEL, MANGLE_ID, RX_CHECKSUM = "tx-udp_tnl-segmentation", "tx-tcp-mangleid-segmentation", "rx-checksum"
TUNNELS = tuple(
    f"tx-{kind}-segmentation" for kind in ("udp_tnl", "udp_tnl-csum", "gre", "gre-csum", "ipxip4", "ipxip6")
)

_GENEVE = 6081
_ANY_PORT = ("ice", "i40e", "ixgbe", "igb", "virtio_net")
_GENEVE_ONLY = ("mlx5_core", "vmxnet3")
_PARTIAL = ("ixgbe", "igb")  # segment bursts of inner IPv4 only if they may change the IPv4 ids
_NEVER = ("mlx4_core", "bnxt_en", "ena", "gve", "gvnic", "e1000e")
_KNOWN = (*_ANY_PORT, *_GENEVE_ONLY, *_NEVER)
_NO_XDP = ("e1000e",)
_NO_METADATA = ("mlx4_core", "bnxt_en", "ena", "gve", "gvnic", "vmxnet3")
_NO_CHECKSUM_STATUS = ("virtio_net",)  # with native XDP it does not request checksum status from its host


@dataclass(frozen=True)
class Device:
    """The name of a NIC's driver module, and its offloads by their ethtool names."""

    driver: str | None = None  # None: a virtual interface
    offloads: Mapping[str, bool] = field(default_factory=dict)  # empty if the kernel does not report them
    changeable: AbstractSet[str] = frozenset()  # offloads that can be switched


@dataclass(frozen=True)
class Segmentation:
    """Tells where bursts are cut into wire packets: "nic", "cpu", "whole" (not on this host) or "unknown"."""

    where: str
    reason: str
    remedy: str = ""


def read_device(link: "Link") -> Device:
    """Returns a NIC's driver and offloads, as far as the kernel reports them."""
    from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError

    try:
        driver = Path(f"/sys/class/net/{link.name}/device/driver").readlink().name
    except OSError:
        driver = None
    try:
        features = IoctlEthtool(link.name).get_features()
        names = list(features.keys())
        changeable = {n for n in names if features.is_available(n) and not features.is_never_changed(n)}
        return Device(driver, {n: bool(features[n]) for n in names}, changeable)
    except (NotSupportedError, OSError):
        return Device(driver)


def without_native_xdp(link: "Link", device: Device) -> str:
    """Returns why mrc_pop cannot use native XDP of this driver; "" if it can. Pure."""
    driver = device.driver or "this driver"
    if is_stacked(link):
        return f"{link.kind} has interfaces below it that may mark checksums as verified: XDP would keep the mark"
    if link.kind == "veth":
        return "veth is a virtual interface: tc keeps its bursts whole, XDP would segment them"
    if driver in _NO_XDP:
        return f"{driver} has no native XDP"
    if driver in _NO_METADATA:
        return f"{driver} drops XDP metadata, so tc would have to pop the packets anyway"
    if not trusts_outer_checksum(link, device, "xdp"):
        return ""
    if RX_CHECKSUM not in device.offloads:
        return f"{driver} does not report rx-checksum: after XDP, the kernel might trust the inner checksum too"
    return (
        f"{driver} verifies outer checksums: after XDP the kernel would trust the inner packet's too "
        f"(`ethtool -K {link.name} rx off` and a restart of mrcd make native XDP possible)"
    )


def is_stacked(link: "Link") -> bool:
    """Returns whether an interface has other interfaces below it, as a bond or a macvlan has. Pure.

    Their checksum status is not known, and does not depend on the offloads of the upper interface.
    """
    return link.kind not in (None, "veth")


def trusts_outer_checksum(link: "Link", device: Device, point: str) -> bool:
    """Returns whether the kernel would apply the NIC's outer checksum status to the inner packet after XDP. Pure."""
    has_no_status = point == "xdp" and device.driver in _NO_CHECKSUM_STATUS
    return link.kind != "veth" and not has_no_status and device.offloads.get(RX_CHECKSUM, True)


def segmentation(link: "Link", device: Device, *, srh: bool, udp_port: int) -> Segmentation:
    """Returns where bursts sent through a NIC are segmented. Pure.

    `srh`: whether they have an SRH; `udp_port`: the outer destination port.
    """
    driver, on = device.driver or "this driver", device.offloads.get(UDP_TUNNEL, False)
    if link.kind == "veth":
        return Segmentation("whole", "veth is a virtual interface")
    if is_stacked(link):
        return Segmentation("unknown", f"{link.kind} passes bursts to the NICs below it")
    if driver in _NEVER:
        return Segmentation("cpu", f"{driver} cannot segment bursts with mrcd's headers")
    if driver in _GENEVE_ONLY and (srh or udp_port != _GENEVE):
        remedy = f"udp_port = {_GENEVE} in the cluster file; not tested, see docs/hardware.md"
        reason = f"{driver} segments bursts to UDP port {_GENEVE} only, and without an SRH"
        return Segmentation("cpu", reason, "" if srh else remedy)
    if driver == "ice" and srh:
        return Segmentation("cpu", "ice cannot segment bursts with an SRH")
    if not on:
        can = driver in _KNOWN and UDP_TUNNEL in device.changeable
        return Segmentation("cpu", f"{UDP_TUNNEL} is off", f"ethtool -K {link.name} {UDP_TUNNEL} on" if can else "")
    if driver not in _KNOWN:
        return Segmentation("unknown", f"docs/hardware.md does not list {driver}; {UDP_TUNNEL} is on")
    if driver in _PARTIAL and not device.offloads.get(MANGLE_ID):
        remedy = f"ethtool -K {link.name} {MANGLE_ID} on" if MANGLE_ID in device.changeable else ""
        return Segmentation("cpu", f"{MANGLE_ID} is off: IPv4 only", remedy)
    return Segmentation("nic", f"{driver} segments encapsulated bursts")


def accepts_nested_tunnels(link: "Link", device: Device) -> bool:
    """Returns whether a NIC may get whole bursts that are tunnelled already before mrcd's headers. Pure.

    A veth passes them on; a NIC without tunnel offloads leaves them to the kernel. Other NICs handle one tunnel only,
    and would segment by the outer one.
    """
    return link.kind == "veth" or not any(device.offloads.get(name) for name in TUNNELS)
