# SPDX-License-Identifier: BSD-2-Clause
"""Writes the keys of all peers into the programs' table, and changes from one secret to the next without a loss.

A host accepts all secrets of its file, and tells its peers so in its probes. It sends to a peer with the newest secret
that the peer accepts. So the order in which hosts get a new file does not matter. Each secret has a slot of the table
(mrc_auth). A slot is used again only when packets under the former secret have arrived.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mrcd.auth.pair_keys import as_words, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.tables import abi, enums

RETIREMENT_S = 0.6  # packets under a former secret are accepted for so long: longer than AGE_MAX_NS of bpf/auth.h


class Keyring:
    """The secrets of one host, by slot of the table."""

    def __init__(self, host_id: int) -> None:
        self._host_id = host_id
        self.mode = enums.AuthMode.OFF
        self.wanted: tuple[Secret, ...] = ()  # the newest last
        self._mode_written: enums.AuthMode | None = None
        self._slots: list[Secret | None] = [None] * abi.KEY_IDS
        self._retired: list[float] = [0.0] * abi.KEY_IDS  # when each slot's secret left the file; 0 = it has not
        self._has_looked = False  # at the keys of the daemon before

    def use(self, mode: enums.AuthMode, secrets: Sequence[Secret]) -> None:
        """Makes these the mode and the secrets, which follow() puts into force. The newest secret is the last."""
        self.mode, self.wanted = mode, tuple(secrets) if mode is not enums.AuthMode.OFF else ()

    @property
    def ids(self) -> list[int]:
        """Returns the ids of the secrets, the newest last."""
        return [s.key_id for s in self.wanted]

    @property
    def settled(self) -> bool:
        """Returns whether the table holds exactly the secrets that are wanted."""
        return {s for s in self._slots if s} == set(self.wanted)

    def add(self, auths: NDArray[np.void], rows: NDArray[np.int64]) -> None:
        """Gives the mode and the keys of the others to peers to be, which have none. follow() does the rest."""
        for slot, secret in enumerate(self._slots):
            if secret is not None and secret.secret:
                self._write(auths, rows, slot, secret)
        self._write_modes(auths, rows)

    def follow(self, auths: NDArray[np.void], peers: NDArray[np.void], rows: NDArray[np.int64], *, anew: bool) -> bool:
        """Brings the table to the wanted mode and secrets, and each peer to the newest secret that it accepts.

        `auths` (peers,) abi.AUTH is changed; `peers` (peers,) abi.PEER is read. `rows`: host ids of the peers. `anew`:
        the rows may have changed, so all keys are written again. Returns whether this host accepts other keys now.
        """
        now, accepted = time.monotonic(), auths["rx_id"][rows]
        if not self._has_looked:
            self._slots = [self._held(auths[rows], slot, rows) for slot in range(abi.KEY_IDS)]
            self._has_looked = True
        if self.mode is enums.AuthMode.OFF:  # before the keys go: without them a tagged packet would be dropped
            self._write_mode(auths, rows, anew=anew)
        for slot, secret in enumerate(self._slots):
            if secret is not None and secret not in self.wanted:
                self._retired[slot] = self._retired[slot] or now
                if now - self._retired[slot] >= RETIREMENT_S or self.mode is enums.AuthMode.OFF:
                    auths["rx_id"][:, slot] = auths["tx_id"][:, slot] = 0
                    self._slots[slot] = None
                    self._retired[slot] = 0.0
            elif secret is not None:
                self._retired[slot] = 0.0
        for secret in self.wanted:
            if secret not in self._slots and None in self._slots:
                slot = self._slots.index(None)
                self._slots[slot] = secret
                self._write(auths, rows, slot, secret)
        if anew:
            others = np.ones(len(auths), bool)
            others[rows] = False
            for name in set(abi.AUTH.names or ()) - {"sent"}:
                auths[name][others] = 0
            for slot, secret in enumerate(self._slots):
                if secret is not None and secret.secret:
                    self._write(auths, rows, slot, secret)
        self._choose(auths, peers, rows)
        self._write_mode(auths, rows, anew=anew)
        return bool((auths["rx_id"][rows] != accepted).any())

    def _held(self, records: NDArray[np.void], slot: int, rows: NDArray[np.int64]) -> Secret | None:
        """Returns the secret in a slot of the table, which the daemon before has written; without its value if unknown.

        So a restart neither moves a key that is in use nor keeps one whose secret has left the file.
        """
        used = np.flatnonzero(records["rx_id"][:, slot] | records["tx_id"][:, slot])
        if not len(used):
            return None
        record, row = records[used[0]], int(rows[used[0]])
        key_id = int(record["rx_id"][slot] or record["tx_id"][slot])
        for secret in self.wanted:
            mine, its = self._keys(secret, row)
            if (
                secret.key_id == key_id
                and (record["tx_key"][slot] == mine).all()
                and (record["rx_key"][slot] == its).all()
            ):
                return secret
        return Secret(key_id, b"")

    def _keys(self, secret: Secret, row: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Returns the keys of packets to a peer and from it."""
        to, back = pair_key(secret.secret, self._host_id, row), pair_key(secret.secret, row, self._host_id)
        return as_words(to), as_words(back)

    def _write_mode(self, auths: NDArray[np.void], rows: NDArray[np.int64], *, anew: bool) -> None:
        if anew or self._mode_written is not self.mode:
            self._write_modes(auths, rows)
            self._mode_written = self.mode

    def _write_modes(self, auths: NDArray[np.void], rows: NDArray[np.int64]) -> None:
        auths["mode"][rows] = self.mode
        tags_only = abi.STATUS_TAGS_ONLY if self.mode is enums.AuthMode.REQUIRED else 0
        auths["status"][rows] = auths["status"][rows] & ~np.uint32(abi.STATUS_TAGS_ONLY) | np.uint32(tags_only)

    def _write(self, auths: NDArray[np.void], rows: NDArray[np.int64], slot: int, secret: Secret) -> None:
        for row in rows.tolist():
            auths["tx_key"][row, slot], auths["rx_key"][row, slot] = self._keys(secret, row)
        auths["tx_id"][rows, slot] = auths["rx_id"][rows, slot] = secret.key_id

    def _choose(self, auths: NDArray[np.void], peers: NDArray[np.void], rows: NDArray[np.int64]) -> None:
        """Has this host send to each peer with the newest secret that both have."""
        accepted = peers["key_ids"][rows, : abi.KEY_IDS]
        chosen = np.full(len(rows), self._first_slot())
        for secret in self.wanted:  # the newest last
            if secret in self._slots:
                chosen = np.where((accepted == secret.key_id).any(axis=1), self._slots.index(secret), chosen)
        changed = auths["tx_slot"][rows] != chosen
        if changed.any():
            auths["tx_slot"][rows[changed]] = chosen[changed]

    def _first_slot(self) -> int:
        """Returns the slot of the oldest secret, for peers that have not told what they accept."""
        return next((self._slots.index(s) for s in self.wanted if s in self._slots), 0)


def cut_off(
    mode: enums.AuthMode, held: Sequence[Secret], secrets: Sequence[Secret], peers: NDArray[np.void]
) -> NDArray[np.bool_]:
    """Returns which peers would refuse this host's packets, or it theirs, if it had this mode and these secrets.

    `held` are the secrets that it has had; `peers` are records of abi.PEER. A peer that accepts no key sends without
    tags. An id that names another secret now is not shared, because the peer has the former one.
    """
    if mode is enums.AuthMode.OFF:
        return np.asarray((peers["status"] & abi.STATUS_TAGS_ONLY) != 0)
    accepted = peers["key_ids"][:, : abi.KEY_IDS]
    changed = {h.key_id for h in held for s in secrets if h.key_id == s.key_id and h != s}
    shared = np.isin(accepted, [s.key_id for s in secrets if s.key_id not in changed]).any(axis=1)
    untagged = ~accepted.any(axis=1)
    return np.asarray(np.where(untagged, mode is enums.AuthMode.REQUIRED, ~shared))
