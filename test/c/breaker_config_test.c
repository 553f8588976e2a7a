/* SPDX-License-Identifier: Apache-2.0 */
/* Which configurations make a breaker, and what it costs. */
#include "breaker_support.h"

static void a_usual_breaker_is_one_small_allocation(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(10);
    assert_int_equal(memory()->live, 1);
    assert_in_range(memory()->bytes, 1, 512);
    drop(breaker);
}

static void without_memory_there_is_no_breaker(void **state) {
    (void)state;
    es_breaker_config config = probing(3, 1);
    es_allocator allocator = allocator_that_allows(0);
    es_breaker *breaker = (es_breaker *)&config;
    assert_int_equal(es_breaker_new(&breaker, &config, 0, &allocator), ES_NO_MEMORY);
    assert_null(breaker);
    assert_int_equal(memory()->live, 0);
    es_breaker_free(breaker);
}

/* Everything is on, and sound. */
static es_breaker_config with_everything(void) {
    es_breaker_config config = probing(3, 2);
    config.limits = (es_trip_limits){5, ES_PPM / 2, ES_PPM / 2, 10, 5};
    config.tally.calls = 20;
    config.slow_ns = MS(100);
    config.reset_factor_ppm = 2 * ES_PPM;
    config.reset_max_ns = 10 * RESET;
    config.reset_jitter_ppm = ES_PPM / 10;
    config.ramp_ns = RESET;
    config.fault_ppm = 1;
    return config;
}

static void assert_no_breaker(es_breaker_config config) {
    es_allocator allocator = allocator_that_allows(1);
    es_breaker *breaker = (es_breaker *)&config;
    assert_int_equal(es_breaker_new(&breaker, &config, 0, &allocator), ES_BAD_CONFIG);
    assert_null(breaker);
    assert_int_equal(memory()->allowed, 1);
}

#define REFUSES(field, value)                                                                                          \
    do {                                                                                                               \
        es_breaker_config wrong = with_everything();                                                                   \
        wrong.field = value;                                                                                           \
        assert_no_breaker(wrong);                                                                                      \
    } while (0)

static void a_field_outside_its_range_makes_no_breaker(void **state) {
    (void)state;
    drop(breaker_of(with_everything()));
    REFUSES(limits.tolerate, ES_TOLERATE_MAX + 1);
    REFUSES(limits.tolerate, ES_TOLERATE_OFF - 1);
    REFUSES(limits.failure_rate_ppm, ES_PPM + 1);
    REFUSES(limits.slow_rate_ppm, ES_PPM + 1);
    REFUSES(limits.min_calls, 0);
    REFUSES(within_ns, 0);
    REFUSES(within_ns, -1);
    REFUSES(tally.span_ns, MS(1000));
    REFUSES(tally.span_ns, -1);
    REFUSES(tally.calls, ES_TALLY_CALLS_MAX + 1);
    REFUSES(slow_ns, 0);
    REFUSES(slow_ns, -1);
    REFUSES(reset_ns, -1);
    REFUSES(reset_factor_ppm, ES_PPM - 1);
    REFUSES(reset_max_ns, RESET - 1);
    REFUSES(reset_jitter_ppm, ES_PPM + 1);
    REFUSES(probes, ES_PROBES_MAX + 1);
    REFUSES(successes, 0);
    REFUSES(lease_ns, 0);
    REFUSES(lease_ns, -1);
    REFUSES(ramp_ns, -1);
    REFUSES(fault_ppm, ES_PPM + 1);
}

static void a_rate_of_calls_that_are_not_counted_makes_no_breaker(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(0);
    config.limits.failure_rate_ppm = 1;
    assert_no_breaker(config);
    config.limits = (es_trip_limits){.slow_rate_ppm = 1, .min_calls = 1};
    assert_no_breaker(config);
    config.tally.span_ns = ES_TALLY_BUCKETS - 1;
    assert_no_breaker(config);
    config.tally.span_ns = ES_TALLY_BUCKETS;
    drop(breaker_of(config));
}

static void more_calls_than_are_counted_can_not_be_asked_for(void **state) {
    (void)state;
    REFUSES(limits.min_calls, 21);
    es_breaker_config config = with_everything();
    config.limits.min_calls = 20;
    drop(breaker_of(config));
    config.limits.min_calls = 21;
    config.limits.failure_rate_ppm = 0;
    assert_no_breaker(config);
    config.limits.slow_rate_ppm = 0;
    drop(breaker_of(config));
    config.limits.failure_rate_ppm = 1;
    assert_no_breaker(config);
    config.tally = (es_tally_config){.span_ns = MS(1000)};
    drop(breaker_of(config));
}

static void the_ends_of_every_range_are_allowed(void **state) {
    (void)state;
    es_breaker_config least = {
        .limits = {.min_calls = 1}, .within_ns = 1, .slow_ns = 1, .reset_factor_ppm = ES_PPM, .lease_ns = 1};
    es_breaker_config most = {.limits = {ES_TOLERATE_MAX, ES_PPM, ES_PPM, ES_TALLY_CALLS_MAX, UINT32_MAX},
                              .within_ns = ES_FOREVER_NS,
                              .tally = {.calls = ES_TALLY_CALLS_MAX},
                              .slow_ns = ES_FOREVER_NS,
                              .reset_ns = ES_FOREVER_NS,
                              .reset_factor_ppm = UINT32_MAX,
                              .reset_max_ns = ES_FOREVER_NS,
                              .reset_jitter_ppm = ES_PPM,
                              .probes = ES_PROBES_MAX,
                              .successes = UINT32_MAX,
                              .lease_ns = ES_FOREVER_NS,
                              .ramp_ns = ES_FOREVER_NS,
                              .fault_ppm = ES_PPM};
    drop(breaker_born_at(least, INT64_MIN));
    drop(breaker_born_at(most, INT64_MAX));
    most.limits.tolerate = ES_TOLERATE_OFF;
    most.tally = (es_tally_config){.span_ns = ES_FOREVER_NS};
    drop(breaker_born_at(most, INT64_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_usual_breaker_is_one_small_allocation),
        cmocka_unit_test(without_memory_there_is_no_breaker),
        cmocka_unit_test(a_field_outside_its_range_makes_no_breaker),
        cmocka_unit_test(a_rate_of_calls_that_are_not_counted_makes_no_breaker),
        cmocka_unit_test(more_calls_than_are_counted_can_not_be_asked_for),
        cmocka_unit_test(the_ends_of_every_range_are_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
