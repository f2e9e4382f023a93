# SPDX-License-Identifier: BSD-2-Clause
"""Converts the configuration to the programs' constants and variables, and to table sizes. Pure."""

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import fingerprint
from mrcd.config.sizes import MAX_PREFIXES
from mrcd.fabric import links
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi, enums
from mrcd.kernel.enums import EvState, Reason


def settings(
    plan: Plan, kernel_has: int = 0, peers: int = 0, netns: int = 0, link_key: bytes = bytes(16)
) -> NDArray[np.void]:
    """Returns a plan as struct mrc_settings.

    `kernel_has`: bits of enums.KernelHas, see features.py. `peers`: rows of the peers' tables; 0 for the plan's own
    number. `netns`: the inode number of the NICs' network namespace. `link_key`: the secret key of link probes.
    """
    c = plan.config.cluster
    value = np.zeros((), abi.SETTINGS)
    for name, number in {
        "planes": c.planes,
        "evs_per_peer": c.evs_per_peer,
        "evs_per_plane": c.evs_per_plane,
        "inner_mtu": plan.inner_mtu,
        "host_id": plan.host.id,
        "udp_port": c.udp_port,
        "srh": plan.needs_srh,
        "peers": peers or plan.config.max_peers,
        "shared_links": c.encapsulation == "usid",
        "classes": any(k.ports or k.dscp for k in plan.config.classes),
        "flowlet_us": plan.config.overlay.flowlet_us,
        "dup_ack_us": plan.config.overlay.dup_ack_us,
        "copy_ns": 1_000_000_000 // per_s if (per_s := plan.config.overlay.copies_per_s) else 0,
        "kernel_has": kernel_has,
        "netns": netns,
        "source_check": plan.config.overlay.source_check == "strict",
        "flow_ports": plan.config.source_port == "flow",
        "fingerprint": fingerprint(c),
        "per_packet": c.granularity == "packet",
    }.items():
        value[name] = number
    value["link_key"] = np.frombuffer(link_key, np.uint64)
    return value


def health(plan: Plan) -> NDArray[np.void]:
    """Returns [health] as struct mrc_health, which running programs read."""
    h, granularity = plan.config.health, plan.config.cluster.granularity
    value = np.zeros((), abi.HEALTH)
    for name, number in {
        "probe_packets": h.packets_per_report(granularity),
        "probe_gap_us": h.probe_gap_us,
        "probe_late_us": h.late_ms(granularity) * 1000,
        "reorder_us": h.reorder_us,
        "overdue_us": h.overdue_ms * 1000,
        "skip_delay_us": h.skip_delay_us,
        "loss_any": h.loss_rule == "any",
        "loss_ppm": round(h.loss_ratio * 1_000_000),
        "loss_samples": h.loss_samples,
        "loss_window_us": h.loss_window_ms * 1000,
        "hold_down_ms": h.hold_down_ms,
        "hold_down_max_ms": h.hold_down_max_ms,
        "good_probes": h.good_probes,
        "ramp_us": h.ramp_ms * 1000,
        "probe_interval_us": h.probe_interval_ms * 1000,
        "probe_backoff_us": h.probe_backoff_ms * 1000,
        "unanswered": h.unanswered,
        "idle_probes": h.idle_probes,
    }.items():
        value[name] = number
    return value


def classes(plan: Plan) -> NDArray[np.void]:
    """Returns the policies of ports and DSCPs as struct mrc_classes. If two classes match, the first one applies."""
    value = np.zeros((), abi.CLASSES)
    for k in reversed(plan.config.classes):
        value["dscp"][list(k.dscp)] = enums.Policy[k.policy.upper()]
        for first, last in k.port_ranges:
            value["ports"][first : last + 1] = enums.Policy[k.policy.upper()]
    return value


_MIN_ROWS, _ROWS_STEP = 64, 8  # of the peers' tables
_EVENTS_BYTES = 256 * 1024  # 5,000 events


def rows_for(needed: int, existing: int) -> int:
    """Returns the rows of the peers' tables. `existing` are those of the present tables, 0 if there are none.

    New tables start with all counters at zero, so the present rows are kept if they suffice and are not far too many.
    A table that grows gets an eighth more than needed. Every row costs memory for all its EVs, so new tables are hardly
    larger than needed.
    """
    if needed <= existing <= 2 * max(needed, _MIN_ROWS):
        return existing
    wanted = needed + needed // 8 if 0 < existing < needed else needed
    return max(_MIN_ROWS, -(-wanted // _ROWS_STEP) * _ROWS_STEP)


def table_sizes(plan: Plan, existing_rows: int = 0) -> dict[str, int]:
    """Returns the entries of every table for a plan. `existing_rows` as in rows_for()."""
    peers = rows_for(plan.config.max_peers, existing_rows)
    evs = plan.config.cluster.evs_per_peer
    return {
        "mrc_evs": peers * evs,
        "mrc_path_stats": peers * evs,
        "mrc_rxs": peers * evs,
        "mrc_srhs": peers * evs if plan.needs_srh else 1,
        "mrc_peers": peers,
        "mrc_auths": peers,
        "mrc_replays": peers,
        "mrc_copies": peers,
        "mrc_reports": peers,
        "mrc_watches": peers,
        "mrc_clock": 1,
        "mrc_probes_sent": len(enums.ProbeKind),
        "mrc_unsent_packets": abi.MAX_PLANES,
        "mrc_idle_timers": peers,
        "mrc_clone_jobs": 1,  # pinned: old and new programs share it while they are replaced one by one
        "mrc_links": links.table_size(plan.config.cluster.t1s),
        "mrc_planes": abi.MAX_PLANES,
        "mrc_node": 1,
        "mrc_rotations": peers,
        "mrc_drops": len(enums.Drop),
        "mrc_histograms": enums.HISTOGRAMS * abi.BUCKETS,
        "mrc_transitions": len(EvState) * len(Reason),
        "mrc_events": _EVENTS_BYTES,
        "mrc_prefixes": MAX_PREFIXES,
    }
