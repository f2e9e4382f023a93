# SPDX-License-Identifier: BSD-2-Clause
"""Chooses the hooks of the programs on this host's interfaces, attaches mrc_pop, and sets sysctls."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from mrcd.config.cluster_file import Granularity, Hook
from mrcd.errors import KernelError, MachineError
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.links import Attachment, Point
from mrcd.net import drivers, sysctls
from mrcd.net.drivers import Device, Segmentation
from mrcd.net.messages import Link
from mrcd.net.offloads import ReceiveChecksums

log = logging.getLogger("mrcd")

_HEADERS = 14 + 40 + 8 + 32 + 32  # bytes: Ethernet, IPv6, UDP, struct mrc_hdr, struct mrc_probe


@dataclass(frozen=True)
class Port:
    """A plane NIC: `nic` has the address and the neighbours; `physical` sends and receives."""

    plane: int
    nic: Link
    physical: Link
    device: Device = field(default_factory=Device)  # of `physical`

    @property
    def vlan(self) -> int:
        """Returns the VLAN id; 0 if untagged."""
        return self.nic.vlan if self.physical is not self.nic else 0


def _unknown_device(_: Link) -> Device:
    return Device()


def ports(
    interfaces: tuple[str, ...], links: dict[str, Link], read_device: Callable[[Link], Device] = _unknown_device
) -> dict[int, Port]:
    """Returns the existing plane NICs by plane. A VLAN interface uses the NIC below it if that is in this namespace.

    `read_device` reads the driver of a NIC.
    """
    by_index = {link.ifindex: link for link in links.values()}
    found = {}
    for plane, name in enumerate(interfaces):
        nic = links.get(name)
        if nic is None:
            continue
        physical = by_index.get(nic.lower, nic) if nic.vlan and nic.lower is not None else nic
        found[plane] = Port(plane, nic, physical, read_device(physical))
    return found


def tc_hooks(overlay: Iterable[Link], links: Iterable[Link]) -> list[tuple[int, Point]]:
    """Returns where a run may have left filters: at both hooks of mrc0's ends, and at ingress of any interface."""
    both: tuple[Point, ...] = ("egress", "ingress")
    return [(link.ifindex, point) for link in overlay for point in both] + [
        (link.ifindex, "ingress") for link in links if link.kind != "loopback"
    ]


def choose(wanted: Hook, link: Link, device: Device) -> tuple[list[Point], str]:
    """Returns the XDP points to try for mrc_pop, best first, and the reason if there is none.

    mrc_pop is always at tc ingress too: there it answers probes, applies reports, and pops what XDP passes on. Raises
    MachineError if XDP is configured where it would make the kernel accept damaged packets.
    """
    if wanted == "auto":
        reason = drivers.without_native_xdp(link, device)
        return ([] if reason else ["xdp"]), reason
    if wanted == "tc":
        return [], "configured"
    if drivers.is_stacked(link):
        raise MachineError(
            f"{link.name} is a {link.kind}: NICs below it may mark checksums as verified, and XDP would keep the mark",
            hint='set hook = "auto" or "tc" for this host in the configuration',
        )
    return [wanted], ""


def pop_names(first: int) -> set[str]:
    """Returns the names of all attachments that mrc_pop can have on a NIC."""
    return {f"pop-{first}", *(f"pop-{point}-{first}" for point in ("xdp", "xdp-generic"))}


def attach_pop(
    dataplane: Dataplane, wanted: Hook, port: Port, first: int, checksums: ReceiveChecksums
) -> tuple[set[str], dict[str, object]]:
    """Attaches mrc_pop for one plane. Returns the pins that it uses, and a document for `mrcctl status`.

    `first` is the lowest plane on the same physical NIC: several VLANs share one attachment.
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
        if drivers.trusts_outer_checksum(link, device, point):
            checksums.switch_off(link.name)
            if drivers.trusts_outer_checksum(link, port.device, point):
                text = "%s: switched %s off, so that the kernel verifies the checksums of packets that XDP pops"
                log.warning(text, link.name, drivers.RX_CHECKSUM)
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
    """Returns the physical NICs to which attach_pop attached mrc_pop_xdp: name → (port, point). Pure."""
    found = {}
    for d in documents:
        port = ports.get(cast(int, d.get("plane", -1)))
        if port and d.get("xdp"):
            found[port.physical.name] = port, str(d["xdp"])
    return found


def is_unsafe(ports: dict[int, Port], documents: Iterable[Mapping[str, object]]) -> bool:
    """Returns whether rx-checksum is on again at a NIC with mrc_pop_xdp: another program has switched it on. Pure."""
    nics = with_xdp(ports, documents).values()
    return any(drivers.trusts_outer_checksum(port.physical, port.device, point) for port, point in nics)


def segmentations(plan: Plan, ports: dict[int, Port]) -> dict[int, Segmentation]:
    """Returns by plane where its bursts are segmented; empty in packet granularity, which has no bursts."""
    c = plan.config.cluster
    if c.granularity == "packet":
        return {}
    found = ((p, port.physical, port.device) for p, port in ports.items())
    return {p: drivers.segmentation(link, device, srh=plan.needs_srh, udp_port=c.udp_port) for p, link, device in found}


def push_attachments(
    granularity: Granularity, mrc0: Link, mrc0_peer: Link
) -> tuple[list[Attachment], dict[str, object]]:
    """Returns mrc_push's attachments behind and before the segmentation by mrc0, and a document for `mrcctl status`.

    In this order, because the program before it leaves packets to the one behind it: in packet granularity all, with
    their priorities; in the others those of tunnels that it cannot encapsulate as bursts.
    """
    before = Attachment("push-egress", "mrc_push", mrc0.name, mrc0.ifindex, "egress")
    behind = Attachment("push-ingress", "mrc_push", mrc0_peer.name, mrc0_peer.ifindex, "ingress")
    if granularity == "burst":
        at, reason = before, "burst: a GSO burst stays whole on one EV"
    elif granularity == "bundle":
        at, reason = before, "bundle: a few segments of TCP stay together on one EV"
    else:
        at, reason = behind, "packet: each wire packet gets its own EV"
    return [behind, before], {"hook": f"tc {at.point} {at.interface}", "reason": reason}


def merges(granularity: Granularity, ports: dict[int, Port]) -> bool:
    """Returns whether mrc0 must merge TCP segments (GRO). A veth delivers bursts as made, other NICs packets."""
    return granularity != "burst" or any(port.physical.kind != "veth" for port in ports.values())


def probe_attachment(mrc0_peer: Link) -> Attachment:
    """Returns the attachment of mrc_probe, to which mrc_push redirects the packets that become probes."""
    return Attachment("probe-egress", "mrc_probe", mrc0_peer.name, mrc0_peer.ifindex, "egress")


def unsent_attachment() -> Attachment:
    """Returns the attachment of mrc_unsent, at the tracepoint of dropped packets of all interfaces."""
    return Attachment("unsent", "mrc_unsent", "", 0, "tracepoint")


def timer_attachment(timer: Link) -> Attachment:
    """Returns the attachment of mrc_timer, where the paced timer packet arrives."""
    return Attachment("timer-ingress", "mrc_timer", timer.name, timer.ifindex, "ingress")


def timer_packet_bytes(evs_per_peer: int, srh: bool) -> int:
    """Returns the length of the timer packet (bpf/timer_packet.h): a request with room for counts and any SRH."""
    return _HEADERS + abi.BALLAST + 8 * min(evs_per_peer, abi.REPORT_EVS) + abi.SRH_MAX * srh


def loosen_rp_filter(interface: str, root: Path = sysctls.NET) -> None:
    """Replaces a strict reverse path filter (RFC 3704) of an interface with a loose one.

    mrc0 receives popped packets whose source may be routed through a NIC by a fallback route, and vice versa.
    """
    path = root / "ipv4/conf" / interface / "rp_filter"
    if "1" in (_read(root / "ipv4/conf/all/rp_filter"), _read(path)):
        _write(path, "2")


def enable_ipv6(interface: str, root: Path = sysctls.NET) -> None:
    """Enables IPv6 on an interface, because it gets no IPv6 address if the host disables IPv6 by default."""
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
            f"{path}: {e.strerror}", hint="run mrcd by its unit, or as docs/containers.md says"
        ) from None
