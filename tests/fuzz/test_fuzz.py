# SPDX-License-Identifier: BSD-2-Clause
"""Fuzzes the headers of bpf/ with a fixed number of inputs, beginning with real packets. `make fuzz` runs more."""

import subprocess
from pathlib import Path

import pytest

from tests.fuzz import run

RUNS = 50_000  # per target; `make test-all` fuzzes for longer
LIMIT_S = 900  # of a target; a machine that is so slow has run fewer inputs
SET_UP = Path(__file__).parents[2] / "scripts" / "set-up"


@pytest.fixture(scope="module")
def built() -> None:
    try:
        run.compiler()
    except run.Unavailable:
        installed = subprocess.run([SET_UP, "--fuzz"], capture_output=True, text=True)
        if installed.returncode:
            pytest.skip("the fuzzing runtime (libclang-rt) cannot be installed on this machine")
    try:
        run.build()
    except run.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.long
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("target", run.TARGETS)
def test_no_input_violates_anything(target: str) -> None:
    result = run.fuzz(target, LIMIT_S, RUNS)
    assert result.finding is None, f"{result.finding}\n{result.output[-4000:]}"
    assert result.executions > 0
