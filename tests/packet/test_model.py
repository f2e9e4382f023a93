# SPDX-License-Identifier: BSD-2-Clause
"""Compares mrc_pop and mrc_pop_xdp with the model of model.py, on packets that Hypothesis generates.

Each packet runs by BPF_PROG_TEST_RUN. Verdict, bytes, drop reasons and all tables must be those that the model says.
`make test-model` compares 10^5 packets; without the option --model-packets these tests compare few, always the same.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mrcd.kernel.enums import AuthMode
from tests.packet.cluster import PLANES, Setup
from tests.packet.model_packets import Packet, Situation, packets, situations
from tests.packet.model_run import Comparison, modelled
from tests.packet.rig import Bench, Hook

pytestmark = [pytest.mark.root, pytest.mark.long]

FEW = 5400  # packets
BATCH = 30  # packets of one example, which share the tables
SETUPS = {
    "usid": Setup(),
    "srh": Setup("srh"),
    "ecmp, unchecked": Setup("ecmp", more='[overlay]\nsource_check = "off"'),
}
HOOKS: tuple[Hook, ...] = ("tc", "xdp")
CASES = [(name, mode, hook) for name in SETUPS for mode in AuthMode for hook in HOOKS]


@pytest.fixture
def compared(record_property: Callable[[str, object], None]) -> Iterator[Counter[str]]:
    """Counts the runs of programs that the model has predicted, by outcome, for pytest's summary."""
    counts = Counter[str]()
    yield counts
    record_property("compared", dict(counts))


@pytest.mark.parametrize(("name", "mode", "hook"), CASES)
def test_the_programs_do_what_the_model_says(
    benches: Callable[[Setup], Bench],
    pytestconfig: pytest.Config,
    compared: Counter[str],
    name: str,
    mode: AuthMode,
    hook: Hook,
) -> None:
    bench, many = benches(SETUPS[name]), pytestconfig.getoption("model_packets")
    host = modelled(bench, mode)

    @settings(
        max_examples=-(-(many or FEW) // (BATCH * len(CASES))),
        derandomize=not many,
        database=None,
        deadline=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(situations, st.lists(packets, min_size=BATCH, max_size=BATCH))
    def compare(situation: Situation, batch: list[Packet]) -> None:
        if hook == "tc":  # the kernel keeps a tag beside the packet, which BPF_PROG_TEST_RUN cannot
            situation = dataclasses.replace(situation, vlans=(0,) * PLANES)
        with bench.fresh():
            comparison = Comparison(bench, host, situation, compared)
            for packet in batch:
                try:
                    comparison.compare(packet, hook)
                except AssertionError as e:
                    e.add_note(f"after {batch.index(packet)} packets: {packet}")
                    raise

    compare()
