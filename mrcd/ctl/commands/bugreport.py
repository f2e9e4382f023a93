# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl bugreport`, which writes one archive with everything needed to find a fault."""

from pathlib import Path

import click

from mrcd.ctl.base import Options, common, emit
from mrcd.ctl.terminal.render import Document, count
from mrcd.errors import MachineError
from mrcd.versions import SCHEMA_VERSION


@click.command(short_help="Write an archive with everything needed to find a fault.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The archive; default mrcd-bugreport-HOST-TIME.tar.gz.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The cluster file; default mrcd's.")
@common
@click.pass_obj
def bugreport(options: Options, output: Path | None, config: Path | None) -> None:
    """Write status, paths, events, configuration, kernel, interfaces, sysctls, BPF and logs into one archive.

    Changes nothing and works while mrcd is down. Values of keys named key, password, secret, token and the like are
    removed; addresses, host names and MACs are not. manifest.json lists each file, its source, and every file that
    is missing. --timeout applies to each command that is run. Exit status 2 if the user may not read mrcd's data.
    """
    import os
    import socket
    import tarfile
    import time

    from mrcd.ctl.bug_report.archive import Report
    from mrcd.ctl.bug_report.collect import gather

    name = f"mrcd-bugreport-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = output or Path(f"{name}.tar.gz")
    part = path.with_name(path.name + ".part")
    try:
        # For its owner only: a secret under another name is not removed.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                report = Report(archive, name)
                gather(options, report, config)
                report.close()
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as e:
        raise MachineError(
            f"{e.filename or path}: {e.strerror}", hint="choose another file with --output FILE"
        ) from None
    missing = [f"{m['wanted']}: {m['error']}" for m in report.manifest if m["file"] is None]
    document = {
        "schema_version": SCHEMA_VERSION,
        "file": str(path),
        "bytes": path.stat().st_size,
        "files": sum(m["file"] is not None for m in report.manifest),
        "secrets_removed": report.removed,
        "missing": missing,
    }
    emit(options, document, _summary)
    refused = next((m for m in missing if m.startswith("mrcd/status.json") and "ermission denied" in m), None)
    if refused:
        raise MachineError(f"the archive lacks mrcd's own data: {refused}", hint="run `mrcctl bugreport` as root")


def _summary(document: Document) -> list[str]:
    lines = [
        f"{document['file']}: {document['files']} files, {count(document['bytes'])} bytes",
        f"  {document['secrets_removed']} secrets removed; host names, addresses and MACs remain",
    ]
    return lines + [f"  missing  {m}" for m in document["missing"]]
