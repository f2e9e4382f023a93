# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl fleet` status, put, get, deny, drain and allow.

Each asks this host's daemon, which reads and writes etcd (mrcd/api/fleet.py). A command that changes something then
waits for the reports of all hosts.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import Options, colours, common, emit, terminal_width
from mrcd.ctl.client import Client, Json
from mrcd.ctl.commands.denials import EPILOG, chosen, denial_options, target_options
from mrcd.ctl.documents import fleet as documents
from mrcd.ctl.documents.fleet import Progress
from mrcd.errors import DaemonError, MachineError, UsageError

_POLL_S = (0.1, 1.0)  # between two looks at the reports; doubled up to the second
_LEAST_TIMEOUT_S = 20.0  # the daemon may have to ask several endpoints

_EPILOG = EPILOG.replace("this host sends, not those of other hosts", "any host sends")


def _client(options: Options) -> Client:
    return Client(options.run_dir, max(options.timeout, _LEAST_TIMEOUT_S), options.clock)


def _wait(options: Options, seconds: float, answer: Json, judge: Callable[[Json], Progress]) -> None:
    """Wait for the reports of all hosts, and print the answer with what they say. Exit status 2 if not all follow."""
    client, began, pause_s, shown = _client(options), options.monotonic_s(), _POLL_S[0], ""
    while True:
        try:
            document = client.get("/v1/fleet")
            progress = judge(document)
        except DaemonError as e:  # an etcd that has just lost a member is back within a second
            document, progress = None, Progress(str(e.args[0]), False)
        waited = options.monotonic_s() - began
        if progress.done or waited + pause_s > seconds:
            break
        if progress.text != shown:
            click.echo(f"mrcctl: {progress.text}", err=True)
            shown = progress.text
        options.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S[1])
    found = {"done": progress.done, "progress": progress.text, "waited_s": round(waited, 3), "fleet": document}
    emit(options, answer | found, lambda d: [d["message"], progress.text])
    if not progress.done:
        raise DaemonError(
            f"not done on all hosts after {waited:.0f} s: {'; '.join(progress.why) or progress.text}",
            hint="the hosts go on without this command; see `mrcctl fleet status`",
        )


_wait_option = click.option(
    "--wait", type=click.FloatRange(min=0, max=86_400), default=30.0, metavar="SECONDS", show_default=True,
    help="Wait at most so long for all hosts.",
)  # fmt: skip


# ---- denials ---------------------------------------------------------------------------------


@click.command(short_help="Deny paths on all hosts.", epilog=_EPILOG)
@target_options
@denial_options
@_wait_option
@common
@click.pass_obj
def deny(options: Options, /, wait: float, **given: Any) -> None:
    """Stop all hosts from sending data on the paths of a target, and wait until all have done so.

    A host that would keep too few usable EVs for a peer refuses, and says why; the others follow. Nothing is denied if
    this host refuses. As with `mrcctl deny`, a repeated deny keeps the end and the reason.
    """
    answer = _deny(options, chosen("fleet deny", given))
    _wait(options, wait, answer, lambda d: documents.denied(d, answer["target"]))


@click.command(short_help="Deny paths on all hosts, and wait until no packet is in flight there.", epilog=_EPILOG)
@target_options
@denial_options
@_wait_option
@common
@click.pass_obj
def drain(options: Options, /, wait: float, **given: Any) -> None:
    """Deny the paths of a target on all hosts, and wait until all packets sent on them have arrived.

    Run this before a switch is taken out. It ends with exit status 0 only if every host of the cluster file has said
    that nothing is left; a host that is down or does not reach etcd is named.
    """
    answer = _deny(options, chosen("fleet drain", given) | {"drain": True})
    _wait(options, wait, answer, lambda d: documents.drained(d, answer["target"]))


def _deny(options: Options, body: dict[str, Any]) -> Json:
    answer = _client(options).post("/v1/fleet/deny", body)
    if answer["refused"]:
        raise DaemonError(answer["message"], hint="--force denies it nevertheless")
    return answer


@click.command(short_help="End fleet-wide denials.", epilog=_EPILOG)
@target_options
@click.option("--all", is_flag=True, help="Allow everything.")
@_wait_option
@common
@click.pass_obj
def allow(options: Options, /, wait: float, **given: Any) -> None:
    """End the fleet-wide denials of a target and of targets within it. Denials of single hosts stay in force."""
    answer = _client(options).post("/v1/fleet/allow", chosen("fleet allow", given))
    _wait(options, wait, answer, lambda d: documents.allowed(d, answer["ended"]))


# ---- the cluster file ------------------------------------------------------------------------


@click.command(short_help="Give all hosts another cluster file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Put it even if hosts will refuse it until they are detached.")
@click.option("--if-generation", type=click.IntRange(min=0), metavar="N", help="Only if etcd has this generation now.")
@_wait_option
@common
@click.pass_obj
def put(options: Options, file: Path, force: bool, if_generation: int | None, wait: float) -> None:
    """Check a cluster file, give it to all hosts by etcd, and wait until all run it.

    Each host reloads it without losing a packet, or refuses it, stays as it is, and says why. [fleet] in the file is
    not used: each host reads that from its own file. FILE may be - for standard input.
    """
    text = sys.stdin.read() if str(file) == "-" else _read(file)
    body = {"text": text, "force": force, "if_generation": if_generation}
    answer = _client(options).post("/v1/fleet/file", body)
    _wait(options, wait, answer, lambda d: documents.adopted(d, answer["generation"]))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror}", hint="name a cluster file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8 text", hint="save the file in UTF-8, as TOML requires") from None


@click.command(short_help="Print the cluster file in etcd.")
@common
@click.pass_obj
def get(options: Options) -> None:
    """Print the cluster file that etcd has for all hosts."""
    emit(options, _client(options).get("/v1/fleet/file"), lambda d: [d["text"].removesuffix("\n")])


# ---- the hosts -------------------------------------------------------------------------------


@click.command(short_help="Show which cluster file each host runs, and who refuses what.")
@click.option("--all", "all_", is_flag=True, help="List all hosts, not only those that differ.")
@click.option("--wide", "-w", is_flag=True, help="All columns, even if the terminal is narrow.")
@common
@click.pass_obj
def status(options: Options, all_: bool, wide: bool) -> None:
    """Show the generation of the cluster file that each host runs, fleet-wide denials, and which host refuses what.

    Exit status 2 if a host refuses something, runs another generation, or is away.
    """
    document = _client(options).get("/v1/fleet")
    emit(options, document, documents.fleet_lines, all_=all_, colour=colours(), width=terminal_width(wide))
    wrong = documents.wrong(document)
    if wrong:
        raise MachineError(wrong, hint="`mrcctl fleet status --json` has all; mrcd's log on these hosts has more")


COMMANDS: tuple[click.Command, ...] = (status, put, get, deny, drain, allow)
