# SPDX-License-Identifier: BSD-2-Clause
"""Measures one candidate under one load: goodput at the receiver, CPU of the whole machine."""

import contextlib
import time
from collections.abc import Sequence

from labkit.bench import cpu
from labkit.bench.candidates import KERNEL_ECMP, OURS, Candidate, pair
from labkit.bench.cells import Load
from labkit.bench.control import Control
from labkit.bench.failover import mptcp
from labkit.bench.part import Options
from labkit.cluster import netns
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.measure import goodput
from labkit.traffic.datagrams import Datagrams
from labkit.traffic.flow import Flow
from mrcd.errors import MachineError

_LOOK_S = 0.1  # often enough that no child's pipe fills up


def run(lab: Lab, candidate: Candidate, load: Load, options: Options) -> Document:
    """Lets the flows start, then measures for `options.seconds`. Raises MachineError if they took another way."""
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(Control(lab, pair(lab))) if candidate.name in OURS else None
        flows = [stack.enter_context(_flow(lab, candidate, load)) for _ in range(load.flows)]
        _poll(flows, options.warm_up_s)
        if candidate.protocol == "mptcp":
            for flow in flows:
                mptcp.check(lab, flow)
        sent = control.read() if control else {}
        carried, used, begin_ns = _nics(lab, candidate), cpu.read(), time.monotonic_ns()
        before = sum(f.retransmitted_segments for f in flows)
        _poll(flows, options.seconds)
        end_ns, used = time.monotonic_ns(), cpu.read().since(used)
        controlled = control.since(sent, (end_ns - begin_ns) / 1e9) if control else None
        carried = [now - then for now, then in zip(_nics(lab, candidate), carried, strict=True)]
        retransmitted = sum(f.retransmitted_segments for f in flows) - before
        for flow in flows:
            flow.finish()
    _check(candidate, load, carried)
    bits_per_s = sum(goodput.mean(f.bins, begin_ns, end_ns) or 0.0 for f in flows)
    gbit = bits_per_s * (end_ns - begin_ns) / 1e18
    return {
        "bits_per_s": bits_per_s,
        "cpu_s_per_gbit": used.busy_s / gbit if gbit else None,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments": retransmitted,
        "congestion_control": flows[0].congestion_control,
        "mss_bytes": flows[0].mss_bytes,
        "control": controlled,
        **_packets(flows[0], bits_per_s),
    }


def _flow(lab: Lab, candidate: Candidate, load: Load) -> Flow:
    if load.packet_bytes:
        return Datagrams(lab, candidate.ends, load.packet_bytes)
    return Flow(lab, candidate.ends, protocol=candidate.protocol)


def _poll(flows: Sequence[Flow], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        flows[0].poll(min(left, _LOOK_S))
        for flow in flows[1:]:
            flow.poll(0)
    for flow in flows:
        flow.poll(0)


def _packets(flow: Flow, bits_per_s: float) -> Document:
    """Returns for UDP the packets that arrived, and the share of all sent packets that did not."""
    if not isinstance(flow, Datagrams):
        return {}
    return {
        "packets_per_s": bits_per_s / 8 / flow.payload_bytes,
        "lost_ratio": 1 - flow.received_packets / flow.sent_packets if flow.sent_packets else None,
    }


def _nics(lab: Lab, candidate: Candidate) -> list[int]:
    """Returns the bytes sent by each of the source's NICs, one per plane."""
    config = lab.fabric.config
    with lab.inside(candidate.ends.source):
        sent = netns.sent_bytes()
    return [sent[n] for n in config.interface_names(config.host(candidate.ends.source))]


def _check(candidate: Candidate, load: Load, carried: list[int]) -> None:
    """Checks that the flows took the way to be measured. Raises MachineError."""
    if candidate.sprayed is None or (candidate.name == KERNEL_ECMP and load.flows > 1):
        return
    total = sum(carried)
    shares = [n / total if total else 0.0 for n in carried]
    fair = 1 / len(carried)
    right = min(shares) > fair / 2 if candidate.sprayed else max(shares) > 0.95
    if not right:
        raise MachineError(
            f"{candidate.name}: the planes carried {', '.join(f'{s:.0%}' for s in shares)} of the flow; it should "
            + ("use all of them equally" if candidate.sprayed else "stay on one"),
            hint="was a path withdrawn, or is a route missing? see mrcctl events, ip route",
        )
