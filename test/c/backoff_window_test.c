/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff_support.h"

/* A slow model: adds the plan up. */
static int64_t sum_of_plan(const es_backoff *backoff) {
    static int64_t plan_ns[2000];
    int64_t sum_ns = 0;
    size_t planned = es_backoff_plan(backoff, plan_ns, 2000);
    assert_in_range(planned, 0, 1999);
    for (size_t i = 0; i < planned; i++)
        sum_ns = es_add_ns(sum_ns, plan_ns[i]);
    return sum_ns;
}

static void windows_of_common_schedules(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(150));
    backoff.base_ns = MS(100);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(1500));
    backoff.attempts_max = 10;
    assert_int_equal(es_backoff_window_ns(&backoff), MS(51100));
    backoff.cap_ns = MS(1000);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(6500));
    backoff.expiry_ns = MS(6000);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(6000));
    backoff.attempts_max = 1;
    assert_int_equal(es_backoff_window_ns(&backoff), 0);
    backoff = schedule(LIST);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(460));
    backoff = schedule(CONSTANT);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(40));
}

static void endless_attempts_last_as_long_as_the_budget(void **state) {
    (void)state;
    es_backoff backoff = schedule(LINEAR);
    backoff.attempts_max = ES_NO_LIMIT;
    assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
    backoff.expiry_ns = MS(1234);
    assert_int_equal(es_backoff_window_ns(&backoff), MS(1234));
}

static void the_window_saturates(void **state) {
    (void)state;
    for (size_t curve = EXPONENTIAL; curve < CURVES; curve++) {
        es_backoff backoff = schedule(curve);
        backoff.attempts_max = UINT64_MAX - 1;
        assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
        backoff.cap_ns = MS(30000);
        assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
        backoff.multiplier_ppm = 1000 * ES_PPM;
        backoff.step_ns = ES_FOREVER_NS;
        backoff.base_ns = ES_FOREVER_NS;
        assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
    }
}

static const int64_t *random_steps(uint64_t *random, int64_t low_bits) {
    static int64_t steps_ns[ES_BACKOFF_STEPS_MAX];
    for (int i = 0; i < ES_BACKOFF_STEPS_MAX; i++)
        steps_ns[i] = (int64_t)(next_random(random) >> random_between(random, low_bits, 63));
    return steps_ns;
}

/* Any whole multiplier, so that the sum is exact. */
static es_backoff random_schedule(uint64_t *random) {
    es_backoff backoff = schedule((size_t)random_between(random, EXPONENTIAL, LIST));
    backoff.base_ns = (int64_t)(next_random(random) >> random_between(random, 1, 63));
    backoff.step_ns = (int64_t)(next_random(random) >> random_between(random, 1, 63));
    backoff.multiplier_ppm = (uint32_t)random_between(random, 1, random_between(random, 1, 1000)) * ES_PPM;
    if (backoff.steps > 0) {
        backoff.steps_ns = random_steps(random, 1);
        backoff.steps = (size_t)random_between(random, 1, ES_BACKOFF_STEPS_MAX);
    }
    backoff.attempts_max = (uint64_t)random_between(random, 1, random_between(random, 1, 1500));
    if (random_between(random, 0, 1) == 0)
        backoff.cap_ns = 1 + (int64_t)(next_random(random) >> random_between(random, 2, 63));
    if (random_between(random, 0, 3) == 0)
        backoff.expiry_ns = 1 + (int64_t)(next_random(random) >> random_between(random, 2, 63));
    return backoff;
}

/* Small numbers, so that delays often meet the cap and the budget exactly. */
static es_backoff small_random_schedule(uint64_t *random) {
    es_backoff backoff = schedule((size_t)random_between(random, EXPONENTIAL, LIST));
    backoff.base_ns = random_between(random, 0, 12);
    backoff.step_ns = random_between(random, 0, 30);
    backoff.multiplier_ppm = (uint32_t)random_between(random, 1, 4) * ES_PPM;
    if (backoff.steps > 0)
        backoff.steps_ns = random_steps(random, 58);
    backoff.attempts_max = (uint64_t)random_between(random, 1, 20);
    backoff.cap_ns = random_between(random, 1, 60);
    backoff.expiry_ns = random_between(random, 1, 400);
    return backoff;
}

static void the_window_is_the_sum_of_the_plan(void **state) {
    (void)state;
    uint64_t random = 21;
    for (int run = 0; run < 20000; run++) {
        es_backoff backoff = random_schedule(&random);
        assert_int_equal(es_backoff_check(&backoff), ES_OK);
        assert_int_equal(es_backoff_window_ns(&backoff), sum_of_plan(&backoff));
        backoff = small_random_schedule(&random);
        assert_int_equal(es_backoff_window_ns(&backoff), sum_of_plan(&backoff));
    }
}

static void with_a_fraction_the_window_is_at_most_a_nanosecond_a_retry_off(void **state) {
    (void)state;
    uint64_t random = 22;
    for (int run = 0; run < 5000; run++) {
        es_backoff backoff = schedule(EXPONENTIAL);
        backoff.base_ns = (int64_t)(next_random(&random) >> random_between(&random, 14, 63));
        backoff.multiplier_ppm = (uint32_t)(ES_PPM + (next_random(&random) >> random_between(&random, 36, 63)));
        backoff.cap_ns = 1 + (int64_t)(next_random(&random) >> random_between(&random, 14, 63));
        backoff.attempts_max = (uint64_t)random_between(&random, 1, 1500);
        int64_t retries = (int64_t)backoff.attempts_max - 1, plan_ns = sum_of_plan(&backoff);
        int64_t window_ns = es_backoff_window_ns(&backoff);
        assert_true(window_ns >= plan_ns - retries && window_ns <= plan_ns + retries);
    }
}

static void the_window_of_millions_of_retries_needs_no_step_for_each(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = 1;
    backoff.multiplier_ppm = ES_PPM + 1;
    backoff.attempts_max = 30000001;
    assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
    backoff.attempts_max = 29000001;
    /* (1.000001^29000000 - 1) / 0.000001 is 3931277293247015324.9: a hundred years, and twelve digits of them right. */
    assert_in_range(es_backoff_window_ns(&backoff), INT64_C(3931277293240000000), INT64_C(3931277293250000000));
    backoff.cap_ns = MS(1);
    backoff.attempts_max = UINT64_MAX - 1;
    backoff.expiry_ns = MS(123456789);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(es_backoff_window_ns(&backoff), MS(123456789));
}

static void counting_a_plan_needs_no_place_for_it(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    assert_int_equal(es_backoff_plan(&backoff, NULL, 100), 4);
    assert_int_equal(es_backoff_plan(&backoff, NULL, 3), 3);
    assert_int_equal(es_backoff_plan(&backoff, NULL, 0), 0);
    backoff.attempts_max = ES_NO_LIMIT;
    assert_int_equal(es_backoff_plan(&backoff, NULL, 1000), 1000);
}

static void a_plan_has_no_jitter(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    const es_jitter kinds[] = {ES_JITTER_SPREAD, ES_JITTER_FULL, ES_JITTER_DECORRELATED};
    int64_t plan_ns[4];
    backoff.jitter_ppm = ES_PPM;
    for (int kind = 0; kind < 3; kind++) {
        backoff.jitter = kinds[kind];
        assert_int_equal(es_backoff_plan(&backoff, plan_ns, 4), 4);
        for (int i = 0; i < 4; i++)
            assert_int_equal(plan_ns[i], MS(10) << i);
        assert_int_equal(es_backoff_window_ns(&backoff), MS(150));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_common_schedules),
        cmocka_unit_test(endless_attempts_last_as_long_as_the_budget),
        cmocka_unit_test(the_window_saturates),
        cmocka_unit_test(the_window_is_the_sum_of_the_plan),
        cmocka_unit_test(with_a_fraction_the_window_is_at_most_a_nanosecond_a_retry_off),
        cmocka_unit_test(the_window_of_millions_of_retries_needs_no_step_for_each),
        cmocka_unit_test(counting_a_plan_needs_no_place_for_it),
        cmocka_unit_test(a_plan_has_no_jitter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
