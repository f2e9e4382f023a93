"""Where the programs are attached on this host, and why there."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from mrcd.config.cluster_file import Granularity, Hook
from mrcd.errors import KernelError, MachineError
from mrcd.fabric.topology import Plan
from mrcd.loader.dataplane import Dataplane
from mrcd.loader.links import Attachment, Point
from mrcd.net import drivers
from mrcd.net.drivers import Cut, Device
from mrcd.net.messages import Link
from mrcd.net.offloads import ReceiveChecksums
from mrcd.tables import abi

log = logging.getLogger("mrcd")

_HEADERS = 14 + 40 + 8 + 32 + 32  # bytes: Ethernet, IPv6, UDP, struct mrc_hdr, struct mrc_probe


@dataclass(frozen=True)
class Port:
    """A plane NIC: `nic` has the address and the neighbours, `physical` sends and receives."""

    plane: int
    nic: Link
    physical: Link
    device: Device = field(default_factory=Device)  # of `physical`

    @property
    def vlan(self) -> int:
        """VLAN id; 0 if untagged."""
        return self.nic.vlan if self.physical is not self.nic else 0


def _unread(_: Link) -> Device:
    return Device()


def ports(
    interfaces: tuple[str, ...], links: dict[str, Link], read: Callable[[Link], Device] = _unread
) -> dict[int, Port]:
    """The plane NICs that exist. A VLAN interface is served on the NIC below it, if that is here. `read` asks
    the driver."""
    by_index = {link.ifindex: link for link in links.values()}
    found = {}
    for plane, name in enumerate(interfaces):
        nic = links.get(name)
        if nic is None:
            continue
        physical = by_index.get(nic.lower, nic) if nic.vlan and nic.lower is not None else nic
        found[plane] = Port(plane, nic, physical, read(physical))
    return found


def tc_hooks(overlay: Iterable[Link], links: Iterable[Link]) -> list[tuple[int, Point]]:
    """Where a run may have left filters: at both hooks of mrc0's ends, and where any interface receives."""
    both: tuple[Point, ...] = ("egress", "ingress")
    return [(link.ifindex, point) for link in overlay for point in both] + [
        (link.ifindex, "ingress") for link in links if link.kind != "loopback"
    ]


def choose(wanted: Hook, link: Link, device: Device) -> tuple[list[Point], str]:
    """The XDP points to try for mrc_pop, best first, and the reason if there is none.

    tc ingress is always there too: it reflects and settles probes, and pops what XDP leaves. Raises MachineError if XDP
    is configured where it would make the kernel believe damaged packets.
    """
    if wanted == "auto":
        reason = drivers.without_native_xdp(link, device)
        return ([] if reason else ["xdp"]), reason
    if wanted == "tc":
        return [], "configured"
    if drivers.is_stacked(link):
        raise MachineError(
            f"{link.name} is a {link.kind}: NICs below it may vouch for checksums, which XDP would pass on",
            hint='set hook = "auto" or "tc" for this host in the configuration',
        )
    return [wanted], ""


def attach_pop(
    dataplane: Dataplane, wanted: Hook, port: Port, first: int, checksums: ReceiveChecksums
) -> tuple[set[str], dict[str, object]]:
    """Attach mrc_pop for one plane. Returns the pins it uses and a document for `mrcctl status`.

    `first` is the lowest plane on the same physical NIC: several VLANs share their attachments.
    """
    link = port.physical
    device = checksums.before(link.name, port.device)
    points, reason = choose(wanted, link, device)
    tc = Attachment(f"pop-{first}", "mrc_pop", link.name, link.ifindex, "ingress")
    how = dataplane.attach(tc)
    pins = {tc.name}
    document: dict[str, object] = {"plane": port.plane, "hook": how, "hook_reason": reason or None, "fallback": False}
    for point in points:
        was_off = link.name in checksums
        if drivers.trusts_the_outer(link, device, point):
            checksums.switch_off(link.name)
            if drivers.trusts_the_outer(link, port.device, point):
                words = "off now, so that checksums behind XDP are verified"
                log.warning("%s: %s is %s", link.name, drivers.RX_CHECKSUM, words)
        xdp = Attachment(f"pop-{point}-{first}", "mrc_pop_xdp", link.name, link.ifindex, point)
        try:
            dataplane.attach(xdp)
        except KernelError as e:
            if not was_off:
                checksums.forget(link.name)
            if wanted != "auto":
                raise KernelError(
                    f"attach mrc_pop to {link.name} as {wanted}",
                    e.errno,
                    hint='set hook = "auto" or "tc" for this host in the configuration',
                ) from None
            document |= {"fallback": True, "hook_reason": f"native XDP refused: {e.args[0].splitlines()[-1]}"}
        else:
            pins.add(xdp.name)
            off = f"; {drivers.RX_CHECKSUM} is off" if link.name in checksums else ""
            document |= {"hook": f"{point} + {how}", "xdp": point}
            document["hook_reason"] = ("configured" if wanted != "auto" else "native XDP of the driver") + off
    return pins, document


def with_xdp(ports: dict[int, Port], documents: Iterable[Mapping[str, object]]) -> dict[str, tuple[Port, str]]:
    """The physical NICs where attach_pop has attached mrc_pop_xdp, by name, and at which point. Pure."""
    found = {}
    for d in documents:
        port = ports.get(cast(int, d.get("plane", -1)))
        if port and d.get("xdp"):
            found[port.physical.name] = port, str(d["xdp"])
    return found


def is_unsafe(ports: dict[int, Port], documents: Iterable[Mapping[str, object]]) -> bool:
    """Whether a NIC vouches for checksums again where mrc_pop_xdp is attached: somebody has switched that on. Pure."""
    there = with_xdp(ports, documents).values()
    return any(drivers.trusts_the_outer(port.physical, port.device, point) for port, point in there)


def cuts(plan: Plan, ports: dict[int, Port]) -> dict[int, Cut]:
    """Plane → who cuts the bursts that leave by it; empty where there are none."""
    c = plan.config.cluster
    if c.granularity == "packet":
        return {}
    found = ((p, port.physical, port.device) for p, port in ports.items())
    return {p: drivers.cut(link, device, srh=plan.needs_srh, udp_port=c.udp_port) for p, link, device in found}


def push_attachment(granularity: Granularity, mrc0: Link, mrc0_peer: Link) -> tuple[Attachment, dict[str, object]]:
    """Where mrc_push sits: it sees bursts before, or wire packets after, the kernel's segmentation."""
    if granularity == "burst":
        a = Attachment("push-egress", "mrc_push", mrc0.name, mrc0.ifindex, "egress")
        reason = "burst: a GSO burst stays whole on one EV"
    else:
        a = Attachment("push-ingress", "mrc_push", mrc0_peer.name, mrc0_peer.ifindex, "ingress")
        reason = "packet: every wire packet takes its own EV"
    return a, {"hook": f"tc {a.point} {a.interface}", "reason": reason}


def tunnels_attachment(mrc0_peer: Link) -> Attachment:
    """Where mrc_push sees, packet by packet, the bursts of tunnels over mrc0, which it does not take whole. It is where
    all packets of packet granularity are seen, and has that name: a filter of one hook is replaced, never two."""
    return Attachment("push-ingress", "mrc_push", mrc0_peer.name, mrc0_peer.ifindex, "ingress")


def merges(granularity: Granularity, ports: dict[int, Port]) -> bool:
    """Whether mrc0 is to merge what TCP sent: where it comes packet by packet. A veth leaves bursts whole."""
    return granularity == "packet" or any(port.physical.kind != "veth" for port in ports.values())


def probe_attachment(mrc0_peer: Link) -> Attachment:
    """Where mrc_push sends what is to become a probe: behind its own hook, whichever that is."""
    return Attachment("probe-egress", "mrc_probe", mrc0_peer.name, mrc0_peer.ifindex, "egress")


def unsent_attachment() -> Attachment:
    """Where the kernel says that it drops a packet, of any interface."""
    return Attachment("unsent", "mrc_unsent", "", 0, "tracepoint")


def timer_attachment(timer: Link) -> Attachment:
    """Where what goes round comes from the end that holds it back."""
    return Attachment("timer-ingress", "mrc_timer", timer.name, timer.ifindex, "ingress")


def timer_packet_bytes(evs_per_peer: int, srh: bool) -> int:
    """The length of what goes round (bpf/timer_packet.h): a request with room for counts, and for any SRH."""
    return _HEADERS + abi.BALLAST + 8 * min(evs_per_peer, abi.REPORT_EVS) + abi.SRH_MAX * srh


def prepare_sysctls(port: Port, root: Path = Path("/proc/sys/net")) -> None:
    """SRv6 on, and no strict reverse path filter, on a plane NIC. seg6_enabled must be 1 on `all` and there."""
    names = sorted({port.nic.name, port.physical.name})
    for name in ["all", *names]:
        _write(root / "ipv6/conf" / name / "seg6_enabled", "1")
    for name in names:
        loosen(name, root)


def loosen(interface: str, root: Path = Path("/proc/sys/net")) -> None:
    """No strict reverse path filter (RFC 3704) on an interface: what is popped is received by mrc0 while its source may
    be routed by a NIC, as the fallback routes are, and the other way round."""
    path = root / "ipv4/conf" / interface / "rp_filter"
    if "1" in (_read(root / "ipv4/conf/all/rp_filter"), _read(path)):
        _write(path, "2")


def enable_ipv6(interface: str, root: Path = Path("/proc/sys/net")) -> None:
    """An interface made where IPv6 is off by default takes no IPv6 address."""
    _write(root / "ipv6/conf" / interface / "disable_ipv6", "0")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as e:
        raise MachineError(f"{path}: {e.strerror}") from None


def _write(path: Path, value: str) -> None:
    try:
        if path.read_text().strip() != value:
            path.write_text(value)
    except OSError as e:
        raise MachineError(
            f"{path}: {e.strerror}", hint="the kernel needs CONFIG_IPV6_SEG6_LWTUNNEL, and mrcd must be root"
        ) from None
