"""Goodput of one TCP flow in burst granularity, beside the kernel's own seg6 encap.red in the same lab.

A round measures mrcd and the kernel one right after the other, for each IP version; their ratio is one pair.
The other candidates are context, and are measured in the first rounds only.
"""

import itertools
from statistics import median

from labkit import observe
from labkit.api import Lab
from labkit.bench import candidates
from labkit.bench.candidates import KERNEL, MRCD, Candidate
from labkit.bench.part import Options, Part, requirement
from labkit.bench.run import run
from labkit.entry import progress
from labkit.observe import Document
from mrcd.ctl.render import Column, count, percent, table

RATIO = 1.0
PAIRS = 7
CONTEXT_ROUNDS = 3


def measure(lab: Lab, options: Options) -> Document:
    """All rounds."""
    lab.up(granularity="burst")
    observe.wait_until_good(lab, lab.fabric.hosts)
    found = list(itertools.chain.from_iterable(candidates.all_of(lab, v) for v in options.versions))
    for c in found:
        c.install(lab)
    seen = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in lab.fabric.hosts}
    runs: dict[tuple[str, int], list[Document]] = {(c.name, c.version): [] for c in found}
    rounds = options.pairs or PAIRS
    for number in range(rounds):
        progress(f"throughput: round {number + 1} of {rounds}")
        for c in found:
            if c.name not in (MRCD, KERNEL) and number >= CONTEXT_ROUNDS:
                continue
            done = run(lab, c, options)
            runs[c.name, c.version].append(done)
            progress(f"  IPv{c.version}  {c.name:<12} {done['bits_per_s'] / 1e9:5.1f} Gbit/s")
    withdrawn = [e for h in seen for e in observe.events(lab, h, seen[h]) if e["to"] == "ASSUMED_BAD"]
    compared = [ratios(v, runs[MRCD, v], runs[KERNEL, v]) for v in options.versions]
    return {
        "granularity": "burst",
        "mtu_bytes": lab.fabric.parameters.mtu,
        "seconds": options.seconds,
        "candidates": [_candidate(c, runs[c.name, c.version]) for c in found],
        "ratios": compared,
        "withdrawals_without_a_fault": len(withdrawn),
        "requirements": [
            requirement(
                f"one TCP flow over IPv{r['version']} reaches at least the goodput of the kernel's seg6 encap.red",
                r["median"] >= RATIO,
                f"median ratio {r['median']:.2f}",
            )
            for r in compared
        ],
    }


def _candidate(c: Candidate, runs: list[Document]) -> Document:
    goodputs = [r["bits_per_s"] for r in runs]
    return {
        "name": c.name,
        "version": c.version,
        "what": c.words,
        "congestion_control": runs[0]["congestion_control"],
        "mss_bytes": runs[0]["mss_bytes"],
        "median_bits_per_s": median(goodputs),
        "min_bits_per_s": min(goodputs),
        "max_bits_per_s": max(goodputs),
        "median_cpu_s_per_gbit": median(r["cpu_s_per_gbit"] or 0.0 for r in runs),
        "median_cpu_busy_ratio": median(r["cpu_busy_ratio"] for r in runs),
        "median_retransmitted_segments": median(r["retransmitted_segments"] for r in runs),
        "runs": runs,
    }


def ratios(version: int, mrcd: list[Document], kernel: list[Document]) -> Document:
    """Pair by pair: mrcd by kernel."""
    found = [a["bits_per_s"] / b["bits_per_s"] for a, b in zip(mrcd, kernel, strict=True)]
    return {"version": version, "ratios": found, "median": median(found), "min": min(found), "max": max(found)}


def lines(document: Document) -> list[str]:
    """Tables."""
    first = document["candidates"][0]
    columns = [
        Column("CANDIDATE"),
        Column("IP", True),
        Column("RUNS", True),
        *(Column(h, True) for h in ("Gbit/s MEDIAN", "MIN", "MAX", "CPU s/Gbit", "CPU BUSY %", "RETRANS", "MSS")),
        Column("WHAT"),
    ]
    rows = [
        [
            c["name"],
            str(c["version"]),
            str(len(c["runs"])),
            *(f"{c[f'{k}_bits_per_s'] / 1e9:.1f}" for k in ("median", "min", "max")),
            f"{c['median_cpu_s_per_gbit']:.3f}",
            percent(c["median_cpu_busy_ratio"]),
            count(c["median_retransmitted_segments"]),
            str(c["mss_bytes"]),
            c["what"],
        ]
        for c in document["candidates"]
    ]
    pairs = [
        f"mrcd / kernel over IPv{r['version']}, pair by pair: {' '.join(f'{x:.2f}' for x in r['ratios'])}; "
        f"median {r['median']:.2f} ({r['min']:.2f}–{r['max']:.2f})"
        for r in document["ratios"]
    ]
    return [
        f"Throughput of one TCP flow, {document['granularity']} granularity, {first['congestion_control']}, links of "
        f"MTU {document['mtu_bytes']} bytes, {document['seconds']:g} s per run",
        *table(columns, rows, colour=False),
        *pairs,
        f"EVs withdrawn meanwhile: {document['withdrawals_without_a_fault']}",
    ]


PART = Part("throughput", measure, lines)
