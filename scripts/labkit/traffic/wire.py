# SPDX-License-Identifier: BSD-2-Clause
"""Defines mrcd's packets as scapy layers (struct mrc_hdr, mrc_probe and mrc_count of bpf/mrc_wire.h).

Tests and benchmarks dissect packets by them, and build those that the programs should send.
"""

from typing import Any

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldListField,
    FlagsField,
    IntField,
    LongField,
    PacketListField,
    ShortField,
    StrFixedLenField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Padding, Raw, bind_layers, split_layers

from mrcd.config.cluster_file import Cluster
from mrcd.config.sizes import BALLAST, KEY_IDS, SPORT_BASE
from mrcd.fabric.topology import EV, Plan
from mrcd.versions import PROBE_VERSION, WIRE_VERSION

UDP_PORT: int = Cluster.model_fields["udp_port"].default
HOP_LIMIT = 64
ECT_0 = 2  # RFC 3168 §5
DATA, PROBE_REQUEST, PROBE_REPLY = 1, 2, 3  # enum mrc_type
CRITICAL, DIAGNOSTIC = 0x1, 0x2  # MRC_FLAG_*
TYPES = {DATA: "data", PROBE_REQUEST: "probe request", PROBE_REPLY: "probe reply"}


class _Version(ByteField):  # type: ignore[misc]
    """The version of a packet: that of its type, unless it is given."""

    def i2m(self, pkt: Packet, x: int | None) -> int:
        return (WIRE_VERSION if pkt.type == DATA else PROBE_VERSION) if x is None else x


class MRC(Packet):  # type: ignore[misc]
    """struct mrc_hdr: follows UDP, and precedes an inner IP packet or a probe."""

    name = "MRC"
    fields_desc = (
        _Version("version", None),
        ByteEnumField("type", DATA, TYPES),
        FlagsField("flags", 0, 8, ["critical", "diagnostic", *(f"bit{i}" for i in range(2, 8))]),
        ByteField("key_id", 0),
        ShortField("sender", 0),
        ShortField("ev", 0),
        IntField("seq", 0),
        ShortField("segments", 1),
        ShortField("receiver", 0),
        LongField("tx_ns", 0),
        XLongField("auth", 0),
    )

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Returns the class of the payload: a probe by the type, or an inner IP packet by its version."""
        if self.type in (PROBE_REQUEST, PROBE_REPLY):
            return MRCProbe
        version = payload[0] >> 4 if self.type == DATA and payload else 0
        found: type[Packet] = {4: IP, 6: IPv6}.get(version, Raw)
        return found

    def mysummary(self) -> str:
        """Returns one line for a packet list."""
        kind = TYPES.get(self.type, f"type {self.type}")
        text = f"MRC {kind} from host {self.sender} to {self.receiver} EV {self.ev}"
        if self.type == DATA:
            text += f" seq {self.seq}" + (f" × {self.segments}" if self.segments != 1 else "")
        return text

    def _do_summary(self) -> tuple[int, str, list[Any]]:
        """Returns the summary of this layer and the inner one: scapy would show the innermost layer only."""
        _, inner, needed = self.payload._do_summary()  # noqa: SLF001 - scapy's hook for this
        return 1, f"{self.mysummary()} / {inner}" if inner else self.mysummary(), needed


class MRCProbe(Packet):  # type: ignore[misc]
    """struct mrc_probe: follows MRC in requests and replies. A report follows if `counts` is not 0."""

    name = "MRC probe"
    fields_desc = (
        IntField("seq", 0),
        XShortField("plane_mask", 0),
        XShortField("status", 0),
        XIntField("generation", 0),
        IntField("report_seq", 0),
        ShortField("first", 0),
        ShortField("counts", 0),
        FieldListField("key_ids", [0, 0], ByteField("", 0), count_from=lambda _: KEY_IDS),
        XShortField("fingerprint", 0),
        LongField("tx_ns", 0),
    )

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Returns the class of the payload: a report, or padding."""
        found: type[Packet] = MRCReport if self.counts else Padding
        return found

    def mysummary(self) -> str:
        """Returns one line for a packet list."""
        return f"probe {self.seq}"


class MRCCount(Packet):  # type: ignore[misc]
    """struct mrc_count: the packets that have arrived on one EV."""

    name = "MRC count"
    fields_desc = (IntField("packets", 0), ShortField("probes", 0), ShortField("ce", 0))

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Returns the bytes as padding: the next count follows."""
        return b"", s


class MRCReport(Packet):  # type: ignore[misc]
    """Follows a probe that requests or carries a report: ballast, then a count per EV."""

    name = "MRC report"
    fields_desc = (
        StrFixedLenField("ballast", bytes(BALLAST), BALLAST),
        PacketListField("records", [], MRCCount, count_from=lambda report: report.underlayer.counts),
    )

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Returns the remaining bytes as padding: nothing follows a report."""
        return b"", s

    def mysummary(self) -> str:
        """Returns one line for a packet list."""
        probe = self.underlayer
        which = f" {probe.report_seq} from EV {probe.first}" if isinstance(probe, MRCProbe) else ""
        return f"report{which}: {len(self.records)} EVs"


def bind(udp_port: int = UDP_PORT) -> None:
    """Makes scapy dissect UDP packets to this port, and no other, as MRC, and use this port for MRC over UDP."""
    for rule in [r for r, layer in UDP.payload_guess if layer is MRC]:
        split_layers(UDP, MRC, **rule)
    bind_layers(UDP, MRC, dport=udp_port)


bind()


def outer(
    plan: Plan, path: EV, payload: Packet, *, smac: str, dmac: str, vlan: int = 0, mrc: dict[str, Any] | None = None
) -> Packet:
    """Returns the frame in which the host of `plan` sends an IP packet or an MRCProbe on `path`.

    `mrc` sets fields of the MRC header; the type is necessary for probe replies only. The headers are those of
    H.Encaps.Red (RFC 8986 §5.2): the first segment is the destination, and the SRH holds the others in reverse order.
    DSCP and ECN are the inner packet's (RFC 6040 §4.1); the UDP checksum is zero.
    """
    kind = PROBE_REQUEST if isinstance(payload, MRCProbe) else DATA
    header = MRC(**{"type": kind, "sender": plan.host.id, "receiver": path.peer_id, "ev": path.ev, **(mrc or {})})
    first, *others = (str(s) for s in path.segments)
    frame = Ether(src=smac, dst=dmac)
    if vlan:
        frame /= Dot1Q(vlan=vlan)
    frame /= IPv6(
        src=str(plan.addresses[path.plane]),
        dst=first,
        tc=_traffic_class(payload),
        fl=path.ev,
        hlim=HOP_LIMIT,
    )
    if others:
        last = len(others) - 1
        frame /= IPv6ExtHdrSegmentRouting(nh=17, addresses=others[::-1], segleft=len(others), lastentry=last)
    return frame / UDP(sport=SPORT_BASE + path.ev, dport=plan.config.cluster.udp_port, chksum=0) / header / payload


def _traffic_class(payload: Packet) -> int:
    """Returns DSCP and ECN of an IP packet. Probes have ECT(0), so that marking queues do not drop them."""
    if isinstance(payload, IP):
        return int(payload.tos)
    return int(payload.tc) if isinstance(payload, IPv6) else ECT_0
