# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/kernels`: the command line."""

import os
import platform
import shutil
import tempfile
from pathlib import Path

import click

from labkit import entry
from labkit.kernels import fresh_debian, geneve, guest, machine, matrix, nics, packages

_QUICK = ("programs", "smoke")
_WHOLE = ("programs", "packets", "lab", "life", "tunnels", "stacked", "shaped", "lockdown")
_RESULTS = packages.CACHE / "results"
_SERIES = click.Choice(packages.SERIES)
_EVERY = (*packages.SERIES, *packages.ARM64)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kernels() -> None:
    """Check the programs, the packet tests and a small lab on other kernels, in virtual machines."""


@kernels.command()
def fetch() -> None:
    """Download and unpack the kernels."""
    for series in packages.SERIES:
        entry.progress(f"{series}: {packages.kernel(series).release}")


@kernels.command("run")
@click.argument("series", type=click.Choice(_EVERY))
@click.argument("argv", nargs=-1, required=True)
@click.option("--timeout", default=600.0, show_default=True, help="seconds")
def run_one(series: str, argv: tuple[str, ...], timeout: float) -> int:
    """Run a command on a kernel, as root, in this directory, which is read-only there."""
    machine.prepare()
    with tempfile.TemporaryDirectory(prefix="mrcd-kernel-") as results:
        status = machine.run(packages.kernel(series), argv, Path(results), timeout)
        print((Path(results) / "output").read_text(encoding="utf-8", errors="replace"), end="")
    return status


@kernels.command()
@click.option("--quick", is_flag=True, help="only load every program, and one lab: 3 minutes")
@click.option("--arm64", is_flag=True, help="arm64 kernels, emulated")
@click.option("--kernel", "chosen", type=click.Choice([*_EVERY, "running"]), multiple=True, help="only these")
@click.option("--part", "parts", type=click.Choice(list(guest.PARTS)), multiple=True, help="only these checks")
@click.option("--json", "as_json", is_flag=True, help="one document on stdout")
def test(quick: bool, arm64: bool, chosen: tuple[str, ...], parts: tuple[str, ...], as_json: bool) -> int:
    """Run the matrix: a table of kernels and checks. Exit status 1 if a check failed, 2 if a machine did."""
    wanted = chosen or (packages.ARM64 if arm64 else (*packages.SERIES, "running"))
    checks = parts or (_QUICK if quick else _WHOLE)
    for name in wanted:
        shutil.rmtree(_RESULTS / name, ignore_errors=True)
    _RESULTS.mkdir(parents=True, exist_ok=True)
    guests = [packages.kernel(series) for series in _EVERY if series in wanted]
    rows = matrix.run(guests, checks, _RESULTS, running=platform.release() if "running" in wanted else None)
    if as_json:
        entry.print_json({"rows": [r.document() for r in rows]})
    else:
        print("\n".join(matrix.lines(rows)))
    if os.environ.get("CI") is None:
        entry.progress(f"All output is in {_RESULTS}")
    return 0 if all(r.ok for r in rows) else 1


@kernels.command("nics")
@click.option("--kernel", "series", type=_SERIES, default=packages.SERIES[-1], show_default=True)
@click.option("--nic", "chosen", type=click.Choice(list(nics.MODELS)), multiple=True, help="only these")
@click.option("--check", "only", type=click.Choice(list(nics.CHECKS)), multiple=True, help="only these checks")
@click.option("--json", "as_json", is_flag=True, help="one document on stdout")
def test_nics(series: str, chosen: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> int:
    """Run mrcd on two machines by each network card: a table of cards and checks. Exit status as for `test`."""
    machine.prepare()
    shutil.rmtree(_RESULTS / "nics", ignore_errors=True)
    rows = [nics.run(packages.kernel(series), nic, _RESULTS / "nics", only) for nic in chosen or nics.MODELS]
    if as_json:
        entry.print_json({"kernel": packages.kernel(series).release, "rows": [r.document() for r in rows]})
    else:
        print("\n".join(matrix.lines(rows, each=True)))
    return 0 if all(r.ok for r in rows) else 1


@kernels.command("geneve")
@click.option("--kernel", "series", type=_SERIES, default=packages.SERIES[-1], show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one document on stdout")
def compare_geneve(series: str, as_json: bool) -> None:
    """Count the packets of a TCP flow over Geneve and over mrcd, between two machines: docs/wire-format.md."""
    machine.prepare()
    kernel = packages.kernel(series)
    cases = geneve.run(kernel, _RESULTS / "geneve")
    if as_json:
        entry.print_json({"kernel": kernel.release, "cases": [c.document() for c in cases]})
    else:
        print("\n".join(geneve.lines(cases)))


@kernels.command("demo")
@click.option("--kernel", "series", type=_SERIES, default=packages.SERIES[-1], show_default=True)
def new_user(series: str) -> int:
    """Install a new Debian in a machine, clone the repository as committed, and run `make demo` there."""
    results = _RESULTS / "demo"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    status = fresh_debian.run(packages.kernel(series), results)
    print((results / "output").read_text(encoding="utf-8", errors="replace"), end="")
    return status


def main() -> None:
    """Entry point."""
    entry.main("scripts/kernels", kernels)
