# SPDX-License-Identifier: BSD-2-Clause
"""Defines the section [auth]: whether packets are authenticated, and by which secrets."""

from typing import Annotated, Literal

from pydantic import Field

from mrcd.config.section import Section

Mode = Literal["off", "permissive", "required"]


class Auth(Section):
    """Whether packets are authenticated, and by which secrets."""

    mode: Mode = Field(
        default="off",
        description="required: packets without a tag are dropped; permissive: they are accepted and counted, for the "
        "time in which hosts change from off to required; off: no tags are made or looked at",
    )
    secret_file: Annotated[str, Field(min_length=1)] = Field(
        default="/etc/mrcd/secrets",
        description="the file with the secrets of the cluster or of this host's pairs, mode 0600: an absolute path, or "
        "the name of a systemd credential (LoadCredential=)",
    )
