# SPDX-License-Identifier: BSD-2-Clause
"""Tests bpf/arith.h and bpf/siphash.h, built by the host compiler, against the RFCs, a library and plain Python."""

import ctypes
import math
import random
from ipaddress import IPv6Address

import numpy as np
import pytest
from scapy.utils import checksum
from siphash24 import siphash24

from mrcd.config.cluster_file import Health
from mrcd.health import probe_pace
from mrcd.kernel import abi, histograms
from tests.unit.c_functions import compiled

FUNCTIONS = """
int ecn_decapsulated(u8 u8)
u16 csum_replace16(u16 u16 u16)
u32 csum_change(u32 u32)
u32 lowest_bit(u64)
u32 next_slot(const_u64* u32 u32 u32)
u32 known_lost(u32 s32 s32)
u32 bucket_of(u64)
u32 grown16(u16 u16)
u32 dst_slot(const_u32*)
u32 in_pace(const_u64* u64 u32 u32)
u32 next_slow_ns(u32 u32 u32 u32 u32)
u32 smoothed_marking(u32 u32 u32)
u32 unmarked_planes(const_u8* u32 u32 u32)
u32 smoothed_pace(u32 u32 u64)
u64 arrival_window(u64 u32 u32)
u64 hold_down_ns(u32 u32 u32)
u32 ramp_weight(u64 u64)
int takes_turn(u16 u32)
u64 backoff_ns(u32 u32 u32)
int aged(u64 u64 u64)
u64 seen_after(u64 u32 u32)
int loses_more(u32 u32 u32 u32 u32 u32)
int is_plane_wide(u32 u32 u32)
u64 siphash(const_u64* const_u64* u32)
"""
SIPHASH = """
static __u64 siphash(const __u64 *key, const __u64 *words, __u32 count)
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
    return compiled(tmp_path_factory.mktemp("arith"), ("arith.h", "siphash.h"), FUNCTIONS, SIPHASH)


# ---- slots of the destination cache ----


@pytest.mark.parametrize("network", ["::ffff:10.99.0.0", "fd00:99::"])
def test_the_addresses_of_4096_hosts_have_slots_of_their_own(arith: ctypes.CDLL, network: str) -> None:
    first = int(IPv6Address(network))
    slots = {arith.dst_slot(IPv6Address(first + i).packed) for i in range(4096)}
    assert slots == set(range(4096))


def test_networks_of_many_hosts_do_not_share_slots(arith: ctypes.CDLL) -> None:
    """One address in each of 1,024 networks: few share a slot."""
    slots = {arith.dst_slot(IPv6Address(f"fd00:100:{i:x}::1").packed) for i in range(1024)}
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
    assert {k: arith.ecn_decapsulated(*k) for k in table} == table


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
        after = arith.csum_replace16(before, old, new)
        header[10:12] = after.to_bytes(2, "big")
        assert checksum(bytes(header)) == 0, (before, old, new)
        # The sum does not depend on the byte order: the programs use words in memory order.
        swapped = [int.from_bytes(v.to_bytes(2, "big"), "little") for v in (before, old, new)]
        assert arith.csum_replace16(*swapped) == int.from_bytes(after.to_bytes(2, "big"), "little")


def test_the_sum_of_a_packet_after_a_change(arith: ctypes.CDLL) -> None:
    """The sum is folded as the kernel folds it: 65535 and 0 are the same."""
    rng = random.Random(7)
    for _ in range(2000):
        words = [rng.choice([0, 2**32 - 1, rng.getrandbits(32)]) for _ in range(11)]
        change = arith.csum_change(words[0], words[10])
        assert (sum(words[:10]) + change) % 0xFFFF == sum(words[1:]) % 0xFFFF


# ---- bitmaps ----


@pytest.mark.parametrize("bit", range(64))
def test_the_lowest_bit(arith: ctypes.CDLL, bit: int) -> None:
    rng = random.Random(bit)
    assert arith.lowest_bit(1 << bit) == bit
    assert arith.lowest_bit((1 << 64) - (1 << bit)) == bit
    for _ in range(20):
        assert arith.lowest_bit((rng.getrandbits(64) << bit | 1 << bit) % (1 << 64)) == bit


def next_slot(arith: ctypes.CDLL, usable: set[int], slots: int, start: int) -> int:
    """Returns the next usable slot of a plane, computed at three positions of the plane in the bitmap.

    The plane is the first, one in the middle, or the last; all EVs of the other planes are usable.
    """
    found = set()
    for first in {0, (256 - slots) // 2, 256 - slots}:
        bits = {*range(first), *(first + s for s in usable), *range(first + slots, 256)}
        words = [sum(1 << (b % 64) for b in bits if b // 64 == word) for word in range(WORDS)]
        found.add(int(arith.next_slot((ctypes.c_uint64 * WORDS)(*words), first, slots, start)))
    assert len(found) == 1
    return found.pop()


def next_slot_in_python(usable: set[int], slots: int, start: int) -> int:
    start = start if start < slots else 0
    return next((s for s in [*range(start, slots), *range(start)] if s in usable), NO_SLOT)


@pytest.mark.parametrize("slots", range(1, 257))
def test_the_next_slot(arith: ctypes.CDLL, slots: int) -> None:
    rng = random.Random(slots)
    # A stored slot number may exceed the last one: the table may have shrunk since.
    edges = {0, 1, slots - 1, slots // 2, 63, 64, 127, 128, 256, 257, 0xFFFFFFFF}
    for density in (0.0, 0.01, 0.1, 0.5, 0.9, 1.0):
        usable = {s for s in range(slots) if rng.random() < density}
        for start in edges | {rng.randrange(slots) for _ in range(8)}:
            assert next_slot(arith, usable, slots, start) == next_slot_in_python(usable, slots, start), (usable, start)


# ---- known losses ----


@pytest.mark.parametrize(
    ("before", "least", "most", "lost"),
    [
        (0, 0, 0, 0),
        (0, 3, 5, 3),  # these must have arrived by now
        (4, 3, 5, 4),  # between the bounds: the packets that arrived may be newer ones
        (9, 3, 5, 5),  # some arrived late
        (6, 3, 5, 5),
        (9, -7, 0, 0),
        (9, -7, -2, 0),
        (0, -7, 5, 0),
        (2**31 - 1, -1, 2**31 - 1, 2**31 - 1),
    ],
)
def test_known_losses_are_within_bounds(arith: ctypes.CDLL, before: int, least: int, most: int, lost: int) -> None:
    assert arith.known_lost(before, least, most) == lost


# ---- histograms ----


def test_buckets_are_four_per_power_of_two_as_python_reads_them(arith: ctypes.CDLL) -> None:
    edges = [0, 1, 2, 3, *((4 + quarter) << shift for shift in range(62) for quarter in range(4))]
    for bucket, edge in enumerate(edges):
        assert arith.bucket_of(edge) == bucket
        assert (histograms.lowest(bucket), arith.bucket_of(histograms.highest(bucket))) == (edge, bucket)
        assert bucket == 0 or arith.bucket_of(edge - 1) == bucket - 1
    assert histograms.highest(bucket) == 2**64 - 1
    assert len(edges) <= abi.BUCKETS


# ---- ages ----


@pytest.mark.parametrize("now", [10**15, 2**63, 2**64 - 1])
def test_a_time_in_the_near_future_is_not_old(arith: ctypes.CDLL, now: int) -> None:
    ages = {1000: True, 1001: True, 999: False, 0: False, -1: False, -(10**9): False}
    assert {ago: bool(arith.aged(now, now - ago, 1000)) for ago in ages} == ages
    assert arith.aged(10**12, 0, 10**10)  # time zero is old
    assert arith.aged(now, now, 0)
    assert not arith.aged(now, now + 1, 0)


@pytest.mark.parametrize(
    ("now", "before", "grown"), [(5, 5, 0), (7, 5, 2), (1, 0xFFFF, 2), (5, 6, 0), (0xFFFF, 1, 0), (0x7FFF, 0, 0x7FFF)]
)
def test_counts_that_wrap_grow_and_do_not_shrink(arith: ctypes.CDLL, now: int, before: int, grown: int) -> None:
    assert arith.grown16(now, before) == grown


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


def in_pace(
    arith: ctypes.CDLL, waits: list[int | None], burst: int = 100, slow: dict[int, int] | None = None
) -> set[int]:
    """Returns the planes in pace. `waits`: per plane; None excludes it. `slow`: time of a burst on slower planes."""
    mask = sum(1 << i for i, wait in enumerate(waits) if wait is not None)
    bursts = [(slow or {}).get(i, burst) for i in range(16)]
    ends = [wait + taken for wait, taken in zip([w or 0 for w in waits] + [0] * (16 - len(waits)), bursts, strict=True)]
    quickest = min((bursts[i] for i in range(16) if mask >> i & 1), default=burst)
    bits = arith.in_pace((ctypes.c_uint64 * 16)(*ends), quickest, 16, mask)
    return {i for i in range(16) if bits >> i & 1}


def test_planes_keep_pace_if_they_start_before_the_earliest_ends(arith: ctypes.CDLL) -> None:
    assert in_pace(arith, [0, 0, 0, 0]) == {0, 1, 2, 3}
    assert in_pace(arith, [0, 50, 106, 107]) == {0, 1, 2}  # the tolerance is a sixteenth of a burst
    assert in_pace(arith, [None, 5000, None, 9000]) == {1}
    assert in_pace(arith, [None, 5000, None, 5400]) == {1, 3}
    assert in_pace(arith, [LONGEST, LONGEST - 200]) == {0, 1}
    assert in_pace(arith, [LONGEST, None, 0]) == {2}
    assert in_pace(arith, [0, 1], burst=0) == {0}
    assert in_pace(arith, []) == set()


def test_a_plane_keeps_pace_if_a_burst_ends_before_the_next_one_of_the_quickest(arith: ctypes.CDLL) -> None:
    assert in_pace(arith, [0, 0, 0, 0], slow={1: 200}) == {0, 1, 2, 3}
    assert in_pace(arith, [0, 0, 0, 0], slow={1: 207}) == {0, 2, 3}
    assert in_pace(arith, [0, 7, 0, 0], slow={1: 200}) == {0, 2, 3}
    assert in_pace(arith, [900, 0, 900, 900], slow={1: 1000}) == {0, 1, 2, 3}  # the others have queues, too
    assert in_pace(arith, [None, 0], slow={1: 4000}) == {1}


def test_only_a_queue_shows_that_a_plane_is_slow(arith: ctypes.CDLL) -> None:
    assert arith.next_slow_ns(0, 5000, 1, 1000, 1) == 5000
    assert arith.next_slow_ns(0, 5000, 0, 1000, 1) == 0
    assert arith.next_slow_ns(64_000, 50_000, 0, 6400, 1) == 64_000 - 100 - 125 - 1
    assert arith.next_slow_ns(64_000, 50_000, 0, 6400, 10) == 64_000 - 2260
    assert arith.next_slow_ns(50, 50_000, 0, 6400, 1) == 0
    assert arith.next_slow_ns(2**32 - 1, 0, 0, 2**32 - 1, 1024) == 0


@pytest.mark.parametrize("slow_ns", [4_000_000, 10_000_000])
def test_a_plane_is_tried_again_within_a_minute(arith: ctypes.CDLL, slow_ns: int) -> None:
    """What a slow flow has told of it would else keep it out of a fast one. A period has 8 ms."""
    quickest_ns = 10
    for _ in range(60_000 // 8):
        slow_ns = arith.next_slow_ns(slow_ns, 0, 0, quickest_ns, 1)
    assert slow_ns < 2 * quickest_ns


def test_paces_are_smoothed_without_idle_times(arith: ctypes.CDLL) -> None:
    assert arith.smoothed_pace(0, 10, 8_000_000) == 800_000
    assert arith.smoothed_pace(400_000, 10, 8_000_000) == 500_000
    assert arith.smoothed_pace(400_000, 0, 8_000_000) == 400_000
    assert arith.smoothed_pace(400_000, 1, 10_000_001) == 400_000
    assert arith.smoothed_pace(400_000, 2**32 - 3, 8_000_000) == 400_000  # the count has gone back


def test_marks_are_smoothed(arith: ctypes.CDLL) -> None:
    assert [arith.smoothed_marking(*x) for x in [(0, 10, 10), (100, 0, 10), (100, 0, 0), (0, 11, 10)]] == [
        63,
        75,
        75,
        63,
    ]
    marking = 0
    for _ in range(40):
        marking = arith.smoothed_marking(marking, 10, 10)
    assert 250 <= marking <= 255


@pytest.mark.parametrize(
    ("marking", "mask", "shares"),
    [
        ([0] * 4, 15, [1, 1, 1, 1]),
        ([255] * 4, 15, [1, 1, 1, 1]),
        ([0, 255, 0, 0], 15, [1, 0.5, 1, 1]),
        ([100, 228, 100, 164], 15, [1, 0.75, 1, 0.875]),
        ([0, 255, 128, 0], 0b110, [0, 0.75, 1, 0]),  # by those that may be used
    ],
)
def test_marked_planes_give_up_turns(arith: ctypes.CDLL, marking: list[int], mask: int, shares: list[float]) -> None:
    taken = [arith.unmarked_planes((ctypes.c_uint8 * 16)(*marking), turn, 4, mask) for turn in range(0, 4096, 4)]
    assert all(taken)
    for plane, share in enumerate(shares):
        assert sum(t >> plane & 1 for t in taken) / 1024 == pytest.approx(share, abs=0.02)


def test_the_arrival_window_grows_with_the_delay_of_an_ev(arith: ctypes.CDLL) -> None:
    assert [arith.arrival_window(*x) for *x, _ in LATE] == [window for *_, window in LATE]


# ---- deadlines ----

MS, US = 1_000_000, 1000


# A wait that doubles from `first` up to `most`; after 31 doublings it stays at 2**31 times `first`.
@pytest.mark.parametrize(
    ("function", "unit_ns", "times", "first", "most", "waited"),
    [
        ("hold_down_ns", MS, 0, 1000, 60_000, 1000),
        ("hold_down_ns", MS, 1, 1000, 60_000, 1000),
        ("hold_down_ns", MS, 2, 1000, 60_000, 2000),
        ("hold_down_ns", MS, 6, 1000, 60_000, 32_000),
        ("hold_down_ns", MS, 7, 1000, 60_000, 60_000),
        ("hold_down_ns", MS, 255, 1000, 60_000, 60_000),
        ("hold_down_ns", MS, 255, 1, 2**32 - 1, 2**31),
        ("hold_down_ns", MS, 3, 60_000, 1000, 1000),
        ("hold_down_ns", MS, 5, 0, 1000, 0),
        ("backoff_ns", US, 0, 20_000, 1_000_000, 20_000),
        ("backoff_ns", US, 1, 20_000, 1_000_000, 40_000),
        ("backoff_ns", US, 5, 20_000, 1_000_000, 640_000),
        ("backoff_ns", US, 6, 20_000, 1_000_000, 1_000_000),
        ("backoff_ns", US, 65_535, 20_000, 1_000_000, 1_000_000),
        ("backoff_ns", US, 2**32 - 1, 1, 2**32 - 1, 2**31),
        ("backoff_ns", US, 0, 2_000_000, 1_000_000, 1_000_000),
    ],
)
def test_hold_downs_and_probe_intervals_double_up_to_a_cap(
    arith: ctypes.CDLL, function: str, unit_ns: int, times: int, first: int, most: int, waited: int
) -> None:
    assert getattr(arith, function)(times, first, most) == waited * unit_ns


@pytest.mark.parametrize(("first_ms", "most_ms"), [(1, 1), (1, 3_600_000), (1000, 60_000), (999, 123_456)])
def test_the_daemon_shows_the_hold_down_that_the_programs_keep(arith: ctypes.CDLL, first_ms: int, most_ms: int) -> None:
    settings = Health(hold_down_ms=first_ms, hold_down_max_ms=most_ms)
    kept = [arith.hold_down_ns(n, first_ms, most_ms) for n in range(256)]
    assert [int(probe_pace.hold_down_ns(settings, n)) for n in range(256)] == kept


def test_the_weight_of_an_ev_doubles_with_each_third_of_the_ramp(arith: ctypes.CDLL) -> None:
    ramp = 300 * MS
    weights = {0: 1, 100 * MS - 1: 1, 100 * MS: 2, 200 * MS - 1: 2, 200 * MS: 4, ramp - 1: 4, ramp: 8, 2**40: 8}
    assert {ns: arith.ramp_weight(ns, ramp) for ns in weights} == weights
    assert arith.ramp_weight(2**40, ramp) == arith.ramp_weight(0, 0) == abi.WEIGHT_FULL


@pytest.mark.parametrize("every", [1, 2, 3, 4, 8, 16, 64, 252, 256])
def test_an_ev_that_sees_every_nth_turn_takes_its_share(arith: ctypes.CDLL, every: int) -> None:
    for weight in (1, 2, 4):
        for first in {0, 1, every // 2, every - 1}:
            taken = sum(arith.takes_turn((first + i * every) % 2**16, weight) for i in range(256))
            assert abs(taken - 256 * weight / abi.WEIGHT_FULL) <= 8


@pytest.mark.parametrize("words", [0, 1, 3, 7, 135])
def test_siphash_is_that_of_the_library(arith: ctypes.CDLL, words: int) -> None:
    chance = random.Random(words)
    for _ in range(20):
        key, message = chance.randbytes(16), chance.randbytes(8 * words)
        assert arith.siphash(key, message, words).to_bytes(8, "little") == siphash24(message, key=key).digest()


def test_siphash_has_the_value_of_its_paper(arith: ctypes.CDLL) -> None:
    """Appendix A, for a message of 8 bytes: from the vectors of its reference code."""
    assert arith.siphash(bytes(range(16)), bytes(range(8)), 1) == 0x93F5F5799A932462


@pytest.mark.parametrize("start", [0, 1, 2**31 - 5, 2**32 - 8])
def test_no_number_is_seen_twice_and_none_is_missed(arith: ctypes.CDLL, start: int) -> None:
    chance = random.Random(start)
    words, accepted, newest = [0] * abi.REPLAY_WORDS, set(), -1
    for n in range(20_000):
        number = max(0, n + chance.randrange(-3000, 3))
        on_wire = (start + number) % 2**32
        at = on_wire // 32 % abi.REPLAY_WORDS
        after = arith.seen_after(words[at], on_wire, 9)
        if after != words[at]:
            assert number not in accepted
            accepted.add(number)
        else:
            assert number in accepted or newest - number > 32 * (abi.REPLAY_WORDS - 1)
        words[at], newest = after, max(newest, number)


@pytest.mark.parametrize("lost", [2**21, 2**25, 2**26, 3 * 2**25, 2**27, 2**31, 2**32 - 2**19])
def test_numbers_go_on_after_an_outage_of_any_length(arith: ctypes.CDLL, lost: int) -> None:
    word = arith.seen_after(0, 5, 1)
    after = arith.seen_after(word, (5 + lost) % 2**32, 1)
    assert after != word
    assert arith.seen_after(after, (5 + lost) % 2**32, 1) == after


def test_numbers_of_many_laps_before_are_not_new(arith: ctypes.CDLL) -> None:
    word = arith.seen_after(0, 2**20 + 5, 1)
    assert arith.seen_after(word, 2**20 + 5 - 2**18, 1) == word


def test_numbers_begin_anew_with_a_generation(arith: ctypes.CDLL) -> None:
    word = arith.seen_after(0, 4097, 1)
    assert arith.seen_after(word, 1, 1) == word
    anew = arith.seen_after(word, 1, 2)
    assert anew != word
    assert arith.seen_after(anew, 1, 2) == anew


# ---- an EV that loses more than others, and a plane that does ----

LEAST = 10  # Health.loss_samples
CLAIM = 1e-8  # per look, as the comment says


def accused(arith: ctypes.CDLL, total: int, evs: int, samples: int) -> int:
    """Returns how many of `total` losses, with equal samples, make one EV stand out."""
    return next(
        (k for k in range(total + 1) if arith.loses_more(k, samples, total - k, samples * (evs - 1), evs, LEAST)),
        total + 1,
    )


def tail(n: int, share: float, least: int) -> float:
    """Returns P(X ≥ least) of a binomial X."""
    return math.fsum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(least, n + 1))


@pytest.mark.parametrize("evs", [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 128])
def test_chance_is_taken_for_failure_less_than_once_in_10_to_the_8(arith: ctypes.CDLL, evs: int) -> None:
    """Given all losses, those of one EV are binomial with its share: the worst case over all totals."""
    worst = max(tail(total, 1 / evs, accused(arith, total, evs, 1000)) for total in range(1, 400))
    assert 0 < worst < CLAIM


def test_of_two_evs_one_seems_worse_once_in_10_to_the_9(arith: ctypes.CDLL) -> None:
    worst = max(tail(total, 1 / 2, accused(arith, total, 2, 1000)) for total in range(1, 400))
    assert worst == 2**-30


def look(arith: ctypes.CDLL, losses: list[int], samples: int) -> list[int]:
    """Returns the EVs that judge.h fails: compared with those with few losses, unless these are the fewer."""
    innocent = [n for n in losses if n < LEAST]
    if len(innocent) < len(losses) - len(innocent):
        return []
    others = sum(innocent), samples * len(innocent)
    return [
        ev
        for ev, n in enumerate(losses)
        if n >= LEAST and arith.loses_more(n, samples, *others, len(losses), LEAST)
    ]  # fmt: skip


@pytest.mark.parametrize("evs", [4, 8, 16, 64])
def test_equal_loss_is_not_compared_with_a_lucky_minority(arith: ctypes.CDLL, evs: int) -> None:
    """Without the suspects the others look better than they are, but not by that much."""
    chance = np.random.default_rng(evs)
    for mean in (0.5, 2, 5, 8, 9, 10, 11, 15, 40):
        for losses in chance.binomial(500, mean / 500, (3000, evs)).tolist():
            if max(losses) >= LEAST:
                assert look(arith, losses, 500) == [], (mean, losses)


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([10] + [0] * 15, [0]),
        ([9] + [0] * 15, []),
        ([40] * 8 + [0] * 8, list(range(8))),
        ([40] * 9 + [0] * 7, []),  # the fewer are no measure
        ([40] * 4 + [5] * 12, list(range(4))),
        ([34] * 4 + [5] * 12, []),
        ([20] + [0] * 6, [0]),
        ([19] + [0] * 6, []),
        ([20, 0, 0], [0]),
        ([19, 0, 0], []),
        ([30, 0], [0]),
        ([29, 0], []),
        ([20], []),
        ([0] * 16, []),
    ],
    ids=str,
)
def test_evs_that_lose_more_are_found(arith: ctypes.CDLL, losses: list[int], found: list[int]) -> None:
    assert look(arith, losses, 200) == found


def test_evs_with_more_samples_may_have_more_losses(arith: ctypes.CDLL) -> None:
    assert arith.loses_more(30, 100, 60, 1500, 16, LEAST)
    assert not arith.loses_more(30, 200, 60, 1500, 16, LEAST)
    assert not arith.loses_more(2**32 - 1, 2**32 - 1, 2**32 - 1, 1, 16, LEAST)
    assert not arith.loses_more(1000, 1000, 0, 0, 1, LEAST)  # a single EV


def looks(arith: ctypes.CDLL, total: int, failed: int, evs: int) -> float:
    """Returns how often `total` losses on the first `failed` of `evs` EVs, at random, look like those of all."""
    chance = np.random.default_rng(total)
    losses = chance.multinomial(total, [1 / failed] * failed, 3000)
    lossy = np.count_nonzero(losses, axis=1).tolist()
    return float(np.mean([arith.is_plane_wide(total, n, evs) for n in lossy]))


@pytest.mark.parametrize("evs", [64, 96, 128, 256])
def test_a_plane_whose_evs_lose_alike_is_found_in_one_look_of_two(arith: ctypes.CDLL, evs: int) -> None:
    for total in (32, 48, 64, 2 * evs):
        assert looks(arith, total, evs, evs) > 0.5, total


@pytest.mark.parametrize("evs", [4, 8, 16])
def test_few_evs_are_alike_when_most_have_losses(arith: ctypes.CDLL, evs: int) -> None:
    assert arith.is_plane_wide(evs // 2 + 1, evs // 2 + 1, evs)
    assert not arith.is_plane_wide(evs // 2, evs // 2, evs)


@pytest.mark.parametrize("evs", [64, 96, 128])
def test_a_quarter_of_the_evs_is_not_taken_for_their_plane(arith: ctypes.CDLL, evs: int) -> None:
    for total in range(10, 4 * evs, 3):
        assert looks(arith, total, evs // 8, evs) == 0, total
        assert looks(arith, total, evs // 4, evs) < 0.01, total
