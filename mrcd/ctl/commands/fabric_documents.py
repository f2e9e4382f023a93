# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of `mrcctl fabric`. Imports pydantic and numpy, so commands import it late."""

import csv
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from mrcd.config.cluster_file import Config, load, parse
from mrcd.errors import MachineError, UsageError
from mrcd.planner import failures
from mrcd.planner.compare import Comparison, Finding, no_report
from mrcd.planner.fabric_plan import Wanted, plan
from mrcd.planner.switches import running
from mrcd.planner.switches.formats import FORMATS
from mrcd.planner.switches.model import Switch, Switches
from mrcd.planner.switches.reading import Reading
from mrcd.planner.walk import Network

_PEERS_AT_ONCE = 16
_ADDRESSES_SHARE = 20  # one address for so many EVs

Document = dict[str, Any]


def wanted(prefixes: Sequence[str], **numbers: Any) -> Wanted:
    """Returns what the options ask for. Raises UsageError."""
    try:
        networks = tuple(ip_network(prefix) for prefix in prefixes)
    except ValueError as e:
        raise UsageError(f"--prefix: {e}", hint="write a prefix as 10.64.0.1/32 or fd00:99::1/128") from None
    return Wanted(**numbers, prefixes=networks) if networks else Wanted(**numbers)


def planned(asked: Wanted, output: Path | None, cables: Path | None) -> Document:
    """Returns the plan, and writes the cluster file and the cables. Raises UsageError, MachineError."""
    found = plan(asked)
    text = found.cluster_file()
    parse(text, "the planned cluster file")  # the names and prefixes must be possible, too
    try:
        if output is not None:
            output.write_text(text, encoding="utf-8")
        if cables is not None:
            with cables.open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                rows.writerow(("lower", "lower_port", "upper", "upper_port"))
                rows.writerows(found.cables())
    except OSError as e:
        raise MachineError(f"{e.filename}: {e.strerror}") from None
    return {
        "nics": found.nics,
        "hosts": asked.hosts,
        "planes": found.planes,
        "rails": asked.rails,
        "radix": asked.radix,
        "hosts_per_t0": found.hosts_per_t0,
        "t0s": found.t0s,
        "t1s": found.t1s,
        "switches": found.switches,
        "cables": {"host_t0": found.nics, "t0_t1": found.links},
        "ports_used": {"t0": found.hosts_per_t0 + found.t1s, "t1": found.t0s * asked.rails if found.t1s else 0},
        "oversubscription_ratio": found.oversubscription,
        "paths_per_peer": found.planes * max(found.t1s, 1),
        "evs_per_peer": found.evs_per_peer,
        "usids": found.usids(),
        "failures": failures.document(found),
        "cluster_file": text,
        "output": str(output) if output else None,
        "cables_file": str(cables) if cables else None,
    }


def configured(file: Path, format_: str, name: str | None, output: Path | None) -> Document:
    """Returns the configuration of a switch, or the files into which those of all were written.

    Raises UsageError, ConfigError, OSError.
    """
    f = FORMATS[format_]
    switches = f.switches(load(file))
    head = {"file": str(file), "format": format_}
    if output is None:
        return head | {"switch": name, "text": f.text(switches.switch(name or ""))}
    names = [name] if name else list(switches.names)
    output.mkdir(parents=True, exist_ok=True)
    for each in names:
        (output / f"{each}.{f.suffix}").write_text(f.text(switches.switch(each)), encoding="utf-8")
    return head | {"directory": str(output), "files": [f"{each}.{f.suffix}" for each in names]}


def checked(file: Path, format_: str, directory: Path, evs: int, seed: int = 0) -> Document:
    """Follows at least `evs` EVs between random hosts through the files of a directory.

    Raises UsageError, ConfigError, OSError.
    """
    f = FORMATS[format_]
    config = _followable(file)
    switches = f.switches(config)
    wiring = [switches.switch(name) for name in switches.names]
    readings: dict[str, Reading] = {}
    for switch in wiring:
        path = directory / f"{switch.name}.{f.suffix}"
        try:
            readings[switch.name] = f.read(path.read_text(encoding="utf-8"))
        except UsageError as e:
            raise UsageError(f"{path}: {e.args[0]}", hint=e.hint) from None
    head = {"file": str(file), "format": format_, "directory": str(directory)}
    return head | _walked(config, wiring, readings, evs, seed)


def checked_running(file: Path, format_: str | None, directory: Path, evs: int, seed: int = 0) -> Document:
    """Compares what switches report that they run with the plan, and follows EVs through it.

    `format_` is the system whose port names the switches have; by default that of each report. A switch without a
    report is taken as planned. Raises UsageError, ConfigError, OSError.
    """
    config = _followable(file)
    comparison = Comparison(config)
    systems: dict[str, Switches] = {}
    paths = _reports(directory)
    wiring: list[Switch] = []
    readings: dict[str, Reading] = {}
    findings: list[Finding] = []
    reports: Counter[str] = Counter()
    names = list(FORMATS[format_ or "iproute2"].switches(config).names)
    for name in sorted(paths.keys() - names):
        raise UsageError(
            f"{paths[name]}: the cluster has no switch {name!r}",
            hint=f"call each file as its switch, {names[0]}.json to {names[-1]}.json, and keep others elsewhere",
        )
    for name in names:
        path = paths.get(name)
        report = _read_report(path) if path else running.Report(format_ or "iproute2")
        f = FORMATS[format_ or report.system]
        switch = systems.setdefault(f.name, f.switches(config)).switch(name)
        planned = f.read(f.text(switch))
        wiring.append(switch)
        if path:
            reports[report.system] += 1
            findings += comparison.findings(switch, planned, report)
            readings[name] = comparison.completed(planned, report)
        else:
            findings.append(no_report(switch))
            readings[name] = planned
    walked = _walked(config, wiring, readings, evs, seed)
    head = {"file": str(file), "directory": str(directory), "reports": dict(sorted(reports.items()))}
    found = {"findings": [asdict(finding) for finding in findings]}
    return head | walked | found | {"correct": walked["correct"] and not findings}


def _followable(file: Path) -> Config:
    """Returns a cluster file whose EVs can be followed. Raises UsageError, ConfigError."""
    config = load(file)
    if config.cluster.encapsulation == "srh":
        raise UsageError("paths with a routing header are not followed", hint="check a fabric with uSIDs")
    return config


def _reports(directory: Path) -> dict[str, Path]:
    """Returns the files of a directory by what they are called before the first dot. Raises UsageError, OSError."""
    found: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        name = path.name.partition(".")[0]
        if not name or path.is_dir():
            continue
        if name in found:
            raise UsageError(f"{found[name]} and {path} are of one switch", hint="keep one report of each switch")
        found[name] = path
    if not found:
        raise UsageError(f"{directory} has no files", hint="put one report of each switch there, as t0-0-0.json")
    return found


def _read_report(path: Path) -> running.Report:
    try:
        return running.read(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text", hint="save the command's output without compression") from None
    except UsageError as e:
        raise UsageError(f"{path} {e.args[0]}", hint=e.hint) from None


def _walked(config: Config, wiring: Sequence[Switch], readings: Mapping[str, Reading], evs: int, seed: int) -> Document:
    """Follows EVs through readings, and returns what was found."""
    network = Network(config, wiring, readings)
    follow_random_evs(network, len(config.hosts), [s.name for s in wiring], evs, random.Random(seed))
    result = network.result
    return {
        "switches": len(wiring),
        "followed": result.followed,
        "correct": not result.mistakes,
        "mistakes": [
            {"mistake": kind, "count": count, "example": result.examples[kind]}
            for kind, count in result.mistakes.most_common()
        ],
    }


def follow_random_evs(network: Network, hosts: int, switches: Sequence[str], evs: int, choose: random.Random) -> None:
    """Follows at least `evs` EVs between random hosts, and addresses from random switches."""
    count = 0
    while network.uses_usids and hosts > 1 and count < evs:
        source = choose.randrange(hosts)
        peers = [n for n in choose.sample(range(hosts), min(hosts, _PEERS_AT_ONCE)) if n != source]
        count += network.follow_evs(source, peers) if peers else 0
    for _ in range(evs // _ADDRESSES_SHARE if network.uses_usids else evs):
        network.follow_address(choose.choice(switches), choose.randrange(hosts), choose)
