"""`mrcctl bugreport`: everything that someone else needs to find out what is wrong, in one file."""

from pathlib import Path

import click

from mrcd.ctl.base import Options, common, emit
from mrcd.ctl.terminal.render import Document, count
from mrcd.errors import MachineError
from mrcd.versions import SCHEMA_VERSION


@click.command(short_help="All that is needed to find a fault, in one archive.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The archive; mrcd-bugreport-HOST-TIME.tar.gz here unless given.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="The cluster file, if not the usual one."
)
@common
@click.pass_obj
def bugreport(options: Options, output: Path | None, config: Path | None) -> None:
    """Gather status, paths, events, configuration, kernel, interfaces, sysctls, BPF and logs into one archive.

    Changes nothing and works while mrcd is down. Values of keys that are called key, password, secret,
    token and the like are removed; addresses, host names and MACs are not. manifest.json lists what is
    inside, how it was had, and what could not be had. --timeout holds for each command.
    """
    import os
    import socket
    import tarfile
    import time

    from mrcd.ctl.bug_report.collect import Report, gather

    name = f"mrcd-bugreport-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = output or Path(f"{name}.tar.gz")
    part = path.with_name(path.name + ".part")
    try:
        # Never readable by others: what is not called a secret may be one.
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
            f"{e.filename or path}: {e.strerror}", hint="name another place with --output FILE"
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


def _summary(document: Document) -> list[str]:
    lines = [
        f"{document['file']}: {document['files']} files, {count(document['bytes'])} bytes",
        f"  {document['secrets_removed']} secrets removed; host names, addresses and MACs are still in it",
    ]
    return lines + [f"  missing  {m}" for m in document["missing"]]
