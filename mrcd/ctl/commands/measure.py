# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl probe`, `trace`, `capture`, `preflight` and `doctor`.

Each command imports its work from packets/ or examine/ when it runs.
"""

import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from mrcd.ctl.base import F, Options, command, emit, show
from mrcd.ctl.client import DaemonDown, Json, understood
from mrcd.ctl.documents import read
from mrcd.ctl.options import ev_option, peer_argument, plane_option, wait_option, wide_option
from mrcd.errors import DaemonError, MachineError, MrcdError
from mrcd.versions import SCHEMA_VERSION

MAX_COUNT = 1_000_000
MOST_EVS = 8192  # doctor probes no more, which takes 15 s

# (status, peers) → names of the peers whose paths are needed; None means all peers
Choice = Callable[[Json, Json], Sequence[str | None]]


def read_documents(options: Options, choose: Choice) -> tuple[Json, Json, Json]:
    """Return status, peers, and the paths to the chosen peers, from the daemon or else from the pinned tables."""
    status, peers = read(options, "status").document, read(options, "peers").document
    each = [{"peer": peer} for peer in choose(status, peers)]
    return status, peers, read(options, "paths", each=each).document if each else []


def choose_peers(status: Json, peers: Json) -> Sequence[str | None]:
    """Choose all peers, or random ones with MOST_EVS EVs in total."""
    with understood():
        evs = sum(status["evs"].values())
        if evs <= MOST_EVS:
            return [None]
        return random.sample([str(p["peer"]) for p in peers], max(1, len(peers) * MOST_EVS // evs))


def _count(default: int, what: str) -> Callable[[F], F]:
    """Add --count."""
    limits = click.IntRange(1, MAX_COUNT)
    return click.option("--count", "-c", type=limits, metavar="N", default=default, show_default=True, help=what)


_interval = click.option(
    "--interval", type=click.FloatRange(0.1, 60_000), default=10.0, metavar="MS", show_default=True,
    help="Time between two packets on the same path.",
)  # fmt: skip


@command("Measure loss and round-trip time of EVs.")
@peer_argument(required=True)
@click.option("--ev", type=click.IntRange(min=0), metavar="N", help="Only this EV; default all EVs of the peer.")
@_count(10, "Probes per EV.")
@click.option(
    "--size", "-s", type=click.IntRange(min=0), default=0, metavar="BYTES", help="Size of the outer IPv6 packet."
)
@_interval
@wait_option(1.0, "the last answers")
@wide_option
def probe(
    options: Options, peer: str, ev: int | None, count: int, size: int, interval: float, wait: float, wide: bool
) -> None:
    """Probe the EVs to PEER: loss, and minimum, mean, maximum and deviation of the round-trip times, as ping does.

    The peer's mrc_pop answers on a usable EV of its own choice in the same plane. These diagnostic probes change no
    counter and no EV state on either host. Exit status 2 if nothing came back.

    These round trips are shorter than those of `mrcctl peers`: a tool sends many probes in a row, so that the CPUs of
    both hosts stay awake; the probes of an idle path find them asleep.
    """
    from mrcd.ctl.packets import probe as work

    status, peers, paths = read_documents(options, lambda status, peers: [peer])
    document = work.run(
        status, peers, paths, peer, ev=ev, count=count, size=size, interval_s=interval / 1000, wait_s=wait
    )
    if not options.json:
        work.check_sent(document)
    show(options, document, work.lines, wide)
    if not document["received"]:
        sys.exit(DaemonError.exit_code)


@command("Trace an EV hop by hop and locate a fault.")
@peer_argument(required=True)
@click.option("--ev", type=click.IntRange(min=0), metavar="N", help="The EV; default all that have failed, 8 at most.")
@_count(20, "Packets per hop.")
@_interval
@wait_option(1.0, "the last answers")
@wide_option
def trace(options: Options, peer: str, ev: int | None, count: int, interval: float, wait: float, wide: bool) -> None:
    """Trace an EV to PEER with loopback probes, which each switch forwards back to this host, and a probe to PEER.

    Their losses and delays, and cross-checks through another T1 of the plane, locate a fault: a link in one or both
    directions, a switch, or the far host. The verdict names its plane, and the target that `mrcctl deny` takes. Parts
    that the packets cannot distinguish are listed together. A NIC without a carrier is named at once, also the peer's
    if the peer has said so. No switch CPU has to answer. encapsulation ecmp has no trace, because its packets cannot
    name their path.

    Without --ev it begins with what `mrcctl status` says of PEER as a whole: down, detached, another key or file.

    Exit status 1 if the path to PEER is broken or slow, or the fault is PEER as a whole; 2 if nothing could be sent.
    """
    from mrcd.ctl.packets import trace as work

    status, peers, paths = read_documents(options, lambda status, peers: [peer])
    failed = work.failed_evs(paths, peer)
    traces = [
        work.run(status, peers, paths, peer, ev=n, count=count, interval_s=interval / 1000, wait_s=wait)
        for n in (failed[: work.MOST_EVS] if ev is None else [ev])
    ]
    causes = work.causes_of_peer(status, peer) if ev is None else []
    if ev is None:
        document, lines = work.merged(str(status["host"]), peer, traces, len(failed), causes), work.merged_lines
    else:
        document, lines = traces[0], work.lines
    show(options, document, lines, wide)
    sys.exit(1 if causes else work.exit_status(traces))


@command("Capture MRC packets with tcpdump.")
@click.option("--count", "-c", type=click.IntRange(min=1), metavar="N", help="Stop after N packets.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Stop after this time.")
@peer_argument()
@plane_option
@ev_option
@click.option("--type", "kind", type=click.Choice(["data", "request", "reply"]), help="Only packets of this type.")
@click.option("-w", "target", metavar="FILE", help="Write pcap; '-' is stdout.")
@click.option("--snap", type=click.IntRange(128), metavar="BYTES", help="Keep so many bytes of a packet; default all.")
@click.option("--print", "is_printed", is_flag=True, help="Print the tcpdump command, and do not run it.")
def capture(
    options: Options,
    count: int | None,
    seconds: float | None,
    peer: str | None,
    plane: int | None,
    ev: int | None,
    kind: str | None,
    target: str | None,
    snap: int | None,
    is_printed: bool,
) -> None:
    """Run tcpdump with a filter for mrcd's packets. With --print or --json only the command is printed.

    PEER, --plane, --ev and --type choose packets: those that match all of them. PEER is a host's name or id, at either
    end of the packet. A burst is one packet of many segments, as the NIC gets it.

    tcpdump shows the outer headers. tshark and Wireshark show all of MRC with mrcd's dissector, share/mrcd/mrc.lua.
    """
    from mrcd.ctl.packets import capture as work

    status, peers, _ = read_documents(options, lambda status, peers: [])
    with understood():
        port = int(status["udp_port"])
    host = None if peer is None else work.host_id(peer, status, peers)
    where, may_be_tagged = work.interface(status, plane)
    expression = work.filter_expression(port, ev=ev, kind=kind, host=host, may_be_tagged=may_be_tagged)
    argv = work.command(where, expression, count=count, seconds=seconds, to=target, snap=snap)
    if is_printed or options.json:
        document = {"schema_version": SCHEMA_VERSION, "command": argv, "filter": expression}
        emit(options, document, lambda found: [shlex.join(found["command"])])
        return
    if shutil.which("tcpdump") is None:
        hint = "install the package tcpdump, or give the filter of `mrcctl capture --print` to another tool"
        raise MachineError("tcpdump is not installed", hint=hint)
    sys.stdout.flush()
    os.execvp(argv[0], argv)


_CONFIG = click.option(
    "--config", "file", type=click.Path(path_type=Path), envvar="MRCD_CONFIG", metavar="FILE", help="The cluster file."
)
_HOST = click.option(
    "--host", envvar="MRCD_HOST", metavar="NAME", help="This host's name in the file; default its hostname."
)


def _finish(options: Options, document: Json) -> None:
    from mrcd.ctl.examine.command import lines

    show(options, document, lines)
    if document["summary"]["FAIL"]:
        sys.exit(MrcdError.exit_code)


@command("Check whether this machine can run mrcd.")
@_CONFIG
@_HOST
def preflight(options: Options, file: Path | None, host: str | None) -> None:
    """Check whether the kernel, NICs and settings of this machine can run mrcd. Changes nothing; mrcd need not run.

    Without a cluster file the checks that need one are skipped. Exit status 0 if no check failed (warnings included),
    2 otherwise.
    """
    from mrcd.ctl.examine import command

    _finish(options, command.preflight(file, host))


@command("Check a host on which mrcd runs.")
@peer_argument()
def doctor(options: Options, peer: str | None) -> None:
    """Check a host on which mrcd runs: the checks of preflight, the attached programs, and each EV.

    Sends diagnostic probes, which change no EV state, in three sizes on each EV. With more than 8,192 EVs it probes
    those of random peers. Exit status 0 if no check failed (warnings included), 2 otherwise.
    """
    from mrcd.ctl.examine import command

    try:
        documents, down = read_documents(options, (lambda status, peers: [peer]) if peer else choose_peers), None
    except DaemonDown as e:
        documents, down = None, e
    _finish(options, command.doctor(options.run_dir, documents, down))
