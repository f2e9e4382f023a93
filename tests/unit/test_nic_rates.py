# SPDX-License-Identifier: BSD-2-Clause
"""Tests what makes a NIC slower than the others."""

import pytest

from mrcd.net.nic_rates import NicRate, why_slower

G = 10**9
FAST = NicRate(100 * G)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([NicRate(), NicRate()], ""),
        ([FAST, FAST], ""),
        ([FAST, NicRate(10 * G)], "has a link of 10 Gbit/s, another one of 100 Gbit/s"),
        ([FAST, NicRate(51 * G)], ""),
        ([NicRate(), NicRate(10 * G)], ""),  # nothing to compare with
        ([FAST, NicRate(100 * G, "tbf", G // 2)], "has the qdisc tbf of 500 Mbit/s"),
        ([FAST, NicRate(10 * G, "htb")], "has the qdisc htb"),
        ([NicRate(None, "tbf", G), NicRate(None, "tbf", G)], ""),
        ([NicRate(None, "tbf", 3 * G), NicRate(None, "tbf", G)], "has the qdisc tbf of 1 Gbit/s"),
        ([NicRate(None, "htb"), NicRate(None, "htb")], ""),
    ],
)
def test_a_nic_is_slower_by_its_link_or_a_qdisc_that_the_others_do_not_have(rates: list[NicRate], words: str) -> None:
    assert why_slower(rates, 1) == words
    assert why_slower(rates, 0) == ""
