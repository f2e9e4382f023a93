# SPDX-License-Identifier: BSD-2-Clause
"""Tests that `scripts/bench check` gives Prometheus what `mrcctl fleet check` reads."""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from labkit.bench import fleet_check
from mrcd.fleet.check import read


def test_each_host_has_the_series_that_the_check_reads() -> None:
    text = fleet_check.exposition(fleet_check.CASES[0]).decode()
    instances: dict[str, Counter[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            instances.setdefault(sample.labels["instance"], Counter())[sample.name] += 1
    assert len(instances) == fleet_check.HOSTS
    expected = Counter([*read.HOST_METRICS, "mrc_build_info"]) + Counter({"mrc_plane_up": fleet_check.PLANES})
    assert all(found == expected for found in instances.values())


def test_a_case_changes_its_hosts_only() -> None:
    detached = fleet_check.CASES[2]
    values = [fleet_check.series(host, detached.differs(host))["mrc_attached"] for host in range(16)]
    assert values == [0, *[1] * 7] * 2
