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

/* The first slot at or after `from` whose bit is set, wrapping once; NO_SLOT if none is. */
static inline __u32 next_slot(const __u64 *usable, __u32 slots, __u32 from)
{
	const __u32 words = (slots + 63) / 64;
	__u32 word, i;
	__u64 bits;

	if (from >= slots)
		from = 0;
	word = from / 64;
	for (i = 0; i <= MRC_EV_WORDS && i <= words; i++) {
		bits = usable[word & (MRC_EV_WORDS - 1)];
		if (i == 0)
			bits &= ~0ULL << (from % 64);
		if (bits)
			return word * 64 + lowest_bit(bits);
		if (++word >= words)
			word = 0;
	}
	return NO_SLOT;
}

#endif
