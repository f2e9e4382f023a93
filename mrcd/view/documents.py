# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of the API, of mrcctl and of the metrics.

They need only the mapped tables and the plan, so that mrcctl can make them without the daemon.
"""

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mrcd import __version__, lock_file
from mrcd.errors import MachineError
from mrcd.fabric.topology import EV, Plan
from mrcd.health import events
from mrcd.health.diagnosis.facts import Facts
from mrcd.health.diagnosis.memory import Memory
from mrcd.health.diagnosis.rules import diagnose
from mrcd.health.links.watch import LinkWatch
from mrcd.health.snapshot import Snapshot
from mrcd.kernel import attachments, features, histograms
from mrcd.kernel.abi import EVENT_IDLE_TIMEOUT
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables, is_detached
from mrcd.net import other_programs, rps
from mrcd.net.drivers import Segmentation
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION
from mrcd.view import links, paths, peers, running_file

_SILENT_NS = 50_000_000  # DAEMON_SILENT_NS of bpf/tick.h
_LATE_NS = 100_000_000  # the timer packet comes each millisecond, and a busy CPU may hold it up

Document = dict[str, Any]


class View:
    """Makes the documents of one host."""

    def __init__(self, tables: Tables, plan_: Plan, hooks: list[Document], pins: Path) -> None:
        self._tables = tables
        self._plan = plan_
        self._pins = pins
        has, refused = features.kernel_has(), features.refused_programs()
        self._kernel_lacks = features.lacking(has, refused, has_rps=rps.has_default_mask())
        self.hooks = hooks  # per plane: {"plane", "hook", "hook_reason"}; and {"push": …}
        self.daemon_pid: int | None = None  # of an mrcd that runs, but does not answer; 0 if it is unknown
        self.memory: Memory | None = None  # the daemon's, for the diagnosis
        self.link_watch: LinkWatch | None = None  # the daemon's
        self.cuts: Mapping[int, Segmentation] = {}  # plane → where its bursts are segmented, as far as known

    def status(self) -> Document:
        """Return the status of this host: links, peers, EVs by state, drops."""
        c, s = self._plan.config.cluster, Facts(self._tables, self._plan, self.memory)
        node = self._tables.node
        push: Document = next((h for h in self.hooks if "plane" not in h), {})
        planes, lost = self._planes(peers.by_plane(s)), pins_lost(self._pins)
        bpf_links = [] if lost else attachments.links(self._pins)
        detached = is_detached(node)
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self._plan.host.name,
            "host_id": self._plan.host.id,
            "cluster": c.name,
            "diagnosis": [cause.document(time.monotonic_ns()) for cause in diagnose(s)],
            "abi_version": ABI_VERSION,
            "wire_version": WIRE_VERSION,
            "daemon": {
                "running": self.daemon_pid is not None,
                "pid": self.daemon_pid or None,
                "version": __version__,
                "uptime_s": None,
            },
            "encapsulation": c.encapsulation,
            "granularity": c.granularity,
            "attached": not detached,
            "forwarding_without_daemon": {"works": False, "how": lost}
            if lost and not detached
            else attachments.without_daemon(
                bpf_links, {p["plane"]: p["ifindex"] for p in planes}, detached=detached, encapsulation=c.encapsulation
            ),
            "pins": {"directory": str(self._pins), "lost": lost},
            "other_programs": [] if lost else self._other_programs({link["program_id"] for link in bpf_links}),
            "links": bpf_links,
            "kernel_lacks": self._kernel_lacks,
            "inner_mtu": self._plan.inner_mtu,
            "mtu": c.mtu,
            "udp_port": c.udp_port,
            "planes": planes,
            "push": push,
            "peers": {
                "total": len(s.rows),
                "reachable": int(s.is_reachable.sum()),
                "unreachable": int((~s.is_reachable & ~s.is_detached).sum()),
                "detached": int(s.is_detached.sum()),
            },
            "evs": dict(zip(EvState.__members__, s.states.sum(axis=0).tolist(), strict=True)),
            "usable_evs": int(s.usable.sum()),
            "drops": {k: v for k, v in self._tables.drops().items() if v},
            "receive": self.receive(),
            "probing": self.probing(),
            "critical": s.critical,
            "tables": {name: {"used": used, "size": size} for name, (used, size) in self._tables.fill().items()},
            "last_transition": self._last_transition(),
            "last_event": None,
        }

    def snapshot(self) -> Snapshot:
        """Return what the tables tell of the peers and their EVs now."""
        return Snapshot(self._tables, self._plan)

    def probing(self) -> Document:
        """Return what runs the tick (daemon or timer packet), the probe budget, and the probe requests sent by kind."""
        now, node, clock, by = time.monotonic_ns(), self._tables.node, self._tables.clock, None
        if now - int(node["ticked_ns"]) < _SILENT_NS:
            by = "daemon"
        elif now - int(clock["packet_due_ns"]) < _LATE_NS:
            by = "timer packet"
        return {
            "tick_by": by,
            "ticks_by_daemon": int(clock["by_daemon"]),
            "ticks_by_packet": int(clock["by_packet"]),
            "budget_probes_per_s": self._plan.config.health.idle_probes,
            "budget_left_probes": int(clock["budget"]),
            "sent_probes": self._tables.probes_sent(),
            "tick_age_s": self.tick_age_s(),
        }

    def tick_age_s(self) -> float | None:
        """Return the seconds since the last tick, which probes EVs and so refreshes their states; None before it."""
        began_ns = int(self._tables.clock["began_ns"])
        return (time.monotonic_ns() - began_ns) / 1e9 if began_ns else None

    def receive(self) -> Document:
        """Return how this host processes popped packets: interface, RPS, GRO."""
        node, interface = self._tables.node, self._plan.config.overlay.interface
        received = int(node["overlay_ifindex"]) > 0
        return {
            "interface": interface if received else None,
            "rps_cpus": rps.format_cpus(rps.cpus_of(interface) or ()) or None,
            "gro": received and int(node["merge_ifindex"]) > 0,
        }

    def _other_programs(self, ours: set[int]) -> list[Document]:
        """Return the programs of others where mrcd's packets pass. Only root can read their names."""
        overlay, hooks = self._plan.config.overlay, list[other_programs.Hook]()
        for plane in self._tables.planes[: len(self._plan.interfaces)]:
            if plane["ifindex"]:
                hooks += [(int(plane["ifindex"]), point) for point in ("xdp", "ingress", "egress")]
        ends = [(end, point) for end in (overlay.interface, overlay.peer) for point in ("ingress", "egress")]
        for name, point in (*ends, (overlay.timer, "ingress")):
            with contextlib.suppress(OSError):
                hooks.append((socket.if_nametoindex(name), point))
        found = other_programs.at(hooks, ours)
        for document in found:
            document["program"] = document["program"] or attachments.program_name(document["program_id"])
        return found

    def _last_transition(self) -> Document | None:
        """Return the EV with the newest change of state. GOOD to SKIP and back is no change."""
        since = np.where(self._tables.evs["configured"] != 0, self._tables.evs["state_since_ns"], 0)
        row, ev = (int(i) for i in np.unravel_index(int(since.argmax()), since.shape))
        e = self._ev(row, ev)
        if e is None or not since[row, ev]:
            return None
        record = self._tables.evs[row, ev]
        return {
            "peer": e.peer,
            "ev": e.ev,
            "plane": e.plane,
            "t1": e.t1,
            "state": EvState(int(record["state"])).name,
            "reason": Reason(int(record["reason"])).text,
            "since_s": (time.monotonic_ns() - int(since[row, ev])) / 1e9,
        }

    def _ev(self, row: int, number: int) -> EV | None:
        """Return the EV of this row and number, if the plan has it."""
        evs = (e for p in self._plan.peers if p.host.id == row for e in p.some_evs([number]))
        return next(evs, None)

    def _planes(self, evs: list[Document]) -> list[Document]:
        """Return a document per plane; `evs` are the counts of its EVs."""
        rows = []
        plane_mask, unsent = int(self._tables.node["plane_mask"]), self._tables.unsent_packets()
        hooks = {h["plane"]: h for h in self.hooks if "plane" in h}
        for i, interface in enumerate(self._plan.interfaces):
            row = self._tables.planes[i]
            mac = bytes(row["dmac"])
            hook = hooks.get(i, {})
            rows.append(
                {
                    "plane": i,
                    "interface": interface,
                    "ifindex": int(row["ifindex"]),
                    "hook": hook.get("hook"),
                    "hook_reason": hook.get("hook_reason"),
                    "fallback": bool(hook.get("fallback")),
                    "bursts": self.cuts[i].where if i in self.cuts else None,
                    "bursts_reason": self.cuts[i].reason if i in self.cuts else None,
                    "up": bool(plane_mask & (1 << i)),
                    **evs[i],
                    "unsent_packets": unsent[i],
                    "gateway_mac": mac.hex(":") if any(mac) else None,
                    "address": str(self._plan.addresses[i]),
                    "sid": str(self._plan.sids[i]),
                }
            )
        return rows

    def peers(self, most: int | None = None) -> list[Document]:
        """Return a document per peer; with `most`, only of so many, the worst first."""
        return peers.documents(self.snapshot(), most)

    def links(self) -> list[Document]:
        """Return a document per link that this host watches."""
        watch = self.link_watch if not is_detached(self._tables.node) else None
        return links.documents(self.snapshot(), watch.verdicts if watch else None)

    def path_map(self) -> Document:
        """Return the number of EVs in each state, by plane and T1."""
        return peers.path_map(self.snapshot())

    def paths(
        self, peer: str | None = None, plane: int | None = None, state: str | None = None, decode: bool = False
    ) -> list[Document]:
        """Return a document per EV, filtered; with the hops of its carrier if `decode`.

        Raises UsageError if there is no such peer or plane, or there are more than MOST_PATHS.
        """
        return paths.documents(self._tables, self._plan, peer, plane, state, decode)

    def unread_events(self) -> list[Document]:
        """Return the programs' events since the daemon stopped, oldest first. They stay for the next daemon."""
        records = [(self._ev(int(r["host_id"]), int(r["ev"])), r) for r in self._tables.unread_events()]
        return [events.of_record(r, e) for e, r in records if e is not None and r["ev"] != EVENT_IDLE_TIMEOUT]

    def keys(self) -> Document:
        """Return the mode of authentication, and the secrets in use by peer."""
        return peers.keys(self.snapshot())

    def histograms(self) -> list[Document]:
        """Return a document per histogram of the programs."""
        return histograms.documents(self._tables.histograms(), len(self._plan.interfaces))


def pins_lost(pins: Path) -> str | None:
    """Return a message if the pins are gone; None if they exist, or cannot be read."""
    with contextlib.suppress(PermissionError):
        if not (pins / "links").exists():
            return f"nothing is pinned at {pins}"
    return None


def open_pinned(run_dir: Path) -> View:
    """Return a view of the pinned tables, without the daemon. Raises MrcdError if there are none."""
    path = run_dir / running_file.RUNNING_FILE
    try:
        document, _ = running_file.read_running(path)
        found, hooks, pins = running_file.plan_in(document), document["hooks"], Path(document["pins"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
        raise MachineError(
            f"no usable {path}: {why}",
            hint="mrcd has not run on this host yet, or another version has; start it with `systemctl start mrcd`",
        ) from None
    tables = Tables(pins, writable=False)
    if len(tables.peers) < found.config.max_peers or tables.evs.shape[1] != found.config.cluster.evs_per_peer:
        raise MachineError(
            f"{path} belongs to other tables than those pinned at {pins}",
            hint="mrcd did not get through its last start: its log says why",
        )
    view = View(tables, found, hooks, pins)
    view.daemon_pid = lock_file.holder(run_dir)
    return view
