# SPDX-License-Identifier: BSD-2-Clause
"""Tests the links that a host watches: their carriers, the pace of link probes, states, events, directions."""

from typing import Any

import numpy as np
import pytest

from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.fabric import links, topology
from mrcd.health.events import EventLog
from mrcd.health.links.verdicts import State, direction, grid, read
from mrcd.health.links.watch import LinkWatch, pace
from mrcd.kernel import abi
from tests.cluster_files import host
from tests.unit.arrays import Arrays

S = 1_000_000_000
PLANES, T1S, PER_S = 4, 6, 10
UNKNOWN, OK, LOSSY, DEAD = State


def plan_of(t1s: int = T1S, encapsulation: str = "usid", port: int = 1, idle_probes: int = 4000) -> topology.Plan:
    head = f'[cluster]\nt0s = 2\nt1s = {t1s}\nplanes = {PLANES}\nevs_per_peer = 32\nencapsulation = "{encapsulation}"\n'
    hosts = host(0, port=port) + host(1, t0=1, port=2) + f"[health]\nidle_probes = {idle_probes}\n"
    return topology.plan(cluster_file.parse(head + hosts), "h0")


# ---- carriers, tables, pace ----


def test_a_carrier_turns_round_at_the_end_of_its_link() -> None:
    found = {(x.plane, x.t1): x for x in links.links(plan_of())}
    assert len(found) == PLANES * (1 + T1S)
    assert str(found[0, None].carrier) == "5f00:0:4000:c001::"
    assert str(found[3, None].carrier) == "5f00:0:5800:cc01::"
    assert str(found[2, 5].carrier) == "5f00:0:5000:9005:5000:c801::"
    assert all(x.number == links.number(x.plane, x.t1) for x in found.values())
    assert max(x.number for x in found.values()) < links.table_size(T1S)


@pytest.mark.parametrize("encapsulation", ["srh", "ecmp"])
def test_no_link_is_watched_where_carriers_do_not_name_switches(encapsulation: str) -> None:
    assert list(links.links(plan_of(encapsulation=encapsulation))) == []


@pytest.mark.parametrize(("t1s", "entries"), [(0, 1024), (63, 1024), (64, 2048), (512, 9216)])
def test_the_table_grows_in_steps(t1s: int, entries: int) -> None:
    assert links.table_size(t1s) == entries


def tables_of(plan: topology.Plan) -> Any:
    arrays: Any = Arrays(2, 32)
    arrays.links = np.zeros(links.table_size(T1S), abi.LINK)
    write_tables.write_links(arrays, plan)
    return arrays


def test_a_link_keeps_its_counts_while_its_carrier_stays() -> None:
    arrays = tables_of(plan_of())
    arrays.links["sent"] = 7
    write_tables.write_links(arrays, plan_of(t1s=2))
    assert arrays.links["configured"].sum() == PLANES * 3
    assert arrays.links["sent"][links.number(1, 1)] == 7
    assert arrays.links[links.number(1, 4)].tobytes() == bytes(abi.LINK.itemsize)
    write_tables.write_links(arrays, plan_of(t1s=2, port=3))  # all carriers are others now
    assert arrays.links["sent"][links.number(1, 1)] == 0


@pytest.mark.parametrize("planes", [1, 4, 8])
@pytest.mark.parametrize("t1s", [0, 1, 4, 64, 512])
@pytest.mark.parametrize("idle_probes", [100, 4000, 100_000])
def test_link_probes_are_an_eighth_of_the_budget_at_most(planes: int, t1s: int, idle_probes: int) -> None:
    p = pace(idle_probes, planes, t1s)
    assert p.interval_s >= 0.1
    assert planes * (1 + p.t1s) / p.interval_s <= idle_probes / 8 + 0.001
    assert (p.t1s > 0) == (t1s > 0)


@pytest.mark.parametrize(("t1s", "idle_probes"), [(1, 4000), (6, 4000), (6, 100), (50, 4000)])
def test_all_t1s_take_turns(t1s: int, idle_probes: int) -> None:
    watch, sent = LinkWatch(EventLog()), list[tuple[int, int]]()

    def send(first: int, count: int) -> int:
        sent.append((first, count))
        return count

    watch.use_plan(plan_of(t1s, idle_probes=idle_probes))
    steps = max(1, -(-t1s // max(1, watch.pace.t1s)))
    for _ in range(steps):
        watch.probe(send)
    rows = [row for first, count in sent for row in range(first // abi.MAX_PLANES, (first + count) // abi.MAX_PLANES)]
    assert rows.count(0) == steps
    assert set(rows) == set(range(1 + t1s))


# ---- states ----


class Fabric:
    """Links that lose probes at random, with a watch of them. `loss[row, plane]` is that of a link, both ways."""

    def __init__(self, per_s: int = PER_S, t1s: int = T1S) -> None:
        self.plan, self.per_s = plan_of(t1s), per_s
        self.arrays = tables_of(self.plan) if t1s == T1S else None
        self.records = np.zeros((1 + t1s, PLANES), abi.LINK)
        self.loss = np.zeros(self.records.shape)
        self.events = EventLog()
        self.watch = LinkWatch(self.events)
        self.watch.use_plan(self.plan)
        self.chance = np.random.default_rng(1)
        self.now, self.mask, self.is_probed = 1000 * S, (1 << PLANES) - 1, True

    def run(self, seconds: int) -> None:
        """Runs so many seconds."""
        for _ in range(seconds):
            for _ in range(self.per_s if self.is_probed else 0):
                self.now += S // self.per_s
                self._probe()
            self.now += 0 if self.is_probed else S
            self.watch.update(read(self.records, self.mask, self.now))

    def _probe(self) -> None:
        r, linked = self.records, (self.mask >> np.arange(PLANES) & 1 != 0) & np.ones(self.loss.shape, bool)
        passed = 1 - self.loss
        passed[1:] *= passed[0]
        back = linked & (self.chance.random(passed.shape) < passed)
        r["lost"] = np.where(linked, r["sent"] - r["received"], r["lost"])
        r["sent"] += linked
        r["tx_ns"][linked] = self.now
        r["unanswered"] += linked
        r["received"] += back
        r["rx_ns"][back], r["unanswered"][back] = self.now, 0

    @property
    def bad(self) -> dict[tuple[int, int], State]:
        """Returns (row, plane) → state of the links that are not ok."""
        assert self.watch.verdicts
        states = self.watch.verdicts.states
        return {
            (r, p): State(states[r, p]) for r, p in zip(*(a.tolist() for a in np.nonzero(states != OK)), strict=True)
        }

    def told(self) -> list[tuple[str, str, str]]:
        """Returns the events: target, state before and after."""
        found = reversed(self.events.newest(1000))
        return [(e["evidence"]["target"], e["from"], e["to"]) for e in found if e["kind"] == "link"]


def test_a_dead_link_is_dead_after_two_seconds_and_ok_as_soon_as_probes_come_back() -> None:
    f = Fabric()
    f.run(20)
    f.loss[3, 1] = 1
    f.run(2)
    assert f.bad == {(3, 1): DEAD}
    assert f.watch.verdicts
    assert 1 <= (f.now - f.watch.verdicts.since_ns[3, 1]) / S <= 2.1  # since the last one came back
    f.run(300)
    assert f.bad == {(3, 1): DEAD}
    f.loss[3, 1] = 0
    f.run(1)
    assert f.bad == {}
    f.run(60)
    assert f.told() == [("link:1:0:2", "ok", "dead"), ("link:1:0:2", "dead", "ok")]


@pytest.mark.parametrize("loss", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("row", [0, 4])
def test_a_lossy_link_is_lossy_within_seconds_and_then_ok_again(row: int, loss: float) -> None:
    f = Fabric()
    f.run(20)
    f.loss[row, 2] = loss
    f.run(8)
    assert f.bad == {(row, 2): LOSSY}
    f.run(12)
    assert f.watch.verdicts
    recent = f.watch.verdicts.recent
    assert recent.lost[row, 2] / recent.judged[row, 2] == pytest.approx(loss, abs=0.12)
    f.run(40)
    assert f.bad == {(row, 2): LOSSY}
    f.loss[row, 2] = 0
    f.run(30 if loss < 0.2 else 10)  # small losses take longer to tell
    assert f.bad == {}
    name = "nic:h0:2" if row == 0 else "link:2:0:3"
    assert f.told() == [(name, "ok", "lossy"), (name, "lossy", "ok")]


def test_loss_on_the_way_to_the_t0_is_not_that_of_the_links_behind_it() -> None:
    f = Fabric()
    f.run(10)
    f.loss[0, 1], f.loss[0, 3] = 0.2, 0.03
    seen: set[tuple[int, int]] = set()
    for _ in range(120):
        f.run(1)
        seen |= f.bad.keys()
    assert seen <= {(0, 1), (0, 3)}
    f.loss[2, 1] = 0.5
    f.run(15)
    assert f.bad[2, 1] is LOSSY
    assert (1, 1) not in f.bad


def test_most_links_of_a_t0_may_be_lossy_while_the_nic_is_well() -> None:
    f = Fabric()
    f.run(10)
    f.loss[1:, 1] = 0.3
    f.run(12)
    assert f.bad == {(row, 1): LOSSY for row in range(1, 1 + T1S)}


def test_what_is_behind_a_dead_link_is_unknown() -> None:
    f = Fabric()
    f.run(10)
    f.loss[0, 2] = 1
    f.run(3)
    assert f.bad == {(0, 2): DEAD} | {(row, 2): UNKNOWN for row in range(1, 1 + T1S)}
    f.loss[0, 2] = 0
    f.run(2)
    assert f.bad == {}
    assert f.told() == [("nic:h0:2", "ok", "dead"), ("nic:h0:2", "dead", "ok")]


def test_a_nic_without_a_link_is_dead_and_its_event_is_the_planes() -> None:
    f = Fabric()
    f.run(10)
    f.mask &= ~1
    f.run(1)
    assert f.bad == {(0, 0): DEAD} | {(row, 0): UNKNOWN for row in range(1, 1 + T1S)}
    f.run(20)
    f.mask |= 1
    f.run(2)
    assert f.bad == {}
    assert f.told() == []


def test_a_link_dead_from_the_beginning_is_dead_and_unknown_if_no_probe_ever_came_back() -> None:
    f = Fabric()
    f.loss[1, 1] = 1
    f.run(5)
    assert f.bad == {(1, 1): DEAD}
    assert f.told() == [("link:1:0:0", "ok", "dead")]
    f = Fabric()
    f.loss[:] = 1
    f.run(30)
    assert set(f.bad.values()) == {UNKNOWN}
    assert f.told() == []


def test_links_that_are_not_probed_are_unknown() -> None:
    f = Fabric()
    f.run(10)
    f.is_probed = False
    f.run(4)
    assert set(f.bad.values()) == {UNKNOWN}
    f.is_probed = True
    f.run(2)
    assert f.bad == {}
    assert f.told() == []


@pytest.mark.parametrize("loss", [0, 0.0003])
def test_no_or_rare_losses_are_no_alarm(loss: float) -> None:
    f = Fabric()
    f.loss[:] = loss
    f.run(2)
    assert f.bad == {}
    f.run(1200 if loss else 30)
    assert f.told() == []
    assert loss or f.bad == {}


def test_new_tables_begin_anew() -> None:
    f = Fabric()
    f.loss[1, 1] = 0.5
    f.run(20)
    assert f.bad == {(1, 1): LOSSY}
    f.records[:] = np.zeros((), abi.LINK)
    f.loss[1, 1] = 0
    f.run(5)
    assert f.bad == {}


def test_a_link_that_is_probed_once_a_second_is_judged_by_a_longer_window() -> None:
    f = Fabric(per_s=1)
    f.run(60)
    f.loss[1, 1], f.loss[2, 2] = 1, 0.3
    f.run(6)
    assert f.bad[1, 1] is DEAD
    f.run(34)
    assert f.bad == {(1, 1): DEAD, (2, 2): LOSSY}


def test_the_watch_keeps_what_it_knows_if_a_new_plan_has_the_same_links() -> None:
    f = Fabric()
    f.loss[1, 1] = 1
    f.run(5)
    f.watch.use_plan(plan_of())
    assert f.bad == {(1, 1): DEAD}
    f.watch.use_plan(plan_of(t1s=5))
    assert f.watch.verdicts is None


def test_the_grid_of_a_table_is_by_row_and_plane() -> None:
    plan = plan_of()
    arrays = tables_of(plan)
    for x in links.links(plan):
        arrays.links["sent"][x.number] = 100 * (0 if x.t1 is None else 1 + x.t1) + x.plane
    expected = [[100 * row + plane for plane in range(PLANES)] for row in range(1 + T1S)]
    assert grid(arrays.links, plan)["sent"].tolist() == expected


# ---- directions ----


@pytest.mark.parametrize(
    ("loss", "probes", "lost", "known", "expected"),
    [
        (1.0, 5, 8, 8, "up"),  # nothing gets there
        (1.0, 5, 0, 8, "down"),  # all get there, and nothing comes back
        (0.2, 100, 7, 8, "up"),
        (0.2, 100, 0, 8, "down"),
        (0.2, 100, 2, 8, None),  # some EVs lose something, perhaps elsewhere
        (0.2, 1, 0, 8, None),  # too few probes on each EV
        (1.0, 5, 0, 0, None),  # no EV
    ],
)
def test_direction(loss: float, probes: float, lost: int, known: int, expected: str | None) -> None:
    has_lost, is_known = np.arange(10) < lost, np.arange(10) < known
    assert direction(loss, probes, has_lost, is_known) == expected
