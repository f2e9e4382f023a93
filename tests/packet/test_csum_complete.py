# SPDX-License-Identifier: BSD-2-Clause
"""Tests that mrc_pop keeps the sum of a packet that the NIC has summed (CHECKSUM_COMPLETE); the kernel compares."""

import ctypes
import errno

import pytest
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from mrcd.errors import KernelError
from mrcd.kernel import libbpf
from tests.packet.packets import H2, inner
from tests.packet.rig import Bench
from tests.packet.test_tcp import APART_NS, gap_ack

pytestmark = pytest.mark.root

CHECKSUM_COMPLETE = 1 << 2
"""BPF_F_TEST_SKB_CHECKSUM_COMPLETE, since Linux 6.11: EBADMSG if the packet's sum is not the one that the skb has."""
UNSPEC = 2**32 - 1
NOT_ECT, ECT1, ECT0, CE = range(4)


def pop(bench: Bench, frame: Packet) -> bytes:
    """Runs mrc_pop on a packet with a sum. Returns the popped packet."""
    data, out = bytes(frame), ctypes.create_string_buffer(1 << 12)
    ctx = bytes(40) + bench.ifindex["n0"].to_bytes(4, "little")
    opts = libbpf.TestRunOpts(sz=ctypes.sizeof(libbpf.TestRunOpts), flags=CHECKSUM_COMPLETE)
    opts.data_in, opts.data_size_in = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data)
    opts.data_out, opts.data_size_out = ctypes.addressof(out), len(out)
    opts.ctx_in, opts.ctx_size_in = ctypes.cast(ctypes.c_char_p(ctx), ctypes.c_void_p), len(ctx)
    try:
        program = bench.dataplane.program("mrc_pop")
        libbpf.check("run a program", libbpf.lib().bpf_prog_test_run_opts(program, ctypes.byref(opts)))
    except KernelError as error:
        if error.errno == errno.EINVAL:
            pytest.skip("needs Linux 6.11: packets with a sum")
        raise
    assert opts.retval == UNSPEC
    return out.raw[: opts.data_size_out]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    ("own", "outer", "merged"),
    [(ECT0, ECT0, ECT0), (ECT0, CE, CE), (ECT1, CE, CE), (ECT0, ECT1, ECT1), (CE, CE, CE), (NOT_ECT, ECT0, NOT_ECT)],
)
def test_a_mark_of_the_fabric_changes_the_sum(bench: Bench, version: int, own: int, outer: int, merged: int) -> None:
    frame = bench.arriving("h2", 0, inner(version, 0xB8 | own))
    frame[IPv6].tc = 0xB8 | outer
    assert pop(bench, frame)[14:] == bytes(inner(version, 0xB8 | merged))
    assert bench.drops() == {}


@pytest.mark.parametrize("version", [4, 6])
def test_a_hidden_sack_option_keeps_the_sum(bench: Bench, version: int) -> None:
    bench.peer(H2)["plane_skew_ns"] = APART_NS
    packet = gap_ack(version=version)
    assert pop(bench, bench.arriving("h2", 0, packet))[14:] != bytes(packet)
