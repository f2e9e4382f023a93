# SPDX-License-Identifier: BSD-2-Clause
"""Tests packets whose content a switch damages: no application gets one, whichever program removes the headers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.config.cluster_file import Hook
from tests.lab.conftest import TWO_HOSTS, wait_until

DAMAGED = 10_000  # least damaged packets
PORT = 5300
PATTERN = "bytes(range(200)) * 5"

SEND = f"""
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
s.connect((sys.argv[1], {PORT}))
for n in range(int(sys.argv[2])):
    s.send({PATTERN})
    if n % 16 == 15:
        time.sleep(0.0005)
"""

RECEIVE = f"""
import json, socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
s.bind(("::", {PORT}))
s.settimeout(0.5)
print("ready", flush=True)
whole = damaged = 0
sys.stdin.readline()  # until everything is sent
while True:
    try:
        data = s.recv(2000)
    except TimeoutError:
        break
    whole, damaged = whole + (data == {PATTERN}), damaged + (data != {PATTERN})
print(json.dumps([whole, damaged]), flush=True)
"""

TCP_RECEIVE = f"""
import hashlib, socket
s = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
c, _ = s.accept()
h = hashlib.sha256()
while data := c.recv(1 << 16):
    h.update(data)
print(h.hexdigest(), flush=True)
"""

TCP_SEND = f"""
import hashlib, os, socket, sys
s = socket.create_connection((sys.argv[1], {PORT}))
data = os.urandom(2_000_000)
s.sendall(data)
s.close()
print(hashlib.sha256(data).hexdigest())
"""


@pytest.fixture(scope="module", params=["tc", "xdp", "xdp-generic"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    it = Lab("test-damage")
    it.up(**TWO_HOSTS, hook=cast(Hook, request.param))
    observe.wait_until_good(it, ("h0", "h1"))
    for plane in range(TWO_HOSTS["planes"]):
        # Otherwise a veth leaves the checksum to be written, and no receiver compares it.
        it.exec("h0", ["ethtool", "-K", f"p{plane}", "tx", "off"], check=True)
    yield it
    it.down()


def counter(lab: Lab, name: str) -> int:
    """Returns a counter of the receiver's kernel."""
    lines = lab.exec("h1", ["nstat", "-asz", name], check=True).stdout.splitlines()
    return int(lines[-1].split()[1])


def damage(lab: Lab, ratio: float) -> None:
    """Makes the first switch damage a share of the sender's packets, on both planes."""
    for plane in range(TWO_HOSTS["planes"]):
        lab.fail(f"nic:h0:{plane}", damage=ratio, direction="up")


@contextmanager
def receiving(lab: Lab, program: str) -> Iterator[subprocess.Popen[str]]:
    """A block in which the program runs on the receiver and is ready; it ends with the block, as the damage does."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with lab.popen("h1", [sys.executable, "-c", program], **pipes) as receiver:
        try:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            yield receiver
        finally:
            receiver.kill()
            lab.heal()


def address(version: int) -> str:
    """Returns the receiver's address on mrc0."""
    return "10.99.0.2" if version == 4 else "fd00:99::2"


@pytest.mark.parametrize("version", [4, 6])
def test_no_damaged_datagram_is_delivered(lab: Lab, version: int, capsys: pytest.CaptureFixture[str]) -> None:
    name = "UdpInCsumErrors" if version == 4 else "Udp6InCsumErrors"
    before, sent = counter(lab, name), 2 * DAMAGED + DAMAGED // 10
    with receiving(lab, RECEIVE) as receiver:
        damage(lab, 0.5)
        lab.exec("h0", [sys.executable, "-c", SEND, address(version), str(sent)], check=True, timeout=60)
        lab.heal()
        out, _ = receiver.communicate("sent\n", timeout=60)
    whole, damaged = json.loads(out)
    refused = counter(lab, name) - before
    with capsys.disabled():
        print(f"\nIPv{version}: {sent} sent, {whole} delivered whole, {damaged} damaged; {refused} refused ({name})")
    assert damaged == 0
    assert refused >= DAMAGED
    assert whole + refused == sent


@pytest.mark.parametrize("version", [4, 6])
def test_a_tcp_stream_arrives_as_it_was_sent(lab: Lab, version: int) -> None:
    before = counter(lab, "TcpInCsumErrors")
    with receiving(lab, TCP_RECEIVE) as receiver:
        damage(lab, 0.02)
        done = lab.exec("h0", [sys.executable, "-c", TCP_SEND, address(version)], check=True, timeout=60)
        out, _ = receiver.communicate(timeout=60)
    assert out == done.stdout
    wait_until("damaged segments are counted", lambda: counter(lab, "TcpInCsumErrors") > before)
