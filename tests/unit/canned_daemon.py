# SPDX-License-Identifier: BSD-2-Clause
"""Stands in for mrcd: a small HTTP server on a unix socket, and the fixed documents that it serves."""

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from mrcd.versions import ABI_VERSION

EVENT = {
    "id": 1, "time": "2030-01-02T03:04:05.678+00:00", "monotonic_ns": 1000, "kind": "ev", "peer": "h2", "ev": 5,
    "plane": 1, "t1": 1, "from": "GOOD", "to": "ASSUMED_BAD", "reason": "overdue",
    "evidence": {"silent_reports": 4, "silent_ms": 0.25},
}  # fmt: skip
PATH = {
    "peer": "h2", "ev": 5, "plane": 1, "slot": 1, "t1": 1, "carrier": "5f00:0:4800:8801:4801:c800::",
    "segments": ["5f00:0:4800:8801:4801:c800::"], "state": "GOOD", "reason": "", "since_s": 90.5, "usable": True,
    "tx_packets": 1234567, "tx_bytes": 1851850500, "rx_packets": 1234500, "lost_packets": 67,
    "loss_ratio": 0.0000543, "rtt_ns": 31200, "ce_packets": 0, "skips": 3, "weight": 1.0, "flaps": 0,
    "next_probe_s": None, "hold_down_s": None, "last_tx_s": 0.1,
}  # fmt: skip
BAD_PATH = {
    **PATH, "ev": 6, "t1": None, "state": "ASSUMED_BAD", "reason": "loss", "usable": False, "rtt_ns": 0, "flaps": 2,
    "next_probe_s": 0.25, "hold_down_s": 1.5,
}  # fmt: skip
HISTOGRAM = {
    "histogram": "detection", "plane": None, "unit": "ns", "count": 2, "p50": 458751, "p99": 458751, "max": 458751,
    "buckets": [{"from": 393216, "to": 458751, "count": 2}],
}  # fmt: skip
LINK = {
    "link": "link:1:0:2", "plane": 1, "t0": 0, "t1": 2, "state": "ok", "since_s": 90.0, "direction": None,
    "has_carrier": True, "recent_probes": 100, "recent_lost_probes": 0, "recent_loss_ratio": 0.0,
    "probes": 1_234_567, "lost_probes": 67, "loss_ratio": 0.0000543, "last_rx_s": 0.05, "rtt_ns": 31_200,
    "carrier": "5f00:0:4800:8802:4800:c400::",
}  # fmt: skip
BAD_LINK = LINK | {
    "link": "nic:h0:0", "plane": 0, "t1": None, "state": "lossy", "direction": "down", "recent_lost_probes": 21,
    "recent_loss_ratio": 0.21, "carrier": "5f00:0:4000:c000::",
}  # fmt: skip
PEER = {
    "peer": "h2", "host_id": 2, "reachable": True, "status": "attached", "evs": 16, "usable_evs": 15,
    "states": {"UNKNOWN": 0, "GOOD": 15, "SKIP": 0, "ASSUMED_BAD": 1, "DENIED": 0}, "linked_planes": [0, 1, 2, 3],
    "tx_packets": 999, "tx_bytes": 99900, "rx_packets": 12345678, "lost_packets": 0, "loss_ratio": 0.0,
    "rtt_ns": 31200, "heard_s": 0.02, "prefixes": ["10.99.0.3/32", "fd00:99::3/128"],
}  # fmt: skip
STATUS = {
    "schema_version": 2, "abi_version": ABI_VERSION, "wire_version": 2, "host": "h0", "host_id": 0,
    "cluster": "lab", "daemon": {"running": True, "pid": 77, "version": "0.1.0", "uptime_s": 4000.0},
    "encapsulation": "usid", "granularity": "burst", "attached": True, "inner_mtu": 9020,
    "planes": [
        {
            "plane": 0, "interface": "p0", "ifindex": 3, "hook": "tcx",
            "hook_reason": "veth is a virtual interface: tc keeps its bursts whole, XDP would segment them",
            "up": True, "usable_evs": 18, "evs": 18, "gateway_mac": "02:00:00:00:00:01", "address": "fd10::1",
            "sid": "5f00:0:c000::",
        },
        {
            "plane": 1, "interface": "p1", "ifindex": 4, "hook": "tcx", "up": False, "usable_evs": 17, "evs": 18,
            "fallback": True, "unsent_packets": 1234,
            "hook_reason": "native XDP refused: Operation not supported (EOPNOTSUPP)",
        },
    ],
    "peers": {"total": 3, "reachable": 3, "unreachable": 0, "detached": 0},
    "evs": {"UNKNOWN": 0, "GOOD": 35, "SKIP": 0, "ASSUMED_BAD": 1, "DENIED": 0}, "usable_evs": 35,
    "drops": {"too_big": 3}, "last_event": EVENT,
    "critical": {"sent_twice": 1200, "sent_once": 3, "delivered": 1107, "unchecked": 0, "eliminated": 1100},
    "probing": {
        "tick_by": "daemon", "ticks_by_daemon": 201_000, "ticks_by_packet": 0, "budget_probes_per_s": 4000,
        "budget_left_probes": 1999, "sent_probes": {"traffic": 1200, "suspicion": 30, "retry": 4, "idle": 51_000},
    },
    "push": {"hook": "tc egress mrc0", "reason": None, "how": "tcx"},
    "forwarding_without_daemon": {"works": True, "how": "mrc_push at mrc0 and mrc_pop at 2 planes are pinned"},
    "tables": {"peers": {"used": 3, "size": 64}, "events": {"used": 0, "size": 262144}},
    "last_transition": {
        "peer": "h2", "ev": 5, "plane": 1, "t1": 1, "state": "ASSUMED_BAD", "reason": "overdue", "since_s": 12.0,
    },
}  # fmt: skip
KEYS = {
    "mode": "required", "accepted": [1, 2], "newest": 2,
    "peers": [
        {
            "peer": "h2", "reachable": True, "sent_with": 2, "accepted_by_peer": [1, 2],
            "accepted_from_peer": [1, 2], "untagged_packets": 0, "clock_known": True,
        },
    ],
}  # fmt: skip
VERSION = {"version": "0.1.0", "abi_version": ABI_VERSION, "wire_version": 2, "schema_version": 2}


class Daemon(ThreadingMixIn, UnixStreamServer):
    """Serves `answers` by path, and keeps `requests`; /v1/events is a real long poll over `events`."""

    daemon_threads = True

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/version": (200, VERSION),
            "/v1/status": (200, STATUS),
            "/v1/peers": (200, [PEER]),
            "/v1/paths": (200, [PATH, BAD_PATH]),
            "/v1/links": (200, [LINK]),
            "/v1/keys": (200, KEYS),
        }
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.news = threading.Condition()
        self.stopping = False
        super().__init__(str(run_dir / "mrcd.sock"), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def add(self, *events: dict[str, Any]) -> None:
        with self.news:
            self.events += events
            self.news.notify_all()

    def stop(self) -> None:
        """Ends like kill -9: the socket file stays, connections break."""
        self.shutdown()
        self.server_close()
        with self.news:
            self.stopping = True
            self.news.notify_all()

    def poll(self, after: int, wait: float) -> dict[str, Any] | None:
        with self.news:
            self.news.wait_for(lambda: self.stopping or any(e["id"] > after for e in self.events), wait)
            if self.stopping:
                return None
            fresh = [e for e in self.events if e["id"] > after]
            return {"events": fresh, "last_id": self.events[-1]["id"] if self.events else 0}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(dict(parse_qsl(urlsplit(self.path).query)))

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, given: dict[str, Any]) -> None:
        daemon = cast(Daemon, self.server)
        path = urlsplit(self.path).path
        daemon.requests.append((self.command, path, given))
        code, document = daemon.answers.get(path, (200, None))
        if path == "/v1/events" and document is None:
            document = daemon.poll(int(given["after"]), float(given["wait"]))
            if document is None:
                return  # killed: no answer
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
