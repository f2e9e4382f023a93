# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl keys` (status, rotate, generate). No command prints a secret."""

import os
import time
from pathlib import Path

import click

from mrcd.ctl.base import Options, colours, common, emit, terminal_width
from mrcd.ctl.client import Json
from mrcd.ctl.documents.keys import behind, key_lines
from mrcd.ctl.offline import read
from mrcd.ctl.options import wide_option
from mrcd.errors import MachineError, UsageError

DEFAULT = "/etc/mrcd/secrets"
_POLL_S = 0.1


@click.group(short_help="Show, change and make the secrets that authenticate packets.")
def keys() -> None:
    """Show, change and make the secrets that authenticate packets."""


@keys.command(short_help="Show which secrets are in use.")
@wide_option
@common
@click.pass_obj
def status(options: Options, wide: bool) -> None:
    """Show the mode, and with which secret this host sends to each peer.

    UNTAGGED counts the peer's packets that were accepted without a tag, in mode permissive.
    """
    document, _ = read(options, lambda daemon: daemon.get("/v1/keys"), lambda view: view.keys())
    emit(options, document, key_lines, colour=colours(), width=terminal_width(wide))


@keys.command(short_help="Read the secrets file again, and wait until the newest secret is in use.")
@click.option(
    "--wait", type=click.FloatRange(0, 86_400), default=30.0, show_default=True, metavar="SECONDS",
    help="Wait so long for the peers.",
)  # fmt: skip
@common
@click.pass_obj
def rotate(options: Options, wait: float) -> None:
    """Have mrcd read the secrets file again, and wait until it sends to each reachable peer with the newest secret.

    A peer gets packets under a secret only when it accepts it: run this on every host that has the new file, in any
    order. Exit code 2 if some peers do not have it yet; mrcd goes on without this command.
    """
    said = options.client.post("/v1/reload", {})
    deadline = time.monotonic() + wait
    shown = -1
    while True:
        document = options.client.get("/v1/keys")
        if not document["accepted"]:
            raise UsageError("packets are not authenticated: [auth] mode is off", hint="see docs/security.md")
        newest = document["newest"]
        reachable = {p["peer"] for p in options.client.get("/v1/peers") if p["reachable"]}
        left = [name for name in behind(document, newest) if name in reachable]
        if not left:
            message = f"{said['message']}; secret {newest} is in use to all {len(reachable)} reachable peers"
            emit(options, document | {"message": message}, lambda d: [d["message"]])
            return
        if len(left) != shown:
            shown = len(left)
            click.echo(f"mrcctl: {len(reachable) - shown} of {len(reachable)} peers use secret {newest}", err=True)
        if time.monotonic() > deadline:
            some = ", ".join(left[:5]) + (", …" if len(left) > 5 else "")
            raise MachineError(
                f"{some}: not yet with secret {newest} after {wait:g} s",
                hint="put the new file there and run `mrcctl keys rotate`; `mrcctl keys status` shows who has it",
            )
        time.sleep(_POLL_S)


@keys.command(short_help="Make a secrets file.")
@click.option("--add", is_flag=True, help="Append a new secret to an existing file, and drop the older of two.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=DEFAULT)
@common
@click.pass_obj
def generate(options: Options, file: Path, add: bool) -> None:
    """Write a new secrets file (mode 0600), /etc/mrcd/secrets unless given. Copy it to all hosts of the cluster."""
    from mrcd.auth import secrets_file  # numpy

    if add:
        held = secrets_file.read(file)
        made = [held[-1], secrets_file.new(held[-1].key_id % 255 + 1)]
    elif os.path.lexists(file):
        raise UsageError(f"{file} exists; nothing was changed", hint="--add appends a new secret")
    else:
        made = [secrets_file.new(1)]
    try:
        secrets_file.write(file, made)
    except OSError as e:
        raise MachineError(f"{e.filename or file}: {e.strerror}") from None
    ids = [s.key_id for s in made]
    document: Json = {"file": str(file), "ids": ids, "message": f"{file} holds secret {' and '.join(map(str, ids))}"}
    emit(options, document, lambda d: [f"{d['message']}; copy it to all hosts, then `mrcctl keys rotate` on each"])
