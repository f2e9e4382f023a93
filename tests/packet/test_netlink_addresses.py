# SPDX-License-Identifier: BSD-2-Clause
"""Tests the addresses of this host's interfaces: added, kept in order, and removed where they are mrcd's."""

from typing import Any

import pytest

from mrcd.errors import KernelError
from mrcd.net.netlink import Netlink
from tests.packet.wires import Namespace
from tests.packet.witness import as_root, ensure, run

pytestmark = as_root


def test_addresses_are_added_once_and_others_stay(ns: Namespace) -> None:
    mrc0, _ = ensure()
    ns.ip("addr", "add", "192.0.2.1/24", "dev", "mrc0")

    def shown() -> dict[str, Any]:
        return {a["local"]: a for link in ns.json("addr", "show", "dev", "mrc0") for a in link["addr_info"]}

    for _ in range(2):
        run(lambda n: n.sync_addresses(mrc0, ["10.99.0.1", "10.99.0.9", "fd00:99::1"], lambda _: False))
        assert {k: a["prefixlen"] for k, a in shown().items()} == {
            "192.0.2.1": 24, "10.99.0.1": 32, "10.99.0.9": 32, "fd00:99::1": 128,
        }  # fmt: skip
    run(lambda n: n.sync_addresses(mrc0, [], lambda _: False))
    assert len(shown()) == 4


def test_unwanted_addresses_of_mrcd_are_removed(ns: Namespace) -> None:
    mrc0, _ = ensure()
    run(lambda n: n.sync_addresses(mrc0, ["10.99.0.1", "10.98.0.1", "fd00:99::1"], lambda _: False))
    run(lambda n: n.sync_addresses(mrc0, ["10.99.0.2"], lambda a: a.startswith("10.99.")))
    left = {a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]}
    assert left == {"10.99.0.2", "10.98.0.1", "fd00:99::1"}


def test_addresses_keep_their_order(ns: Namespace) -> None:
    mrc0, _ = ensure()
    wanted = [f"10.99.0.{i}" for i in (5, 3, 9, 1, 7)]
    run(lambda n: n.sync_addresses(mrc0, wanted, lambda _: False))
    assert [a["local"] for a in ns.json("addr", "show", "dev", "mrc0")[0]["addr_info"]] == wanted


def test_an_address_of_another_prefix_length_counts_as_present(ns: Namespace, nics: tuple[int, int]) -> None:
    ns.ip("addr", "add", "fd10::1/64", "dev", "p0", "nodad")
    run(lambda n: n.sync_addresses(nics[0], ["fd10::1"], lambda _: True))
    found = ns.json("addr", "show", "dev", "p0")[0]["addr_info"]
    assert [a["prefixlen"] for a in found if a.get("local") == "fd10::1"] == [64]


def test_an_address_of_another_interface_does_not_count(ns: Namespace, nics: tuple[int, int]) -> None:
    async def work(n: Netlink) -> None:
        for nic in nics:
            await n.sync_addresses(nic, ["fd10::1", "10.1.1.1"], lambda _: False)

    run(work)
    for name in ("p0", "p1"):
        shown = {a["local"]: a for a in ns.json("addr", "show", "dev", name)[0]["addr_info"] if a["scope"] == "global"}
        assert shown.keys() == {"fd10::1", "10.1.1.1"}
        assert "tentative" not in shown["fd10::1"]  # usable at once, without duplicate address detection


def test_an_address_on_a_removed_interface_is_an_error(ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"add address fd10::1: .*ENODEV"):
        run(lambda n: n.sync_addresses(4711, ["fd10::1"], lambda _: False))
