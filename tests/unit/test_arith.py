# SPDX-License-Identifier: BSD-2-Clause
"""Tests bpf/arith.h and bpf/siphash.h, built by the host compiler, against the RFCs, a library and plain Python."""

import ctypes
import random
import subprocess
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from scapy.layers.inet import IP
from scapy.utils import checksum
from siphash24 import siphash24

from mrcd.config.cluster_file import Health
from mrcd.health import hold_down
from mrcd.kernel import abi

BPF = Path(__file__).parents[2] / "bpf"
WRAPPER = """
#include "arith.h"
#include "siphash.h"
int wrapped_ecn(__u8 inner, __u8 outer) { return ecn_decapsulated(inner, outer); }
__u16 wrapped_csum(__u16 csum, __u16 from, __u16 to) { return csum_replace16(csum, from, to); }
__u32 wrapped_bit(__u64 word) { return lowest_bit(word); }
__u32 wrapped_slot(const __u64 *u, __u32 first, __u32 slots, __u32 from) { return next_slot(u, first, slots, from); }
__u32 wrapped_lost(__u32 before, __s32 least, __s32 most) { return known_lost(before, least, most); }
__u32 wrapped_bucket(__u64 value) { return bucket_of(value); }
__u32 wrapped_grown(__u16 now, __u16 before) { return grown16(now, before); }
__u32 wrapped_destination(const __u32 *address) { return dst_slot(address); }
__u32 wrapped_pace(const __u64 *wait, const __u64 *burst, __u32 mask) { return in_pace(wait, burst, 8, mask); }
__u32 wrapped_smoothed(__u32 pace, __u32 packets, __u64 ns) { return smoothed_pace(pace, packets, ns); }
__u64 wrapped_window(__u64 window, __u32 late, __u32 least) { return arrival_window(window, late, least); }
__u64 wrapped_hold(__u32 flaps, __u32 first, __u32 most) { return hold_down_ns(flaps, first, most); }
__u32 wrapped_ramp(__u64 elapsed, __u64 ramp) { return ramp_weight(elapsed, ramp); }
__u64 wrapped_backoff(__u32 unanswered, __u32 first, __u32 most) { return backoff_ns(unanswered, first, most); }
int wrapped_aged(__u64 now, __u64 then, __u64 age) { return aged(now, then, age); }
__u64 wrapped_seen(__u64 word, __u32 number, __u32 epoch) { return seen_after(word, number, epoch); }
__u64 wrapped_siphash(const __u64 *key, const __u64 *words, __u32 count)
{
	struct siphash s;

	siphash_begin(&s, key);
	for (__u32 i = 0; i < count; i++)
		siphash_word(&s, words[i]);
	return siphash_end(&s, 8 * count);
}
"""
NO_SLOT = 0xFFFFFFFF
WORDS = 4


@pytest.fixture(scope="module")
def arith(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("arith")
    source, library = directory / "arith.c", directory / "arith.so"
    source.write_text(WRAPPER)
    # A shift too far or an index out of bounds ends the process instead of giving some number.
    strict = ["-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", *strict, f"-I{BPF}", source, "-o", library], check=True)
    lib = ctypes.CDLL(str(library))
    u8, u16, u32, u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
    lib.wrapped_ecn.argtypes = [u8, u8]
    lib.wrapped_csum.argtypes, lib.wrapped_csum.restype = [u16, u16, u16], u16
    lib.wrapped_bit.argtypes, lib.wrapped_bit.restype = [u64], u32
    lib.wrapped_slot.argtypes, lib.wrapped_slot.restype = [ctypes.POINTER(u64), u32, u32], u32
    lib.wrapped_lost.argtypes, lib.wrapped_lost.restype = [u32, ctypes.c_int32, ctypes.c_int32], u32
    lib.wrapped_bucket.argtypes, lib.wrapped_bucket.restype = [u64], u32
    lib.wrapped_aged.argtypes = [u64, u64, u64]
    lib.wrapped_seen.argtypes, lib.wrapped_seen.restype = [u64, u32, u32], u64
    lib.wrapped_siphash.argtypes, lib.wrapped_siphash.restype = [ctypes.c_char_p, ctypes.c_char_p, u32], u64
    lib.wrapped_grown.argtypes, lib.wrapped_grown.restype = [u16, u16], u32
    lib.wrapped_pace.argtypes, lib.wrapped_pace.restype = [ctypes.POINTER(u64), ctypes.POINTER(u64), u32], u32
    lib.wrapped_smoothed.argtypes, lib.wrapped_smoothed.restype = [u32, u32, u64], u32
    lib.wrapped_window.argtypes, lib.wrapped_window.restype = [u64, u32, u32], u64
    lib.wrapped_hold.argtypes, lib.wrapped_hold.restype = [u32, u32, u32], u64
    lib.wrapped_ramp.argtypes, lib.wrapped_ramp.restype = [u64, u64], u32
    lib.wrapped_backoff.argtypes, lib.wrapped_backoff.restype = [u32, u32, u32], u64
    lib.wrapped_destination.argtypes, lib.wrapped_destination.restype = [ctypes.c_char_p], u32
    return lib


# ---- slots of the destination cache ----


@pytest.mark.parametrize("network", ["::ffff:10.99.0.0", "fd00:99::"])
def test_the_addresses_of_4096_hosts_have_slots_of_their_own(arith: ctypes.CDLL, network: str) -> None:
    first = int(IPv6Address(network))
    slots = {arith.wrapped_destination(IPv6Address(first + i).packed) for i in range(4096)}
    assert slots == set(range(4096))


def test_networks_of_many_hosts_do_not_share_slots(arith: ctypes.CDLL) -> None:
    """One address in each of 1,024 networks: few share a slot."""
    slots = {arith.wrapped_destination(IPv6Address(f"fd00:100:{i:x}::1").packed) for i in range(1024)}
    assert len(slots) > 800


# ---- RFC 6040 ----

NOT_ECT, ECT1, ECT0, CE = 0b00, 0b01, 0b10, 0b11
DROP = -1
FIGURE_4 = """
inner    Not-ECT  ECT(0)   ECT(1)   CE
Not-ECT  Not-ECT  Not-ECT  Not-ECT  drop
ECT(0)   ECT(0)   ECT(0)   ECT(1)   CE
ECT(1)   ECT(1)   ECT(1)   ECT(1)   CE
CE       CE       CE       CE       CE
"""


def test_ecn_is_merged_by_figure_4(arith: ctypes.CDLL) -> None:
    value = {"Not-ECT": NOT_ECT, "ECT(0)": ECT0, "ECT(1)": ECT1, "CE": CE, "drop": DROP}
    (_, *outers), *rows = (line.split() for line in FIGURE_4.strip().splitlines())
    table = {(value[inner], value[o]): value[r] for inner, *row in rows for o, r in zip(outers, row, strict=True)}
    assert len(table) == 16
    assert {k: arith.wrapped_ecn(*k) for k in table} == table


# ---- RFC 1624 ----


def test_a_checksum_follows_a_changed_word(arith: ctypes.CDLL) -> None:
    rng = random.Random(1624)
    for _ in range(5000):
        header = bytearray(rng.randbytes(20))
        header[10:12] = bytes(2)
        at = rng.choice([i for i in range(0, 20, 2) if i != 10])
        # All ones and all zeros are frequent here: one's complement has two zeros.
        new = rng.choice([0, 0xFFFF, 1, 0xFFFE, rng.getrandbits(16)])
        before, old = checksum(bytes(header)), int.from_bytes(header[at : at + 2], "big")
        header[at : at + 2] = new.to_bytes(2, "big")
        after = arith.wrapped_csum(before, old, new)
        header[10:12] = after.to_bytes(2, "big")
        assert checksum(bytes(header)) == 0, (before, old, new)


def test_a_header_with_another_tos_is_as_scapy_builds_it(arith: ctypes.CDLL) -> None:
    rng = random.Random(6040)
    for _ in range(300):
        address = f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}"
        ip = IP(src=address, dst="10.99.0.1", id=rng.getrandbits(16), ttl=rng.randrange(1, 256), proto=59)
        tos, other = rng.getrandbits(8), rng.getrandbits(8)
        ip.tos = tos
        before = int.from_bytes(bytes(ip)[10:12], "big")
        ip.tos = other
        after = int.from_bytes(bytes(ip)[10:12], "big")
        # The sum does not depend on the byte order: the programs use words in memory order.
        assert arith.wrapped_csum(before, 0x4500 | tos, 0x4500 | other) == after
        swapped = [int.from_bytes(v.to_bytes(2, "big"), "little") for v in (before, 0x4500 | tos, 0x4500 | other)]
        assert arith.wrapped_csum(*swapped) == int.from_bytes(after.to_bytes(2, "big"), "little")


# ---- bitmaps ----


@pytest.mark.parametrize("bit", range(64))
def test_the_lowest_bit(arith: ctypes.CDLL, bit: int) -> None:
    rng = random.Random(bit)
    assert arith.wrapped_bit(1 << bit) == bit
    assert arith.wrapped_bit((1 << 64) - (1 << bit)) == bit
    for _ in range(20):
        assert arith.wrapped_bit((rng.getrandbits(64) << bit | 1 << bit) % (1 << 64)) == bit


def next_slot(arith: ctypes.CDLL, usable: set[int], slots: int, start: int) -> int:
    """Returns the next usable slot of a plane, computed at three positions of the plane in the bitmap.

    The plane is the first, one in the middle, or the last; all EVs of the other planes are usable.
    """
    found = set()
    for first in {0, (256 - slots) // 2, 256 - slots}:
        bits = {*range(first), *(first + s for s in usable), *range(first + slots, 256)}
        words = [sum(1 << (b % 64) for b in bits if b // 64 == word) for word in range(WORDS)]
        found.add(int(arith.wrapped_slot((ctypes.c_uint64 * WORDS)(*words), first, slots, start)))
    assert len(found) == 1
    return found.pop()


def next_slot_in_python(usable: set[int], slots: int, start: int) -> int:
    start = start if start < slots else 0
    return next((s for s in [*range(start, slots), *range(start)] if s in usable), NO_SLOT)


@pytest.mark.parametrize("slots", range(1, 257))
def test_the_next_slot(arith: ctypes.CDLL, slots: int) -> None:
    rng = random.Random(slots)
    edges = {0, 1, slots - 1, slots // 2, 63, 64, 127, 128}
    for density in (0.0, 0.01, 0.1, 0.5, 0.9, 1.0):
        usable = {s for s in range(slots) if rng.random() < density}
        for start in edges | {rng.randrange(slots) for _ in range(8)}:
            assert next_slot(arith, usable, slots, start) == next_slot_in_python(usable, slots, start), (usable, start)


@pytest.mark.parametrize("slots", [1, 2, 63, 64, 65, 127, 128, 129, 200, 255, 256])
def test_one_usable_slot_is_found_from_everywhere(arith: ctypes.CDLL, slots: int) -> None:
    for slot in {0, slots // 2, slots - 1}:
        assert {next_slot(arith, {slot}, slots, start) for start in range(slots)} == {slot}


@pytest.mark.parametrize("slots", [1, 4, 64, 100, 256])
@pytest.mark.parametrize("start", [1, 64, 256, 257, 0xFFFF, 0xFFFFFFFF])
def test_a_start_beyond_the_end_is_the_beginning(arith: ctypes.CDLL, slots: int, start: int) -> None:
    """A stored slot number may exceed the last one: the table may have shrunk since."""
    expected = 0 if start >= slots else start
    assert next_slot(arith, set(range(slots)), slots, start) == expected
    assert next_slot(arith, set(), slots, start) == NO_SLOT


@pytest.mark.parametrize("slots", [1, 3, 63, 64, 65, 200])
def test_following_the_next_slot_visits_each_usable_one_in_turn(arith: ctypes.CDLL, slots: int) -> None:
    rng = random.Random(slots)
    usable = {s for s in range(slots) if rng.random() < 0.7} | {slots - 1}
    at, visited = 0, []
    for _ in range(3 * len(usable)):
        slot = next_slot(arith, usable, slots, at)
        visited.append(slot)
        at = slot + 1
    assert visited == sorted(usable) * 3


# ---- known losses ----


@pytest.mark.parametrize(
    ("before", "least", "most", "lost"),
    [
        (0, 0, 0, 0),
        (0, 3, 5, 3),  # these must have arrived by now
        (4, 3, 5, 4),  # between the bounds: the packets that arrived may be newer ones
        (9, 3, 5, 5),  # some arrived late
        (9, -7, 0, 0),
        (9, -7, -2, 0),
        (0, -7, 5, 0),
        (2**31 - 1, -1, 2**31 - 1, 2**31 - 1),
    ],
)
def test_known_losses_are_within_bounds(arith: ctypes.CDLL, before: int, least: int, most: int, lost: int) -> None:
    assert arith.wrapped_lost(before, least, most) == lost


# ---- histograms ----


def test_there_are_four_buckets_per_power_of_two(arith: ctypes.CDLL) -> None:
    edges = [0, 1, 2, 3, *((4 + quarter) << shift for shift in range(62) for quarter in range(4))]
    for bucket, edge in enumerate(edges):
        assert arith.wrapped_bucket(edge) == bucket
        assert bucket == 0 or arith.wrapped_bucket(edge - 1) == bucket - 1
    assert arith.wrapped_bucket(2**64 - 1) == len(edges) - 1 < 256


# ---- ages ----


@pytest.mark.parametrize("now", [10**15, 2**63, 2**64 - 1])
def test_a_time_in_the_near_future_is_not_old(arith: ctypes.CDLL, now: int) -> None:
    ages = {1000: True, 1001: True, 999: False, 0: False, -1: False, -(10**9): False}
    assert {ago: bool(arith.wrapped_aged(now, now - ago, 1000)) for ago in ages} == ages
    assert arith.wrapped_aged(now, now, 0)
    assert not arith.wrapped_aged(now, now + 1, 0)


def test_time_zero_is_old(arith: ctypes.CDLL) -> None:
    assert arith.wrapped_aged(10**12, 0, 10**10)


@pytest.mark.parametrize(
    ("now", "before", "grown"), [(5, 5, 0), (7, 5, 2), (1, 0xFFFF, 2), (5, 6, 0), (0xFFFF, 1, 0), (0x7FFF, 0, 0x7FFF)]
)
def test_counts_that_wrap_grow_and_do_not_shrink(arith: ctypes.CDLL, now: int, before: int, grown: int) -> None:
    assert arith.wrapped_grown(now, before) == grown


# ---- planes of unequal delay ----

LONGEST = 2**32 * 10_000_000  # ns: packets in flight times PACE_MAX_NS
LATE = [  # window, delay of the EV, least delay of the others, resulting window
    (50_000, 0, 0, 50_000),
    (50_000, 100, 900_000, 50_000),
    (300_000, 400_000, 100_000, 300_000),
    (50_000, 500_000, 100_000, 550_000),  # a queue of 400 µs
    (300_000, 500_001, 200_000, 300_000 + 300_001 * 5 // 4),
    (0, 2**32 - 1, 0, (2**32 - 1) * 5 // 4),
]


def in_pace(arith: ctypes.CDLL, waits: list[int | None], burst: int = 100) -> set[int]:
    """Returns the planes in pace. `waits`: per plane; None excludes it."""
    mask = sum(1 << i for i, wait in enumerate(waits) if wait is not None)
    array = ctypes.c_uint64 * 8
    bits = arith.wrapped_pace(array(*[wait or 0 for wait in waits]), array(*[burst] * 8), mask)
    return {i for i in range(8) if bits >> i & 1}


def test_planes_keep_pace_if_they_start_before_the_earliest_ends(arith: ctypes.CDLL) -> None:
    assert in_pace(arith, [0, 0, 0, 0]) == {0, 1, 2, 3}
    assert in_pace(arith, [0, 50, 106, 107]) == {0, 1, 2}  # the tolerance is a sixteenth of a burst
    assert in_pace(arith, [None, 5000, None, 9000]) == {1}
    assert in_pace(arith, [None, 5000, None, 5400]) == {1, 3}
    assert in_pace(arith, [LONGEST, LONGEST - 200]) == {0, 1}
    assert in_pace(arith, [LONGEST, None, 0]) == {2}
    assert in_pace(arith, [0, 1], burst=0) == {0}
    assert in_pace(arith, []) == set()


def test_paces_are_smoothed_without_idle_times(arith: ctypes.CDLL) -> None:
    assert arith.wrapped_smoothed(0, 10, 8_000_000) == 800_000
    assert arith.wrapped_smoothed(400_000, 10, 8_000_000) == 500_000
    assert arith.wrapped_smoothed(400_000, 0, 8_000_000) == 400_000
    assert arith.wrapped_smoothed(400_000, 1, 10_000_001) == 400_000
    assert arith.wrapped_smoothed(400_000, 2**32 - 3, 8_000_000) == 400_000  # the count has gone back


def test_the_arrival_window_grows_with_the_delay_of_an_ev(arith: ctypes.CDLL) -> None:
    assert [arith.wrapped_window(*x) for *x, _ in LATE] == [window for *_, window in LATE]


# ---- deadlines ----

MS, US = 1_000_000, 1000


# A wait that doubles from `first` up to `most`; after 31 doublings it stays at 2**31 times `first`.
@pytest.mark.parametrize(
    ("function", "unit_ns", "times", "first", "most", "waited"),
    [
        ("wrapped_hold", MS, 0, 1000, 60_000, 1000),
        ("wrapped_hold", MS, 1, 1000, 60_000, 1000),
        ("wrapped_hold", MS, 2, 1000, 60_000, 2000),
        ("wrapped_hold", MS, 6, 1000, 60_000, 32_000),
        ("wrapped_hold", MS, 7, 1000, 60_000, 60_000),
        ("wrapped_hold", MS, 255, 1000, 60_000, 60_000),
        ("wrapped_hold", MS, 255, 1, 2**32 - 1, 2**31),
        ("wrapped_hold", MS, 3, 60_000, 1000, 1000),
        ("wrapped_hold", MS, 5, 0, 1000, 0),
        ("wrapped_backoff", US, 0, 20_000, 1_000_000, 20_000),
        ("wrapped_backoff", US, 1, 20_000, 1_000_000, 40_000),
        ("wrapped_backoff", US, 5, 20_000, 1_000_000, 640_000),
        ("wrapped_backoff", US, 6, 20_000, 1_000_000, 1_000_000),
        ("wrapped_backoff", US, 65_535, 20_000, 1_000_000, 1_000_000),
        ("wrapped_backoff", US, 2**32 - 1, 1, 2**32 - 1, 2**31),
        ("wrapped_backoff", US, 0, 2_000_000, 1_000_000, 1_000_000),
    ],
)
def test_hold_downs_and_probe_intervals_double_up_to_a_cap(
    arith: ctypes.CDLL, function: str, unit_ns: int, times: int, first: int, most: int, waited: int
) -> None:
    assert getattr(arith, function)(times, first, most) == waited * unit_ns


@pytest.mark.parametrize(("first_ms", "most_ms"), [(1, 1), (1, 3_600_000), (1000, 60_000), (999, 123_456)])
def test_the_daemon_shows_the_hold_down_that_the_programs_keep(arith: ctypes.CDLL, first_ms: int, most_ms: int) -> None:
    settings = Health(hold_down_ms=first_ms, hold_down_max_ms=most_ms)
    kept = [arith.wrapped_hold(n, first_ms, most_ms) for n in range(256)]
    assert [int(hold_down.hold_down_ns(settings, n)) for n in range(256)] == kept


def test_the_weight_of_an_ev_doubles_with_each_third_of_the_ramp(arith: ctypes.CDLL) -> None:
    ramp = 300 * MS
    weights = {0: 1, 100 * MS - 1: 1, 100 * MS: 2, 200 * MS - 1: 2, 200 * MS: 4, ramp - 1: 4, ramp: 8, 2**40: 8}
    assert {ns: arith.wrapped_ramp(ns, ramp) for ns in weights} == weights
    assert arith.wrapped_ramp(2**40, ramp) == abi.WEIGHT_FULL


def test_without_a_ramp_the_weight_is_full_at_once(arith: ctypes.CDLL) -> None:
    assert arith.wrapped_ramp(0, 0) == abi.WEIGHT_FULL


@pytest.mark.parametrize("words", [0, 1, 3, 7, 135])
def test_siphash_is_that_of_the_library(arith: ctypes.CDLL, words: int) -> None:
    chance = random.Random(words)
    for _ in range(20):
        key, message = chance.randbytes(16), chance.randbytes(8 * words)
        assert arith.wrapped_siphash(key, message, words).to_bytes(8, "little") == siphash24(message, key=key).digest()


def test_siphash_has_the_value_of_its_paper(arith: ctypes.CDLL) -> None:
    """Appendix A, for a message of 8 bytes: from the vectors of its reference code."""
    assert arith.wrapped_siphash(bytes(range(16)), bytes(range(8)), 1) == 0x93F5F5799A932462


@pytest.mark.parametrize("start", [0, 1, 2**31 - 5, 2**32 - 8])
def test_no_number_is_seen_twice_and_none_is_missed(arith: ctypes.CDLL, start: int) -> None:
    chance = random.Random(start)
    words, accepted, newest = [0] * abi.REPLAY_WORDS, set(), -1
    for n in range(20_000):
        number = max(0, n + chance.randrange(-3000, 3))
        on_wire = (start + number) % 2**32
        at = on_wire // 32 % abi.REPLAY_WORDS
        after = arith.wrapped_seen(words[at], on_wire, 9)
        if after != words[at]:
            assert number not in accepted
            accepted.add(number)
        else:
            assert number in accepted or newest - number > 32 * (abi.REPLAY_WORDS - 1)
        words[at], newest = after, max(newest, number)


@pytest.mark.parametrize("lost", [2**21, 2**25, 2**26, 3 * 2**25, 2**27, 2**31, 2**32 - 2**19])
def test_numbers_go_on_after_an_outage_of_any_length(arith: ctypes.CDLL, lost: int) -> None:
    word = arith.wrapped_seen(0, 5, 1)
    after = arith.wrapped_seen(word, (5 + lost) % 2**32, 1)
    assert after != word
    assert arith.wrapped_seen(after, (5 + lost) % 2**32, 1) == after


def test_numbers_of_many_laps_before_are_not_new(arith: ctypes.CDLL) -> None:
    word = arith.wrapped_seen(0, 2**20 + 5, 1)
    assert arith.wrapped_seen(word, 2**20 + 5 - 2**18, 1) == word


def test_numbers_begin_anew_with_a_generation(arith: ctypes.CDLL) -> None:
    word = arith.wrapped_seen(0, 4097, 1)
    assert arith.wrapped_seen(word, 1, 1) == word
    anew = arith.wrapped_seen(word, 1, 2)
    assert anew != word
    assert arith.wrapped_seen(anew, 1, 2) == anew
