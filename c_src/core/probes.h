/* SPDX-License-Identifier: Apache-2.0 */
/* probes.h - may another probe go out, and have enough come back well?
 *
 * The probes of one half-open state. So many may be out at once; so many have to succeed. No more go out than could
 * still be needed: those out and those that succeeded are together never more than the larger of the two numbers. Each
 * has a lease, and when that is over its place is free for another.
 *
 *     3 at once, 1 has to succeed:   3 go out, and the first good one is enough
 *     1 at once, 5 have to succeed:  5 go out, one after the other
 *
 * Memory: the owner gives es_probes_bytes bytes, aligned for int64_t, and keeps them; there is no free.
 *
 * Threads: one at a time; the owner locks.
 *
 * Units: nanoseconds, monotonic. Failure: none, once the numbers were right.
 */
#ifndef ES_PROBES_H
#define ES_PROBES_H

#include "es.h"
#include "lease.h"

typedef struct es_probes es_probes;

/* What `at_once` probes need, at_once >= 1. A multiple of 8. */
size_t es_probes_bytes(uint32_t at_once);

/* at_once as given to es_probes_bytes; successes >= 1; lease_ns > 0. */
void es_probes_init(es_probes *probes, uint32_t at_once, uint32_t successes, int64_t lease_ns);

/* Begins anew: none is out and none has succeeded. Leases from before are over. */
void es_probes_clear(es_probes *probes);

/* Lets go of the probes whose leases are over. */
void es_probes_reclaim(es_probes *probes, int64_t now_ns);

/* Until when no probe may go out, unless one comes back: the end of the oldest lease. INT64_MIN if one may go. */
int64_t es_probes_until_ns(const es_probes *probes);

/* Sends out a probe. The caller knows that one may go. */
es_lease es_probes_take(es_probes *probes, int64_t now_ns);

/* Takes a probe back. False, and nothing has changed, if its lease is over. */
ES_NODISCARD bool es_probes_give_back(es_probes *probes, es_lease lease);

/* A probe that was taken back had succeeded. True if that is enough. */
ES_NODISCARD bool es_probes_succeed(es_probes *probes);

/* How many are out. */
uint32_t es_probes_out(const es_probes *probes);

#endif
