# SPDX-License-Identifier: BSD-2-Clause
"""Renders what `mrcctl fleet links` finds."""

from mrcd.ctl.terminal.render import Column, Document, count, duration, fold, table

_SHOWN_HOSTS = 4
_COLUMNS = (
    Column("TARGET"),
    Column("LOSES"),
    Column("LOSS %", right=True, rank=1),
    Column("LOST", right=True, rank=5),
    Column("SURE %", right=True, rank=4),
    Column("SINCE", right=True, rank=2),
    Column("SEEN BY", rank=3),
)
_WAYS = {"up": "up", "down": "down", "both": "up and down"}


def links_lines(doc: Document, *, colour: bool, width: int | None) -> list[str]:
    """Return the verdict, and a table of the parts that lose packets."""
    links = doc["links"]
    lost = count(doc["lost_packets"])
    asked = f"{count(doc['packets'])} packets of {doc['hosts']} hosts in {doc['window_s']:g} s, {lost} lost"
    if not links:
        return fold(f"no link, NIC or switch loses packets: {asked}", width) + _differing(doc, width)
    parts = "1 part of the fabric loses" if len(links) == 1 else f"{len(links)} parts of the fabric lose"
    lines = fold(f"{parts} packets: {asked}", width) + _differing(doc, width)
    lines += table(_COLUMNS, [_row(link) for link in links], colour=colour, width=width)
    for link in links:
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
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    some = "" if doc["differing_is_sure"] else "perhaps " if len(hosts) == 1 else "some of "
    return fold(
        "Hosts refuse each other's packets, which count as lost. Other secrets or another cluster file than most: "
        f"{some}{', '.join(hosts[:_SHOWN_HOSTS])}{more}. Mend that first: see `mrcctl status` there",
        width,
    )


def _row(link: Document) -> list[str]:
    hosts = ", ".join(link["hosts"][:_SHOWN_HOSTS])
    more = link["host_count"] - _SHOWN_HOSTS
    return [
        link["target"],
        _WAYS[link["direction"]],
        f"{100 * link['loss_ratio']:.3g}",
        count(link["lost_packets"]),
        f"{100 * link['confidence']:.0f}",
        duration(link["since_s"]) if link["since_s"] is not None else "over 6 h",
        hosts + (f" and {more} more" if more > 0 else ""),
    ]
