/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Computes SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012), a keyed hash of 64 bits. It calls no BPF helper, so
 * unit tests compile it with the host's compiler.
 *
 * The caller gives the message in words of 8 bytes, in the order of memory; every message of mrcd is a multiple of 8
 * bytes long.
 */
#ifndef MRC_SIPHASH_H
#define MRC_SIPHASH_H

#include <linux/types.h>

struct siphash {
	__u64 v0;
	__u64 v1;
	__u64 v2;
	__u64 v3;
};

/* Return a word as SipHash reads it: little-endian. */
static inline __u64 siphash_read(__u64 word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	return __builtin_bswap64(word);
#else
	return word;
#endif
}

static inline __attribute__((always_inline)) __u64 rotated(__u64 word, __u32 bits)
{
	return word << bits | word >> (64 - bits);
}

static inline __attribute__((always_inline)) void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = rotated(s->v1, 13) ^ s->v0;
	s->v3 = rotated(s->v3, 16) ^ s->v2;
	s->v0 = rotated(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = rotated(s->v1, 17) ^ s->v2;
	s->v3 = rotated(s->v3, 21) ^ s->v0;
	s->v2 = rotated(s->v2, 32);
}

/* Begin a hash with a key of two words. */
static inline __attribute__((always_inline)) void siphash_begin(struct siphash *s, const __u64 *key)
{
	__u64 k0 = siphash_read(key[0]), k1 = siphash_read(key[1]);

	s->v0 = k0 ^ 0x736f6d6570736575ULL;
	s->v1 = k1 ^ 0x646f72616e646f6dULL;
	s->v2 = k0 ^ 0x6c7967656e657261ULL;
	s->v3 = k1 ^ 0x7465646279746573ULL;
}

static inline __attribute__((always_inline)) void siphash_mix(struct siphash *s, __u64 number)
{
	s->v3 ^= number;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= number;
}

/* Add the next word of the message. */
static inline __attribute__((always_inline)) void siphash_word(struct siphash *s, __u64 word)
{
	siphash_mix(s, siphash_read(word));
}

/* Return the hash of a message of `bytes` bytes. */
static inline __attribute__((always_inline)) __u64 siphash_end(struct siphash *s, __u32 bytes)
{
	siphash_mix(s, (__u64)bytes << 56);
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

#endif
