# SPDX-License-Identifier: BSD-2-Clause
"""Tests the meaning of uSIDs: topology's numbering read backwards, for every planned path."""

from ipaddress import IPv6Address, IPv6Network

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.commands.paths import hop
from mrcd.fabric import topology
from mrcd.fabric.srv6 import hops
from tests.cluster_files import host

BLOCK = IPv6Network("5f00::/32")
FAR = host(0, t0=1, port=3) + host(1, t0=4, port=9)


def cluster(encapsulation: str, hosts: str = FAR) -> topology.Plan:
    text = f'[cluster]\nplanes = 3\nt0s = 5\nt1s = 7\nencapsulation = "{encapsulation}"\n{hosts}'
    return topology.plan(cluster_file.parse(text), "h0")


@pytest.mark.parametrize("encapsulation", ["usid", "srh"])
def test_every_planned_path_is_read_back(encapsulation: str) -> None:
    (peer,) = cluster(encapsulation).peers
    assert len(peer.evs) == 21
    for ev in peer.evs:
        found = hops(ev.segments, BLOCK)
        kinds = [("t0", 1), ("t1", ev.t1), ("t0", 4), ("host", 9)]
        assert [(h.kind, h.number) for h in found] == kinds
        assert {h.plane for h in found} == {ev.plane}
        assert [h.usid for h in found] == list(ev.usids)
        assert [h.segment for h in found] == ([0, 1, 2, 3] if encapsulation == "srh" else [0, 0, 0, 0])


def test_the_destination_is_what_the_hop_receives() -> None:
    found = hops([IPv6Address("5f00:0:4003:8002:4007:c001::")], BLOCK)
    assert [str(h.destination) for h in found] == [
        "5f00:0:4003:8002:4007:c001::",
        "5f00:0:8002:4007:c001::",
        "5f00:0:4007:c001::",
        "5f00:0:c001::",
    ]
    assert " → ".join(hop(h.document(), 0) for h in found) == "T0 3 → T1 2 → T0 7 → host port 1"
    assert hop(found[0].document(), 1) == "T0 3 (of plane 0)"


def test_six_usids_fill_a_carrier() -> None:
    found = hops([IPv6Address("5f00:0:1:4001:8001:4801:e006:c001")], BLOCK)
    assert [h.kind for h in found] == ["other", "t0", "t1", "t0", "other", "host"]
    assert [hop(h.document(), 0) for h in found][:4] == ["uSID 0001", "T0 1", "T1 1", "T0 1 (of plane 1)"]
    assert found[4].document() == {
        "segment": 0, "destination": "5f00:0:e006:c001::", "usid": "e006", "kind": "other", "plane": None,
        "number": None,
    }  # fmt: skip


def test_an_ecmp_path_is_only_an_address() -> None:
    (peer,) = cluster("ecmp").peers
    (only,) = hops(peer.evs[0].segments, BLOCK)
    assert (only.kind, only.usid, only.plane) == ("address", None, None)
    assert hop(only.document(), 0) == f"any way to {peer.addresses[0]}"
