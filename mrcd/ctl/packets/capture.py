# SPDX-License-Identifier: BSD-2-Clause
"""Captures mrcd's packets from the plane NICs or reads them from a file, for `mrcctl capture`.

It imports scapy, which takes a second, so the command imports it late.
"""

import itertools
import json
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from scapy.error import Scapy_Exception
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.utils import PcapReader, RawPcapWriter

from mrcd.ctl.client import understood
from mrcd.ctl.packets import decode, packet_ring, raw_socket, socket_filter
from mrcd.ctl.packets.raw_socket import Arrival
from mrcd.errors import MachineError, UsageError
from mrcd.fabric import wire

_POLL_S = 0.2
_ETHERNET = 1  # link type in the pcap header
_SNAPSHOT = 262_144  # bytes: whole packets
_SHOWN = 2048  # bytes: enough for a line or a document, even of the longest report


@dataclass(frozen=True)
class Known:
    """Names and numbers of this host and its peers, for decoding. Every field has a default for an unknown host."""

    host_id: int | None = None
    udp_port: int = wire.UDP_PORT
    names: Mapping[int, str] = field(default_factory=dict)
    interfaces: Mapping[int, str] = field(default_factory=dict)  # plane → the interface that its packets pass


def known(status: Mapping[str, Any], peers: list[Mapping[str, Any]]) -> Known:
    """Return this host and its peers from GET /v1/status and /v1/peers."""
    with understood():
        names = {int(p["host_id"]): str(p["peer"]) for p in peers} | {int(status["host_id"]): str(status["host"])}
        interfaces = {
            p["plane"]: raw_socket.name_of(p["ifindex"], p["interface"]) for p in status["planes"] if p["ifindex"]
        }
        return Known(status["host_id"], status["udp_port"], names, interfaces)


def live(about: Known, plane: int | None, keep: int, lost: Callable[[int], None]) -> Iterator[Arrival | None]:
    """Yield frames of the planes without an end, and None every 0.2 s without frames.

    `keep` is the number of bytes kept of each. At the end `lost` is called with the number of frames that the ring
    could not hold. Raises UsageError, MachineError.
    """
    if plane is not None and plane not in about.interfaces:
        planes = ", ".join(map(str, about.interfaces)) or "none"
        raise UsageError(f"there is no plane {plane}", hint=f"planes: {planes}")
    chosen = {name: p for p, name in about.interfaces.items() if plane in (None, p)}
    code = socket_filter.mrc_packets(about.udp_port, keep=keep)
    with packet_ring.Rings([(p, name) for name, p in chosen.items()], code) as rings:
        try:
            while True:
                found = rings.wait(_POLL_S)
                yield from found
                if not found:
                    yield None
        finally:
            lost(rings.lost())


def tagged(arrival: Arrival) -> bytes:
    """Return a frame as it was on the wire, with the VLAN tag that the kernel has removed."""
    if arrival.vlan is None:
        return arrival.data
    return arrival.data[:12] + struct.pack("!HH", 0x8100, arrival.vlan) + arrival.data[12:]


def stored(path: Path) -> Iterator[tuple[Packet, int]]:
    """Yield the packets of a pcap or pcapng file with their times in ns. Raises UsageError for any other file."""
    try:
        with PcapReader(str(path)) as reader:
            for packet in reader:
                yield packet, int(packet.time * 10**9)
    except (OSError, Scapy_Exception, EOFError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or "the file is truncated"
        hint = "-r reads pcap and pcapng, which `tcpdump -w` writes"
        raise UsageError(f"{path}: not a readable capture: {why}", hint=hint) from None


@dataclass(frozen=True)
class Filter:
    """The packets that are wanted: those that match every field that is not None."""

    plane: int | None = None
    ev: int | None = None
    type: str | None = None
    peer: str | None = None  # its sender or its receiver

    @property
    def needs_decoding(self) -> bool:
        """Whether more than the plane, and so the interface, decides."""
        return (self.ev, self.type, self.peer) != (None, None, None)

    def matches(self, doc: Mapping[str, Any]) -> bool:
        """Return whether a document of decode.packet() is wanted."""
        wanted = (("plane", self.plane), ("ev", self.ev), ("type", self.type))
        ends = (doc["sender_name"], doc["receiver_name"], str(doc["sender"]), str(doc["receiver"]))
        return all(value in (None, doc[key]) for key, value in wanted) and (self.peer is None or self.peer in ends)

    def __str__(self) -> str:
        parts = [("plane", self.plane), ("EV", self.ev), ("type", self.type), ("peer", self.peer)]
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


class Printer:
    """Prints the wanted packets as lines or JSON lines, and counts them."""

    def __init__(self, about: Known, wanted: Filter, *, as_json: bool) -> None:
        self._about, self._wanted, self._json = about, wanted, as_json
        self.shown = 0

    def decoded(self, frame: Packet, ns: int, arrival: Arrival | None = None) -> Mapping[str, Any] | None:
        """Return the document of a frame; None unless it is an MRC packet that is wanted."""
        doc = decode.packet(
            frame,
            ns,
            outgoing=arrival.outgoing if arrival else None,
            vlan=arrival.vlan if arrival else None,
            names=self._about.names,
            host_id=self._about.host_id,
            length=arrival.length if arrival else None,
        )
        return doc if doc is not None and self._wanted.matches(doc) else None

    def show(self, doc: Mapping[str, Any]) -> None:
        """Print a packet."""
        self.shown += 1
        click.echo(json.dumps(doc, ensure_ascii=False) if self._json else decode.line(doc))
        sys.stdout.flush()


def from_file(path: Path, about: Known, wanted: Filter, *, count: int | None, as_json: bool) -> str:
    """Print the wanted MRC packets of a file. Returns a summary."""
    wire.bind(about.udp_port)
    printer, read = Printer(about, wanted, as_json=as_json), 0
    for packet, ns in stored(path):
        read += 1
        doc = printer.decoded(packet, ns)
        if doc is not None:
            printer.show(doc)
        if printer.shown == count:
            break
    return f"{printer.shown} of {read} packets are MRC" + (f" of {wanted}" if str(wanted) else "")


def from_wire(
    about: Known,
    wanted: Filter,
    *,
    count: int | None,
    seconds: float | None,
    as_json: bool,
    to: Path | None,
    keep: int | None,
) -> str:
    """Print the wanted live packets, or write them to a file, until `count`, the end of the time, or an interrupt.

    `keep` is the number of bytes kept of each packet; None keeps all in a file, else what a line shows. Returns a
    summary. Raises UsageError, MachineError.
    """
    wire.bind(about.udp_port)
    if not about.interfaces:
        raise MachineError("no plane NIC is known", hint="start mrcd; `mrcctl status` lists the plane NICs")
    lost: list[int] = []
    printer, end = Printer(about, wanted, as_json=as_json), time.monotonic() + seconds if seconds else None
    writer, taken = _writer(to), 0
    frames = live(about, wanted.plane, keep or (_SHOWN if to is None else _SNAPSHOT), lost.append)
    try:
        for arrival in itertools.chain([None], frames):
            if end is not None and time.monotonic() >= end:
                break
            if arrival is None:
                continue
            doc = None
            if writer is None or wanted.needs_decoding:
                doc = printer.decoded(Ether(arrival.data), arrival.ns, arrival)
                if doc is None:
                    continue
            taken += 1
            if writer is None and doc is not None:
                printer.show(doc)
            elif writer is not None:
                data = tagged(arrival)
                writer.write_packet(
                    data,
                    sec=arrival.ns // 10**9,
                    usec=arrival.ns % 10**9,
                    wirelen=arrival.length + len(data) - len(arrival.data),
                )
            if taken == count:
                break
    except KeyboardInterrupt:
        pass
    finally:
        frames.close()  # type: ignore[attr-defined]
        if writer is not None and str(to) != "-":
            writer.close()
    missed = sum(lost)
    return (
        f"{taken} packet{'s' * (taken != 1)}"
        + (f" in {to}" if to and str(to) != "-" else "")
        + (f"; {missed} more were lost because the ring was full" if missed else "")
    )


def _writer(to: Path | None) -> RawPcapWriter | None:
    if to is None:
        return None
    try:
        writer = RawPcapWriter(
            sys.stdout.buffer if str(to) == "-" else str(to),
            linktype=_ETHERNET,
            nano=True,
            sync=True,
            snaplen=_SNAPSHOT,
        )
        writer.write_header(None)
    except OSError as e:
        raise MachineError(f"{to}: {e.strerror}") from None
    return writer
