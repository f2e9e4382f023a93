# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl fleet links`, which asks Prometheus and needs no mrcd on its host."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mrcd.ctl.base import Options, command, show
from mrcd.ctl.options import prometheus_options, wide_option
from mrcd.ctl.phrases import some
from mrcd.ctl.terminal.render import Document, Field, count, duration, field, fold, table_of

if TYPE_CHECKING:
    from mrcd.prometheus import Prometheus

_SHOWN_HOSTS = 4
_WAYS = {"up": "up", "down": "down", "both": "up and down"}
_FIELDS: tuple[Field, ...] = (
    field("TARGET", "target"),
    field("LOSES", lambda link: _WAYS[link["direction"]]),
    field("LOSS %", lambda link: f"{100 * link['loss_ratio']:.3g}", right=True, rank=1),
    field("LOST", "lost_packets", count, rank=5),
    field("SURE %", lambda link: f"{100 * link['confidence']:.0f}", right=True, rank=4),
    field("SINCE", lambda link: _since(link["since_s"]), right=True, rank=2),
    field("SEEN BY", lambda link: _hosts(link["hosts"], link["host_count"]), rank=3),
)
_LEAST_WINDOW_S = 2.0  # Prometheus answers with 11,000 windows at most: so many has its history


def links_lines(doc: Document, *, colour: bool, width: int | None) -> list[str]:
    """Return the verdict, and a table of the parts that lose packets."""
    links = doc["links"]
    lost = count(doc["lost_packets"])
    asked = f"{count(doc['packets'])} packets of {doc['hosts']} hosts in {doc['window_s']:g} s, {lost} lost"
    if not links:
        return fold(f"no link, NIC or switch loses packets: {asked}", width) + _differing(doc, width)
    parts = "1 part of the fabric loses" if len(links) == 1 else f"{len(links)} parts of the fabric lose"
    lines = fold(f"{parts} packets: {asked}", width) + _differing(doc, width)
    lines += table_of(_FIELDS, links, colour=colour, width=width)
    for link in links:
        if link["planes"][1:]:
            lines += fold(f"{link['target']} is one switch of the planes {', '.join(map(str, link['planes']))}", width)
        if link["or_targets"]:
            lines += fold(f"{link['target']} cannot be told from {' or '.join(link['or_targets'])}", width)
    if not doc["differing"]:
        lines += fold(
            f"Do: `mrcctl drain {links[0]['target']}` on a host that sees it, then replace the cable or port", width
        )
    return lines


def _differing(doc: Document, width: int | None) -> list[str]:
    hosts = doc["differing"]
    if not hosts:
        return []
    doubt = "" if doc["differing_is_sure"] else "perhaps " if len(hosts) == 1 else "some of "
    return fold(
        "Hosts refuse each other's packets, which count as lost. Other secrets or another cluster file than most: "
        f"{doubt}{some(hosts, _SHOWN_HOSTS)}. Mend that first: see `mrcctl status` there",
        width,
    )


def _since(seconds: float | None) -> str:
    return duration(seconds) if seconds is not None else "over 6 h"


def _hosts(names: Sequence[str], count: int) -> str:
    return some([*names, *[""] * (count - len(names))], _SHOWN_HOSTS)


@command("Name the links, NICs and switches that lose packets, from all hosts' counts.")
@prometheus_options
@click.option(
    "--window",
    type=click.FloatRange(min=_LEAST_WINDOW_S, max=86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Take the counts of so long; at least four scrapes.",
)
@wide_option
def links(options: Options, /, server: "Prometheus", window: float, wide: bool) -> None:
    """Name the links, NICs and switches of the fabric that lose packets, by what all hosts have sent and lost.

    Prometheus has to scrape /metrics/fabric of all hosts. LOSS % is the least loss ratio: hosts leave lossy paths, and
    what they would have sent there is not known. SURE % is the probability that it is this part and no other. LOSES
    says in which direction: up is host → T0 → T1, down is T1 → T0 → host.

    Exit status 0 if no part loses packets, 1 if some do or for wrong usage, 2 if that cannot be told. --timeout is for
    each question.
    """
    from mrcd.fleet_links.document import localised

    document = localised(server, window)
    show(options, document, links_lines, wide)
    sys.exit(1 if document["links"] else 0)
