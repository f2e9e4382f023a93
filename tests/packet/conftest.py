"""The bench of tests/packet/rig.py as fixtures."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packet.rig import Bench, Setup


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Setup], Bench]]:
    """A data plane per set-up, loaded when it is first asked for."""
    if os.geteuid() != 0:
        pytest.skip("needs root: loads the programs, in a network namespace of their own")
    namespace = Path("/proc/thread-self/ns/net")
    home = namespace.stat().st_ino
    made: dict[Setup, Bench] = {}
    with contextlib.ExitStack() as undo:

        def get(setup: Setup) -> Bench:
            if setup not in made:
                made[setup] = Bench(tmp_path_factory.mktemp("bpffs"), setup)
                undo.callback(made[setup].close)
            return made[setup]

        yield get
    assert namespace.stat().st_ino == home


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Callable[[Setup], Bench]) -> Iterator[Bench]:
    """Host h0, as if nothing had ever happened. Parametrised indirectly with a Setup or a steering; usid if not."""
    param: Any = getattr(request, "param", "usid")
    with benches(param if isinstance(param, Setup) else Setup(param)).fresh() as b:
        yield b
