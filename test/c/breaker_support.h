/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_support.h - what the tests of the breaker share: a configuration with nothing but a tolerance, and one step
 * each for what a caller does. */
#ifndef ES_TEST_BREAKER_SUPPORT_H
#define ES_TEST_BREAKER_SUPPORT_H

#include "breaker.h"
#include "support.h"

#define WITHIN MS(10000)
#define RESET MS(1000)
#define LEASE MS(500)
#define DUE (10 + RESET) /* when the time of a breaker that opened at 10 is over */

/* Everything but the tolerance is off. */
static inline es_breaker_config only_tolerating(uint32_t tolerate) {
    return (es_breaker_config){
        .limits = {.tolerate = tolerate, .min_calls = 1},
        .within_ns = WITHIN,
        .slow_ns = ES_FOREVER_NS,
        .reset_ns = RESET,
        .reset_factor_ppm = ES_PPM,
        .reset_max_ns = ES_FOREVER_NS,
        .successes = 1,
        .lease_ns = LEASE,
    };
}

/* Opens at the first failure, and then lets out so many probes. */
static inline es_breaker_config probing(uint32_t probes, uint32_t successes) {
    es_breaker_config config = only_tolerating(0);
    config.probes = probes;
    config.successes = successes;
    return config;
}

static inline es_breaker *breaker_born_at(es_breaker_config config, int64_t now_ns) {
    es_breaker *breaker = NULL;
    es_allocator allocator = allocator_that_allows(1);
    assert_int_equal(es_breaker_new(&breaker, &config, now_ns, &allocator), ES_OK);
    assert_non_null(breaker);
    return breaker;
}

static inline es_breaker *breaker_of(es_breaker_config config) {
    return breaker_born_at(config, 0);
}

static inline es_breaker *tolerating(uint32_t tolerate) {
    return breaker_of(only_tolerating(tolerate));
}

static inline void drop(es_breaker *breaker) {
    es_breaker_free(breaker);
    assert_int_equal(memory()->live, 0);
}

static inline uint64_t generation_of(const es_breaker *breaker) {
    return es_breaker_permit(breaker).generation;
}

static inline void report(es_breaker *breaker, es_permit permit, es_outcome outcome, int64_t now_ns) {
    es_breaker_report(breaker, permit, outcome, 0, now_ns, 0);
}

/* An outcome reported without an admission. */
static inline void note(es_breaker *breaker, es_outcome outcome, int64_t now_ns) {
    report(breaker, es_breaker_permit(breaker), outcome, now_ns);
}

static inline void melt(es_breaker *breaker, int64_t now_ns) {
    note(breaker, ES_FAILURE, now_ns);
}

static inline es_state state_at(es_breaker *breaker, int64_t now_ns) {
    return es_breaker_look(breaker, now_ns).state;
}

static inline es_permit admitted(es_breaker *breaker, int64_t now_ns) {
    es_admission admission = es_breaker_admit(breaker, now_ns, 0);
    assert_int_equal(admission.answer, ES_ADMITTED);
    assert_int_equal(admission.retry_after_ns, 0);
    return admission.permit;
}

/* A call that goes out as a probe. */
static inline es_permit probe(es_breaker *breaker, int64_t now_ns) {
    es_permit permit = admitted(breaker, now_ns);
    assert_true(permit.probe);
    return permit;
}

/* Refused for `retry_after_ns` yet, and whoever only looks is told the same. */
static inline void assert_refused(es_breaker *breaker, int64_t now_ns, int64_t retry_after_ns) {
    es_admission admission = es_breaker_admit(breaker, now_ns, 0);
    es_admission peek = es_breaker_peek(breaker, now_ns, 0);
    assert_int_equal(admission.answer, ES_REFUSED);
    assert_int_equal(admission.retry_after_ns, retry_after_ns);
    assert_int_equal(peek.answer, ES_REFUSED);
    assert_int_equal(peek.retry_after_ns, retry_after_ns);
    assert_int_equal(es_breaker_look(breaker, now_ns).retry_after_ns, retry_after_ns);
}

static inline es_change taken(es_breaker *breaker) {
    es_change change;
    memset(&change, 0xa5, sizeof change);
    assert_true(es_breaker_has_changes(breaker));
    assert_true(es_breaker_take_change(breaker, &change));
    return change;
}

/* The next change is this one. */
static inline es_change assert_change(es_breaker *breaker, es_state from, es_state to, int64_t at_ns) {
    es_change change = taken(breaker);
    assert_int_equal(change.from, from);
    assert_int_equal(change.to, to);
    assert_int_equal(change.at_ns, at_ns);
    return change;
}

static inline void assert_no_change(es_breaker *breaker) {
    es_change change;
    assert_false(es_breaker_has_changes(breaker));
    assert_false(es_breaker_take_change(breaker, &change));
}

/* Opened at 10, and nobody has looked since. */
static inline es_breaker *opened(es_breaker_config config) {
    es_breaker *breaker = breaker_of(config);
    for (uint32_t failure = 0; failure <= config.limits.tolerate; failure++)
        melt(breaker, 10);
    assert_change(breaker, ES_CLOSED, ES_OPEN, 10);
    return breaker;
}

static inline void assert_state(es_breaker *breaker, int64_t now_ns, es_state state, uint32_t probes_out) {
    es_breaker_view view = es_breaker_look(breaker, now_ns);
    assert_int_equal(view.state, state);
    assert_int_equal(view.probes_out, probes_out);
}

#endif
