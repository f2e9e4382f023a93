"""The bench of tests/packet/rig.py as fixtures."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mrcd.config import Steering
from tests.packet.rig import Bench


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Steering], Bench]]:
    """A data plane per steering, loaded when it is first asked for."""
    if os.geteuid() != 0:
        pytest.skip("needs root: loads the programs, in a network namespace of their own")
    namespace = Path("/proc/thread-self/ns/net")
    home = namespace.stat().st_ino
    made: dict[Steering, Bench] = {}
    with contextlib.ExitStack() as undo:

        def get(steering: Steering) -> Bench:
            if steering not in made:
                made[steering] = Bench(tmp_path_factory.mktemp(steering), steering)
                undo.callback(made[steering].close)
            return made[steering]

        yield get
    assert namespace.stat().st_ino == home


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Callable[[Steering], Bench]) -> Iterator[Bench]:
    """Host h0, as if nothing had ever happened. Parametrised indirectly with a steering; usid if not."""
    with benches(getattr(request, "param", "usid")).fresh() as b:
        yield b
