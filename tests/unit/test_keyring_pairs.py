# SPDX-License-Identifier: BSD-2-Clause
"""Tests the keys of pairs that have secrets of their own: a peer without one gets no key, a change loses no packet."""

import numpy as np
import pytest

from mrcd.auth import secrets_file
from mrcd.auth.keyring import cut_off
from mrcd.auth.pair_keys import as_words, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.kernel import abi
from mrcd.kernel.enums import AuthMode
from tests.unit.test_keyring import ROWS, Host, peers_with, restarted

CLUSTER = secrets_file.new(1)
S1, S2, T1, T2 = (secrets_file.new(1).secret for _ in range(4))
BOTH = Secret(1, b"", {1: S1, 2: S2})
FIRST = Secret(1, b"", {1: S1})  # of peer 1 only
NEWER = Secret(2, b"", {1: T1, 2: T2})


@pytest.fixture(name="clock")
def a_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("mrcd.auth.keyring.time.monotonic", lambda: now[0])
    return now


def keys_of(host: Host, row: int, key_id: int) -> tuple[bytes, bytes]:
    """Returns the keys of a peer to and from it under an id."""
    auth = host.auths[row]
    slot = auth["rx_id"].tolist().index(key_id)
    assert auth["tx_id"][slot] == key_id
    return auth["tx_key"][slot].tobytes(), auth["rx_key"][slot].tobytes()


def derived(secret: bytes, row: int) -> tuple[bytes, bytes]:
    """Returns the keys that host 0 and a peer derive from a secret."""
    return as_words(pair_key(secret, 0, row)).tobytes(), as_words(pair_key(secret, row, 0)).tobytes()


OLD_OF_2, NEW_OF_2 = Secret(1, b"", {2: S2}), Secret(2, b"", {2: T2})


@pytest.mark.parametrize(
    ("secrets", "told", "sends_with", "accepted"),
    [
        ((BOTH,), (), (1, 1), ({1}, {1})),
        ((Secret(1, CLUSTER.secret, {2: S2}),), (), (1, 1), ({1}, {1})),  # instead of the cluster's
        ((BOTH, NEW_OF_2), (1, 2), (1, 1), ({1}, {1, 2})),  # without the newer secret
        ((OLD_OF_2, NEWER), (), (2, 1), ({2}, {1, 2})),  # the oldest that it has, while it has told nothing
    ],
)
def test_each_pair_derives_its_keys_from_its_secret(
    secrets: tuple[Secret, ...], told: tuple[int, ...], sends_with: tuple[int, int], accepted: tuple[set[int], set[int]]
) -> None:
    host = Host()
    host.tell(1, *told)
    host.use(AuthMode.REQUIRED, *secrets)
    assert (host.sends_with(1), host.sends_with(2)) == sends_with
    assert (host.accepted(1), host.accepted(2)) == accepted
    for secret in secrets:
        for row in (1, 2):
            if secret.of(row):
                assert keys_of(host, row, secret.key_id) == derived(secret.of(row), row)
    assert (host.ring.ids, host.ring.settled) == ([s.key_id for s in secrets], True)


@pytest.mark.parametrize("anew", [False, True])
def test_a_peer_that_the_file_does_not_name_has_no_key(anew: bool) -> None:
    host = Host()
    host.tell(2, 1)
    host.use(AuthMode.REQUIRED, FIRST, anew=anew)
    assert (host.accepted(1), host.accepted(2), host.sends_with(1), host.sends_with(2)) == ({1}, set(), 1, 0)
    assert not host.auths[2]["tx_key"].any()
    assert not host.auths[2]["rx_key"].any()
    assert host.auths["mode"][2] == AuthMode.REQUIRED


def test_a_peer_to_be_without_a_secret_has_a_mode_and_no_key() -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, FIRST)
    host.ring.add(host.auths, np.array([3]))
    assert (host.auths["mode"][3], host.accepted(3)) == (AuthMode.REQUIRED, set())


def test_each_peer_gets_the_newest_secret_that_both_have(clock: list[float]) -> None:
    """From the secret of the cluster to those of pairs, one peer after the other."""
    host = Host()
    host.use(AuthMode.REQUIRED, CLUSTER)
    host.tell(1, 1)
    host.tell(2, 1)
    host.use(AuthMode.REQUIRED, CLUSTER, NEWER)
    assert (host.sends_with(1), host.sends_with(2)) == (1, 1)
    host.tell(2, 1, 2)
    host.follow()
    assert (host.sends_with(1), host.sends_with(2)) == (1, 2)
    host.tell(1, 2)
    host.use(AuthMode.REQUIRED, NEWER)
    clock[0] += 1
    host.follow()
    assert (host.sends_with(1), host.sends_with(2), host.accepted(1), host.accepted(2)) == (2, 2, {2}, {2})


@pytest.mark.parametrize("held", [(BOTH,), (BOTH, NEWER)])
def test_a_pair_is_added_and_the_others_send_on(clock: list[float], held: tuple[Secret, ...]) -> None:
    """Even if no slot is free for 0.6 s, or for twice as long."""
    host = Host()
    before = tuple(Secret(s.key_id, b"", {2: s.of(2)}) for s in held)
    newest = held[-1].key_id
    host.tell(2, newest)
    host.use(AuthMode.REQUIRED, *before)
    host.ring.use(AuthMode.REQUIRED, held)
    for _ in range(5):
        host.follow()
        assert host.sends_with(2) == newest
        assert keys_of(host, 2, newest) == derived(held[-1].of(2), 2)
        clock[0] += 0.5
    assert host.ring.settled
    assert [keys_of(host, 1, s.key_id) for s in held] == [derived(s.of(1), 1) for s in held]


def test_a_changed_secret_of_a_pair_is_another_secret(clock: list[float]) -> None:
    """As of the cluster: the former one is accepted until its packets have arrived."""
    host = Host()
    host.use(AuthMode.REQUIRED, BOTH)
    other = Secret(1, b"", {1: T1, 2: S2})
    host.use(AuthMode.REQUIRED, other)
    assert (host.ring.settled, host.auths["rx_id"][1, :2].tolist()) == (False, [1, 1])
    clock[0] += 1
    host.follow()
    assert host.ring.settled
    assert [keys_of(host, row, 1) for row in (1, 2)] == [derived(T1, 1), derived(S2, 2)]


def test_equal_secrets_are_compared_by_identity() -> None:
    """follow() compares them ten times per second: thousands of pairs would take a millisecond."""
    host = Host()
    host.use(AuthMode.REQUIRED, BOTH)
    host.use(AuthMode.REQUIRED, Secret(1, b"", dict(BOTH.pairs)))
    assert host.ring.wanted[0] is BOTH


# ---- restarts ----


def test_a_restart_does_not_move_the_keys_of_pairs() -> None:
    host, secrets = Host(), (BOTH, Secret(2, b"", {2: T2}))  # peer 1 has no key in slot 1
    host.use(AuthMode.REQUIRED, *secrets)
    before = host.auths.copy()
    restarted(host, AuthMode.REQUIRED, *secrets)
    assert (host.auths == before).all()
    assert host.ring.settled


@pytest.mark.parametrize(
    "changed",
    [Secret(1, b"", {1: T1, 2: S2}), Secret(1, b"", {2: S2}), Secret(1, CLUSTER.secret, {2: S2})],
    ids=["changed", "removed", "of the cluster"],
)
def test_a_restart_recognises_keys_by_any_pair(changed: Secret) -> None:
    """The first peer's secret has changed while no daemon ran; the second peer's is the same, and stays in its slot."""
    host = Host()
    host.use(AuthMode.REQUIRED, BOTH)
    before = host.auths[2].copy()
    restarted(host, AuthMode.REQUIRED, changed)
    assert host.ring.settled
    assert host.auths[2] == before
    if changed.of(1):
        assert keys_of(host, 1, 1) == derived(changed.of(1), 1)
    else:
        assert (host.accepted(1), host.sends_with(1)) == (set(), 0)


def test_a_restart_replaces_secrets_of_which_none_has_stayed(clock: list[float]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, BOTH)
    restarted(host, AuthMode.REQUIRED, Secret(1, b"", {1: T1, 2: T2}))
    assert not host.ring.settled
    clock[0] += 1
    host.follow()
    assert [keys_of(host, row, 1) for row in (1, 2)] == [derived(T1, 1), derived(T2, 2)]
    assert (host.auths["tx_id"][1, : abi.KEY_IDS] != 0).sum() == 1


# ---- the rule by which a reload is refused ----


@pytest.mark.parametrize(
    ("held", "secrets", "is_cut_off"),
    [
        ((BOTH,), (BOTH,), [False, False]),
        ((BOTH,), (BOTH, NEWER), [False, False]),
        ((BOTH,), (FIRST,), [False, True]),  # the second peer has no secret any more
        ((FIRST,), (BOTH,), [False, False]),  # it gets one, which it has
        ((CLUSTER,), (CLUSTER, NEWER), [False, False]),
        ((CLUSTER,), (NEWER,), [True, True]),
        ((CLUSTER,), (BOTH,), [True, True]),  # other secrets under the same id
        ((CLUSTER,), (Secret(1, CLUSTER.secret, {2: S2}),), [False, True]),
        ((BOTH,), (Secret(1, b"", {1: T1, 2: S2}),), [True, False]),
        ((), (FIRST,), [False, True]),
    ],
)
@pytest.mark.parametrize("mode", [AuthMode.PERMISSIVE, AuthMode.REQUIRED])
def test_a_peer_without_a_secret_is_cut_off(
    mode: AuthMode, held: tuple[Secret, ...], secrets: tuple[Secret, ...], is_cut_off: list[bool]
) -> None:
    assert cut_off(mode, held, secrets, peers_with([1, 0], [1, 0]), ROWS).tolist() == is_cut_off
