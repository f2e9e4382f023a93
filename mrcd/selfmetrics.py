"""Metrics of the daemon's own work."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mrcd.daemon import Daemon
from mrcd.selfwatch import Durations


class OwnCollector(Collector):
    """How long the daemon's ticks take, and how long its loop was held up."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """Yield every family once."""
        monitor, away = self._daemon.monitor, self._daemon.away
        yield from _families(
            "mrc_tick", monitor.ticks, "The daemon ran the programs' tick, and looked at losses and peers."
        )
        yield from _families("mrc_loop_away", away, "The daemon was busy and served nobody.")


def _families(name: str, durations: Durations, text: str) -> Iterator[Metric]:
    buckets = [(str(bound), float(count)) for bound, count in durations.cumulative()]
    yield HistogramMetricFamily(f"{name}_seconds", text, buckets=buckets, sum_value=durations.sum_s)
    yield GaugeMetricFamily(f"{name}_longest_seconds", f"The longest. {text}", value=durations.longest_s)
