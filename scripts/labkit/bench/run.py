"""One candidate, one TCP flow, measured: goodput at the receiver, CPU of the whole machine."""

import time

from labkit import goodput, netns
from labkit.api import Lab
from labkit.bench import cpu
from labkit.bench.candidates import Candidate
from labkit.bench.part import Options
from labkit.flow import Flow
from labkit.observe import Document
from mrcd.errors import MachineError


def run(lab: Lab, candidate: Candidate, options: Options) -> Document:
    """Let the flow start, then measure for `options.seconds`. Raises MachineError if it took another way."""
    with Flow(lab, candidate.ends) as flow:
        flow.poll(options.warm_up_s)
        carried, used, begin_ns = _nics(lab, candidate), cpu.read(), time.monotonic_ns()
        before = flow.retransmitted_segments
        flow.poll(options.seconds)
        end_ns, used = time.monotonic_ns(), cpu.read().since(used)
        carried = [now - then for now, then in zip(_nics(lab, candidate), carried, strict=True)]
        retransmitted = flow.retransmitted_segments - before
        flow.finish()
    _check(candidate, carried)
    bits_per_s = goodput.mean(flow.bins, begin_ns, end_ns) or 0.0
    gbit = bits_per_s * (end_ns - begin_ns) / 1e18
    return {
        "bits_per_s": bits_per_s,
        "cpu_s_per_gbit": used.busy_s / gbit if gbit else None,
        "cpu_busy_ratio": used.busy_ratio,
        "retransmitted_segments": retransmitted,
        "congestion_control": flow.congestion_control,
        "mss_bytes": flow.mss_bytes,
    }


def _nics(lab: Lab, candidate: Candidate) -> list[int]:
    """Bytes sent by each of the source's NICs, one per plane."""
    config = lab.fabric.config
    with lab.inside(candidate.ends.source):
        sent = netns.sent_bytes()
    return [sent[n] for n in config.interface_names(config.host(candidate.ends.source))]


def _check(candidate: Candidate, carried: list[int]) -> None:
    """Did the flow take the way that is to be measured?"""
    total = sum(carried)
    shares = [n / total if total else 0.0 for n in carried]
    fair = 1 / len(carried)
    right = min(shares) > fair / 2 if candidate.sprayed else max(shares) > 0.95
    if not right:
        raise MachineError(
            f"{candidate.name}: the planes carried {', '.join(f'{s:.0%}' for s in shares)} of the flow, which should "
            + ("use all of them alike" if candidate.sprayed else "stay on one"),
            hint="was a path withdrawn, or is a route missing? see mrcctl events, ip route",
        )
