# SPDX-License-Identifier: BSD-2-Clause
"""Tests labkit.bench.overhead and its tools: statistics of pairs, the switch, counters."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.bench import overhead, pairs, probing
from labkit.bench.part import SOURCE, TARGET, Options
from labkit.bench.probing import Counts, Probing, Wire
from labkit.cluster import observe
from labkit.cluster.fabric import Parameters, build
from mrcd.errors import MachineError, UsageError
from mrcd.fabric.wire import MRC, MRCCount, MRCProbe, MRCReport
from mrcd.tables import abi

FABRIC = build("x", Parameters())
EVS = 16
ROW = {h: FABRIC.config.host(h).id for h in (SOURCE, TARGET)}

# ---- pairs ----


@pytest.mark.parametrize(
    # The tables of the sign test: number of pairs outside on each side, and the confidence.
    ("n", "outside", "confidence"),
    [(6, 0, 0.96875), (8, 0, 0.9921875), (9, 1, 0.9609375), (20, 5, 0.9586105), (80, 30, 0.9670074)],
)
def test_the_interval_is_that_of_the_sign_test(n: int, outside: int, confidence: float) -> None:
    ratios = [float(i) for i in range(n)]
    random.Random(1).shuffle(ratios)
    found = pairs.compare(ratios)
    assert (found["low"], found["high"]) == (outside, n - 1 - outside)
    assert found["confidence_ratio"] == pytest.approx(confidence, abs=1e-4)
    assert found["ratios"] == ratios


@pytest.mark.parametrize("n", [0, 1, pairs.LEAST - 1])
def test_few_pairs_have_no_interval(n: int) -> None:
    found = pairs.compare([0.5] * n)
    assert (found["low"], found["high"], found["confidence_ratio"]) == (None, None, 0)
    assert not pairs.below(found, 1.0)
    assert "too few" in pairs.words(found)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    chance = random.Random(7)
    runs = [pairs.compare([chance.lognormvariate(0, 0.3) for _ in range(20)]) for _ in range(2000)]
    assert sum(r["low"] <= 1 <= r["high"] for r in runs) / len(runs) == pytest.approx(0.9586, abs=0.02)


@pytest.mark.parametrize(
    ("ratios", "measurable"),
    [
        ([0.97, 0.98, 0.99, 0.96, 0.95, 0.999], True),
        ([0.97, 0.98, 0.99, 0.96, 0.95, 1.001], False),
        ([1.0] * 6, False),
        ([1.1] * 6, False),
    ],
)
def test_a_loss_is_measurable_if_the_whole_interval_is_below_one(ratios: list[float], measurable: bool) -> None:
    run: dict[str, Any] = {"where": "direct", "granularity": "burst", "goodput_ratio": pairs.compare(ratios)}
    assert pairs.below(run["goodput_ratio"], 1.0) is measurable
    assert overhead.no_loss(run)["met"] is not measurable


@pytest.mark.parametrize(("low", "said"), [(0.96, "a loss of 4 % is not excluded"), (1.0, None), (0.5, None)])
def test_a_loss_that_is_not_excluded_is_reported(low: float, said: str | None) -> None:
    ratios = [low, 0.99, 0.99, 0.99, 0.99, 0.99 if low == 0.5 else 1.05]
    run = {"where": "direct", "granularity": "burst", "goodput_ratio": pairs.compare(ratios if low < 1 else [low] * 6)}
    measured = overhead.no_loss(run)["measured"]
    assert (said in measured) if said else ("not excluded" not in measured)


def test_without_an_interval_nothing_is_shown_to_be_free() -> None:
    assert not overhead.no_loss({"where": "direct", "granularity": "burst", "goodput_ratio": pairs.compare([1.0] * 5)})[
        "met"
    ]
    with pytest.raises(UsageError, match="are too few"):
        overhead.measure(SimpleNamespace(), Options(pairs=pairs.LEAST - 1))  # type: ignore[arg-type]


# ---- the order of the windows ----


def test_neither_setting_is_always_the_first() -> None:
    assert overhead.turns(4) == [True, False, False, True, True, False, False, True]


# ---- lengths and counts ----


def test_lengths_are_those_of_the_wire() -> None:
    wire = Wire.of(FABRIC.config, SOURCE)
    headers = 14 + 40 + 8 + len(MRC())
    report = MRCReport(records=[MRCCount()] * EVS)
    assert wire == (headers, headers + len(MRCProbe()), headers + len(MRCProbe()) + len(report))


def test_bytes_of_probes_and_data() -> None:
    wire = Wire(headers=100, probe=130, report=300)
    c = Counts(50, 60_000, requests=10, reports=4, replies=5, requests_elsewhere=7, skips=0)
    assert wire.data_bytes(c) == 65_000
    assert wire.probe_bytes(c, kept=50) == (6 * 130 + 4 * 350) * 1.5
    assert wire.probe_bytes(c._replace(requests=0), kept=50) == 0


@pytest.mark.parametrize(
    ("requests", "reports", "piggybacked"),
    [(17 * 3, 3, 0), (17 * 3 + 5, 3 + 5, 5), (17 * 3 + 64, 3, 0), (5, 5, 5), (0, 0, 0)],
)
def test_piggybacked_requests_are_separated_from_sweeps(requests: int, reports: int, piggybacked: int) -> None:
    assert Counts(0, 0, requests, reports, 0, 0, 0).piggybacked(EVS) == piggybacked


# ---- the switch ----


class FakeTables:
    """The tables of a host whose mrc_probe is attached at interface 7."""

    def __init__(self, pins: Path, *, writable: bool) -> None:
        assert writable
        self.evs, self.path_stats = np.zeros((4, EVS), abi.EV), np.zeros((4, EVS), abi.PATH_STATS)
        self.reports, self.node = np.zeros(4, abi.REPORTS), np.zeros((), abi.NODE)
        self.evs["configured"], self.node["probe_ifindex"] = 1, 7
        self.closed = False
        MADE[pins.name] = self

    def close(self) -> None:
        self.closed = True


MADE: dict[str, Any] = {}


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Probing:
    MADE.clear()
    monkeypatch.setattr(probing, "Tables", FakeTables)
    monkeypatch.setattr(observe, "pins", lambda _, host: Path(host))
    return Probing(SimpleNamespace(fabric=FABRIC), SOURCE, TARGET)  # type: ignore[arg-type]


def interfaces() -> list[int]:
    return [int(MADE[h].node["probe_ifindex"]) for h in (SOURCE, TARGET)]


@pytest.mark.parametrize("error", [None, MachineError("x"), KeyboardInterrupt()])
def test_probes_are_enabled_again_after_any_end(switch: Probing, error: BaseException | None) -> None:
    def use() -> None:
        with switch:
            switch.switch(False)
            switch.confirm()
            assert interfaces() == [0, 0]
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            use()
    else:
        use()
    assert interfaces() == [7, 7]
    assert MADE[SOURCE].closed
    assert MADE[TARGET].closed


def test_a_value_written_by_the_daemon_is_kept(switch: Probing) -> None:
    with switch:
        switch.switch(False)
        MADE[TARGET].node["probe_ifindex"] = 9
        with pytest.raises(MachineError, match=f"{TARGET}.* reattached"):
            switch.confirm()
    assert interfaces() == [7, 9]


def test_a_detached_host_has_no_probes_to_switch(monkeypatch: pytest.MonkeyPatch, switch: Probing) -> None:
    class Detached(FakeTables):
        def __init__(self, pins: Path, *, writable: bool) -> None:
            super().__init__(pins, writable=writable)
            self.node["probe_ifindex"] = 0

    monkeypatch.setattr(probing, "Tables", Detached)
    with pytest.raises(MachineError, match="not attached"):
        Probing(SimpleNamespace(fabric=FABRIC), SOURCE, TARGET)  # type: ignore[arg-type]
    assert MADE[SOURCE].closed


def test_counts_are_of_the_peer_and_of_the_others(switch: Probing) -> None:
    h0 = MADE[SOURCE]
    h0.evs["probe_seq"] = 1
    h0.evs["tx_packets"][ROW[TARGET]], h0.evs["tx_bytes"][ROW[TARGET]] = 10, 1000
    h0.path_stats["skips"][ROW[TARGET], 3], h0.path_stats["replies"][ROW[TARGET], :2] = 2, 5
    h0.reports["report_seq"][ROW[TARGET]] = 4
    with switch:
        before = switch.counts()
        assert switch.evs == EVS
        assert before[SOURCE] == Counts(160, 16_000, 16, 4, 10, 3 * EVS, 2)
        h0.evs["probe_seq"][ROW[TARGET], 0] += 6
        assert switch.counts()[SOURCE].since(before[SOURCE]) == Counts(0, 0, 6, 0, 0, 0, 0)


# ---- windows → document ----


def window(n: int, on: bool, bits_per_s: float, requests: int = 1000) -> dict[str, Any]:
    sweeps = Counts(0, 0, 17, 1, 17, 34, 0)
    piggybacked = Counts(0, 0, requests, requests, requests, 0, 0) if on else Counts(0, 0, 0, 0, 0, 0, 0)
    data = Counts(100_000, 800_000_000, 0, 0, 0, 0, 0)
    acks = Counts(10_000, 520_000, 0, 0, 0, 0, 0)
    return {
        "probing": on,
        "begin_ns": n * 10**9,
        "end_ns": (n + 1) * 10**9,
        "cpu_busy_s": 2.0,
        "cpu_busy_ratio": 1.0,
        "retransmitted_segments": 3,
        "bits_per_s": bits_per_s,
        "cpu_s_per_gbit": 2e9 / bits_per_s,
        "hosts": {
            SOURCE: probing.total([sweeps, piggybacked, data])._asdict(),
            TARGET: probing.total([sweeps, piggybacked, acks])._asdict(),
        },
    }


def windows(number: int, *, on: float, off: float) -> list[dict[str, Any]]:
    return [window(n, s, on if s else off) for n, s in enumerate(overhead.turns(number))]


def test_ratios_are_with_by_without_in_either_order() -> None:
    found = overhead.summary(windows(6, on=9e9, off=10e9), Wire.of(FABRIC.config, SOURCE))
    assert found["goodput_ratio"]["ratios"] == pytest.approx([0.9] * 6)
    assert found["cpu_per_bit_ratio"]["ratios"] == pytest.approx([1 / 0.9] * 6)
    assert found["goodput_ratio_alike"]["ratios"] == [1.0] * 5
    assert [s["median_bits_per_s"] for s in found["settings"]] == [9e9, 10e9]
    assert found["settings"][0]["cpu_s_per_gbit"] == pytest.approx(2 / 9)
    assert found["settings"][0]["retransmitted_segments_per_s"] == 3


def test_probes_per_data_packet() -> None:
    on, off = overhead.summary(windows(6, on=9e9, off=10e9), Wire.of(FABRIC.config, SOURCE))["settings"]
    source, target, both = on["probes"]
    assert [p["requester"] for p in on["probes"]] == [SOURCE, TARGET, overhead.BOTH]
    assert source["requests_ratio"] == source["replies_ratio"] == 0.01017
    assert source["probes_ratio"] == 0.02034
    assert source["all_requests_ratio"] == 0.01051
    assert target["requests_ratio"] == 0.1017
    assert both["probes_ratio"] == pytest.approx(4 * 1017 / 110_000)
    assert source["requests_per_s"] == 1017
    # 16 requests of 126 bytes, 1001 with 16 counts, each followed by an acknowledgement of 52; and the replies.
    probes = 2 * (16 * 126 + 1001 * (126 + 64 + 16 * 8 + 52))
    assert source["probe_bytes_ratio"] == pytest.approx(probes / (800_000_000 + 100_000 * 94))
    assert off["probes"][0]["requests_ratio"] == 0.00017


@pytest.mark.parametrize(("ratio", "met"), [(0.0, True), (0.02, True), (0.0201, False), (None, False)])
def test_the_bound_on_requests(ratio: float | None, met: bool) -> None:
    rest = {"requests_ratio": 0.01, "probes_ratio": 0.02}
    probes = [
        {"requester": h, "all_requests_ratio": r, **rest} for h, r in ((SOURCE, ratio), (TARGET, 9.0), ("both", 9.0))
    ]
    run = {
        "where": "lab",
        "granularity": "packet",
        "settings": [{"probing": False}, {"probing": True, "probes": probes}],
    }
    assert overhead.few_probes(run)["met"] is met


def test_windows_without_probes_are_verified() -> None:
    good = windows(6, on=9e9, off=10e9)
    overhead.check_off(good, EVS)
    for n, requests in ((1, 150), (10, 1000)):  # in one window alone
        bad = [*good]
        bad[n] = window(n, True, 10e9, requests) | {"probing": False}
        with pytest.raises(MachineError, match="did not work"):
            overhead.check_off(bad, EVS)
    never = [w | {"hosts": good[1]["hosts"]} for w in good]  # the windows with probes have none
    with pytest.raises(MachineError, match="did not work"):
        overhead.check_off(never, EVS)


def test_lines_show_the_measurements() -> None:
    measured = windows(6, on=9e9, off=10e9)
    facts = {"version": 4, "congestion_control": "cubic", "mss_bytes": 8968, "withdrawals_without_a_fault": 0}
    summary = overhead.summary(measured, Wire.of(FABRIC.config, SOURCE))
    runs = [{"where": w, "granularity": g, **facts, **summary, "windows": measured} for w, g in overhead.PLACES]
    text = "\n".join(overhead.lines({"seconds": 0.3, "settle_s": 0.1, "mtu_bytes": 9100, "runs": runs}))
    assert "median 0.900 (0.90–0.90), 97% interval 0.900–0.900, 6 pairs" in text
    assert "on the same CPUs as the hosts" in text
