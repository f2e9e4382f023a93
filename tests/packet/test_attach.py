# SPDX-License-Identifier: BSD-2-Clause
"""Tests how programs are attached, replaced and listed: TCX links, clsact filters where the kernel has no TCX, XDP."""

import errno
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mrcd.config.sizes import MAX_PREFIXES
from mrcd.errors import KernelError, MachineError
from mrcd.kernel import abi, attachments, libbpf
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.libbpf import LinkInfo
from mrcd.kernel.links import Attachment, Links, Point
from mrcd.kernel.pinned import prefix_key
from tests.packet.packets import ETHERNET, H0, H2, datagram
from tests.packet.rig import Bench
from tests.packet.wires import needs_tcx, until


@pytest.fixture
def push(bench: Bench) -> Iterator[Attachment]:
    """Returns mrc_push in burst granularity, not attached yet."""
    bench.dataplane.detach_others(set())
    yield Attachment("push-egress", "mrc_push", "m0", bench.ifindex["m0"], "egress")
    bench.dataplane.detach_others(set())


@pytest.fixture
def no_tcx(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise KernelError("attach", errno.EINVAL)

    monkeypatch.setattr(libbpf, "create_link", refuse)


def _filters() -> list[str]:
    shown = subprocess.run(["tc", "-j", "filter", "show", "dev", "m0", "egress"], capture_output=True, text=True)
    found = json.loads(shown.stdout or "[]")
    return [f["options"]["prog"]["name"] for f in found if "prog" in f.get("options", {})]


@needs_tcx
def test_tcx_link_is_pinned_and_replaced_in_place(bench: Bench, push: Attachment) -> None:
    assert bench.dataplane.attach(push) == "tcx"
    pin = bench.dataplane.pins / "links" / "push-egress"
    inode = pin.stat().st_ino
    assert bench.dataplane.attach(push) == "tcx"
    assert pin.stat().st_ino == inode  # the same link with another program
    assert bench.dataplane.detach_others(set()) == ["push-egress"]
    assert not pin.exists()


@needs_tcx
def test_a_pin_of_another_link_is_replaced(bench: Bench, push: Attachment) -> None:
    """A reload that failed half-way may leave one."""
    bench.dataplane.attach(push)
    bench.dataplane.attach(replace(push, name="other", point="ingress"))
    pin = bench.dataplane.pins / "links" / push.name
    pin.unlink()
    (pin.parent / "other").rename(pin)
    bench.dataplane.attach(push)
    with libbpf.opened(pin) as fd:
        assert libbpf.fill(LinkInfo(), fd).attach_type == libbpf.TCX_EGRESS


@pytest.mark.usefixtures("no_tcx")
def test_clsact_filter_where_there_is_no_tcx(bench: Bench, push: Attachment) -> None:
    sender = bench.attach_push()
    assert _filters() == ["mrc_push"]
    assert bench.dataplane.attach(push) == "clsact"
    assert _filters() == ["mrc_push"]  # replaced, not stacked
    sender.send(ETHERNET / datagram(H0, H2))
    until("the packet is pushed", lambda: int(bench.tables.evs["tx_packets"][H2].sum()) == 1)
    assert bench.dataplane.detach_others({"push-egress"}) == []
    assert _filters() == ["mrc_push"]
    assert bench.dataplane.detach_others(set()) == ["push-egress"]
    assert _filters() == []
    assert not bench.dataplane.attached()


@pytest.mark.usefixtures("no_tcx")
def test_a_filter_that_another_program_removed_is_missing(bench: Bench, push: Attachment) -> None:
    bench.dataplane.attach(push)
    assert bench.dataplane.missing_filter() == ""
    subprocess.run(["tc", "qdisc", "del", "dev", push.interface, "clsact"], check=True)
    assert bench.dataplane.missing_filter() == push.name
    bench.dataplane.attach(push)
    assert bench.dataplane.missing_filter() == ""
    assert _filters() == ["mrc_push"]


@pytest.mark.usefixtures("no_tcx")
def test_a_filter_of_a_removed_interface_is_not_missing(bench: Bench) -> None:
    subprocess.run(["ip", "link", "add", "gone", "type", "veth", "peer", "name", "gone-end"], check=True)
    try:
        bench.dataplane.attach(Attachment("pop-gone", "mrc_pop", "gone", socket.if_nametoindex("gone"), "ingress"))
        assert bench.dataplane.missing_filter() == ""
    finally:
        subprocess.run(["ip", "link", "del", "gone"], check=True)
    assert bench.dataplane.missing_filter() == ""
    bench.dataplane.detach_others(set())


@pytest.mark.usefixtures("no_tcx")
def test_another_name_at_the_same_hook_keeps_the_filter(bench: Bench, push: Attachment) -> None:
    """As of two planes on one NIC, of which the first disappears."""
    bench.dataplane.attach(push)
    bench.dataplane.attach(replace(push, name="push-again"))
    assert bench.dataplane.detach_others({"push-again"}) == ["push-egress"]
    assert _filters() == ["mrc_push"]
    assert bench.dataplane.missing_filter() == ""


@pytest.mark.usefixtures("no_tcx")
def test_filter_of_an_earlier_run_is_found_and_removed(bench: Bench, push: Attachment) -> None:
    bench.dataplane.attach(push)
    later = Links(bench.dataplane.pins)  # of a new daemon, which does not know the filter
    assert later.attached()
    later.detach_others(set(), [(bench.ifindex["m0"], "egress"), (bench.ifindex["n0"], "ingress")])
    assert _filters() == []
    assert not later.attached()


def test_refused_native_xdp_says_so(bench: Bench) -> None:
    with pytest.raises(KernelError, match="attach"):
        bench.dataplane.attach(Attachment("xdp-lo", "mrc_pop_xdp", "lo", 1, "xdp"))
    assert not (bench.dataplane.pins / "links" / "xdp-lo").exists()


# ---- what mrcctl reads ----


@pytest.fixture
def attached(bench: Bench) -> Iterator[dict[str | None, tuple[str, str, str, str, bool]]]:
    """Attaches programs in each way, and returns what is to be listed."""
    bench.dataplane.detach_others(set())
    made: dict[str | None, tuple[str, Point, str, str, bool]] = {
        "push-egress": ("tcx", "egress", "m0", "mrc_push", True),
        "pop-0": ("tcx", "ingress", "n0", "mrc_pop", True),
        "pop-xdp-generic-0": ("xdp", "xdp-generic", "n0", "mrc_pop_xdp", True),
        "pop-xdp-1": ("xdp", "xdp", "n1", "mrc_pop_xdp", True),
    }
    for name, (_, point, interface, program, _) in made.items():
        bench.dataplane.attach(Attachment(str(name), program, interface, bench.ifindex[interface], point))
    yield dict(made)
    bench.dataplane.detach_others(set())
    assert links(bench) == {}


def links(bench: Bench) -> dict[str | None, tuple[str, str, str, str, bool]]:
    return {
        x["link"]: (x["type"], x["point"], x["interface"], x["program"], x["pinned"])
        for x in attachments.links(bench.dataplane.pins)
    }


@needs_tcx
def test_links_of_each_kind_are_listed(
    bench: Bench, attached: dict[str | None, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = bench.dataplane.pins / "links/a-gone"
    gone.symlink_to("nowhere")  # is listed, but cannot be opened: ENOENT, as for a pin that is removed meanwhile
    try:
        assert links(bench) == attached
    finally:
        gone.unlink()
    monkeypatch.setattr(attachments, "program_name", lambda number: None)  # without CAP_SYS_ADMIN the pins tell it
    assert links(bench) == attached


@pytest.mark.usefixtures("no_tcx")
def test_unpinned_filters_are_found(bench: Bench, push: Attachment) -> None:
    bench.dataplane.attach(push)
    assert links(bench) == {None: ("clsact", "egress", "m0", "mrc_push", False)}


def test_used_records_are_counted(bench: Bench) -> None:
    fill = bench.tables.fill()
    assert fill["evs"] == (sum(len(p.evs) for p in bench.plan.peers), bench.tables.evs.size)
    assert fill["prefixes"][0] == sum(len(h.prefixes) for h in bench.config.hosts)


@pytest.mark.parametrize("prefixes", [0, 1, 4095, 4096, 4097, 9000])
def test_prefixes_are_counted(bench: Bench, prefixes: int) -> None:
    """More than one batch of several thousand."""
    bench.dataplane.set_prefixes({prefix_key((n << 8).to_bytes(4, "big"), 24): H2 for n in range(prefixes)})
    assert bench.tables.fill()["prefixes"] == (prefixes, MAX_PREFIXES)


def test_prefixes_are_replaced_by_more_than_fit_beside_them(bench: Bench) -> None:
    keys = [prefix_key((n << 12).to_bytes(4, "big"), 20) for n in range(2 * MAX_PREFIXES)]
    for some in (keys[:MAX_PREFIXES], keys[MAX_PREFIXES:], keys[:1], keys[1:MAX_PREFIXES]):
        bench.dataplane.set_prefixes(dict.fromkeys(some, H2))
        assert bench.tables.fill()["prefixes"] == (len(some), MAX_PREFIXES)


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
