# SPDX-License-Identifier: BSD-2-Clause
"""Writes the keys of all peers into the programs' table, and changes from one secret to the next without a loss.

A host accepts all secrets of its file, and tells its peers so in its probes. It sends to a peer with the newest secret
that the peer accepts. So the order in which hosts get a new file does not matter. Each secret has a slot of the table
(mrc_auth). A slot is used again only when packets under the former secret have arrived. Secrets of pairs with one id
have one slot. A peer that has none of them has no key there.
"""

import struct
import time
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from mrcd.auth.secrets_file import Secret
from mrcd.kernel import abi, enums

RETIREMENT_S = 0.6  # packets under a former secret are accepted for so long: longer than AGE_MAX_NS of bpf/auth.h

_KEY_BYTES = 16  # SipHash's
_CONTEXT = b"mrcd packets 1"


def pair_key(secret: bytes, sender: int, receiver: int) -> bytes:
    """Returns the 16 bytes under which host `sender` tags packets to host `receiver`. `secret` is 32 random bytes.

    HKDF with SHA-256 (RFC 5869) makes them, with the two host ids as context.
    """
    context = _CONTEXT + struct.pack("!HH", sender, receiver)
    return HKDFExpand(SHA256(), _KEY_BYTES, context).derive(secret)


def as_words(key: bytes) -> NDArray[np.uint64]:
    """Returns a key as the two words of the programs' tables (mrc_auth.tx_key), in the order of memory."""
    return np.frombuffer(key, np.uint64)


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
        self._wanted_before: tuple[Secret, ...] = ()  # the wanted secrets, at the last update()
        self._accepted = np.zeros(0, np.uint32)  # by the peers, at the last update()

    def use(self, mode: enums.AuthMode, secrets: Sequence[Secret]) -> None:
        """Makes these the mode and the secrets, which update() puts into force. The newest secret is the last."""
        wanted = secrets if mode is not enums.AuthMode.OFF else ()
        held = {s: s for s in self._slots if s}  # the same objects compare fast, even with thousands of pairs
        self.mode, self.wanted = mode, tuple(held.get(s, s) for s in wanted)

    @property
    def ids(self) -> list[int]:
        """Returns the ids of the secrets, the newest last."""
        return [s.key_id for s in self.wanted]

    @property
    def settled(self) -> bool:
        """Returns whether the table holds exactly the secrets that are wanted."""
        return {s for s in self._slots if s} == set(self.wanted)

    def has_news(self, peers: NDArray[np.void]) -> bool:
        """Returns whether update() has anything to do: of the mode, the secrets, or keys that peers (abi.PEER) accept.

        Thousands of peers are compared in some microseconds.
        """
        if not self.settled or self._mode_written is not self.mode or self._wanted_before != self.wanted:
            return True
        return self.mode is not enums.AuthMode.OFF and not np.array_equal(_accepted(peers), self._accepted)

    def add(self, auths: NDArray[np.void], rows: NDArray[np.int64]) -> None:
        """Writes the mode and the keys in the table for rows that are not configured yet. update() does the rest."""
        for slot, secret in enumerate(self._slots):
            if secret is not None and secret.is_known:
                self._write(auths, rows, slot, secret)
        self._write_modes(auths, rows)

    def update(self, auths: NDArray[np.void], peers: NDArray[np.void], rows: NDArray[np.int64], *, anew: bool) -> bool:
        """Brings the table to the wanted mode and secrets, and each peer to the newest secret that it accepts.

        `auths` (peers,) abi.AUTH is changed; `peers` (peers,) abi.PEER is read. `rows`: host ids of the peers. `anew`:
        the rows may have changed, so all keys are written again. Returns whether this host accepts other keys now.
        """
        now, accepted = time.monotonic(), auths["rx_id"][rows]
        self._wanted_before, self._accepted = self.wanted, _accepted(peers).copy()
        if not self._has_looked:
            self._slots = [self._held(auths[rows], slot, rows) for slot in range(abi.KEY_IDS)]
            self._has_looked = True
        if self.mode is enums.AuthMode.OFF:  # before the keys go: without them a tagged packet would be dropped
            self._write_mode(auths, rows, anew=anew)
            auths["clock_ns"] = 0  # clocks are not followed meanwhile
        self._retire(auths, rows, now)
        for wanted in self.wanted:
            if wanted not in self._slots and None in self._slots:
                slot = self._slots.index(None)
                self._slots[slot] = wanted
                self._write(auths, rows, slot, wanted)
        if anew:
            others = np.ones(len(auths), bool)
            others[rows] = False
            for name in set(abi.AUTH.names or ()) - {"sent"}:
                auths[name][others] = 0
            for slot, secret in enumerate(self._slots):
                if secret is not None and secret.is_known:
                    self._write(auths, rows, slot, secret)
        self._choose(auths, peers, rows)
        self._write_mode(auths, rows, anew=anew)
        return bool((auths["rx_id"][rows] != accepted).any())

    def _retire(self, auths: NDArray[np.void], rows: NDArray[np.int64], now: float) -> None:
        """Empties slots whose secret has left the file. Of two, the second waits until the first has its successor."""
        for slot, held in enumerate(self._slots):
            left = held is not None and held not in self.wanted
            self._retired[slot] = (self._retired[slot] or now) if left else 0.0
        # First the slot by which fewer peers are sent to.
        is_off = self.mode is enums.AuthMode.OFF
        for slot in sorted(range(abi.KEY_IDS), key=lambda s: int((auths["tx_slot"][rows] == s).sum())):
            if self._retired[slot] and (is_off or now - self._retired[slot] >= RETIREMENT_S):
                auths["rx_id"][:, slot] = auths["tx_id"][:, slot] = 0
                self._slots[slot] = None
                self._retired[slot] = 0.0
                self._retired = [since if is_off else since and now for since in self._retired]

    def _held(self, records: NDArray[np.void], slot: int, rows: NDArray[np.int64]) -> Secret | None:
        """Returns the secret in a slot of the table, which the daemon before has written; without its value if unknown.

        So a restart neither moves a key that is in use nor keeps one whose secret has left the file. The keys of one
        peer suffice, because update() writes those of all peers again.
        """
        used = np.flatnonzero(records["rx_id"][:, slot] | records["tx_id"][:, slot])
        if not len(used):
            return None
        key_id = int(records["rx_id"][used[0], slot] or records["tx_id"][used[0], slot])
        for secret in self.wanted:
            if secret.key_id == key_id and any(self._has(records[n], slot, secret, int(rows[n])) for n in used):
                return secret
        return Secret(key_id, b"")

    def _has(self, record: np.void, slot: int, secret: Secret, row: int) -> bool:
        """Returns whether a slot of a peer's record holds the keys of this secret."""
        mine, its = self._keys(secret, row)
        return bool((record["tx_key"][slot] == mine).all() and (record["rx_key"][slot] == its).all())

    def _keys(self, secret: Secret, row: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Returns the keys of packets to a peer and from it."""
        shared = secret.of(row)
        to, back = pair_key(shared, self._host_id, row), pair_key(shared, row, self._host_id)
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
        has_key = np.array([bool(secret.of(row)) for row in rows.tolist()], bool)
        for row in rows[has_key].tolist():
            auths["tx_key"][row, slot], auths["rx_key"][row, slot] = self._keys(secret, row)
        auths["tx_id"][rows, slot] = auths["rx_id"][rows, slot] = np.where(has_key, secret.key_id, 0)

    def _choose(self, auths: NDArray[np.void], peers: NDArray[np.void], rows: NDArray[np.int64]) -> None:
        """Has this host send to each peer with the newest secret that both have; to a silent one with the oldest."""
        accepted, has_key = peers["key_ids"][rows, : abi.KEY_IDS], auths["tx_id"][rows] != 0
        chosen = np.zeros(len(rows), np.int64)  # without any key: no tag is made
        slots = [(secret.key_id, slot) for secret in self.wanted if (slot := self._slot_of(secret)) is not None]
        if not slots:
            return  # two former secrets hold both slots still
        for _, slot in reversed(slots):  # the oldest last
            chosen = np.where(has_key[:, slot], slot, chosen)
        for key_id, slot in slots:  # the newest last
            chosen = np.where(has_key[:, slot] & (accepted == key_id).any(axis=1), slot, chosen)
        changed = auths["tx_slot"][rows] != chosen
        if changed.any():
            auths["tx_slot"][rows[changed]] = chosen[changed]

    def _slot_of(self, secret: Secret) -> int | None:
        """Returns the slot of a secret; while it has none, that of a former one with its id, which pairs may share."""
        if secret in self._slots:
            return self._slots.index(secret)
        return next((n for n, s in enumerate(self._slots) if s is not None and s.key_id == secret.key_id), None)


def _accepted(peers: NDArray[np.void]) -> NDArray[np.uint32]:
    """Returns each peer's key_ids as one number."""
    return np.asarray(peers["key_ids"].view(np.uint32)[:, 0])


def cut_off(
    mode: enums.AuthMode,
    held: Sequence[Secret],
    secrets: Sequence[Secret],
    peers: NDArray[np.void],
    rows: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Returns which peers would refuse this host's packets, or it theirs, if it had this mode and these secrets.

    `held` are the secrets that it has had; `peers` are records of abi.PEER, `rows` their host ids. A peer that accepts
    no key sends without tags. An id that names another secret of the pair now is not shared, because the peer has the
    former one.
    """
    if mode is enums.AuthMode.OFF:
        return np.asarray((peers["status"] & abi.STATUS_TAGS_ONLY) != 0)
    accepted = peers["key_ids"][:, : abi.KEY_IDS]
    shared = np.zeros(len(peers), bool)
    for secret in secrets:
        former = [h for h in held if h.key_id == secret.key_id]
        is_kept = [all(h.of(r) in (b"", secret.of(r)) for h in former) and secret.of(r) != b"" for r in rows.tolist()]
        shared |= (accepted == secret.key_id).any(axis=1) & np.array(is_kept, bool)
    untagged = ~accepted.any(axis=1)
    return np.asarray(np.where(untagged, mode is enums.AuthMode.REQUIRED, ~shared))
