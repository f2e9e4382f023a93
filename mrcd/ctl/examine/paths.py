"""Checks of a running mrcd: the daemon, its peers, and what each EV really carries."""

from collections import Counter

from mrcd.ctl.examine.result import Answers, Context, Outcome, check, fail, passed, skip, some, warn

_IN_USE = ("GOOD", "SKIP")
_MISFITS = {
    "wrong_source": "the hosts' cluster files differ",
    "unknown_sender": "the hosts' cluster files differ",
    "wrong_receiver": "cables are swapped, or the hosts' cluster files differ",
    "wrong_plane": "cables are swapped",
    "bad_version": "the hosts run different versions of mrcd",
    "bad_ev": "evs_per_peer differs between the hosts",
    "glued": "a NIC merges packets: see nic.merging",
}


@check("daemon.running", "doctor")
def running(c: Context) -> Outcome:
    """Somebody decides the slow things."""
    if c.status is None:
        return fail(c.down or "mrcd does not answer", "systemctl start mrcd")
    daemon = c.status["daemon"]
    if not daemon["running"]:
        return fail(
            "mrcd is not running: EVs that were left do not come back into use",
            "systemctl start mrcd; journalctl -u mrcd",
        )
    return passed(f"mrcd {daemon['version']}, pid {daemon['pid']}")


@check("daemon.attached", "doctor")
def attached(c: Context) -> Outcome:
    """The data plane sprays."""
    if c.status is None:
        return skip("mrcd does not answer")
    if not c.status["attached"]:
        return warn("the data plane is detached: traffic takes the kernel's own routes", "mrcctl attach")
    return passed(f"{c.status['encapsulation']}, {c.status['granularity']} granularity")


@check("peers.reachable", "doctor")
def reachable(c: Context) -> Outcome:
    """Every peer of the file is heard."""
    if not c.peers:
        return skip("no peers are known")
    lost = [str(p["peer"]) for p in c.peers if not p["reachable"]]
    if len(lost) == len(c.peers):
        return fail(f"none of {len(c.peers)} peers is heard", "is mrcd up there? `mrcctl trace PEER --ev 0`")
    if lost:
        return warn(f"not heard: {some(lost)}", f"is mrcd up there? `mrcctl trace {lost[0]} --ev 0`")
    return passed(f"{len(c.peers)} peers are heard")


@check("drops.misfit", "doctor")
def misfits(c: Context) -> Outcome:
    """Drops that say that hosts disagree. They are counted since the tables were made."""
    if c.status is None:
        return skip("mrcd does not answer")
    found = {k: v for k, v in c.status["drops"].items() if k in _MISFITS}
    if found:
        worst = max(found, key=lambda k: found[k])
        return warn(some([f"{v} packets {k}" for k, v in found.items()]), f"{_MISFITS[worst]}; see `mrcctl status`")
    return passed("no drops that say that hosts disagree")


def _name(a: Answers) -> str:
    return f"{a.peer} EV {a.ev}"


def _to(c: Context) -> str:
    """To which peers, if not to all."""
    probed = {a.peer for a in c.answers}
    return "" if len(probed) == len(c.peers) else f" to {len(probed)} of {len(c.peers)} peers"


@check("paths.answer", "doctor")
def answer(c: Context) -> Outcome:
    """A probe on each EV, now. EVs that are known to be bad are no news."""
    if not c.answers:
        return skip("no probes were sent")
    silent = [a for a in c.answers if not a.small[1]]
    news = [a for a in silent if a.state in _IN_USE]
    if news:
        a = news[0]
        why = f": {a.small_error}" if a.small_error else ""
        return fail(
            f"no answer on EVs in use: {some([_name(x) for x in news])}{why}", f"mrcctl trace {a.peer} --ev {a.ev}"
        )
    if silent:
        states = ", ".join(f"{n} {s}" for s, n in Counter(a.state for a in silent).items())
        a = silent[0]
        return warn(
            f"no answer on {len(silent)} of {len(c.answers)} EVs{_to(c)}, which are out of use ({states})",
            f"mrcctl trace {a.peer} --ev {a.ev}",
        )
    return passed(f"all {len(c.answers)} EVs{_to(c)} answer")


@check("paths.mtu", "doctor", site=True)
def path_mtu(c: Context) -> Outcome:
    """Packets as long as the planes' MTU on each EV that answers short ones; a byte more, to see where it ends."""
    assert c.site is not None
    able = [a for a in c.answers if a.small[1] and a.state in _IN_USE]
    if not able:
        return skip("no EV in use answers")
    short = [a for a in able if not a.full[1]]
    if short:
        a = short[0]
        if a.full_error:
            return fail(
                f"{some([_name(x) for x in short])}: packets of {c.site.mtu} bytes are {a.full_error}", "see nic.mtu"
            )
        return fail(
            f"packets of {c.site.mtu} bytes vanish where short ones do not: {some([_name(x) for x in short])}",
            f"mrcctl trace {a.peer} --ev {a.ev} names the switches; set their MTU to {c.site.mtu} at least",
        )
    over, sent = [a for a in able if a.over[1]], [a for a in able if a.over[0]]
    beyond = "a byte more is refused by the NIC" if not sent else f"a byte more passes on {len(over)}"
    return passed(f"{c.site.mtu} bytes pass on {len(able)} EVs; {beyond}")


@check("overlay.mtu", "doctor", site=True)
def overlay_mtu(c: Context) -> Outcome:
    """Into mrc0: a full packet goes, a longer one is refused with a word, and never lost in silence."""
    assert c.site is not None
    if not c.overlay:
        return skip("no peer is sprayed to")
    wrong = {peer: why for peer, why in c.overlay.items() if why}
    if wrong:
        peer, why = next(iter(wrong.items()))
        return fail(f"to {peer}: {why}", "ip route show proto 77; ip link show mrc0; systemctl restart mrcd")
    return passed(f"{c.site.inner_mtu} bytes go to {len(c.overlay)} peers, a byte more is refused at once")
