/* SPDX-License-Identifier: Apache-2.0 */
/* outcomes.h - what was seen lately, and does a trip rule open at it?
 *
 * Everything the rules ask about, counted outcome by outcome: a window of failures for `tolerate`, a tally of calls for
 * the rates, and the failures since the last success. What no rule asks about is not counted: with `tolerate` off there
 * is no window, without a tally configured there is none.
 *
 * Memory: the owner gives es_outcomes_bytes(config) bytes, aligned for int64_t, and keeps them; there is no free.
 *
 * Threads: es_outcomes_counts_successes may run on any thread at any time, the rest one at a time; the owner locks.
 *
 * Units: nanoseconds, monotonic. Failure: none, once the configuration was right.
 */
#ifndef ES_OUTCOMES_H
#define ES_OUTCOMES_H

#include "es.h"
#include "tally.h"
#include "trip.h"

typedef struct es_outcomes es_outcomes;

typedef struct {
    es_trip_limits limits; /* the rules, and which of them are on; min_calls <= tally.calls if a rate is on          */
    int64_t within_ns;     /* span of the failure window of `tolerate`, > 0                                          */
    es_tally_config tally; /* what rates are counted over; both fields 0: no calls are counted, and no rate may be on */
    int64_t slow_ns;       /* a call of at least this duration is slow, > 0, ES_FOREVER_NS: none is                  */
} es_outcomes_config;

/* A multiple of 8; 0 if the configuration is not right. */
size_t es_outcomes_bytes(const es_outcomes_config *config);

/* Nothing was seen. */
void es_outcomes_init(es_outcomes *outcomes, const es_outcomes_config *config);

/* Counts an outcome, and returns the first rule that opens at what is counted now, or NULL. */
const es_trip *es_outcomes_record(es_outcomes *outcomes, bool failed, int64_t duration_ns, int64_t now_ns);

/* What is counted at `now_ns`; changes nothing. */
es_counts es_outcomes_look(const es_outcomes *outcomes, int64_t now_ns);

/* Lock-free. Would a success change anything? */
bool es_outcomes_counts_successes(const es_outcomes *outcomes);

/* Is there nothing that a rule could ask about? A streak is nothing where no rule asks for one. */
bool es_outcomes_is_empty(const es_outcomes *outcomes, int64_t now_ns);

/* Forgets everything. */
void es_outcomes_clear(es_outcomes *outcomes);

#endif
