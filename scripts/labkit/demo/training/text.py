# SPDX-License-Identifier: BSD-2-Clause
"""Renders the document as tables. Pure; numbers are rounded here."""

from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.observe import Document
from labkit.demo import text
from labkit.demo.text import milliseconds
from labkit.demo.training.report import WAY_WORDS, longest_words, of
from mrcd.ctl.terminal.render import Column, table

_WAYS = (ATTACHED, DETACHED)


def summary(document: Document, *, colour: bool) -> list[str]:
    """Returns the measurements, and whether the requirement was met."""
    return [
        f"{document['ranks']} gloo ranks, one per host, MTU {document['lab']['mtu']}; a step is an all-reduce of "
        f"{document['step_bytes'] / 1e6:g} MB",
        *table(_columns(), _rows(document), colour=colour),
        "STEPS and MEDIAN: while the fault was there. LONGEST: until the next fault.",
        *(f"  {line}" for way in _WAYS for line in _ends(of(document, way))),
        "",
        *text.promises(document, colour),
    ]


def _columns() -> list[Column]:
    with_mrcd, kernel = (
        [Column(f"{way}{name}", True) for way, name in zip((way, "", ""), ("STEPS", "MEDIAN", "LONGEST"), strict=True)]
        for way in ("MRCD: ", "KERNEL: ")
    )
    return [Column("FAULT"), Column("TARGET"), *with_mrcd, *kernel]


def _rows(document: Document) -> list[list[str]]:
    ways = [of(document, way) for way in _WAYS]
    without = [w["without_a_fault"] for w in ways]
    rows = [["none", "", *(cell for c in without for cell in _cells(c, milliseconds(c["longest_ms"])))]]
    for both in zip(*(w["faults"] for w in ways), strict=True):
        cells = [cell for f in both for cell in _cells(f, longest_words(f))]
        rows.append([both[0]["what"], both[0]["target"], *cells])
    return rows


def _cells(measured: Document, longest: str) -> list[str]:
    return [str(measured["steps"]), milliseconds(measured["median_ms"]), longest]


def _ends(way: Document) -> list[str]:
    return [f"{WAY_WORDS[way['way']]}, {f['what']}: {f['ended']}" for f in way["faults"] if f["ended"]]
