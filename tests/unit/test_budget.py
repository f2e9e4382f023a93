# SPDX-License-Identifier: BSD-2-Clause
"""Tests that bpf/arith.h refills a budget while another CPU charges it."""

import ctypes
import os
import threading

import pytest

from tests.unit.c_functions import build

SOURCE = """
#include "arith.h"

void refill(__s64 *budget, __s64 more, __s64 least, __s64 most)
{
	refill_budget(budget, more, least, most);
}

void refill_often(__s64 *budget, __u32 times)
{
	while (times--)
		refill_budget(budget, 3, -(1LL << 40), 1LL << 40);
}

void charge_often(__s64 *budget, __u32 times)
{
	while (times--)
		__sync_fetch_and_add(budget, -3);
}
"""


@pytest.fixture(scope="module")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("budget"), SOURCE)


@pytest.mark.parametrize(
    ("budget", "more", "after"),
    [(0, 5, 5), (98, 5, 100), (100, 0, 100), (150, 0, 100), (-70, 5, -50), (-60, 20, -40), (-10, 3, -7)],
)
def test_a_refill_keeps_the_bounds(budgets: ctypes.CDLL, budget: int, more: int, after: int) -> None:
    value = ctypes.c_int64(budget)
    budgets.refill(ctypes.byref(value), *map(ctypes.c_int64, (more, -50, 100)))
    assert value.value == after


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two CPUs")
def test_no_charge_is_lost_to_a_refill_on_another_cpu(budgets: ctypes.CDLL) -> None:
    value, times = ctypes.c_int64(7), 10_000_000
    two = [
        threading.Thread(target=function, args=(ctypes.byref(value), times))
        for function in (budgets.refill_often, budgets.charge_often)
    ]
    for thread in two:
        thread.start()
    for thread in two:
        thread.join()
    assert value.value == 7
