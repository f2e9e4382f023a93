# SPDX-License-Identifier: BSD-2-Clause
"""Makes secrets for all pairs of hosts: a secrets file per host, for the operator to distribute."""

import hmac
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mrcd.auth import secrets_file
from mrcd.auth.secrets_file import SECRET_BYTES, Secret
from mrcd.errors import UsageError


def generate(directory: Path, hosts: Mapping[str, int], *, add: bool, cluster: Sequence[Secret] = ()) -> list[int]:
    """Writes a file per host, with a new secret for each of its pairs. Returns the ids in the files, the newest last.

    `hosts`: name → id. All new secrets have one id. The files keep the newest secret of `cluster`, or with `add` those
    of the newest id that all files have. With `add` files are replaced, and a host without a file gets one. Raises
    UsageError and changes nothing; or OSError after some files were written: the next run with `add` replaces them.
    """
    found = {name: directory / name for name in hosts if (directory / name).exists()}
    if found and not add:
        exists = next(iter(found.values()))
        raise UsageError(f"{exists} exists; nothing was changed", hint="--add without FILE adds secrets to these files")
    kept = _common([s.key_id for s in secrets_file.read(p, hosts, n)] for n, p in found.items()) if add else None
    if add and kept is None:
        why = "no id is in all files" if found else "no host has a file there"
        raise UsageError(f"{directory}: {why}; nothing was changed", hint="without --add new files are written")
    old = cluster[-1:]
    ids = [s.key_id for s in old] if kept is None else [kept]
    new_id = ids[0] % 255 + 1 if ids else 1
    directory.mkdir(mode=0o700, exist_ok=True)
    names = {host_id: name for name, host_id in hosts.items()}
    forgotten = secrets.token_bytes(SECRET_BYTES)  # so the secrets of millions of pairs need no memory
    for name, own in hosts.items():
        if name in found:
            old = tuple(s for s in secrets_file.read(found[name], hosts, name) if s.key_id == kept)
        elif add:
            old = ()
        pairs = {peer: _of_pair(forgotten, own, peer) for peer in hosts.values() if peer != own}
        made = [*old, Secret(new_id, b"", pairs)]
        secrets_file.write(directory / name, made, names, replace=add, for_service=False)
    return [*ids, new_id]


def _of_pair(secret: bytes, one: int, other: int) -> bytes:
    """Returns a secret for two hosts, in any order: HMAC with SHA-256 of their ids."""
    return hmac.digest(secret, struct.pack("!HH", min(one, other), max(one, other)), "sha256")


def _common(files: Iterable[Sequence[int]]) -> int | None:
    """Returns the newest id that all files have, by the order in the first file; None if there is none."""
    first, *others = [list(ids) for ids in files] or [[]]
    return next((i for i in reversed(first) if all(i in ids for ids in others)), None)
