# SPDX-License-Identifier: BSD-2-Clause
"""Collects the files of `mrcctl bugreport`. A file that cannot be collected is listed with its error."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mrcd.ctl.base import Options
from mrcd.ctl.bug_report.archive import MOST_BYTES, Report
from mrcd.ctl.client import DaemonDown
from mrcd.ctl.offline import open_view
from mrcd.errors import MrcdError

_SYSCTLS = (
    *(
        "net.ipv4.ip_forward",
        "net.ipv4.conf.all.rp_filter",
        "net.ipv4.tcp_congestion_control",
        "net.ipv4.tcp_reordering",
        "net.core.rps_default_mask",
    ),
    *("net.ipv4.tcp_max_reordering", "net.ipv4.tcp_recovery", "net.ipv4.tcp_mtu_probing", "net.ipv4.tcp_rmem"),
    *("net.ipv4.tcp_wmem", "net.ipv6.conf.all.forwarding", "net.ipv6.conf.all.seg6_enabled", "net.core.rmem_max"),
    *("net.core.wmem_max", "net.core.netdev_max_backlog", "net.core.netdev_budget", "net.core.bpf_jit_enable"),
    *("net.core.default_qdisc", "kernel.bpf_stats_enabled", "kernel.unprivileged_bpf_disabled"),
)
_PER_INTERFACE = (
    "ipv4/conf/{}/rp_filter",
    "ipv6/conf/{}/seg6_enabled",
    "ipv6/conf/{}/disable_ipv6",
    "ipv6/conf/{}/mtu",
)
COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kernel/uname.txt", ("uname", "-a")),
    ("network/addresses.txt", ("ip", "-details", "-statistics", "address")),
    ("network/routes-ipv4.txt", ("ip", "-details", "-4", "route", "show", "table", "all")),
    ("network/routes-ipv6.txt", ("ip", "-details", "-6", "route", "show", "table", "all")),
    ("network/rules.txt", ("ip", "-6", "rule")),
    ("network/neighbours.txt", ("ip", "-statistics", "neighbour")),
    ("network/qdiscs.txt", ("tc", "-statistics", "qdisc")),
    ("network/sockets.txt", ("ss", "--summary")),
    ("network/counters.txt", ("nstat", "--zeros", "--ignore", "--noupdate")),
    ("bpf/net.txt", ("bpftool", "net")),
    ("bpf/programs.json", ("bpftool", "--json", "--pretty", "prog", "show")),
    ("bpf/maps.json", ("bpftool", "--json", "--pretty", "map", "show")),
    ("bpf/links.json", ("bpftool", "--json", "--pretty", "link", "show")),
    ("bpf/features.txt", ("bpftool", "feature", "probe", "kernel")),
    ("daemon/unit.txt", ("systemctl", "status", "--no-pager", "--full", "mrcd")),
    (
        "daemon/journal.txt",
        ("journalctl", "--no-pager", "--unit", "mrcd", "--lines", "5000", "--output", "short-iso-precise"),
    ),
)
_FILES = ("version", "cmdline", "net/softnet_stat", "interrupts", "meminfo", "net/snmp6")
_LOGS = ("mrcd.log",)


def gather(options: Options, report: Report, config: Path | None) -> None:
    """Collect all files into the report, the most informative first."""
    interfaces = _documents(options, report)
    for path in [config] if config else _configurations():
        _file(report, f"config/{path.name}", path)
    _file(report, "config/running.json", options.run_dir / "running.json", as_json=True)
    for name in _LOGS:
        if (options.run_dir / name).exists():
            _file(report, f"daemon/{name}", options.run_dir / name)
    for name, argv in (*COMMANDS, *ethtool_commands(interfaces)):
        _command(report, name, argv, options.timeout)
    for name in _FILES:
        _file(report, f"kernel/{name.replace('/', '-')}.txt", Path("/proc", name))
    report.add("kernel/sysctls.txt", _sysctls(interfaces), how="/proc/sys")


def _configurations() -> list[Path]:
    """Return the cluster file that mrcd reads."""
    return [Path(os.environ.get("MRCD_CONFIG") or "/etc/mrcd/mrcd.toml")]


def _documents(options: Options, report: Report) -> list[str]:
    """Add the documents of mrcd, or of the pinned tables. Returns the names of the plane NICs."""
    client, view = options.client, None
    wanted: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("status", "/v1/status", lambda v: v.status()),
        ("peers", "/v1/peers", lambda v: v.peers()),
        ("paths", "/v1/paths?decode=1", lambda v: v.paths(decode=True)),
        ("events", "/v1/events?after=0", lambda v: v.unread_events()),
        ("histograms", "/v1/histograms", lambda v: v.histograms()),
        ("links", "/v1/links", lambda v: v.links()),
        ("keys", "/v1/keys", lambda v: v.keys()),
        ("fleet", "/v1/fleet", lambda v: None),
        ("version", "/v1/version", lambda v: None),
    ]
    interfaces: list[str] = []
    for name, path, from_tables in wanted:
        how = f"GET {path}"
        try:
            try:
                document = client.get(path)
            except DaemonDown as down:
                view = view or open_view(options.run_dir, down)
                document, how = from_tables(view), f"the pinned tables, because {down.brief}"
            if document is None:
                report.miss(f"mrcd/{name}.json", how, "only a running mrcd has it")
                continue
            report.add_document(f"mrcd/{name}.json", document, how=how)
            if name == "status":
                interfaces = [str(p["interface"]) for p in document["planes"]]
        except MrcdError as e:
            report.miss(f"mrcd/{name}.json", how, str(e.args[0]))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            report.miss(f"mrcd/{name}.json", how, f"this mrcctl does not understand the document: {e!r}")
    return interfaces


def ethtool_commands(interfaces: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the files of the archive that describe these NICs, and the commands that print them."""
    kinds = (("driver", "-i"), ("offloads", "-k"), ("statistics", "-S"), ("channels", "-l"), ("rings", "-g"))
    return [(f"network/{nic}-{name}.txt", ("ethtool", flag, nic)) for nic in interfaces for name, flag in kinds]


def _command(report: Report, name: str, argv: Sequence[str], timeout: float) -> None:
    how = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        report.miss(name, how, f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        report.miss(name, how, f"not finished within {timeout:g} s")
    except OSError as e:
        report.miss(name, how, e.strerror or str(e))
    else:
        error = f"exit status {done.returncode}" if done.returncode else None
        report.add(name, done.stdout + done.stderr, how=how, error=error)


def _file(report: Report, name: str, path: Path, *, as_json: bool = False) -> None:
    try:
        with path.open("rb") as file:
            if path.is_file() and path.stat().st_size > MOST_BYTES:
                file.seek(-MOST_BYTES, os.SEEK_END)
            text = file.read().decode(errors="replace")
    except OSError as e:
        report.miss(name, str(path), e.strerror or str(e))
        return
    if as_json:
        try:
            report.add_document(name, json.loads(text), how=str(path))
        except ValueError as e:
            report.miss(name, str(path), f"not JSON: {e}")
    else:
        report.add(name, text, how=str(path))


def _sysctls(interfaces: Sequence[str]) -> str:
    names = [s.replace(".", "/") for s in _SYSCTLS]
    names += [f"net/{p.format(nic)}" for nic in ("all", "default", *interfaces, "mrc0") for p in _PER_INTERFACE]
    lines = []
    for name in dict.fromkeys(names):
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError as e:
            value = f"({e.strerror})"
        lines.append(f"{name.replace('/', '.')} = {value}")
    return "\n".join(lines) + "\n"
