# SPDX-License-Identifier: BSD-2-Clause
"""Tests tables over restarts: kept if they fit, otherwise made anew beside the old ones."""

import contextlib
import os
from pathlib import Path

import pytest

from mrcd.config import cluster_file, sizes
from mrcd.daemon import write_tables
from mrcd.errors import KernelError, MachineError
from mrcd.fabric import topology
from mrcd.kernel import abi, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables, change_field
from tests import cluster_files
from tests.packet.cluster import Setup

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes tables in the kernel"),
    pytest.mark.long,
]

NAMES = {
    *("mrc_evs", "mrc_path_stats", "mrc_rxs", "mrc_srhs", "mrc_peers", "mrc_reports", "mrc_planes", "mrc_node"),
    *("mrc_idle_timers", "mrc_rotations", "mrc_drops", "mrc_histograms", "mrc_events", "mrc_prefixes"),
    "mrc_transitions",
}


def _start(bpffs: Path, evs: int = 16, *, commit: bool = True) -> Dataplane:
    made = Dataplane(Setup(evs=evs).plan(), bpffs)
    made.load()
    if commit:
        made.commit()
    return made


def test_the_programs_load_with_the_most_planes(bpffs: Path) -> None:
    """The verifier walks the planes one by one, and must accept all of them."""
    fabric = f"[cluster]\nplanes = {abi.MAX_PLANES}\nt0s = 2\nt1s = 32\nevs_per_peer = {sizes.MAX_EVS_PER_PEER}\n"
    text = fabric + cluster_files.dual(0, 0, 0) + cluster_files.dual(1, 1, 0)
    made = Dataplane(topology.plan(cluster_file.parse(text), "h0"), bpffs)
    made.load()
    assert made.program("mrc_push") > 0
    made.close()


def _identities(pins: Path) -> dict[str, int]:
    return {n: (pins / n).stat().st_ino for n in NAMES}


def _entries(path: Path) -> int:
    with libbpf.opened(path) as fd:
        return libbpf.map_info(fd)[2]


def test_tables_that_fit_are_kept(bpffs: Path) -> None:
    first = _start(bpffs)
    before = _identities(first.pins)
    first.close()
    second = _start(bpffs)
    assert not second.fresh
    assert _identities(second.pins) == before
    second.close()


def test_other_sizes_make_new_tables_and_keep_the_old_ones_until_commit(bpffs: Path) -> None:
    first = _start(bpffs)
    before = _identities(first.pins)
    first.close()
    second = _start(bpffs, 32, commit=False)
    assert second.fresh
    assert _identities(second.pins) == before
    assert _entries(second.tables / "mrc_evs") == 64 * 32
    second.commit()
    after = _identities(second.pins)
    assert not {n for n in NAMES if after[n] == before[n]}
    assert not (second.pins / "next").exists()
    second.close()


def test_a_start_that_fails_before_commit_changes_nothing_for_the_next(bpffs: Path) -> None:
    first = _start(bpffs)
    before = _identities(first.pins)
    first.close()
    _start(bpffs, 32, commit=False).close()
    again = _start(bpffs)
    assert not again.fresh
    assert _identities(again.pins) == before
    assert not (again.pins / "next").exists()
    again.close()


def test_two_daemons_do_not_share_tables(bpffs: Path) -> None:
    first = _start(bpffs)
    with pytest.raises(MachineError, match="another mrcd"):
        _start(bpffs)
    first.close()
    _start(bpffs).close()


def test_an_interrupted_commit_is_finished_by_the_next_start(bpffs: Path) -> None:
    _start(bpffs).close()
    cut = _start(bpffs, 32, commit=False)
    wanted = {n: (cut.tables / n).stat().st_ino for n in NAMES}
    cut.tables.rename(cut.pins / "commit")
    (cut.pins / "commit" / "mrc_evs").rename(cut.pins / "mrc_evs")
    cut.close()
    again = _start(bpffs, 32)
    assert not again.fresh
    assert _identities(again.pins) == wanted
    again.close()


def test_the_detached_status_outlives_the_tables(bpffs: Path) -> None:
    first = _start(bpffs)
    tables = Tables(first.pins, writable=True)
    tables.node["status"] = abi.STATUS_DETACHED
    before = tables.node.copy()
    tables.close()
    first.close()
    second = _start(bpffs, 32)
    tables = Tables(second.pins, writable=False)
    assert tables.node["status"] == abi.STATUS_DETACHED
    assert 0 != tables.node["generation"] != before["generation"]
    tables.close()
    second.close()


def test_only_fields_of_a_mrc_node_are_written(bpffs: Path) -> None:
    made = _start(bpffs)
    for name in ("mrc_drops", "mrc_planes", "mrc_events"):  # what a link of that name may lead to
        with pytest.raises(KernelError, match="is not an mrc_node"):
            change_field(made.pins / name, "status", lambda status: status | 1)
    with pytest.raises(KernelError, match="has no field"):
        change_field(made.pins / "mrc_node", "colour", lambda colour: colour)
    made.close()


def test_no_probe_is_answered_while_programs_with_other_tables_take_their_places(bpffs: Path) -> None:
    def numbers() -> list[int]:
        return [int(t.node["generation"]) for t in (before, tables)]

    first = _start(bpffs)
    before = Tables(first.pins, writable=True)
    old = int(before.node["generation"])
    with first.replacing_programs(before.node):
        assert before.node["generation"] == 0  # none was attached: the first of them does not answer for the others
    (first.pins / "clsact").mkdir()  # as if filters were
    with first.replacing_programs(before.node):
        assert before.node["generation"] == old  # they are its own
    first.close()
    second = _start(bpffs, 32, commit=False)
    tables = Tables(second.tables, writable=True)
    new = int(tables.node["generation"])
    for changed in (False, True):
        with contextlib.suppress(KernelError), second.replacing_programs(tables.node):
            assert numbers() == [0, 0]
            second.changed = changed
            raise KernelError("attach", 22)
        assert numbers() == ([0, 0] if changed else [old, new])
    with second.replacing_programs(tables.node):
        assert numbers() == [0, 0]
    assert numbers()[0] == 0
    assert numbers()[1] != 0
    second.commit()
    tables.node["generation"] = 0  # the daemon was killed meanwhile
    with second.replacing_programs(tables.node):
        assert tables.node["generation"] == 0
    assert tables.node["generation"] != 0
    for each in (before, tables, second):
        each.close()


def test_unread_events_survive_a_restart(bpffs: Path) -> None:
    first = _start(bpffs)
    tables = Tables(first.pins, writable=True)
    write_tables.write_peers(tables, first.plan, first.refresh)
    assert first.set_state(2, 5, EvState.GOOD, Reason.PROBED, [EvState.UNKNOWN])
    tables.close()
    first.close()
    second = _start(bpffs)
    assert [(e["host_id"], e["ev"], e["after"]) for e in second.events()] == [(2, 5, EvState.GOOD)]
    assert len(second.events()) == 0
    second.close()


def test_pins_of_another_version_are_removed_after_the_takeover(bpffs: Path) -> None:
    first = _start(bpffs)
    first.close()
    old = first.pins.parent / "abi1"
    first.pins.rename(old)
    second = _start(bpffs, commit=False)
    assert second.fresh
    assert (old / "mrc_evs").exists()
    second.commit()
    assert not old.exists()
    assert (second.pins / "mrc_evs").exists()
    second.close()
