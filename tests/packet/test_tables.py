# SPDX-License-Identifier: BSD-2-Clause
"""Tests tables over restarts: kept if they fit, otherwise made anew beside the old ones, with their peers and paths."""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mrcd.config.cluster_file import Encapsulation
from mrcd.daemon import write_tables
from mrcd.errors import KernelError, MachineError
from mrcd.fabric import topology
from mrcd.kernel import abi, btf, dataplane, libbpf
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables, change_field, read_node
from mrcd.kernel.verify import programs_of
from tests.packet.packets import ALL_PLANES, H1, H2, H5
from tests.packet.rig import Setup
from tests.packet.wires import Namespace, create_array, unmount

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes tables in the kernel"), pytest.mark.long]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    libbpf.use_bcc()
    whole = libbpf.load_object

    def load(obj: int) -> None:
        for name, program in programs_of(obj).items():
            libbpf.lib().bpf_program__set_autoload(ctypes.c_void_p(program), ctypes.c_bool(name in FEW))
        whole(obj)

    monkeypatch.setattr(libbpf, "load_object", load)
    monkeypatch.setattr(dataplane, "_PROGRAMS", FEW)


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    """A mount point for a BPF file system of the test, in a namespace of its own."""
    where = tmp_path / "bpf"
    namespace = Namespace()
    with namespace.inside():
        yield where
    unmount(where)
    namespace.close()


FEW = ("mrc_set_states",)
NAMES = {
    *("mrc_evs", "mrc_path_stats", "mrc_rxs", "mrc_srhs", "mrc_peers", "mrc_reports", "mrc_planes", "mrc_node"),
    *("mrc_idle_timers", "mrc_rotations", "mrc_drops", "mrc_histograms", "mrc_events", "mrc_prefixes"),
    "mrc_transitions",
}


def _start(bpffs: Path, evs: int = 16, encapsulation: Encapsulation = "usid", *, commit: bool = True) -> Dataplane:
    made = Dataplane(Setup(encapsulation, evs=evs).plan(), bpffs)
    made.load()
    if commit:
        made.commit()
    return made


def _identities(pins: Path) -> dict[str, int]:
    return {n: (pins / n).stat().st_ino for n in NAMES}


def _entries(path: Path) -> int:
    with libbpf.opened(path) as fd:
        return libbpf.map_info(fd)[2]


def test_tables_are_kept_until_others_of_another_size_are_committed(bpffs: Path) -> None:
    first = _start(bpffs)
    before = _identities(first.pins)
    first.close()
    _start(bpffs, 32, commit=False).close()  # fails before its commit
    again = _start(bpffs)
    assert not again.fresh
    assert _identities(again.pins) == before
    assert not (again.pins / "next").exists()
    again.close()
    other = _start(bpffs, 32, commit=False)
    assert other.fresh
    assert _identities(other.pins) == before
    assert _entries(other.tables / "mrc_evs") == 64 * 32
    other.commit()
    after = _identities(other.pins)
    assert not {n for n in NAMES if after[n] == before[n]}
    assert not (other.pins / "next").exists()
    other.close()


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
    found = [(e["host_id"], e["ev"], e["after"]) for e in second.events() if e["ev"] != abi.EVENT_IDLE_TIMEOUT]
    assert found == [(2, 5, EvState.GOOD)]
    assert len(second.events()) == 0
    second.close()


def test_pins_of_another_version_are_removed_after_the_takeover(bpffs: Path) -> None:
    first = _start(bpffs)
    first.close()
    old = first.pins.rename(first.pins.parent / "abi1")
    second = _start(bpffs, commit=False)
    assert second.fresh
    assert (old / "mrc_evs").exists()
    second.commit()
    assert not old.exists()
    assert (second.pins / "mrc_evs").exists()
    second.close()


# ---- migration ----


GOOD, BAD, DENIED = EvState.GOOD, EvState.ASSUMED_BAD, EvState.DENIED
STATES = {0: GOOD, 1: BAD, 5: DENIED, 10: GOOD}  # slots of h2, 4 per plane; the others are UNKNOWN

# Tables of an invented version: the same facts at other offsets.
OTHER = """
typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;
struct mrc_ev {
	u64 extra; u32 state; u8 srh_len; u8 plane; u8 configured; u8 reason;
	u8 dst[16]; u64 state_since_ns; u8 weight; u8 relapses; u8 pad[6];
};
struct mrc_peer {
	u8 address[8][16]; u64 ports_ns; u64 heard_ns; u32 status; u32 generation; u32 ports; u32 configured;
};
struct mrc_srh { u8 bytes[88]; };
struct mrc_node { u32 generation, plane_mask, status, colour; u64 extra; }; /* the first three are as in all versions */
#define ARRAY(name, entries, value_type) struct { \\
	int (*type)[2]; int (*map_flags)[1024]; int (*max_entries)[entries]; u32 *key; value_type *value; \\
} name __attribute__((section(".maps"), used))
ARRAY(mrc_evs, 8 * 16, struct mrc_ev);
ARRAY(mrc_peers, 8, struct mrc_peer);
ARRAY(mrc_srhs, 1, struct mrc_srh);
ARRAY(mrc_node, 1, struct mrc_node);
"""


def _plan(encapsulation: Encapsulation = "usid", evs: int = 16) -> topology.Plan:
    return Setup(encapsulation, evs=evs).plan()


def _filled(dataplane: Dataplane) -> Tables:
    tables = Tables(dataplane.tables, writable=True)
    tables.node["plane_mask"] = ALL_PLANES
    write_tables.write_peers(tables, dataplane.plan, dataplane.refresh)
    return tables


def _judge(dataplane: Dataplane, tables: Tables) -> None:
    """h2 has been heard, and some of its paths were judged."""
    tables.peers["heard_ns"][H2], tables.peers["plane_mask"][H2], tables.peers["generation"][H2] = 77, 0b1101, 99
    for number, state in STATES.items():
        reason = Reason.ADMIN if state is DENIED else Reason.LOSS if state is BAD else Reason.PROBED
        assert dataplane.set_state(H2, number, state, reason, list(EvState))
    tables.evs["flaps"][H2, 1] = 3
    tables.peers["key_ids"][H2, 0], tables.auths["status"][H2], tables.auths["clock_ns"][H2] = 7, 0, 88


def _known(tables: Tables, width: int) -> dict[int, EvState]:
    """h2's states by plane and slot, as numbers of a table that is 4 wide."""
    states = {i: EvState(int(s)) for i, s in enumerate(tables.evs["state"][H2]) if s}
    return {i // width * 4 + i % width: s for i, s in states.items()}


def _refuse(_: int) -> None:
    """As the kernel does without CAP_SYS_ADMIN."""
    raise KernelError("read the types of a table", errno.EPERM)


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
def test_tables_of_another_size_keep_the_states(
    bpffs: Path, encapsulation: Encapsulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(btf, "values", _refuse)
    first = _start(bpffs, encapsulation=encapsulation)
    tables = _filled(first)
    _judge(first, tables)
    since = int(tables.evs["state_since_ns"][H2, 5])
    tables.close()
    second = first.successor(_plan(encapsulation, evs=32))
    second.load()
    assert second.fresh
    new = _filled(second)
    assert _known(new, 8) == {}
    list(second.take_over(new))
    assert _known(new, 8) == STATES
    bad, denied = new.evs[H2, 1], new.evs[H2, 9]
    assert (bad["reason"], bad["flaps"], denied["reason"]) == (Reason.LOSS, 3, Reason.ADMIN)
    assert int(denied["state_since_ns"]) == since
    other = Tables(second.tables, writable=True)  # as if nothing had been taken over, and another host were h2
    other.evs[H2] = np.zeros((), abi.EV)
    other.peers[H2] = np.zeros((), abi.PEER)
    write_tables.write_peers(other, second.plan, second.refresh)
    list(second.take_over(other, {H2}))
    assert _known(other, 8) == {}
    assert (other.peers[H2]["heard_ns"], other.peers[H2]["generation"]) == (0, 0)
    list(second.take_over(other))
    other.close()
    peer = new.peers[H2]
    assert (peer["heard_ns"], peer["plane_mask"], peer["generation"]) == (77, 0b1101, 99)
    assert (peer["key_ids"][0], new.auths["status"][H2], new.auths["clock_ns"][H2]) == (7, 0, 88)
    assert int(peer["usable"][0]) & 0b11 == 0b01  # the good one carries, the failed one does not
    assert not new.evs["state"][[H1, H5]].any()
    new.close()
    first.close()
    second.commit()
    second.close()


def _other_tables(directory: Path, source: Path) -> dict[str, np.ndarray]:
    """Makes and pins the tables of OTHER. Returns them, mapped and writable."""
    source.write_text(OTHER)
    clang = shutil.which("clang-19") or shutil.which("clang")
    if clang is None:
        pytest.skip("there is no clang to compile another version's tables with")
    obj = source.with_suffix(".o")
    subprocess.run([clang, "--target=bpf", "-g", "-O2", "-c", source, "-o", obj], check=True, timeout=60)
    opened = libbpf.open_object(obj)
    libbpf.load_object(opened)
    directory.mkdir(parents=True)
    found = {}
    for name, m in libbpf.maps_of(opened).items():
        fd = libbpf.map_fd(m)
        libbpf.pin(fd, directory / name)
        layout = btf.values(fd)
        assert layout is not None
        shape = btf.map_shape(fd)
        area = mmap.mmap(fd, -(-shape.entries * shape.value_size // 4096) * 4096)
        found[name] = np.frombuffer(area, layout, shape.entries)
    libbpf.close_object(opened)
    return found


@pytest.mark.parametrize("told", [False, True], ids=["by the kernel", "by the last daemon"])
def test_tables_of_another_version_are_read_by_their_own_layout(
    bpffs: Path, tmp_path: Path, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Dataplane(_plan(), bpffs)
    old = _other_tables(second.pins.parent / "abi1", tmp_path / "other.c")
    layouts: dict[str, object] = {"mrc_peers": "nonsense", "mrc_evs": [["state", "<u4"]]}
    if told:
        found = {name: np.lib.format.dtype_to_descr(records.dtype) for name, records in old.items()}
        layouts = json.loads(json.dumps(found))
        monkeypatch.setattr(btf, "values", _refuse)
    old["mrc_node"]["status"], old["mrc_node"]["plane_mask"] = abi.STATUS_DETACHED, 0b1011
    second.load()
    assert second.fresh
    node = read_node(second.tables / "mrc_node")
    assert (int(node["status"]), int(node["plane_mask"])) == (abi.STATUS_DETACHED, 0b1011)
    assert change_field(second.pins.parent / "abi1" / "mrc_node", "status", lambda _: 0) == abi.STATUS_DETACHED
    assert old["mrc_node"]["status"] == [0]
    new = _filled(second)
    row = 3  # another one than h2 has now: it is known by its addresses
    old["mrc_peers"]["address"][row] = new.peers["address"][H2][:8]  # that version had so many planes
    for name, value in (("configured", 1), ("heard_ns", 77), ("plane_mask", 0b1101), ("generation", 99)):
        old["mrc_peers"][name][row] = value
    for number, state in STATES.items():
        record = old["mrc_evs"][row * 16 + number :][:1].reshape(())
        record["dst"], record["plane"] = new.evs["dst"][H2, number], new.evs["plane"][H2, number]
        record["configured"], record["state"], record["weight"] = 1, state, 8
    list(second.take_over(new, layouts=layouts))
    assert _known(new, 4) == STATES
    assert (new.peers["heard_ns"][H2], new.peers["plane_mask"][H2]) == (77, 0b1101)
    new.close()
    second.commit()
    assert not (second.pins.parent / "abi1").exists()
    second.close()


def test_unreadable_old_tables_do_not_prevent_a_start(bpffs: Path, caplog: pytest.LogCaptureFixture) -> None:
    second = Dataplane(_plan(), bpffs)
    old = second.pins.parent / "abi1"
    old.mkdir()
    _pin_array(old / "mrc_node", 16, 1)
    second.load()
    assert read_node(second.tables / "mrc_node")["status"] == abi.STATUS_DETACHED
    assert "may have been detached; run `mrcctl attach`" in caplog.text
    new = _filled(second)
    list(second.take_over(new))
    assert "all paths are probed again before use" in caplog.text
    new.close()
    second.commit()
    assert not old.exists()
    second.close()


def _pin_array(path: Path, value_size: int, entries: int) -> None:
    fd = create_array(value_size, entries)
    libbpf.pin(fd, path)
    os.close(fd)


def test_a_table_with_another_value_size_is_not_used_again(bpffs: Path) -> None:
    first = _start(bpffs)
    path = first.pins / "mrc_histograms"
    with libbpf.opened(path) as fd:
        before = btf.map_shape(fd)
    path.unlink()
    _pin_array(path, 2 * before.value_size, before.entries)
    second = first.successor(_plan())
    second.load()
    assert second.fresh
    second.commit()
    with libbpf.opened(path) as fd:
        assert btf.map_shape(fd) == before
    first.close()
    second.close()


def test_an_object_of_another_version_is_refused_before_anything_is_touched(
    bpffs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _start(bpffs).close()

    def pins() -> dict[str, int]:
        return {str(p): p.stat().st_ino for p in sorted(bpffs.rglob("*")) if not p.is_dir()}

    before = pins()
    assert len(before) > 10
    monkeypatch.setattr(abi, "ABI_VERSION", abi.ABI_VERSION + 1)  # a daemon of the next version, this object
    second = Dataplane(_plan(), bpffs)
    with pytest.raises(MachineError, match=f"ABI version {abi.ABI_VERSION - 1}, this mrcd needs") as refused:
        second.load()
    assert "reinstall" in (refused.value.hint or "")
    assert pins() == before
    monkeypatch.undo()
    again = _start(bpffs)  # the refused one has let go of the lock
    assert not again.fresh
    again.close()
