/* SPDX-License-Identifier: Apache-2.0 */
#include "outcomes.h"

#include <stdatomic.h>

#include "window.h"

struct es_outcomes {
    _Atomic uint32_t consecutive; /* written by one thread at a time                 */
    es_trip_limits limits;
    int64_t slow_ns;
    es_window *window; /* NULL if `tolerate` is off; follows in the same memory   */
    es_tally *tally;   /* NULL if calls are not counted; follows in the same memory */
};

static bool is_share(uint32_t ppm) {
    return ppm <= ES_PPM;
}

/* With fewer calls counted than have to be there, a rate rule would never fire. */
static bool are_rates_sound(const es_trip_limits *limits, const es_tally_config *tally) {
    bool on = limits->failure_rate_ppm > 0 || limits->slow_rate_ppm > 0;
    if (tally->span_ns == 0 && tally->calls == 0)
        return !on;
    bool reached = !on || tally->calls == 0 || limits->min_calls <= tally->calls;
    return es_tally_bytes(tally) > 0 && reached && is_share(limits->failure_rate_ppm) &&
           is_share(limits->slow_rate_ppm);
}

static bool is_sound(const es_outcomes_config *config) {
    const es_trip_limits *limits = &config->limits;
    return (limits->tolerate <= ES_TOLERATE_MAX || limits->tolerate == ES_TOLERATE_OFF) && limits->min_calls >= 1 &&
           config->within_ns > 0 && config->slow_ns > 0 && are_rates_sound(limits, &config->tally);
}

/* A tolerance that is off wraps to a window without capacity, which takes no bytes. */
static uint32_t window_capacity(const es_outcomes_config *config) {
    return config->limits.tolerate + 1;
}

size_t es_outcomes_bytes(const es_outcomes_config *config) {
    if (!is_sound(config))
        return 0;
    size_t bytes = sizeof(es_outcomes) + es_window_bytes(window_capacity(config)) + es_tally_bytes(&config->tally);
    return (bytes + 7) / 8 * 8;
}

void es_outcomes_init(es_outcomes *outcomes, const es_outcomes_config *config) {
    char *rest = (char *)(outcomes + 1);
    atomic_init(&outcomes->consecutive, 0);
    outcomes->limits = config->limits;
    outcomes->slow_ns = config->slow_ns;
    outcomes->window = NULL;
    outcomes->tally = NULL;
    if (config->limits.tolerate != ES_TOLERATE_OFF) {
        outcomes->window = (void *)rest;
        es_window_init(outcomes->window, window_capacity(config), config->within_ns);
        rest += es_window_bytes(window_capacity(config));
    }
    if (es_tally_bytes(&config->tally) > 0) {
        outcomes->tally = (void *)rest;
        es_tally_init(outcomes->tally, &config->tally);
    }
}

/* Relaxed, here and below: the streak is a number that a reader without the lock only compares with 0, and nothing
 * hangs on it. One that misses the first failure of a streak is as good as one that came before it. */
static uint32_t streak(const es_outcomes *outcomes) {
    return atomic_load_explicit(&outcomes->consecutive, memory_order_relaxed);
}

static void set_streak(es_outcomes *outcomes, uint32_t failures) {
    atomic_store_explicit(&outcomes->consecutive, failures, memory_order_relaxed);
}

bool es_outcomes_counts_successes(const es_outcomes *outcomes) {
    return outcomes->tally != NULL || streak(outcomes) > 0;
}

/* A success is asked about without the failure window, which it can not have filled. */
const es_trip *es_outcomes_record(es_outcomes *outcomes, bool failed, int64_t duration_ns, int64_t now_ns) {
    uint32_t before = streak(outcomes);
    es_counts counts = {.consecutive = failed ? before + (before < UINT32_MAX) : 0};
    set_streak(outcomes, counts.consecutive);
    if (failed && outcomes->window != NULL)
        counts.failures = es_window_record(outcomes->window, now_ns);
    if (outcomes->tally != NULL)
        counts.tally = es_tally_record(outcomes->tally, failed, duration_ns >= outcomes->slow_ns, now_ns);
    return es_trip_first(&counts, &outcomes->limits);
}

es_counts es_outcomes_look(const es_outcomes *outcomes, int64_t now_ns) {
    es_counts counts = {.consecutive = streak(outcomes)};
    if (outcomes->window != NULL)
        counts.failures = es_window_count(outcomes->window, now_ns);
    if (outcomes->tally != NULL)
        counts.tally = es_tally_look(outcomes->tally, now_ns);
    return counts;
}

bool es_outcomes_is_empty(const es_outcomes *outcomes, int64_t now_ns) {
    es_counts counts = es_outcomes_look(outcomes, now_ns);
    return counts.failures == 0 && counts.tally.calls == 0 &&
           (counts.consecutive == 0 || outcomes->limits.consecutive == 0);
}

void es_outcomes_clear(es_outcomes *outcomes) {
    set_streak(outcomes, 0);
    if (outcomes->window != NULL)
        es_window_clear(outcomes->window);
    if (outcomes->tally != NULL)
        es_tally_clear(outcomes->tally);
}
