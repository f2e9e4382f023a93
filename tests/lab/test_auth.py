# SPDX-License-Identifier: BSD-2-Clause
"""Tests authentication between real daemons: a forger moves no path, and new secrets and modes lose no packet."""

import itertools
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.bringup import environment
from labkit.traffic import attacks, candidates, packet_sender
from labkit.traffic.attacks import Side
from labkit.traffic.stream import Stream
from mrcd.auth import pair_files, secrets_file
from mrcd.auth.secrets_file import Secret
from mrcd.kernel.enums import AuthMode
from mrcd.kernel.pinned import Tables
from tests.lab.conftest import a_lab, mrcctl, out_of_use, wait_until

RATE = 5_000  # packets per second
LAB: dict[str, Any] = {"hosts": 4, "hosts_per_t0": 2, "planes": 2, "t1": 2, "source_filters": False}
"""Without source filters, because a forger sends with another host's address."""
H0, H1, H2 = 0, 1, 2


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab with the two ends of the flow, and a host beside each."""
    with a_lab("auth", **LAB) as made:
        for host in made.fabric.hosts:  # the last events of the start
            wait_until(f"{host} has logged its three peers", partial(has_logged_peers, made, host, 3))
        yield made


def has_logged_peers(lab: Lab, host: str, peers: int) -> bool:
    """Returns whether a host's log has an event of each of its peers."""
    return len({e["peer"] for e in mrcctl(lab, host, "events") if e["kind"] == "peer"}) == peers


def auth_of(lab: Lab, host: str, peer: int) -> tuple[AuthMode, int, int]:
    """Returns a host's mode, the id of the secret with which it sends to a peer, and the peer's untagged packets."""
    tables = Tables(observe.pins(lab, host), writable=False)
    auth = tables.auths[peer]
    found = AuthMode(auth["mode"]), int(auth["tx_id"][int(auth["tx_slot"])]), int(auth["untagged"])
    del auth
    tables.close()
    return found


def uses(lab: Lab, host: str, peer: int, key_id: int) -> bool:
    """Returns whether a host sends to a peer with this secret."""
    return auth_of(lab, host, peer)[1] == key_id


def has_sent(stream: Stream, packets: int) -> bool:
    """Returns whether a stream has sent so many packets."""
    return stream.mark() >= packets


def reload(lab: Lab) -> None:
    """Has every daemon read its files."""
    for host in lab.fabric.hosts:
        observe.client(lab, host).post("/v1/reload", {})


def attack(lab: Lab, name: str) -> dict[str, int]:
    """Sends one of the forgeries of bench/auth to h2 in h0's name. Returns h2's drops by reason."""
    side = Side(lab, "h0", "h2", "h1")
    frames = next(a.frames for a in attacks.forged(side, ()) if a.name == name)
    before = mrcctl(lab, "h2", "status")["drops"]
    with lab.inside("h1"):
        sender = packet_sender.frames("p0", frames * 50)

    def counted() -> bool:
        """Sends again: for 3 s after the start the kernel's SIDs are open to new peers."""
        sender.send(1000)
        return bool(mrcctl(lab, "h2", "status")["drops"] != before)

    wait_until("the forgeries are counted", counted)
    sender.close()
    after = mrcctl(lab, "h2", "status")["drops"]
    return {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("forged request", "untagged"),
        ("forged reply", "untagged"),
        ("forged data", "untagged"),
        ("plain SRv6", "stray_srv6"),
    ],
)
def test_a_forger_in_the_fabric_moves_no_path(lab: Lab, name: str, reason: str) -> None:
    seen = {h: len(mrcctl(lab, h, "events")) for h in ("h0", "h2")}
    assert set(attack(lab, name)) == {reason}
    assert out_of_use(lab) == []
    # Events of links and faults may come on a busy machine, whose probes are late: they move no path.
    new = {h: [e for e in mrcctl(lab, h, "events")[n:] if e["kind"] in ("ev", "peer")] for h, n in seen.items()}
    assert new == {"h0": [], "h2": []}


def test_new_secrets_lose_no_packet(lab: Lab) -> None:
    held = [secrets_file.read(lab.state.secrets)[-1]]
    with Stream(lab, candidates.overlay(lab, 4), rate=RATE) as stream:
        for _ in range(3):
            held = [held[-1], secrets_file.new(held[-1].key_id + 1)]
            secrets_file.write(lab.state.secrets, held)
            reload(lab)
            # All pairs: the next file lacks the secret before, and a reload may cut off no peer that still uses it.
            for host, peer in itertools.permutations(range(LAB["hosts"]), 2):
                wait_until(f"h{host} uses the new secret", partial(uses, lab, f"h{host}", peer, held[-1].key_id))
        result = stream.finish()
    assert (result.lost(), result.twice) == (0, 0)


def test_modes_change_under_traffic_without_loss(lab: Lab) -> None:
    text = lab.state.cluster_file.read_text()
    with Stream(lab, candidates.overlay(lab, 4), rate=RATE) as stream:
        for mode in ("permissive", "off", "permissive", "required"):
            lab.state.cluster_file.write_text(text.replace('mode = "required"', f'mode = "{mode}"'))
            reload(lab)
            assert auth_of(lab, "h2", H0)[0] is AuthMode[mode.upper()]
            wait_until("packets are sent", partial(has_sent, stream, stream.mark() + RATE // 4))
        result = stream.finish()
    assert (result.lost(), result.twice) == (0, 0)


def test_a_first_roll_out_loses_no_packet() -> None:
    """From off: no host knows a clock or a key of another."""
    with a_lab("rollout", hosts=4, hosts_per_t0=2, planes=2, t1=2, auth="off") as new:
        text = new.state.cluster_file.read_text()
        with Stream(new, candidates.overlay(new, 4), rate=RATE) as stream:
            for mode in ("permissive", "required"):
                new.state.cluster_file.write_text(text.replace('mode = "off"', f'mode = "{mode}"'))
                for host in new.fabric.hosts:
                    new.exec(host, ["mrcctl", "reload"], check=True)
                    wait_until("packets are sent", partial(has_sent, stream, stream.mark() + RATE // 4))
            result = stream.finish()
        assert (result.lost(), result.twice) == (0, 0)


def test_a_host_with_another_secret_is_not_believed(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "h3"
    other.mkdir()
    secrets_file.write(other / "secrets", [secrets_file.new(secrets_file.read(lab.state.secrets)[-1].key_id)])
    pid = lab.daemon_pid("h3")
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_until("h3's daemon ends", lambda: lab.daemon_pid("h3") is None)
    kept = tmp_path / "kept"
    shutil.copy(lab.state.secrets, kept)
    try:
        shutil.copy(other / "secrets", lab.state.secrets)
        assert environment(lab.state, "h3")["CREDENTIALS_DIRECTORY"] == str(lab.state.root)
        lab.up(**LAB)
        wait_until("h0 drops its packets", lambda: mrcctl(lab, "h0", "status")["drops"].get("bad_tag"))
        wait_until(
            "h0 finds it unreachable",
            lambda: [p["peer"] for p in mrcctl(lab, "h0", "peers") if not p["reachable"]] == ["h3"],
        )
    finally:
        shutil.copy(kept, lab.state.secrets)
    observe.client(lab, "h3").post("/v1/reload", {"force": True})  # h3 may have heard a peer just before
    wait_until("h3 is back", lambda: all(p["reachable"] for p in mrcctl(lab, "h0", "peers")))


def test_an_open_secrets_file_is_refused(lab: Lab) -> None:
    lab.state.secrets.chmod(0o644)
    try:
        done = lab.exec("h0", ["mrcctl", "reload"])
        assert done.returncode == 1
        assert "open to other users (mode 0644)" in done.stderr
        assert "chmod 600" in done.stderr
    finally:
        lab.state.secrets.chmod(0o600)


def reaches_all_but(lab: Lab, host: str, *others: str) -> bool:
    """Returns whether a host reaches its peers except for these."""
    return [p["peer"] for p in mrcctl(lab, host, "peers") if not p["reachable"]] == list(others)


def give(lab: Lab, *secrets: Sequence[Secret]) -> None:
    """Has each host read secrets of its own: all hosts of the lab share the path of the file."""
    names = dict(enumerate(lab.fabric.hosts))
    for host, of_host in zip(lab.fabric.hosts, secrets, strict=True):
        secrets_file.write(lab.state.secrets, of_host, names)
        observe.client(lab, host).post("/v1/reload", {"force": True})


def test_secrets_of_pairs_replace_that_of_the_cluster(lab: Lab, tmp_path: Path) -> None:
    """h0 and h2 lose no packet. h1 has no secret for h0, so both refuse each other's packets; the others go on."""
    hosts = {host: number for number, host in enumerate(lab.fabric.hosts)}
    held = secrets_file.read(lab.state.secrets)[-1:]
    made = tmp_path / "pairs"
    _, key_id = pair_files.generate(made, hosts, add=False, cluster=held)
    files = [secrets_file.read(made / host, hosts, host) for host in hosts]
    of_pairs = [file[-1] for file in files]
    of_pairs[:2] = [
        Secret(key_id, b"", {peer: s for peer, s in of_host.pairs.items() if peer not in (H0, H1)})
        for of_host in of_pairs[:2]
    ]
    try:
        with Stream(lab, candidates.overlay(lab, 4), rate=RATE) as stream:
            for secrets in (files, [[of_host] for of_host in of_pairs]):
                give(lab, *secrets)
                for host, peer in (("h0", H2), ("h2", H0)):
                    wait_until(f"{host} uses the new secret", partial(uses, lab, host, peer, key_id))
            result = stream.finish()
        assert (result.lost(), result.twice) == (0, 0)
        for host, *refused in (("h0", "h1"), ("h1", "h0"), ("h2",), ("h3",)):
            wait_until(f"{host} reaches its peers", partial(reaches_all_but, lab, host, *refused))
        wait_until("h0 drops h1's packets", lambda: mrcctl(lab, "h0", "status")["drops"].get("untagged"))
        keys = {p["peer"]: p["accepted_from_peer"] for p in mrcctl(lab, "h0", "keys", "status")["peers"]}
        assert keys == {"h1": [], "h2": [key_id], "h3": [key_id]}
    finally:
        give(lab, *[held] * len(hosts))
    for host in hosts:
        wait_until(f"{host} reaches all again", partial(reaches_all_but, lab, host))
