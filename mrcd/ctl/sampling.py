# SPDX-License-Identifier: BSD-2-Clause
"""Reads the paths or the peers twice, for rates over an interval."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from mrcd.ctl.base import Options
from mrcd.ctl.client import Client, Json
from mrcd.ctl.documents.rates import Sample
from mrcd.ctl.offline import Found, envelope, read

if TYPE_CHECKING:
    from mrcd.view.documents import View

SECONDS = click.FloatRange(min=0.1, max=3600)


def sampled(
    options: Options,
    name: str,
    from_daemon: Callable[[Client], Json],
    from_tables: Callable[["View"], Json],
    interval_s: float,
) -> tuple[Sample, Sample, Found]:
    """Return two samples of the list `name`, `interval_s` apart, and the second one as it was read."""
    before = read(options, from_daemon, from_tables)
    first = Sample(options.monotonic_s(), envelope(name, *before)[name])
    options.clock.sleep(interval_s)
    after = read(options, from_daemon, from_tables, quiet=True)
    return first, Sample(options.monotonic_s(), envelope(name, *after)[name]), after
