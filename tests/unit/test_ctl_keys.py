# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl keys`: what it shows of the daemon's answers, how it waits, and the files that it makes."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from mrcd.auth import secrets_file
from mrcd.tables import abi
from mrcd.view import keys
from tests.unit.canned_daemon import Daemon

Mrcctl = Callable[..., Result]


def peer(name: str, sent_with: int | None, *accepted: int, untagged: int = 0) -> dict[str, Any]:
    return {
        "peer": name,
        "sent_with": sent_with,
        "accepted_by_peer": list(accepted),
        "untagged_packets": untagged,
        "clock_known": True,
    }


def answer(*peers: dict[str, Any], mode: str = "required", accepted: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    return {"mode": mode, "accepted": list(accepted), "newest": accepted[-1] if accepted else None, "peers": peers}


def test_the_view_makes_the_document_without_any_key() -> None:
    auths, peers = np.zeros(4, abi.AUTH), np.zeros(4, abi.PEER)
    auths["mode"][1], auths["rx_id"][1, :2], auths["tx_id"][1, :2] = abi.AuthMode.PERMISSIVE, (1, 2), (1, 2)
    auths["tx_slot"][1], auths["untagged"][1], auths["clock_ns"][1] = 1, 9, 77
    auths["tx_key"], auths["rx_key"] = 0x1122334455667788, 0x1122334455667788
    peers["key_ids"][1, :2] = 2, 0
    found = keys.document(auths, peers, {1: "h1", 2: "h2"})
    assert found["mode"] == "permissive"
    assert found["accepted"] == [1, 2]
    assert found["peers"][0] == peer("h1", 2, 2, untagged=9)
    assert found["peers"][1]["sent_with"] is None
    assert not found["peers"][1]["clock_known"]
    assert str(0x1122334455667788) not in json.dumps(found)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (answer(peer("h1", 2, 1, 2), peer("h2", 2, 2)), "in use      secret 2 to all of 2 peers"),
        (answer(peer("h1", 2, 1, 2), peer("h2", 1, 1)), "in use      secret 1 to 1, secret 2 to 1 of 2 peers"),
        (answer(mode="off", accepted=()), "in use      none: packets are not authenticated"),
    ],
)
def test_status_begins_with_what_is_in_use(mrcctl: Mrcctl, daemon: Daemon, document: dict[str, Any], said: str) -> None:
    daemon.answers["/v1/keys"] = (200, document)
    done = mrcctl("keys", "status")
    assert (done.exit_code, done.stderr) == (0, "")
    assert said in done.stdout
    assert json.loads(mrcctl("keys", "status", "--json").stdout)["mode"] == document["mode"]


def test_rotate_reloads_and_waits_for_the_reachable_peers(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers |= {
        "/v1/reload": (200, {"message": "reloaded the secrets", "changed": True}),
        "/v1/keys": (200, answer(peer("h1", 2, 1, 2), peer("gone", 1))),
        "/v1/peers": (200, [{"peer": "h1", "reachable": True}, {"peer": "gone", "reachable": False}]),
    }
    done = mrcctl("keys", "rotate")
    assert done.exit_code == 0
    assert done.stdout == "reloaded the secrets; secret 2 is in use to all 1 reachable peers\n"
    assert ("POST", "/v1/reload", {"force": False}) in daemon.requests or ("POST", "/v1/reload", {}) in daemon.requests


def test_rotate_names_the_peers_that_do_not_have_the_new_secret(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers |= {
        "/v1/reload": (200, {"message": "reloaded the secrets", "changed": True}),
        "/v1/keys": (200, answer(peer("h1", 2, 1, 2), peer("h2", 1, 1))),
        "/v1/peers": (200, [{"peer": "h1", "reachable": True}, {"peer": "h2", "reachable": True}]),
    }
    done = mrcctl("keys", "rotate", "--wait", "0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "1 of 2 peers use secret 2" in done.stderr
    assert "h2: not yet with secret 2 after 0 s" in done.stderr


def test_rotate_without_authentication_says_so(mrcctl: Mrcctl, daemon: Daemon) -> None:
    daemon.answers |= {
        "/v1/reload": (200, {"message": "nothing to change", "changed": False}),
        "/v1/keys": (200, answer(mode="off", accepted=())),
    }
    done = mrcctl("keys", "rotate")
    assert done.exit_code == 1
    assert "[auth] mode is off" in done.stderr


def test_generate_makes_a_closed_file_once(mrcctl: Mrcctl, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    done = mrcctl("keys", "generate", str(path))
    assert done.exit_code == 0
    (secret,) = secrets_file.read(path)
    assert (secret.key_id, stat.S_IMODE(path.stat().st_mode)) == (1, 0o600)
    assert secret.secret.hex() not in done.output
    again = mrcctl("keys", "generate", str(path))
    assert again.exit_code == 1
    assert "exists; nothing was changed" in again.stderr
    assert secrets_file.read(path) == (secret,)


def test_generate_add_keeps_the_newest_two(mrcctl: Mrcctl, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    for ids in ([1], [1, 2], [2, 3]):
        done = mrcctl("keys", "generate", *(["--add"] if len(ids) > 1 else []), "--json", str(path))
        assert json.loads(done.stdout)["ids"] == ids
        assert [s.key_id for s in secrets_file.read(path)] == ids


def test_generate_in_a_missing_directory_says_so(mrcctl: Mrcctl, tmp_path: Path) -> None:
    done = mrcctl("keys", "generate", str(tmp_path / "none" / "secrets"))
    assert done.exit_code == 2
    assert "No such file or directory" in done.stderr
