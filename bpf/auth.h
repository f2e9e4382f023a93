/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Makes and checks the tags of packets: who sent a packet, and that it is new.
 *
 * Each ordered pair of hosts has a key of its own (mrcd/auth/keyring.py), so no third host can make a tag, and no packet
 * can be reflected. A tag covers the MRC header, and in probes everything that is believed. It does not cover an inner
 * packet: a burst has one header for many packets. The outer source must be the sender's address on the EV's plane,
 * or of a reply on the plane by which it arrives (pop.h), so the tag covers the source, too.
 *
 * A recorded packet is refused in three ways. Its time must be near the peer's clock, which only a reply tells: that is
 * as new as the request that it answers. Until then a host that requires tags answers requests, but believes none. A
 * probe is believed once. Data within AGE_MAX_NS is delivered again.
 */
#ifndef MRC_AUTH_H
#define MRC_AUTH_H

#include <stddef.h>

#include <bpf/bpf_endian.h>

#include "arith.h"
#include "maps.h"
#include "siphash.h"

#define TAGGED_BYTES offsetof(struct mrc_hdr, auth)
#define AGE_MAX_NS 500000000LL /* hosts and virtual machines can stand still for so long */
#define AHEAD_MAX_NS 100000000LL /* a packet can come so much sooner than the one that told the clock */
#define CLOCK_ERROR_NS 10000000ULL /* a smaller change of the clock is delay */
#define SEEN_TRIES 32
#define CLOCK_DOUBT_NS 20000000ULL /* a peer's clock is requested if it was not heard for so long */
#define CLOCK_RTT_MAX_NS 100000000ULL /* a reply that took longer does not tell the clock */

_Static_assert(TAGGED_BYTES == 24, "add_header() reads three words");
_Static_assert(sizeof(struct mrc_probe) == 32, "add_probe() reads four words");

/* Add the words of a header to a tag. */
static __always_inline void add_header(struct siphash *s, const struct mrc_hdr *mrc)
{
	const __u64 *words = (const void *)mrc;

	siphash_word(s, words[0]);
	siphash_word(s, words[1]);
	siphash_word(s, words[2]);
}

/* Return the tag of a data packet. */
static __always_inline __u64 data_tag(const __u64 *key, const struct mrc_hdr *mrc)
{
	struct siphash s;

	siphash_begin(&s, key);
	add_header(&s, mrc);
	return siphash_read(siphash_end(&s, TAGGED_BYTES));
}

/* Add the words of a probe to a tag. */
static __always_inline void add_probe(struct siphash *s, const struct mrc_probe *probe)
{
	const __u64 *words = (const void *)probe;

	siphash_word(s, words[0]);
	siphash_word(s, words[1]);
	siphash_word(s, words[2]);
	siphash_word(s, words[3]);
}

/* Return the tag of a probe without counts. */
static __always_inline __u64 probe_tag_in_place(const __u64 *key, const struct control *c)
{
	struct siphash s;

	siphash_begin(&s, key);
	add_header(&s, &c->mrc);
	add_probe(&s, &c->probe);
	return siphash_read(siphash_end(&s, TAGGED_BYTES + sizeof(c->probe)));
}

/* The same, by the two words of a key. A global function, as reply_tag(): the verifier checks it once, not at each call.
 */
__noinline __u64 probe_tag(__u64 key0, __u64 key1, const struct control *c)
{
	__u64 key[] = { key0, key1 };

	return c ? probe_tag_in_place(key, c) : 0;
}

/* Return the tag of the reply in `scratch`. */
__noinline __u64 reply_tag(__u64 key0, __u64 key1, const struct mrc_scratch *scratch)
{
	__u64 key[] = { key0, key1 }, i, counts;
	const struct control *c;
	struct siphash s;

	if (!scratch)
		return 0;
	c = &scratch->control;
	counts = bpf_ntohs(c->probe.counts);
	siphash_begin(&s, key);
	add_header(&s, &c->mrc);
	add_probe(&s, &c->probe);
	for (i = 0; i < MRC_REPORT_EVS && i < counts; i++) /* no bpf_loop(): it would keep `s` in memory */
		siphash_word(&s, *(const __u64 *)&scratch->count[i]);
	return siphash_read(siphash_end(&s, TAGGED_BYTES + sizeof(c->probe) + counts * sizeof(struct mrc_count)));
}

/* Return the key that this host sends with, and write its id into the header; NULL if packets are not tagged. */
static __always_inline const __u64 *sending_key(const struct mrc_auth *auth, struct mrc_hdr *mrc)
{
	__u32 slot = auth->tx_slot & (MRC_KEY_IDS - 1);

	mrc->key_id = auth->tx_id[slot];
	return mrc->key_id ? auth->tx_key[slot] : 0;
}

/* Tag a complete data header. */
static __always_inline void tag_data(struct mrc_hdr *mrc, __u32 host_id)
{
	const struct mrc_auth *auth = auth_at(host_id);
	const __u64 *key = auth ? sending_key(auth, mrc) : 0;

	if (key)
		mrc->auth = data_tag(key, mrc);
}

/* Tell the peer which keys it may use, this host's status, and which cluster file it has. */
static __always_inline void announce(struct mrc_probe *probe, const struct mrc_auth *auth, const struct mrc_node *self)
{
	probe->key_ids[0] = auth->rx_id[0];
	probe->key_ids[1] = auth->rx_id[1];
	probe->plane_mask = bpf_htons(self->plane_mask);
	probe->status = bpf_htons(self->status | auth->status);
	probe->generation = bpf_htonl(self->generation);
	probe->fingerprint = bpf_htons(settings.fingerprint);
}

/* Tag a complete request. `in_place`: without a call, where the caller's stack has no room for one more. */
static __always_inline void tag_request(struct control *c, const struct mrc_auth *auth, int in_place)
{
	const __u64 *key = sending_key(auth, &c->mrc);

	c->mrc.auth = !key ? 0 : in_place ? probe_tag_in_place(key, c) : probe_tag(key[0], key[1], c);
}

/* Tag the complete reply in `scratch`. */
static __always_inline void tag_reply(struct mrc_scratch *scratch, const struct mrc_auth *auth)
{
	const __u64 *key = sending_key(auth, &scratch->control.mrc);

	scratch->control.mrc.auth = key ? reply_tag(key[0], key[1], scratch) : 0;
}

/* Return the key of this id among two, or NULL. */
static __always_inline const __u64 *key_of(const __u8 *ids, const __u64 (*keys)[2], __u8 id)
{
	if (!id)
		return 0;
	return ids[0] == id ? keys[0] : ids[1] == id ? keys[1] : 0;
}

/* Return the key under which a packet of the peer must be tagged, or NULL: then `reason` says whether to drop it. */
static __always_inline const __u64 *receiving_key(struct mrc_auth *auth, __u8 id, enum mrc_drop *reason)
{
	const __u64 *key;

	*reason = MRC_DROP_NONE;
	if (auth->mode == MRC_AUTH_OFF)
		return 0;
	key = key_of(auth->rx_id, auth->rx_key, id);
	if (key)
		return key;
	if (id)
		*reason = MRC_DROP_UNKNOWN_KEY;
	else if (auth->mode == MRC_AUTH_REQUIRED)
		*reason = MRC_DROP_UNTAGGED;
	return 0;
}

/* Return 1 if a packet that receiving_key() has let pass without a key is to be counted as untagged. */
static __always_inline int counts_untagged(const struct mrc_auth *auth, __u8 id)
{
	return !id && auth->mode == MRC_AUTH_PERMISSIVE;
}

/* Judge a probe for which receiving_key() has no key: drop it for this reason, or count it as untagged. */
static __always_inline enum mrc_drop accept_untagged(struct mrc_auth *auth, __u8 id, enum mrc_drop reason)
{
	if (counts_untagged(auth, id))
		__sync_fetch_and_add(&auth->untagged, 1);
	return reason;
}

/* Return 1 if a packet was sent lately by the peer's clock. While that is unknown, every packet may be a recorded one: where
 * tags are required, none is new then. In permissive mode it would be believed without its tag, too, so all are new.
 */
static __always_inline int is_new(const struct mrc_auth *auth, __u64 tx_ns, __u64 now)
{
	__u64 clock_ns = auth->clock_ns;
	__s64 age = now + clock_ns - tx_ns;

	if (!clock_ns)
		return auth->mode != MRC_AUTH_REQUIRED;
	return age < AGE_MAX_NS && age > -AHEAD_MAX_NS;
}

/* Check the tag and the age of a data packet. `mrc` is a copy of its header. */
static __always_inline enum mrc_drop check_data(struct mrc_auth *auth, const struct mrc_hdr *mrc)
{
	enum mrc_drop reason;
	const __u64 *key = receiving_key(auth, mrc->key_id, &reason);

	if (!key)
		return reason;
	if (data_tag(key, mrc) != mrc->auth)
		return MRC_DROP_BAD_TAG;
	return is_new(auth, bpf_be64_to_cpu(mrc->tx_ns), coarse_now_ns()) ? MRC_DROP_NONE : MRC_DROP_STALE;
}

/* Learn the peer's clock from a reply: it was sent `tx_ns` by that clock, its request `requested_ns` by this host's. */
static __always_inline void learn_clock(struct mrc_auth *auth, __u64 tx_ns, __u64 requested_ns, __u64 now)
{
	__u64 clock_ns = tx_ns - requested_ns, error = clock_ns - auth->clock_ns;

	if (now - requested_ns > CLOCK_RTT_MAX_NS)
		return;
	if (!auth->clock_ns || error + CLOCK_ERROR_NS > 2 * CLOCK_ERROR_NS)
		auth->clock_ns = clock_ns ?: 1;
}

/* Return the epoch of the peer's tables: another one after each change of their generation. Two CPUs may both see the
 * change: then an epoch is left out.
 */
static __always_inline __u32 table_epoch(__u32 *known, __u32 *epoch, __u32 generation)
{
	if (*known != generation) {
		*known = generation;
		__sync_fetch_and_add(epoch, 1);
	}
	return *epoch;
}

/* The word of a replay window that holds a number. */
static __always_inline __u64 *seen_word(__u64 *words, __u32 number)
{
	return &words[number / 32 & (MRC_REPLAY_WORDS - 1)];
}

/* Return 1 if the probe of this number has arrived, or is too old to tell. */
static __always_inline int has_arrived(__u64 *words, __u32 number, __u32 epoch)
{
	__u64 word = *(volatile __u64 *)seen_word(words, number);

	return seen_after(word, number, epoch) == word;
}

/* Note that the probe of this number has arrived. Returns 1 if it is the first time. */
static __always_inline int is_first(__u64 *words, __u32 number, __u32 epoch)
{
	__u64 *word = seen_word(words, number), before, after;
	int i;

	for (i = 0; i < SEEN_TRIES; i++) { /* other CPUs may note others meanwhile */
		before = *(volatile __u64 *)word;
		after = seen_after(before, number, epoch);
		if (after == before)
			return 0;
		if (__sync_val_compare_and_swap(word, before, after) == before)
			return 1;
	}
	return 0;
}

#endif
