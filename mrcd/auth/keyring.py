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
from mrcd.tables import abi

RETIREMENT_S = 0.3  # packets under a former secret are accepted for so long: longer than they are on the way


class Keyring:
    """The secrets of one host, by slot of the table."""

    def __init__(self, host_id: int) -> None:
        self._host_id = host_id
        self.mode = abi.AuthMode.OFF
        self.wanted: tuple[Secret, ...] = ()  # the newest last
        self._mode_written: abi.AuthMode | None = None
        self._slots: list[Secret | None] = [None] * abi.KEY_IDS
        self._retired: list[float] = [0.0] * abi.KEY_IDS  # when each slot's secret left the file; 0 = it has not

    def use(self, mode: abi.AuthMode, secrets: Sequence[Secret]) -> None:
        """Makes these the mode and the secrets, which follow() puts into force. The newest secret is the last."""
        self.mode, self.wanted = mode, tuple(secrets) if mode is not abi.AuthMode.OFF else ()

    @property
    def ids(self) -> list[int]:
        """Returns the ids of the secrets, the newest last."""
        return [s.key_id for s in self.wanted]

    @property
    def settled(self) -> bool:
        """Returns whether the table holds exactly the secrets that are wanted."""
        return {s for s in self._slots if s} == set(self.wanted)

    def follow(self, auths: NDArray[np.void], peers: NDArray[np.void], rows: NDArray[np.int64], *, anew: bool) -> None:
        """Brings the table to the wanted mode and secrets, and each peer to the newest secret that it accepts.

        `auths` (peers,) abi.AUTH is changed; `peers` (peers,) abi.PEER is read. `rows`: host ids of the peers. `anew`:
        the rows may have changed, so all keys are written again.
        """
        now = time.monotonic()
        if self.mode is abi.AuthMode.OFF:  # before the keys go: without them a tagged packet would be dropped
            self._write_mode(auths, rows, anew=anew)
        for slot, secret in enumerate(self._slots):
            if secret is not None and secret not in self.wanted:
                self._retired[slot] = self._retired[slot] or now
                if now - self._retired[slot] >= RETIREMENT_S or self.mode is abi.AuthMode.OFF:
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
            auths[others] = np.zeros((), abi.AUTH)
            for slot, secret in enumerate(self._slots):
                if secret is not None:
                    self._write(auths, rows, slot, secret)
        self._choose(auths, peers, rows)
        self._write_mode(auths, rows, anew=anew)

    def _write_mode(self, auths: NDArray[np.void], rows: NDArray[np.int64], *, anew: bool) -> None:
        if anew or self._mode_written is not self.mode:
            auths["mode"][rows] = self.mode
            self._mode_written = self.mode

    def _write(self, auths: NDArray[np.void], rows: NDArray[np.int64], slot: int, secret: Secret) -> None:
        for row in rows.tolist():
            mine, its = pair_key(secret.secret, self._host_id, row), pair_key(secret.secret, row, self._host_id)
            auths["tx_key"][row, slot], auths["rx_key"][row, slot] = as_words(mine), as_words(its)
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
