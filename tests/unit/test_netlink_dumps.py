"""What the kernel dumps is taken message by message, and everything else as it comes."""

import gc
import socket
import struct
import weakref

import pytest
from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_MULTI
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from mrcd.netlink import _IPRoute
from mrcd.netmessages import forget

ROUTE, DONE = 24, 3  # RTM_NEWROUTE, NLMSG_DONE


def message(kind: int, payload: bytes, flags: int = NLM_F_MULTI) -> bytes:
    """nlmsghdr and payload; what fills up to four bytes is not of its length."""
    length = 16 + len(payload)
    return struct.pack("=IHHII", length, kind, flags, 7, 0) + payload + bytes(-length % 4)


ONE, ODD, END = message(ROUTE, b"abcd"), message(ROUTE, b"abcde"), message(DONE, bytes(4))
ALONE = message(ROUTE, b"abcd", flags=0)


@pytest.mark.parametrize(
    ("datagram", "parts"),
    [
        (ONE + ONE + END, [ONE, ONE, END]),
        (ODD + ONE, [ODD[:21], ONE]),
        (ALONE + ALONE, [ALONE + ALONE]),
        (ONE + ALONE, [ONE, ALONE]),
        (ONE + ONE[:7], [ONE, ONE[:7]]),
        (struct.pack("=IHHII", 3, ROUTE, NLM_F_MULTI, 7, 0), [struct.pack("=IHHII", 3, ROUTE, NLM_F_MULTI, 7, 0)]),
        (b"", []),
    ],
    ids=["a dump", "filled up", "no dump", "both", "cut off", "a length of nothing", "nothing"],
)
def test_parts_of_a_datagram(datagram: bytes, parts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []
    monkeypatch.setattr(AsyncIPRoute, "enqueue", lambda _self, data, _addr: taken.append(data), raising=False)
    object.__new__(_IPRoute).enqueue(datagram, (0, 0))
    assert taken == parts


def test_messages_that_were_read_are_freed_without_a_collection_of_garbage() -> None:
    made = rtmsg()
    made["family"] = socket.AF_INET
    made["attrs"] = [("RTA_DST", "10.0.0.1"), ("RTA_PRIORITY", 100)]
    made.encode()
    gc.collect()
    gc.disable()
    try:
        read = rtmsg(made.data)
        read.decode()
        assert read.get("RTA_PRIORITY") == 100
        there = weakref.ref(read)
        forget(read)
        del read
        assert there() is None
    finally:
        gc.enable()
