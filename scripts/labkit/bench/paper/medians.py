# SPDX-License-Identifier: BSD-2-Clause
"""Combines several runs of one experiment into one document: medians, and the middle run for the picture. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from labkit.cluster.observe import Document

_OF_A_STEP = ("level_ratio", "level_bits_per_s", "hole_ms", "settled_ms", "lowest_sample_ratio")
_OF_A_RUN = ("mean_ratio", "out_after_ms", "last_used_after_ms", "loss_ratio", "lowest_sample_ratio")


def combined(runs: Sequence[Document]) -> Document:
    """Returns the document of the run with the middle gaps and losses, its results replaced by the medians of all runs.

    Every step keeps the runs' own values as `holes_ms` and `errors`; `error_ratio` is that of the median level. A value
    that most of the runs never reached (None) stays None.
    """
    found = dict(sorted(runs, key=_badness)[(len(runs) - 1) // 2])
    found["rounds"] = len(runs)
    found["steps"] = [_step(steps) for steps in zip(*(r["steps"] for r in runs), strict=True)]
    found |= {k: middle([r[k] for r in runs]) for k in _OF_A_RUN if k in found}
    found["each"] = [{k: r[k] for k in ("usual_bits_per_s", "undisturbed", *_OF_A_RUN) if k in r} for r in runs]
    return found


def middle(values: Sequence[float | None]) -> float | None:
    """Returns the median; None is greater than all else."""
    known = sorted(v for v in values if v is not None)
    if 2 * len(known) <= len(values):
        return None
    return median(known) if len(known) == len(values) else known[(len(values) - 1) // 2]


def _step(steps: Sequence[Document]) -> Document:
    found: dict[str, Any] = dict(steps[0])
    found |= {k: middle([s[k] for s in steps]) for k in _OF_A_STEP}
    found["hole_after_ms"] = middle([s["hole_after_ms"] for s in steps])
    found["error_ratio"] = found["level_ratio"] / found["ideal_ratio"] - 1
    found["errors"] = [s["error_ratio"] for s in steps]
    found["holes_ms"] = [s["hole_ms"] for s in steps]
    return found


def _badness(run: Document) -> tuple[float, float]:
    longest = max((s["hole_ms"] for s in run["steps"]), default=0.0)
    return longest, -(run.get("mean_ratio") or 0.0)
