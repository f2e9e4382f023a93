# SPDX-License-Identifier: BSD-2-Clause
"""Configures TLS and basic authentication from a web configuration file of Prometheus' exporters.

The models below have the keys of https://prometheus.io/docs/prometheus/latest/configuration/https/ that mrcd supports.
Other keys are errors, because an ignored key could leave the endpoint unprotected. The file is read again when it or
the certificate has changed.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
import os
import ssl
from pathlib import Path
from typing import Annotated, Literal

import bcrypt
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mrcd.errors import ConfigError

log = logging.getLogger("mrcd.api.metrics.web_config")

_Hash = Annotated[str, Field(pattern=r"^\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(_Model):
    """tls_server_config. Files are relative to the web configuration file."""

    cert_file: str
    key_file: str
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: str | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class File(_Model):
    """The whole file. Users: name → bcrypt hash, as `htpasswd -nBC 10 "" | tr -d ':'` prints it."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, _Hash] = Field(default_factory=dict)


class WebConfig:
    """The settings in force. `tls` is None for plain HTTP."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._stamp = self._stamps([self._path])
        file = self._read()
        self._tls = file.tls_server_config
        self.tls = self._context(self._tls) if self._tls else None
        self._at_start = self._fixed(self._tls)
        self._users = file.basic_auth_users
        self._known: set[bytes] = set()  # hashes of accepted credentials, because bcrypt is slow
        self._one_at_a_time = asyncio.Lock()
        self._nobody = bcrypt.hashpw(b"", bcrypt.gensalt(10)).decode()  # makes unknown users as slow as known ones
        self._salt = os.urandom(16)
        self._stamp = self._stamps(self._files())

    # ---- the file ----

    def _read(self) -> File:
        """Raises ConfigError."""
        try:
            text = self._path.read_text(encoding="utf-8")
            return File.model_validate(yaml.safe_load(text) or {})
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{self._path}: {e}", hint="[metrics] web_config names this file") from None
        except yaml.YAMLError as e:
            why = f"{self._path}: not valid YAML: {' '.join(str(e).split())}"
            raise ConfigError(why, hint="[metrics] web_config names this file") from None
        except ValidationError as e:
            faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in e.errors(include_input=False))
            raise ConfigError(
                f"{self._path}: {faults}",
                hint="tls_server_config (cert_file, key_file, client_auth_type, client_ca_file, min_version) and "
                "basic_auth_users (name: bcrypt hash) are the supported keys",
            ) from None

    def _context(self, tls: Tls) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
        self._load(context, tls)
        if tls.client_auth_type == "RequireAndVerifyClientCert":
            if tls.client_ca_file is None:
                raise ConfigError(f"{self._path}: client_auth_type {tls.client_auth_type} needs a client_ca_file")
            try:
                context.load_verify_locations(self._beside(tls.client_ca_file))
            except (OSError, ssl.SSLError) as e:
                raise ConfigError(f"{self._path}: client_ca_file {tls.client_ca_file}: {e.strerror or e}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load(self, context: ssl.SSLContext, tls: Tls) -> None:
        try:
            context.load_cert_chain(self._beside(tls.cert_file), self._beside(tls.key_file))
        except (OSError, ssl.SSLError) as e:
            raise ConfigError(
                f"{self._path}: certificate {tls.cert_file} with key {tls.key_file}: {e.strerror or e}",
                hint="both must be matching PEM files that mrcd's user may read",
            ) from None

    def _fixed(self, tls: Tls | None) -> tuple[str, str, bytes | None] | None:
        """Return the settings that an SSL context cannot change later."""
        if tls is None:
            return None
        ca = tls.client_ca_file if tls.client_auth_type != "NoClientCert" else None
        try:
            return tls.min_version, tls.client_auth_type, self._beside(ca).read_bytes() if ca else b""
        except OSError:
            return tls.min_version, tls.client_auth_type, None

    def _beside(self, name: str) -> Path:
        return self._path.parent / name

    def _files(self) -> list[Path]:
        tls = self._tls
        names = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls else ()
        return [self._path, *(self._beside(n) for n in names if n)]

    def _stamps(self, paths: list[Path]) -> list[tuple[int, int]]:
        found = []
        for path in paths:
            try:
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_ino))
            except OSError:
                found.append((0, 0))
        return found

    def refresh(self) -> None:
        """Read a changed file or certificate again. With an error in it, the old settings stay in force."""
        stamp = self._stamps(self._files())
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            file = self._read()
            if (file.tls_server_config is None) != (self.tls is None):
                raise ConfigError(f"{self._path}: turning TLS on or off needs a restart of mrcd")
            if self.tls is not None and file.tls_server_config is not None:
                self._load(self.tls, file.tls_server_config)
                self._tls = file.tls_server_config
        except ConfigError as e:
            log.error("%s; the metrics endpoint keeps its old settings", e)
            return
        self._users, self._known = file.basic_auth_users, set()
        self._stamp = self._stamps(self._files())
        if self._fixed(self._tls) == self._at_start:
            log.info("%s: read again", self._path)
        else:
            log.error("%s: read again, but changes of min_version and client_* need a restart of mrcd", self._path)

    # ---- passwords ----

    async def allows(self, authorization: str | None) -> bool:
        """Return whether an Authorization header (RFC 7617), or None, gives access."""
        if not self._users:
            return True
        scheme, _, credentials = (authorization or "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            name, colon, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        if not colon:
            return False
        users = self._users
        wanted = users.get(name)
        key = hashlib.sha256(self._salt + f"{name}\0{wanted}\0{password}".encode()).digest()
        if key in self._known:
            return True
        async with self._one_at_a_time:  # one check at a time, in a thread, so that guesses do not block the loop
            right = await asyncio.to_thread(_matches, password, wanted or self._nobody)
        if not right or wanted is None or users is not self._users:
            return False
        self._known.add(key)
        return True


def _matches(password: str, wanted: str) -> bool:
    try:
        return bcrypt.checkpw(password.encode(), wanted.encode())
    except ValueError:  # longer than bcrypt supports, or with a zero byte
        return False
