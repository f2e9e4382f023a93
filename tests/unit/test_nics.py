# SPDX-License-Identifier: BSD-2-Clause
"""Tests the warning of mrcd.net.nics about an mrc0 made with other queues or CPUs."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.net.netlink import made_with
from mrcd.net.nics import Nics

BOTH = {0, 1}


@pytest.mark.parametrize(
    ("alias", "warned"),
    [
        (made_with(2, BOTH), False),
        (made_with(2, set()), True),
        (made_with(1, BOTH), True),
        (None, True),
    ],
)
def test_an_mrc0_made_with_other_settings_is_reported(alias: str | None, warned: bool) -> None:
    said, nothing = list[str](), cast(Any, None)
    nics = Nics(nothing, nothing, said.append, nothing)
    nics.mrc0 = cast(Any, SimpleNamespace(name="mrc0", alias=alias))
    nics.warn_if_made_otherwise(2, BOTH)
    assert len(said) == warned
    for text in said:
        pattern = r"mrc0 was created with other queues or CPUs \((.*), and not (.*)\): .* `ip link del mrc0`.*"
        assert (found := re.fullmatch(pattern, text))
        assert found.groups() == (alias or "no alias", made_with(2, BOTH))
