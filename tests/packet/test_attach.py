# SPDX-License-Identifier: BSD-2-Clause
"""Tests how programs are attached: TCX links, clsact filters where the kernel has no TCX, replaced in place."""

import errno
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from mrcd.errors import KernelError
from mrcd.kernel import libbpf
from mrcd.kernel.libbpf import LinkInfo
from mrcd.kernel.links import Attachment, Links
from tests.packet.cluster import EVS, H2
from tests.packet.kernel import needs_tcx
from tests.packet.rig import Bench
from tests.packet.wires import until

PACKET = IP(src="10.99.0.1", dst="10.99.0.3") / UDP(sport=1, dport=9) / Raw(b"by whatever hook")


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
    sender.send(Ether(src="02:00:00:00:02:00", dst="02:00:00:00:02:01") / PACKET)
    until("the packet is pushed", lambda: sum(int(bench.ev(H2, n)["tx_packets"]) for n in range(EVS)) == 1)
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
