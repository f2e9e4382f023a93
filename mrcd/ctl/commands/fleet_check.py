# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl fleet check`, which asks Prometheus and needs no mrcd on its host."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrcd.ctl.base import Options, command, show
from mrcd.ctl.commands.config import cluster_file
from mrcd.ctl.options import prometheus_options
from mrcd.ctl.terminal.render import Document, duration, fold
from mrcd.errors import CannotTell, ConfigError, MachineError, UsageError

if TYPE_CHECKING:
    from mrcd.fleet_check.findings import Samples
    from mrcd.prometheus import Prometheus

_HEADS = {"ready": "READY", "degraded": "READY, degraded", "not_ready": "NOT READY"}
_COLOURS = {"ready": "32", "degraded": "33", "not_ready": "31"}
_BRIEFS = 3  # findings in the first line
_SHOWN = 20
_STRICT, _NOT_READY = 1, 2


def check_lines(doc: Document, *, colour: bool, width: int | None) -> list[str]:
    """Return the verdict with its reasons in one line, then each finding and what to do."""
    findings, word = doc["findings"], doc["verdict"]
    briefs = [f["brief"] for f in findings if f["level"] == word]
    more = f", and {len(briefs) - _BRIEFS} more" if len(briefs) > _BRIEFS else ""
    sweep = f", last full sweep {duration(doc['sweep_age_s'])} ago" if doc["sweep_age_s"] is not None else ""
    hosts = "1 host" if doc["hosts"] == 1 else f"{doc['hosts']} hosts"
    said = ", ".join(briefs[:_BRIEFS]) + more if briefs else hosts + sweep
    head, *rest = fold(f"{_HEADS[word]}: {said}", width)
    if colour:
        length = len(_HEADS[word])
        head = f"\033[{_COLOURS[word]}m{head[:length]}\033[0m{head[length:]}"
    lines = [head, *rest]
    for finding in findings[:_SHOWN]:
        lines += _indented(finding["sentence"], "  ", width) + _indented(f"Do: {finding['do']}", "    ", width)
    if len(findings) > _SHOWN:
        lines += fold(f"and {len(findings) - _SHOWN} more: --json has all", width)
    return lines


def _indented(text: str, indent: str, width: int | None) -> list[str]:
    return [indent + line for line in fold(text, None if width is None else width - len(indent))]


@command("Check before a job that its hosts and the paths between them are ready.")
@click.option("--hosts", "text", required=True, metavar="LIST", help="The job's hosts, such as gpu[1-512].")
@prometheus_options
@click.option("--strict", is_flag=True, help="Exit status 1 if the hosts are ready, but degraded.")
@click.option(
    "--max-age",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Older samples do not count; at least two scrape intervals.",
)
@click.option(
    "--least-evs",
    type=click.FloatRange(min=0, max=100),
    default=50.0,
    show_default=True,
    metavar="PERCENT",
    help="A host with a lower share of its EVs in use is not ready.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The cluster file, to check names that Prometheus does not know; default that of this host, if it has one.",
)
def check(
    options: Options,
    /,
    text: str,
    server: "Prometheus",
    strict: bool,
    max_age: float,
    least_evs: float,
    file: Path | None,
) -> None:
    """Check whether hosts and the paths between them are ready for a job, by what they last told Prometheus.

    Runs on any machine that reaches Prometheus. LIST is as Slurm writes it: gpu[1-4,7],login1. Only what concerns these
    hosts counts; a host or a switch that their paths do not cross may be down.

    Exit status 0 if they are ready, also with fewer paths (--strict: 1 then), 2 if not, 3 if that cannot be told; 1 for
    wrong usage. --timeout is for each question.
    """
    from mrcd.config.hostlist import expand
    from mrcd.fleet_check.findings import Limits
    from mrcd.fleet_check.read import read
    from mrcd.fleet_check.verdict import judge

    limits = Limits(sample_s=max_age, least_in_use=least_evs / 100)
    wanted = expand(text)
    try:
        samples = read(server, wanted, limits.sample_s)
    except MachineError as e:
        raise CannotTell(str(e.args[0]), hint=e.hint) from None
    _require_names(options, wanted, samples, file)
    document = judge(samples, wanted, limits).document()
    show(options, document, check_lines)
    sys.exit({"not_ready": _NOT_READY, "degraded": _STRICT if strict else 0}.get(document["verdict"], 0))


def _require_names(options: Options, wanted: Sequence[str], samples: "Samples", file: Path | None) -> None:
    """Raise UsageError if a host that Prometheus does not know is not in the cluster file either."""
    unknown = [name for name in wanted if not samples.knows(name)]
    if not unknown:
        return
    from mrcd.config.cluster_file import load
    from mrcd.config.hostlist import compress

    path = file or cluster_file(options)
    try:
        known = {host.name: None for host in load(path).hosts}
    except ConfigError:  # a machine without mrcd, such as a scheduler's, has none
        if file is not None:
            raise
        return
    missing = [name for name in unknown if name not in known]
    if missing:
        raise UsageError(f"{compress(missing)}: not in the cluster file {path}", hint=f"its hosts: {compress(known)}")
