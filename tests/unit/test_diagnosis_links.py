# SPDX-License-Identifier: BSD-2-Clause
"""Tests that link probes rule out causes which EVs alone cannot tell apart."""

import pytest

from mrcd.daemon import write_tables
from mrcd.fabric.links import number
from mrcd.health.diagnosis.causes import Confidence
from tests.unit.test_diagnosis import LOSSY, Host, S, text

TWO_T0S = text(t0s=2)


def with_links(file: str = "") -> Host:
    """Returns a host whose link probes all came back a moment ago."""
    h = Host(file)
    write_tables.write_links(h.shown, h.plan)
    h.links["sent"] = h.links["received"] = 1000
    h.links["tx_ns"] = h.links["rx_ns"] = h.now
    return h


def lose(h: Host, plane: int, *t1s: int | None, ago_s: float = 60) -> Host:
    """Lets no probe of these links come back any more."""
    for t1 in t1s:
        h.links["rx_ns"][number(plane, t1)] = h.now - int(ago_s * S)
        h.links["unanswered"][number(plane, t1)] = 600
    return h


def named(h: Host) -> tuple[str, list[str]]:
    c = h.cause()
    assert c.confidence is (Confidence.AMBIGUOUS if c.or_targets else Confidence.LIKELY)
    return c.target, list(c.or_targets)


def test_evs_alone_do_not_tell_both_links_of_a_t1_apart() -> None:
    h = Host(TWO_T0S).set("link:1:1:2")
    assert named(h) == ("t1:1:2", ["link:1:0:2", "link:1:1:2"])


def test_a_t1_that_sends_probes_back_has_lost_its_other_link() -> None:
    h = with_links(TWO_T0S).set("link:1:1:2")
    assert named(h) == ("link:1:1:2", [])
    assert h.cause().sentence.startswith("Plane 1: the link between T0 1 and T1 2 lets nothing through: 3 of 3 EVs")


def test_a_t1_that_sends_no_probe_back_is_dead_or_its_link_to_this_hosts_t0() -> None:
    h = lose(with_links(TWO_T0S).set("t1:1:2"), 1, 2)
    assert named(h) == ("t1:1:2", ["link:1:0:2"])


def test_a_t1_that_came_back_for_a_moment_is_not_acquitted_while_it_is_dead() -> None:
    h = lose(with_links(TWO_T0S).set("t1:1:2"), 1, 2, ago_s=3)
    assert named(h) == ("t1:1:2", ["link:1:0:2"])


def test_a_t0_that_sends_probes_back_has_lost_its_t1s() -> None:
    h = lose(with_links().set("plane:1"), 1, 0, 1, 2, 3)
    assert (str(h.cause().kind), *named(h)) == ("own_t0", "t0:1:0", [])


def test_a_t0_that_sends_no_probe_back_is_dead_or_the_cable_to_it() -> None:
    h = lose(with_links().set("plane:1"), 1, None, 0, 1, 2, 3)
    assert named(h) == ("nic:h0:1", ["t0:1:0"])


def test_a_far_t0_is_told_from_this_hosts_own_where_the_t1s_send_probes_back() -> None:
    alone = text(t0s=2, hosts=1)
    assert Host(alone).set("plane:1").cause().or_targets
    h = with_links(alone).set("plane:1")
    assert "nic:h0:1" not in (h.cause().target, *h.cause().or_targets)
    assert "t0:1:0" not in (h.cause().target, *h.cause().or_targets)


@pytest.mark.parametrize("ago_s", [0.2, 61])
def test_probes_that_came_back_before_the_failure_tell_nothing(ago_s: float) -> None:
    h = with_links(TWO_T0S).set("link:1:1:2", ago_s=min(60, ago_s))
    h.links["rx_ns"] = h.now - int((ago_s if ago_s > 1 else 0) * S)
    assert named(h) == ("t1:1:2", ["link:1:0:2", "link:1:1:2"])


def test_no_link_is_judged_where_no_probe_ever_came_back() -> None:
    h = with_links(TWO_T0S).set("link:1:1:2")
    h.links["rx_ns"], h.links["unanswered"] = 0, 600
    assert named(h) == ("t1:1:2", ["link:1:0:2", "link:1:1:2"])


def test_probes_that_rule_out_everything_rule_out_nothing() -> None:
    h = with_links().set("t1:1:2")  # the T1 sends probes back: perhaps it fails for other packets
    assert named(h) == ("t1:1:2", ["link:1:0:2"])


def test_probes_tell_nothing_of_loss() -> None:
    h = with_links(TWO_T0S).set("link:1:1:2", LOSSY)
    assert named(h) == ("t1:1:2", ["link:1:0:2", "link:1:1:2"])
