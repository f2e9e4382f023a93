# SPDX-License-Identifier: BSD-2-Clause
"""Runs the checks of each kernel in a machine of its own, as many at once as there are CPUs, and makes the table."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.bench import lifecycle
from labkit.entry import progress
from labkit.kernels import labs, machine, programs
from labkit.kernels.packages import Kernel
from labkit.places import REPOSITORY
from mrcd.ctl.terminal.render import Column, table
from mrcd.errors import MachineError

NOT_HAD = "not had"  # the cell of a feature that a kernel lacks
KNOWN = "known"  # the cell of a check that fails for a known reason
_PART_S = 3600.0  # a part that takes longer hangs

_DOWN_S = 60.0
_here_runs: set[subprocess.Popen[bytes]] = set()  # the running checks of the machine's own kernel


@dataclass(frozen=True)
class Row:
    """The results of one kernel."""

    kernel: str
    checks: tuple[dict[str, Any], ...]
    error: str = ""  # of the machine, not of a check

    @property
    def ok(self) -> bool:
        """Returns whether all checks ran and passed."""
        return not self.error and bool(self.checks) and all(c["ok"] for c in self.checks)

    def document(self) -> dict[str, Any]:
        """Returns the row as --json prints it."""
        return {"kernel": self.kernel, "ok": self.ok, "error": self.error or None, "checks": list(self.checks)}


def run(guests: Sequence[Kernel], parts: Sequence[str], results: Path, *, running: str | None) -> list[Row]:
    """Returns the rows of these kernels, and of the machine's own kernel if its release is given in `running`.

    Each takes a CPU. The machine's own kernel comes last, because its lab has shorter deadlines.
    """
    machine.prepare()
    directories = {k.release: results / k.series for k in guests} | ({running: results / "running"} if running else {})
    for directory in directories.values():
        directory.mkdir()
    if "life" in parts:
        with lifecycle.another_build() as other:
            for directory in directories.values():
                (directory / labs.OTHER_BUILD).write_bytes(other.read_bytes())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [pool.submit(_in_a_guest, k, parts, directories[k.release]) for k in guests]
        if running:
            rows.append(pool.submit(_here, running, parts, directories[running]))
        try:
            return [row.result() for row in rows]
        except BaseException:  # on an interrupt the threads still wait for their machines
            pool.shutdown(wait=False, cancel_futures=True)
            machine.end_all()
            for child in list(_here_runs):
                child.terminate()
            raise


def _argv(parts: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "labkit.kernels.guest", *parts]


def _in_a_guest(kernel: Kernel, parts: Sequence[str], results: Path) -> Row:
    progress(f"kernels: {kernel.release} begins")
    began, error, status = time.monotonic(), "", 0
    argv = ["env", f"{labs.EVERY_DEVICE}=1", *_argv(parts)]
    try:
        status = machine.run(kernel, argv, results, _PART_S * len(parts))
    except MachineError as e:
        error = str(e)
    return _row(kernel.release, parts, results, status, error, began)


def _here(release: str, parts: Sequence[str], results: Path) -> Row:
    progress(f"kernels: {release}, the running one, begins")
    began, error, status = time.monotonic(), "", 0
    environment = {
        **os.environ,
        "LAB_PATIENCE": "2",
        "LAB_RESULTS": str(results),
        "PYTHONPATH": f"{REPOSITORY / 'scripts'}:{REPOSITORY}",
    }
    with (
        (results / "output").open("w", encoding="utf-8") as out,
        subprocess.Popen(_argv(parts), stdout=out, stderr=out, env=environment, cwd=REPOSITORY) as child,
    ):
        _here_runs.add(child)
        patience = _PART_S * len(parts)
        try:
            status = child.wait(patience)
        except subprocess.TimeoutExpired:
            error = f"not finished after {patience:.0f} s"
            child.terminate()  # SIGTERM lets it remove its lab
            with suppress(subprocess.TimeoutExpired):
                child.wait(_DOWN_S)
            child.kill()
        finally:
            _here_runs.discard(child)
    return _row(release, parts, results, status, error, began)


def _row(release: str, parts: Sequence[str], results: Path, status: int, error: str, began: float) -> Row:
    lines = (results / "checks").read_text(encoding="utf-8").splitlines() if (results / "checks").exists() else []
    row = judge(release, parts, tuple(json.loads(line) for line in lines), status, error)
    progress(f"kernels: {release}: {'ok' if row.ok else 'FAILED'} after {time.monotonic() - began:.0f} s")
    return row


def judge(release: str, parts: Sequence[str], checks: tuple[dict[str, Any], ...], status: int, error: str) -> Row:
    """Returns the row for these checks and the exit status or error; every part must have reported. Pure."""
    silent = set(parts) - {c["part"].split()[0] for c in checks}
    if not error and silent:
        error = f"nothing was reported of {', '.join(p for p in parts if p in silent)} (exit status {status})"
    if not error and status and all(c["ok"] for c in checks):
        error = f"the checks ended with exit status {status}, and none of them failed"
    return Row(release, checks, error)


def lines(rows: Iterable[Row], *, each: bool = False) -> list[str]:
    """Returns the tables: instructions per program, then parts (or `each` check) per kernel; then missing features,
    known failures and failures, with descriptions. Pure.
    """
    rows = list(rows)
    names = [row.kernel for row in rows]
    heads, found = (["part", "check"], _checks(rows)) if each else (["part"], _parts(rows))
    return [*_programs(rows, names), "", *_table(heads, names, found), *_excused(rows), *failures(rows)]


def _excused(rows: Iterable[Row]) -> list[str]:
    return [
        f"{c['cell']} {row.kernel}: {c['part']}: {c['check']}: {c['words']}"
        for row in rows
        for c in row.checks
        if c.get("cell") in (NOT_HAD, KNOWN)
    ]


def failures(rows: Iterable[Row]) -> list[str]:
    """Returns the failures with descriptions: the verifier's last lines, where it refused a program. Pure."""
    found = []
    for row in rows:
        found += [f"FAILED {row.kernel}: {row.error}"] if row.error else []
        found += [f"FAILED {row.kernel}: {c['part']}: {c['check']}: {c['words']}" for c in row.checks if not c["ok"]]
    return found


def _programs(rows: list[Row], names: list[str]) -> list[str]:
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        for c in row.checks:
            if "instructions" in c:
                cells = found.setdefault(tuple(c["check"].split(", ")), {})
                cells[row.kernel] = str(c["instructions"]) if c["instructions"] else "refused"
    head = f"Instructions verified, of {programs.HALF} that a program may have at most (half of the kernel's limit)"
    return [head, *_table(["program", "settings"], names, found)] if found else []


def _checks(rows: list[Row]) -> dict[tuple[str, ...], dict[str, str]]:
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        for c in row.checks:
            cells = found.setdefault((c["part"], c["check"]), {})
            cells[row.kernel] = c.get("cell", "ok") if c["ok"] and cells.get(row.kernel) != "FAILED" else "FAILED"
    return found


def _parts(rows: list[Row]) -> dict[tuple[str, ...], dict[str, str]]:
    """Returns passed / all checks per part; a part's only check may set its own cell."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        by_part: dict[str, list[dict[str, Any]]] = {}
        for c in row.checks:
            by_part.setdefault(c["part"], []).append(c)
        for part, checks in by_part.items():
            passed = sum(c["ok"] and c.get("cell") not in (NOT_HAD, KNOWN) for c in checks)
            word = "" if all(c["ok"] for c in checks) else "FAILED, "
            cell = checks[0].get("cell", "") if len(checks) == 1 else ""
            found.setdefault((part,), {})[row.kernel] = word + (cell or f"{passed} of {len(checks)}")
    return found


def _table(heads: list[str], names: list[str], found: dict[tuple[str, ...], dict[str, str]]) -> list[str]:
    body = [[*key, *(cells.get(n, "-") for n in names)] for key, cells in found.items()]
    return table([Column(h) for h in (*heads, *names)], body, colour=False)
