# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcctl reads of links and fill levels, and reading the ring buffer without consuming it."""

import errno
from typing import Any

import pytest

from mrcd.errors import KernelError, MachineError
from mrcd.kernel import abi, attachments, libbpf
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.links import Attachment
from mrcd.kernel.pinned import prefix_key
from mrcd.kernel.settings import PREFIXES_MAX
from tests.packet.cluster import H2
from tests.packet.kernel import needs_tcx
from tests.packet.rig import Bench


def attach(bench: Bench, name: str, program: str, interface: str, point: Any) -> None:
    bench.dataplane.attach(Attachment(name, program, interface, bench.ifindex[interface], point))


def links(bench: Bench) -> dict[str | None, tuple[str, str, str, str, bool]]:
    return {
        x["link"]: (x["type"], x["point"], x["interface"], x["program"], x["pinned"])
        for x in attachments.links(bench.dataplane.pins)
    }


@needs_tcx
def test_links_of_each_kind(bench: Bench) -> None:
    bench.dataplane.detach_others(set())
    attach(bench, "push-egress", "mrc_push", "m0", "egress")
    attach(bench, "pop-0", "mrc_pop", "n0", "ingress")
    attach(bench, "pop-xdp-generic-0", "mrc_pop_xdp", "n0", "xdp-generic")
    attach(bench, "pop-xdp-1", "mrc_pop_xdp", "n1", "xdp")
    try:
        assert links(bench) == {
            "push-egress": ("tcx", "egress", "m0", "mrc_push", True),
            "pop-0": ("tcx", "ingress", "n0", "mrc_pop", True),
            "pop-xdp-generic-0": ("xdp", "xdp-generic", "n0", "mrc_pop_xdp", True),
            "pop-xdp-1": ("xdp", "xdp", "n1", "mrc_pop_xdp", True),
        }
    finally:
        bench.dataplane.detach_others(set())
    assert links(bench) == {}


@needs_tcx
def test_a_link_removed_during_the_read_is_no_error(bench: Bench) -> None:
    attach(bench, "pop-0", "mrc_pop", "n0", "ingress")
    gone = bench.dataplane.pins / "links/a-gone"
    gone.symlink_to("nowhere")  # is listed, but cannot be opened: ENOENT, as for a removed pin
    try:
        assert links(bench).keys() == {"pop-0"}
    finally:
        gone.unlink()
        bench.dataplane.detach_others(set())


@needs_tcx
def test_without_cap_sys_admin_programs_are_known_by_their_pins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(bench, "push-egress", "mrc_push", "m0", "egress")
    attach(bench, "pop-0", "mrc_pop", "n0", "ingress")
    attach(bench, "pop-xdp-1", "mrc_pop_xdp", "n1", "xdp")
    told = {x["link"]: x["program"] for x in attachments.links(bench.dataplane.pins)}
    monkeypatch.setattr(attachments, "program_name", lambda number: None)  # as without CAP_SYS_ADMIN
    try:
        assert {x["link"]: x["program"] for x in attachments.links(bench.dataplane.pins)} == told
        assert told == {"push-egress": "mrc_push", "pop-0": "mrc_pop", "pop-xdp-1": "mrc_pop_xdp"}
    finally:
        bench.dataplane.detach_others(set())


def test_unpinned_filters_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_tcx(*_: object) -> int:
        raise KernelError("attach", errno.EINVAL)

    monkeypatch.setattr(libbpf, "create_link", no_tcx)
    bench.dataplane.detach_others(set())
    attach(bench, "push-egress", "mrc_push", "m0", "egress")
    try:
        assert links(bench) == {None: ("clsact", "egress", "m0", "mrc_push", False)}
    finally:
        bench.dataplane.detach_others(set())
    assert links(bench) == {}


def test_used_records_are_counted(bench: Bench) -> None:
    fill = bench.tables.fill()
    assert fill["evs"] == (sum(len(p.evs) for p in bench.plan.peers), bench.tables.evs.size)
    assert fill["prefixes"][0] == sum(len(h.prefixes) for h in bench.config.hosts)


@pytest.mark.parametrize("prefixes", [0, 1, 4095, 4096, 4097, 9000])
def test_prefixes_are_counted(bench: Bench, prefixes: int) -> None:
    """More than one batch of several thousand."""
    bench.dataplane.set_prefixes({prefix_key((n << 8).to_bytes(4, "big"), 24): H2 for n in range(prefixes)})
    assert bench.tables.fill()["prefixes"] == (prefixes, PREFIXES_MAX)


def test_no_pins_is_an_error_with_a_remedy(bench: Bench) -> None:
    with pytest.raises(MachineError, match="No such file") as error:
        attachments.links(bench.dataplane.pins / "nowhere")
    assert error.value.hint


def test_reading_the_ring_consumes_nothing(bench: Bench) -> None:
    assert bench.tables.fill()["events"][0] == 0
    for _ in range(2):
        # All records together are longer than the ring, so some lie across its end.
        for n in range(4000):
            state = EvState.DENIED if n % 2 == 0 else EvState.GOOD
            assert bench.dataplane.set_state(H2, 3, state, Reason.ADMIN, EvState)
        looked = bench.tables.unread_events()
        assert len(looked) == 4000
        assert {int(r["ev"]) for r in looked} == {3}
        assert bench.tables.fill()["events"][0] == 4000 * (abi.EVENT.itemsize + 8)
        assert (bench.events() == looked).all()
        assert len(bench.tables.unread_events()) == 0
