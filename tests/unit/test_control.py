# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.bench.control: the programs' counters → the share of control packets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.bench import control
from labkit.bench.control import Control, Sent
from labkit.bench.probing import Wire
from labkit.cluster import observe
from labkit.cluster.fabric import Parameters, build
from mrcd.ctl.terminal.render import NOTHING
from mrcd.tables import abi, enums

WIRE = Wire(headers=100, probe=130, report=300)
FABRIC = build("x", Parameters())


def test_packets_and_bytes_are_of_all_hosts() -> None:
    hosts = {
        "h0": Sent(1000, 1_000_000, (10, 2, 1, 7, 0), 10, 20, 0),
        "h2": Sent(100, 5_000, (4, 0, 0, 0, 0), 4, 2, 3),
    }
    found = control.document(hosts, {"h0": WIRE, "h2": WIRE}, 2.0)
    assert found["data_packets_per_s"] == 550
    assert found["requests_per_s"] == {"traffic": 7, "suspicion": 1, "retry": 0.5, "idle": 3.5, "link": 0}
    assert found["replies_per_s"] == 11
    assert found["duplicate_acks_per_s"] == 1.5
    assert found["packets_ratio"] == 46 / 1146
    # An acknowledgement of 50 bytes follows each report; h0's requests were all answered, half of h2's.
    requested, data = 2 * (10 * 130 + 10 * 350) + 1.5 * 4 * 350, 1_005_000 + 1100 * 100
    assert found["bytes_ratio"] == requested / (data + requested)


def test_nothing_sent_has_no_share() -> None:
    found = control.document({"h0": Sent(0, 0, (0, 0, 0, 0, 0), 0, 0, 0)}, {"h0": WIRE}, 1.0)
    assert (found["packets_ratio"], found["bytes_ratio"]) == (None, None)
    assert f"are {NOTHING} % of all packets" in control.words(found)


def test_the_mean_of_runs() -> None:
    runs = [control.document({"h0": Sent(100, 0, (n, 0, 0, 0, 0), 0, n, 0)}, {"h0": WIRE}, 1.0) for n in (0, 50)]
    found = control.mean(runs)
    assert found is not None
    assert found["requests_per_s"] == {"traffic": 25, "suspicion": 0, "retry": 0, "idle": 0, "link": 0}
    assert found["packets_ratio"] == 0.25
    assert control.mean([]) is None


def test_counters_are_read_over_all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeTables:
        def __init__(self, pins: Path, *, writable: bool) -> None:
            assert not writable
            self.evs, self.path_stats = np.zeros((4, 16), abi.EV), np.zeros((4, 16), abi.PATH_STATS)
            self.reports, self.peers = np.zeros(4, abi.REPORTS), np.zeros(4, abi.PEER)
            made.append(self)

        def probes_sent(self) -> dict[str, int]:
            return {k.text: int(k) + self.more for k in enums.ProbeKind}

        def close(self) -> None:
            self.closed = True

        more, closed = 0, False

    made: list[Any] = []
    monkeypatch.setattr(control, "Tables", FakeTables)
    monkeypatch.setattr(observe, "pins", lambda _, host: Path(host))
    with Control(SimpleNamespace(fabric=FABRIC), ["h0", "h1"]) as counters:  # type: ignore[arg-type]
        before = counters.read()
        assert before["h1"].requests == (0, 1, 2, 3, 4)
        made[0].evs["tx_packets"], made[0].evs["tx_bytes"] = 1, 100
        made[0].reports["report_seq"], made[0].path_stats["replies"], made[0].peers["dup_acks"] = 2, 3, 4
        made[0].more = 5
        found = counters.read()["h0"].since(before["h0"])
        assert found == Sent(64, 6400, (5, 5, 5, 5, 5), 8, 192, 16)
        assert counters.since(before, 1.0)["replies_per_s"] == 192
    assert all(t.closed for t in made)
