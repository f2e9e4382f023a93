# SPDX-License-Identifier: BSD-2-Clause
"""Tests loses_more() and is_plane_wide() of bpf/arith.h: their false alarms, and their detections."""

import ctypes
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

BPF = Path(__file__).parents[2] / "bpf"
WRAPPER = """
#include "arith.h"
int wrapped(__u32 losses, __u32 samples, __u32 others_losses, __u32 others_samples, __u32 evs, __u32 least)
{
	return loses_more(losses, samples, others_losses, others_samples, evs, least);
}
int wide(__u32 losses, __u32 lossy_evs, __u32 evs)
{
	return is_plane_wide(losses, lossy_evs, evs);
}
"""
LEAST = 10  # Health.loss_samples
CLAIM = 1e-8  # per look, as the comment says

LosesMore = Callable[[int, int, int, int, int, int], int]
PlaneWide = Callable[[int, int, int], int]  # losses, EVs with losses, EVs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("fairness")
    (directory / "fairness.c").write_text(WRAPPER)
    command = ["cc", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{BPF}", "fairness.c", "-o", "it.so"]
    subprocess.run(command, check=True, cwd=directory)
    return ctypes.CDLL(str(directory / "it.so"))


@pytest.fixture(scope="module")
def loses_more(built: ctypes.CDLL) -> LosesMore:
    built.wrapped.argtypes = [ctypes.c_uint32] * 6
    found: LosesMore = built.wrapped
    return found


@pytest.fixture(scope="module")
def is_plane_wide(built: ctypes.CDLL) -> PlaneWide:
    built.wide.argtypes = [ctypes.c_uint32] * 3
    found: PlaneWide = built.wide
    return found


def accused(loses_more: LosesMore, total: int, evs: int, samples: int) -> int:
    """Returns how many of `total` losses, with equal samples, make one EV stand out."""
    return next(
        (k for k in range(total + 1) if loses_more(k, samples, total - k, samples * (evs - 1), evs, LEAST)), total + 1
    )


def tail(n: int, share: float, least: int) -> float:
    """Returns P(X ≥ least) of a binomial X."""
    return math.fsum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(least, n + 1))


@pytest.mark.parametrize("evs", [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 128])
def test_chance_is_taken_for_failure_less_than_once_in_10_to_the_8(loses_more: LosesMore, evs: int) -> None:
    """Given all losses, those of one EV are binomial with its share: the worst case over all totals."""
    worst = max(tail(total, 1 / evs, accused(loses_more, total, evs, 1000)) for total in range(1, 400))
    assert 0 < worst < CLAIM


def test_of_two_evs_one_seems_worse_once_in_10_to_the_9(loses_more: LosesMore) -> None:
    worst = max(tail(total, 1 / 2, accused(loses_more, total, 2, 1000)) for total in range(1, 400))
    assert worst == 2**-30


def look(loses_more: LosesMore, losses: list[int], samples: int) -> list[int]:
    """Returns the EVs that judge.h fails: compared with those with few losses, unless these are the fewer."""
    innocent = [n for n in losses if n < LEAST]
    if len(innocent) < len(losses) - len(innocent):
        return []
    others = sum(innocent), samples * len(innocent)
    return [
        ev
        for ev, n in enumerate(losses)
        if n >= LEAST and loses_more(n, samples, *others, len(losses), LEAST)
    ]  # fmt: skip


@pytest.mark.parametrize("evs", [4, 8, 16, 64])
def test_equal_loss_is_not_compared_with_a_lucky_minority(loses_more: LosesMore, evs: int) -> None:
    """Without the suspects the others look better than they are, but not by that much."""
    chance = np.random.default_rng(evs)
    for mean in (0.5, 2, 5, 8, 9, 10, 11, 15, 40):
        for losses in chance.binomial(500, mean / 500, (3000, evs)).tolist():
            if max(losses) >= LEAST:
                assert look(loses_more, losses, 500) == [], (mean, losses)


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([10] + [0] * 15, [0]),
        ([9] + [0] * 15, []),
        ([40] * 8 + [0] * 8, list(range(8))),
        ([40] * 9 + [0] * 7, []),  # the fewer are no measure
        ([40] * 4 + [5] * 12, list(range(4))),
        ([34] * 4 + [5] * 12, []),
        ([20] + [0] * 6, [0]),
        ([19] + [0] * 6, []),
        ([20, 0, 0], [0]),
        ([19, 0, 0], []),
        ([30, 0], [0]),
        ([29, 0], []),
        ([20], []),
        ([0] * 16, []),
    ],
    ids=str,
)
def test_evs_that_lose_more_are_found(loses_more: LosesMore, losses: list[int], found: list[int]) -> None:
    assert look(loses_more, losses, 200) == found


def test_evs_with_more_samples_may_have_more_losses(loses_more: LosesMore) -> None:
    assert loses_more(30, 100, 60, 1500, 16, LEAST)
    assert not loses_more(30, 200, 60, 1500, 16, LEAST)
    assert not loses_more(2**32 - 1, 2**32 - 1, 2**32 - 1, 1, 16, LEAST)


def test_a_single_ev_never_loses_more(loses_more: LosesMore) -> None:
    assert not loses_more(1000, 1000, 0, 0, 1, LEAST)


def looks(is_plane_wide: PlaneWide, total: int, failed: int, evs: int) -> float:
    """Returns how often `total` losses on the first `failed` of `evs` EVs, at random, look like those of all."""
    chance = np.random.default_rng(total)
    losses = chance.multinomial(total, [1 / failed] * failed, 3000)
    lossy = np.count_nonzero(losses, axis=1).tolist()
    return float(np.mean([is_plane_wide(total, n, evs) for n in lossy]))


@pytest.mark.parametrize("evs", [64, 96, 128, 256])
def test_a_plane_whose_evs_lose_alike_is_found_in_one_look_of_two(is_plane_wide: PlaneWide, evs: int) -> None:
    for total in (32, 48, 64, 2 * evs):
        assert looks(is_plane_wide, total, evs, evs) > 0.5, total


@pytest.mark.parametrize("evs", [4, 8, 16])
def test_few_evs_are_alike_when_most_have_losses(is_plane_wide: PlaneWide, evs: int) -> None:
    assert is_plane_wide(evs // 2 + 1, evs // 2 + 1, evs)
    assert not is_plane_wide(evs // 2, evs // 2, evs)


@pytest.mark.parametrize("evs", [64, 96, 128])
def test_a_quarter_of_the_evs_is_not_taken_for_their_plane(is_plane_wide: PlaneWide, evs: int) -> None:
    for total in range(10, 4 * evs, 3):
        assert looks(is_plane_wide, total, evs // 8, evs) == 0, total
        assert looks(is_plane_wide, total, evs // 4, evs) < 0.01, total
