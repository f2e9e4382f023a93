# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl bugreport`, which writes one archive with everything needed to find a fault, without secrets."""

import io
import json
import os
import re
import socket
import subprocess
import tarfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import mrcd
from mrcd.ctl.base import Options, command, emit
from mrcd.ctl.client import ANSWER_S, DaemonDown
from mrcd.ctl.commands.config import default_file
from mrcd.ctl.documents import read
from mrcd.ctl.terminal.render import Document, count
from mrcd.errors import MachineError, MrcdError
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION

MOST_BYTES = 4 << 20  # of one file; a longer one keeps its end, where logs have the newest lines
_SYSCTLS = """
net.ipv4.ip_forward net.ipv4.conf.all.rp_filter net.ipv4.tcp_congestion_control net.ipv4.tcp_reordering
net.core.rps_default_mask net.ipv4.tcp_max_reordering net.ipv4.tcp_recovery net.ipv4.tcp_mtu_probing net.ipv4.tcp_rmem
net.ipv4.tcp_wmem net.ipv6.conf.all.forwarding net.ipv6.conf.all.seg6_enabled net.core.rmem_max net.core.wmem_max
net.core.netdev_max_backlog net.core.netdev_budget net.core.bpf_jit_enable net.core.default_qdisc
kernel.bpf_stats_enabled kernel.unprivileged_bpf_disabled
"""
_PER_INTERFACE = (
    "ipv4.conf.{}.rp_filter",
    "ipv6.conf.{}.seg6_enabled",
    "ipv6.conf.{}.disable_ipv6",
    "ipv6.conf.{}.mtu",
)
_PROC_FILES = ("version", "cmdline", "net/softnet_stat", "interrupts", "meminfo", "net/snmp6")
COMMANDS = {
    "kernel/uname.txt": "uname -a",
    "network/addresses.txt": "ip -details -statistics address",
    "network/routes-ipv4.txt": "ip -details -4 route show table all",
    "network/routes-ipv6.txt": "ip -details -6 route show table all",
    "network/rules.txt": "ip -6 rule",
    "network/neighbours.txt": "ip -statistics neighbour",
    "network/qdiscs.txt": "tc -statistics qdisc",
    "network/sockets.txt": "ss --summary",
    "network/counters.txt": "nstat --zeros --ignore --noupdate",
    "bpf/net.txt": "bpftool net",
    "bpf/programs.json": "bpftool --json --pretty prog show",
    "bpf/maps.json": "bpftool --json --pretty map show",
    "bpf/links.json": "bpftool --json --pretty link show",
    "bpf/features.txt": "bpftool feature probe kernel",
    "daemon/unit.txt": "systemctl status --no-pager --full mrcd",
    "daemon/journal.txt": "journalctl --no-pager --unit mrcd --lines 5000 --output short-iso-precise",
}
PER_NIC = {"driver": "-i", "offloads": "-k", "statistics": "-S", "channels": "-l", "rings": "-g"}  # of ethtool

# ---- secrets ----

_REMOVED = "REMOVED"
# Matches whole words of a key (tls_key, api-token, PASSWORD), not parts of words (keyboard, monkey).
_WORDS = "keys?|passw(?:or)?d|passphrase|secrets?|tokens?|credentials?|psk|bearer|authorization"
_NAME = rf"(?:[A-Za-z0-9]+[_-])*(?:{_WORDS})(?:[_-][A-Za-z0-9]+)*"
# key = "value", key: value, key=value. The value ends with its quoted text, list or word.
_PAIR = re.compile(
    rf"""(?P<key>(?<![A-Za-z0-9_-])"?{_NAME}"?\s*[=:]\s*)
    (?P<value>\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\]]*\]|\{{[^}}]*\}}|(?:(?:Basic|Bearer)\s+)?[^\s,;}}]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HEX = re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])")  # as in a secrets file, and some hashes
_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_COUNT = re.compile(r"\d{1,9}")  # not secrets: the size of a map's keys, a number of keys


def _is_path(key: str, value: object) -> bool:
    """Return whether a pair says where a secret is: secret_file = "/etc/mrcd/secrets"."""
    return key.rstrip('"=: \t').endswith("_file") and isinstance(value, str) and value.lstrip("\"'").startswith("/")


def _of_pair(match: re.Match[str]) -> str:
    counted = "key" in match["key"].lower() and _COUNT.fullmatch(match["value"])
    return match[0] if counted or _is_path(match["key"], match["value"]) else f'{match["key"]}"{_REMOVED}"'


def from_text(text: str) -> tuple[str, int]:
    """Remove the values of secret keys, private keys and passwords in URLs from TOML, logs and command lines.

    Returns the text and the number of secrets removed. A secret under a key with another name is not found, unless it
    has the form of one in a secrets file.
    """
    before = text.count(_REMOVED)
    text = _PAIR.sub(_of_pair, _PEM.sub(_REMOVED, text))
    text = _URL.sub(_REMOVED, _HEX.sub(_REMOVED, text))
    return text, text.count(_REMOVED) - before


def from_document(document: Any) -> tuple[Any, int]:
    """Return a JSON document without the values of secret keys, and the number of values removed."""
    if isinstance(document, dict):
        found, removed = {}, 0
        for key, value in document.items():
            is_secret = re.fullmatch(_NAME, str(key), re.IGNORECASE) and not _is_path(str(key), value)
            if is_secret and value is not None and not isinstance(value, int):
                found[key], n = _REMOVED, 1
            else:
                found[key], n = from_document(value)
            removed += n
        return found, removed
    if isinstance(document, list):
        pairs = [from_document(x) for x in document]
        return [x for x, _ in pairs], sum(n for _, n in pairs)
    return from_text(document) if isinstance(document, str) else (document, 0)


# ---- the archive ----


class Report:
    """An archive under construction. Its manifest lists each file, and the error of each missing one."""

    def __init__(self, archive: tarfile.TarFile, root: str) -> None:
        self._archive, self._root = archive, root
        self.manifest: list[dict[str, Any]] = []

    def add(self, name: str, content: Any, *, how: str, error: str | None = None) -> None:
        """Add a text, or a JSON document, without secrets; of a long one its end."""
        clean, removed = from_text(content) if isinstance(content, str) else from_document(content)
        text = clean if isinstance(clean, str) else json.dumps(clean, indent=2, ensure_ascii=False) + "\n"
        data = text.encode(errors="replace")
        cut = max(0, len(data) - MOST_BYTES)
        entry = tarfile.TarInfo(f"{self._root}/{name}")
        entry.size, entry.mtime, entry.mode = len(data) - cut, int(time.time()), 0o600
        self._archive.addfile(entry, io.BytesIO(data[cut:]))
        found = {"secrets_removed": removed, "bytes_cut_at_the_beginning": cut}
        self.manifest.append({"file": name, "how": how, "error": error} | found)

    def miss(self, name: str, how: str, error: str) -> None:
        """List a file that could not be collected."""
        self.manifest.append({"file": None, "wanted": name, "how": how, "error": error, "secrets_removed": 0})

    @property
    def removed(self) -> int:
        """The number of secrets removed."""
        return sum(m["secrets_removed"] for m in self.manifest)

    def close(self) -> None:
        """Add the manifest as the last file."""
        head = {"schema_version": SCHEMA_VERSION, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        versions = {"mrcctl": mrcd.__version__, "abi_version": ABI_VERSION, "wire_version": WIRE_VERSION}
        found = {"uid": os.geteuid(), "secrets_removed": self.removed, "files": list(self.manifest)}
        self.add("manifest.json", head | versions | found, how="")
        self.manifest.pop()


def _gather(options: Options, report: Report, config: Path | None) -> None:
    """Collect all files into the report, the most informative first. What cannot be collected is listed."""
    interfaces = _documents(options, report)
    path = config or default_file()
    _file(report, f"config/{path.name}", path)
    _file(report, "config/running.json", options.run_dir / "running.json", as_json=True)
    if (options.run_dir / "mrcd.log").exists():
        _file(report, "daemon/mrcd.log", options.run_dir / "mrcd.log")
    of_nics = {f"network/{nic}-{n}.txt": f"ethtool {o} {nic}" for nic in interfaces for n, o in PER_NIC.items()}
    for name, argv in (COMMANDS | of_nics).items():
        _command(report, name, argv.split(), options.timeout or ANSWER_S)
    for name in _PROC_FILES:
        _file(report, f"kernel/{name.replace('/', '-')}.txt", Path("/proc", name))
    report.add("kernel/sysctls.txt", _sysctls(interfaces), how="/proc/sys")


def _documents(options: Options, report: Report) -> list[str]:
    """Add the documents of mrcd, or of the pinned tables. Returns the names of the plane NICs."""
    interfaces: list[str] = []
    queries: dict[str, dict[str, Any]] = {"paths": {"decode": 1}, "events": {"after": 0}}
    for name in ("status", "peers", "paths", "events", "histograms", "links", "keys", "fleet", "version"):
        query = queries.get(name, {})
        how = f"GET /v1/{name}" + "".join(f"?{key}={value}" for key, value in query.items())
        try:
            document = _document(options, name, query)
            report.add(f"mrcd/{name}.json", document, how=how)
            if name == "status":
                interfaces = [str(p["interface"]) for p in document["planes"]]
        except MrcdError as e:
            report.miss(f"mrcd/{name}.json", how, str(e.args[0]))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            report.miss(f"mrcd/{name}.json", how, f"this mrcctl does not understand the document: {e!r}")
    return interfaces


def _document(options: Options, name: str, query: dict[str, Any]) -> Any:
    """Return a document of mrcd; if it is down, the one that its tables have."""
    if name not in ("events", "fleet", "version"):
        return read(options, name, quiet=True, **query).document
    try:
        return options.client.get(f"/v1/{name}", **query)
    except DaemonDown:
        if name == "events" and options.view is not None:
            return options.view.unread_events()
        raise


def _command(report: Report, name: str, argv: Sequence[str], timeout: float) -> None:
    how = " ".join(argv)
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(argv, capture_output=True, errors="replace", timeout=timeout, stdin=nothing, check=False)
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
        report.add(name, json.loads(text) if as_json else text, how=str(path))
    except OSError as e:
        report.miss(name, str(path), e.strerror or str(e))
    except ValueError as e:
        report.miss(name, str(path), f"not JSON: {e}")


def _sysctls(interfaces: Sequence[str]) -> str:
    names = _SYSCTLS.replace(".", "/").split()
    names += [f"net/{p.format(nic)}" for nic in ("all", "default", *interfaces, "mrc0") for p in _PER_INTERFACE]
    lines = []
    for name in dict.fromkeys(names):
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError as e:
            value = f"({e.strerror})"
        lines.append(f"{name.replace('/', '.')} = {value}")
    return "\n".join(lines) + "\n"


# ---- the command ----


@command("Write an archive with everything needed to find a fault.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The archive; default mrcd-bugreport-HOST-TIME.tar.gz.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The cluster file; default mrcd's.")
def bugreport(options: Options, output: Path | None, config: Path | None) -> None:
    """Write status, paths, events, configuration, kernel, interfaces, sysctls, BPF and logs into one archive.

    Changes nothing and works while mrcd is down. Values of keys named key, password, secret, token and the like are
    removed; addresses, host names and MACs are not. manifest.json lists each file, its source, and every file that
    is missing. --timeout applies to each command that is run. Exit status 2 if the user may not read mrcd's data.
    """
    name = f"mrcd-bugreport-{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = output or Path(f"{name}.tar.gz")
    part = path.with_name(path.name + ".part")
    try:
        # For its owner only: a secret under another name is not removed.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                report = Report(archive, name)
                _gather(options, report, config)
                report.close()
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as e:
        raise MachineError(
            f"{e.filename or path}: {e.strerror}", hint="choose another file with --output FILE"
        ) from None
    missing = [f"{m['wanted']}: {m['error']}" for m in report.manifest if m["file"] is None]
    document = {
        "schema_version": SCHEMA_VERSION,
        "file": str(path),
        "bytes": path.stat().st_size,
        "files": sum(m["file"] is not None for m in report.manifest),
        "secrets_removed": report.removed,
        "missing": missing,
    }
    emit(options, document, _summary)
    refused = next((m for m in missing if m.startswith("mrcd/status.json") and "ermission denied" in m), None)
    if refused:
        raise MachineError(f"the archive lacks mrcd's own data: {refused}", hint="run `mrcctl bugreport` as root")


def _summary(document: Document) -> list[str]:
    lines = [
        f"{document['file']}: {document['files']} files, {count(document['bytes'])} bytes",
        f"  {document['secrets_removed']} secrets removed; host names, addresses and MACs remain",
    ]
    return lines + [f"  missing  {m}" for m in document["missing"]]
