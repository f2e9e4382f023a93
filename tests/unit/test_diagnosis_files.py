# SPDX-License-Identifier: BSD-2-Clause
"""Tests how hosts find that their cluster files differ: by fingerprints in probes, by packets for other addresses."""

from typing import Any

import pytest

from mrcd.config import cluster_file
from mrcd.config.cluster_file import AGREED, FABRIC, fingerprint
from mrcd.health.diagnosis.causes import Confidence, Kind, Severity
from tests.unit.test_diagnosis import Host, text
from tests.unit.test_diagnosis_memory import causes, silent

OTHER, THIRD = 1234, 4321
VALUES: dict[str, Any] = {
    "block": "5f01::/32", "underlay": "fd11::/32", "planes": 3, "evs_per_peer": 12, "encapsulation": "ecmp",
    "udp_port": 4798, "t0s": 4, "t1s": 5,
}  # fmt: skip


def told(*rows: int, by: int = OTHER, file: str = "") -> Host:
    """Returns a host whose peers tell the fingerprint of its own file, except that `rows` tell another."""
    h = Host(file)
    h.peers["fingerprint"] = fingerprint(h.plan.config.cluster)
    h.peers["fingerprint"][list(rows)] = by
    return h


def test_each_key_that_hosts_must_agree_on_changes_the_fingerprint_and_no_other() -> None:
    here = cluster_file.parse(text()).cluster
    assert VALUES.keys() == {*AGREED, *FABRIC}
    prints = {fingerprint(here.model_copy(update={key: value})) for key, value in VALUES.items()}
    assert len(prints - {fingerprint(here)}) == len(VALUES)
    assert fingerprint(here.model_copy(update={"name": "other", "mtu": 1500})) == fingerprint(here)
    assert all(0 < n < 1 << 16 for n in prints)
    # Hosts compare it across versions: changing it makes all hosts differ while they are upgraded.
    assert fingerprint(cluster_file.Cluster()) == 30534


def test_a_peer_that_says_that_it_has_another_file() -> None:
    (c,) = told(4).causes()
    assert (c.kind, c.target, c.confidence, c.or_targets) == (Kind.CONFIG_DIFFERS, "peer:h4", Confidence.CERTAIN, ())
    assert c.kind.severity is Severity.CRITICAL
    assert c.sentence.startswith("h4 says that it has another cluster file: block, underlay, planes, evs_per_peer, ")
    assert "give h4 the file of the others" in c.do


def test_the_host_with_another_file_than_all_others_names_itself() -> None:
    h = told(*range(1, 9))
    (c,) = h.causes()
    assert (c.kind, c.target, c.confidence, c.share.peers) == (Kind.CONFIG_DIFFERS, "host:h0", Confidence.CERTAIN, 8)
    assert "give h0 the file of the others" in c.do


def test_evs_of_other_numbers_are_explained_and_other_faults_are_still_found() -> None:
    h = told(4).set("peer:h4 plane:1").set("t1:0:2")
    assert sorted(h.found()) == [("config_differs", "peer:h4"), ("t1", "t1:0:2")]
    # Nothing is said of T1s that only a wrong file knows.
    assert told(*range(1, 9)).set("t1:0:3").set("t1:1:3").found() == [("config_differs", "host:h0")]


def test_two_hosts_cannot_tell_which_file_is_wrong() -> None:
    (c,) = told(1, file=text(t0s=2, hosts=1)).causes()
    assert (c.target, c.or_targets, c.confidence) == ("peer:h1", ("host:h0",), Confidence.AMBIGUOUS)
    assert c.candidates("h0") == [(Kind.CONFIG_DIFFERS, "peer:h1"), (Kind.CONFIG_DIFFERS, "host:h0")]


def test_three_files() -> None:
    h = told(4, 5)
    h.peers["fingerprint"][6] = THIRD
    assert {c.target for c in h.causes()} == {"peer:h4", "peer:h5", "peer:h6"}
    assert all("3 of 8 peers say so" in c.sentence for c in h.causes())


def test_while_a_new_file_goes_round_a_large_cluster_only_some_are_named() -> None:
    h = told(*range(1, 20), file=text(t0s=2, hosts=20))
    assert len(h.causes()) == 8
    assert "19 of 39 peers say so" in h.causes()[0].sentence


@pytest.mark.parametrize("missing", ["not told", "silent", "never heard"])
def test_peers_of_which_nothing_is_known(missing: str) -> None:
    h = told(4, by=0 if missing == "not told" else OTHER)  # older versions tell nothing
    if missing == "silent":
        h.watches["silent"][4] = 1
    elif missing == "never heard":
        h.peers["heard_ns"][4] = 0
    assert Kind.CONFIG_DIFFERS not in {c.kind for c in h.causes()}


def test_packets_for_other_addresses_on_each_plane_of_a_host_to_which_nobody_answers() -> None:
    (c,) = causes(silent(), unroutable=(0, 1))
    assert (c.kind, c.target, c.confidence) == (Kind.CONFIG_DIFFERS, "host:h0", Confidence.LIKELY)
    assert "39 on p0, 39 on p1 in 10 s" in c.sentence
    (c,) = causes(silent(), unroutable=(1,))
    assert (c.kind, c.target) == (Kind.HOST, "host:h0")
