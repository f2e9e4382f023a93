# SPDX-License-Identifier: BSD-2-Clause
"""Tests which secret is used for which peer, while secrets and modes change in any order."""

import hashlib
import hmac
import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd.auth import secrets_file
from mrcd.auth.keyring import Keyring
from mrcd.auth.pair_keys import as_words, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.auth.tag import Signer, tag
from mrcd.tables import abi
from mrcd.tables.abi import AuthMode

A, B, C = (secrets_file.new(n) for n in (1, 2, 3))
ROWS = np.array([1, 2])


class Host:
    """A host's keyring and table, among peers 1 and 2."""

    def __init__(self, number: int = 0) -> None:
        self.auths: NDArray[np.void] = np.zeros(4, abi.AUTH)
        self.peers: NDArray[np.void] = np.zeros(4, abi.PEER)
        self.ring = Keyring(number)

    def use(self, mode: AuthMode, *secrets: Secret, anew: bool = False) -> None:
        self.ring.use(mode, secrets)
        self.follow(anew=anew)

    def follow(self, *, anew: bool = False) -> None:
        self.ring.follow(self.auths, self.peers, ROWS, anew=anew)

    def tell(self, row: int, *ids: int) -> None:
        """The peer of this row says which secrets it accepts."""
        self.peers["key_ids"][row] = [*ids, *[0] * (4 - len(ids))]

    def sends_with(self, row: int) -> int:
        auth = self.auths[row]
        return int(auth["tx_id"][int(auth["tx_slot"])])

    def accepted(self, row: int = 1) -> set[int]:
        return {int(i) for i in self.auths["rx_id"][row][: abi.KEY_IDS] if i}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("mrcd.auth.keyring.time.monotonic", lambda: now[0])
    return now


def test_a_pairs_key_is_that_of_rfc_5869() -> None:
    """HKDF-Expand for one block is HMAC of the context and a 1 (§2.3)."""
    context = b"mrcd packets 1" + bytes([1, 2, 3, 4]) + b"\x01"
    wanted = hmac.digest(A.secret, context, hashlib.sha256)[:16]
    assert pair_key(A.secret, 0x0102, 0x0304) == wanted


def test_keys_differ_by_pair_direction_and_secret() -> None:
    pairs = list(itertools.permutations(range(4), 2))
    keys = {pair_key(s.secret, *pair) for s in (A, B) for pair in pairs}
    assert len(keys) == 2 * len(pairs)


def test_the_tag_is_that_of_the_papers_reference_code() -> None:
    assert int.from_bytes(tag(bytes(range(16)), bytes(range(15))), "little") == 0xA129CA6149BE45E5


def test_the_first_secret_is_used_at_once_in_both_directions() -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A)
    assert (host.accepted(), host.sends_with(1), host.auths["mode"][1]) == ({1}, 1, AuthMode.REQUIRED)
    assert (host.auths["tx_key"][1, 0] == as_words(pair_key(A.secret, 0, 1))).all()
    assert (host.auths["rx_key"][1, 0] == as_words(pair_key(A.secret, 1, 0))).all()
    assert not host.auths["tx_key"][3].any()


@pytest.mark.parametrize("order", list(itertools.permutations(["mine", "first", "second"])))
def test_a_new_secret_is_used_when_both_have_it_in_any_order(order: tuple[str, ...]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A)
    host.tell(1, 1)
    host.tell(2, 1)
    have: set[str] = set()
    for step in order:
        have.add(step)
        if step == "mine":
            host.use(AuthMode.REQUIRED, A, B)
        else:
            host.tell(1 if step == "first" else 2, 1, 2)
        host.follow()
        for row, name in ((1, "first"), (2, "second")):
            assert host.sends_with(row) == (2 if {"mine", name} <= have else 1)
    assert host.accepted() == {1, 2}


def test_a_former_secret_is_accepted_until_its_packets_have_arrived(clock: list[float]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    host.tell(1, 1, 2)
    host.use(AuthMode.REQUIRED, B)
    assert (host.accepted(), host.ring.settled) == ({1, 2}, False)
    clock[0] += 1
    host.follow()
    assert (host.accepted(), host.sends_with(1), host.ring.settled) == ({2}, 2, True)


def test_one_secret_replaces_another_at_once(clock: list[float]) -> None:
    """Both slots are taken: the third secret waits until the first one's packets have arrived."""
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    host.tell(1, 1, 2)
    host.use(AuthMode.REQUIRED, B, C)
    assert host.accepted() == {1, 2}
    clock[0] += 1
    host.follow()
    assert host.accepted() == {2, 3}
    host.tell(1, 2, 3)
    host.follow()
    assert host.sends_with(1) == 3


def test_a_secret_that_comes_back_stays(clock: list[float]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    host.use(AuthMode.REQUIRED, B)
    host.use(AuthMode.REQUIRED, A, B)
    clock[0] += 10
    host.follow()
    assert host.accepted() == {1, 2}


def test_off_takes_the_keys_away_and_no_tag_is_made() -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A)
    host.use(AuthMode.OFF)
    assert (host.accepted(), host.sends_with(1), host.auths["mode"][1]) == (set(), 0, AuthMode.OFF)
    assert host.ring.settled


def test_other_rows_lose_their_keys() -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A)
    host.auths[3] = host.auths[1]
    host.auths["clock_ns"][1] = 5
    host.follow(anew=True)
    assert not host.auths[3].tobytes().strip(b"\0")
    assert host.auths["clock_ns"][1] == 5
    assert host.sends_with(1) == 1


def test_the_signer_reads_the_sending_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets are those of struct mrc_auth."""
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    host.tell(1, 1, 2)
    host.follow()
    monkeypatch.setattr("mrcd.auth.tag.libbpf.get", lambda path: 7)
    signer = Signer(Path("pins"))
    monkeypatch.setattr("mrcd.auth.tag.libbpf.lookup_elem", lambda fd, key, size: host.auths[key[0]].tobytes())
    assert signer.key(1) == (2, pair_key(B.secret, 0, 1))
    assert signer.key(2) == (1, pair_key(A.secret, 0, 2))
    assert signer.key(3) == (0, b"")
