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
from numpy.typing import NDArray

from mrcd import __version__, lock_file
from mrcd.errors import MachineError
from mrcd.fabric.topology import EV, Plan
from mrcd.health import events
from mrcd.health.diagnosis.memory import Memory
from mrcd.health.diagnosis.read_facts import read_facts
from mrcd.health.diagnosis.rules import diagnose
from mrcd.health.links.watch import LinkWatch
from mrcd.health.probe_pace import unreachable_ns
from mrcd.kernel import attachments, features, histograms
from mrcd.kernel.abi import EVENT_IDLE_TIMEOUT, STATUS_DETACHED
from mrcd.kernel.columns import ev_bits
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.pinned import Tables, is_detached
from mrcd.net import other_programs, rps
from mrcd.net.drivers import Segmentation
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION, WIRE_VERSION
from mrcd.view import keys, links, path_map, paths, peers, probe_budget, running_file

Document = dict[str, Any]


class View:
    """Makes the documents of one host."""

    def __init__(self, tables: Tables, plan_: Plan, hooks: list[Document], pins: Path) -> None:
        self._tables = tables
        self._plan = plan_
        self._pins = pins
        self._kernel_lacks = features.lacking(features.kernel_has(), has_rps=rps.has_default_mask())
        self._unreachable_ns = unreachable_ns(plan_)
        self.hooks = hooks  # per plane: {"plane", "hook", "hook_reason"}; and {"push": …}
        self.daemon_pid: int | None = None  # of an mrcd that runs, but does not answer; 0 if it is unknown
        self.memory: Memory | None = None  # the daemon's, for the diagnosis
        self.link_watch: LinkWatch | None = None  # the daemon's
        self.cuts: Mapping[int, Segmentation] = {}  # plane → where its bursts are segmented, as far as known

    def status(self) -> Document:
        """Return the status of this host: links, peers, EVs by state, drops."""
        c = self._plan.config.cluster
        rows = np.array([p.host.id for p in self._plan.peers], np.int64)
        records = self._tables.peers[rows]
        reachable = self.reachable(records["heard_ns"])
        gone = (records["heard_ns"] > 0) & (records["status"] & STATUS_DETACHED != 0)
        states = self._states(rows)
        node = self._tables.node
        push: Document = next((h for h in self.hooks if "plane" not in h), {})
        planes, lost = self._planes(rows), pins_lost(self._pins)
        bpf_links = [] if lost else attachments.links(self._pins)
        detached = is_detached(node)
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self._plan.host.name,
            "host_id": self._plan.host.id,
            "cluster": c.name,
            "diagnosis": self.diagnosis(),
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
                "total": len(rows),
                "reachable": int(reachable.sum()),
                "unreachable": int((~reachable & ~gone).sum()),
                "detached": int(gone.sum()),
            },
            "evs": {s.name: int(states[s]) for s in EvState},
            "usable_evs": int(np.unpackbits(np.ascontiguousarray(records["usable"]).view(np.uint8)).sum()),
            "drops": {k: v for k, v in self._tables.drops().items() if v},
            "receive": self.receive(),
            "probing": probe_budget.document(
                node,
                self._tables.clock,
                self._tables.probes_sent(),
                self._plan.config.health.idle_probes,
                time.monotonic_ns(),
            )
            | {"tick_age_s": self.tick_age_s()},
            "tables": {name: {"used": used, "size": size} for name, (used, size) in self._tables.fill().items()},
            "last_transition": self._last_transition(),
            "last_event": None,
        }

    def diagnosis(self) -> list[Document]:
        """Return a document per cause of what is wrong now, the most urgent first."""
        facts = read_facts(self._tables, self._plan, memory=self.memory)
        return [c.document(time.monotonic_ns()) for c in diagnose(facts)]

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
        """Return the programs of others at mrcd's hooks. Only root can read their names."""
        overlay, hooks = self._plan.config.overlay, list[other_programs.Hook]()
        for plane in self._tables.planes[: len(self._plan.interfaces)]:
            if plane["ifindex"]:
                hooks += [(int(plane["ifindex"]), "xdp"), (int(plane["ifindex"]), "ingress")]
        own = [(overlay.peer, "ingress"), (overlay.peer, "egress"), (overlay.timer, "ingress")]
        if self._plan.config.cluster.granularity == "burst":
            own.append((overlay.interface, "egress"))
        for name, point in own:
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

    def reachable(self, heard_ns: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which peers have answered lately."""
        return np.asarray((heard_ns > 0) & (time.monotonic_ns() - heard_ns.astype(np.int64) < self._unreachable_ns))

    def _states(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of configured EVs in each state, (states,)."""
        configured = self._tables.evs["configured"][rows] != 0
        return np.bincount(self._tables.evs["state"][rows][configured], minlength=len(EvState))

    def _ev(self, row: int, number: int) -> EV | None:
        """Return the EV of this row and number, if the plan has it."""
        evs = (e for p in self._plan.peers if p.host.id == row for e in p.some_evs([number]))
        return next(evs, None)

    def evs_by_plane(self, rows: NDArray[np.int64]) -> list[Document]:
        """Return the number of usable EVs and of all EVs of each plane."""
        planes = len(self._plan.interfaces)
        used = slice(0, planes * self._plan.config.cluster.evs_per_plane)
        usable = ev_bits(self._tables.peers["usable"][rows])[:, used]
        configured = self._tables.evs["configured"][rows][:, used] != 0
        counts = ((usable & configured).sum(axis=0), configured.sum(axis=0))
        by_plane = (c.reshape(planes, -1).sum(axis=1).tolist() for c in counts)
        return [{"usable_evs": n, "evs": every} for n, every in zip(*by_plane, strict=True)]

    def _planes(self, peers: NDArray[np.int64]) -> list[Document]:
        """Return a document per plane; `peers` are the rows of all peers."""
        rows, evs = [], self.evs_by_plane(peers)
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
        return peers.documents(self._tables, self._plan, self.reachable, most)

    def links(self) -> list[Document]:
        """Return a document per link that this host watches."""
        watch = self.link_watch if not is_detached(self._tables.node) else None
        return links.documents(self._tables, self._plan, watch.verdicts if watch else None)

    def path_map(self) -> Document:
        """Return the number of EVs in each state, by plane and T1."""
        return path_map.document(self._tables, self._plan)

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
        names = {p.host.id: p.host.name for p in self._plan.peers}
        reachable = self.reachable(self._tables.peers["heard_ns"][np.array(list(names), np.int64)])
        return keys.document(self._tables.auths, self._tables.peers, names, reachable, self._plan.config.auth.mode)

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
