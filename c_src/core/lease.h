/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h - who has held on for too long?
 *
 * A table of leases, all of the same length, in the order in which they were taken: so the oldest ends first, and
 * asking for it, like everything else here, costs the same however many there are. A lease that is no longer held is
 * told from the one that has its row now, so giving it back late changes nothing.
 *
 * Memory: the owner gives a block of es_leases_bytes, and frees it; nothing here allocates.
 *
 * Threads: none of this is safe without the owner's lock.
 *
 * Units: nanoseconds, monotonic. A time earlier than that of the newest lease counts as that time. Failure: none.
 */
#ifndef ES_LEASE_H
#define ES_LEASE_H

#include "es.h"

typedef struct es_leases es_leases;

typedef struct {
    uint32_t row;
    uint32_t serial; /* tells it from the other leases of this row, the last 2^31 of them */
} es_lease;

/* What `capacity` leases need. */
size_t es_leases_bytes(uint32_t capacity);

/* An empty table. length_ns > 0. */
void es_leases_init(es_leases *leases, uint32_t capacity, int64_t length_ns);

/* A table with the leases of `from`, which stay valid; it has at least the capacity of `from`. */
void es_leases_init_from(es_leases *leases, uint32_t capacity, const es_leases *from);

uint32_t es_leases_capacity(const es_leases *leases);

/* The caller knows that fewer than `capacity` are held. */
es_lease es_leases_take(es_leases *leases, int64_t now_ns);

/* False, and nothing has changed, if the lease is no longer held. */
ES_NODISCARD bool es_leases_give_back(es_leases *leases, es_lease lease);

/* Ends the oldest lease if its time is over. */
ES_NODISCARD bool es_leases_reclaim(es_leases *leases, int64_t now_ns);

/* When the time of the oldest lease is over; ES_FOREVER_NS if none is held. */
int64_t es_leases_end_ns(const es_leases *leases);

/* Ends all leases. */
void es_leases_clear(es_leases *leases);

#endif
