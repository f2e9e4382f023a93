# SPDX-License-Identifier: BSD-2-Clause
"""Checks the mrcd that runs here: that it answers, what it knows, and the paths that it has."""

from collections import Counter

from mrcd.ctl.commands.status import named
from mrcd.ctl.examine.checks import Answers, Context, Document, Outcome, check, fail, passed, skip, warn
from mrcd.ctl.phrases import some

_IN_USE = ("GOOD", "SKIP")
_MISMATCHES = {
    "wrong_source": "the hosts' cluster files differ",
    "unknown_sender": "the hosts' cluster files differ",
    "wrong_receiver": "cables are swapped, or the hosts' cluster files differ",
    "wrong_plane": "cables are swapped",
    "bad_version": "the hosts run different versions of mrcd",
    "bad_ev": "evs_per_peer differs between the hosts",
    "untagged": "[auth] mode differs between the hosts, or packets are forged: docs/security.md",
    "unknown_key": "the hosts have no secret in common: `mrcctl keys status` on both",
    "bad_tag": "the hosts have different secrets under one id, or packets are forged: docs/security.md",
    "merged": "a NIC merges packets: see nic.merging",
    "wrong_inner_source": "the hosts' prefixes differ, or a peer routes for others ([overlay] source_check)",
    "wrong_inner_destination": "the hosts' prefixes differ, or a peer routes for others ([overlay] source_check)",
}


@check("daemon.running", "doctor")
def _running(c: Context) -> Outcome:
    if c.status is None:
        restart = "journalctl -u mrcd; systemctl restart mrcd"
        return fail(c.down or "mrcd does not answer", restart if c.is_alive else "systemctl start mrcd")
    daemon = c.status["daemon"]
    if not daemon["running"]:
        return fail(
            "mrcd is not running: changes of links, routes and configuration are not followed",
            "systemctl start mrcd; journalctl -u mrcd",
        )
    if daemon["uptime_s"] is None:
        return fail(
            f"mrcd (pid {daemon['pid'] or 'unknown'}) runs, but does not answer on its socket",
            "journalctl -u mrcd; systemctl restart mrcd",
        )
    return passed(f"mrcd {daemon['version']}, pid {daemon['pid']}")


@check("daemon.attached", "doctor")
def _attached(c: Context) -> Outcome:
    if c.status is None:
        return skip("mrcd does not answer")
    if not c.status["attached"]:
        return warn("the data plane is detached: traffic takes the kernel's own routes", "mrcctl attach")
    return passed(f"{c.status['encapsulation']}, {c.status['granularity']} granularity")


@check("paths.diagnosis", "doctor")
def _diagnosis(c: Context) -> Outcome:
    found = (c.status or {}).get("diagnosis")
    if found is None:
        return skip("mrcd does not answer, or is of an older version")
    faults = [f for f in found if f["severity"] != "ok"]
    if not faults:
        return passed("no fault is known" + (f"; denied: {some([f['target'] for f in found])}" if found else ""))
    evidence = some([f"{named(f)} ({f['sentence']})" for f in faults])
    make = fail if any(f["severity"] == "critical" for f in faults) else warn
    return make(evidence, str(faults[0]["do"]))


@check("peers.reachable", "doctor")
def _reachable(c: Context) -> Outcome:
    if not c.peers:
        return skip("no peers are known")
    lost = [str(p["peer"]) for p in c.peers if not p["reachable"]]
    if len(lost) == len(c.peers):
        return fail(f"none of {len(c.peers)} peers is heard", "check mrcd on the peers; `mrcctl trace PEER --ev 0`")
    if lost:
        return warn(f"not heard: {some(lost)}", f"check mrcd there; `mrcctl trace {lost[0]} --ev 0`")
    return passed(f"{len(c.peers)} peers are heard")


@check("drops.mismatch", "doctor")
def _mismatches(c: Context) -> Outcome:
    """Checks for drops caused by hosts that disagree, counted since the tables were created."""
    if c.status is None:
        return skip("mrcd does not answer")
    found = {k: v for k, v in c.status["drops"].items() if k in _MISMATCHES}
    if found:
        worst = max(found, key=lambda k: found[k])
        return warn(some([f"{v} packets {k}" for k, v in found.items()]), f"{_MISMATCHES[worst]}; see `mrcctl status`")
    return passed("no drops caused by hosts that disagree")


def _ev(a: Answers) -> str:
    return f"{a.peer} EV {a.ev}"


def _to(c: Context) -> str:
    """Return " to 3 of 5 peers", or nothing if all peers were probed."""
    probed = {a.peer for a in c.answers}
    return "" if len(probed) == len(c.peers) else f" to {len(probed)} of {len(c.peers)} peers"


def _causes_of(c: Context, peer: str) -> list[Document]:
    """Returns the causes of the diagnosis by which no EV to a peer answers: of the peer as a whole, or of this host."""
    status = c.status or {}
    targets = (f"peer:{peer}", f"host:{status.get('host')}")
    return [f for f in status.get("diagnosis") or () if f["severity"] != "ok" and f["target"] in targets]


@check("paths.answer", "doctor")
def _answer(c: Context) -> Outcome:
    """Checks that each EV answers a probe. Silence is only a warning if the EV is out of use, or a cause is known."""
    if not c.answers:
        return skip("no probes were sent")
    silent = [a for a in c.answers if not a.small.rtts]
    failed = [a for a in silent if a.state in _IN_USE]
    unexplained = [a for a in failed if not _causes_of(c, a.peer)]
    if unexplained:
        a = unexplained[0]
        error = f": {a.small.send_error}" if a.small.send_error else ""
        return fail(
            f"no answer on EVs in use: {some([_ev(x) for x in unexplained])}{error}",
            f"mrcctl trace {a.peer} --ev {a.ev}",
        )
    if failed:
        causes = {f"{f['cause']} {f['target']}": str(f["do"]) for a in failed for f in _causes_of(c, a.peer)}
        return warn(
            f"no answer on {len(failed)} EVs in use, because of {some(list(causes))}", next(iter(causes.values()))
        )
    if silent:
        states = ", ".join(f"{n} {s}" for s, n in Counter(a.state for a in silent).items())
        a = silent[0]
        return warn(
            f"no answer on {len(silent)} of {len(c.answers)} EVs{_to(c)}, which are out of use ({states})",
            f"mrcctl trace {a.peer} --ev {a.ev}",
        )
    return passed(f"all {len(c.answers)} EVs{_to(c)} answer")


@check("paths.mtu", "doctor")
def _path_mtu(c: Context) -> Outcome:
    """Checks that each answering EV carries packets of the planes' MTU, and whether a byte more passes."""
    able = [a for a in c.answers if a.small.rtts and a.state in _IN_USE]
    if not able:
        return skip("no EV in use answers")
    short = [a for a in able if not a.full.rtts]
    if short:
        a = short[0]
        if a.full.send_error:
            return fail(
                f"{some([_ev(x) for x in short])}: packets of {c.mtu} bytes are {a.full.send_error}", "see nic.mtu"
            )
        return fail(
            f"packets of {c.mtu} bytes are lost where short ones are not: {some([_ev(x) for x in short])}",
            f"mrcctl trace {a.peer} --ev {a.ev} names the switches; set their MTU to at least {c.mtu}",
        )
    over, sent = [a for a in able if a.over.rtts], [a for a in able if a.over.sent]
    beyond = "the NIC refuses a byte more" if not sent else f"a byte more passes on {len(over)}"
    return passed(f"{c.mtu} bytes pass on {len(able)} EVs; {beyond}")


@check("overlay.mtu", "doctor")
def _overlay_mtu(c: Context) -> Outcome:
    """Checks that mrc0 takes packets of the inner MTU, and that the kernel refuses longer ones with an error."""
    if not c.overlay:
        return skip("this host sprays to no peer")
    wrong = {peer: why for peer, why in c.overlay.items() if why}
    if wrong:
        peer, why = next(iter(wrong.items()))
        return fail(f"to {peer}: {why}", "ip route show proto 77; ip link show mrc0; systemctl restart mrcd")
    return passed(f"{c.wanted.inner_mtu} bytes are accepted for {len(c.overlay)} peers, a byte more is refused")
