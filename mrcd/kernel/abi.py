# SPDX-License-Identifier: BSD-2-Clause
"""Defines the structs of bpf/mrc_abi.h and bpf/mrc_events.h as numpy dtypes; enums.py has their enums.

A test compares every offset and size with the BTF of the compiled object.
"""

import numpy as np

from mrcd.config.sizes import BALLAST as BALLAST
from mrcd.config.sizes import KEY_IDS as KEY_IDS
from mrcd.config.sizes import MAX_PLANES as MAX_PLANES
from mrcd.config.sizes import SPORT_BASE as SPORT_BASE
from mrcd.config.sizes import SRH_MAX as SRH_MAX
from mrcd.versions import ABI_VERSION as ABI_VERSION
from mrcd.versions import WIRE_VERSION as WIRE_VERSION

EV_WORDS = 4
REPORT_EVS = 128
TIMER_NS = 1_000_000
MERGE_QUEUES = 16
EVENT_IDLE_TIMEOUT = 0xFFFF
REPORTS_KEPT = 4
REPORT_PARTS = 2
REPORT_SLOTS = 8
WEIGHT_FULL = 8
HEARD_AGAIN = 2
DST_ENTRIES = 4096
BUCKETS = 256
STATUS_DETACHED = 0x1
STATUS_PLAIN = 0x2
STATUS_TAGS_ONLY = 0x4
REPLAY_WORDS = 64

_u8, _u16, _u32, _u64 = np.uint8, np.uint16, np.uint32, np.uint64

EV = np.dtype(
    [
        ("dst", _u8, 16),
        ("configured", _u8),
        ("plane", _u8),
        ("srh_len", _u8),
        ("weight", _u8),
        ("state", _u32),
        ("tx_packets", _u64),
        ("tx_bytes", _u64),
        ("last_tx_ns", _u64),
        ("state_since_ns", _u64),
        ("probe_seq", _u32),
        ("reason", _u8),
        ("skip_reason", _u8),
        ("flaps", _u8),
        ("reserved", _u8),
    ]
)
PATH_STATS = np.dtype(
    [
        ("lost_before", _u64),
        ("judged", _u64),
        ("rx_ce", _u64),
        ("arrived_ns", _u64),
        ("lag_ns", _u64),
        ("loss_ns", _u64),
        ("pending_losses_ns", _u64),
        ("rtt_ns", _u32),
        ("replies", _u32),
        ("deficit", _u32),
        ("offset", _u32),
        ("rx", _u32),
        ("generation", _u32),
        ("rx_probes", _u16),
        ("ce", _u16),
        ("probe_offset", _u16),
        ("missed", _u16),
        ("reply_seq", _u32),
        ("good", _u16),
        ("burst_end", _u16),
        ("judged_tx", _u32),
        ("window_tx", _u32),
        ("window_lost", _u32),
        ("window_samples", _u32),
        ("window_losses", _u16),
        ("pending_losses", _u16),
        ("confirmed_losses", _u16),
        ("backoff", _u16),
        ("after_good", _u32),
        ("lost_bursts", _u16),
        ("epoch", _u16),
        ("probe_ns", _u64),
        ("noted_ns", _u64),
        ("noted_tx", _u32),
        ("noted_probes", _u32),
        ("mark_tx", _u32, REPORTS_KEPT),
        ("mark_probes", _u16, REPORTS_KEPT),
        ("extra_delay_ns", _u32),
        ("skips", _u32),
        ("probe_after_ns", _u64),
    ]
)
RX = np.dtype([("packets", _u64), ("bytes", _u64), ("ce", _u32), ("probes", _u32), ("reserved", _u64)])
SRH = np.dtype([("bytes", _u8, SRH_MAX)])
PEER = np.dtype(
    [
        ("configured", _u32),
        ("slots", _u32),
        ("plane_mask", _u32),
        ("status", _u32),
        ("usable", _u64, EV_WORDS),
        ("queued", _u32),
        ("plane_skew_ns", _u32),
        ("floor", _u32),
        ("busy", _u32),
        ("heard_ns", _u64),
        ("plane_mask_ns", _u64),
        ("generation", _u32),
        ("usable_changes", _u32),
        ("usable_planes", _u32),
        ("dup_acks", _u32),
        ("key_ids", _u8, 4),
        ("refused", _u32),
        ("plain_ns", _u64),
        ("fingerprint", _u32),
        ("reserved", _u32, 3),
        ("address", _u8, (MAX_PLANES, 16)),
    ]
)
AUTH = np.dtype(
    [
        ("tx_slot", _u32),
        ("tx_id", _u8, 4),
        ("tx_key", _u64, (KEY_IDS, 2)),
        ("status", _u32),
        ("sent", _u32),
        ("sending_reserved", _u64, 2),
        ("mode", _u8),
        ("rx_id", _u8, 3),
        ("mode_reserved", _u32),
        ("rx_key", _u64, (KEY_IDS, 2)),
        ("clock_ns", _u64),
        ("untagged", _u64),
        ("receiving_reserved", _u64),
    ]
)
REPLAY = np.dtype(
    [
        ("generation", _u32),
        ("epoch", _u32),
        ("requests", _u64, REPLAY_WORDS),
        ("replies", _u64, REPLAY_WORDS),
    ]
)
REPORTS = np.dtype(
    [
        ("requested_ns", _u64),
        ("rtt_ns", _u64),
        ("sent_ns", _u64, REPORT_SLOTS),
        ("report_seq", _u32),
        ("applied_seq", _u32),
        ("cursor", _u32),
        ("busy", _u32),
        ("rtt_var_ns", _u64),
        ("min_delay", _u64),
        ("min_delay_ns", _u64),
        ("icmp_ns", _u64),
        ("report_tx_ns", _u64),
        ("unpaid_packets", _u32),
        ("least_extra_delay_ns", _u32),
        ("judged", _u32),
        ("lossy", _u32),
        ("traffic_class", _u32),
        ("reserved", _u32),
    ]
)
WATCH = np.dtype(
    [
        ("due_ns", _u64),
        ("swept_ns", _u64),
        ("unanswered_ms", _u32),
        ("probed_us", _u32),
        ("deadlines", _u64, EV_WORDS),
        ("next", _u16),
        ("unanswered", _u8),
        ("pending", _u8),
        ("silent", _u8),
        ("linked", _u8),
        ("announce", _u8),
        ("timed_out", _u8),
    ]
)
CLOCK = np.dtype(
    [
        ("packet_due_ns", _u64),
        ("active_ns", _u64),
        ("refilled_ns", _u64),
        ("budget", np.int64),
        ("by_daemon", _u64),
        ("by_packet", _u64),
        ("cursor", _u32),
        ("busy", _u32),
        ("began_ns", _u64),
        ("now_ns", _u64),
        ("wait_ns", _u64),
        ("due_ns", _u64),
        ("linked", _u32),
        ("at", _u32),
    ]
)
PLANE = np.dtype(
    [
        ("ifindex", _u32),
        ("vlan", _u16),
        ("smac", _u8, 6),
        ("dmac", _u8, 6),
        ("nested_gso", _u8),
        ("reserved", _u8, 5),
        ("address", _u8, 16),
        ("sid", _u8, 16),
    ]
)
LINK = np.dtype(
    [
        ("dst", _u8, 16),
        ("configured", _u8),
        ("plane", _u8),
        ("reserved", _u8, 2),
        ("unanswered", _u32),
        ("sent", _u64),
        ("received", _u64),
        ("lost", _u64),
        ("tx_ns", _u64),
        ("rx_ns", _u64),
        ("rtt_ns", _u32),
        ("rtt_reserved", _u32),
    ]
)
NODE = np.dtype(
    [
        ("generation", _u32),
        ("plane_mask", _u32),
        ("status", _u32),
        ("probe_ifindex", _u32),
        ("epoch", _u32),
        ("timer_ifindex", _u32),
        ("overlay_ifindex", _u32),
        ("merge_ifindex", _u32),
        ("merge_xdp", _u32),
        ("overlay_eth", _u8, 12),
        ("ticked_ns", _u64),
        ("idle_us", _u32),
        ("idle_evs", _u32),
    ]
)
DST_ENTRY = np.dtype([("address", _u32, 4), ("epoch", _u32), ("value", _u32), ("reserved", _u64)])
PREFIX = np.dtype([("prefixlen", _u32), ("address", _u8, 16)])
ROTATION = np.dtype(
    [
        ("plane", _u32),
        ("slot", _u16, MAX_PLANES),
        ("unprobed", _u16),
        ("turns", _u8),
        ("data", _u8),
        ("unprobed_bytes", _u32),
        ("denied", _u32),
    ]
)
SETTINGS = np.dtype(
    [
        ("planes", _u32),
        ("evs_per_peer", _u32),
        ("evs_per_plane", _u32),
        ("inner_mtu", _u32),
        ("host_id", _u16),
        ("udp_port", _u16),
        ("srh", _u32),
        ("probe_packets", _u32),
        ("probe_gap_us", _u32),
        ("probe_late_us", _u32),
        ("reorder_us", _u32),
        ("overdue_us", _u32),
        ("skip_delay_us", _u32),
        ("loss_any", _u32),
        ("loss_ppm", _u32),
        ("loss_samples", _u32),
        ("loss_window_us", _u32),
        ("hold_down_ms", _u32),
        ("hold_down_max_ms", _u32),
        ("good_probes", _u32),
        ("ramp_us", _u32),
        ("probe_interval_us", _u32),
        ("probe_backoff_us", _u32),
        ("unanswered", _u32),
        ("idle_probes", _u32),
        ("peers", _u32),
        ("shared_links", _u32),
        ("classes", _u32),
        ("flowlet_us", _u32),
        ("dup_ack_us", _u32),
        ("kernel_has", _u32),
        ("netns", _u32),
        ("source_check", _u32),
        ("fingerprint", _u32),
        ("reserved", _u32),
        ("link_key", _u64, 2),
    ]
)
PACE = np.dtype(
    [
        ("plane_skew_now_ns", _u32),
        ("epoch", _u32),
        ("sent_ns", _u64, MAX_PLANES),
        ("paused_until_ns", _u64, MAX_PLANES),
        ("paced_ns", _u64),
        ("paced", _u32, MAX_PLANES),
        ("arrived", _u32, (2, MAX_PLANES)),
        ("in_flight", _u32, (2, MAX_PLANES)),
        ("sent", _u32, MAX_PLANES),
        ("pace_ns", _u32, MAX_PLANES),
        ("newest_delay_ns", _u32, MAX_PLANES),
        ("extra_delay_ns", _u32, MAX_PLANES),
        ("base_delay_ns", _u32, MAX_PLANES),
    ]
)
CLASSES = np.dtype([("dscp", _u8, 64), ("ports", _u8, 65536)])
EVENT = np.dtype(
    [
        ("ns", _u64),
        ("host_id", _u32),
        ("ev", _u16),
        ("before", _u8),
        ("after", _u8),
        ("reason", _u8),
        ("flaps", _u8),
        ("icmp_type", _u8),
        ("icmp_code", _u8),
        ("reports", _u32),
        ("silent_ns", _u64),
        ("lost_packets", _u32),
        ("sent_packets", _u32),
    ]
)
CHANGES = np.dtype([("count", _u64), ("lost_events", _u64)])

STRUCTS: dict[str, np.dtype] = {
    "mrc_ev": EV,
    "mrc_path_stats": PATH_STATS,
    "mrc_rx": RX,
    "mrc_srh": SRH,
    "mrc_peer": PEER,
    "mrc_auth": AUTH,
    "mrc_replay": REPLAY,
    "mrc_reports": REPORTS,
    "mrc_watch": WATCH,
    "mrc_clock": CLOCK,
    "mrc_link": LINK,
    "mrc_plane": PLANE,
    "mrc_node": NODE,
    "mrc_dst_entry": DST_ENTRY,
    "mrc_prefix": PREFIX,
    "mrc_rotation": ROTATION,
    "mrc_settings": SETTINGS,
    "mrc_event": EVENT,
    "mrc_changes": CHANGES,
    "mrc_classes": CLASSES,
    "mrc_pace": PACE,
}

MAPS: dict[str, np.dtype] = {
    "mrc_evs": EV,
    "mrc_path_stats": PATH_STATS,
    "mrc_rxs": RX,
    "mrc_srhs": SRH,
    "mrc_peers": PEER,
    "mrc_auths": AUTH,
    "mrc_replays": REPLAY,
    "mrc_reports": REPORTS,
    "mrc_watches": WATCH,
    "mrc_clock": CLOCK,
    "mrc_links": LINK,
    "mrc_planes": PLANE,
    "mrc_node": NODE,
}
"""Dtypes of the maps that Python maps into memory, by map name."""
