# SPDX-License-Identifier: BSD-2-Clause
"""Renders GET /v1/status: the diagnosis, facts about the host, a table of its planes; or all of it in one line."""

from collections.abc import Sequence

from mrcd.ctl.documents.diagnosis import diagnosis_facts
from mrcd.ctl.documents.parts import STATES, aged, denial, location, plain_states, sentence, stale
from mrcd.ctl.terminal.render import Column, Document, count, duration, facts, paint, table, text

_DENIALS_SHOWN = 4
_FAULTS_SHOWN = 3  # in one line


def status_lines(doc: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return what is wrong, the facts about this host, then its planes."""
    peers, push = doc.get("peers") or {}, doc.get("push") or {}
    age_s = (doc.get("probing") or {}).get("tick_age_s")
    state = paint("attached" if doc.get("attached") else "detached", colour)
    pairs = [
        ("host", f"{text(doc.get('host'))} (id {text(doc.get('host_id'))}) of cluster {text(doc.get('cluster'))}"),
        ("daemon", _daemon(doc)),
        (
            "data plane",
            f"{state}, encapsulation {text(doc.get('encapsulation'))}, granularity {text(doc.get('granularity'))}, "
            f"inner MTU {text(doc.get('inner_mtu'))} bytes",
        ),
        ("push", _hook(push.get("hook"), push.get("how"), push.get("reason"))),
        *([("receive", _receive(doc["receive"]))] if doc.get("receive") else []),
        ("peers", _peers(peers)),
        ("EVs", _states(doc.get("evs") or {}, doc.get("usable_evs"), colour)),
        *([("", stale(age_s))] if stale(age_s) else []),
        *([("denied", _denied(doc["denials"]))] if doc.get("denials") else []),
        *([("fleet", _fleet(doc["fleet"]))] if (doc.get("fleet") or {}).get("etcd") else []),
        ("drops", ", ".join(f"{k} {count(v)}" for k, v in (doc.get("drops") or {}).items()) or "none"),
    ]
    if doc.get("probing"):
        pairs.append(("probes", _probing(doc["probing"])))
    if doc.get("other_programs"):
        pairs.append(("other BPF", _other_programs(doc["other_programs"])))
    pairs += [("kernel", f"lacks {words}") for words in doc.get("kernel_lacks") or ()]
    if (doc.get("pins") or {}).get("lost"):
        pairs.append(("pins", f"{doc['pins']['lost']}: see `mrcctl doctor`"))
    alone = doc.get("forwarding_without_daemon") or {}
    if alone:
        pairs.insert(3, ("", f"forwarding without the daemon: {text(alone.get('works'))} ({text(alone.get('how'))})"))
    if doc.get("tables"):
        pairs.append(("tables", _fill(doc["tables"])))
    if doc.get("last_transition"):
        pairs.append(("last change", _transition(doc["last_transition"])))
    if doc.get("last_event"):
        pairs.append(("last event", sentence(doc["last_event"])))
    lines = facts([*diagnosis_facts(doc), *pairs], width)
    planes = doc.get("planes") or []
    if planes:
        lines += ["", *_planes(planes, colour, width, age_s), *facts(_reasons(planes), width)]
    return lines


def brief_lines(doc: Document, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the most important facts about this host in one line."""
    daemon, peers, planes = doc.get("daemon") or {}, doc.get("peers") or {}, doc.get("planes") or []
    alone = doc.get("forwarding_without_daemon") or {}
    bad = {k: v for k, v in (doc.get("evs") or {}).items() if v and k != "GOOD"}
    evs = sum((doc.get("evs") or {}).values())
    dropped = sum((doc.get("drops") or {}).values())
    wrong = [str(c["target"]) for c in doc.get("diagnosis") or () if c.get("cause") != "denied"]
    parts = [
        text(doc.get("host")),
        *([f"WRONG: {', '.join(wrong[:_FAULTS_SHOWN])}" + ", …" * (len(wrong) > _FAULTS_SHOWN)] if wrong else []),
        paint("attached" if doc.get("attached") else "detached", colour),
        f"mrcd {paint(_running(daemon), colour)}",
        f"peers {text(peers.get('reachable'))}/{text(peers.get('total'))}",
        f"EVs {text(doc.get('usable_evs'))}/{evs}" + (f" ({plain_states(bad)})" if bad else ""),
        f"planes {sum(bool(p.get('up')) for p in planes)}/{len(planes)}",
        f"drops {count(dropped)}",
    ]
    if alone and not alone.get("works"):
        parts.append("needs the daemon to forward")
    if (doc.get("pins") or {}).get("lost"):
        parts.append("pins lost")
    if doc.get("other_programs"):
        parts.append(f"other programs {len(doc['other_programs'])}")
    fallbacks = sum(bool(p.get("fallback")) for p in planes)
    if fallbacks:
        parts.append(f"fallback hooks {fallbacks}")
    return ["  ".join(parts)]


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
        order = {"before": "RUNS BEFORE MRCD'S", "after": "runs after mrcd's"}.get(f["position"], "mrcd's is missing")
        name = f["program"] or f"program {text(f['program_id'])}"
        parts.append(f"{name} at {f['point']} of {f['interface']} ({order})")
    return "; ".join(parts)


def _transition(doc: Document) -> str:
    return f"{duration(doc.get('since_s'))} ago: {location(doc)} → {text(doc.get('state'))}, {text(doc.get('reason'))}"


def _planes(planes: Sequence[Document], colour: bool, width: int | None, age_s: float | None) -> list[str]:
    columns = [
        Column("PLANE", True),
        *map(Column, ("INTERFACE", "LINK")),
        Column(aged("EVS USABLE", age_s), True),
        Column("POP", rank=4),
        Column("GATEWAY", rank=1),
        Column("ADDRESS", rank=2),
        Column("SID", rank=3),
    ]
    rows = [
        [
            text(p.get("plane")),
            text(p.get("interface")),
            "up" if p.get("up") else "down",
            f"{text(p.get('usable_evs'))}/{text(p.get('evs'))}",
            text(p.get("hook")),
            text(p.get("gateway_mac")),
            text(p.get("address")),
            text(p.get("sid")),
        ]
        for p in planes
    ]
    return table(columns, rows, colour=colour, width=width)


_SEGMENTED_BY = {
    "nic": "the NIC segments them",
    "cpu": "THE CPU SEGMENTS THEM",
    "whole": "sent unsegmented",
    "unknown": "not known",
}


def _reasons(planes: Sequence[Document]) -> list[tuple[str, str]]:
    """Return per-plane notes: pop hook, burst segmentation, unsent packets. Planes with equal notes share a line."""
    pop: dict[str, list[str]] = {}  # words → planes
    cut: dict[str, list[str]] = {}
    unsent: dict[str, list[str]] = {}
    for p in planes:
        if p.get("unsent_packets"):
            n = count(p["unsent_packets"])
            words = f"{n} packets dropped by this host's queueing discipline, not counted as path loss"
            unsent.setdefault(words, []).append(text(p.get("plane")))
        if p.get("hook_reason"):
            words = "FALLBACK: " * bool(p.get("fallback")) + str(p["hook_reason"])
            pop.setdefault(words, []).append(text(p.get("plane")))
        if p.get("bursts"):
            words = f"{_SEGMENTED_BY.get(str(p['bursts']), p['bursts'])}: {text(p.get('bursts_reason'))}"
            cut.setdefault(words, []).append(text(p.get("plane")))
    return [
        (name, f"plane{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {words}")
        for name, found in (("pop", pop), ("bursts", cut), ("unsent", unsent))
        for words, numbers in found.items()
    ]


def _states(counts: Document, usable: object, colour: bool) -> str:
    by_state = ", ".join(f"{count(counts[s])} {paint(s, colour)}" for s in STATES if counts.get(s))
    return f"{text(usable)} of {count(sum(counts.values()))} usable" + (f": {by_state}" if by_state else "")


def _denied(docs: Sequence[Document]) -> str:
    more = f"; and {len(docs) - _DENIALS_SHOWN} more: see denials" if len(docs) > _DENIALS_SHOWN else ""
    return "; ".join(map(denial, docs[:_DENIALS_SHOWN])) + more
