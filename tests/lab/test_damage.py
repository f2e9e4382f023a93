# SPDX-License-Identifier: BSD-2-Clause
"""Tests packets whose content a switch damages: no application gets one, whichever program removes the headers."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import pytest

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.config.cluster_file import Hook
from tests.lab.conftest import TWO_HOSTS, own_name, wait_until

DAMAGED = 10_000  # least damaged packets
BATCH = 1000  # datagrams on the way at once
QUEUE = 4_000_000  # bytes: the receiver's queue holds a batch, with the kernel's 2.3 kB for each datagram of 1 kB
PORT = 5300
PATTERN = "bytes(range(200)) * 5"

SEND = f"""
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
s.connect((sys.argv[1], {PORT}))
for _ in range(int(sys.argv[2])):
    s.send({PATTERN})
"""

RECEIVE = f"""
import json, select, socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, {QUEUE})  # SO_RCVBUFFORCE
s.bind(("::", {PORT}))
print("ready", flush=True)
whole = damaged = 0
while True:
    readable, _, _ = select.select([s, sys.stdin], [], [])
    if s not in readable:
        break  # everything is sent, and nothing is left to read
    try:
        data = s.recv(2000, socket.MSG_DONTWAIT)
    except BlockingIOError:
        continue  # its checksum was wrong
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
data = os.urandom(10_000_000)
s.sendall(data)
s.close()
print(hashlib.sha256(data).hexdigest())
"""


@pytest.fixture(scope="module", params=["tc", "xdp", "xdp-generic"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    it = Lab(own_name("damage"))
    it.up(**TWO_HOSTS, hook=cast(Hook, request.param))
    observe.wait_until_good(it, ("h0", "h1"))
    for plane in range(TWO_HOSTS["planes"]):
        # Otherwise a veth leaves the checksum to be written, and no receiver compares it.
        it.exec("h0", ["ethtool", "-K", f"p{plane}", "tx", "off"], check=True)
    yield it
    it.down()


def counted(lab: Lab, name: str) -> int:
    """Returns the sum of the receiver's counters of that name; of UDP's there is one per IP version."""
    # A wrong checksum that select() finds is counted with IPv4, whatever the version (net/ipv4/udp.c).
    table = json.loads(lab.exec("h1", ["nstat", "-asj"], check=True).stdout)["kernel"]
    return sum(value for key, value in table.items() if key in (f"Udp{name}", f"Udp6{name}", f"Tcp{name}"))


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
def test_no_damaged_datagram_is_delivered(
    lab: Lab, version: int, record_property: Callable[[str, object], None]
) -> None:
    refused_before, received_before = counted(lab, "InCsumErrors"), counted(lab, "InDatagrams")

    def complete(sent: int) -> bool:
        refused, received = counted(lab, "InCsumErrors"), counted(lab, "InDatagrams")
        return refused - refused_before + received - received_before == sent

    sent = 0
    with receiving(lab, RECEIVE) as receiver:
        damage(lab, 0.5)
        while sent < 2 * DAMAGED + DAMAGED // 10:
            lab.exec("h0", [sys.executable, "-c", SEND, address(version), str(BATCH)], check=True, timeout=60)
            sent += BATCH
            wait_until(f"all of {sent} datagrams are received or refused", partial(complete, sent))
        lab.heal()
        out, _ = receiver.communicate("sent\n", timeout=60)
    whole, damaged = json.loads(out)
    refused = counted(lab, "InCsumErrors") - refused_before
    words = f"{sent} sent, {whole} delivered whole, {damaged} damaged; {refused} refused (InCsumErrors)"
    record_property("measured", [f"damage, IPv{version}: {words}"])
    assert damaged == 0
    assert refused >= DAMAGED
    assert whole + refused == sent


@pytest.mark.parametrize("version", [4, 6])
def test_a_tcp_stream_arrives_as_it_was_sent(lab: Lab, version: int) -> None:
    before = counted(lab, "InCsumErrors")
    with receiving(lab, TCP_RECEIVE) as receiver:
        damage(lab, 0.02)
        done = lab.exec("h0", [sys.executable, "-c", TCP_SEND, address(version)], check=True, timeout=60)
        out, _ = receiver.communicate(timeout=60)
    assert out == done.stdout
    wait_until("damaged segments are counted", lambda: counted(lab, "InCsumErrors") > before)
