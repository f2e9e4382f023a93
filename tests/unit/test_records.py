# SPDX-License-Identifier: BSD-2-Clause
"""Tests records with field names and meanings."""

import numpy as np

from mrcd.tables import abi, enums
from mrcd.tables.enums import EvState, Reason
from mrcd.tables.records import fields

NOW = 100 * 10**9


def shown(record: np.void) -> dict[str, tuple[object, str]]:
    return {f["field"]: (f["value"], f["meaning"]) for f in fields(record, NOW)}


def test_an_ev() -> None:
    record = np.zeros(1, abi.EV)[0]
    record["dst"] = np.frombuffer(bytes.fromhex("5f000000400080004001c00000000000"), np.uint8)
    record["state"], record["reason"], record["weight"] = EvState.ASSUMED_BAD, Reason.OVERDUE, 1
    record["state_since_ns"] = NOW - 2_500_000_000
    found = shown(record)
    assert found["dst"] == ("5f00:0:4000:8000:4001:c000::", "")
    assert found["state"] == (3, "ASSUMED_BAD")
    assert found["reason"] == (2, "overdue")
    assert found["weight"] == (1, "1 of 8 turns")
    assert found["state_since_ns"] == (97_500_000_000, "2.500 s ago")
    assert found["last_tx_ns"] == (0, "never")
    assert not any(name.startswith("reserved") for name in found)


def test_path_statistics() -> None:
    record = np.zeros(1, abi.PATH_STATS)[0]
    record["probe_after_ns"], record["skips"] = NOW + 500_000_000, 7
    found = shown(record)
    assert (found["probe_after_ns"][1], found["skips"]) == ("in 0.500 s", (7, ""))
    assert found["lag_ns"] == (0, "does not lag")
    record["probe_after_ns"] = 0
    assert shown(record)["probe_after_ns"] == (0, "at once")
    assert found["mark_tx"] == ([0, 0, 0, 0], "")


def test_a_peer() -> None:
    record = np.zeros(1, abi.PEER)[0]
    record["usable"][0], record["usable"][2] = 0b10111, 1
    record["plane_mask"], record["status"] = 0b101, 0b111
    record["address"][0] = np.frombuffer(bytes.fromhex("fd10" + 13 * "00" + "03"), np.uint8)
    found = shown(record)
    assert found["usable"][1] == "EVs 0-2,4,128"
    assert found["plane_mask"] == (5, "planes 0, 2")
    assert found["status"] == (7, "detached, sends plain SRv6, takes tagged packets only")
    assert found["address"][0] == ["fd10::3", *["::"] * 7]


def test_a_watch() -> None:
    record = np.zeros(1, abi.WATCH)[0]
    record["deadlines"][0], record["linked"], record["swept_ns"] = 0b110, 0b11, NOW - 20_000_000
    found = shown(record)
    assert found["due_ns"] == (0, "at once")
    assert found["deadlines"][1] == "EVs 1-2"
    assert found["linked"] == (3, "planes 0, 1")
    assert found["swept_ns"][1] == "0.020 s ago"


def test_the_clock() -> None:
    record = np.zeros(1, abi.CLOCK)[0]
    record["budget"], record["packet_due_ns"], record["refilled_ns"] = -3, NOW + 10_000_000, NOW
    found = shown(record)
    assert found["budget"] == (-3, "")
    assert (found["packet_due_ns"][1], found["refilled_ns"][1]) == ("in 0.010 s", "0.000 s ago")
    assert found["active_ns"] == (0, "never")


def test_a_plane() -> None:
    record = np.zeros(1, abi.PLANE)[0]
    record["smac"] = [2, 0, 0, 0, 0, 0xFF]
    assert shown(record)["smac"] == ("02:00:00:00:00:ff", "")


def test_values_outside_of_an_enumeration_are_shown() -> None:
    record = np.zeros(1, abi.EV)[0]
    record["state"], record["reason"] = 77, 99
    assert (shown(record)["state"], shown(record)["reason"]) == ((77, "no such state"), (99, "no such reason"))


def test_every_record_of_the_tables_can_be_shown() -> None:
    for dtype in abi.MAPS.values():
        assert shown(np.zeros(1, dtype)[0])


def test_a_key_is_not_shown() -> None:
    record = np.zeros(1, abi.AUTH)[0]
    record["tx_key"] = record["rx_key"] = 0x1122334455667788
    record["mode"], record["rx_id"] = enums.AuthMode.REQUIRED, (1, 2, 0)
    found = shown(record)
    assert found["tx_key"] == found["rx_key"] == (None, "never shown")
    assert found["mode"] == (2, "required")
    assert found["rx_id"] == ("010200", "")
    assert not any("reserved" in name for name in found)
    assert str(0x1122334455667788) not in str(found)


def test_every_key_field_of_the_tables_is_known() -> None:
    """A field with a key needs a name in mrcd/tables/records.py."""
    named = {name for dtype in abi.MAPS.values() for name in dtype.names or () if name.endswith("key")}
    assert named == {"tx_key", "rx_key"}
