# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl keys` (status, rotate, generate). No command prints a secret or a key."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from mrcd.ctl.base import Commands, Options, command, common, emit, show
from mrcd.ctl.client import LOAD_S, Json
from mrcd.ctl.commands.config import default_file
from mrcd.ctl.documents import read
from mrcd.ctl.options import wait_option, wide_option
from mrcd.ctl.phrases import some
from mrcd.ctl.terminal.render import Document, count, field, table_of
from mrcd.errors import MachineError, UsageError

DEFAULT = Path("/etc/mrcd/secrets")  # of [auth] secret_file
_POLL_S = 0.1


def late(document: Document) -> list[str]:
    """Return the reachable peers that do not accept the newest secret, or to which this host does not send with it."""
    newest = document["newest"]
    return [
        str(p["peer"])
        for p in document["peers"]
        if p["reachable"] and (p["sent_with"] != newest or newest not in p["accepted_by_peer"])
    ]


def verdict(document: Document) -> str:
    """Return in one line whether all peers use the newest secret, and which peers do not."""
    peers = document["peers"]
    if document["mode"] == "off":
        return "packets are not authenticated: [auth] mode is off"
    if not peers:
        return "this host has no peers"
    parts = [_use(document)]
    gone = [str(p["peer"]) for p in peers if not p["reachable"]]
    if gone:
        parts.append(f"unreachable: {some(gone)}")
    untagged = [str(p["peer"]) for p in peers if p["untagged_packets"]]
    if untagged and document["mode"] == "permissive":
        parts.append(f"packets without a tag were accepted from {some(untagged)}")
    return "; ".join(parts)


def _use(document: Document) -> str:
    peers, newest = [p for p in document["peers"] if p["reachable"]], document["newest"]
    if not peers:
        return "no peer is reachable"
    if newest is None:  # only mrcd knows which secret is the newest
        return _by_secret(peers)
    waiting = late(document)
    if waiting:
        return f"{len(waiting)} of {len(peers)} reachable peers without secret {newest}: {some(waiting)}"
    if len(peers) == 1:
        return f"{peers[0]['peer']} uses secret {newest}"
    which = "reachable peers" if len(peers) < len(document["peers"]) else "peers"
    return f"all {len(peers)} {which} use secret {newest}"


def _by_secret(peers: Sequence[Document]) -> str:
    used = sorted({p["sent_with"] or 0 for p in peers})
    parts = []
    for key_id in used:
        found = sum((p["sent_with"] or 0) == key_id for p in peers)
        parts.append(f"{found} of {len(peers)} peers " + (f"use secret {key_id}" if key_id else "use no secret"))
    return ", ".join(parts)


def key_lines(document: Document, *, colour: bool = False, width: int | None = None) -> list[str]:
    """Return a verdict, the mode and this host's secrets, and a line per peer.

    Where this host has not all of its secrets for all peers, each line says which ones it has.
    """
    accepted, newest = document["accepted"], document["newest"]
    differ = any(set(p.get("accepted_from_peer", accepted)) != set(accepted) for p in document["peers"])
    fields = (
        field("PEER", "peer"),
        field("STATUS", lambda p: "reachable" if p["reachable"] else "unreachable"),
        field("SENT WITH", "sent_with", right=True),
        *([field("ACCEPTED", "accepted_from_peer")] if differ else []),
        field("PEER ACCEPTS", "accepted_by_peer", rank=1),
        field("UNTAGGED pkts", "untagged_packets", count, rank=2),
        field("CLOCK", lambda p: "known" if p["clock_known"] else "unknown", rank=3),
    )
    secrets = " and ".join(map(str, accepted)) or "none"
    if len(accepted) > 1 and newest is not None:
        secrets += f"; {newest} is the newest"
    head = [verdict(document), "", f"mode        {document['mode']}", f"secrets     {secrets}"]
    rows = table_of(fields, document["peers"], colour=colour, width=width)
    return [*head, "", *rows] if document["peers"] else head


@click.group(cls=Commands, short_help="Show, change and make the secrets that authenticate packets.")
@common
def keys() -> None:
    """Show, change and make the secrets that authenticate packets."""


@command("Show which secrets are in use.", group=keys)
@wide_option
def status(options: Options, wide: bool) -> None:
    """Show the mode, this host's secrets by their ids, and with which of them it sends to each peer.

    The first line says whether all peers use the newest secret. UNTAGGED counts the peer's packets that were accepted
    without a tag, in mode permissive. CLOCK says whether the age of the peer's packets can be told.
    """
    document, source, _ = read(options, "keys")
    show(options, {"source": source} | document, key_lines, wide)


@command("Read the secrets file again, and wait until the newest secret is in use.", group=keys)
@wait_option(30.0, "the peers")
def rotate(options: Options, wait: float) -> None:
    """Have mrcd read its files again, and wait until it sends to each reachable peer with the newest secret.

    A peer gets packets under a secret only when it accepts it: run this on every host that has the new file, in any
    order. Like `mrcctl reload`, it applies changes of the cluster file, too. Exit status 2 if some peers do not have
    the new secret yet; mrcd goes on without this command.
    """
    said = options.client.post("/v1/reload", {}, LOAD_S)["message"]
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


@command("Make a secrets file.", group=keys)
@click.option("--add", is_flag=True, help="Append a new secret to an existing file, and drop the older of two.")
@click.option(
    "--pairs", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY",
    help="Write a file per host of the cluster file, with a secret for each pair.",
)  # fmt: skip
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
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
