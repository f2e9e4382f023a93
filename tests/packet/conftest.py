# SPDX-License-Identifier: BSD-2-Clause
"""Provides the fixtures of these tests: the bench of rig.py, and namespaces for the netlink tests (witness.py)."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mrcd.errors import KernelError
from tests.packet.clock import now
from tests.packet.packets import H1, H5
from tests.packet.reports import Reporter
from tests.packet.rig import Bench, BenchPlane, Setup, setup_of
from tests.packet.ticks import postpone, run_tick, with_deadlines
from tests.packet.wires import Namespace, Tap
from tests.packet.witness import alone, ifindex

KEPT = 6  # benches, of some 50 descriptors each


@pytest.fixture(scope="session")
def kept() -> Iterator[dict[Setup | None, Bench]]:
    """Returns the loaded data planes by set-up, the last used one last."""
    if os.geteuid() != 0:
        pytest.skip("needs root: loads the programs, in a network namespace of their own")
    namespace = Path("/proc/thread-self/ns/net")
    home = namespace.stat().st_ino
    made: dict[Setup | None, Bench] = {}
    yield made
    for each in made.values():
        each.close()
    assert namespace.stat().st_ino == home


@pytest.fixture(scope="module")
def benches(
    kept: dict[Setup | None, Bench], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Setup], Bench]]:
    """Returns a function that gives a data plane with a set-up, to which no other module's programs are attached.

    There is one for all set-ups, because to load one takes the verifier a second; on some kernels one per set-up.
    """

    def made(setup: Setup) -> Bench:
        try:
            return Bench(tmp_path_factory.mktemp("bpffs"), setup)
        except KernelError:
            if not BenchPlane.changeable:
                raise
            warnings.warn("this kernel's verifier must know the settings: one load per set-up", stacklevel=2)
            BenchPlane.changeable = False
            return made(setup)

    def get(setup: Setup) -> Bench:
        key = None if BenchPlane.changeable else setup
        if key not in kept and len(kept) == KEPT:
            kept.pop(next(iter(kept))).close()
        kept[key] = kept.pop(key) if key in kept else made(setup)  # as the last one
        return kept[key].use(setup)

    yield get
    for each in kept.values():
        each.detach()


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Callable[[Setup], Bench]) -> Iterator[Bench]:
    """Host h0 in its initial state. Parametrised indirectly with a Setup or an encapsulation; by default usid."""
    with benches(setup_of(request)).fresh() as b:
        yield b


@pytest.fixture
def ns() -> Iterator[Namespace]:
    """A namespace in which the test runs; afterwards nothing of it is left."""
    with alone() as namespace:
        yield namespace


@pytest.fixture
def nics(ns: Namespace) -> tuple[int, int]:
    """p0 and p1, up, with addresses of the host. Returns their numbers."""
    for name in ("p0", "p1"):
        ns.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-far")
        ns.ip("link", "set", f"{name}-far", "up")
        ns.ip("link", "set", name, "up", "mtu", "9100")
    ns.ip("addr", "add", "10.99.0.1/32", "dev", "lo")
    ns.ip("addr", "add", "fd00:99::1/128", "dev", "lo", "nodad")
    return ifindex(ns, "p0"), ifindex(ns, "p1")


@pytest.fixture
def h2_bench(bench: Bench) -> Bench:
    """Bench on which the tick serves only the peer h2, and sweeps it rarely."""
    postpone(bench, H1, H5)
    bench.tables.node["idle_us"] = 3_600_000_000
    bench.tables.watches["swept_ns"] = now()
    run_tick(bench)  # removes the deadlines of EVs that are GOOD
    assert with_deadlines(bench) == []
    return bench


@pytest.fixture
def r(bench: Bench) -> Reporter:
    """Model of host h2, whose first report has arrived."""
    return Reporter(bench)


@pytest.fixture
def wires(bench: Bench) -> list[Tap]:
    """Taps at the far ends of the plane NICs."""
    return bench.wires()
