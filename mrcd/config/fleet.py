# SPDX-License-Identifier: BSD-2-Clause
"""Defines the section [fleet]: the etcd cluster that gives all hosts the cluster file and fleet-wide denials."""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from mrcd.config.section import Section

DEFAULT_PORT = 2379  # of etcd's clients

_Path = Annotated[str, Field(pattern="^/")]


class Fleet(Section):
    """The etcd cluster that gives all hosts the cluster file and fleet-wide denials. Each host reads its own file."""

    etcd: list[str] = Field(
        default_factory=list,
        description="the URLs of etcd's members, as https://etcd1:2379; without any, all comes from this file",
    )
    prefix: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)] = Field(
        default="/mrcd", description="under which the keys of this cluster are; each cluster needs one of its own"
    )
    ca_file: _Path | None = Field(
        default=None, description="certificates of the authorities that etcd is verified by; the system's if unset"
    )
    cert_file: _Path | None = Field(default=None, description="this host's certificate for etcd, with key_file")
    key_file: _Path | None = Field(default=None, description="the private key of cert_file")
    user_file: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="a file of one line NAME:PASSWORD, the user at etcd, mode 0600: an absolute path, or the name of "
        "a systemd credential (LoadCredential=)",
    )

    @model_validator(mode="after")
    def _endpoints(self) -> Self:
        for url in self.etcd:
            base_url(url)
            if url.startswith("http://") and (self.user_file or self.cert_file or self.ca_file):
                raise ValueError(f"etcd {url!r} is not encrypted: with user_file or TLS files write https://")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: give both or none")
        return self


def base_url(url: str) -> str:
    """Returns the URL of an etcd member with its port. Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError(f'etcd {url!r} is not a URL; write "https://etcd1:2379"') from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("an etcd URL has a user or a password: write them into user_file, not into this file")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f'etcd {url!r} is not a URL of a member; write "https://etcd1:2379"')
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
