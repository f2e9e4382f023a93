# SPDX-License-Identifier: BSD-2-Clause
"""Plans the faults, summarises them by name, and states the requirements. Pure.

Rounds of seven faults, each round at other places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from labkit.bench.failover import stats
from labkit.bench.failover.kinds import BLACKHOLE, HEAVY_LOSS, MS, Kind, Place
from labkit.bench.failover.stats import duration
from labkit.bench.part import SOURCE, TARGET, requirement
from labkit.cluster.observe import Document
from mrcd.ctl.terminal.render import percent

ROUND_S = 50.0
WHOLE_PLANE = (("p99", 3 * MS),)  # timed from before the fault to the last of several paths
FIRST, AGAIN, THIRD, LOSS, NIC = "t1-dies", "t1-dies-again", "t1-dies-third", "link-20", "nic-down"
DEATHS = (FIRST, AGAIN, THIRD)
NAMES = (*DEATHS, LOSS, NIC)
_WORDS = {
    FIRST: "a T1 forwards nothing for 1.5 to 2.5 s, its links stay up",
    AGAIN: "the same T1, as soon as its paths are in full use again",
    THIRD: "the same T1, once more",
    LOSS: "a T0–T1 link drops 20 % for so long",
    NIC: "the NIC–T0 link of h0, or of h2, loses its carrier for so long",
}


@dataclass(frozen=True)
class Step:
    """One fault of a round."""

    kind: Kind
    place: Place

    @property
    def target(self) -> str:
        """Returns the TARGET of `scripts/lab fail`."""
        return self.kind.at(self.place)


def steps(number: int, planes: int, t1s: int) -> list[Step]:
    """Returns the faults of a round.

    A flap is forgotten for each minute in which a path is in use. By order and places most are forgotten when the
    next fault hits the same path: no hold-down is longer than four times the first, and where a T1 dies three
    times, its paths' hold-downs are once, twice and four times the first.
    """
    t1, plane = number // planes, number % planes
    nic = f"nic:{(SOURCE, TARGET)[number % 2]}:{{plane}}"
    return [
        Step(Kind(NIC, _WORDS[NIC], nic, down=True, bounds=WHOLE_PLANE), Place((plane + 2) % planes, 0)),
        *(_death(name, plane, t1 % t1s) for name in DEATHS),
        *(_death(FIRST, plane, (t1 + n) % t1s) for n in (3, 2)),
        Step(
            Kind(LOSS, _WORDS[LOSS], "link:{plane}:0:{t1}", drop=0.2, bounds=HEAVY_LOSS), Place(plane, (t1 + 2) % t1s)
        ),
    ]


def _death(name: str, plane: int, t1: int) -> Step:
    return Step(Kind(name, _WORDS[name], "t1:{plane}:{t1}", bounds=BLACKHOLE), Place(plane, t1))


def words(name: str) -> str:
    """Returns the description of a fault of that name."""
    return _WORDS[name]


BACK_NS = 5_000_000_000
SLACK_NS = 100_000_000  # ticks are 20 ms apart
OUTLIER_NS = 3_000_000  # slower leaves are listed
FULL_SHARE = 0.9
_MS = 1_000_000


def limit_ns(due_ns: int, backoff_ns: int) -> int:
    """Returns the limit for an EV to be back after healing: 5 s or, if longer, its hold-down and what precedes it.

    The hold-down begins with the first probe that arrives: at most the longest probe interval after healing.
    """
    return max(BACK_NS, due_ns + backoff_ns + SLACK_NS)


def returns_of(faults: Sequence[Document]) -> list[Document]:
    """Returns all EVs of the flows that were left."""
    return [r for f in faults for r in f["returns"]]


def row(name: str, faults: Sequence[Document]) -> Document:
    """Returns percentiles of the faults of a name: those without daemons, and beside them those before."""
    mine = [f for f in faults if f["name"] == name]
    dead, alive = ([f for f in mine if f["killed"] is k] for k in (True, False))
    came = returns_of(dead)
    return {
        "name": name,
        "what": words(name),
        "faults": len(dead),
        "leave_ns": leaves(dead),
        "leave_ns_with_daemons": leaves(alive),
        "well_ns": stats.summary([None if r["well_ns"] is None else max(0, r["well_ns"]) for r in came]),
        "back_ns": stats.summary([r["back_ns"] for r in came]),
        "due_ns": stats.summary([r["due_ns"] for r in came]),
        "late_ns": stats.summary([r["hold_ns"] - r["due_ns"] if r["hold_ns"] is not None else None for r in came]),
        "share": stats.summary([-r["share"] if r["share"] is not None else None for r in came]),
        "idle_evs": sum(f["idle_evs"] for f in dead),
        "idle_left": sum(len(f["idle"]) for f in dead),
        "idle_back_ns": stats.summary([r["back_ns"] for f in dead for r in f["idle"]]),
    }


def rows(faults: Sequence[Document]) -> list[Document]:
    """Returns a row per name that occurs."""
    return [row(n, faults) for n in NAMES if any(f["name"] == n for f in faults)]


def leaves(faults: Sequence[Document]) -> Document:
    """Returns the times to leave, of both directions."""
    return stats.summary([w["leave_ns"] for f in faults for w in f["ways"]])


def series(faults: Sequence[Document]) -> list[Document]:
    """Returns for each round the T1 that died three times, and the hold-downs of one of its paths, due and as held."""
    found = []
    for number in sorted({f["number"] for f in faults}):
        mine = [f for f in faults if f["number"] == number]
        home = next((f["target"] for f in mine if f["name"] == DEATHS[1]), None)
        one = [f["returns"][0] for f in mine if f["target"] == home and f["name"] in DEATHS and f["returns"]]
        if len(one) > 1:
            holds = {"due_ns": [r["due_ns"] for r in one], "hold_ns": [r["hold_ns"] for r in one]}
            found.append({"round": number, "target": home, "killed": mine[0]["killed"], **holds})
    return found


def requirements(document: Document) -> list[Document]:
    """Returns the requirements."""
    dead = [f for f in document["faults"] if f["killed"]]
    found = (
        [requirement("without daemons all can be measured", False, document["failed"])] if document["failed"] else []
    )
    for names, what, bounds in (
        (DEATHS, "after the first drop, a T1 dies", BLACKHOLE),
        ((NIC,), "after the last packet that arrived, a NIC's link goes down", WHOLE_PLANE),
        ((LOSS,), "after the first drop, a link loses 20 %", HEAVY_LOSS),
    ):
        mine = [f for f in dead if f["name"] in names]
        if mine:
            found.append(stats.within(f"out of use {what}, no daemon", leaves(mine), bounds))
    if dead:
        found += [_back(dead, document["probe_backoff_ns"]), _holds(dead), _doubles(dead), _share(dead)]
    wrong = document["wrong_demotions"]
    said = f"{len(wrong)} in {len(document['faults'])} faults"
    found.append(requirement("no EV is demoted that no fault has hit", not wrong, said))
    found.append(_alone(document))
    return found


def _back(dead: Sequence[Document], backoff_ns: int) -> Document:
    came = returns_of(dead)
    late = [r for r in came if r["back_ns"] is None or r["back_ns"] > limit_ns(r["due_ns"], backoff_ns)]
    over = sum(r["back_ns"] is None or r["back_ns"] > BACK_NS for r in came)
    most = stats.summary([r["back_ns"] for r in came])["max"]
    longest = max((r["due_ns"] for r in came), default=0)
    return requirement(
        f"GOOD again within {duration(BACK_NS)} of healing, or, if that is more, within the hold-down due, "
        f"{duration(backoff_ns)} (the longest pause between two probes) and {duration(SLACK_NS)}",
        bool(came) and not late,
        f"{len(came) - len(late)} of {len(came)}; longest {duration(most)}, hold-downs up to {duration(longest)}; "
        f"{over} after more than {duration(BACK_NS)}; {restarted_hold_downs(dead)}",
    )


def restarted_hold_downs(faults: Sequence[Document]) -> str:
    """Returns the number of hold-downs restarted by a loss after healing, and the loss without a fault."""
    came = returns_of(faults)
    began = [r for r in came if r["began_anew"]]
    lost = sum(r["lost_meanwhile"] > 0 for r in began)
    sent, gone = (sum(f[k] for f in faults) for k in ("faultless_sent", "faultless_lost"))
    share = f"{percent(gone / sent)} % of packets" if sent else "unknown"
    return f"{len(began)} hold-downs restarted, {lost} of them by confirmed losses; loss without a fault: {share}"


def _holds(dead: Sequence[Document]) -> Document:
    """Returns the requirement that hold-downs are neither shorter than due nor noticeably longer."""
    came = returns_of(dead)
    off = [None if r["hold_ns"] is None else r["hold_ns"] - r["due_ns"] for r in came]
    known = [o for o in off if o is not None]
    met = bool(came) and all(o is not None and 0 <= o <= SLACK_NS for o in off)
    said = f"{min(known) / _MS:+.1f} to {max(known) / _MS:+.1f} ms of {len(came)}" if known else "none came back"
    return requirement(f"each hold-down lasts as long as due, and {duration(SLACK_NS)} longer at most", met, said)


def _doubles(dead: Sequence[Document]) -> Document:
    found = series(dead)
    due = [s["due_ns"] for s in found]
    held = "; ".join(", ".join(duration(h) for h in s["hold_ns"]) for s in found[:4])
    met = bool(due) and all(b == 2 * a for d in due for a, b in pairwise(d))
    return requirement("when a T1 dies repeatedly, each hold-down is twice the one before", met, held or "none")


def _share(dead: Sequence[Document]) -> Document:
    came = returns_of(dead)
    shares = [r["share"] for r in came]
    again = sum(r["again"] for r in came)
    known = [s for s in shares if s is not None]
    met = bool(came) and not again and len(known) == len(came) and min(known) >= FULL_SHARE
    least = f"least {percent(min(known))} %" if known else "none measured"
    return requirement(
        f"after the ramp each EV has a full share: {percent(FULL_SHARE)} % of the others' mean or more, and stays",
        met,
        f"{least} of {len(came)}; {again} failed again",
    )


def _alone(document: Document) -> Document:
    ticks = document["ticks"]
    told = ", ".join(
        f"{h}: {t['by_daemon']} by the daemon, {t['by_packet']} by the timer packet" for h, t in ticks.items()
    )
    met = not document["alive"] and all(t["by_daemon"] == 0 and t["by_packet"] > 0 for t in ticks.values())
    alive = f"; alive at the end: {', '.join(document['alive'])}" if document["alive"] else ""
    return requirement("no daemon runs at either end until the end, and the timer packet ticks", met, f"{told}{alive}")
