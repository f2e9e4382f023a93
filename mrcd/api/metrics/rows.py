# SPDX-License-Identifier: BSD-2-Clause
"""Families with a series per peer, or per peer and plane: a hundred thousand lines, whose labels are made once.

The client library takes 5 µs for each line. It writes all other families.
"""

import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

_EOF = b"# EOF\n"
_ESCAPING = re.compile(r";\s*escaping=[^,;\s]*")  # no name of ours needs any: all keep the default, underscores
Heads = Sequence[str]  # the labels of each series, as text between its name and its value


def heads(names: Sequence[str], values: Iterable[Sequence[str]]) -> Heads:
    """Return the labels of series that have these names of labels, and these values each."""
    escaped = (
        [(n, v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")) for n, v in zip(names, each, strict=True)]
        for each in values
    )
    return ["{" + ",".join(f'{name}="{value}"' for name, value in each) + "} " if each else " " for each in escaped]


class Rows(Metric):
    """A counter or gauge with a value for each of many series. The library sees none of them."""

    def __init__(self, kind: str, name: str, text: str, labels: Heads, values: NDArray[Any]) -> None:
        """`values` are whole numbers, or times: one for each of `labels`."""
        super().__init__(name, text, kind)
        self._labels, self._values = labels, values.ravel()

    def lines(self, *, is_openmetrics: bool) -> str:
        """Return the family as text."""
        name = self.name + "_total" * (self.type == "counter")
        family = self.name if is_openmetrics else name
        numbers = self._values.tolist()
        words = map(str, numbers) if self._values.dtype.kind in "iu" else map(_number, numbers)
        series = [f"{name}{at}{word}\n" for at, word in zip(self._labels, words, strict=True)]
        return f"# HELP {family} {self.documentation}\n# TYPE {family} {self.type}\n" + "".join(series)


def encode(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return all metrics in the best format that a client accepts, and its content type."""
    encoder, content_type = choose_encoder(_ESCAPING.sub("", accept))
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    families = list(registry.collect())
    others = [f for f in families if not isinstance(f, Rows)]
    body = encoder(cast(CollectorRegistry, SimpleNamespace(collect=lambda: others)))
    rows = "".join(f.lines(is_openmetrics=is_openmetrics) for f in families if isinstance(f, Rows)).encode()
    return (body.removesuffix(_EOF) + rows + _EOF if is_openmetrics else body + rows), content_type


def _number(value: float) -> str:
    return "NaN" if np.isnan(value) else "+Inf" if value == np.inf else repr(value)
