/* Pure arithmetic, without BPF helpers: unit tests compile it with the host's compiler. */
#ifndef MRC_ARITH_H
#define MRC_ARITH_H

#include "mrc_abi.h"

#define ECN_NOT_ECT 0
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3
#define ECN_MASK 3
#define ECN_INVALID (-1)

#define NO_SLOT 0xffffffffu
#define NS_PER_US 1000ULL
#define NS_PER_MS 1000000ULL

/* The inner ECN field after decapsulation (RFC 6040 §4.2, figure 4), or ECN_INVALID: drop. */
static inline int ecn_decapsulated(__u8 inner, __u8 outer)
{
	if (outer == ECN_CE)
		return inner == ECN_NOT_ECT ? ECN_INVALID : ECN_CE;
	if (outer == ECN_ECT1 && inner == ECN_ECT0)
		return ECN_ECT1;
	return inner;
}

/* One's complement checksum after a 16-bit word of the header changed (RFC 1624, eqn. 3). */
static inline __u16 csum_replace16(__u16 csum, __u16 from, __u16 to)
{
	__u32 sum = (__u16)~csum + (__u32)(__u16)~from + to;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* Another hash of the same flow, as even as the first (the finaliser of MurmurHash3, Appleby, 2011). */
static inline __u32 rehash(__u32 hash)
{
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return (hash ^ hash >> 16) + 1; /* 0 must not stay 0 */
}

/* Where a CPU remembers whose an address is. Neighbouring addresses get slots of their own: the last word of the
 * address, in network byte order, counts as it is.
 */
static inline __u32 dst_slot(const __u32 *address)
{
	__u32 rest = (address[0] ^ address[1] ^ address[2]) * 0x9e3779b1u;
	__u32 last = __builtin_bswap32(address[3]);

	return (last ^ last >> 12 ^ rest >> 20) & (MRC_DST_ENTRIES - 1);
}

/* The lowest bit set of a word that is not 0. */
static inline __u32 lowest_bit(__u64 word)
{
	__u32 bit = 0;

	if (!(word & 0xffffffff)) {
		bit += 32;
		word >>= 32;
	}
	if (!(word & 0xffff)) {
		bit += 16;
		word >>= 16;
	}
	if (!(word & 0xff)) {
		bit += 8;
		word >>= 8;
	}
	if (!(word & 0xf)) {
		bit += 4;
		word >>= 4;
	}
	if (!(word & 0x3)) {
		bit += 2;
		word >>= 2;
	}
	return bit + !(word & 1);
}

/* The first bit set of those from `from` to before `end`; NO_SLOT if none is. */
static inline __u32 next_bit(const __u64 *words, __u32 from, __u32 end)
{
	__u32 word = from / 64, bit, i;
	__u64 bits;

	for (i = 0; i < MRC_EV_WORDS && word * 64 < end; i++, word++) {
		bits = words[word & (MRC_EV_WORDS - 1)];
		if (i == 0)
			bits &= ~0ULL << (from % 64);
		if (bits) {
			bit = word * 64 + lowest_bit(bits);
			return bit < end ? bit : NO_SLOT;
		}
	}
	return NO_SLOT;
}

/* The first usable slot at or after `from` of a plane, wrapping once; NO_SLOT if none is. `usable` has a bit per EV, the
 * plane `slots` from bit `first` on.
 */
static inline __u32 next_slot(const __u64 *usable, __u32 first, __u32 slots, __u32 from)
{
	__u32 bit;

	if (from >= slots)
		from = 0;
	bit = next_bit(usable, first + from, first + slots);
	if (bit == NO_SLOT)
		bit = next_bit(usable, first, first + from);
	return bit == NO_SLOT ? NO_SLOT : bit - first;
}

/* Packets known to be lost, from what was known before. At least those are that were sent so long ago that
 * they must have arrived, and have not; at most all that were sent and have not. In between it stays as
 * it was: what has arrived may have been sent later.
 */
static inline __u32 known_lost(__u32 before, __s32 least, __s32 most)
{
	if ((__s32)before < least)
		return least;
	if ((__s32)before > most)
		return most > 0 ? most : 0;
	return before;
}

/* How much a wrapping count has grown; 0 if it has shrunk: two CPUs of the peer made reports at once, and dated
 * them the other way round. (Without a branch: the verifier walks through each.)
 */
static inline __u32 grown16(__u16 now, __u16 before)
{
	__u32 grown = (__u16)(now - before);

	return grown & ((grown >> 15) - 1);
}

#define QUEUE_DELAY_NS 500000 /* more delay than this is a queue, or a longer way; less may be the hosts' */

/* How long packets on an EV may take: the reordering window of all EVs; and, where this EV's delay exceeds the least of
 * the others by more than that, as much more, and a quarter, for queues grow while that is measured.
 */
static inline __u64 arrival_window(__u64 window_ns, __u32 late_ns, __u32 least_extra_delay_ns)
{
	__u64 more = late_ns > least_extra_delay_ns ? late_ns - least_extra_delay_ns : 0;

	return more > window_ns ? window_ns + more + more / 4 : window_ns;
}

#define NEVER_NS (~0ULL)

/* The planes on which a packet would begin to arrive before it has arrived on the soonest, as bits; and a little
 * later. `wait_ns` is how long what is under way takes, NEVER_NS: not this plane; `burst_ns` how long a burst like
 * this takes on each.
 */
static inline __u32 in_pace(const __u64 *wait_ns, const __u64 *burst_ns)
{
	__u64 soonest = NEVER_NS;
	__u32 planes = 0, i;

	for (i = 0; i < MRC_MAX_PLANES; i++)
		if (wait_ns[i] != NEVER_NS && wait_ns[i] + burst_ns[i] < soonest)
			soonest = wait_ns[i] + burst_ns[i];
	for (i = 0; i < MRC_MAX_PLANES; i++)
		if (wait_ns[i] != NEVER_NS && wait_ns[i] <= soonest + soonest / 16)
			planes |= 1u << i;
	return planes;
}

#define PACE_MAX_NS 10000000 /* a packet takes no longer: 1 Mbit/s */

/* Time per packet on a plane, smoothed (1/4), after so many arrived in so much time. Idle times say nothing. */
static inline __u32 smoothed_pace(__u32 pace_ns, __u32 packets, __u64 ns)
{
	__u64 now = packets ? ns / packets : 0;

	if (!now || now > PACE_MAX_NS)
		return pace_ns;
	return pace_ns ? pace_ns - pace_ns / 4 + (__u32)now / 4 : (__u32)now;
}

/* Histogram bucket of a value: four per power of two, 0 to 3 each alone. */
static inline __u32 bucket_of(__u64 value)
{
	__u32 exponent = 0;
	__u64 rest = value;

	if (value < 4)
		return value;
	if (rest >> 32) {
		exponent += 32;
		rest >>= 32;
	}
	if (rest >> 16) {
		exponent += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		exponent += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		exponent += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		exponent += 2;
		rest >>= 2;
	}
	exponent += rest >> 1;
	return (exponent - 1) * 4 + ((value >> (exponent - 2)) & 3);
}

/* Whether `then` is at least `age` ago. Another CPU may have dated it a little later than `now`. */
static inline int aged(__u64 now, __u64 then, __u64 age)
{
	return (__s64)(now - then) >= (__s64)age;
}

/* How long an EV must be well before it returns, after so many flaps: doubles with each, up to a cap. */
static inline __u64 hold_down_ns(__u32 flaps, __u32 first_ms, __u32 most_ms)
{
	__u32 shift = flaps > 1 ? flaps - 1 : 0;
	__u64 ms = (__u64)first_ms << (shift < 31 ? shift : 31);

	return (ms < most_ms ? ms : most_ms) * 1000000ULL;
}

/* Turns out of MRC_WEIGHT_FULL that an EV takes so long after its return: 1, 2, 4, then all. */
static inline __u32 ramp_weight(__u64 elapsed_ns, __u64 ramp_ns)
{
	__u64 step = ramp_ns ? elapsed_ns * 3 / ramp_ns : 3;

	return step < 3 ? 1u << step : MRC_WEIGHT_FULL;
}

/* Time to the next probe of an EV, of whose newest probes in a row so many have no answer. */
static inline __u64 backoff_ns(__u32 unanswered, __u32 first_us, __u32 most_us)
{
	__u64 us = (__u64)first_us << (unanswered < 31 ? unanswered : 31);

	return (us < most_us ? us : most_us) * NS_PER_US;
}

#define FEW_EVS 8
#define LOSS_RATIO_LIMIT 5

/* Whether an EV loses more than the others of its peer do. Samples are reports that knew of new packets,
 * and single probes; `evs` are in use, the EV itself included. If all lose alike, an EV's losses are its
 * share of all: that it has this many more by chance happens in less than one of 10^8 looks, if `least`
 * is 10 or more (binomial tail; tests/unit/test_fairness.py works it out).
 */
static inline int loses_more(__u32 losses, __u32 samples, __u32 others_losses, __u32 others_samples,
			     __u32 evs, __u32 least)
{
	__u32 base = evs < 3 ? 3 * least : evs < FEW_EVS ? 2 * least : least;

	return losses >= base && others_samples &&
	       (__u64)(losses - base) * others_samples >= (__u64)LOSS_RATIO_LIMIT * others_losses * samples;
}

#endif
