# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl fabric` (plan, config, check). These commands need no daemon, and no host of the cluster."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import Commands, F, Options, command, common, emit, show
from mrcd.ctl.commands.config import default_file
from mrcd.ctl.terminal.render import Document, facts, field, fold, percent, table_of
from mrcd.errors import MachineError, UsageError

FORMATS = ("sonic", "frr", "cumulus", "eos", "iproute2")
DEFAULT_EVS = 100_000
_file = click.argument("file", type=click.Path(path_type=Path), required=False)
_format = click.option(
    "--format", "format_", type=click.Choice(FORMATS), required=True, help="The system that runs on the switches."
)
_PARTS = {
    "nic": "NIC ports of one host",
    "t0": "T0s of one host",
    "t1": "T1s",
    "link": "links of a T0 to T1s",
    "plane": "planes",
}
_FILES = {"cluster file": "output", "cables": "cables_file"}


@click.group(cls=Commands, short_help="Plan a fabric, and configure its switches.")
@common
def fabric() -> None:
    """Plan a fabric, and configure its switches. Works without mrcd, on any machine."""


def _number(name: str, help: str, default: int | None = None, metavar: str = "N") -> Callable[[F], F]:
    return click.option(name, type=int, default=default, show_default=default is not None, metavar=metavar, help=help)


@command("Plan a fabric: switches, cables, uSIDs, and what failures leave.", group=fabric)
@click.option("--hosts", type=int, required=True, metavar="N", help="Hosts; each has a port in every plane.")
@_number("--planes", "Parallel fabrics.", 4)
@_number("--rails", "Cards of a host that share T1s: each has planes / rails ports.", 1)
@_number("--radix", "Ports of a switch.", 64)
@_number("--evs", "EVs per peer, at most.", 256)
@_number("--hosts-per-t0", "Hosts under a T0; default: half of its ports, evenly filled.")
@_number("--t1s", "T1s in a plane; default: as many as a T0 has hosts.")
@_number("--mtu", "MTU of the planes.", 9100, "BYTES")
@click.option("--name", default="mrc", show_default=True, help="Name of the cluster.")
@click.option("--host-name", default="gpu", show_default=True, metavar="NAME", help="Hosts are NAME and a number.")
@click.option(
    "--prefix",
    "prefixes",
    multiple=True,
    metavar="PREFIX",
    help="Overlay prefix of the first host; the others have the next ones; repeatable.  "
    "[default: 10.64.0.1/32, fd00:99::1/128]",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the cluster file there.")
@click.option("--cables", type=click.Path(dir_okay=False, path_type=Path), help="Write a CSV file of all cables there.")
def plan(
    options: Options, /, prefixes: tuple[str, ...], evs: int, output: Path | None, cables: Path | None, **sizes: Any
) -> None:
    """Plan a fabric of two tiers in each plane: its switches, cables and uSIDs, and what failures leave.

    A fabric that cannot be wired is refused with all reasons.
    """
    from mrcd.ctl.commands import fabric_documents as documents

    wanted = documents.wanted(prefixes, evs_per_peer=evs, **sizes)
    show(options, documents.planned(wanted, output, cables), plan_lines)


@command("Print the configuration of switches.", group=fabric)
@_file
@_format
@click.option("--switch", metavar="NAME", help="Print only this switch: t0-PLANE-NUMBER or t1-PLANE-NUMBER.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write a file for each switch (or for that of --switch) there.",
)
def config(options: Options, file: Path | None, format_: str, switch: str | None, output: Path | None) -> None:
    """Print the configuration of a switch, or write those of all switches into a directory.

    It is made from the cluster file: the uSID, per port the address, MTU and routes, and at T0s a filter that forwards
    from each host its own plane address only. FILE defaults to mrcd's cluster file.
    """
    from mrcd.ctl.commands import fabric_documents as documents

    if switch is None and output is None:
        raise UsageError(
            "a cluster has many switches: name one, or a directory",
            hint="--switch t0-0-0 prints one; --output DIRECTORY writes a file for each",
        )
    try:
        document = documents.configured(file or default_file(), format_, switch, output)
    except OSError as e:
        raise MachineError(f"{e.filename or output}: {e.strerror}", hint="name another --output DIRECTORY") from None
    emit(options, document, written_lines)


@command("Check the configurations of all switches, or what they run.", group=fabric)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_file
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="The system that runs on the switches. With --running: the system by which their ports are called, if that "
    "is another than the report's.",
)
@click.option("--running", is_flag=True, help="DIRECTORY has what the switches report that they run.")
@click.option(
    "--evs",
    type=click.IntRange(min=1),
    default=DEFAULT_EVS,
    show_default=True,
    metavar="N",
    help="Follow about N EVs, between random hosts.",
)
def check(options: Options, directory: Path, file: Path | None, format_: str | None, running: bool, evs: int) -> None:
    """Check the configurations in DIRECTORY, as `mrcctl fabric config --output` writes them, against the cluster file.

    With --running, check what the switches run now: DIRECTORY has a file per switch, called as the switch
    (t0-0-2.json), with the output of `vtysh -c "show ipv6 route json"`, `sonic-cfggen -d --print-data` or `ip -6 -j
    route show table all`. SIDs and routes that are missing, different or unexpected are named.

    Follows EVs from host to host through what the files say, and names all mistakes. Exit status 1 if there are any.
    FILE defaults to mrcd's cluster file.
    """
    from mrcd.ctl.commands import fabric_documents as documents

    try:
        if running:
            document = documents.checked_running(file or default_file(), format_, directory, evs)
        elif format_ is None:
            raise UsageError("--format is missing", hint="name the system: --format frr; or check with --running")
        else:
            document = documents.checked(file or default_file(), format_, directory, evs)
    except OSError as e:
        hint = None if running else "DIRECTORY must be that of `mrcctl fabric config --output`"
        raise MachineError(f"{e.filename or directory}: {e.strerror}", hint=hint) from None
    show(options, document, running_lines if running else check_lines)
    sys.exit(0 if document["correct"] else 1)


def plan_lines(doc: Document, *, width: int | None = None, **_: Any) -> list[str]:
    """Return a plan: sizes, uSIDs, and what failures leave."""
    used, cables = doc["ports_used"], doc["cables"]
    over = doc["oversubscription_ratio"]
    pairs = [
        ("hosts", f"{doc['hosts']} with {doc['planes']} NIC ports each: {doc['nics']} ports"),
        (
            "each plane",
            f"{doc['t0s']} T0s of {doc['hosts_per_t0']} hosts, {doc['t1s']} T1s; each T0 has a link to each T1"
            + (f"; {doc['rails']} rails share T1s" if doc["rails"] > 1 else ""),
        ),
        ("switches", f"{doc['switches']} of {doc['radix']} ports; used: {used['t0']} of a T0, {used['t1']} of a T1"),
        ("cables", f"{cables['host_t0']} between hosts and T0s, {cables['t0_t1']} between T0s and T1s"),
        ("T0 uplinks", f"{over:.3g} hosts per uplink" + (" (oversubscribed)" if over > 1 else "")),
        ("paths", f"{doc['paths_per_peer']} to a peer under another T0, of which {doc['evs_per_peer']} are its EVs"),
    ]
    lines = facts(pairs, width)
    kinds = ("T0", "T1", "HOST") if doc["t1s"] else ("T0", "HOST")
    usids = (field("PLANE", "plane", right=True), *(field(kind, kind, rank=i) for i, kind in enumerate(kinds)))
    planes = [
        {"plane": plane}
        | {kind: f"{first} to {last}" for kind, first, last in zip(kinds, ends[::2], ends[1::2], strict=False)}
        for plane, ends in doc["usids"].items()
    ]
    lines += ["", "uSIDs:", *table_of(usids, planes, colour=False, width=width)]
    return [*lines, *_failure_lines(doc, width), *_files(doc, width)]


def _failure_lines(doc: Document, width: int | None) -> list[str]:
    failures = doc["failures"]
    evs, planes = doc["evs_per_peer"], doc["planes"]
    fields = (
        field("FAILED", "failed", right=True),
        field("OF A KIND", lambda o: _PARTS[o["part"]]),
        field("IN ALL", "of", right=True, rank=4),
        field("EVS LEFT", lambda o: f"{o['evs']} of {evs}", right=True),
        field("PLANES LEFT", lambda o: f"{o['planes']} of {planes}", right=True, rank=1),
        field("HOSTS HIT", "hosts", right=True, rank=2),
        field("CORE LEFT %", "capacity", percent, rank=3),
    )
    limits = [
        f"{_PARTS[limit['part']]}: fewer than {failures['floor']} EVs (ev_min_active) with {limit['below_floor']}, "
        f"none with {limit['separated']}"
        for limit in failures["limits"]
    ]
    return [
        "",
        *fold("What failures in the worst places leave to two hosts under different T0s:", width),
        *table_of(fields, failures["outcomes"], colour=False, width=width),
        "",
        "Two hosts have:",
        *(line for limit in limits for line in fold(limit, width)),
    ]


def _files(doc: Document, width: int | None) -> list[str]:
    written = [f"{key} written to {doc[name]}" for key, name in _FILES.items() if doc[name]]
    return ["", *(line for w in written for line in fold(w, width))] if written else []


def written_lines(doc: Document) -> list[str]:
    """Return the configuration of a switch as it is, or where those of all were written."""
    if "text" in doc:
        return [str(doc["text"]).removesuffix("\n")]
    return [f"{len(doc['files'])} files in {doc['directory']}: {doc['files'][0]} to {doc['files'][-1]}"]


def check_lines(doc: Document, *, width: int | None = None, **_: Any) -> list[str]:
    """Return what a check of switches' configurations found."""
    followed = f"{doc['followed']} packets through {doc['switches']} switches ({doc['format']})"
    if doc["correct"]:
        return fold(f"{followed}: no mistake", width)
    fields = (field("COUNT", "count", right=True), field("MISTAKE", "mistake"), field("FOR EXAMPLE", "example"))
    return [*fold(f"{followed}:", width), *table_of(fields, doc["mistakes"], colour=False, width=width)]


def running_lines(doc: Document, *, width: int | None = None, **_: Any) -> list[str]:
    """Return what a check of running switches found: differences by switch, then what EVs met."""
    of = ", ".join(f"{count} {system}" for system, count in doc["reports"].items())
    head = f"reports of {sum(doc['reports'].values())} of {doc['switches']} switches ({of})"
    followed = f"{doc['followed']} packets followed"
    if doc["correct"]:
        return fold(f"{head}: as planned; {followed}: no mistake", width)
    count = len(doc["findings"])
    lines = fold(f"{head}: {count} difference{'s' * (count != 1)}", width)
    for found in doc["findings"]:
        lines += ["", *fold(f"{found['switch']}: {found['fault']} {found['prefix'] or ''}".rstrip(), width)]
        pairs = [(f"  {key}", found[key]) for key in ("planned", "runs", "affects", "cause") if found[key]]
        lines += facts(pairs, width)
    if doc["mistakes"]:
        fields = (field("COUNT", "count", right=True), field("MISTAKE", "mistake"), field("FOR EXAMPLE", "example"))
        lines += ["", f"{followed}:", *table_of(fields, doc["mistakes"], colour=False, width=width)]
    else:
        lines += ["", f"{followed}: no mistake"]
    return lines
