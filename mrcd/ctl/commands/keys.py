# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl keys` (status, rotate, generate). No command prints a secret or a key."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from mrcd.ctl.base import Commands, Options, colours, common, emit, terminal_width
from mrcd.ctl.client import Json
from mrcd.ctl.commands.config import default_file
from mrcd.ctl.documents.keys import key_lines, late, some, verdict
from mrcd.ctl.offline import read
from mrcd.ctl.options import wide_option
from mrcd.errors import MachineError, UsageError

DEFAULT = Path("/etc/mrcd/secrets")  # of [auth] secret_file
_POLL_S = 0.1


@click.group(cls=Commands, short_help="Show, change and make the secrets that authenticate packets.")
@common
def keys() -> None:
    """Show, change and make the secrets that authenticate packets."""


@keys.command(short_help="Show which secrets are in use.")
@wide_option
@common
@click.pass_obj
def status(options: Options, wide: bool) -> None:
    """Show the mode, this host's secrets by their ids, and with which of them it sends to each peer.

    The first line says whether all peers use the newest secret. UNTAGGED counts the peer's packets that were accepted
    without a tag, in mode permissive. CLOCK says whether the age of the peer's packets can be told.
    """
    document, source, _ = read(options, lambda daemon: daemon.get("/v1/keys"), lambda view: view.keys())
    emit(options, {"source": source} | document, key_lines, colour=colours(), width=terminal_width(wide))


@keys.command(short_help="Read the secrets file again, and wait until the newest secret is in use.")
@click.option(
    "--wait", type=click.FloatRange(0, 86_400), default=30.0, show_default=True, metavar="SECONDS",
    help="Wait at most so long for the peers.",
)  # fmt: skip
@common
@click.pass_obj
def rotate(options: Options, wait: float) -> None:
    """Have mrcd read its files again, and wait until it sends to each reachable peer with the newest secret.

    A peer gets packets under a secret only when it accepts it: run this on every host that has the new file, in any
    order. Like `mrcctl reload`, it applies changes of the cluster file, too. Exit status 2 if some peers do not have
    the new secret yet; mrcd goes on without this command.
    """
    said = options.client.post("/v1/reload", {})["message"]
    deadline = options.monotonic_s() + wait
    shown: list[str] | None = None
    while True:
        document = options.client.get("/v1/keys")
        if document["mode"] == "off":
            raise UsageError("packets are not authenticated: [auth] mode is off", hint='set it to "permissive" first')
        waiting = late(document)
        if not waiting:
            emit(options, document | {"message": f"{said}; {verdict(document)}"}, lambda d: [d["message"]])
            return
        if options.monotonic_s() >= deadline:
            raise MachineError(
                f"{said}; after {wait:g} s secret {document['newest']} is not in use to {', '.join(waiting)}",
                hint="put the new file there (keys generate --pairs: its own), and run `mrcctl keys rotate` there; "
                "mrcd here goes on by itself",
            )
        if waiting != shown:
            whom = f"{len(waiting)} of {len(document['peers'])} peers"
            click.echo(f"mrcctl: waiting for {whom} to have secret {document['newest']}: {some(waiting)}", err=True)
            shown = waiting
        options.clock.sleep(_POLL_S)


@keys.command(short_help="Make a secrets file.")
@click.option("--add", is_flag=True, help="Append a new secret to an existing file, and drop the older of two.")
@click.option(
    "--pairs", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
    help="Write a file per host of the cluster file, with a secret for each pair.",
)  # fmt: skip
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@common
@click.pass_obj
def generate(options: Options, file: Path | None, add: bool, pairs: Path | None) -> None:
    """Write a new secrets file (mode 0600). Copy it to all hosts of the cluster.

    FILE defaults to [auth] secret_file of mrcd's cluster file, or to /etc/mrcd/secrets if there is no cluster file.

    With --pairs each pair of hosts has a secret of its own. Copy DIRECTORY/HOST to each host, and keep DIRECTORY on
    none of them. --add appends to the files in DIRECTORY. --add FILE writes new files that keep FILE's newest secret.
    """
    from mrcd.auth import secrets_file  # numpy

    if pairs is not None:
        _generate_pairs(options, pairs, file, add)
        return
    path = file or _default()
    if add:
        held = secrets_file.read(path)
        made = [held[-1], secrets_file.new(held[-1].key_id % 255 + 1)]
    else:
        made = [secrets_file.new(1)]
    try:
        secrets_file.write(path, made, replace=add)
    except FileExistsError:
        raise UsageError(f"{path} exists; nothing was changed", hint="--add appends a new secret") from None
    except OSError as e:
        raise MachineError(f"{path}: {e.strerror}", hint="run mrcctl as root, or name another FILE") from None
    ids = [s.key_id for s in made]
    document: Json = {"file": str(path), "ids": ids, "message": f"{path} holds {_named(ids)}"}
    emit(options, document, lambda d: [f"{d['message']}; copy it to all hosts, then `mrcctl keys rotate` on each"])


def _generate_pairs(options: Options, directory: Path, file: Path | None, add: bool) -> None:
    """Write a secrets file per host. Raises UsageError or MachineError."""
    from mrcd.auth import pair_files, secrets_file  # numpy
    from mrcd.config import cluster_file  # pydantic

    if file and not add:
        hint = "`mrcctl keys generate --pairs DIRECTORY --add FILE`"
        raise UsageError("--pairs takes a FILE only with --add", hint=hint)
    hosts = {h.name: h.id for h in cluster_file.load(default_file()).hosts}
    try:
        kept = secrets_file.read(file) if file else ()
        ids = pair_files.generate(directory, hosts, add=add and not file, cluster=kept)
    except OSError as e:
        raise MachineError(f"{e.filename or directory}: {e.strerror}", hint="name another DIRECTORY") from None
    message = f"{len(hosts)} files in {directory} hold {_named(ids)}"
    document: Json = {"directory": str(directory), "hosts": list(hosts), "ids": ids, "message": message}
    emit(options, document, lambda d: [f"{d['message']}; copy each to its host, then `mrcctl keys rotate` on each"])


def _named(ids: Sequence[int]) -> str:
    return f"secret {ids[0]}" if len(ids) == 1 else f"secrets {ids[0]} and {ids[1]}"


def _default() -> Path:
    """Return the secrets file that mrcd's cluster file names. Raises UsageError if systemd has it."""
    from mrcd.auth import secrets_file
    from mrcd.config import cluster_file  # pydantic

    config = default_file()
    if not config.exists():
        return DEFAULT
    name = cluster_file.load(config).auth.secret_file
    if not Path(name).is_absolute() and "CREDENTIALS_DIRECTORY" not in os.environ:
        raise UsageError(
            f"{config}: [auth] secret_file {name!r} is a systemd credential, not a path",
            hint="name the file that LoadCredential= reads: `mrcctl keys generate FILE`",
        )
    return secrets_file.path_of(name)
