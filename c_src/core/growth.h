/* SPDX-License-Identifier: Apache-2.0 */
/* growth.h - what is left of a time after it was multiplied n times by the same factor?
 *
 * Numbers of at least one with 64 significant bits, so that 1.1 times 1.1 times 100 ms is 121,000,000 ns and not one
 * less, on every machine alike. Whole factors are exact as long as the result fits into an int64_t. What does not fit
 * is held: multiplied with any time but nothing it is ES_FOREVER_NS.
 *
 * Threads: nothing here has state.
 */
#ifndef ES_GROWTH_H
#define ES_GROWTH_H

#include "es.h"

typedef struct {
    uint64_t mantissa; /* its highest bit is set             */
    int exponent;      /* the number is mantissa * 2^exponent */
} es_growth;

/* How far a time can grow and stay below a bound. */
typedef struct {
    uint64_t steps; /* how often it was multiplied                      */
    es_growth sum;  /* 1 + factor + factor^2 + ... + factor^steps       */
} es_growth_span;

/* ppm >= ES_PPM. */
es_growth es_growth_of(uint32_t ppm);

/* factor^n. O(log n). */
es_growth es_growth_power(es_growth factor, uint64_t n);

/* time * growth for time >= 0, rounded to the nearest, at most ES_FOREVER_NS. */
int64_t es_growth_scale_ns(int64_t time_ns, es_growth growth);

/* The most steps, up to `steps_max`, after which time_ns * factor^steps is still below `below_ns`. O(log steps),
 * without a step for each: powers 1, 2, 4, 8 ... are put together. 0 < time < below. */
es_growth_span es_growth_below(int64_t time_ns, es_growth factor, int64_t below_ns, uint64_t steps_max);

#endif
