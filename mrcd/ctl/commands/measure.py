"""The commands of mrcctl that measure: probe, trace, capture, preflight, doctor. What they do is imported late."""

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import F, Options, colours, common, emit
from mrcd.ctl.client import DaemonDown, Json, understood
from mrcd.ctl.offline import read
from mrcd.ctl.options import complete_peer, peer_option
from mrcd.errors import DaemonError, MrcdError, UsageError

MAX_COUNT = 1_000_000
MOST_EVS = 8192  # that doctor probes: a quarter of a minute


Choice = Callable[[Json, Json], Sequence[str | None]]


def _asked(options: Options, choose: Choice) -> tuple[Json, Json, Json]:
    """Status, peers, and the paths to those that are chosen by these, None being all at once; of the pinned tables if
    the daemon is down."""

    def ask(status: Json, peers: Json, paths: Callable[[str | None], Json]) -> tuple[Json, Json, Json]:
        return status, peers, [path for peer in choose(status, peers) for path in paths(peer)]

    found, _ = read(
        options,
        lambda d: ask(d.get("/v1/status"), d.get("/v1/peers"), lambda peer: d.get("/v1/paths", peer=peer)),
        lambda view: ask(view.status(), view.peers(), lambda peer: view.paths(peer=peer)),
    )
    return found  # type: ignore[no-any-return]


def _only(peer: str) -> Choice:
    return lambda status, peers: [peer]


def _nobody(status: Json, peers: Json) -> Sequence[str | None]:
    return []


def _some(status: Json, peers: Json) -> Sequence[str | None]:
    """All, or as many at random as have MOST_EVS."""
    with understood():
        evs = sum(status["evs"].values())
        if evs <= MOST_EVS:
            return [None]
        return random.sample([str(p["peer"]) for p in peers], max(1, len(peers) * MOST_EVS // evs))


def _count(default: int, what: str) -> Callable[[F], F]:
    """--count."""
    limits = click.IntRange(1, MAX_COUNT)
    return click.option("--count", "-c", type=limits, metavar="N", default=default, show_default=True, help=what)


def _pace(command: Any) -> Any:
    """--interval and --wait."""
    for option in (
        click.option(
            "--wait", type=click.FloatRange(0, 3600), default=1.0, metavar="SECONDS", show_default=True,
            help="How long to wait for the last answers.",
        ),
        click.option(
            "--interval", type=click.FloatRange(0.1, 60_000), default=10.0, metavar="MS", show_default=True,
            help="Between two packets on the same way.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(short_help="Loss and round-trip time of EVs, measured now.")
@click.argument("peer", shell_complete=complete_peer)
@click.option("--ev", type=click.IntRange(min=0), metavar="N", help="Only this EV; all of the peer's unless given.")
@_count(10, "Probes per EV.")
@click.option("--size", "-s", type=click.IntRange(min=0), default=0, metavar="BYTES", help="Of the outer IPv6 packet.")
@_pace
@common
@click.pass_obj
def probe(options: Options, peer: str, ev: int | None, count: int, size: int, interval: float, wait: float) -> None:
    """Probe the EVs to PEER, as ping does: loss, and least, mean, greatest and spread of the round trips.

    The peer's mrc_pop answers, over a usable EV of its own choice in the same plane. Neither host counts these
    probes or judges an EV by them. Exit code 2 if nothing came back.
    """
    from mrcd.ctl.packets import probe as work

    status, peers, paths = _asked(options, _only(peer))
    document = work.run(
        status, peers, paths, peer, ev=ev, count=count, size=size, interval_s=interval / 1000, wait_s=wait
    )
    emit(options, document, work.lines, colour=colours())
    if not document["received"]:
        sys.exit(DaemonError.exit_code)


@click.command(short_help="An EV hop by hop, and where it breaks.")
@click.argument("peer", shell_complete=complete_peer)
@click.option("--ev", type=click.IntRange(min=0), metavar="N", required=True, help="The EV.")
@_count(20, "Packets per hop.")
@_pace
@common
@click.pass_obj
def trace(options: Options, peer: str, ev: int, count: int, interval: float, wait: float) -> None:
    """Trace an EV to PEER: packets that turn round at each switch and come back, and a probe to the far host.

    The loss of each and cross-checks by another T1 of the plane say what is broken: a link, in one direction or
    both, a switch, or the far host; and what cannot be told apart. No switch has to answer anything. Not with
    encapsulation ecmp, where no packet can be told its way. Exit code 2 if nothing came back.
    """
    from mrcd.ctl.packets import trace as work

    status, peers, paths = _asked(options, _only(peer))
    document = work.run(status, peers, paths, peer, ev=ev, count=count, interval_s=interval / 1000, wait_s=wait)
    emit(options, document, work.lines, colour=colours())
    if not any(r["received"] for r in document["hops"]):
        sys.exit(DaemonError.exit_code)


@click.command(short_help="Decode MRC packets, live or from a file.")
@click.option("--count", "-c", type=click.IntRange(min=1), metavar="N", help="Stop after so many packets.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Stop after this time.")
@click.option("--plane", type=click.IntRange(min=0), metavar="N", help="Only this plane.")
@click.option("-r", "source", type=click.Path(path_type=Path), metavar="FILE", help="Read a pcap or pcapng file.")
@click.option("-w", "target", type=click.Path(path_type=Path), metavar="FILE", help="Write pcap; '-' is stdout.")
@click.option("--snap", type=click.IntRange(128), metavar="BYTES", help="Keep so much of a packet; all with -w.")
@common
@click.pass_obj
def capture(
    options: Options,
    count: int | None,
    seconds: float | None,
    plane: int | None,
    source: Path | None,
    target: Path | None,
    snap: int | None,
) -> None:
    """Show a line for each packet of mrcd on the plane NICs, in and out; with --json a document for each.

    Bursts are shown as the NIC gets them: one packet of many segments. Times are UTC.
    """
    from scapy.config import conf

    conf.route_autoload = conf.route6_autoload = False  # thousands take seconds, and nobody asks for them
    from mrcd.ctl.packets import capture as work

    if source is not None and (target is not None or seconds is not None):
        raise UsageError("-r reads a file: it takes neither -w nor --seconds", hint="see `mrcctl capture --help`")
    try:
        status, peers, _ = _asked(options, _nobody)
        about = work.known(status, peers)
    except DaemonDown:
        if source is None:
            raise
        about = work.Known()  # names and direction are not known here
    if source is not None:
        said = work.from_file(source, about, count=count, plane=plane, as_json=options.json)
    else:
        said = work.from_wire(
            about, count=count, seconds=seconds, plane=plane, as_json=options.json, to=target, keep=snap
        )
    click.echo(f"mrcctl: {said}", err=True)


_CONFIG = click.option(
    "--config", "file", type=click.Path(path_type=Path), envvar="MRCD_CONFIG", metavar="FILE", help="The cluster file."
)
_HOST = click.option(
    "--host", envvar="MRCD_HOST", metavar="NAME", help="This host's name in it; its hostname if not given."
)


def _finish(options: Options, document: Json) -> None:
    from mrcd.ctl.examine import report

    emit(options, document, report.lines, colour=colours())
    if document["summary"]["FAIL"]:
        sys.exit(MrcdError.exit_code)


@click.command(short_help="Is this machine fit for mrcd? Changes nothing.")
@_CONFIG
@_HOST
@common
@click.pass_obj
def preflight(options: Options, file: Path | None, host: str | None) -> None:
    """Check, before mrcd is installed, what it needs of this machine: kernel, NICs, settings. Changes nothing.

    Without a cluster file only what needs none is checked. Exit code 0 if all is well or worth a warning, 2 if
    something is not.
    """
    from mrcd.ctl.examine import command

    _finish(options, command.preflight(file, host))


@click.command(short_help="What is wrong with mrcd on this host?")
@peer_option
@common
@click.pass_obj
def doctor(options: Options, peer: str | None) -> None:
    """Check a host on which mrcd runs: what preflight checks, what is attached, what every EV really carries.

    Sends probes that no verdict sees, among them some of full size on each EV; where there are more than 8,192 EVs,
    on those of some peers, at random each time. Exit code 0 if all is well or worth a warning, 2 if something is not.
    """
    from mrcd.ctl.examine import command

    try:
        documents, down = _asked(options, _only(peer) if peer else _some), None
    except DaemonDown as e:
        documents, down = None, e
    _finish(options, command.doctor(options.run_dir, documents, down))
