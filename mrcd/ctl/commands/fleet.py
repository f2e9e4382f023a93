# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl fleet`: status, put, get, deny, drain and allow; check and links are in modules of their own.

Each asks this host's daemon, which reads and writes etcd (mrcd/api/fleet.py). A command that changes something then
waits for the reports of all hosts, and judges by them how far the hosts have followed.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import Commands, Options, command, common, emit, show
from mrcd.ctl.client import Client, Json
from mrcd.ctl.commands import fleet_check, fleet_links
from mrcd.ctl.commands.denials import EPILOG, FORCE_HINT, chosen, denial_options, target_options
from mrcd.ctl.options import wait_option, wide_option
from mrcd.ctl.phrases import some
from mrcd.ctl.terminal.render import Document, duration, facts, field, table_of, text
from mrcd.errors import DaemonError, MachineError, UsageError

_MOST_NAMES = 5
_STATES = {"behind": "behind", "refuses": "refusing it", "away": "away"}
_POLL_S = (0.1, 1.0)  # between two looks at the reports; doubled up to the second
_FIRST = 3
_LEAST_TRIAL_S = 30.0  # until the first hosts run a file, whatever --wait is
_LEAST_TIMEOUT_S = 20.0  # the daemon may have to ask several endpoints
_EPILOG = EPILOG.replace("this host sends, not those of other hosts", "any host sends")
_wait_option = wait_option(30.0, "all hosts")


@click.group(cls=Commands, short_help="Show and control all hosts of the cluster.")
@common
def fleet() -> None:
    """Show and control all hosts of the cluster.

    By etcd ([fleet] in the cluster file), and by Prometheus (check, links).
    """


@dataclass(frozen=True)
class Progress:
    """The progress of all hosts towards a change. `why` says which hosts have not, and why."""

    text: str
    done: bool
    why: Sequence[str] = ()


def _away(names: Sequence[str]) -> list[str]:
    return [f"away, down or without etcd: {some(names)}"] if names else []


def _reasons(d: Document) -> list[str]:
    found = _refusals(f"to deny {d['target']}", [(r["host"], r["why"]) for r in d["refused"]])
    found += [f"not denied yet: {some(d['waiting_hosts'])}"] if d["waiting_hosts"] else []
    return found + _away(d["away_hosts"])


def _refusals(what: str, refused: Sequence[tuple[str, str]]) -> list[str]:
    """Return a text per reason, with the hosts that have it; the first reasons only."""
    by_reason: dict[str, list[str]] = {}
    for host, why in refused:
        by_reason.setdefault(why, []).append(host)
    found = [
        f"{some(hosts)} {'refuses' if len(hosts) == 1 else 'refuse'} {what}: {why}" for why, hosts in by_reason.items()
    ]
    more = [f"{len(found) - _MOST_NAMES} other reasons to refuse {what}"] if len(found) > _MOST_NAMES else []
    return found[:_MOST_NAMES] + more


def denied(document: Document, target: str, *, drain: bool = False) -> Progress:
    """Return on how many hosts a target is denied; with `drain` on how many nothing is in flight to it."""
    d = next((d for d in document["denials"] if d["target"] == target), None)
    if d is None:
        return Progress(f"{target} is no longer in etcd: it was allowed, or has expired", False)
    why = _reasons(d)
    if not drain:
        return Progress(f"{d['denied_hosts']} of {d['hosts']} hosts deny it", d["denied_hosts"] == d["hosts"], why)
    if d["not_empty_hosts"]:
        unreported = f", {d['unreported_evs']} EVs without a report" if d["unreported_evs"] else ""
        why.append(f"packets may be in flight from {some(d['not_empty_hosts'])}{unreported}")
    lost = "losses unknown" if d["lost_packets"] is None else f"{d['lost_packets']} lost"
    said = f"{d['drained_hosts']} of {d['hosts']} hosts drained, {d['in_flight_packets']} packets left, {lost}"
    return Progress(said, d["drained_hosts"] == d["hosts"], why)


def allowed(document: Document, targets: Sequence[str]) -> Progress:
    """Return on how many hosts none of these targets is denied."""
    hosts = document["hosts"]
    away = [h["host"] for h in hosts if h["state"] == "away"]
    late = [h["host"] for h in hosts if h["pending"] or set(h["denials"]) & set(targets)]
    free = len(hosts) - len(late) - len(away)
    why = ([f"still denied on {some(late)}"] if late else []) + _away(away)
    return Progress(f"{free} of {len(hosts)} hosts allow it", free == len(hosts), why)


def adopted(document: Document, generation: int) -> Progress:
    """Return how many hosts run a generation of the cluster file."""
    hosts = document["hosts"]
    newest = (document["file"] or {}).get("generation", 0)
    if newest > generation:
        return Progress(f"generation {newest} was put meanwhile", False)
    if newest < generation:
        return Progress(f"generation {generation} is no longer in etcd", False)
    current = sum(h["state"] == "current" for h in hosts)
    return Progress(f"{current} of {len(hosts)} hosts run generation {generation}", current == len(hosts), _late(hosts))


def tried(document: Document, generation: int) -> Progress:
    """Return how many of the first hosts run a file; `why` says what speaks against giving it to the others."""
    trial = document.get("trial")
    if trial is None or trial["generation"] != generation:
        return Progress("the trial is over", False, ["the trial was ended by another command, or by its time"])
    hosts = [h for h in document["hosts"] if h["host"] in trial["hosts"]]
    current = sum(h["state"] == "current" for h in hosts)
    lost = [
        f"{h['host']} has lost {some(h['lost_peers'])}" for h in hosts if h["lost_peers"] and h["state"] == "current"
    ]
    why = [w for w in _late(hosts) if not w.startswith("behind")] + lost
    return Progress(f"{current} of {len(hosts)} first hosts run it: {some(trial['hosts'])}", current == len(hosts), why)


def _late(hosts: Sequence[Document]) -> list[str]:
    found = _refusals("the cluster file", [(h["host"], h["refused"]["why"]) for h in hosts if h["state"] == "refuses"])
    behind = [h["host"] for h in hosts if h["state"] == "behind"]
    found += [f"behind: {some(behind)}"] if behind else []
    return found + _away([h["host"] for h in hosts if h["state"] == "away"])


def wrong(document: Document) -> str:
    """Return which hosts do not do what etcd wants; "" if all do."""
    found = _late(document["hosts"])
    for d in document["denials"]:
        found += _refusals(f"to deny {d['target']}", [(r["host"], r["why"]) for r in d["refused"]])
    return "; ".join(found + [f"{u['key']} is not readable: {u['why']}" for u in document["unreadable"]])


def fleet_lines(document: Document, *, all_: bool, colour: bool, width: int | None = None) -> list[str]:
    """Return the file in etcd, how many hosts run it, those that do not, and the fleet-wide denials."""
    file, hosts = document["file"], document["hosts"]
    counts = {state: sum(h["state"] == state for h in hosts) for state in ("current", "behind", "refuses", "away")}
    if file:
        said = f"generation {file['generation']} (SHA-256 {file['sha256']})"
        states = f"{counts['current']} of {len(hosts)} run it"
    else:
        said, states = "none in etcd: each host runs its own", f"{len(hosts) - counts['away']} of {len(hosts)} report"
    states += "".join(f", {n} {_STATES[state]}" for state, n in counts.items() if n and state != "current")
    rows = [("etcd", text(document["connected"])), ("file", said), ("hosts", states)]
    if trial := document.get("trial"):
        rows.append(
            ("trial", f"generation {trial['generation']} (SHA-256 {trial['sha256']}) on {some(trial['hosts'])}")
        )
    lines = facts(rows, width)
    digests = {h["sha256"] for h in hosts if h["sha256"]}
    shown = [h for h in hosts if all_ or h["state"] != "current" or (not file and len(digests) > 1)]
    if shown:
        fields = (
            field("HOST", "host"),
            field("STATE", "state"),
            field("GENERATION", "generation", right=True),
            field("SHA-256", "sha256", rank=1),
            field("MRCD", "version", rank=2),
            field("WHY", lambda h: h["refused"] and h["refused"]["why"]),
        )
        lines += ["", *table_of(fields, shown, colour=colour, width=width)]
    if document["denials"]:
        lines += ["", *_denials(document["denials"], colour, width)]
    return lines


def _denials(denials: Sequence[Document], colour: bool, width: int | None) -> list[str]:
    fields = (
        field("DENIED", "target"),
        field("ACTION", "action", rank=2),
        field("HOSTS", lambda d: f"{d['denied_hosts']}/{d['hosts']}", right=True),
        field("DRAINED", lambda d: f"{d['drained_hosts']}/{d['hosts']}", right=True),
        field("IN FLIGHT pkts", "in_flight_packets", right=True, rank=3),
        field("LOST pkts", "lost_packets", right=True, rank=4),
        field("ENDS IN", "remaining_s", duration, right=False),
        field("ASKED ON", "host", rank=5),
        field("REASON", "reason", rank=1),
    )
    return table_of(fields, denials, colour=colour, width=width)


def _client(options: Options) -> Client:
    return Client(options.run_dir, max(options.timeout or 0, _LEAST_TIMEOUT_S), options.clock)


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


@command("Deny paths on all hosts.", epilog=_EPILOG)
@target_options
@denial_options
@_wait_option
def deny(options: Options, /, wait: float, **given: Any) -> None:
    """Stop all hosts from sending data on the paths of a target, and wait until all have done so.

    A host that would keep too few usable EVs for a peer refuses, and says why; the others follow. Nothing is denied if
    this host refuses. As with `mrcctl deny`, a repeated deny keeps the end and the reason.
    """
    answer = _deny(options, chosen("fleet deny", given))
    _wait(options, wait, answer, lambda d: denied(d, answer["target"]))


@command("Deny paths on all hosts, and wait until no packet is in flight there.", epilog=_EPILOG)
@target_options
@denial_options
@_wait_option
def drain(options: Options, /, wait: float, **given: Any) -> None:
    """Deny the paths of a target on all hosts, and wait until all packets sent on them have arrived.

    Run this before a switch is taken out. It ends with exit status 0 only if every host of the cluster file has said
    that nothing is left; a host that is down or does not reach etcd is named.
    """
    answer = _deny(options, chosen("fleet drain", given) | {"drain": True})
    _wait(options, wait, answer, lambda d: denied(d, answer["target"], drain=True))


def _deny(options: Options, body: dict[str, Any]) -> Json:
    answer = _client(options).post("/v1/fleet/deny", body)
    if answer["refused"]:
        raise DaemonError(answer["message"], hint=FORCE_HINT)
    return answer


@command("End fleet-wide denials.", epilog=_EPILOG)
@target_options
@click.option("--all", is_flag=True, help="Allow everything.")
@_wait_option
def allow(options: Options, /, wait: float, **given: Any) -> None:
    """End the fleet-wide denials of a target and of targets within it. Denials of single hosts stay in force."""
    answer = _client(options).post("/v1/fleet/allow", chosen("fleet allow", given))
    _wait(options, wait, answer, lambda d: allowed(d, answer["ended"]))


def _put(options: Options, body: dict[str, Any]) -> Json:
    return _client(options).post("/v1/fleet/file", body)


def _put_staged(options: Options, body: dict[str, Any], first: int, watch: float | None, wait: float) -> Json:
    """Have a few hosts run a file, then put it. Raises DaemonError, and takes it back, if it is not good.

    If mrcctl is killed, the trial ends by itself.
    """
    client, wait = _client(options), max(wait, _LEAST_TRIAL_S)
    times = {"wait_s": wait} | ({} if watch is None else {"watch_s": watch})
    answer = client.post("/v1/fleet/trial", body | {"first": first} | times)
    if not answer["hosts"]:
        click.echo("mrcctl: fewer than two hosts report, so none tries it first: all get it at once", err=True)
        return _put(options, body)
    is_put = False
    try:
        why = _watch_trial(options, client, answer["generation"], answer["watch_s"], wait)
        if not why:
            done = _put(options, body)
            is_put = True
            return answer | {key: done[key] for key in ("generation", "sha256", "message")}
    finally:
        if not is_put:
            client.post("/v1/fleet/trial/end", {"lease": answer["lease"]})
    raise DaemonError(
        f"{'; '.join(why)}; {some(answer['hosts'])} went back to the file before, which the other hosts still run",
        hint="correct the file; `mrcctl fleet put --first 0` gives it to all hosts at once",
    )


def _watch_trial(options: Options, client: Client, generation: int, watch: float, wait: float) -> Sequence[str]:
    """Wait until the first hosts run a file, then `watch` seconds more. Return what speaks against it."""
    began, ran, shown = options.monotonic_s(), math.inf, ""  # ran: since when all of them do
    while True:
        now = options.monotonic_s()
        try:
            progress = tried(client.get("/v1/fleet"), generation)
        except DaemonError as e:  # an etcd that has just lost a member is back within a second
            progress = Progress(str(e.args[0]), False)
        if progress.why:
            return progress.why
        if progress.text != shown:
            click.echo(f"mrcctl: {progress.text}", err=True)
            shown = progress.text
        ran = min(ran, now) if progress.done else math.inf
        if now - ran >= watch:
            return ()
        if not progress.done and now - began > wait + watch:
            return [f"not done after {now - began:.0f} s: {progress.text}"]
        options.clock.sleep(_POLL_S[0])


@command("Give all hosts another cluster file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--force", is_flag=True, help="Give it to all hosts at once, even if they refuse it until they are detached."
)
@click.option("--if-generation", type=click.IntRange(min=0), metavar="N", help="Only if etcd has this generation now.")
@click.option(
    "--first",
    type=click.IntRange(0, 1000),
    default=_FIRST,
    metavar="N",
    show_default=True,
    help="So many hosts run it first, half of all at most; 0: all at once.",
)
@click.option(
    "--watch",
    type=click.FloatRange(0, 3600),
    metavar="SECONDS",
    help="So long those must keep all their peers; by default long enough to notice any that is lost.",
)
@_wait_option
def put(
    options: Options, file: Path, force: bool, if_generation: int | None, first: int, watch: float | None, wait: float
) -> None:
    """Check a cluster file, give it to a few hosts, then to all by etcd, and wait until all run it.

    Each host reloads it without losing a packet, or refuses it, stays as it is, and says why. If one of the first hosts
    refuses it, or loses a peer, they go back to the file before, and the others never have it. [fleet] in the file is
    not used: each host reads that from its own file. FILE may be - for standard input.
    """
    text = sys.stdin.read() if str(file) == "-" else _read(file)
    body = {"text": text, "force": force, "if_generation": if_generation}
    staged = first and not force
    answer = _put_staged(options, body, first, watch, wait) if staged else _put(options, body)
    _wait(options, wait, answer, lambda d: adopted(d, answer["generation"]))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror}", hint="name a cluster file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8 text", hint="save the file in UTF-8, as TOML requires") from None


@command("Print the cluster file in etcd.")
def get(options: Options) -> None:
    """Print the cluster file that etcd has for all hosts."""
    emit(options, _client(options).get("/v1/fleet/file"), lambda d: [d["text"].removesuffix("\n")])


@command("Show which cluster file each host runs, and who refuses what.")
@click.option("--all", "all_", is_flag=True, help="List all hosts, not only those that differ.")
@wide_option
def status(options: Options, all_: bool, wide: bool) -> None:
    """Show the generation of the cluster file that each host runs, fleet-wide denials, and which host refuses what.

    Exit status 2 if a host refuses something, runs another generation, or is away.
    """
    document = _client(options).get("/v1/fleet")
    show(options, document, fleet_lines, wide, all_=all_)
    faults = wrong(document)
    if faults:
        raise MachineError(faults, hint="`mrcctl fleet status --json` has all; mrcd's log on these hosts has more")


for _command in (status, put, get, deny, drain, allow, fleet_check.check, fleet_links.links):
    fleet.add_command(_command)
