# SPDX-License-Identifier: BSD-2-Clause
"""Converts table records to fields with name, value and meaning, for `mrcctl bpf dump`. Pure."""

from ipaddress import IPv6Address
from typing import Any

import numpy as np

from mrcd.tables.abi import STATUS_DETACHED, STATUS_PLAIN, STATUS_TAGS_ONLY, WEIGHT_FULL
from mrcd.tables.enums import AuthMode, EvState, Reason

# Times by this host's CLOCK_MONOTONIC. Other fields that end with _ns are durations, or times by a peer's clock.
_MOMENTS = {
    *("state_since_ns", "probe_after_ns", "probe_ns", "last_tx_ns", "arrived_ns", "lag_ns", "loss_ns"),
    *("pending_losses_ns", "heard_ns", "requested_ns", "sent_ns", "min_delay_ns", "icmp_ns", "ticked_ns"),
    *("due_ns", "swept_ns", "packet_due_ns", "active_ns", "refilled_ns", "began_ns", "now_ns"),
}
_DURATIONS = {"rtt_ns", "rtt_var_ns", "wait_ns"}
_ADDRESSES = {"dst", "address", "sid"}
_MACS = {"smac", "dmac"}
_PLANES = {"plane_mask", "usable_planes", "linked"}
_EVS = {"usable", "deadlines"}
_KEYS = {"tx_key", "rx_key"}  # secret
_STATUS = {
    STATUS_DETACHED: "detached",
    STATUS_PLAIN: "sends plain SRv6",
    STATUS_TAGS_ONLY: "takes tagged packets only",
}
_ZERO = {"probe_after_ns": "at once", "due_ns": "at once", "lag_ns": "does not lag"}


def fields(record: np.void, now_ns: int) -> list[dict[str, Any]]:
    """Returns the fields that are not reserved: {"field", "value", "meaning"}.

    A value is the number in the table, a list of numbers, or text for addresses and other bytes; of a key it is None.
    `meaning` is "" if the value explains itself. `now_ns` is CLOCK_MONOTONIC.
    """
    names = [n for n in record.dtype.names or () if not n.endswith("reserved")]
    return [{"field": n, "value": value(n, record[n]), "meaning": _meaning(n, record[n], now_ns)} for n in names]


def value(name: str, raw: Any) -> Any:
    """Returns a field's value as a value of JSON; None for a key, which nobody may see."""
    if name in _KEYS:
        return None
    array = np.asarray(raw)
    if name in _ADDRESSES:
        rows = array.reshape(-1, 16)
        texts = [str(IPv6Address(bytes(row))) for row in rows]
        return texts if array.ndim > 1 else texts[0]
    if name in _MACS:
        return bytes(array).hex(":")
    if array.dtype == np.uint8 and array.ndim:
        return bytes(array).hex()
    return array.tolist()


def _meaning(name: str, raw: Any, now_ns: int) -> str:
    if name in _KEYS:
        return "never shown"
    if np.asarray(raw).ndim:
        return _ev_ranges(raw) if name in _EVS else ""
    number = int(raw)
    if name == "state":
        return EvState(number).name if number in set(EvState) else "no such state"
    if name in ("reason", "skip_reason"):
        return Reason(number).text if number in set(Reason) else "no such reason"
    if name == "mode":
        return AuthMode(number).name.lower() if number in set(AuthMode) else "no such mode"
    if name == "weight":
        return f"{number} of {WEIGHT_FULL} turns"
    if name == "status":
        return ", ".join(words for bit, words in _STATUS.items() if number & bit) or "nothing of note"
    if name in _PLANES:
        return f"planes {', '.join(str(p) for p in range(8) if number >> p & 1) or 'none'}"
    if name in _DURATIONS:
        return f"{number / 1000:.1f} µs"
    if name in _MOMENTS:
        return _moment(name, number, now_ns)
    return ""


def _moment(name: str, ns: int, now_ns: int) -> str:
    if not ns:
        return _ZERO.get(name, "never")
    seconds = (now_ns - ns) / 1e9
    return f"{seconds:.3f} s ago" if seconds >= 0 else f"in {-seconds:.3f} s"


def _ev_ranges(words: Any) -> str:
    """Returns the EVs whose bits are set in mrc_peer.usable or mrc_watch.deadlines."""
    numbers = [64 * w + bit for w, word in enumerate(words.tolist()) for bit in range(64) if word >> bit & 1]
    return f"EVs {_ranges(numbers)}" if numbers else "none"


def _ranges(numbers: list[int]) -> str:
    """Returns numbers as ranges: 0,1,2,5 → 0-2,5."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
