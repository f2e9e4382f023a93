# SPDX-License-Identifier: BSD-2-Clause
"""Defines the section [switches] of the cluster file."""

from typing import Annotated

from pydantic import Field

from mrcd.config.section import Section
from mrcd.config.sizes import MAX_PORTS


class Switches(Section):
    """Settings of the switches for `mrcctl fabric config`. Hosts do not use it."""

    downlinks: Annotated[int, Field(ge=1, le=MAX_PORTS)] | None = Field(
        default=None,
        description="the ports of a T0 for hosts: host ports from 0, then the T1s; the highest port of a host + 1 if "
        "unset",
    )
    port_names: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description='the names of the switches\' ports: "swp{1}" counts from 1, "Ethernet{0+4}" from 0 by 4, and '
        '"{neighbour}" is the name at the other end; the format\'s own if unset',
    )
    source_filters: bool = Field(
        default=True, description="T0s forward from a host's port only what has the host's own plane address as source"
    )
