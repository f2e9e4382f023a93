# SPDX-License-Identifier: BSD-2-Clause
"""Feeds frames to an XDP program at a rate, on one CPU. A program of its own, run inside a host (bench/auth/flood.py).

    floodxdpend.py PROGRAM_ID IFINDEX CPU

Reads lines of JSON from stdin: {"frames": [hex, …], "rate": per second, "seconds": …}. After each it prints the frames
that it has fed, and the time that it took. BPF_F_TEST_XDP_LIVE_FRAMES has the kernel do with each frame what it does
with one from a driver: a passed frame goes up the stack. The cost of a driver and of the wire is missing.
"""

import ctypes as ct
import json
import os
import struct
import sys
import time

from mrcd.kernel import libbpf
from mrcd.kernel.libbpf import TestRunOpts

BATCH = 64  # frames per call: NAPI's budget
_LIVE_FRAMES = 2  # BPF_F_TEST_XDP_LIVE_FRAMES


class _Feed:
    """The calls that feed frames to the program, one frame for each call."""

    def __init__(self, program: int, ifindex: int, frames: list[bytes]) -> None:
        self._program = program
        self._keep = []
        self._options = []
        for frame in frames:
            # struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex
            context = struct.pack("=6I", 0, len(frame), 0, ifindex, 0, 0)
            opts = TestRunOpts(sz=ct.sizeof(TestRunOpts), repeat=BATCH, flags=_LIVE_FRAMES, batch_size=BATCH)
            opts.data_in, opts.data_size_in = ct.cast(ct.c_char_p(frame), ct.c_void_p), len(frame)
            opts.ctx_in, opts.ctx_size_in = ct.cast(ct.c_char_p(context), ct.c_void_p), len(context)
            self._keep.append((frame, context))
            self._options.append(opts)

    def run(self, rate: float, seconds: float) -> dict[str, float]:
        """Feeds frames for this time. A late call is not caught up later than 10 ms."""
        run, batches = libbpf.lib().bpf_prog_test_run_opts, 0
        begin = now = time.monotonic()
        due, busy = begin, 0.0
        while now < begin + seconds:
            if now < due:
                now = time.monotonic()
                continue
            libbpf.check(
                "feed frames to the program", run(self._program, ct.byref(self._options[batches % len(self._options)]))
            )
            batches += 1
            due = max(due + BATCH / rate, now - 0.01)
            after = time.monotonic()
            busy, now = busy + after - now, after
        return {"fed": batches * BATCH, "took_s": now - begin, "busy_s": busy}


def main() -> None:
    """Obeys the lines of stdin until it closes."""
    number, ifindex, cpu = (int(a) for a in sys.argv[1:])
    os.sched_setaffinity(0, {cpu})
    program = libbpf.check(f"open program {number}", libbpf.lib().bpf_prog_get_fd_by_id(number))
    for line in sys.stdin:
        order = json.loads(line)
        feed = _Feed(program, ifindex, [bytes.fromhex(f) for f in order["frames"]])
        print(json.dumps(feed.run(order["rate"], order["seconds"])), flush=True)


if __name__ == "__main__":
    main()
