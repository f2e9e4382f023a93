# SPDX-License-Identifier: BSD-2-Clause
"""Tests that a plan which fails to be put in force leaves a host as it was, whichever step fails, and however.

The daemon is the real one, over emulated programs, tables, interfaces and routes.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.auth import secrets_file
from mrcd.config import cluster_file
from mrcd.daemon.daemon import Daemon, Setup
from mrcd.denials import targets
from mrcd.errors import KernelError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables
from mrcd.kernel.settings import health
from mrcd.net.hooks import Port
from mrcd.net.messages import Link
from mrcd.net.netlink import Netlink
from tests.unit.arrays import TEXT, Arrays
from tests.unit.emulated_programs import Programs
from tests.unit.test_route_keeper import Kernel

STEPS = [step.__name__ for step in Daemon.steps(cast(Any, Daemon))]
TABLES = ("peers", "evs", "path_stats", "rxs", "reports", "srhs", "planes", "links")
OLD, NEW = secrets_file.new(1), secrets_file.new(2)
AUTH = '[auth]\nmode = "required"\nsecret_file = "secrets"\n'
BEFORE = topology.plan(cluster_file.parse(TEXT + AUTH), "h0")
# h1 moves, h3 leaves, h4 comes; all packets are shorter, and an EV that lags is left later.
AFTER_TEXT = TEXT.replace("[cluster]\n", "[cluster]\nmtu = 8000\n").replace('"h3"', '"h4"') + AUTH
AFTER_TEXT += "[health]\noverdue_ms = 11\n"
AFTER = topology.plan(cluster_file.parse(AFTER_TEXT), "h0")


class Loaded(Programs):
    """Programs that are loaded with tables; `attached` are the ones at the interfaces."""

    attached: "Loaded | None" = None
    pinned: "Loaded | None" = None

    def __init__(self, tables: Arrays) -> None:
        super().__init__(tables)
        self.tables, self.pins = Path("tables"), Path("pins")
        self.changed, self.prefixes, self.health = False, dict[bytes, int](), b""

    @property
    def is_committed(self) -> bool:
        return self.tables == self.pins

    def commit(self) -> None:
        if not self.is_committed:
            Loaded.pinned, self.tables = self, self.pins

    def repin_tables(self) -> None:
        Loaded.pinned = self

    fresh = False
    wire, other_wire = 2, None

    def load(self) -> None:
        pass

    def refresh(self, row: int) -> None:
        pass

    def take_over(self, tables: Arrays, replaced_hosts: set[int], _: object = None) -> Iterator[int]:
        yield from ()

    def set_prefixes(self, prefixes: dict[bytes, int]) -> None:
        self.prefixes = prefixes

    def write_health(self, plan: Plan) -> None:
        self.health = health(plan).tobytes()


class Interfaces:
    """The interfaces of h0."""

    def __init__(self) -> None:
        self.mrc0, self.mrc0_peer = (
            Link(n, i, "02:00:00:00:00:00", True, True, 0, "veth", None, 0, True)
            for i, n in ((1, "mrc0"), (2, "mrc0b"))
        )
        self.mtu, self.merging = 0, True
        nics = [Link(f"nic{p}", 10 + p, "02:00:00:00:00:01", True, True, 9100, None, None, 0, False) for p in range(2)]
        self.ports = {p: Port(p, nic, nic) for p, nic in enumerate(nics)}
        self.macs = dict.fromkeys((10, 11), "02:00:00:00:00:02")

    def use_plan(self, plan: Plan) -> None:
        self.plan = plan

    async def reconcile(self) -> None:
        self.mtu = self.plan.inner_mtu

    async def remove_addresses(self, names: set[str]) -> None:
        assert not names

    def enabled(self) -> dict[int, Link]:
        return {p: port.nic for p, port in self.ports.items()}

    def lost_plane_mask(self) -> int:
        return 0


class Host:
    """A daemon with a plan in force, whose paths work and one of which is denied."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables = Arrays(4, 8)
        self.programs, self.kernel, self.interfaces = Loaded(self.tables), Kernel(), Interfaces()
        for name, made in (
            ("Dataplane", lambda *_: self.programs),
            ("Nics", lambda *_: self.interfaces),
            ("Tables", lambda *_, **__: self.tables),
            ("AttachedPrograms", lambda _: SimpleNamespace(attach=self.attach, hooks=[], expire=lambda: None)),
            ("read_secrets", lambda _: (OLD,)),
            ("libbpf.use_bcc", lambda: None),
        ):
            monkeypatch.setattr(f"mrcd.daemon.daemon.{name}", made)
        self.daemon = Daemon(BEFORE, directory, directory, directory)

    def attach(self, plan: Plan, programs: Loaded, nics: object, tables: object) -> None:
        Loaded.attached, programs.changed = programs, True

    async def start(self) -> None:
        self.tables.peers["heard_ns"] = 1
        await self.daemon.start(cast(Netlink, self.kernel))
        for table in (self.tables.evs, self.tables.path_stats, self.tables.rxs):
            for name in set(table.dtype.names or ()) & {"tx_packets", "judged", "packets", "probe_seq", "rtt_ns"}:
                table[name][1:] = 7
        self.tables.evs["state"][self.tables.evs["configured"] != 0] = EvState.GOOD
        await self.daemon.denials.deny(
            targets.parse(["peer:h3"]), for_s=None, reason="", uid=0, drain=False, force=True
        )

    async def state(self) -> dict[str, object]:
        """Returns all that adopting a plan changes, after the marked routes are written."""
        await self.daemon.write_routes()
        daemon, found = self.daemon, dict[str, object](health=self.programs.health)
        found |= {name: getattr(self.tables, name).tobytes() for name in TABLES}
        found |= {name: self.tables.node[name].tobytes() for name in ("plane_mask", "idle_us", "merge_ifindex")}
        found |= {name: self.tables.auths[name].tobytes() for name in ("tx_slot", "mode", "clock_ns")}
        for name in ("plan", "peers", "tables", "dataplane", "view", "monitor"):
            found[name] = getattr(daemon, name)
        found["secrets"], found["prefixes"] = daemon.keyring.wanted, self.programs.prefixes
        found["programs"] = Loaded.attached, Loaded.pinned, self.interfaces.mtu
        found["routes"] = set(self.kernel.have.values())
        found["denials"] = daemon.denials.document()
        found["serves"] = await daemon.readers.read(lambda: True)
        return found


def failing(
    steps: Callable[[], tuple[Any, ...]], name: str, error: BaseException, times: int = 1
) -> Callable[[], list[Any]]:
    """Returns the steps, of which one raises an error when it is done, the first times."""
    errors = [error] * times

    def broken() -> list[Callable[[Setup | None, Setup], Awaitable[None]]]:
        def wrapped(step: Any) -> Any:
            async def run(before: Setup | None, after: Setup) -> None:
                await step(before, after)
                if errors:
                    raise errors.pop()

            return run if step.__name__ == name else step

        return [wrapped(step) for step in steps()]

    return broken


@pytest.mark.parametrize("error", [KernelError("fail", errno.EBUSY), asyncio.CancelledError()], ids=["error", "cancel"])
@pytest.mark.parametrize("has_new_tables", [False, True], ids=["same tables", "new tables"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_leaves_the_host_as_it_was(
    step: str, has_new_tables: bool, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        host = Host(tmp_path, monkeypatch)
        await host.start()
        before = await host.state()
        tables = Arrays(8, 8) if has_new_tables else host.tables
        programs = Loaded(tables) if has_new_tables else host.programs
        monkeypatch.setattr(host.daemon, "steps", failing(host.daemon.steps, step, error))
        with pytest.raises(type(error)):
            await host.daemon.adopt(AFTER, cast(Dataplane, programs), cast(Tables, tables), (NEW,))
        after = await host.state()
        assert {name for name in before if before[name] != after[name]} == set()

    asyncio.run(run())


@pytest.mark.parametrize("step", STEPS)
def test_an_undo_that_fails_attaches_the_programs_anew_and_stops_no_other(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        host, attached = Host(tmp_path, monkeypatch), list[str]()
        await host.start()
        before = await host.state()
        monkeypatch.setattr(host.daemon, "steps", failing(host.daemon.steps, step, KernelError("fail", errno.EBUSY), 2))
        monkeypatch.setattr(host.daemon, "attach_anew", lambda: attached.append(step))
        with pytest.raises(KernelError):
            await host.daemon.adopt(AFTER, cast(Dataplane, host.programs), cast(Tables, host.tables), (NEW,))
        after = await host.state()
        assert attached == [step]
        assert {name for name in before if before[name] != after[name]} == set()

    asyncio.run(run())
