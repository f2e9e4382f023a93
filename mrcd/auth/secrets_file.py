# SPDX-License-Identifier: BSD-2-Clause
"""Reads the secrets of the cluster from a file that only its owner may read.

A line is `ID SECRET`: a number from 1 to 255, and 64 hexadecimal digits. Two lines while one secret replaces another:
the last line is the newer one. No message contains a part of a secret.
"""

import os
import pwd
import re
import secrets
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrcd.errors import ConfigError
from mrcd.tables import abi

_LINE = re.compile(r"(?P<id>[0-9]{1,3})\s+(?P<secret>[0-9a-fA-F]{64})")
SECRET_BYTES = 32
SERVICE_USER = "mrcd"  # User= of scripts/deploy/mrcd.service
_BYTES_MOST = 4096
_NEW = "`mrcctl keys generate` writes a new file; the same file must be on all hosts"


@dataclass(frozen=True)
class Secret:
    """A secret of the whole cluster, and the id that packets under its keys have."""

    key_id: int
    secret: bytes = field(repr=False)


def path_of(name: str) -> Path:
    """Returns the path of a secrets file: an absolute one, or that of a systemd credential of this name."""
    return Path(os.environ.get("CREDENTIALS_DIRECTORY", "/run/credentials/mrcd.service")) / name


def new(key_id: int) -> Secret:
    """Returns a new random secret."""
    return Secret(key_id, secrets.token_bytes(SECRET_BYTES))


def write(path: Path, found: Sequence[Secret], *, replace: bool = True) -> None:
    """Writes a secrets file, which only its owner may read; a reader sees the old file or the new one.

    Written by root, it belongs to the owner of the file before, or to the service's user. Raises FileExistsError if
    there is a file and it is not to be replaced, or another OSError.
    """
    text = "".join(f"{s.key_id} {s.secret.hex()}\n" for s in found)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    made = Path(name)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(descriptor, *_owner(path))
            os.fsync(descriptor)
        if replace:
            made.replace(path)
        else:
            path.hardlink_to(made)
    finally:
        made.unlink(missing_ok=True)


def _owner(path: Path) -> tuple[int, int]:
    """Returns the user and the group of a file; if it is not there, those of the service."""
    try:
        return path.stat().st_uid, path.stat().st_gid
    except FileNotFoundError:
        return _service()


def _service() -> tuple[int, int]:
    """Returns the user and the group of the service, or root's if it is not installed."""
    try:
        user = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        return 0, 0
    return user.pw_uid, user.pw_gid


def read(path: Path) -> tuple[Secret, ...]:
    """Returns the secrets in a file, the newest last. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            mode, owner = os.fstat(file.fileno()).st_mode, os.fstat(file.fileno()).st_uid
            data = file.read(_BYTES_MOST + 1)
    except OSError as e:
        hint = f"`chown {SERVICE_USER} {path}`" if isinstance(e, PermissionError) else _NEW
        raise ConfigError(f"{path}: {e.strerror}", hint=hint) from None
    if owner not in (0, os.geteuid(), _service()[0]):
        raise ConfigError(f"{path} belongs to another user (uid {owner})", hint=f"`chown {SERVICE_USER} {path}`")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path} is open to other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"`chmod 600 {path}`; if others may have read it, new secrets",
        )
    return parse(data, str(path))


def parse(data: bytes, where: str) -> tuple[Secret, ...]:
    """Returns the secrets in the text of a file, the newest last. Raises ConfigError; `where` names the file in it."""
    if len(data) > _BYTES_MOST:
        raise ConfigError(f"{where} is longer than {_BYTES_MOST} bytes: this is no file of secrets", hint=_NEW)
    found: list[Secret] = []
    for number, line in enumerate(data.decode("ascii", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if not match or not 1 <= int(match["id"]) <= 255:
            raise ConfigError(
                f"{where}, line {number}: this is not `ID SECRET`, an id from 1 to 255 and 64 hexadecimal digits",
                hint=_NEW,
            )
        found.append(Secret(int(match["id"]), bytes.fromhex(match["secret"])))
    ids = [s.key_id for s in found]
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{where}: two secrets have the same id; a new secret needs a new id")
    if not 1 <= len(found) <= abi.KEY_IDS:
        raise ConfigError(
            f"{where} holds {len(found)} secrets: give one, or two while one replaces the other", hint=_NEW
        )
    return tuple(found)
