# SPDX-License-Identifier: BSD-2-Clause
"""Runs experiments 19b and 9b: planes of one host leave and return."""

from collections.abc import Sequence

from labkit.bench.paper import course, figures, plateaus
from labkit.bench.paper.figures import Curve, Plateau
from labkit.bench.paper.plateaus import Phase
from labkit.bench.part import SOURCE
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document

WARM_UP_S = 1.0
# Times of 19b; the paper's take 15 s. A returning plane has its share after 1.1 s.
PHASE_S, REMOVED_S, RETURNED_S, SILENT_S = 4.0, 1.2, 2.1, 5.0
FLAP_BEFORE_S, FLAP_AFTER_S = 3.0, 3.5
SHORT_BEFORE_S, SHORT_DOWN_S = 1.2, 1.6
FLAPS = 2  # at the paper's worst flap rate
FLAPS_PER_MINUTE = 13  # of the worst T0–T1 link of the paper's figure 5, read off the plot
_PARTS_19B, _PARTS_9B = 4, 2
_FIRST_19B_S, _FIRST_9B_S = 15.0, 5.4  # the paper's courses have no fault until then


def removed(lab: Lab, flows: int, *, full: bool, silent: bool) -> Document:
    """Removes one plane after the other until one is left, and restores them in the opposite order."""
    planes = lab.fabric.parameters.planes
    down_s, up_s = (SILENT_S, SILENT_S) if silent else (PHASE_S, PHASE_S) if full else (REMOVED_S, RETURNED_S)
    targets = [f"nic:{SOURCE}:{plane}" for plane in range(planes - 1)]
    phases = [Phase(0.0, planes)]
    returns_s = (len(targets) + 1) * down_s
    with course.run(lab, flows, WARM_UP_S, returns_s + len(targets) * up_s) as (c, measured):
        for n, target in enumerate(targets):
            c.go_on_until((n + 1) * down_s)
            at = c.fail(target, f"{_label(target)} removed", drop=1.0 if silent else None, down=not silent)
            phases.append(Phase(at, planes - n - 1))
        for n, target in enumerate(reversed(targets)):
            c.go_on_until(returns_s + n * up_s)
            phases.append(Phase(c.heal(target)[0], planes - len(targets) + n + 1))
    shares, found = paper_19b()
    how = "drops everything silently" if silent else "loses its carrier"
    return _document(
        "19b" + (" silent" if silent else ""),
        f"planes removed one by one, and restored: the NIC–T0 link of {SOURCE} {how}",
        measured,
        phases,
        shares,
        found,
    )


def flapped(lab: Lab, flows: int, full: bool) -> Document:
    """Removes half of the planes together, if `full` for as long as in the paper, and restores them."""
    p = lab.fabric.parameters
    shares, found = paper_9b()
    down_s, up_s = figures.edges(shares, found)
    phases = [Phase(0.0, p.planes)]
    targets = _half(lab)
    down_for_s = up_s - down_s if full else SHORT_DOWN_S
    before_s, after_s = (FLAP_BEFORE_S, FLAP_AFTER_S) if full else (SHORT_BEFORE_S, RETURNED_S)
    healed_s = before_s + down_for_s
    with course.run(lab, flows, WARM_UP_S, healed_s + after_s) as (c, measured):
        c.go_on_until(before_s)
        phases.append(Phase(min([c.fail(t, _label(t), down=True) for t in targets]), p.planes - len(targets)))
        c.go_on_until(healed_s)
        phases.append(Phase(min([c.heal(t)[0] for t in targets]), p.planes))
    words = f"half the planes flap: NIC–T0 links of {SOURCE} lose their carriers for {down_for_s:.1f} s"
    return _document("9b", words, measured, phases, shares, found)


def worst_flapping(lab: Lab, flows: int, full: bool) -> Document:
    """Removes and restores half of the planes at the rate of the worst link of figure 5, half of the time each."""
    targets, period_s = _half(lab), 60 / FLAPS_PER_MINUTE
    end_s = FLAP_BEFORE_S + FLAPS * period_s
    with course.run(lab, flows, WARM_UP_S, end_s) as (c, measured):
        for n in range(FLAPS):
            c.go_on_until(FLAP_BEFORE_S + n * period_s)
            for target in targets:
                c.fail(target, _label(target), down=True)
            c.go_on_until(FLAP_BEFORE_S + (n + 0.5) * period_s)
            for target in targets:
                c.heal(target)
    rates = measured["bits_per_s"]
    usual = plateaus.mean(rates, course.BIN_S, 0.0, FLAP_BEFORE_S)
    sample = round(paper_9b()[0].spacing_s / course.BIN_S)
    flapping = rates[round(FLAP_BEFORE_S / course.BIN_S) :]
    return measured | {
        "figure": "9b at 5's worst rate",
        "what": f"half the planes flap {FLAPS_PER_MINUTE} times a minute, the worst link's rate of figure 5",
        "usual_bits_per_s": usual,
        "mean_ratio": plateaus.mean(rates, course.BIN_S, FLAP_BEFORE_S, end_s) / usual if usual else None,
        "lowest_sample_ratio": min(plateaus.windows(flapping, sample)) / usual if usual else None,
        "sample_s": sample * course.BIN_S,
        "steps": [],
        "paper": None,
    }


def _half(lab: Lab) -> list[str]:
    return [f"nic:{SOURCE}:{plane}" for plane in range(lab.fabric.parameters.planes // 2)]


def _label(target: str) -> str:
    return f"plane {target.rpartition(':')[2]}"


def paper_19b() -> tuple[Curve, list[Plateau]]:
    """Returns figure 19b as shares of its usual level, and its plateaus."""
    return _paper("fig19b.csv", _FIRST_19B_S, _PARTS_19B)


def paper_9b() -> tuple[Curve, list[Plateau]]:
    """Returns figure 9b as shares of its usual level, and its plateaus."""
    return _paper("fig09b.csv", _FIRST_9B_S, _PARTS_9B)


def _paper(name: str, first_s: float, parts: int) -> tuple[Curve, list[Plateau]]:
    raw = figures.curve(name)
    shares = figures.scaled(raw, figures.usual(raw, first_s))
    return shares, figures.plateaus(shares, parts)


def _document(
    figure: str, what: str, measured: Document, phases: Sequence[Phase], shares: Curve, found: Sequence[Plateau]
) -> Document:
    """Returns a course with its steps, and the paper's beside it."""
    rates, end_s = measured["bits_per_s"], measured["seconds"]
    steps = plateaus.judged(rates, course.BIN_S, phases, end_s, shares.spacing_s)
    theirs = plateaus.papers(shares, found)
    return measured | {
        "figure": figure,
        "what": what,
        "usual_bits_per_s": plateaus.levels(rates, course.BIN_S, phases, end_s)[0],
        "undisturbed": plateaus.undisturbed(rates, course.BIN_S, phases[1].begin_s, shares.spacing_s),
        "steps": [s | {"paper": theirs[i] if i < len(theirs) else None} for i, s in enumerate(steps)],
        "paper": {
            "sample_s": shares.spacing_s,
            "points": figures.beside(shares, figures.edges(shares, found), [p.begin_s for p in phases[1:]], end_s),
        },
    }
