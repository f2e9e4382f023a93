# SPDX-License-Identifier: BSD-2-Clause
"""Tests which secret, of the cluster or a pair, is used for which peer while they change; and tags by these keys."""

import errno
import hashlib
import hmac
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mrcd.auth import secrets_file
from mrcd.auth.keyring import RETIREMENT_S, Keyring, as_words, cut_off, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.auth.tag import Signer, tag
from mrcd.errors import KernelError, MachineError
from mrcd.kernel import abi
from mrcd.kernel.enums import AuthMode

A, B, C, D = (secrets_file.new(n) for n in (1, 2, 3, 4))
ROWS = np.array([1, 2])
CLUSTER = secrets_file.new(1)
S1, S2, T1, T2 = (secrets_file.new(1).secret for _ in range(4))
BOTH = Secret(1, b"", {1: S1, 2: S2})
FIRST = Secret(1, b"", {1: S1})  # of peer 1 only
NEWER = Secret(2, b"", {1: T1, 2: T2})


class Host:
    """A host's keyring and table, among peers 1 and 2."""

    def __init__(self, number: int = 0) -> None:
        self.auths: NDArray[np.void] = np.zeros(4, abi.AUTH)
        self.peers: NDArray[np.void] = np.zeros(4, abi.PEER)
        self.ring = Keyring(number)

    def use(self, mode: AuthMode, *secrets: Secret, anew: bool = False) -> None:
        self.ring.use(mode, secrets)
        self.update(anew=anew)

    def update(self, *, anew: bool = False) -> None:
        """Follows as the daemon does: only if there is news."""
        if anew or self.ring.has_news(self.peers):
            self.ring.update(self.auths, self.peers, ROWS, anew=anew)

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


def test_the_tag_is_that_of_the_papers_reference_code() -> None:
    assert int.from_bytes(tag(bytes(range(16)), bytes(range(15))), "little") == 0xA129CA6149BE45E5


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
        host.update()
        for row, name in ((1, "first"), (2, "second")):
            assert host.sends_with(row) == (2 if {"mine", name} <= have else 1)
    assert host.accepted() == {1, 2}


LONG, SHORT = RETIREMENT_S + 0.01, RETIREMENT_S - 0.1
# Rows of: seconds passed, the new file (None: the same), what peer 1 says it accepts (None: the same);
# then what it may send with, what is sent to it with, and whether all former secrets are forgotten.
Row = tuple[float, tuple[Secret, ...] | None, tuple[int, ...] | None, set[int], int, bool]
ROTATIONS: dict[str, list[Row]] = {
    "a former secret is accepted until its packets have arrived": [
        (0, (A, B), (1, 2), {1, 2}, 2, True), (0, (B,), None, {1, 2}, 2, False), (LONG, None, None, {2}, 2, True),
    ],
    "one of two is replaced: the third waits for a slot": [
        (0, (A, B), (1, 2), {1, 2}, 2, True), (0, (B, C), None, {1, 2}, 2, False),
        (LONG, None, None, {2, 3}, 2, True), (0, None, (2, 3), {2, 3}, 3, True),
    ],
    "a host that missed a file: both are replaced, one after the other": [
        (0, (A, B), (2, 3), {1, 2}, 2, True), (0, (C, D), None, {1, 2}, 2, False),
        (LONG, None, None, {2, 3}, 3, False),  # peers may still send with B
        (SHORT, None, None, {2, 3}, 3, False), (0.11, None, None, {3, 4}, 3, True),
    ],
    "a secret that comes back stays": [
        (0, (A, B), None, {1, 2}, 1, True), (0, (B,), None, {1, 2}, 2, False),
        (0, (A, B), None, {1, 2}, 1, True), (10, None, None, {1, 2}, 1, True),
    ],
    "a secret that came back before its time was over is retired anew": [
        (0, (A, B), (1, 2), {1, 2}, 2, True), (0, (B,), None, {1, 2}, 2, False),
        (0, (A, B), None, {1, 2}, 2, True), (3600, (B,), None, {1, 2}, 2, False), (LONG, None, None, {2}, 2, True),
    ],
    "the newest is the last: a rotation is taken back": [
        (0, (A, B), (1, 2), {1, 2}, 2, True), (0, (B, A), None, {1, 2}, 1, True),
    ],
    "off takes the keys away, and no tag is made": [(0, (A,), None, {1}, 1, True), (0, (), None, set(), 0, True)],
}  # fmt: skip


@pytest.mark.parametrize("rows", ROTATIONS.values(), ids=ROTATIONS)
def test_secrets_are_rotated(clock: list[float], rows: list[Row]) -> None:
    host = Host()
    for number, (seconds, secrets, told, *wanted) in enumerate(rows):
        clock[0] += seconds
        if secrets is not None:
            host.use(AuthMode.REQUIRED if secrets else AuthMode.OFF, *secrets)
            assert host.auths["mode"][1] == (AuthMode.REQUIRED if secrets else AuthMode.OFF)
        if told:
            host.tell(1, *told)
        host.update()
        assert [host.accepted(), host.sends_with(1), host.ring.settled] == wanted, f"row {number}"


def test_a_restart_with_mode_off_leaves_no_keys_and_no_clock() -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    host.auths["clock_ns"][1] = 5
    restarted(host, AuthMode.OFF)
    assert (host.accepted(), host.sends_with(1), host.auths["mode"][1]) == (set(), 0, AuthMode.OFF)
    assert not host.auths["clock_ns"].any()


def test_other_rows_lose_their_keys() -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A)
    host.auths[3] = host.auths[1]
    host.auths["clock_ns"][1] = 5
    host.update(anew=True)
    assert not host.auths[3].tobytes().strip(b"\0")
    assert host.auths["clock_ns"][1] == 5
    assert host.sends_with(1) == 1


# ---- a daemon that starts finds the table of the one before ----


def restarted(host: Host, mode: AuthMode, *secrets: Secret) -> Host:
    """Returns the host with another keyring, at its start."""
    host.ring = Keyring(0)
    host.use(mode, *secrets, anew=True)
    return host


def test_a_restart_does_not_move_the_keys_in_use(clock: list[float]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    host.tell(1, 1, 2)
    host.use(AuthMode.REQUIRED, B, C)
    clock[0] += 1
    host.update()
    host.tell(1, 2, 3)
    host.update()
    before = host.auths.copy()
    assert before["tx_id"][1, :2].tolist() == [3, 2]  # another order than that of the file
    restarted(host, AuthMode.REQUIRED, B, C)
    assert (host.auths == before).all()
    assert host.ring.settled


def test_a_secret_that_left_the_file_while_no_daemon_ran_is_not_accepted(clock: list[float]) -> None:
    host = Host()
    for kept in (A, B):
        host.use(AuthMode.REQUIRED, A, B)
        host.tell(1, 1, 2)
        host.update()
        restarted(host, AuthMode.REQUIRED, kept)
        assert (host.sends_with(1), host.ring.settled) == (kept.key_id, False)
        clock[0] += 1
        host.update()
        assert (host.accepted(), host.sends_with(1), host.ring.settled) == ({kept.key_id}, kept.key_id, True)


def test_a_secret_that_has_another_value_since_the_restart_is_replaced(clock: list[float]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A)
    other = secrets_file.new(1)
    restarted(host, AuthMode.REQUIRED, other)
    clock[0] += 1
    host.update()
    assert host.accepted() == {1}
    slot = host.auths["rx_id"][1].tolist().index(1)
    assert (host.auths["rx_key"][1, slot] == as_words(pair_key(other.secret, 1, 0))).all()
    assert (host.auths["tx_id"][1, :2] != 0).sum() == 1


# ---- the rule by which a reload is refused ----


OTHER_A = Secret(1, B.secret)


def peers_with(*accepted: list[int], status: int = 0) -> NDArray[np.void]:
    records: NDArray[np.void] = np.zeros(len(accepted), abi.PEER)
    for record, ids in zip(records, accepted, strict=True):
        record["key_ids"][: len(ids)] = ids
    records["status"] = status
    return records


@pytest.mark.parametrize("mode", [AuthMode.PERMISSIVE, AuthMode.REQUIRED])
@pytest.mark.parametrize(
    ("held", "secrets", "accepted", "is_cut_off"),
    [
        ((A,), (A, B), [1, 0], [False, False]),  # a new secret beside the old one
        ((A, B), (B,), [1, 2], [False, False]),  # the peer has both
        ((A, B), (B, C), [2, 0], [False, False]),
        ((A,), (B,), [1, 2], [False, False]),
        ((A,), (B,), [1, 0], [True, True]),
        ((A, B), (B,), [1, 0], [True, True]),
        ((A, B), (C,), [1, 2], [True, True]),
        ((A,), (OTHER_A,), [1, 0], [True, True]),  # another secret with the same id
        ((A,), (OTHER_A, C), [1, 3], [False, False]),
        ((), (B,), [1, 0], [True, True]),  # authentication is turned on
        ((), (A,), [1, 0], [False, False]),
        ((BOTH,), (BOTH,), [1, 0], [False, False]),  # secrets of pairs
        ((BOTH,), (BOTH, NEWER), [1, 0], [False, False]),
        ((BOTH,), (FIRST,), [1, 0], [False, True]),  # the second peer has no secret any more
        ((FIRST,), (BOTH,), [1, 0], [False, False]),  # it gets one, which it has
        ((CLUSTER,), (CLUSTER, NEWER), [1, 0], [False, False]),
        ((CLUSTER,), (NEWER,), [1, 0], [True, True]),
        ((CLUSTER,), (BOTH,), [1, 0], [True, True]),  # other secrets under the same id
        ((CLUSTER,), (Secret(1, CLUSTER.secret, {2: S2}),), [1, 0], [False, True]),
        ((BOTH,), (Secret(1, b"", {1: T1, 2: S2}),), [1, 0], [True, False]),
        ((), (FIRST,), [1, 0], [False, True]),
    ],
)
def test_a_peer_without_a_common_secret_is_cut_off(
    mode: AuthMode, held: tuple[Secret, ...], secrets: tuple[Secret, ...], accepted: list[int], is_cut_off: list[bool]
) -> None:
    assert cut_off(mode, held, secrets, peers_with(accepted, accepted), ROWS).tolist() == is_cut_off


def test_a_peer_without_tags_is_cut_off_if_they_are_required() -> None:
    for mode, is_cut_off in ((AuthMode.REQUIRED, True), (AuthMode.PERMISSIVE, False)):
        assert cut_off(mode, (A,), (A,), peers_with([0], [1]), ROWS).tolist() == [is_cut_off, False]


@pytest.mark.parametrize("status", [0, abi.STATUS_TAGS_ONLY])
def test_a_peer_that_wants_tags_is_cut_off_if_they_are_turned_off(status: int) -> None:
    found = cut_off(AuthMode.OFF, (A,), (), peers_with([1], [0], status=status | abi.STATUS_DETACHED), ROWS)
    assert found.tolist() == [bool(status)] * 2


def test_a_peer_to_be_has_the_keys_before_it_is_one() -> None:
    """Until follow() knows it: without a mode its packets would pass without a tag."""
    host, added = Host(), np.array([3])
    host.use(AuthMode.REQUIRED, A, B)
    host.ring.add(host.auths, added)
    assert (host.auths["mode"][3], host.accepted(3)) == (AuthMode.REQUIRED, {1, 2})
    assert host.auths["rx_key"][3, 0].tobytes() == as_words(pair_key(A.secret, 3, 0)).tobytes()


def test_there_is_news_until_all_keys_are_as_wanted(clock: list[float]) -> None:
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    assert not host.ring.has_news(host.peers)
    host.tell(1, 1, 2)
    assert host.ring.has_news(host.peers)
    host.update()
    assert not host.ring.has_news(host.peers)
    host.use(AuthMode.REQUIRED, B)
    assert host.ring.has_news(host.peers), "the former secret is to be forgotten"
    clock[0] += 1
    host.update()
    assert not host.ring.has_news(host.peers)
    host.ring.use(AuthMode.PERMISSIVE, (B,))
    assert host.ring.has_news(host.peers)


def test_peers_are_told_when_other_keys_are_accepted(clock: list[float]) -> None:
    host = Host()
    changes = []
    for secrets in ((A,), (A,), (A, B), (B,)):
        host.ring.use(AuthMode.REQUIRED, secrets)
        changes.append(host.ring.update(host.auths, host.peers, ROWS, anew=False))
    assert changes == [True, False, True, False]
    clock[0] += 1
    assert host.ring.update(host.auths, host.peers, ROWS, anew=False)


# ---- mrcctl reads the keys in the table ----


MESSAGE = bytes(range(56))


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Signer]:
    """A host that has two secrets, and a signer that reads its table."""
    host = Host()
    host.use(AuthMode.REQUIRED, A, B)
    monkeypatch.setattr("mrcd.auth.tag.libbpf.get", lambda path: 7)
    monkeypatch.setattr("mrcd.auth.tag.libbpf.map_info", lambda fd: (4, abi.AUTH.itemsize, 4))
    monkeypatch.setattr(
        "mrcd.auth.tag.libbpf.lookup_elem",
        lambda fd, key, size: host.auths[key[0]].tobytes() if key[0] < len(host.auths) else None,
    )
    return host, Signer(Path("pins"))


def test_the_signer_reads_the_sending_key(signed: tuple[Host, Signer]) -> None:
    """Its offsets are those of struct mrc_auth."""
    host, signer = signed
    host.tell(1, 1, 2)
    host.update()
    assert signer.key(1) == (2, pair_key(B.secret, 0, 1))
    assert signer.key(2) == (1, pair_key(A.secret, 0, 2))
    assert signer.key(3) == signer.key(9) == (0, b"")
    host.use(AuthMode.OFF)
    assert signer.key(1) == (0, b"")


@pytest.mark.parametrize(("secret", "key_id"), [(A, 1), (B, 2)])
def test_the_signer_believes_the_receiving_keys_only(signed: tuple[Host, Signer], secret: Secret, key_id: int) -> None:
    _, signer = signed
    good = tag(pair_key(secret.secret, 1, 0), MESSAGE)
    assert signer.is_believed(1, key_id, MESSAGE, good)
    assert not signer.is_believed(1, key_id, MESSAGE[:-1] + b"x", good)
    assert not signer.is_believed(1, 3 - key_id, MESSAGE, good)
    assert not signer.is_believed(2, key_id, MESSAGE, good)  # of another host
    assert not signer.is_believed(1, key_id, MESSAGE, tag(pair_key(secret.secret, 0, 1), MESSAGE))  # reflected
    assert not signer.is_believed(1, 9, MESSAGE, good)


@pytest.mark.parametrize("mode", list(AuthMode))
def test_the_signer_believes_untagged_packets_by_the_mode(signed: tuple[Host, Signer], mode: AuthMode) -> None:
    host, signer = signed
    host.use(mode, A, B)
    assert signer.is_believed(1, 0, MESSAGE, bytes(8)) is (mode is not AuthMode.REQUIRED)
    assert signer.is_believed(1, 1, MESSAGE, bytes(8)) is (mode is AuthMode.OFF)


# ---- secrets of pairs ----


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


def test_each_peer_gets_the_newest_secret_that_both_have(clock: list[float]) -> None:
    """From the secret of the cluster to those of pairs, one peer after the other."""
    host = Host()
    host.use(AuthMode.REQUIRED, CLUSTER)
    host.tell(1, 1)
    host.tell(2, 1)
    host.use(AuthMode.REQUIRED, CLUSTER, NEWER)
    assert (host.sends_with(1), host.sends_with(2)) == (1, 1)
    host.tell(2, 1, 2)
    host.update()
    assert (host.sends_with(1), host.sends_with(2)) == (1, 2)
    host.tell(1, 2)
    host.use(AuthMode.REQUIRED, NEWER)
    clock[0] += 1
    host.update()
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
        host.update()
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
    host.update()
    assert host.ring.settled
    assert [keys_of(host, row, 1) for row in (1, 2)] == [derived(T1, 1), derived(S2, 2)]


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
    host.update()
    assert [keys_of(host, row, 1) for row in (1, 2)] == [derived(T1, 1), derived(T2, 2)]
    assert (host.auths["tx_id"][1, : abi.KEY_IDS] != 0).sum() == 1


def test_the_signer_refuses_tables_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    monkeypatch.setattr("mrcd.auth.tag.libbpf.get", lambda path: reader)
    monkeypatch.setattr("mrcd.auth.tag.libbpf.map_info", lambda fd: (4, 96, 4))
    with pytest.raises(MachineError, match="has entries of 96 bytes, this version knows 128"):
        Signer(Path("pins"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)


def test_the_signer_without_tables_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(path: Path) -> int:
        raise KernelError(f"open the pin {path}", errno.ENOENT)

    monkeypatch.setattr("mrcd.auth.tag.libbpf.get", get)
    with pytest.raises(MachineError, match="no table is pinned at pins/mrc_auths"):
        Signer(Path("pins"))
