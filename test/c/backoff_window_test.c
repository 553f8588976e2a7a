/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff.h"
#include "support.h"

enum { EXPONENTIAL = 0, LINEAR = 1 };

/* 10 ms doubling, five attempts: the defaults. */
static es_backoff schedule(size_t curve) {
    return (es_backoff){.curve = es_backoff_curve_at(curve),
                        .base_ns = MS(10),
                        .factor = 1,
                        .cap_ns = ES_FOREVER_NS,
                        .expiry_ns = ES_FOREVER_NS,
                        .attempts_max = 5,
                        .jitter_ppm = 0};
}

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
    for (size_t curve = EXPONENTIAL; curve <= LINEAR; curve++) {
        es_backoff backoff = schedule(curve);
        backoff.attempts_max = UINT64_MAX - 1;
        assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
        backoff.cap_ns = MS(30000);
        assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
        backoff.factor = UINT64_MAX;
        backoff.base_ns = ES_FOREVER_NS;
        assert_int_equal(es_backoff_window_ns(&backoff), ES_FOREVER_NS);
    }
}

static es_backoff random_schedule(uint64_t *random) {
    es_backoff backoff = schedule((size_t)random_between(random, EXPONENTIAL, LINEAR));
    backoff.base_ns = (int64_t)(next_random(random) >> random_between(random, 1, 63));
    backoff.factor = next_random(random) >> random_between(random, 0, 62);
    backoff.factor += backoff.factor == 0;
    backoff.attempts_max = (uint64_t)random_between(random, 1, random_between(random, 1, 1500));
    if (random_between(random, 0, 1) == 0)
        backoff.cap_ns = 1 + (int64_t)(next_random(random) >> random_between(random, 2, 63));
    if (random_between(random, 0, 3) == 0)
        backoff.expiry_ns = 1 + (int64_t)(next_random(random) >> random_between(random, 2, 63));
    return backoff;
}

/* Small numbers, so that delays often meet the cap and the budget exactly. */
static es_backoff small_random_schedule(uint64_t *random) {
    es_backoff backoff = schedule((size_t)random_between(random, EXPONENTIAL, LINEAR));
    backoff.base_ns = random_between(random, 1, 12);
    backoff.factor = (uint64_t)random_between(random, 1, 4);
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
        if (backoff.base_ns > 0)
            assert_int_equal(es_backoff_window_ns(&backoff), sum_of_plan(&backoff));
        backoff = small_random_schedule(&random);
        assert_int_equal(es_backoff_window_ns(&backoff), sum_of_plan(&backoff));
    }
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
    int64_t plan_ns[4];
    backoff.jitter_ppm = ES_PPM;
    assert_int_equal(es_backoff_plan(&backoff, plan_ns, 4), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(plan_ns[i], MS(10) << i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_common_schedules),
        cmocka_unit_test(endless_attempts_last_as_long_as_the_budget),
        cmocka_unit_test(the_window_saturates),
        cmocka_unit_test(the_window_is_the_sum_of_the_plan),
        cmocka_unit_test(counting_a_plan_needs_no_place_for_it),
        cmocka_unit_test(a_plan_has_no_jitter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
