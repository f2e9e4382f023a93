# SPDX-License-Identifier: BSD-2-Clause
"""Fuzzes the headers of bpf/ on the host: builds the targets, runs each one, and prints one table.

`make fuzz` runs all targets for FUZZ_SECONDS in all, with libFuzzer, AddressSanitizer and UBSan. Each target keeps its
corpus in build/fuzz/corpus, so the next run begins where this one ends. An input that violates something stays in
build/fuzz/findings, and the program prints how to reproduce it. `make fuzz-planted` removes one check from a copy of
bpf/ for each target, and measures how long its target takes to find that.

    targets.c            the targets; the name of the program selects one
    host.h               the host and its tables, and the programs' runs
    helpers.h, packet_helpers.h   the BPF helpers on host memory
    include/bpf/         replaces libbpf's headers
    tables.py, seeds.py  what the daemon would write into the tables; the first inputs, built from real packets
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import seeds, tables

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "fuzz"
TARGETS = tuple(seeds.SEEDS)
INPUT_MAX = 1500  # bytes
PLANTED_SECONDS = 60
NICE = ("nice", "-n", "19")
# Not alignment: headers lie at odd offsets in packets, and BPF programs read them there.
FLAGS = (
    *("-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unknown-attributes", "-Wno-unused-function"),
    "-Wno-unused-parameter",  # of helpers
    *("-fno-strict-aliasing", "-fsanitize=fuzzer,address,undefined"),
    *("-fno-sanitize=alignment", "-fno-sanitize-recover=all"),
)


@dataclass(frozen=True)
class Planted:
    """A check to remove from a copy of a header: `check` becomes `instead`, once."""

    header: str
    check: str
    instead: str


PLANTED = {
    "outer": Planted("parse.h", "if (!TAKE(c, o->mrc))", "o->mrc = c->at, c->at = o->mrc + 1;\n\tif (0)"),
    "probes": Planted("apply_reply.h", "if (reply_tag(key[0], key[1], scratch) != c->mrc.auth)", "if (0)"),
    "icmp": Planted("icmp.h", "if (!TAKE(c, ip6))", "ip6 = c->at, c->at = ip6 + 1;\n\tif (0)"),
    "push": Planted("inner.h", "if (!TAKE(&c, ip6))", "ip6 = c.at;\n\t\tif (0)"),
    "pop": Planted("parse.h", "if ((void *)(ip + 1) > end)\n\t\treturn 1;", "if (0)\n\t\treturn 1;"),
    "copies": Planted("replicate.h", "if (is_forgotten(", "if (0 && is_forgotten("),
}


class Unavailable(Exception):
    """Says that the compiler or the fuzzing runtime is missing."""


@dataclass(frozen=True)
class Result:
    """The result of a run of one target."""

    target: str
    executions: int
    packets: int  # of the target that counts them: in sequences, many in each execution; else the executions
    seconds: float
    edges: int
    finding: Path | None
    output: str


def compiler() -> str:
    """Returns clang-19, else the newest clang. Raises Unavailable if it has no fuzzing runtime."""
    found = shutil.which("clang-19") or next(
        iter(sorted(map(str, Path("/usr/bin").glob("clang-[0-9]*")), key=lambda p: int(p.rpartition("-")[2]))[::-1]), ""
    )
    if not found:
        raise Unavailable("no clang is installed; run scripts/set-up --fuzz")
    command = [found, "-print-resource-dir"]
    resources = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    if not list(resources.glob("lib/*/libclang_rt.fuzzer*.a")):
        raise Unavailable(f"{found} has no libFuzzer; run scripts/set-up --fuzz")
    return found


def build(directory: Path = BUILD, bpf: Path = ROOT / "bpf") -> None:
    """Builds the program, and a name of it per target, in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    clang = compiler()
    header, program = directory / "tables.h", directory / "targets"
    text = tables.header()
    if not header.exists() or header.read_text() != text:
        header.write_text(text)
    sources = [*HERE.rglob("*.[ch]"), *bpf.glob("*.[ch]"), header, Path(__file__)]
    if not program.exists() or program.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        paths = [f"-isystem{HERE / 'include'}", f"-I{bpf}", f"-I{directory}", f"-ffile-prefix-map={ROOT}/="]
        subprocess.run([clang, *FLAGS, *paths, str(HERE / "targets.c"), "-o", str(program)], check=True)
    for target in TARGETS:
        link = directory / target
        link.unlink(missing_ok=True)
        link.symlink_to(program.name)


def fuzz(target: str, seconds: float, runs: int | None = None, directory: Path = BUILD) -> Result:
    """Runs one target. It ends after this time, or this many executions, or with its first finding."""
    corpus, first = directory / "corpus" / target, directory / "seeds" / target
    findings = directory / "findings"
    for each in (corpus, findings):
        each.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(first, ignore_errors=True)
    seeds.write(target, first)
    before = set(findings.iterdir())
    limits = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={INPUT_MAX}", "-timeout=10"]
    limits += [] if runs is None else [f"-runs={runs}"]
    options = [f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1", *limits]
    command = [*NICE, str(directory / target), *options, str(corpus), str(first)]
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
    took = time.monotonic() - began
    found = sorted(set(findings.glob(f"{target}-*")) - before)
    if ended.returncode and not found:  # an input that is known already, or no input at all
        names = re.findall(r"Test unit written to (\S+)", ended.stderr)
        found = [Path(names[-1]) if names else findings]
    patterns = (r"^stat::number_of_executed_units: (\d+)", r" cov: (\d+)", r"^stat::packets: (\d+)")
    executions, edges, packets = (int(c[-1]) if (c := re.findall(p, ended.stderr, re.M)) else 0 for p in patterns)
    return Result(target, executions, packets or executions, took, edges, found[0] if found else None, ended.stderr)


def _summary(output: str) -> str:
    """Returns the line of a run's output that says what is wrong."""
    pattern = r"^.*(?:runtime error:|violated:|ERROR: AddressSanitizer|ERROR: libFuzzer).*$"
    found = re.findall(pattern, output, re.M)
    return found[0].strip() if found else output.strip().rpartition("\n")[2]


def print_table(results: list[Result]) -> None:
    """Prints a row per target, and how to reproduce each finding."""
    print(f"{'target':8}{'executions':>12}{'packets':>14}{'exec/s':>10}{'edges':>8}{'findings':>10}")
    for r in results:
        rate = r.executions / r.seconds
        print(f"{r.target:8}{r.executions:12,}{r.packets:14,}{rate:10,.0f}{r.edges:8,}{int(r.finding is not None):10}")
    for r in results:
        if r.finding:
            print(f"\n{r.target}: {_summary(r.output)}")
            print(f"  reproduce: {(BUILD / r.target).relative_to(ROOT)} {r.finding.relative_to(ROOT)}")


def fuzz_all(seconds: float, runs: int | None = None, targets: tuple[str, ...] = TARGETS) -> list[Result]:
    """Builds and runs the targets, one after another; `seconds` in all."""
    build()
    return [fuzz(target, seconds / len(targets), runs) for target in targets]


def find_planted(targets: tuple[str, ...] = TARGETS) -> bool:
    """Removes one check per target from a copy of bpf/. Returns whether each was found within a minute."""
    all_found = True
    for target in targets:
        directory, planted = BUILD / "planted" / target, PLANTED[target]
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(ROOT / "bpf", directory / "bpf")
        header = directory / "bpf" / planted.header
        text = header.read_text()
        if text.count(planted.check) != 1:
            raise ValueError(f"{planted.header} must have this check once: {planted.check}")
        header.write_text(text.replace(planted.check, planted.instead))
        build(directory, directory / "bpf")
        result = fuzz(target, PLANTED_SECONDS, directory=directory)
        found = f"found after {result.seconds:.1f} s: {_summary(result.output)}" if result.finding else "NOT FOUND"
        print(f"{target:8}{planted.header:15}{found}")
        all_found &= result.finding is not None
    return all_found


def main() -> int:
    """Runs the command line. Returns 1 if anything was found, or a planted bug was not."""
    parser = argparse.ArgumentParser(description="fuzz the headers of bpf/ on the host")
    parser.add_argument("--seconds", type=float, default=60, help="in all, divided over the targets (%(default)s)")
    parser.add_argument("--runs", type=int, help="executions per target, at most")
    parser.add_argument("--planted", action="store_true", help="check that removed bounds checks are found")
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(TARGETS)} (all)")
    arguments = parser.parse_args()
    targets = tuple(arguments.targets) or TARGETS
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    try:
        if arguments.planted:
            return 0 if find_planted(targets) else 1
        results = fuzz_all(arguments.seconds, arguments.runs, targets)
    except Unavailable as reason:
        print(f"fuzz: {reason}", file=sys.stderr)
        return 2
    print_table(results)
    return 1 if any(r.finding for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
