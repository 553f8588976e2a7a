/* SPDX-License-Identifier: Apache-2.0 */
/* trip.h - when does a closed breaker open?
 *
 * A trip rule is a pure question about counts: it owns no memory, reads no clock and changes nothing, so any thread
 * may ask at any time. The rules stand in one table; the first that says yes opens the breaker.
 *
 * To add a rule: write its function in trip.c, add one row to the table at the end of that file, and one test in
 * test/c/trip_test.c. Nothing else in C changes; the NIF layer finds rules by name.
 */
#ifndef ES_TRIP_H
#define ES_TRIP_H

#include "es.h"
#include "tally.h"

#define ES_TOLERATE_MAX UINT32_C(1000000)
#define ES_TOLERATE_OFF UINT32_MAX

/* What was seen. */
typedef struct {
    uint32_t failures;     /* failures inside the failure window                             */
    es_tally_counts tally; /* calls, failures and slow calls inside the rate window          */
    uint32_t consecutive;  /* failures since the last success                                */
} es_counts;

/* What is allowed. A rule whose limit is off never fires. */
typedef struct {
    uint32_t tolerate;         /* failures in the window that leave it closed, to ES_TOLERATE_MAX; ES_TOLERATE_OFF */
    uint32_t failure_rate_ppm; /* failing share of calls that opens, inclusive, to ES_PPM; 0: off */
    uint32_t slow_rate_ppm;    /* slow share of calls that opens, inclusive, to ES_PPM; 0: off */
    uint32_t min_calls;        /* below this many calls no rate is believed, >= 1 */
    uint32_t consecutive;      /* failures in a row that open, inclusive; 0: off */
} es_trip_limits;

typedef struct {
    const char *name; /* the option that turns the rule on */
    bool (*should_open)(const es_counts *counts, const es_trip_limits *limits);
} es_trip;

/* The first rule that opens at these counts, or NULL. The result is static: never free it. */
const es_trip *es_trip_first(const es_counts *counts, const es_trip_limits *limits);

/* Rule number `index` of the table, or NULL past its end. Static: never free it. */
const es_trip *es_trip_at(size_t index);

/* How many calls that fail throughout it takes, counted from the end of the first where a call melts once: see below.
 */
uint64_t es_trip_calls(uint64_t attempts, uint32_t tolerate, bool per_call);

/* The narrowest window, in nanoseconds, in which `tolerate` + 1 failures of calls that follow one another still meet:
 * the retry window of one call times the calls it takes to get there. `attempts` is what one call makes when all of
 * them fail, 0 if there is no bound; `per_call` when a call melts once instead of once an attempt.
 *
 *     window 1500 ms, 5 attempts, tolerate 10:   per attempt 3 calls, 4500 ms;   per call 10 calls, 15000 ms
 */
int64_t es_trip_narrowest_ns(int64_t retry_window_ns, uint64_t attempts, uint32_t tolerate, bool per_call);

/* The counting window to use when nobody chose one: twice the narrowest, at least 10 s, and 10 s when the retry
 * window has no bound. */
int64_t es_trip_auto_within_ns(int64_t retry_window_ns, uint64_t attempts, uint32_t tolerate, bool per_call);

#endif
