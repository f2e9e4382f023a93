"""mrcd.nics: over which CPUs the flows of a mrc0 spread that is made now, and what is said of one made otherwise."""

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


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "interrupt_ns", lambda _: cpus.DEAR_NS + 1)


def _nics(granularity: str, setting: str = "auto") -> tuple[Nics, list[str]]:
    warned: list[str] = []
    settings = SimpleNamespace(
        cluster=SimpleNamespace(granularity=granularity), overlay=SimpleNamespace(rps_cpus=setting)
    )
    made: Any = SimpleNamespace(config=settings)
    nothing: Any = None
    return Nics(made, nothing, warned.append, lambda: None), warned


def _ports(*kinds: str | None) -> dict[int, Port]:
    links: list[Any] = [SimpleNamespace(kind=kind) for kind in kinds]
    return {plane: Port(plane, link, link) for plane, link in enumerate(links)}


@pytest.mark.usefixtures("dear")
@pytest.mark.parametrize(
    ("granularity", "ports", "spread"),
    [
        ("burst", _ports("veth", "veth"), set()),
        ("burst", _ports("veth", None), BOTH),  # a NIC's packets come one by one
        ("burst", {}, BOTH),  # they may yet come
        ("packet", _ports("veth", "veth"), BOTH),
    ],
)
def test_flows_spread_but_where_each_burst_is_an_interrupt(
    granularity: str, ports: dict[int, Port], spread: set[int]
) -> None:
    nics, _ = _nics(granularity)
    assert asyncio.run(nics._spread(BOTH, ports)) == spread
    always, _ = _nics(granularity, "all")
    assert asyncio.run(always._spread(BOTH, ports)) == BOTH


@pytest.mark.parametrize(
    ("granularity", "alias", "wanted"),
    [
        ("burst", made_with(2, BOTH), None),
        ("burst", made_with(2, set()), None),  # auto has chosen, then
        ("burst", made_with(1, BOTH), [made_with(2, BOTH), made_with(2, set())]),
        ("burst", None, [made_with(2, BOTH), made_with(2, set())]),
        ("packet", made_with(2, BOTH), None),
        ("packet", made_with(2, set()), [made_with(2, BOTH)]),  # made for bursts
    ],
)
def test_a_mrc0_that_was_made_otherwise(granularity: str, alias: str | None, wanted: list[str] | None) -> None:
    nics, warned = _nics(granularity)
    there: Any = SimpleNamespace(name="mrc0", alias=alias)
    nics.mrc0 = there
    nics._check_alias(2, cpus.choices("auto", BOTH, bursts=nics._bursts(_ports("veth"))))
    if wanted is None:
        assert not warned
    else:
        pattern = r"mrc0 was made with other queues or CPUs \((.*), and not (.*)\): .* `ip link del mrc0`.*"
        (text,) = warned
        assert (found := re.fullmatch(pattern, text))
        assert found.groups() == (alias or "no alias", " or ".join(wanted))
