# SPDX-License-Identifier: BSD-2-Clause
"""Reads the secrets of the cluster, or of pairs of hosts, from a file that only its owner may read.

A line is `ID SECRET`: a number from 1 to 255, and 64 hexadecimal digits. A line `ID PEER SECRET` gives the secret that
this host and PEER share under this id. There are two ids while new secrets replace others: the older one is first in
the file. No message contains a part of a secret, nor an unknown word, which may be one.
"""

import os
import pwd
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrcd.errors import ConfigError
from mrcd.kernel import abi

_LINE = re.compile(r"(?P<id>[0-9]{1,3})\s+(?:(?P<peer>\S+)\s+)?(?P<secret>[0-9a-fA-F]{64})\s*(?:#.*)?")
SECRET_BYTES = 32
SERVICE_USER = "mrcd"  # User= of scripts/deploy/mrcd.service
_BYTES_MOST = 1 << 25  # two secrets for each of 65,534 peers with names of 64 characters are 18 MB
_NEW = "`mrcctl keys generate` writes a new file for all hosts, with --pairs one for each host"


@dataclass(frozen=True)
class Secret:
    """The secret of the cluster that has an id in packets, and the secrets that replace it for pairs of hosts."""

    key_id: int
    secret: bytes = field(repr=False)  # empty: only the pairs have one
    pairs: Mapping[int, bytes] = field(default_factory=dict, repr=False, hash=False)  # by the peer's host id

    @property
    def is_known(self) -> bool:
        """Returns whether this has the secret of any pair: only its id is known of a secret that left the file."""
        return bool(self.secret or self.pairs)

    def of(self, peer: int) -> bytes:
        """Returns the secret that this host shares with a peer; empty if they share none under this id."""
        return self.pairs.get(peer, self.secret)


def path_of(name: str) -> Path:
    """Returns the path of a secrets file: an absolute one, or that of a systemd credential of this name."""
    return Path(os.environ.get("CREDENTIALS_DIRECTORY", "/run/credentials/mrcd.service")) / name


def new(key_id: int) -> Secret:
    """Returns a new random secret."""
    return Secret(key_id, secrets.token_bytes(SECRET_BYTES))


def write(
    path: Path,
    found: Sequence[Secret],
    names: Mapping[int, str] | None = None,
    *,
    replace: bool = True,
    for_service: bool = True,
) -> None:
    """Writes a secrets file, which only its owner may read; a reader sees the old file or the new one.

    `names`: host id → name, of peers in `found`. Written by root `for_service`, it belongs to the owner of the file
    before, or to the service's user. Raises FileExistsError if there is a file and it is not to be replaced, or another
    OSError.
    """
    text = "".join(_lines(found, names or {}))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    made = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if for_service and os.geteuid() == 0:
                os.fchown(descriptor, *_owner(path))
            os.fsync(descriptor)
        if replace:
            made.replace(path)
        else:
            path.hardlink_to(made)
    finally:
        made.unlink(missing_ok=True)


def _lines(found: Sequence[Secret], names: Mapping[int, str]) -> Iterator[str]:
    for secret in found:
        if secret.secret:
            yield f"{secret.key_id} {secret.secret.hex()}\n"
        for peer, of_pair in secret.pairs.items():
            yield f"{secret.key_id} {names[peer]} {of_pair.hex()}\n"


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


def read(path: Path, hosts: Mapping[str, int] | None = None, own: str = "") -> tuple[Secret, ...]:
    """Returns the secrets in the file of host `own`, the newest last. Raises ConfigError.

    `hosts`: name → id of all hosts. Without them the file must not have secrets of pairs.
    """
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
            hint=f"`chmod 600 {path}`; if others may have read it, make new secrets",
        )
    return parse(data, str(path), hosts, own)


def parse(data: bytes, where: str, hosts: Mapping[str, int] | None = None, own: str = "") -> tuple[Secret, ...]:
    """Returns the secrets in the text of a file, the newest last. Raises ConfigError; `where` names the file in it.

    `hosts` and `own` are as in read().
    """
    if len(data) > _BYTES_MOST:
        raise ConfigError(f"{where} is longer than {_BYTES_MOST} bytes: this is not a secrets file", hint=_NEW)
    of_cluster: dict[int, bytes] = {}
    of_pairs: dict[int, dict[int, bytes]] = {}  # has all ids, in the order of the file
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match, at = _LINE.fullmatch(text), f"{where}, line {number}"
        if not match or not 1 <= int(match["id"]) <= 255:
            raise ConfigError(
                f"{at}: this is not `ID SECRET` or `ID PEER SECRET`, with an id from 1 to 255 and a secret of 64 "
                "hexadecimal digits",
                hint=_NEW,
            )
        key_id, secret = int(match["id"]), bytes.fromhex(match["secret"])
        pairs = of_pairs.setdefault(key_id, {})
        if len(of_pairs) > abi.KEY_IDS:
            raise ConfigError(f"{at}: {key_id} is the third id; give one, or two while new secrets are rolled out")
        if match["peer"] is not None:
            peer = _peer(match["peer"], at, hosts, own)
            if peer in pairs:
                raise ConfigError(f"{at}: {match['peer']} has two secrets with id {key_id}; a new one needs a new id")
            pairs[peer] = secret
        elif key_id in of_cluster:
            raise ConfigError(f"{at}: two secrets have the same id {key_id}; a new secret needs a new id")
        else:
            of_cluster[key_id] = secret
    if not of_pairs:
        raise ConfigError(f"{where} holds no secret", hint=_NEW)
    return tuple(Secret(key_id, of_cluster.get(key_id, b""), pairs) for key_id, pairs in of_pairs.items())


def _peer(name: str, at: str, hosts: Mapping[str, int] | None, own: str) -> int:
    """Returns the id of the peer in a line. Raises ConfigError; `at` names the line in it."""
    if hosts is None:
        raise ConfigError(
            f"{at} has the secret of a pair of hosts: the other host needs the same new one",
            hint="`mrcctl keys generate --pairs DIRECTORY --add` makes new secrets for the files of all hosts",
        )
    if name not in hosts:
        raise ConfigError(
            f"{at}: the word between id and secret is not the name of a host in the cluster file",
            hint="correct the name; remove the lines of a host that has left the cluster",
        )
    if name == own:
        raise ConfigError(f"{at}: {name} is this host itself", hint="is this the file of another host?")
    return hosts[name]
