# SPDX-License-Identifier: BSD-2-Clause
"""Tests that the kernel's messages about deleted routes of mrcd, and no others, are reported."""

import select

import pytest

from mrcd.net.route_keeper import RouteWatch
from tests.packet.wires import Namespace
from tests.packet.witness import as_root

pytestmark = as_root


@pytest.mark.parametrize("network", ["10.9.0.0/24", "fd09::/64"])
def test_only_deletions_of_routes_of_mrcd_are_reported(ns: Namespace, nics: tuple[int, int], network: str) -> None:
    with RouteWatch() as watch:
        for protocol in ("static", "77"):
            ns.ip("route", "add", network, "dev", "p0", "proto", protocol)
            assert watch.drain() == 0
            ns.ip("route", "del", network, "dev", "p0")
            assert watch.drain() == (protocol == "77")
        ns.ip("route", "add", network, "dev", "p0", "proto", "77")
        ns.ip("route", "del", network, "dev", "p0")
        assert select.select([watch], [], [], 0)[0]
