# SPDX-License-Identifier: BSD-2-Clause
"""Defines the section [health]: when an EV is taken out of use, and when it returns."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mrcd.config.section import Granularity, Section

LossRule = Literal["ratio", "any"]


class Health(Section):
    """When an EV is taken out of use, and when it returns. The name of a time ends with its unit.

    A peer reports how many packets have arrived on every EV. While traffic flows, the eBPF programs request these
    reports and judge each EV by them. Besides, a periodic tick in the kernel probes all EVs in turn.

    Many attributes because each threshold and interval of path health is a key of its own.
    """

    probe_interval_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=20,
        description="interval between probes of an EV that has failed and answers again; EVs of a peer that has not "
        "answered are probed four times as often",
    )
    idle_interval_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=100, description="interval between probes of each EV, with and without traffic"
    )
    idle_probes: Annotated[int, Field(ge=100, le=100_000_000)] = Field(
        default=4000,
        description="probes per second that a host may send however little traffic it has; if these are too few for "
        "all EVs in every idle interval, mrcd probes some peers, and some of their EVs, at a time",
    )
    probe_packets: Annotated[int, Field(ge=1, le=32_768)] | None = Field(
        default=None,
        description="wire packets that a CPU pushes before it requests a report; if unset, 8 in burst granularity and "
        "64 in packet granularity",
    )
    probe_gap_us: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=300, description="least time between two requests for reports"
    )
    probe_late_ms: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="the next packet requests a report if the last request is at least this old; if unset, 1 in burst "
        "granularity and 5 in packet granularity",
    )
    reorder_us: Annotated[int, Field(ge=50, le=1_000_000)] = Field(
        default=50, description="least reordering window; the programs widen it by the variation of round-trip times"
    )
    overdue_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=10,
        description="an EV becomes ASSUMED_BAD if nothing arrives on it for this time while later packets on other EVs "
        "arrive",
    )
    skip_delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=1000,
        description="an EV is skipped once if its delay exceeds that of the others by this, and the round trip is more "
        "than twice the peer's usual one; 0: never",
    )
    loss_rule: LossRule = Field(
        default="ratio",
        description='"any": any loss that persists is a failure (for fabrics that trim packets); "ratio": loss_ratio, '
        "loss_samples and loss_window_ms decide",
    )
    loss_ratio: Annotated[float, Field(ge=0.000001, le=1)] = 0.02
    loss_samples: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10,
        description="samples with loss that the window must have (samples are reports with new packets, and probes); "
        "twice as many if fewer than 8 EVs are in use, three times if fewer than 3",
    )
    loss_window_ms: Annotated[int, Field(ge=10, le=60_000)] = 200
    good_probes: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="consecutive reports with arrivals and without loss after which an EV returns"
    )
    hold_down_ms: Annotated[int, Field(ge=1, le=3_600_000)] = Field(
        default=1000,
        description="how long probes must arrive without loss before an EV returns; doubles with each flap after "
        "the first",
    )
    hold_down_max_ms: Annotated[int, Field(ge=1, le=86_400_000)] = Field(
        default=60_000,
        description="upper limit of the hold-down; for each such time in use, the next failure forgets one flap",
    )
    ramp_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        default=400,
        description="time in which an EV that has returned takes 1/8, then 1/4, then 1/2 of its share of the traffic",
    )
    probe_backoff_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=1000, description="longest interval between probes of an EV on which nothing arrives"
    )
    unanswered: Annotated[int, Field(ge=2, le=100)] = Field(
        default=4,
        description="the peer is silent after so many sweeps of its EVs in a row without a reply; its EVs keep their "
        "states",
    )
    grey_ratio: Annotated[float, Field(ge=0.000001, le=1)] = Field(
        default=0.001,
        description="least loss ratio of a grey failure: a small, lasting loss that the other EVs do not have",
    )
    grey_false_alarms: Annotated[float, Field(ge=0.000001, le=1000)] = Field(
        default=1.0, description="most EVs per peer and year that the grey-loss test may judge failed by chance"
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.hold_down_max_ms < self.hold_down_ms:
            raise ValueError("hold_down_max_ms is less than hold_down_ms")
        if self.idle_interval_ms < self.probe_interval_ms:
            raise ValueError("idle_interval_ms is less than probe_interval_ms")
        if self.probe_backoff_ms < self.probe_interval_ms:
            raise ValueError("probe_backoff_ms is less than probe_interval_ms")
        if (self.probe_late_ms or 1) * 1000 < self.probe_gap_us:
            raise ValueError("probe_late_ms is less than probe_gap_us")
        if self.overdue_ms * 1000 < self.reorder_us:
            raise ValueError("overdue_ms is less than reorder_us: reordered packets would be counted as lost")
        if self.loss_window_ms * 1000 < self.loss_samples * self.probe_gap_us:
            raise ValueError("loss_window_ms has no room for loss_samples, which come probe_gap_us apart at best")
        return self

    def packets_per_report(self, granularity: Granularity) -> int:
        """Returns the least wire packets between requests for reports, per CPU."""
        return self.probe_packets or (8 if granularity == "burst" else 64)

    def late_ms(self, granularity: Granularity) -> int:
        """Returns after how many milliseconds without a request the next packet requests a report."""
        return self.probe_late_ms or (1 if granularity == "burst" else 5)
