# SPDX-License-Identifier: BSD-2-Clause
"""Renders the diagnosis in GET /v1/status: what is wrong now and what to do, and the line for monitoring."""

from collections.abc import Sequence

from mrcd.ctl.terminal.render import Document, count, duration, text

_START = "Do: `systemctl start mrcd`"
_DOWN = f"mrcd is not running: nothing follows links, routes and the cluster file. {_START}"
_UNWATCHED = f"mrcd is not running, and without traffic nothing watches paths: what follows may be old. {_START}"
_HANGS = (
    "mrcd starts, stops or hangs: it does not answer on its socket. If that lasts, nothing follows links, routes and "
    "the cluster file. Do: `journalctl -u mrcd`, then `systemctl restart mrcd`: packets go on meanwhile"
)
_NAMED = 6  # causes in the first line
_SHOWN = 12  # causes with their sentences
_CODES = {"ok": 0, "warning": 1, "critical": 2}


def diagnosis_facts(doc: Document) -> list[tuple[str, str]]:
    """Return what `mrcctl status` begins with, as names and values: what is wrong now, or "all well".

    Nothing if the daemon is of an older version, which makes no diagnosis.
    """
    causes = doc.get("diagnosis")
    if causes is None:
        return []
    faults, denials = ([c for c in causes if (c.get("cause") == "denied") == is_denied] for is_denied in (False, True))
    lines = []
    if not _is_running(doc):
        lines.append(("wrong now", _DOWN if _is_watched(doc) else _UNWATCHED))
    elif not _answers(doc):
        lines.append(("wrong now", _HANGS))
    if faults:
        lines.append(("wrong now", _names(faults)))
    elif not lines:
        lines.append(("all well", numbers(doc)))
    for cause in faults[:_SHOWN]:
        lines += [("", _sentence(cause)), ("", f"  Do: {text(cause.get('do'))}")]
    if len(faults) > _SHOWN:
        lines.append(("", f"and {len(faults) - _SHOWN} more: `mrcctl status --json`"))
    if denials:
        lines.append(("out of use", f"{_names(denials)}: `mrcctl denials`"))
    return lines


def _is_running(doc: Document) -> bool:
    return bool((doc.get("daemon") or {}).get("running"))


def _answers(doc: Document) -> bool:
    """Return whether the document is from mrcd itself, and not from the tables."""
    return (doc.get("daemon") or {}).get("uptime_s") is not None


def _is_watched(doc: Document) -> bool:
    """Return whether the programs' tick runs: without it the tables keep what was known last."""
    probing = doc.get("probing")
    return not probing or bool(probing.get("tick_by"))


def _names(causes: Sequence[Document]) -> str:
    """Return causes by kind and target: t1 t1:1:2 or link:1:0:2, peer_down peer:h4."""
    more = f", and {len(causes) - _NAMED} more" if len(causes) > _NAMED else ""
    return ", ".join(map(named, causes[:_NAMED])) + more


def named(cause: Document) -> str:
    """Return a cause's kind and target, and the targets that would explain the same: t1 t1:1:2 or link:1:0:2."""
    return f"{cause['cause']} {' or '.join((cause['target'], *(cause.get('or_targets') or ())))}"


def _sentence(cause: Document) -> str:
    """Return what is known of a cause: t1:1:2, for 12 min: Plane 1: … (or link:1:0:2: this host cannot tell)."""
    since = f", for {duration(cause['since_s'])}" if cause.get("since_s") is not None else ""
    others = " or ".join(cause.get("or_targets") or ())
    is_likely = cause.get("confidence") == "likely" and cause["cause"] != "unknown"
    doubt = f" (or {others}: this host cannot tell)" if others else " (likely)" if is_likely else ""
    return f"{cause['target']}{since}: {cause['sentence']}{doubt}"


def numbers(doc: Document) -> str:
    """Return the numbers of a host in one line: 12 of 12 peers reachable, 192 of 192 EVs usable, 4 of 4 planes up."""
    peers, planes = doc.get("peers") or {}, doc.get("planes") or []
    up = sum(bool(p.get("up")) for p in planes)
    evs = sum((doc.get("evs") or {}).values())
    return (
        f"{text(peers.get('reachable'))} of {text(peers.get('total'))} peers reachable, "
        f"{count(doc.get('usable_evs'))} of {count(evs)} EVs usable, {up} of {len(planes)} planes up"
    )


def check(doc: Document) -> tuple[int, str]:
    """Return the exit status and the line of a monitoring plugin: 0 OK, 1 WARNING, 2 CRITICAL.

    Its numbers follow `|` as performance data.
    """
    causes = list(doc.get("diagnosis") or ())
    code = max((_CODES.get(str(c.get("severity")), 2) for c in causes), default=0)
    said = [f"{named(c)}: {c['sentence']}" for c in causes[:_NAMED]]
    if len(causes) > _NAMED:
        said.append(f"and {len(causes) - _NAMED} more")
    if not _is_running(doc):
        code, said = 2, ["mrcd is not running", *said]
    elif not _answers(doc):
        code, said = 2, ["mrcd starts, stops or hangs: it does not answer", *said]
    elif doc.get("diagnosis") is None:
        code, said = 2, ["this mrcd makes no diagnosis: restart it"]
    word = next(word for word, n in _CODES.items() if n == code).upper()
    # A `|` would begin the performance data.
    return code, f"{word} - {text(doc.get('host'))}: {'; '.join(said) or numbers(doc)}".replace("|", "/") + _data(doc)


def _data(doc: Document) -> str:
    peers, evs = doc.get("peers") or {}, doc.get("evs") or {}
    values = {
        "faults": sum(c.get("cause") != "denied" for c in doc.get("diagnosis") or ()),
        "peers": peers.get("reachable", 0),
        "evs": sum(evs.values()),
        "evs_failed": evs.get("ASSUMED_BAD", 0),
        "evs_denied": evs.get("DENIED", 0),
    }
    return " | " + " ".join(f"{k}={v}" for k, v in values.items())
