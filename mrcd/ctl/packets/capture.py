"""`mrcctl capture`: the packets of mrcd, live from the plane NICs or from a file. Imports scapy: imported late."""

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
_ETHERNET = 1  # the link type of the file
_SNAPSHOT = 262_144  # bytes: all of a packet
_SHOWN = 2048  # bytes: all that a line or a document tells of, the longest report included


@dataclass(frozen=True)
class Known:
    """What is known of this host and its peers; nothing of it has to be."""

    host_id: int | None = None
    udp_port: int = wire.UDP_PORT
    names: Mapping[int, str] = field(default_factory=dict)
    interfaces: Mapping[int, str] = field(default_factory=dict)  # plane → where its packets pass


def known(status: Mapping[str, Any], peers: list[Mapping[str, Any]]) -> Known:
    """Of GET /v1/status and /v1/peers."""
    with understood():
        names = {int(p["host_id"]): str(p["peer"]) for p in peers} | {int(status["host_id"]): str(status["host"])}
        interfaces = {
            p["plane"]: raw_socket.name_of(p["ifindex"], p["interface"]) for p in status["planes"] if p["ifindex"]
        }
        return Known(status["host_id"], status["udp_port"], names, interfaces)


def live(about: Known, plane: int | None, keep: int, lost: Callable[[int], None]) -> Iterator[Arrival | None]:
    """Frames of the planes as they pass, without an end; None now and then while there are none.

    `keep`: bytes of each. `lost` is told at the end how many found no room. Raises UsageError, MachineError.
    """
    if plane is not None and plane not in about.interfaces:
        there = ", ".join(map(str, about.interfaces)) or "none"
        raise UsageError(f"there is no plane {plane}", hint=f"planes: {there}")
    chosen = {name: p for p, name in about.interfaces.items() if plane in (None, p)}
    with packet_ring.Rings(
        [(p, name) for name, p in chosen.items()], socket_filter.ours(about.udp_port, keep=keep)
    ) as taps:
        try:
            while True:
                found = taps.wait(_POLL_S)
                yield from found
                if not found:
                    yield None
        finally:
            lost(taps.lost())


def tagged(arrival: Arrival) -> bytes:
    """A frame as it was on the wire: with the tag that the kernel has taken off."""
    if arrival.vlan is None:
        return arrival.data
    return arrival.data[:12] + struct.pack("!HH", 0x8100, arrival.vlan) + arrival.data[12:]


def stored(path: Path) -> Iterator[tuple[Packet, int]]:
    """The packets of a pcap or pcapng file, each with its time, ns. Raises UsageError if it is none."""
    try:
        with PcapReader(str(path)) as reader:
            for packet in reader:
                yield packet, int(packet.time * 10**9)
    except (OSError, Scapy_Exception, EOFError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or "it ends too early"
        hint = "pcap or pcapng, as tcpdump -w writes"
        raise UsageError(f"{path}: no capture that can be read: {why}", hint=hint) from None


class Out:
    """Where packets go: lines, JSON lines, or a file; counts them."""

    def __init__(self, about: Known, *, as_json: bool, plane: int | None) -> None:
        self._about, self._json, self._plane = about, as_json, plane
        self.shown = 0

    def show(self, frame: Packet, ns: int, arrival: Arrival | None = None) -> None:
        """Print a packet, if it is one of ours and of the plane."""
        doc = decode.packet(
            frame,
            ns,
            outgoing=arrival.outgoing if arrival else None,
            vlan=arrival.vlan if arrival else None,
            names=self._about.names,
            host_id=self._about.host_id,
            length=arrival.length if arrival else None,
        )
        if doc is None or self._plane not in (None, doc["plane"]):
            return
        self.shown += 1
        click.echo(json.dumps(doc, ensure_ascii=False) if self._json else decode.line(doc))
        sys.stdout.flush()


def from_file(path: Path, about: Known, *, count: int | None, plane: int | None, as_json: bool) -> str:
    """Print what a file holds. Returns a sentence about it."""
    wire.bind(about.udp_port)
    out, read = Out(about, as_json=as_json, plane=plane), 0
    for packet, ns in stored(path):
        read += 1
        out.show(packet, ns)
        if out.shown == count:
            break
    return f"{out.shown} of {read} packets are MRC" + (f" of plane {plane}" if plane is not None else "")


def from_wire(
    about: Known,
    *,
    count: int | None,
    seconds: float | None,
    plane: int | None,
    as_json: bool,
    to: Path | None,
    keep: int | None,
) -> str:
    """Print, or write to a file, what passes, until `count`, the end of the time, or an interrupt.

    `keep`: bytes of each packet; None is all in a file, and what is shown otherwise. Raises UsageError, MachineError.
    """
    wire.bind(about.udp_port)
    if not about.interfaces:
        raise MachineError("no plane NIC is known", hint="mrcd must have run here; `mrcctl status` shows them")
    lost: list[int] = []
    out, end = Out(about, as_json=as_json, plane=None), time.monotonic() + seconds if seconds else None
    writer, taken = _writer(to), 0
    frames = live(about, plane, keep or (_SHOWN if to is None else _SNAPSHOT), lost.append)
    try:
        for arrival in itertools.chain([None], frames):
            if end is not None and time.monotonic() >= end:
                break
            if arrival is None:
                continue
            taken += 1
            if writer is None:
                out.show(Ether(arrival.data), arrival.ns, arrival)
            else:
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
        + (f"; {missed} more found no room" if missed else "")
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
