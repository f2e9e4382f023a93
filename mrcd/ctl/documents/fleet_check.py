# SPDX-License-Identifier: BSD-2-Clause
"""Renders the verdict of `mrcctl fleet check`."""

from mrcd.ctl.terminal.render import Document, duration, fold

_HEADS = {"ready": "READY", "degraded": "READY, degraded", "not_ready": "NOT READY"}
_COLOURS = {"ready": "32", "degraded": "33", "not_ready": "31"}
_BRIEFS = 3  # findings in the first line
_SHOWN = 20


def check_lines(doc: Document, *, colour: bool, width: int | None) -> list[str]:
    """Return the verdict with its reasons in one line, then each finding and what to do."""
    findings, word = doc["findings"], doc["verdict"]
    briefs = [f["brief"] for f in findings if f["level"] == word]
    more = f", and {len(briefs) - _BRIEFS} more" if len(briefs) > _BRIEFS else ""
    sweep = f", last full sweep {duration(doc['sweep_age_s'])} ago" if doc["sweep_age_s"] is not None else ""
    hosts = "1 host" if doc["hosts"] == 1 else f"{doc['hosts']} hosts"
    said = ", ".join(briefs[:_BRIEFS]) + more if briefs else hosts + sweep
    head, *rest = fold(f"{_HEADS[word]}: {said}", width)
    if colour:
        length = len(_HEADS[word])
        head = f"\033[{_COLOURS[word]}m{head[:length]}\033[0m{head[length:]}"
    lines = [head, *rest]
    for finding in findings[:_SHOWN]:
        lines += _indented(finding["sentence"], "  ", width) + _indented(f"Do: {finding['do']}", "    ", width)
    if len(findings) > _SHOWN:
        lines += fold(f"and {len(findings) - _SHOWN} more: --json has all", width)
    return lines


def _indented(text: str, indent: str, width: int | None) -> list[str]:
    return [indent + line for line in fold(text, None if width is None else width - len(indent))]
