/* SPDX-License-Identifier: Apache-2.0 */
#include "growth.h"
#include "support.h"

static int64_t grown(int64_t time_ns, uint32_t ppm, uint64_t n) {
    return es_growth_scale_ns(time_ns, es_growth_power(es_growth_of(ppm), n));
}

static void whole_factors_are_exact_as_long_as_the_result_fits(void **state) {
    (void)state;
    for (uint32_t factor = 1; factor <= 1000; factor++) {
        int64_t expected_ns = 1;
        for (uint64_t n = 0; n < 70; n++) {
            assert_int_equal(grown(1, factor * ES_PPM, n), expected_ns);
            expected_ns = es_scale_ns(expected_ns, factor);
        }
    }
}

static void whole_factors_are_exact_for_odd_times(void **state) {
    (void)state;
    uint64_t random = 11;
    for (int run = 0; run < 20000; run++) {
        int64_t time_ns = (int64_t)(next_random(&random) >> random_between(&random, 1, 63)), expected_ns = time_ns;
        uint32_t factor = (uint32_t)random_between(&random, 1, 1000);
        uint64_t n = (uint64_t)random_between(&random, 0, 20);
        for (uint64_t i = 0; i < n; i++)
            expected_ns = es_scale_ns(expected_ns, factor);
        assert_int_equal(grown(time_ns, factor * ES_PPM, n), expected_ns);
    }
}

static void decimal_fractions_are_rounded_to_the_nearest(void **state) {
    (void)state;
    assert_int_equal(grown(MS(100), 1100000, 1), 110000000);
    assert_int_equal(grown(MS(100), 1100000, 8), 214358881);
    assert_int_equal(grown(MS(100), 1500000, 3), 337500000);
    assert_int_equal(grown(1, 1500000, 1), 2);
    assert_int_equal(grown(1, 1499999, 1), 1);
    assert_int_equal(grown(3, 1333333, 1), 4);
    assert_int_equal(grown(1000000000000000, 1000001, 1), 1000001000000000);
    assert_int_equal(grown(1000000000000000, 1000001, 2), 1000002000001000);
}

static void growth_saturates(void **state) {
    (void)state;
    const uint64_t counts[] = {64, 1000, 1000000, UINT32_MAX, UINT64_MAX};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(grown(1, 2 * ES_PPM, counts[i]), ES_FOREVER_NS);
        assert_int_equal(grown(ES_FOREVER_NS, 1000 * ES_PPM, counts[i]), ES_FOREVER_NS);
        assert_int_equal(grown(0, 1000 * ES_PPM, counts[i]), 0);
        assert_int_equal(grown(7, ES_PPM, counts[i]), 7);
        assert_int_equal(grown(ES_FOREVER_NS, ES_PPM, counts[i]), ES_FOREVER_NS);
    }
    assert_int_equal(grown(1, ES_PPM + 1, UINT64_MAX), ES_FOREVER_NS);
}

static void growth_never_falls_as_it_goes_on(void **state) {
    (void)state;
    const uint32_t factors[] = {1000001, 1000003, 1001000, 1100000, 1618034, 2000001, 999999999};
    for (int i = 0; i < 7; i++) {
        int64_t last_ns = 0;
        for (uint64_t n = 0; n < 20000; n++) {
            int64_t now_ns = grown(MS(10), factors[i], n);
            assert_true(now_ns >= last_ns);
            last_ns = now_ns;
        }
    }
}

/* The slow way: one step after the other. */
static es_growth_span below_one_by_one(int64_t time_ns, es_growth factor, int64_t below_ns, uint64_t steps_max,
                                       int64_t *sum_ns) {
    es_growth_span span = {0};
    *sum_ns = time_ns;
    while (span.steps < steps_max) {
        int64_t further_ns = es_growth_scale_ns(time_ns, es_growth_power(factor, span.steps + 1));
        if (further_ns >= below_ns)
            break;
        *sum_ns = es_add_ns(*sum_ns, further_ns);
        span.steps++;
    }
    return span;
}

static void the_span_below_a_bound_is_found_and_summed(void **state) {
    (void)state;
    uint64_t random = 12;
    for (int run = 0; run < 20000; run++) {
        es_growth factor =
            es_growth_of((uint32_t)random_between(&random, 1, random_between(&random, 1, 1000)) * ES_PPM);
        int64_t time_ns = random_between(&random, 1, random_between(&random, 1, 1000000)), sum_ns;
        int64_t below_ns = time_ns + 1 + (int64_t)(next_random(&random) >> random_between(&random, 2, 63));
        uint64_t steps_max = (uint64_t)random_between(&random, 0, 200);
        es_growth_span span = es_growth_below(time_ns, factor, below_ns, steps_max);
        assert_int_equal(span.steps, below_one_by_one(time_ns, factor, below_ns, steps_max, &sum_ns).steps);
        assert_int_equal(es_growth_scale_ns(time_ns, span.sum), sum_ns);
    }
}

static void a_bound_that_is_met_exactly_is_not_below(void **state) {
    (void)state;
    const es_growth twice = es_growth_of(2 * ES_PPM);
    assert_int_equal(es_growth_below(5, twice, 40, UINT64_MAX).steps, 2);
    assert_int_equal(es_growth_below(5, twice, 41, UINT64_MAX).steps, 3);
    assert_int_equal(es_growth_below(1, twice, ES_FOREVER_NS, UINT64_MAX).steps, 62);
    assert_int_equal(es_growth_below(5, twice, 1000000, 0).steps, 0);
}

static void a_factor_of_one_is_below_for_ever(void **state) {
    (void)state;
    es_growth_span span = es_growth_below(5, es_growth_of(ES_PPM), 6, UINT64_MAX);
    assert_int_equal(span.steps, UINT64_MAX);
    span = es_growth_below(5, es_growth_of(ES_PPM), 6, 1000000000000);
    assert_int_equal(span.steps, 1000000000000);
    assert_int_equal(es_growth_scale_ns(5, span.sum), 5000000000005);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_factors_are_exact_as_long_as_the_result_fits),
        cmocka_unit_test(whole_factors_are_exact_for_odd_times),
        cmocka_unit_test(decimal_fractions_are_rounded_to_the_nearest),
        cmocka_unit_test(growth_saturates),
        cmocka_unit_test(growth_never_falls_as_it_goes_on),
        cmocka_unit_test(the_span_below_a_bound_is_found_and_summed),
        cmocka_unit_test(a_bound_that_is_met_exactly_is_not_below),
        cmocka_unit_test(a_factor_of_one_is_below_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
