# SPDX-License-Identifier: BSD-2-Clause
"""Renders the document of `mrcctl version`."""

from mrcd.ctl.terminal.render import Document, text


def version_lines(doc: Document) -> list[str]:
    """Return the versions of mrcctl and mrcd, and a remedy if they differ."""
    ctl_line = (
        f"mrcctl {doc['mrcctl']} (ABI {doc['abi_version']}, wire {doc['wire_version']}, schema {doc['schema_version']})"
    )
    daemon = doc.get("daemon")
    if not daemon:
        return [ctl_line, f"mrcd not known: {doc['error']}" if doc.get("error") else "mrcd not running"]
    daemon_line = (
        f"mrcd {text(daemon.get('version'))} (ABI {text(daemon.get('abi_version'))}, "
        f"wire {text(daemon.get('wire_version'))}, schema {text(daemon.get('schema_version'))})"
    )
    differ = daemon.get("version") != doc["mrcctl"]
    remedy = ["the versions differ: `systemctl restart mrcd` runs the installed version"] * differ
    return [ctl_line, daemon_line, *remedy]
