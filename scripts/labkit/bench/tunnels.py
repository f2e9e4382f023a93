# SPDX-License-Identifier: BSD-2-Clause
"""Measures goodput through VXLAN over mrc0, and beside it the same VXLAN over a plain route, host to host, alternately.

Two VXLAN networks of the same MTU: one ends at the addresses that mrcd serves, the other at addresses on
plane 0. Both are without UDP checksums (RFC 7348, RFC 6935): with them, the default, mrcd has bursts cut
at mrc0. A round measures one right after the other; every second round has the other order; the receive
settings are the same. "whole": the NICs (veth) take the bursts that TCP passes to the VXLAN device. "cut": they offer
no tunnel segmentation, and the kernel cuts each burst into wire packets.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from labkit.bench import candidates, cells, receive_settings
from labkit.bench.candidates import MRCD, PLAIN, Candidate
from labkit.bench.part import Options, Part, requirement
from labkit.bench.run import run
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.traffic.flow import Ends
from mrcd.ctl.terminal.render import Column, percent, table
from mrcd.net.drivers import TUNNELS as TUNNEL_OFFLOADS
from mrcd.net.netlink import set_offload

ROUNDS = 8
SECONDS = 1.0
LEAST = 0.9  # least ratio of the goodput to that over the plain route
_MTU = 1500  # of the links
_HEADERS = {4: 20 + 8 + 8 + 14, 6: 40 + 8 + 8 + 14}  # of VXLAN: IP, UDP, VXLAN, inner Ethernet
_NO_CHECKSUMS = "noudpcsum udp6zerocsumtx udp6zerocsumrx"
_NUMBERS = {MRCD: 1, PLAIN: 2}
_LOAD = cells.LOADS[0]
WHOLE, CUT = "whole", "cut"


def measure(lab: Lab, options: Options) -> Document:
    """Runs one lab: over IPv4 and IPv6, with NICs that leave bursts whole and with NICs that have them cut."""
    lab.up(direct=True, mtu=_MTU)
    observe.wait_until_good(lab, lab.fabric.hosts)
    options = replace(options, seconds=options.seconds or SECONDS)
    found = []
    for version in options.versions:
        with _tunnels(lab, version) as ways:
            found.append(_cell(lab, version, WHOLE, ways, options))
            with _cutting(lab):
                found.append(_cell(lab, version, CUT, ways, options))
    return {
        "seconds": options.seconds,
        "mtu_bytes": _MTU,
        "cells": found,
        "requirements": [r for c in found for r in requirements(c)],
    }


def _cell(lab: Lab, version: int, nics: str, ways: list[Candidate], options: Options) -> Document:
    runs: dict[str, list[Document]] = {c.name: [] for c in ways}
    before = _drops(lab)
    for number in range(options.pairs or ROUNDS):
        for c in ways if number % 2 == 0 else reversed(ways):
            with receive_settings.in_force(lab, c.name, receive_settings.EQUAL):
                runs[c.name].append(run(lab, c, _LOAD, options))
        rates = ", ".join(f"{name} {r[-1]['bits_per_s'] / 1e9:.2f}" for name, r in runs.items())
        progress(f"tunnels: IPv{version}, {nics}, round {number + 1}: {rates} Gbit/s")
    drops = {reason: n - before.get(reason, 0) for reason, n in _drops(lab).items() if n > before.get(reason, 0)}
    return {
        "version": version,
        "nics": nics,
        "candidates": [
            {
                "name": c.name,
                "what": c.words,
                "median_bits_per_s": median(r["bits_per_s"] for r in runs[c.name]),
                "median_cpu_s_per_gbit": median(r["cpu_s_per_gbit"] or 0.0 for r in runs[c.name]),
                "runs": runs[c.name],
            }
            for c in ways
        ],
        "ratio": cells.compared(PLAIN, runs[MRCD], runs[PLAIN]),
        "drops": drops,
    }


def requirements(cell: Document) -> list[Document]:
    """Returns the requirements of a cell. Pure."""
    name, goodput = _name(cell), cell["ratio"]["goodput"]
    met = goodput["median"] is not None and goodput["median"] >= LEAST
    return [
        requirement(f"{name}: mrcd / plain, goodput, is at least {LEAST:g}", met, cells.said_of(goodput)),
        requirement(f"{name}: no packet is dropped", not cell["drops"], str(cell["drops"] or "none")),
    ]


@contextlib.contextmanager
def _tunnels(lab: Lab, version: int) -> Iterator[list[Candidate]]:
    """A block with both VXLAN networks between the two hosts."""
    below = {c.name: c for c in candidates.all_of(lab, version)}
    mtu = candidates.inner_mtu(lab) - _HEADERS[version]
    words = {MRCD: "VXLAN over mrc0: sprayed over all EVs", PLAIN: "VXLAN over plane 0, no encapsulation by mrcd"}
    with contextlib.ExitStack() as undo:
        found = []
        for name, number in _NUMBERS.items():
            below[name].install(lab)
            e = below[name].ends
            own, far = f"192.168.{70 + number}.1", f"192.168.{70 + number}.2"
            for host, here, there, address in (
                (e.source, e.source_address, e.target_address, own),
                (e.target, e.target_address, e.source_address, far),
            ):
                device = f"vxlan-{name}"
                kind = f"vxlan id {number} local {here} remote {there} dstport 4789 {_NO_CHECKSUMS}"
                lab.exec(host, f"ip link add {device} mtu {mtu} type {kind}".split(), check=True)
                undo.callback(lab.exec, host, ["ip", "link", "del", device])
                lab.exec(host, ["ip", "address", "add", f"{address}/24", "dev", device], check=True)
                lab.exec(host, ["ip", "link", "set", device, "up"], check=True)
            ends = Ends(e.source, own, e.target, far)
            found.append(Candidate(name, version, words[name], ends, sprayed=name == MRCD))
        yield found


@contextlib.contextmanager
def _cutting(lab: Lab) -> Iterator[None]:
    """A block in which the hosts' NICs offer no tunnel segmentation."""
    config = lab.fabric.config
    nics = [(h, name) for h in candidates.pair(lab) for name in config.interface_names(config.host(h))]

    def offer(on: bool) -> None:
        for host, name in nics:
            with lab.inside(host):
                set_offload(name, dict.fromkeys(TUNNEL_OFFLOADS, on))

    try:
        offer(False)
        yield
    finally:
        offer(True)


def _drops(lab: Lab) -> dict[str, int]:
    """Returns reason → packets that the programs of both hosts have dropped."""
    every = [observe.client(lab, host).get("/v1/status")["drops"] for host in candidates.pair(lab)]
    return {reason: sum(d.get(reason, 0) for d in every) for reason in {r for d in every for r in d}}


def _name(cell: Document) -> str:
    return f"VXLAN over IPv{cell['version']}, bursts {cell['nics']}"


def lines(document: Document) -> list[str]:
    """Returns a table of all cells."""
    headings = ("Gbit/s MEDIAN", "CPU s/Gbit", "CPU BUSY %", "RETRANS", "MSS")
    rows = [
        [
            _name(cell),
            c["name"],
            f"{c['median_bits_per_s'] / 1e9:.2f}",
            f"{c['median_cpu_s_per_gbit']:.4f}",
            percent(median(r["cpu_busy_ratio"] for r in c["runs"])),
            str(round(median(r["retransmitted_segments"] for r in c["runs"]))),
            str(c["runs"][0]["mss_bytes"]),
            c["what"],
        ]
        for cell in document["cells"]
        for c in cell["candidates"]
    ]
    first = Column("WHERE"), Column("CANDIDATE")
    return [
        f"VXLAN: goodput and CPU of one TCP flow through it, host to host, links of MTU {document['mtu_bytes']} bytes, "
        f"{document['seconds']:g} s per run, interleaved",
        "  whole: NICs (veth) that take tunnels' bursts; cut: the same without, the kernel cuts them",
        f"  {receive_settings.WORDS[receive_settings.EQUAL]}",
        *table([*first, *(Column(h, True) for h in headings), Column("WHAT")], rows, colour=False),
    ]


PART = Part("tunnels", measure, lines)
