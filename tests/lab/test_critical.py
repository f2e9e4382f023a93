# SPDX-License-Identifier: BSD-2-Clause
"""Tests critical packets: TCP opens connections over a plane that loses much, and waits for no lost SYN."""

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import a_lab, mrcctl, wait_until
from tests.lab.flows import address, tcp_transfer

CONNECTIONS = 300
REQUEST = bytes(range(200))
HOSTS = ("h0", "h1")


@pytest.fixture(scope="module", params=["burst", "packet"])
def two(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two hosts whose paths stay in use, however much they lose, and whose ACKs are not critical."""
    shape = {"granularity": request.param, "health": {"loss_ratio": 1}, "overlay": {"dup_ack_us": 0}}
    with a_lab("critical", hosts=2, hosts_per_t0=1, planes=4, t1=2, **shape) as lab:
        yield lab


def _listener(lab: Lab) -> socket.socket:
    with lab.inside("h1"):
        listener = socket.socket()
    listener.bind((address(1, 4), 0))
    listener.listen(128)
    return listener


def _echo(listener: socket.socket, connections: int) -> None:
    for _ in range(connections):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(connection.recv(len(REQUEST), socket.MSG_WAITALL))


def _ask(lab: Lab, connections: int = CONNECTIONS) -> None:
    """Opens connections one after the other, with a request and its answer on each."""
    with _listener(lab) as listener:
        server = threading.Thread(target=_echo, args=(listener, connections))
        server.start()
        for _ in range(connections):
            with lab.inside("h0"):
                s = socket.socket()
            with s:
                s.settimeout(60)
                s.connect(listener.getsockname())
                s.sendall(REQUEST)
                assert s.recv(len(REQUEST), socket.MSG_WAITALL) == REQUEST
                assert s.recv(1) == b""
        server.join()


def _kernel(lab: Lab, name: str) -> int:
    """Returns a counter of both hosts' network stacks."""
    tables = [json.loads(lab.exec(h, ["nstat", "-aszj"], check=True).stdout)["kernel"] for h in HOSTS]
    return sum(int(t[name]) for t in tables)


def _copies(lab: Lab) -> dict[str, int]:
    """Returns what both hosts counted of critical packets."""
    peers = [mrcctl(lab, h, "peers")[0]["critical"] for h in HOSTS]
    return {name: sum(p[name] for p in peers) for name in peers[0]}


def _settled(lab: Lab, is_so: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Returns the counts once they are so."""
    wait_until("the last copies are counted", lambda: is_so(_copies(lab)))
    return _copies(lab)


def test_without_a_fault_tcp_notices_nothing(two: Lab) -> None:
    """Each packet that was sent twice is delivered once: TCP sees no duplicate, and repeats nothing."""
    names = ("TcpExtTCPDSACKRecv", "TcpExtTCPDSACKOfoRecv", "TcpExtTCPSynRetrans", "TcpExtTCPAbortOnData")
    before = [_kernel(two, name) for name in names]
    _ask(two)
    found = _settled(two, lambda c: c["sent_twice"] == c["delivered"] == c["eliminated"])
    assert found["sent_twice"] >= 6 * CONNECTIONS  # SYN, SYN-ACK, request, answer, and a FIN each way
    assert found["sent_once"] == 0
    assert [_kernel(two, name) for name in names] == before


def test_no_connection_waits_for_a_lost_syn(two: Lab, record_property: Callable[[str, object], None]) -> None:
    syns, before = _kernel(two, "TcpExtTCPSynRetrans"), _copies(two)
    two.fail("nic:h0:1", drop=0.3)
    _ask(two)
    two.heal()
    found = _copies(two)
    saved = found["delivered"] - before["delivered"] - (found["eliminated"] - before["eliminated"])
    record_property("measured", [f"{CONNECTIONS} connections: one copy alone saved {saved} critical packets"])
    assert _kernel(two, "TcpExtTCPSynRetrans") == syns
    assert saved > CONNECTIONS // 4
    assert not mrcctl(two, "h0", "status")["drops"]


def test_bulk_data_take_one_path(two: Lab) -> None:
    """TCP has often sent more before a segment is pushed: that does not make it one that is sent again."""
    before, sent = _copies(two)["sent_twice"], mrcctl(two, "h0", "peers")[0]["tx_packets"]
    tcp_transfer(two, 4, 40_000_000, target=1)
    packets = mrcctl(two, "h0", "peers")[0]["tx_packets"] - sent
    assert packets > 1000
    assert _copies(two)["sent_twice"] - before < packets // 20


@pytest.mark.parametrize("two", ["packet"], indirect=True)
def test_what_tcp_sends_again_takes_two_paths(two: Lab) -> None:
    """In burst granularity only single segments do, and how many of them there are is left to chance."""
    segments, before = _kernel(two, "TcpRetransSegs"), _copies(two)
    for plane in range(4):  # where one alone loses, probes can be the first to tell, and no data are lost
        two.fail(f"nic:h0:{plane}", drop=0.05)
    tcp_transfer(two, 4, 20_000_000, target=1)
    healed = two.heal()
    assert any(h["first_data_drops_ns"].get(0, 0) >= h["first_drop_ns"] for h in healed)
    segments, found = _kernel(two, "TcpRetransSegs") - segments, _copies(two)
    assert segments > 20
    assert sum(found[name] - before[name] for name in ("sent_twice", "sent_once")) >= segments
