"""deny, drain, and the way back: which paths this host may send by."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import F, Options, colours, common, emit
from mrcd.ctl.client import DaemonDown, Json
from mrcd.ctl.documents.answers import changed_lines
from mrcd.ctl.options import ev_option, peer_option, plane_option
from mrcd.ctl.target_argument import target_argument
from mrcd.ctl.terminal import render
from mrcd.errors import DaemonError, UsageError

_POLL_S = 0.02
_EPILOG = (
    "A target is words that must all fit a path: t1:PLANE:T1, t0:PLANE:T0, link:PLANE:T0:T1, nic:HOST:PLANE, plane:N, "
    "peer:NAME, ev:N, ev:PEER:N. It steers what this host sends; what others send is theirs to deny."
)


def _what(command: F) -> F:
    """Which paths."""
    return target_argument(peer_option(ev_option(plane_option(command))))


def _how(command: F) -> F:
    """What deny and drain take besides."""
    for option in (
        click.option("--force", is_flag=True, help="Even if peers are left with fewer than ev_min_active usable EVs."),
        click.option("--reason", metavar="TEXT", help="Why, for whoever asks status, paths or events."),
        click.option("--for", "for_", metavar="TIME", help="End by itself after 90s, 30m, 1h30m or 2d."),
    ):
        command = option(command)
    return command


def _chosen(action: str, given: dict[str, Any]) -> dict[str, Any]:
    """The request's body, of the command's arguments."""
    body = {k.rstrip("_"): v for k, v in given.items()} | {"target": list(given["target"])}
    if not (body["target"] or body.get("all")) and all(body[k] is None for k in ("peer", "ev", "plane")):
        raise UsageError(f"{action} what? it takes a target", hint=f"see `mrcctl {action} --help`")
    if body.get("all") and (body["target"] or any(body[k] is not None for k in ("peer", "ev", "plane"))):
        raise UsageError("a target, or --all: not both", hint=f"see `mrcctl {action} --help`")
    return body


def _post(options: Options, path: str, body: dict[str, Any], hint: str) -> Json:
    """Ask for it; a refusal ends here."""
    answer = options.client.post(path, body)
    if answer.get("warning"):
        click.echo(f"mrcctl: warning: {answer['warning']}", err=True)
    if answer.get("refused") and not answer.get("changed") and not answer.get("ended"):
        if not options.json:
            raise DaemonError(answer["message"], hint=hint)
        emit(options, answer, changed_lines)
        sys.exit(DaemonError.exit_code)
    return answer


_FLOOR = "--force does it all the same"
_OTHERS = "`mrcctl denials` shows all"


@click.command(short_help="Use no path by a switch, link, plane, peer or EV.", epilog=_EPILOG)
@_what
@_how
@common
@click.pass_obj
def deny(options: Options, /, **given: Any) -> None:
    """Send nothing by the paths of a target until it is allowed again.

    They are still probed. It outlives restarts, and paths that come later fall under it too.
    """
    emit(options, _post(options, "/v1/deny", _chosen("deny", given), _FLOOR), changed_lines)


@click.command(short_help="The same, and wait until nothing is under way there.", epilog=_EPILOG)
@_what
@_how
@click.option(
    "--wait", type=click.FloatRange(min=0, max=86_400), default=10.0, metavar="SECONDS", show_default=True,
    help="Wait so long for it to be empty.",
)  # fmt: skip
@common
@click.pass_obj
def drain(options: Options, /, wait: float, **given: Any) -> None:
    """Deny the paths of a target, and wait until all that was sent by them has arrived, or is known to be lost.

    New packets take other paths at once, so nothing is lost by it.
    """
    answer = _post(options, "/v1/deny", _chosen("drain", given) | {"drain": True}, _FLOOR)
    began = time.monotonic()
    while True:
        found = next((d for d in options.client.get("/v1/denials")["denials"] if d["target"] == answer["target"]), None)
        if found is None:
            raise DaemonError(f"{answer['target']} is not denied any more: somebody took it back, or its time is over")
        waited = time.monotonic() - began
        if found["empty"] or waited >= wait:
            break
        time.sleep(_POLL_S)
    answer |= {"denial": found, "empty": found["empty"], "waited_s": round(waited, 3)}
    emit(options, answer, lambda d: [*changed_lines(d), *_emptied(d)])
    if not found["empty"]:
        raise DaemonError(
            f"{found['target']} is not empty after {wait:g} s: {found['in_flight_packets']} packets are not accounted "
            f"for, on EVs of which {found['unknown_evs']} have never been heard of",
            hint="no new ones enter it; a peer that is down cannot tell. `mrcctl denials` shows how it goes on",
        )


def _emptied(answer: Json) -> list[str]:
    found = answer["denial"]
    if not found["empty"]:
        return []
    lost = found["lost_packets"]
    said = "" if lost is None else f", {lost} packets lost"
    return [f"empty after {answer['waited_s']:.2f} s{said}" if found["evs"] else "empty"]


def _allow(options: Options, action: str, given: dict[str, Any]) -> None:
    emit(options, _post(options, "/v1/allow", _chosen(action, given), _OTHERS), changed_lines)


_all = click.option("--all", is_flag=True, help="Everything that is denied.")


@click.command(short_help="Take back `deny` or `drain`.", epilog=_EPILOG)
@_what
@_all
@common
@click.pass_obj
def allow(options: Options, /, **given: Any) -> None:
    """Take back what denies a target, or something within it: the EVs are probed and used again."""
    _allow(options, "allow", given)


@click.command(short_help="Take back `drain`: the same as `allow`.", epilog=_EPILOG)
@_what
@_all
@common
@click.pass_obj
def undrain(options: Options, /, **given: Any) -> None:
    """Take back what denies a target, or something within it: the EVs are probed and used again."""
    _allow(options, "undrain", given)


@click.command(short_help="What is denied, by whom, until when and why.")
@common
@click.pass_obj
def denials(options: Options) -> None:
    """What is denied, by whom, until when and why; and whether anything is still under way there."""
    try:
        document = options.client.get("/v1/denials")
    except DaemonDown as down:
        document = _from_file(options.run_dir, down)
        click.echo(f"mrcctl: mrcd is not running; from {document['file']}", err=True)
    if document["warning"]:
        click.echo(f"mrcctl: warning: {document['warning']}", err=True)
    emit(options, document, _table, colour=colours())


def _from_file(run_dir: Path, down: DaemonDown) -> Json:
    from mrcd.denials import (
        file,  # only now: they take longer to import than mrcctl to answer
        policy,
    )

    given = os.environ.get("MRCD_STATE_DIR")
    path = file.directory(run_dir, Path(given) if given else None) / file.FILE
    try:
        found = file.read(path)
    except file.Unreadable as e:
        raise DaemonDown(f"mrcd is not running, and {e.args[0]}", hint=down.hint) from None
    if found is None:
        raise DaemonDown(f"mrcd is not running, and there is no {path}", hint=down.hint)
    left = [(d, d.left_s(time.time())) for d in found]
    document = [policy.brief(d, s) for d, s in left]
    return {"denials": document, "pending": False} | {
        "file": str(path),
        "saved": True,
        "warning": None,
    }


def _table(document: Json, *, colour: bool) -> list[str]:
    if not document["denials"]:
        return ["nothing is denied"]
    columns = [
        *map(render.Column, ("TARGET", "ACTION")),
        *(render.Column(h, True) for h in ("EVS", "UNDER WAY pkts", "LOST pkts")),
        *map(render.Column, ("EMPTY", "SINCE (UTC)", "LEFT", "BY", "REASON")),
    ]
    rows = [
        [
            *(render.text(d.get(k)) for k in ("target", "action", "evs", "in_flight_packets", "lost_packets", "empty")),
            d["since"].removesuffix("+00:00"),
            render.duration(d["remaining_s"]),
            _user(d["uid"]),
            render.text(d["reason"]),
        ]
        for d in document["denials"]
    ]
    return render.table(columns, rows, colour=colour)


def _user(uid: int | None) -> str:
    if uid is None:
        return render.text(None)
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"
