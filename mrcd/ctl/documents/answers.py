# SPDX-License-Identifier: BSD-2-Clause
"""Renders the answers to commands: POST /v1/deny, POST /v1/allow and `mrcctl config check`."""

from mrcd.ctl.documents.parts import location
from mrcd.ctl.terminal.render import Document, text

_PATHS_SHOWN = 16  # of the paths that a deny or an allow changed


def changed_lines(doc: Document) -> list[str]:
    """Return the message of a deny or an allow, and the paths that it changed."""
    shown = list(doc.get("paths") or [])[:_PATHS_SHOWN]
    lines = [text(doc.get("message")), *(f"  {location(p)}" for p in shown)]
    if len(doc.get("paths") or []) > len(shown):
        lines.append(f"  and {len(doc['paths']) - len(shown)} more (all with --json)")
    return lines


def _stands_in(doc: Document) -> str:
    return f" (the file has no host {doc['machine']}, as this machine is called)" if doc["machine"] else ""


def plan_lines(doc: Document) -> list[str]:
    """Return the summary of `config check`."""
    low, high = doc["evs"]["min"], doc["evs"]["max"]
    evs = text(low) if low == high else f"{low} to {high}"
    pairs = [
        ("cluster", f"{doc['cluster']}: {doc['hosts']} hosts, {doc['planes']} planes"),
        ("fabric", f"in each plane {doc['t0s']} T0s, {doc['t1s']} T1s"),
        ("paths", f"{evs} EVs per peer (at most {doc['evs_per_peer']})"),
        ("data plane", f"encapsulation {doc['encapsulation']}, granularity {doc['granularity']}"),
        ("MTU", f"planes {doc['mtu']}, inner {doc['inner_mtu']} bytes"),
        ("seen from", f"{doc['host']}: {', '.join(doc['interfaces'])}{_stands_in(doc)}"),
    ]
    return [f"{doc['file']}: valid", *(f"  {name:<12}{value}" for name, value in pairs)]
