# SPDX-License-Identifier: BSD-2-Clause
"""Tests that each fault of `make mutants` still fits the code."""

from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant, holder

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.words)
def test_a_fault_can_be_planted(mutant: Mutant) -> None:
    assert holder(mutant, ROOT) is not None, f"tests/mutants.py: no file, or several, have {mutant.old!r}"
    assert all(any(ROOT.glob(pattern)) for pattern in mutant.tests.split()), mutant.tests
