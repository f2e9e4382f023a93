# SPDX-License-Identifier: BSD-2-Clause
"""Tests that link probes rule out causes which EVs alone cannot tell apart."""

from collections.abc import Callable
from typing import Any

import pytest

from mrcd.daemon import write_tables
from mrcd.fabric.links import number
from mrcd.health.diagnosis.causes import Confidence, Kind
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


def small(bad: str = "link:1:1:2", **how: Any) -> Host:
    """Returns a host of two T0s in which EVs through `bad` fail."""
    return with_links(TWO_T0S).set(bad, **how)


def never_answered() -> Host:
    h = small()
    h.links["rx_ns"], h.links["unanswered"] = 0, 600
    return h


def answered(h: Host, ago_s: float) -> Host:
    h.links["rx_ns"] = h.now - int(ago_s * S)
    return h


EITHER = ["t1:1:2", "link:1:0:2", "link:1:1:2"]


@pytest.mark.parametrize(
    ("host", "targets"),
    [
        (lambda: Host(TWO_T0S).set("link:1:1:2"), EITHER),
        (small, ["link:1:1:2"]),
        (lambda: lose(small("t1:1:2"), 1, 2), ["t1:1:2", "link:1:0:2"]),
        (lambda: lose(small("t1:1:2"), 1, 2, ago_s=3), ["t1:1:2", "link:1:0:2"]),
        (lambda: lose(with_links().set("plane:1"), 1, 0, 1, 2, 3), ["t0:1:0"]),
        (lambda: lose(with_links().set("plane:1"), 1, None, 0, 1, 2, 3), ["nic:h0:1", "t0:1:0"]),
        (lambda: answered(small(ago_s=0.2), 0), EITHER),
        (lambda: answered(small(), 61), EITHER),
        (never_answered, EITHER),
        (lambda: with_links().set("t1:1:2"), ["t1:1:2", "link:1:0:2"]),
        (lambda: small(fields=LOSSY), EITHER),
    ],
    ids=[
        "EVs alone",
        "the T1 sends probes back: its other link",
        "the T1 sends none back",
        "the T1 sends none back since a moment",
        "the T0 sends probes back: it has lost its T1s",
        "the T0 sends none back",
        "the failure is younger than the last probe's return can tell",
        "probes came back before the failure only",
        "no probe ever came back",
        "probes that rule out everything rule out nothing",
        "loss",
    ],
)
def test_what_link_probes_rule_out(host: Callable[[], Host], targets: list[str]) -> None:
    c = host().cause()
    assert [c.target, *c.or_targets] == targets
    assert c.confidence is (Confidence.AMBIGUOUS if c.or_targets else Confidence.LIKELY)


def test_what_the_diagnosis_says_of_a_link_or_an_own_t0() -> None:
    said = "Plane 1: the link between T0 1 and T1 2 lets nothing through: 3 of 3 EVs"
    assert small().cause().sentence.startswith(said)
    assert lose(with_links().set("plane:1"), 1, 0, 1, 2, 3).cause().kind is Kind.OWN_T0


def test_a_far_t0_is_told_from_this_hosts_own_where_the_t1s_send_probes_back() -> None:
    alone = text(t0s=2, hosts=1)
    assert Host(alone).set("plane:1").cause().or_targets
    h = with_links(alone).set("plane:1")
    assert "nic:h0:1" not in (h.cause().target, *h.cause().or_targets)
    assert "t0:1:0" not in (h.cause().target, *h.cause().or_targets)
