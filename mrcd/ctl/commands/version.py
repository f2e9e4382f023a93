# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl version`."""

import mrcd
from mrcd.ctl.base import Options, command, emit
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.terminal.render import Document, text
from mrcd.errors import DaemonError
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION


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


@command()
def version(options: Options) -> None:
    """Print the versions of mrcctl and of the running mrcd.

    Exit status 2 if mrcd may be running but does not answer.
    """
    daemon = error = None
    try:
        daemon = options.client.get("/v1/version")
    except DaemonError as e:
        is_down = isinstance(e, DaemonDown) and e.pid is None
        error = None if is_down else e
    document = {
        "schema_version": SCHEMA_VERSION,
        "mrcctl": mrcd.__version__,
        "abi_version": ABI_VERSION,
        "wire_version": WIRE_VERSION,
        "daemon": daemon,
        "error": str(error.args[0]) if error else None,
    }
    emit(options, document, version_lines)
    if error:
        raise error
