# SPDX-License-Identifier: BSD-2-Clause
"""Defines the base class of the cluster file's sections."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Granularity = Literal["burst", "packet"]


class Section(BaseModel):
    """A table of the file: unknown keys and values of another type are errors; its values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
