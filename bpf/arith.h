/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Computes what the programs decide by numbers alone. It calls no BPF helper, so unit tests compile it with the host's
 * compiler.
 */
#ifndef MRC_ARITH_H
#define MRC_ARITH_H

#include "mrc_abi.h"

/* The ECN field (RFC 3168 §5). */
#define ECN_NOT_ECT 0
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3
#define ECN_MASK 3
#define ECN_INVALID (-1) /* the combination must be dropped */

/* Hide a value from the compiler. Then it does not move a check away from the register that is used, fold two checks
 * into one of a difference, drop a mask that it can prove redundant, or make a branch of a mask. Verifiers prove less:
 * that of 6.12 does not bound the result of a byte swap.
 */
#define OPAQUE(value) asm volatile("" : "+r"(value))

/* Fractions of 2^32 whose multiples, sums and differences spread evenly: 1/p and 1/p^2, for p^3 = p + 1 (Roberts, 2018). */
#define SENDER_STEP 0xc13fa9a9u
#define RECEIVER_STEP 0x91e10da6u

#define NO_SLOT 0xffffffffu /* no EV or slot has this number */
#define NS_PER_US 1000ULL
#define NS_PER_MS 1000000ULL
#define NS_PER_S 1000000000ULL
#define SLOW_PERIODS 64 /* periods of measurement in which a plane's known time per packet fades by that of the quickest */
#define HELD_MAX_NS (100 * NS_PER_MS) /* a time stamp later than this is not believed */
#define PPM 1000000 /* parts per million in one */

#define QUEUE_DELAY_NS 500000 /* more extra delay than this is a queue or a longer path; less may come from the hosts */
#define NEVER_NS (1ULL << 62) /* no waiting time is this long; differences of shorter ones have a sign */
#define PACE_MAX_NS 10000000 /* 1 Mbit/s at 1,250 bytes: a longer time per packet is an idle plane, not a slow one */
#define FEW_EVS 8 /* below this number of EVs, an EV's share of all losses varies more: more losses are needed */
#define REFILL_TRIES 4
#define SEEN_LAP_MASK ((1U << 21) - 1) /* bits of a number's lap, in the replay window */
#define SEEN_LAPS_OLD 128 /* 262,144 numbers: more than a host sends to a peer while a recorded one is believed */
#define SEEN_EPOCH_MASK ((1U << 10) - 1)
#define PLANE_WIDE_EVS 24 /* with fewer lossy EVs, a few that failed could look like all */
#define LOSS_RATIO_LIMIT 5 /* times the loss ratio of the other EVs, beyond the base: rules out chance */

/* Return the inner ECN field after decapsulation (RFC 6040 §4.2, figure 4), or ECN_INVALID if the packet must be
 * dropped.
 */
static inline int ecn_decapsulated(__u8 inner, __u8 outer)
{
	if (outer == ECN_CE)
		return inner == ECN_NOT_ECT ? ECN_INVALID : ECN_CE;
	if (outer == ECN_ECT1 && inner == ECN_ECT0)
		return ECN_ECT1;
	return inner;
}

/* Return the one's complement checksum after a 16-bit word of the header changed (RFC 1624, eqn. 3). */
static inline __u16 csum_replace16(__u16 csum, __u16 from, __u16 to)
{
	__u32 sum = (__u16)~csum + (__u32)(__u16)~from + to;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* Return what is to be added to a sum over a packet after a 32-bit word of it changed (RFC 1624). */
static inline __u32 csum_change(__u32 from, __u32 to)
{
	__u64 sum = (__u64)to + (__u32)~from;

	return (__u32)sum + (__u32)(sum >> 32);
}

/* Return another hash of the same flow, as evenly distributed as the first (the finaliser of MurmurHash3, Appleby,
 * 2011).
 */
static inline __u32 rehash(__u32 hash)
{
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return (hash ^ hash >> 16) + 1; /* 0 must not map to 0 */
}

/* Return where a sender begins with a receiver, out of `places`. The pairs of one sender, those of one receiver, and
 * those of a regular pattern (each host to its next, to its opposite) begin at different places, each as often.
 */
static inline __u32 pair_offset(__u16 sender, __u16 receiver, __u32 places)
{
	__u32 turn = sender * SENDER_STEP + receiver * RECEIVER_STEP;

	return (__u64)turn * places >> 32;
}

/* Return an address's slot in a CPU's destination cache. Neighbouring addresses get different slots, because the last
 * word of the address enters unhashed.
 */
static inline __u32 dst_slot(const __u32 *address)
{
	__u32 rest = (address[0] ^ address[1] ^ address[2]) * 0x9e3779b1u;
	__u32 last = __builtin_bswap32(address[3]);

	return (last ^ last >> 12 ^ rest >> 20) & (MRC_DST_ENTRIES - 1);
}

/* Return all bits set if `a` is less than `b`, else 0. Both are less than 2^63. A mask instead of a branch, because the
 * verifier follows both ways of a branch, and a CPU can guess the wrong one.
 */
static inline __u64 less_mask(__u64 a, __u64 b)
{
	__s64 less = a - b, mask;

	OPAQUE(less); /* else the compiler makes a branch of the shift, */
	mask = less >> 63;
	OPAQUE(mask); /* or of the mask's use */
	return mask;
}

/* Return the lesser of two numbers below 2^63, without a branch. */
static inline __u64 lesser(__u64 a, __u64 b)
{
	__s64 less = a - b, mask;

	OPAQUE(less);
	mask = less >> 63;
	OPAQUE(mask);
	return b + (less & mask);
}

/* Return the number of the lowest bit set in a word that is not 0: the number of bits below it. Without branches, as
 * above.
 */
static inline __u32 lowest_bit(__u64 word)
{
	__u64 below = ~word & (word - 1);

	OPAQUE(below); /* else the compiler makes a table of this, in the section of the settings */
	return __builtin_popcountll(below);
}

/* Return the first bit set from `from` on and before `end`, or NO_SLOT. */
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

/* Return the first usable slot of a plane at or after `from`, wrapping once, or NO_SLOT. `usable` has a bit per EV; the
 * plane's `slots` bits begin at bit `first`.
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

/* Return the packets known to be lost, from the number known before. `least` is sent minus arrived, for packets sent so
 * long ago that they must have arrived. `most` is the same for all packets sent. Between the two the number stays: an
 * arrived packet may have been sent later than the mark.
 */
static inline __u32 known_lost(__u32 before, __s32 least, __s32 most)
{
	if ((__s32)before < least)
		return least;
	if ((__s32)before > most)
		return most > 0 ? most : 0;
	return before;
}

/* Return the growth of a wrapping count, or 0 if it shrank. It shrinks where two CPUs of the peer made reports at once
 * and dated them in the other order. It has no branch, because the verifier walks through each.
 */
static inline __u32 grown16(__u16 now, __u16 before)
{
	__u32 grown = (__u16)(now - before);

	return grown & ((grown >> 15) - 1);
}

/* Return how long packets on an EV may take to arrive: `window_ns`, the reordering window of all EVs. Where the EV's
 * extra delay exceeds the least of the others by more than that, add the excess and a quarter of it, because queues
 * grow while they are measured.
 */
static inline __u64 arrival_window(__u64 window_ns, __u32 extra_delay_ns, __u32 least_extra_delay_ns)
{
	__u64 more = extra_delay_ns > least_extra_delay_ns ? extra_delay_ns - least_extra_delay_ns : 0;

	return more > window_ns ? window_ns + more + more / 4 : window_ns;
}

/* Return the planes of `plane_mask`, as bits, on which a burst ends to arrive no later than the next burst would on the
 * fastest plane, plus 1/16. `end_ns`: time until it has arrived, on each of `planes`; `quickest_ns`: the least time that
 * the burst alone takes on one of them. On a much slower plane a burst would end to arrive long after later ones, for
 * which TCP would wait, or which it would take for lost. Without branches: the verifier would walk through all
 * combinations of planes.
 */
static inline __u32 in_pace(const __u64 *end_ns, __u64 quickest_ns, __u32 planes, __u32 plane_mask)
{
	__u64 soonest = NEVER_NS;
	__u32 late = 0, i;

	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++)
		soonest = lesser(end_ns[i] | (__u64)(~plane_mask >> i & 1) << 62, soonest);
	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++)
		late |= (soonest + soonest / 16 + quickest_ns - end_ns[i]) >> 63 << i;
	return plane_mask & ~late;
}

/* Return the smoothed time per packet of a plane (1/4), after `packets` arrived in `ns`. Idle times do not count. */
static inline __u32 smoothed_pace(__u32 pace_ns, __u32 packets, __u64 ns)
{
	__u64 now = packets ? ns / packets : 0;

	if (!now || now > PACE_MAX_NS)
		return pace_ns;
	return pace_ns ? pace_ns - pace_ns / 4 + (__u32)now / 4 : (__u32)now;
}

/* Return the time per packet that a plane is known to need: `pace_ns`, if it had a queue all the time; otherwise it could
 * carry more than it was given. Then the knowledge fades over `periods` of measurement, by halves in three seconds, and
 * sooner where it is near that of the quickest: a plane that was too slow to be used is tried again, the later, the slower
 * it was.
 */
static inline __u32 next_slow_ns(__u32 slow_ns, __u32 pace_ns, __u32 has_queue, __u32 quickest_ns, __u32 periods)
{
	__u64 less = ((__u64)quickest_ns / SLOW_PERIODS + slow_ns / (8 * SLOW_PERIODS) + 1) * periods;

	return has_queue ? pace_ns : slow_ns - (__u32)lesser(slow_ns, less);
}

/* Return a plane's smoothed CE marks per 256 packets (1/4), after `marked` of `packets` had a mark. */
static inline __u32 smoothed_marking(__u32 marking, __u32 marked, __u32 packets)
{
	__u32 now = packets ? lesser(marked, packets) * 255 / packets : 0;

	return (3 * marking + now) / 4;
}

/* Return the planes of `plane_mask`, as bits, that take the turn of this number: a plane gives up half the share of its
 * turns by which the peer sees more of its packets marked than of the least marked plane (as DCTCP's window, RFC 8257
 * §3.3). Without branches: the verifier would walk through all combinations of planes.
 */
static inline __u32 unmarked_planes(const __u8 *marking, __u32 turn, __u32 planes, __u32 plane_mask)
{
	__u32 late = 0, mixed = turn * 0x9e3779b1, i;
	__u64 least = NEVER_NS, at;

	/* Not scattered(): a plane that gives up its turn has its next one sooner, and the two would keep step. */
	mixed = (mixed ^ mixed >> 15) * 0x85ebca77;
	at = mixed >> 24;
	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++)
		least = lesser(marking[i] | (__u64)(~plane_mask >> i & 1) << 62, least);
	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++)
		late |= (2 * at + least - marking[i]) >> 63 << i;
	return plane_mask & ~late;
}

/* Return the histogram bucket of a value: four buckets per power of two; 0 to 3 have one each. */
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

/* Return 1 if `then` is at least `age` before `now`. Differences are signed, because another CPU can have stored a
 * `then` later than `now`.
 */
static inline int aged(__u64 now, __u64 then, __u64 age)
{
	return (__s64)(now - then) >= (__s64)age;
}

/* Return a word of the replay window after `number` arrived. Bits 0 to 31 tell which of 32 consecutive numbers have
 * arrived. Bits 32 to 52 are the lap: how often numbers had gone through all words of the window. Bits 54 to 63 are the
 * epoch, in which numbers begin anew. Returns the same word if the number has arrived before, or is one of up to
 * SEEN_LAPS_OLD laps before. All other numbers are new: an outage may cost any number of them.
 */
static inline __u64 seen_after(__u64 word, __u32 number, __u32 epoch)
{
	__u32 lap = number / (32 * MRC_REPLAY_WORDS), older = ((__u32)(word >> 32) - lap) & SEEN_LAP_MASK;
	__u64 bit = 1ULL << number % 32, fresh;

	epoch &= SEEN_EPOCH_MASK;
	fresh = (__u64)epoch << 54 | (__u64)lap << 32 | bit;
	if (!(__u32)word || word >> 54 != epoch)
		return fresh;
	if (!older)
		return word | bit;
	return older <= SEEN_LAPS_OLD ? word : fresh;
}

/* Return 1 if a number is of one of up to SEEN_LAPS_OLD laps before the word's: whether it has arrived is not known. */
static inline int is_forgotten(__u64 word, __u32 number, __u32 epoch)
{
	__u32 older = ((__u32)(word >> 32) - number / (32 * MRC_REPLAY_WORDS)) & SEEN_LAP_MASK;

	return (__u32)word && word >> 54 == (epoch & SEEN_EPOCH_MASK) && older && older <= SEEN_LAPS_OLD;
}

/* Return the later of now and a time of the near future. */
static inline __u64 later_than(__u64 now, __u64 then)
{
	return then - now < HELD_MAX_NS ? then : now;
}

/* Return how long an EV must work before it returns, after this many flaps: `first_ms`, doubled per further flap, at
 * most `most_ms`.
 */
static inline __u64 hold_down_ns(__u32 flaps, __u32 first_ms, __u32 most_ms)
{
	__u32 shift = flaps > 1 ? flaps - 1 : 0;
	__u64 ms = (__u64)first_ms << (shift < 31 ? shift : 31);

	return (ms < most_ms ? ms : most_ms) * NS_PER_MS;
}

/* Return the turns, out of MRC_WEIGHT_FULL, that an EV takes this long after its return: 1, 2, 4, then all. */
static inline __u32 ramp_weight(__u64 elapsed_ns, __u64 ramp_ns)
{
	__u64 step = ramp_ns ? elapsed_ns * 3 / ramp_ns : 3;

	return step < 3 ? 1u << step : MRC_WEIGHT_FULL;
}

/* Return a number below 2^16. Those of successive turns are multiples of the golden ratio: those of every n-th turn are
 * spread evenly for any n.
 */
static inline __u32 scattered(__u16 turn)
{
	return (__u16)(turn * 40503u);
}

/* Return 1 if the turn of this number is one that an EV of this weight takes. Turns are scattered, because EVs on their
 * ramp count turns together: an EV that sees every n-th gets its share.
 */
static inline int takes_turn(__u16 turn, __u32 weight)
{
	return scattered(turn) * MRC_WEIGHT_FULL >> 16 < weight;
}

/* Return the time to the next probe of an EV whose newest `unanswered` probes in a row have no answer. */
static inline __u64 backoff_ns(__u32 unanswered, __u32 first_us, __u32 most_us)
{
	__u64 us = (__u64)first_us << (unanswered < 31 ? unanswered : 31);

	return (us < most_us ? us : most_us) * NS_PER_US;
}

/* Add to a budget, and keep it between two bounds. Other CPUs charge it meanwhile, and no charge is lost. */
static inline void refill_budget(__s64 *budget, __s64 more, __s64 least, __s64 most)
{
	__s64 before = *(volatile __s64 *)budget, after, found;
	int i;

	for (i = 0; i < REFILL_TRIES; i++) {
		after = before + more;
		if (after > most)
			after = most;
		if (after < least)
			after = least;
		found = __sync_val_compare_and_swap(budget, before, after);
		if (found == before)
			return;
		before = found;
	}
	__sync_fetch_and_add(budget, more); /* the next refill keeps the bounds */
}

/* Return 1 if an EV loses more than the other EVs of its peer. Samples are reports with new packets, and single probes.
 * `evs` is the number of EVs in use, this one included. If all EVs lose alike, an EV's losses are its share of all
 * losses. By chance it exceeds that share by so much in less than one of 10^8 looks, if `least` is 10 or more (binomial
 * tail; computed by tests/unit/test_arith.py).
 */
static inline int loses_more(__u32 losses, __u32 samples, __u32 others_losses, __u32 others_samples, __u32 evs,
			     __u32 least)
{
	__u32 base = evs < 3 ? 3 * least : evs < FEW_EVS ? 2 * least : least;

	return losses >= base && others_samples &&
	       (__u64)(losses - base) * others_samples >= (__u64)LOSS_RATIO_LIMIT * others_losses * samples;
}

/* Return 1 if the losses of a plane lie on its EVs alike: most of its `evs` EVs have one, or as many as if each loss took
 * an EV at random. With many EVs, a loss window holds less than one loss per EV. Of n losses, about n^2 / (2 evs) then
 * meet an EV that has one already; where a quarter of the EVs failed, four times as many
 * (tests/unit/test_arith.py).
 */
static inline int is_plane_wide(__u32 losses, __u32 lossy_evs, __u32 evs)
{
	return 2 * lossy_evs > evs || (lossy_evs >= PLANE_WIDE_EVS && losses < evs &&
				       2 * (losses - lossy_evs) * evs <= losses * losses);
}

#endif
