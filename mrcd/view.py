"""What users see of the tables: the documents of the API, of mrcctl and of the metrics.

Made from the mapped tables and the plan alone, so that mrcctl can answer without the daemon.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from mrcd import __version__
from mrcd.abi import STATUS_DETACHED, EvState, Reason
from mrcd.config import Config
from mrcd.errors import MachineError
from mrcd.tables import Tables
from mrcd.topology import EV, Peer, Plan, plan

SCHEMA_VERSION = 1
RUNNING_FILE = "running.json"
UNREACHABLE_NS = 3_000_000_000

Document = dict[str, Any]


class View:
    """Documents over one host's tables. `extra` is merged into status(): what only a daemon knows."""

    def __init__(self, tables: Tables, plan_: Plan, hooks: list[Document]) -> None:
        self._tables = tables
        self._plan = plan_
        self.hooks = hooks  # per plane: {"plane", "hook", "hook_reason"}; and {"push": …}

    def status(self) -> Document:
        """This host: links, peers, EVs by state, drops."""
        c = self._plan.config.cluster
        peers = self.peers()
        states: Counter[str] = Counter()
        for p in peers:
            states.update(p["states"])
        node = self._tables.node
        push: Document = next((h for h in self.hooks if "plane" not in h), {})
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self._plan.host.name,
            "host_id": self._plan.host.id,
            "cluster": c.name,
            "daemon": {"running": False, "pid": None, "version": __version__, "uptime_s": None},
            "steering": c.steering,
            "granularity": c.granularity,
            "attached": not int(node["status"]) & STATUS_DETACHED,
            "inner_mtu": self._plan.inner_mtu,
            "planes": self._planes(),
            "push": push,
            "peers": {
                "total": len(peers),
                "reachable": sum(p["reachable"] for p in peers),
                "unreachable": sum(not p["reachable"] and p["status"] != "detached" for p in peers),
                "detached": sum(p["status"] == "detached" for p in peers),
            },
            "evs": {s.name: states.get(s.name, 0) for s in EvState},
            "usable_evs": sum(p["usable_evs"] for p in peers),
            "drops": {k: v for k, v in self._tables.drops().items() if v},
            "last_event": None,
        }

    def _planes(self) -> list[Document]:
        rows = []
        ports = int(self._tables.node["ports"])
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
                    "up": bool(ports & (1 << i)),
                    "gateway_mac": mac.hex(":") if any(mac) else None,
                    "address": str(self._plan.addresses[i]),
                    "sid": str(self._plan.sids[i]),
                }
            )
        return rows

    def usable(self, peer: Peer) -> dict[int, bool]:
        """Whether each EV of a peer carries traffic, by EV."""
        words = self._tables.peers[peer.host.id]["usable"]
        return {e.ev: bool(int(words[e.plane][e.slot // 64]) >> (e.slot % 64) & 1) for e in peer.evs}

    def peers(self) -> list[Document]:
        """A document per peer."""
        now = time.monotonic_ns()
        return [self._peer(p, now) for p in self._plan.peers]

    def _peer(self, peer: Peer, now: int) -> Document:
        row = self._tables.peers[peer.host.id]
        evs = self._tables.evs[peer.host.id]
        evs = evs[evs["configured"] != 0]
        heard = int(row["heard_ns"])
        sent, received = int(evs["settled_tx"].sum()), int(evs["settled_rx"].sum())
        lost = max(0, sent - received)
        rtts = evs["rtt_ns"][evs["replies"] > 0]
        detached = bool(int(row["status"]) & STATUS_DETACHED)
        ports = int(row["ports"])
        return {
            "peer": peer.host.name,
            "host_id": peer.host.id,
            "reachable": bool(heard) and now - heard < UNREACHABLE_NS,
            "status": "unknown" if not heard else "detached" if detached else "attached",
            "evs": len(peer.evs),
            "usable_evs": sum(self.usable(peer).values()),
            "states": dict(Counter(EvState(int(s)).name for s in evs["state"])),
            "ports": [i for i in range(len(self._plan.interfaces)) if ports & (1 << i)],
            "tx_packets": int(evs["tx_packets"].sum()),
            "rx_packets": received,
            "lost_packets": lost,
            "loss_ratio": lost / sent if sent else 0.0,
            "rtt_ns": int(np.median(rtts)) if len(rtts) else None,
            "heard_s": (now - heard) / 1e9 if heard else None,
            "prefixes": [str(p) for p in peer.host.prefixes],
        }

    def paths(self, peer: str | None = None, plane: int | None = None, state: str | None = None) -> list[Document]:
        """A document per EV, filtered."""
        now = time.monotonic_ns()
        found = []
        for p in self._plan.peers:
            if peer is not None and p.host.name != peer:
                continue
            usable = self.usable(p)
            for e in p.evs:
                if plane is not None and e.plane != plane:
                    continue
                document = self._path(e, usable[e.ev], now)
                if state is None or document["state"] == state.upper():
                    found.append(document)
        return found

    def _path(self, e: EV, usable: bool, now: int) -> Document:
        row = self._tables.evs[e.peer_id, e.ev].copy()
        sent, received = int(row["settled_tx"]), int(row["settled_rx"])
        lost = max(0, sent - received)
        since = int(row["state_since_ns"])
        return {
            "peer": e.peer,
            "ev": e.ev,
            "plane": e.plane,
            "slot": e.slot,
            "t1": e.t1,
            "carrier": str(e.segments[0]),
            "segments": [str(s) for s in e.segments],
            "label": e.label,
            "state": EvState(int(row["state"])).name,
            "reason": Reason(int(row["reason"])).text,
            "since_s": (now - since) / 1e9 if since else None,
            "usable": usable,
            "tx_packets": int(row["tx_packets"]),
            "tx_bytes": int(row["tx_bytes"]),
            "rx_packets": received,
            "lost_packets": lost,
            "loss_ratio": lost / sent if sent else 0.0,
            "rtt_ns": int(row["rtt_ns"]) if row["replies"] else None,
            "ce_packets": int(row["rx_ce"]),
            "relapses": int(row["relapses"]),
        }


def save_running(run_dir: Path, plan_: Plan, pins: Path, hooks: list[Document]) -> None:
    """Leave beside the socket what mrcctl needs to read the tables without the daemon."""
    document = {
        "host": plan_.host.name,
        "pins": str(pins),
        "hooks": hooks,
        "config": plan_.config.model_dump(mode="json"),
    }
    new = run_dir / (RUNNING_FILE + ".new")
    new.write_text(json.dumps(document))
    new.rename(run_dir / RUNNING_FILE)


def open_pinned(run_dir: Path) -> View:
    """The view of the pinned tables, without the daemon. Raises MrcdError if there are none."""
    path = run_dir / RUNNING_FILE
    try:
        document = json.loads(path.read_text())
        config = Config.model_validate(document["config"])
    except (OSError, ValueError, KeyError) as e:
        raise MachineError(
            f"no usable {path}: {e}", hint="mrcd has not run on this host yet; start it with `systemctl start mrcd`"
        ) from None
    tables = Tables(Path(document["pins"]), writable=False)
    if len(tables.peers) < config.max_peers or tables.evs.shape[1] != config.cluster.evs_per_peer:
        raise MachineError(
            f"{path} belongs to other tables than those pinned at {document['pins']}",
            hint="mrcd did not get through its last start: its log says why",
        )
    return View(tables, plan(config, document["host"]), document["hooks"])
