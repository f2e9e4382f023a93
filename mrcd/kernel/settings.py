# SPDX-License-Identifier: BSD-2-Clause
"""Converts the configuration to the constants of the eBPF programs, which are fixed when they are loaded. Pure."""

import numpy as np
from numpy.typing import NDArray

from mrcd.config.cluster_file import fingerprint
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi, enums


def settings(
    plan: Plan, kernel_has: int = 0, peers: int = 0, netns: int = 0, link_key: bytes = bytes(16)
) -> NDArray[np.void]:
    """Returns a plan as struct mrc_settings.

    `kernel_has`: bits of enums.KernelHas, see features.py. `peers`: rows of the peers' tables; 0 for the plan's own
    number. `netns`: the inode number of the NICs' network namespace. `link_key`: the secret key of link probes.
    """
    c, h = plan.config.cluster, plan.config.health
    value = np.zeros((), abi.SETTINGS)
    for name, number in {
        "planes": c.planes,
        "evs_per_peer": c.evs_per_peer,
        "evs_per_plane": c.evs_per_plane,
        "inner_mtu": plan.inner_mtu,
        "host_id": plan.host.id,
        "udp_port": c.udp_port,
        "srh": plan.needs_srh,
        "probe_packets": h.packets_per_report(c.granularity),
        "probe_gap_us": h.probe_gap_us,
        "probe_late_us": h.late_ms(c.granularity) * 1000,
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
        "peers": peers or plan.config.max_peers,
        "shared_links": c.encapsulation == "usid",
        "classes": any(k.ports or k.dscp for k in plan.config.classes),
        "flowlet_us": plan.config.overlay.flowlet_us,
        "dup_ack_us": plan.config.overlay.dup_ack_us,
        "kernel_has": kernel_has,
        "netns": netns,
        "source_check": plan.config.overlay.source_check == "strict",
        "fingerprint": fingerprint(c),
    }.items():
        value[name] = number
    value["link_key"] = np.frombuffer(link_key, np.uint64)
    return value


def classes(plan: Plan) -> NDArray[np.void]:
    """Returns the policies of ports and DSCPs as struct mrc_classes. If two classes match, the first one applies."""
    value = np.zeros((), abi.CLASSES)
    for k in reversed(plan.config.classes):
        value["dscp"][list(k.dscp)] = enums.Policy[k.policy.upper()]
        for first, last in k.port_ranges:
            value["ports"][first : last + 1] = enums.Policy[k.policy.upper()]
    return value
