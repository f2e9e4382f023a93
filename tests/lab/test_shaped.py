# SPDX-License-Identifier: BSD-2-Clause
"""Tests that no path is blamed for pacing, shaping and priorities of the own host: those that the running kernel has.

`make test-kernels` also has fq, fq_codel and mqprio.
"""

from collections.abc import Callable, Iterator

import pytest

from labkit.cluster.api import Lab
from labkit.kernels import shaped
from mrcd.config.cluster_file import Granularity
from tests.lab.conftest import own_name


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with shaped.one_cpu():
        lab = Lab(own_name("shaped"))
        lab.up(**shaped.SHAPE)
        yield lab
        lab.down()


@pytest.fixture(scope="module", params=shaped.GRANULARITIES)
def granularity(lab: Lab, request: pytest.FixtureRequest) -> Granularity:
    shaped.set_granularity(lab, request.param)
    found: Granularity = request.param
    return found


CASES = [case for case in shaped.CASES if not case.modules]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_path_is_blamed(
    lab: Lab, granularity: Granularity, case: shaped.Case, record_property: Callable[[str, object], None]
) -> None:
    found = shaped.run_case(lab, case)
    if found is None:
        pytest.skip("this kernel has no such qdisc")
    record_property("measured", [found.words])
    assert not found.left, found.words
    if granularity in case.known and not found.ok:
        pytest.xfail(case.known[granularity])
    assert found.ok, found.words


def test_a_dead_path_is_blamed(lab: Lab) -> None:
    with shaped.tables(lab) as both:
        counts = shaped.Counts(both)
        lab.fail("t1:0:1")
        try:
            with shaped.Mix(lab, CASES[0]) as mix:
                mix.finish()
        finally:
            lab.heal()
        found = counts.new()
    assert found["left"], found
    assert found["lagged"], found
