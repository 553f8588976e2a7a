/* SPDX-License-Identifier: Apache-2.0 */
/* tally.h - how many calls were made lately, and how many of them failed or were slow?
 *
 * A rolling count of outcomes, over a time or over a number of calls. Over a time it is kept in ES_TALLY_BUCKETS
 * buckets: an outcome is counted for at least the span less one bucket and for less than the span, and after an idle
 * span nothing is left. Over a number of calls it is exact: the last `calls` outcomes. Recording is O(1), but for
 * buckets that have run out, at most ES_TALLY_BUCKETS of them.
 *
 *     10 buckets of 1 s, one failure in each of 10 s, then 10 s of nothing, then one failure:   calls 1, failures 1
 *
 * Memory: the owner gives es_tally_bytes(config) bytes, aligned for int64_t, and keeps them; there is no free.
 * Threads: one at a time; the owner locks. Times that arrive out of order count as the latest time seen.
 * Units: nanoseconds, monotonic; a span that is no multiple of ES_TALLY_BUCKETS ns counts as the next one. Failure:
 * none, once the configuration was right.
 */
#ifndef ES_TALLY_H
#define ES_TALLY_H

#include "es.h"

#define ES_TALLY_BUCKETS 10
#define ES_TALLY_CALLS_MAX UINT32_C(1000000)

typedef struct es_tally es_tally;

typedef struct {
    int64_t span_ns; /* counts the last span, at least ES_TALLY_BUCKETS ns; 0 to count calls instead */
    uint32_t calls;  /* counts the last this many calls, 1 to ES_TALLY_CALLS_MAX; 0 to count a span  */
} es_tally_config;

typedef struct {
    uint32_t calls, failures, slow; /* failures and slow calls are calls too; they may be both. Saturating. */
} es_tally_counts;

/* 0 if the configuration is not one of the two kinds. */
size_t es_tally_bytes(const es_tally_config *config);

void es_tally_init(es_tally *tally, const es_tally_config *config);

/* Adds an outcome, and says what is counted with it. */
es_tally_counts es_tally_record(es_tally *tally, bool failed, bool slow, int64_t now_ns);

/* What is counted at `now_ns`; changes nothing. */
es_tally_counts es_tally_look(const es_tally *tally, int64_t now_ns);

/* Forgets every outcome. */
void es_tally_clear(es_tally *tally);

#endif
