# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl deny`, `drain`, `allow`, `undrain` and `denials`.

deny and allow post to the daemon, which decides and applies them (mrcd/denials/deny_and_allow.py). drain also polls
/v1/denials until no packet is in flight.
"""

import contextlib
import sys
from typing import Any

import click

from mrcd.ctl.base import F, Options, command, emit, show
from mrcd.ctl.client import DaemonDown, Json
from mrcd.ctl.documents import state_dir
from mrcd.ctl.options import ev_option, peer_option, plane_option, target_argument, wait_option, wide_option
from mrcd.ctl.phrases import location
from mrcd.ctl.terminal.render import Document, duration, field, table_of, text
from mrcd.errors import DaemonError, UsageError
from mrcd.state_dir import DENIALS

_POLL_S = 0.02
EPILOG = (
    "A target is one or more of t1:PLANE:T1, t0:PLANE:T0, link:PLANE:T0:T1, nic:HOST:PLANE, plane:N, peer:NAME, "
    "ev:N and ev:PEER:N; a path must match all of them. A denial affects packets that this host sends, not those of "
    "other hosts."
)


def target_options(command: F) -> F:
    """Add the options that name paths."""
    return target_argument(peer_option(ev_option(plane_option(command))))


def denial_options(command: F) -> F:
    """Add the other options of deny and drain."""
    for option in (
        click.option("--force", is_flag=True, help="Deny even if a peer keeps fewer than ev_min_active usable EVs."),
        click.option("--reason", metavar="TEXT", help="A reason, shown by status, paths and events."),
        click.option("--for", "for_", metavar="TIME", help="End after this time: 90s, 30m, 1h30m, 2d; or always."),
    ):
        command = option(command)
    return command


def chosen(action: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the body of the request, made of the command's arguments."""
    body = {k.rstrip("_"): v for k, v in given.items()} | {"target": list(given["target"])}
    if not (body["target"] or body.get("all")) and all(body[k] is None for k in ("peer", "ev", "plane")):
        raise UsageError(f"{action} needs a target", hint=f"see `mrcctl {action} --help`")
    if body.get("all") and (body["target"] or any(body[k] is not None for k in ("peer", "ev", "plane"))):
        raise UsageError("--all and a target exclude each other", hint=f"see `mrcctl {action} --help`")
    return body


def _post(options: Options, path: str, body: dict[str, Any], hint: str) -> Json:
    """Return the daemon's answer; print its warning. A refusal prints its message and ends mrcctl."""
    answer = options.client.post(path, body)
    if answer.get("warning"):
        click.echo(f"mrcctl: warning: {answer['warning']}", err=True)
    if answer.get("refused") and not answer.get("changed") and not answer.get("ended"):
        if not options.json:
            raise DaemonError(answer["message"], hint=hint)
        emit(options, answer, changed_lines)
        sys.exit(DaemonError.exit_code)
    return answer


FORCE_HINT = "--force denies it nevertheless, for 24 h at most where a peer keeps no path"
_ALLOW_HINT = "`mrcctl denials` lists all denials"


@command("Stop sending on the paths of a switch, link, plane, peer or EV.", epilog=EPILOG)
@target_options
@denial_options
def deny(options: Options, /, **given: Any) -> None:
    """Send no data on the paths of a target until it is allowed again.

    The paths are still probed. A denial survives restarts, and also covers paths of later configurations. A repeated
    deny keeps the end and the reason of the present denial, unless --for and --reason change them.
    """
    emit(options, _post(options, "/v1/deny", chosen("deny", given), FORCE_HINT), changed_lines)


@command("Deny, and wait until no packet is in flight there.", epilog=EPILOG)
@target_options
@denial_options
@wait_option(10.0, "packets in flight")
def drain(options: Options, /, wait: float, **given: Any) -> None:
    """Deny the paths of a target, and wait until all packets sent on them have arrived or are known to be lost.

    New packets take other paths at once, so draining loses no packet.
    """
    answer = _post(options, "/v1/deny", chosen("drain", given) | {"drain": True}, FORCE_HINT)
    began = options.monotonic_s()
    while True:
        found = next((d for d in options.client.get("/v1/denials")["denials"] if d["target"] == answer["target"]), None)
        if found is None:
            why = f"{answer['target']} is no longer denied: it was allowed or has expired"
            raise DaemonError(why, hint="`mrcctl events --kind denial` says by whom or when")
        waited = options.monotonic_s() - began
        if found["empty"] or waited >= wait:
            break
        options.clock.sleep(_POLL_S)
    answer |= {"denial": found, "empty": found["empty"], "waited_s": round(waited, 3)}
    emit(options, answer, lambda d: [*changed_lines(d), *_emptied(d)])
    if not found["empty"]:
        raise DaemonError(
            f"{found['target']} is not empty after {wait:g} s: {found['in_flight_packets']} packets may be in flight, "
            f"and the peers have sent no report about {found['unreported_evs']} of its EVs",
            hint="no new packets enter it, but a peer that is down sends no report; watch `mrcctl denials`",
        )


def _emptied(answer: Json) -> list[str]:
    found = answer["denial"]
    if not found["empty"]:
        return []
    lost = found["lost_packets"]
    lost_text = "" if lost is None else f", {lost} packets lost"
    return [f"empty after {answer['waited_s']:.2f} s{lost_text}" if found["evs"] else "empty"]


def _ending(name: str, short_help: str) -> click.Command:
    @command(short_help, epilog=EPILOG)
    @target_options
    @click.option("--all", is_flag=True, help="Allow everything.")
    def end(options: Options, /, **given: Any) -> None:
        """End the denials of a target and of targets within it. The EVs are probed, then used again."""
        emit(options, _post(options, "/v1/allow", chosen(name, given), _ALLOW_HINT), changed_lines)

    end.name = name
    return end


allow, undrain = _ending("allow", "End denials."), _ending("undrain", "End denials; the same as `allow`.")


@command("List denials: target, user, end, reason.")
@wide_option
def denials(options: Options, wide: bool) -> None:
    """List denials with their user, end and reason, and the packets still in flight on their paths."""
    try:
        document, source = options.client.get("/v1/denials"), "daemon"
    except DaemonDown as down:
        source = "file"
        document = _from_file(options, down)
        click.echo(f"mrcctl: {down.brief}; from {document['file']}", err=True)
    if document["warning"]:
        click.echo(f"mrcctl: warning: {document['warning']}", err=True)
    show(options, document | {"source": source}, _table, wide)


def _from_file(options: Options, down: DaemonDown) -> Json:
    from mrcd.denials import record  # a late import: it takes longer than mrcctl takes to answer

    path = state_dir(options.run_dir) / DENIALS
    try:
        found = record.read(path)
    except record.Unreadable as e:
        raise down.because(f"and {e.args[0]}") from None
    if found is None:
        raise down.because(f"and there is no {path}")
    left = [(d, d.left_s(options.clock.wall_ns() / 1e9)) for d in found]
    rows = [record.brief(d, s) for d, s in left]
    return {"denials": rows, "pending": False, "file": str(path), "saved": True, "warning": None}


def _table(document: Json, *, colour: bool, width: int | None) -> list[str]:
    if not document["denials"]:
        return ["nothing is denied"]
    fields = (
        field("TARGET", "target"),
        field("ACTION", "action", rank=4),
        field("EVS", "evs", right=True, rank=3),
        field("IN FLIGHT pkts", "in_flight_packets", right=True, rank=7),
        field("LOST pkts", "lost_packets", right=True, rank=6),
        field("EMPTY", "empty", rank=5),
        field("SINCE (UTC)", lambda d: d["since"].removesuffix("+00:00"), rank=8),
        field("ENDS IN", "remaining_s", duration, right=False),
        field("USER", lambda d: _user(d["uid"]), rank=2),
        field("REASON", "reason", rank=1),
    )
    return table_of(fields, document["denials"], colour=colour, width=width)


_PATHS_SHOWN = 16  # of the paths that a deny or an allow changed


def changed_lines(doc: Document) -> list[str]:
    """Return the message of a deny or an allow, and the paths that it changed."""
    shown = list(doc.get("paths") or [])[:_PATHS_SHOWN]
    lines = [text(doc.get("message")), *(f"  {location(p)}" for p in shown)]
    if len(doc.get("paths") or []) > len(shown):
        lines.append(f"  and {len(doc['paths']) - len(shown)} more (all with --json)")
    return lines


def _user(uid: int | None) -> str:
    if uid is None:
        return text(None)
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"
