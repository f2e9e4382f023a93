# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl status`: what is wrong now and what to do, the host, its planes; `--check` for monitoring."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mrcd.ctl.base import Options, command, emit, show
from mrcd.ctl.client import Json
from mrcd.ctl.documents import read
from mrcd.ctl.options import STATES, wide_option
from mrcd.ctl.phrases import aged, denial, location, plain_states, sentence, stale
from mrcd.ctl.terminal.render import Document, count, duration, facts, field, paint, table_of, text
from mrcd.errors import MrcdError

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
_DENIALS_SHOWN = 4
_FAULTS_SHOWN = 3  # in one line
_SEGMENTED_BY = {
    "nic": "the NIC segments them",
    "cpu": "THE CPU SEGMENTS THEM",
    "whole": "sent unsegmented",
    "unknown": "not known",
}


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


def judged(doc: Document) -> tuple[int, str]:
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


def status_lines(doc: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return what is wrong, the facts about this host, then its planes."""
    push, planes = doc.get("push") or {}, doc.get("planes") or []
    alone, age_s = doc.get("forwarding_without_daemon"), (doc.get("probing") or {}).get("tick_age_s")
    state = paint("attached" if doc.get("attached") else "detached", colour)
    lost = (doc.get("pins") or {}).get("lost")
    pairs = [
        ("host", f"{text(doc.get('host'))} (id {text(doc.get('host_id'))}) of cluster {text(doc.get('cluster'))}"),
        ("daemon", _daemon(doc)),
        (
            "data plane",
            f"{state}, encapsulation {text(doc.get('encapsulation'))}, granularity {text(doc.get('granularity'))}, "
            f"inner MTU {text(doc.get('inner_mtu'))} bytes",
        ),
        ("", alone and f"forwarding without the daemon: {text(alone.get('works'))} ({text(alone.get('how'))})"),
        ("push", _hook(push.get("hook"), push.get("how"), push.get("reason"))),
        ("receive", doc.get("receive") and _receive(doc["receive"])),
        ("peers", _peers(doc.get("peers") or {})),
        ("EVs", _states(doc.get("evs") or {}, doc.get("usable_evs"), colour)),
        ("", stale(age_s)),
        ("denied", doc.get("denials") and _denied(doc["denials"])),
        ("fleet", (doc.get("fleet") or {}).get("etcd") and _fleet(doc["fleet"])),
        ("drops", ", ".join(f"{k} {count(v)}" for k, v in (doc.get("drops") or {}).items()) or "none"),
        ("probes", doc.get("probing") and _probing(doc["probing"])),
        ("critical", doc.get("critical") and _critical(doc["critical"])),
        ("other BPF", _other_programs(doc.get("other_programs") or [])),
        *(("kernel", f"lacks {words}") for words in doc.get("kernel_lacks") or ()),
        ("pins", lost and f"{lost}: see `mrcctl doctor`"),
        ("tables", _fill(doc.get("tables") or {})),
        ("last change", doc.get("last_transition") and _transition(doc["last_transition"])),
        ("last event", doc.get("last_event") and sentence(doc["last_event"])),
    ]
    lines = facts([*diagnosis_facts(doc), *((name, value) for name, value in pairs if value)], width)
    if planes:
        lines += ["", *_planes(planes, colour, width, age_s), *facts(_reasons(planes), width)]
    return lines


def brief_lines(doc: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the most important facts about this host in one line."""
    daemon, peers, planes = doc.get("daemon") or {}, doc.get("peers") or {}, doc.get("planes") or []
    alone, evs = doc.get("forwarding_without_daemon"), doc.get("evs") or {}
    bad = {k: v for k, v in evs.items() if v and k != "GOOD"}
    wrong = [str(c["target"]) for c in doc.get("diagnosis") or () if c.get("cause") != "denied"]
    fallbacks, others = sum(bool(p.get("fallback")) for p in planes), len(doc.get("other_programs") or ())
    parts = [
        text(doc.get("host")),
        wrong and f"WRONG: {', '.join(wrong[:_FAULTS_SHOWN])}" + ", …" * (len(wrong) > _FAULTS_SHOWN),
        paint("attached" if doc.get("attached") else "detached", colour),
        f"mrcd {paint(_running(daemon), colour)}",
        f"peers {text(peers.get('reachable'))}/{text(peers.get('total'))}",
        f"EVs {text(doc.get('usable_evs'))}/{sum(evs.values())}" + (f" ({plain_states(bad)})" if bad else ""),
        f"planes {sum(bool(p.get('up')) for p in planes)}/{len(planes)}",
        f"drops {count(sum((doc.get('drops') or {}).values()))}",
        "needs the daemon to forward" if alone and not alone.get("works") else "",
        "pins lost" if (doc.get("pins") or {}).get("lost") else "",
        others and f"other programs {others}",
        fallbacks and f"fallback hooks {fallbacks}",
    ]
    return ["  ".join(str(part) for part in parts if part)]


def _running(daemon: Document) -> str:
    if not daemon.get("running"):
        return "down"
    return "up" if daemon.get("uptime_s") is not None else "does not answer"


def _daemon(doc: Document) -> str:
    daemon = doc.get("daemon") or {}
    if not daemon.get("running"):
        return "mrcd not running" + (f" (tables: ABI {doc['abi_version']})" if doc.get("abi_version") else "")
    if daemon.get("uptime_s") is None:
        return f"mrcd runs (pid {daemon.get('pid') or 'unknown'}), but does not answer on its socket"
    abi = f" (ABI {doc['abi_version']})" if doc.get("abi_version") else ""
    return (
        f"mrcd {text(daemon.get('version'))}{abi} running for {duration(daemon.get('uptime_s'))} "
        f"(pid {text(daemon.get('pid'))})"
    )


def _receive(receive: Document) -> str:
    """Return how popped packets are received: mrc0, flows spread over CPUs 0-1 (RPS), TCP segments merged (GRO)."""
    if not receive.get("interface"):
        return "the plane NICs"
    cpus = receive.get("rps_cpus")
    parts = [text(receive["interface"]), *([f"flows spread over CPUs {text(cpus)} (RPS)"] if cpus else [])]
    return ", ".join([*parts, *(["TCP segments merged (GRO)"] if receive.get("gro") else [])])


def _fleet(fleet: Document) -> str:
    """Return which cluster file this host runs, and what is wrong with its fleet: see `mrcctl fleet status`."""
    parts = ["its own file" if fleet.get("generation") is None else f"generation {fleet['generation']}"]
    refused = fleet.get("refused")
    if refused:
        parts.append(f"REFUSES generation {refused['generation']}: {refused['why']}")
    parts.append(f"ETCD IS AWAY: {fleet['away']}" if fleet.get("away") else f"etcd {text(fleet.get('connected'))}")
    return ", ".join(parts)


def _hook(hook: object, how: object, reason: object) -> str:
    if not hook:
        return "not attached"
    return text(hook) + (f" by {how}" if how else "") + (f" ({reason})" if reason else "")


def _peers(peers: Document) -> str:
    others = [f"{peers[k]} {k}" for k in ("unreachable", "detached") if peers.get(k)]
    known = f"{text(peers.get('reachable'))} of {text(peers.get('total'))} reachable"
    return ", ".join([known, *others])


def _critical(critical: Document) -> str:
    """Return the counts of critical packets: 1200 sent twice, 3 once; 1100 received, 7 of them by one path alone."""
    twice, once, received = (critical[name] for name in ("sent_twice", "sent_once", "delivered"))
    alone = max(0, received - critical["unchecked"] - critical["eliminated"])
    more = f", {count(once)} once (at times more than [overlay] copies_per_s)" if once else ""
    return f"{count(twice)} sent twice{more}; {count(received)} received, {count(alone)} of them by one path alone"


def _probing(probing: Document) -> str:
    """Return what runs the tick, and the probes sent by kind: the daemon runs the tick; sent: 1.2M traffic; budget …"""
    sent = ", ".join(f"{count(n)} {kind}" for kind, n in (probing.get("sent_probes") or {}).items())
    by = probing.get("tick_by")
    runner = f"the {by} runs the tick" if by else "nothing runs the tick until there is traffic"
    budget = f"budget {text(probing.get('budget_probes_per_s'))}/s, {text(probing.get('budget_left_probes'))} left"
    return f"{runner}; sent: {sent or 'none'}; {budget}"


def _fill(tables: Document) -> str:
    """Return the tables' use: EVs 48 of 1024, and so on. Event sizes are bytes."""
    words = {"evs": "EVs", "events": "unread events"}
    parts = []
    for name, fill in tables.items():
        unit = " bytes" if name == "events" else ""
        parts.append(f"{words.get(name, name)} {text(fill.get('used'))} of {text(fill.get('size'))}{unit}")
    return ", ".join(parts)


def _other_programs(docs: Sequence[Document]) -> str:
    """Return other BPF programs at mrcd's hooks, those that run before mrcd's first."""
    parts = []
    for f in sorted(docs, key=lambda f: f["position"] != "before"):
        order = {"before": "RUNS BEFORE MRCD'S", "after": "runs after mrcd's"}.get(f["position"], "mrcd has none there")
        name = f["program"] or f"program {text(f['program_id'])}"
        parts.append(f"{name} at {f['point']} of {f['interface']} ({order})")
    return "; ".join(parts)


def _transition(doc: Document) -> str:
    return f"{duration(doc.get('since_s'))} ago: {location(doc)} → {text(doc.get('state'))}, {text(doc.get('reason'))}"


def _planes(planes: Sequence[Document], colour: bool, width: int | None, age_s: float | None) -> list[str]:
    fields = (
        field("PLANE", "plane", right=True),
        field("INTERFACE", "interface"),
        field("LINK", lambda p: "up" if p.get("up") else "down"),
        field(aged("EVS USABLE", age_s), lambda p: f"{text(p.get('usable_evs'))}/{text(p.get('evs'))}", right=True),
        field("POP", "hook", rank=4),
        field("GATEWAY", "gateway_mac", rank=1),
        field("ADDRESS", "address", rank=2),
        field("SID", "sid", rank=3),
    )
    return table_of(fields, planes, colour=colour, width=width)


def _reasons(planes: Sequence[Document]) -> list[tuple[str, str]]:
    """Return per-plane notes: pop hook, burst segmentation, unsent packets. Planes with equal notes share a line."""
    notes: dict[tuple[str, Any], list[str]] = {}  # planes by kind and words
    for p in planes:
        unsent = p.get("unsent_packets") and count(p["unsent_packets"])
        pop = p.get("hook_reason") and "FALLBACK: " * bool(p.get("fallback")) + str(p["hook_reason"])
        cut = p.get("bursts") and f"{_SEGMENTED_BY.get(str(p['bursts']), p['bursts'])}: {text(p.get('bursts_reason'))}"
        lost = unsent and f"{unsent} packets dropped by this host's queueing discipline, not counted as path loss"
        for note in (("pop", pop), ("bursts", cut), ("unsent", lost)):
            if all(note):
                notes.setdefault(note, []).append(text(p.get("plane")))
    return [
        (name, f"plane{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {words}")
        for kind in ("pop", "bursts", "unsent")
        for (name, words), numbers in notes.items()
        if name == kind
    ]


def _states(counts: Document, usable: object, colour: bool) -> str:
    by_state = ", ".join(f"{count(counts[s])} {paint(s, colour)}" for s in STATES if counts.get(s))
    return f"{text(usable)} of {count(sum(counts.values()))} usable" + (f": {by_state}" if by_state else "")


def _denied(docs: Sequence[Document]) -> str:
    more = f"; and {len(docs) - _DENIALS_SHOWN} more: see denials" if len(docs) > _DENIALS_SHOWN else ""
    return "; ".join(map(denial, docs[:_DENIALS_SHOWN])) + more


def _is_gone(directory: object) -> bool:
    """Return whether the pins are missing in the mounts of this process; the daemon may have other mounts."""
    try:
        return not Path(str(directory), "links").exists()
    except PermissionError:
        return False


def _complete(document: Json) -> None:
    """Add what mrcd cannot see, because it has its own mounts and few capabilities."""
    pins = document.get("pins") or {}
    if pins and not pins.get("lost") and _is_gone(pins.get("directory")):
        pins["lost"] = f"nothing is pinned at {pins['directory']}"
        document["forwarding_without_daemon"] = {"works": False, "how": pins["lost"]}
    unnamed = [f for f in document.get("other_programs") or [] if not f["program"] and f["program_id"]]
    if unnamed and os.geteuid() == 0:
        from mrcd.kernel.attachments import program_name

        for f in unnamed:
            f["program"] = program_name(f["program_id"])


@command("Show what is wrong, the host, its planes, peers and EVs.")
@click.option("--brief", "-b", is_flag=True, help="One line.")
@click.option("--check", is_flag=True, help="One line for monitoring; exit status 0, 1 or 2.")
@wide_option
def status(options: Options, brief: bool, check: bool, wide: bool) -> None:
    """Show what is wrong now and what to do; then the host, daemon, hooks, planes, peers and EVs.

    `forwarding without the daemon` says whether programs and routes would keep working if mrcd died now.

    The exit status is 0 whatever it shows, 2 if there is nothing to show.

    --check prints one line, as plugins of Nagios do. Exit status 0: all well, or only denials of an administrator;
    1: loss, delay, single failed EVs, or a detached host; 2: something is dead, or mrcd does not answer.
    """
    if check:
        _check(options)
        return
    document, source, _ = read(options, "status")
    document = document | {"source": source}
    _complete(document)
    show(options, document, brief_lines if brief else status_lines, wide)


def _check(options: Options) -> None:
    """Print the line for monitoring, and exit with its status."""
    try:
        document, _, _ = read(options, "status", quiet=True)
        code, line = judged(document)
    except MrcdError as e:
        code, line, document = 2, f"CRITICAL - {e.args[0]}".replace("|", "/"), {}
    if options.json:
        emit(options, {"exit_code": code, "line": line, "diagnosis": document.get("diagnosis") or []}, list)
    else:
        click.echo(line)
    sys.exit(code)
