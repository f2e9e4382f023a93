# SPDX-License-Identifier: BSD-2-Clause
"""Measures `mrcctl fleet check` with a real Prometheus that has thousands of hosts. It needs no lab.

One server gives out what all hosts would tell, so that Prometheus has the series of each host under its own instance.
"""

import contextlib
import json
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from labkit.bench.command import Run, mrcctl
from labkit.bench.part import Options, Part, requirement
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.entry import progress
from labkit.monitoring.prometheus import PROGRAM
from labkit.monitoring.server import Server, free_address
from mrcd.ctl.terminal.render import Column, table

HOSTS, PLANES, HOSTS_PER_T0 = 4096, 8, 32
JOBS = (512, HOSTS)  # hosts that are checked
RUNS = 5
MOST_S = 10.0  # as long as the Slurm prolog of scripts/deploy waits for one answer
_EVERY_S, _SEEN_S = 5, 60.0
_CONFIGURATION = """
global: {{scrape_interval: {every}s, scrape_timeout: {every}s}}
scrape_configs:
  - job_name: mrcd
    honor_labels: true
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass(frozen=True)
class Case:
    """A state of the fleet: the values of hosts that differ from those of a healthy one, and the right answer."""

    name: str
    verdict: str
    differs: Callable[[int], Mapping[str, float]] = field(default=lambda host: {})  # series → value


CASES = (
    Case("nothing is wrong", "ready"),
    Case("a T1 is dead, all see it", "degraded", lambda _: {'mrc_fault{cause="t1",target="t1:1:2"}': 1}),
    Case("every eighth host is detached", "not_ready", lambda host: {} if host % 8 else {"mrc_attached": 0}),
)


def series(host: int, differs: Mapping[str, float]) -> dict[str, float]:
    """Returns what a host tells, as far as the check reads it: series → value. Pure."""
    config = f't0="{host // HOSTS_PER_T0}",agreed="0001",sha256="{0:064x}",generation="7",key_ids="1"'
    healthy: dict[str, float] = {
        f'mrc_build_info{{host="{name(host)}",version="1",encapsulation="usid",granularity="burst"}}': 1,
        f"mrc_config_info{{{config}}}": 1,
        'mrc_auth_mode_info{mode="required"}': 1,
        "mrc_attached": 1,
        "mrc_evs_in_use_ratio": 1,
        "mrc_full_sweep_age_seconds": 540,
        "mrc_full_sweep_seconds": 525,
        **{f'mrc_plane_up{{plane="{p}"}}': 1 for p in range(PLANES)},
    }
    return {**healthy, **differs}


def exposition(case: Case) -> bytes:
    """Returns what all hosts tell, each with its own `instance`, in the text format of Prometheus. Pure."""
    lines = []
    for host in range(HOSTS):
        instance = f'instance="{name(host)}:9479"'
        for metric, value in series(host, case.differs(host)).items():
            family, _, labels = metric.removesuffix("}").partition("{")
            lines.append(f"{family}{{{labels}{',' if labels else ''}{instance}}} {value:g}\n")
    return "".join(lines).encode()


def name(host: int) -> str:
    """Returns the name of a host."""
    return f"gpu{host + 1}"


class _Endpoint(ThreadingHTTPServer):
    """Gives out the text."""

    daemon_threads = True
    text = b""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Endpoint)
        text = self.server.text
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def _endpoint() -> Iterator[_Endpoint]:
    with _Endpoint(("127.0.0.1", 0), _Handler) as endpoint:
        threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield endpoint
        endpoint.shutdown()


@contextlib.contextmanager
def _prometheus(directory: Path, target: str) -> Iterator[str]:
    """Runs a server that scrapes the target, and yields its URL. Raises MachineError."""
    address, file = free_address(), directory / "prometheus.yml"
    file.write_text(_CONFIGURATION.format(every=_EVERY_S, target=target), encoding="utf-8")
    argv = [PROGRAM, f"--config.file={file}", "--log.level=warn", f"--storage.tsdb.path={directory}/data"]
    server = Server("Prometheus", [*argv, f"--web.listen-address={address}"], address, directory / "log")
    try:
        server.start()
        yield f"http://{address}"
    finally:
        server.end()


def measure(lab: Lab, options: Options) -> Document:
    """Returns what each case takes. The lab is not used."""
    rows = []
    with tempfile.TemporaryDirectory() as directory, _endpoint() as endpoint:
        target = f"127.0.0.1:{endpoint.server_address[1]}"
        with _prometheus(Path(directory), target) as url:
            for case in CASES:
                progress(f"fleet check: {HOSTS} hosts: {case.name}")
                endpoint.text = exposition(case)
                wait_for(f"Prometheus knows that {case.name}", partial(_is_known, url, case), _SEEN_S)
                rows += [_timed(url, case, hosts) for hosts in JOBS]
    return {"hosts": HOSTS, "rows": rows, "requirements": requirements(rows)}


def _ask(url: str, hosts: int) -> tuple[Run, Document]:
    words = ["--hosts", f"gpu[1-{hosts}]", "--prometheus", url, "--timeout", f"{MOST_S:g}", "--json"]
    run = mrcctl("fleet", "check", *words, statuses=(0, 2, 3))
    return run, json.loads(run.output or b"{}")


def _is_known(url: str, case: Case) -> bool:
    return bool(_ask(url, HOSTS)[1].get("verdict") == case.verdict)


def _timed(url: str, case: Case, hosts: int) -> Document:
    found = [_ask(url, hosts) for _ in range(RUNS)]
    right = all(document.get("verdict") == case.verdict for _, document in found)
    seconds = [run.seconds for run, _ in found]
    return {
        "case": case.name,
        "hosts": hosts,
        "right": right,
        "seconds": statistics.median(seconds),
        "most_s": max(seconds),
        "cpu_s": statistics.median(run.cpu_s for run, _ in found),
    }


def requirements(rows: list[Document]) -> list[Document]:
    """Returns the requirements. Pure."""
    most_s, wrong = max(row["most_s"] for row in rows), [row for row in rows if not row["right"]]
    return [
        requirement(f"each answer within {MOST_S:g} s", most_s <= MOST_S, f"{most_s:.1f} s"),
        requirement("each answer is right", not wrong, f"{len(rows) - len(wrong)} of {len(rows)}"),
    ]


def lines(document: Document) -> list[str]:
    """Returns a table. Pure."""
    columns = [Column("CASE"), *(Column(head, True) for head in ("HOSTS ASKED FOR", "s", "MOST s", "CPU s"))]
    rows = [
        [
            *(row["case"], str(row["hosts"]), f"{row['seconds']:.2f}", f"{row['most_s']:.2f}"),
            f"{row['cpu_s']:.2f}",
        ]
        for row in document["rows"]
    ]
    return [
        f"`mrcctl fleet check`: Prometheus has {document['hosts']} hosts. s: until the answer, median of {RUNS}; "
        "CPU of mrcctl.",
        *table(columns, rows, colour=False),
    ]


PART = Part("check", measure, lines)
