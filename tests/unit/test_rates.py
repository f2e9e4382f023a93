# SPDX-License-Identifier: BSD-2-Clause
"""Tests the differences of two readings: rates, the busiest and the worst paths."""

from typing import Any

from mrcd.ctl import rates
from mrcd.ctl.commands import peers
from mrcd.ctl.rates import Sample
from tests.unit.canned_daemon import PATH, PEER


def path(ev: int, sent: int = 0, lost: int = 0, **other: Any) -> dict[str, Any]:
    """Returns EV `ev` after `sent` packets of 1000 bytes."""
    return {**PATH, "ev": ev, "tx_packets": sent, "tx_bytes": sent * 1000, "lost_packets": lost, **other}


def moved(*pairs: tuple[dict[str, Any], dict[str, Any]], seconds: float = 2.0) -> list[dict[str, Any]]:
    return rates.per_second(Sample(10.0, [a for a, _ in pairs]), Sample(10.0 + seconds, [b for _, b in pairs]))


def test_rates_are_per_second_and_loss_is_of_what_was_sent_meanwhile() -> None:
    (row,) = moved((path(5, 100, 50), path(5, 300, 60)))
    assert (row["tx_packets_per_s"], row["tx_bits_per_s"], row["lost_packets_per_s"]) == (100, 800_000, 5)
    assert row["loss_ratio"] == 0.05
    (idle,) = moved((path(5, 300, 60), path(5, 300, 60)))
    assert (idle["tx_packets_per_s"], idle["loss_ratio"]) == (0, 0.0)


def test_reset_counters_and_new_paths_have_no_rate() -> None:
    (fell,) = moved((path(5, 300), path(5, 20)))
    assert (fell["tx_packets_per_s"], fell["tx_bits_per_s"], fell["loss_ratio"]) == (None, None, None)
    (new,) = rates.per_second(Sample(0, []), Sample(1, [path(5, 20)]))
    assert new["tx_packets_per_s"] is None


def test_the_busiest_carry_something() -> None:
    rows = moved(*((path(ev), path(ev, sent)) for ev, sent in ((1, 10), (2, 0), (3, 30), (4, 20))))
    assert [r["ev"] for r in rates.busiest(rows, 2)] == [3, 4]
    assert [r["ev"] for r in rates.busiest(rows, 9)] == [3, 4, 1]


def test_the_worst_have_something_wrong() -> None:
    good, lossy = (path(1, 0), path(1, 100)), (path(2, 0), path(2, 100, 10))
    slow = (path(3), path(3, state="SKIP", rtt_ns=9_000_000, usable=True))
    bad = (path(4), path(4, state="ASSUMED_BAD", usable=False))
    denied = (path(5), path(5, state="DENIED", usable=False))
    cut = (path(6), path(6, usable=False))  # GOOD, but its plane is down
    rows = moved(good, lossy, slow, bad, denied, cut)
    assert [r["ev"] for r in rates.worst(rows, 9)] == [4, 5, 3, 2, 6]
    assert [r["ev"] for r in rates.worst(rows, 1)] == [4]


def test_a_peer_has_its_rates_and_the_usable_paths_of_each_plane() -> None:
    before = {**PEER, "tx_packets": 100, "tx_bytes": 1000, "lost_packets": 9}
    after = {**PEER, "tx_packets": 500, "tx_bytes": 401_000, "lost_packets": 11}
    (of_peer,) = rates.per_second(Sample(10.0, [before]), Sample(12.0, [after]))
    rows = [path(0, plane=0), path(5, plane=1), path(6, plane=1, usable=False)]
    (peer,) = peers.with_rates([after], {"h2": of_peer}, rates.usable_by_plane(rows))
    assert (peer["tx_packets_per_s"], peer["tx_bits_per_s"], peer["lost_packets_per_s"]) == (200, 1_600_000, 1)
    assert peer["planes"] == [{"plane": 0, "usable_evs": 1, "evs": 1}, {"plane": 1, "usable_evs": 1, "evs": 2}]


def test_a_revoked_loss_is_no_counter_reset() -> None:
    (row,) = rates.per_second(Sample(10.0, [path(0, 100, 5)]), Sample(12.0, [path(0, 300, 3)]))
    assert (row["tx_packets_per_s"], row["lost_packets_per_s"], row["loss_ratio"]) == (100, 0, 0.0)
