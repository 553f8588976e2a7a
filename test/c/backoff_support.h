/* SPDX-License-Identifier: Apache-2.0 */
/* backoff_support.h - what the tests of retry schedules share. */
#ifndef ES_TEST_BACKOFF_SUPPORT_H
#define ES_TEST_BACKOFF_SUPPORT_H

#include "backoff.h"
#include "support.h"

/* Numbers of the curves' table. */
enum { EXPONENTIAL = 0, LINEAR = 1, CONSTANT = 2, LIST = 3, CURVES = 4 };

/* Nothing has gone, and the call has no deadline. */
static const es_backoff_time no_hurry = {0, ES_FOREVER_NS};

/* 10 ms, doubling or longer by 10 ms each time, five attempts: the defaults. */
static inline es_backoff schedule(size_t curve) {
    static const int64_t steps_ns[] = {MS(10), MS(50), MS(200)};
    return (es_backoff){.curve = es_backoff_curve_at(curve),
                        .base_ns = MS(10),
                        .step_ns = MS(10),
                        .multiplier_ppm = 2 * ES_PPM,
                        .steps_ns = curve == LIST ? steps_ns : NULL,
                        .steps = curve == LIST ? 3 : 0,
                        .cap_ns = ES_FOREVER_NS,
                        .expiry_ns = ES_FOREVER_NS,
                        .attempts_max = 5,
                        .jitter = ES_JITTER_SPREAD,
                        .jitter_ppm = 0,
                        .asked_max_ns = MS(30000)};
}

/* The answer to the retry after `elapsed_ns`, without a random word. */
static inline es_backoff_step ask(const es_backoff *backoff, uint64_t retry, int64_t elapsed_ns, int64_t *delay_ns) {
    return es_backoff_next(backoff, retry, 0, (es_backoff_time){elapsed_ns, ES_FOREVER_NS}, 0, delay_ns);
}

static inline int64_t delay_of(const es_backoff *backoff, uint64_t retry) {
    int64_t delay_ns = -1;
    assert_int_equal(ask(backoff, retry, 0, &delay_ns), ES_RETRY);
    return delay_ns;
}

#endif
