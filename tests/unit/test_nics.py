"""mrcd.nics: where flows stay on the CPUs on which they come in, and what is said of a mrc0 that was made otherwise."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest

from mrcd import cpus
from mrcd.hooks import Port
from mrcd.netlink import made_with
from mrcd.nics import Nics

BOTH = {0, 1}


@pytest.fixture(autouse=True)
def _sys_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "steered", lambda _: None)


def _nics(granularity: str, setting: str, ports: dict[int, Port], *policies: str) -> Nics:
    settings = SimpleNamespace(
        cluster=SimpleNamespace(granularity=granularity),
        overlay=SimpleNamespace(rps_cpus=setting),
        classes=[SimpleNamespace(policy=p) for p in policies],
    )
    plan: Any = SimpleNamespace(config=settings)
    nothing: Any = None
    nics = Nics(plan, nothing, nothing, nothing)
    made: Any = SimpleNamespace(name="mrc0")
    nics.ports, nics.mrc0 = ports, made
    return nics


def _ports(*kinds: str | None) -> dict[int, Port]:
    links: list[Any] = [SimpleNamespace(kind=kind) for kind in kinds]
    return {plane: Port(plane, link, link) for plane, link in enumerate(links)}


@pytest.mark.parametrize(
    ("granularity", "setting", "ports", "rps", "by_arrival"),
    [
        ("burst", "auto", _ports("veth", "veth"), BOTH, True),
        ("burst", "all", _ports("veth", "veth"), BOTH, False),
        ("burst", "auto", _ports("veth", None), BOTH, False),  # a NIC's packets come one by one, and share interrupts
        ("packet", "auto", _ports("veth", "veth"), BOTH, False),
        ("burst", "auto", _ports("veth", "veth"), {0, 2}, False),  # CPUs whose numbers are not their places
    ],
)
def test_flows_stay_where_each_burst_would_be_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
    granularity: str,
    setting: str,
    ports: dict[int, Port],
    rps: set[int],
    by_arrival: bool,
) -> None:
    took: list[int] = [cpus.DEAR_NS + 1]
    monkeypatch.setattr(cpus, "interrupt_ns", lambda _: took.pop())
    nics = _nics(granularity, setting, ports)
    for _ in range(2):
        assert asyncio.run(nics._by_arrival(rps)) == (2 if by_arrival else 0)
    assert bool(took) != by_arrival  # measured once, and only where it matters


@pytest.mark.parametrize(
    ("policies", "steered", "by_arrival"),
    [
        (("spray",), BOTH, True),
        (("spray", "pinned"), BOTH, False),  # by a flow's hash, which changes
        (("flowlet",), BOTH, False),
        ((), None, True),  # /sys tells nothing
        ((), set(), False),  # somebody has switched it off
        ((), {0}, False),  # the kernel has left an isolated CPU out
    ],
)
def test_flows_stay_where_their_hash_matters_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch, policies: tuple[str, ...], steered: set[int] | None, by_arrival: bool
) -> None:
    monkeypatch.setattr(cpus, "interrupt_ns", lambda _: cpus.DEAR_NS + 1)
    monkeypatch.setattr(cpus, "steered", lambda _: steered)
    found = asyncio.run(_nics("burst", "auto", _ports("veth"), *policies)._by_arrival(BOTH))
    assert found == (2 if by_arrival else 0)


def test_flows_spread_where_an_interrupt_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    took = [cpus.DEAR_NS]
    monkeypatch.setattr(cpus, "interrupt_ns", lambda _: took.pop())
    assert asyncio.run(_nics("burst", "auto", _ports("veth"))._by_arrival(BOTH)) == 0
    assert not took


@pytest.mark.parametrize(
    ("alias", "warned"),
    [
        (made_with(2, BOTH), False),
        (made_with(2, set()), True),
        (made_with(1, BOTH), True),
        (None, True),
    ],
)
def test_a_mrc0_that_was_made_otherwise(alias: str | None, warned: bool) -> None:
    nics, said = _nics("burst", "auto", _ports("veth")), list[str]()
    there: Any = SimpleNamespace(name="mrc0", alias=alias)
    nics.mrc0, nics._warn = there, said.append
    assert nics._was_made_with(2, BOTH) != warned
    assert len(said) == warned
    for text in said:
        pattern = r"mrc0 was made with other queues or CPUs \((.*), and not (.*)\): .* `ip link del mrc0`.*"
        assert (found := re.fullmatch(pattern, text))
        assert found.groups() == (alias or "no alias", made_with(2, BOTH))
