# SPDX-License-Identifier: BSD-2-Clause
"""Tests that faults of a lab fire the right alerts, and no other, in a real Prometheus and Alertmanager.

`scripts/bench alerts` makes all faults. Here are some in which no daemon restarts, with shorter durations.
"""

from collections.abc import Iterator

import pytest

from labkit.bench.alerts import judge
from labkit.bench.alerts.cases import CASES, LAB
from labkit.bench.alerts.part import run_case, wait_until_over, wait_until_settled
from labkit.bench.diagnosis.part import RATE
from labkit.monitoring import alertmanager, prometheus
from labkit.monitoring.rules import Pace
from labkit.monitoring.watched_lab import WatchedLab, watched
from labkit.traffic.mesh import Mesh
from tests.lab.conftest import a_lab

BY_NAME = {case.name: case for case in CASES}
# A peer is silent after 3 s, and named two seconds later; until then other alerts may be pending, such as that EVs flap
# which two earlier faults have failed, too.
PACE = Pace(factor=150, least_for_s=8, most_for_s=8, least_range_s=1.5, scrape_s=0.25)
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedLab]:
    if not (prometheus.is_installed() and alertmanager.is_installed()):
        pytest.skip("Prometheus or Alertmanager is not installed: `make set-up` installs both")
    with (
        a_lab("alerts", **LAB) as lab,
        Mesh(lab, RATE),
        watched(lab, tmp_path_factory.mktemp("alerts"), PACE) as made,
    ):
        wait_until_over(made)
        yield made


@pytest.mark.parametrize("name", ["T1 dead", "own NIC down", "peer cut off, but scraped", "peer detached"])
def test_a_fault_fires_its_alerts_and_no_other(site: WatchedLab, name: str) -> None:
    result = run_case(site, BY_NAME[name], WITHIN_S)
    assert result["right"], result


def test_a_link_that_loses_packets_is_a_warning(site: WatchedLab) -> None:
    """It is the last fault, and its end is not tested here: hosts remember a loss for a minute."""
    case, first = BY_NAME["link loses 20 %"], len(site.alertmanager.inbox.fired)
    case.break_(site.lab)
    wait_until_settled(site, case, WITHIN_S)
    assert judge.errors(case.alerts, site.fired(first), ()) == []
