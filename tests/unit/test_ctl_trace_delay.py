# SPDX-License-Identifier: BSD-2-Clause
"""Tests how mrcctl trace locates a slow link or switch."""

import pytest

from mrcd.ctl.packets import delay, trace_probes
from tests.unit.trace_results import PATH, WITNESS, parts_id, round_trips

SLOW = [
    ({"T1 2"}, ["t1:1:2"]),
    ({"T0 0 → T1 2"}, ["link:1:0:2"]),
    ({"T1 2 → T0 1"}, ["link:1:1:2"]),
    ({"T0 1 → T1 2"}, ["link:1:1:2"]),
    ({"T1 2 → T0 1", "T0 1 → T1 2"}, ["link:1:1:2"]),
    ({"T0 1"}, ["t0:1:1"]),
    ({"T0 1 → h1"}, ["nic:h1:1"]),
    ({"h0 → T0 0"}, ["nic:h0:1"]),
]


@pytest.mark.parametrize("extra_us", [1000, 5000, 200_000])
@pytest.mark.parametrize(("slow", "targets"), SLOW, ids=parts_id)
def test_a_slow_part_is_located(slow: set[str], targets: list[str], extra_us: float) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = delay.locate(PATH, found, round_trips(found, slow, extra_us))
    assert said is not None
    assert list(dict.fromkeys(s.target for s in said.suspects)) == targets
    assert any(s.parts == slow for s in said.suspects)
    text = delay.verdict(PATH, said)
    assert text.startswith("slow in plane 1: ")
    assert "ms more than other links" in text
    assert delay.is_on_path(PATH, said) == ("do not pass it" not in text) == (slow != {"T0 1 → T1 2"})


def test_equal_links_are_not_slow() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    for extra_us in (0, 100):
        assert delay.locate(PATH, found, round_trips(found, {"T1 2"}, extra_us)) is None
    far_away = {t.name: 20_000 + 4_000_000 * (len(t.nodes) - 1) * (1 + t.is_answered) for t in found}  # long cables
    assert delay.locate(PATH, found, far_away) is None
    assert delay.locate(PATH, found, {}) is None
    assert delay.locate(PATH, found, {"T0 0": 5_000_000}) is None


def test_two_slow_parts_are_not_explained_as_one() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = delay.locate(PATH, found, round_trips(found, {"T1 2 → T0 1", "T1 0 → T0 0"}))
    assert said is not None
    assert said.suspects == ()
    assert "several links or switches" in delay.verdict(PATH, said)
