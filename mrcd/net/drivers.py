"""What a NIC's driver does to our packets. Each fact and its source: docs/hardware.md."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError

from mrcd.net.messages import Link

UDP_TUNNEL, MANGLE_ID, RX_CHECKSUM = "tx-udp_tnl-segmentation", "tx-tcp-mangleid-segmentation", "rx-checksum"
TUNNELS = tuple(
    f"tx-{kind}-segmentation" for kind in ("udp_tnl", "udp_tnl-csum", "gre", "gre-csum", "ipxip4", "ipxip6")
)

_GENEVE = 6081
_ANY_PORT = ("ice", "i40e", "ixgbe", "igb", "virtio_net")
_GENEVE_ONLY = ("mlx5_core", "vmxnet3")
_PARTIAL = ("ixgbe", "igb")  # cut bursts of inner IPv4 only if its ids may be any
_NEVER = ("mlx4_core", "bnxt_en", "ena", "gve", "gvnic", "e1000e")
_KNOWN = (*_ANY_PORT, *_GENEVE_ONLY, *_NEVER)
_NO_XDP = ("e1000e",)
_NO_METADATA = ("mlx4_core", "bnxt_en", "ena", "gve", "gvnic", "vmxnet3")
_NO_VERDICT = ("virtio_net",)  # with native XDP it asks its host for none


@dataclass(frozen=True)
class Device:
    """A NIC's driver, by the name of its module, and its offloads, by their ethtool names."""

    driver: str | None = None  # None: a virtual interface
    offloads: Mapping[str, bool] = field(default_factory=dict)  # what is on; empty if the kernel does not tell
    changeable: AbstractSet[str] = frozenset()  # the offloads that can be switched


@dataclass(frozen=True)
class Cut:
    """Where a burst is cut into the packets of the wire: by the "nic", by the "cpu", not on this host ("whole"), or
    "unknown"."""

    where: str
    reason: str
    remedy: str = ""


def read(link: Link) -> Device:
    """A NIC's, as the kernel tells. What it does not tell is left out."""
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


def without_native_xdp(link: Link, device: Device) -> str:
    """Why mrc_pop has no good place in this driver; "" if it has one. Pure."""
    driver = device.driver or "this driver"
    if is_stacked(link):
        return f"{link.kind} has other interfaces below it, which may vouch for checksums: XDP would pass that on"
    if link.kind == "veth":
        return "veth is a virtual interface: tc keeps its bursts whole, XDP would cut them"
    if driver in _NO_XDP:
        return f"{driver} has no native XDP"
    if driver in _NO_METADATA:
        return f"{driver} loses what XDP says of a packet: tc would pop it all the same"
    if not trusts_the_outer(link, device, "xdp"):
        return ""
    if RX_CHECKSUM not in device.offloads:
        return f"{driver} does not tell whether it vouches for checksums: after XDP that would be taken for the inner's"
    return (
        f"{driver} vouches for checksums: after XDP that would be taken for the inner packet's "
        f"(`ethtool -K {link.name} rx off` and a restart of mrcd make native XDP possible)"
    )


def is_stacked(link: Link) -> bool:
    """Whether an interface has others below it, as a bond or a macvlan has: what these say of checksums is not known,
    and is not changed by the interface's own offloads. Pure."""
    return link.kind not in (None, "veth")


def trusts_the_outer(link: Link, device: Device, point: str) -> bool:
    """Whether the kernel would take the NIC's verdict on the outer checksum for one on the inner packet, which XDP
    leaves. Pure."""
    kept = point == "xdp" and device.driver in _NO_VERDICT
    return link.kind != "veth" and not kept and device.offloads.get(RX_CHECKSUM, True)


def cut(link: Link, device: Device, *, srh: bool, udp_port: int) -> Cut:
    """Who cuts bursts that leave by a NIC. `srh`: they have one; `udp_port`: the outer destination port. Pure."""
    driver, on = device.driver or "this driver", device.offloads.get(UDP_TUNNEL, False)
    if link.kind == "veth":
        return Cut("whole", "veth is a virtual interface")
    if is_stacked(link):
        return Cut("unknown", f"{link.kind} hands bursts to the NICs below it")
    if driver in _NEVER:
        return Cut("cpu", f"{driver} cuts no bursts with our headers")
    if driver in _GENEVE_ONLY and (srh or udp_port != _GENEVE):
        remedy = f"udp_port = {_GENEVE} in the cluster file, which nobody has tried: see docs/hardware.md"
        return Cut("cpu", f"{driver} cuts bursts at UDP port {_GENEVE} only, without an SRH", "" if srh else remedy)
    if driver == "ice" and srh:
        return Cut("cpu", "ice cuts no bursts that have an SRH")
    if not on:
        can = driver in _KNOWN and UDP_TUNNEL in device.changeable
        return Cut("cpu", f"{UDP_TUNNEL} is off", f"ethtool -K {link.name} {UDP_TUNNEL} on" if can else "")
    if driver not in _KNOWN:
        return Cut("unknown", f"{driver} is in no table of docs/hardware.md; {UDP_TUNNEL} is on")
    if driver in _PARTIAL and not device.offloads.get(MANGLE_ID):
        can = MANGLE_ID in device.changeable
        return Cut("cpu", f"{MANGLE_ID} is off: IPv4 only", f"ethtool -K {link.name} {MANGLE_ID} on" if can else "")
    return Cut("nic", f"{driver} cuts encapsulated bursts")


def takes_nested(link: Link, device: Device) -> bool:
    """Whether bursts that have a tunnel of their own may go to a NIC whole: it leaves them as they are, or to the
    kernel. Others know one tunnel, and would take the outer of two for it. Pure."""
    return link.kind == "veth" or not any(device.offloads.get(name) for name in TUNNELS)
