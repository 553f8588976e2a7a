/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff_support.h"

static void assert_plan_ms(const es_backoff *backoff, const int64_t *delays_ms, size_t count) {
    int64_t plan_ns[32];
    assert_in_range(count, 0, 31);
    assert_int_equal(es_backoff_plan(backoff, plan_ns, count + 1), count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(plan_ns[i], MS(delays_ms[i]));
}

#define ASSERT_PLAN_MS(backoff, ...)                                                                                   \
    assert_plan_ms(backoff, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void exponential_delays_double(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = MS(100);
    ASSERT_PLAN_MS(&backoff, 100, 200, 400, 800);
}

static void exponential_delays_grow_by_any_multiplier(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = MS(100);
    backoff.multiplier_ppm = 3 * ES_PPM;
    ASSERT_PLAN_MS(&backoff, 100, 300, 900, 2700);
    backoff.multiplier_ppm = ES_PPM;
    ASSERT_PLAN_MS(&backoff, 100, 100, 100, 100);
    backoff.multiplier_ppm = ES_PPM * 11 / 10;
    const int64_t tenths_ns[] = {100000000, 110000000, 121000000, 133100000, 146410000, 161051000, 177156100};
    backoff.attempts_max = ES_NO_LIMIT;
    for (uint64_t retry = 1; retry <= 7; retry++)
        assert_int_equal(delay_of(&backoff, retry), tenths_ns[retry - 1]);
}

static void the_least_multiplier_above_one_gets_anywhere_in_the_end(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.multiplier_ppm = ES_PPM + 1;
    backoff.attempts_max = ES_NO_LIMIT;
    assert_int_equal(delay_of(&backoff, 2), MS(10) + 10);
    /* 10 ms * 1.000001^1000000 is 27182804.69 ns. */
    assert_int_equal(delay_of(&backoff, 1000001), 27182805);
    assert_int_equal(delay_of(&backoff, UINT64_MAX - 1), ES_FOREVER_NS);
}

static void linear_delays_grow_by_a_step(void **state) {
    (void)state;
    es_backoff backoff = schedule(LINEAR);
    backoff.base_ns = MS(100);
    backoff.step_ns = MS(100);
    ASSERT_PLAN_MS(&backoff, 100, 200, 300, 400);
    backoff.step_ns = MS(50);
    ASSERT_PLAN_MS(&backoff, 100, 150, 200, 250);
    backoff.step_ns = 0;
    ASSERT_PLAN_MS(&backoff, 100, 100, 100, 100);
    backoff.base_ns = 0;
    backoff.step_ns = MS(50);
    ASSERT_PLAN_MS(&backoff, 0, 50, 100, 150);
}

static void constant_delays_stay(void **state) {
    (void)state;
    es_backoff backoff = schedule(CONSTANT);
    ASSERT_PLAN_MS(&backoff, 10, 10, 10, 10);
    backoff.cap_ns = MS(7);
    ASSERT_PLAN_MS(&backoff, 7, 7, 7, 7);
}

static void the_last_delay_of_a_list_repeats(void **state) {
    (void)state;
    es_backoff backoff = schedule(LIST);
    backoff.attempts_max = 7;
    ASSERT_PLAN_MS(&backoff, 10, 50, 200, 200, 200, 200);
    backoff.attempts_max = 3;
    ASSERT_PLAN_MS(&backoff, 10, 50);
    backoff.attempts_max = 7;
    backoff.cap_ns = MS(40);
    ASSERT_PLAN_MS(&backoff, 10, 40, 40, 40, 40, 40);
    backoff.steps = 1;
    ASSERT_PLAN_MS(&backoff, 10, 10, 10, 10, 10, 10);
}

static void no_delay_is_above_the_cap(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = MS(100);
    backoff.cap_ns = MS(2000);
    backoff.attempts_max = 8;
    ASSERT_PLAN_MS(&backoff, 100, 200, 400, 800, 1600, 2000, 2000);
}

static void the_delay_that_would_pass_the_expiry_is_trimmed_to_it(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.attempts_max = ES_NO_LIMIT;
    backoff.expiry_ns = MS(1000);
    ASSERT_PLAN_MS(&backoff, 10, 20, 40, 80, 160, 320, 370);
    backoff.expiry_ns = MS(50);
    ASSERT_PLAN_MS(&backoff, 10, 20, 20);
}

static void the_trimmed_delay_is_the_last(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = -1;
    backoff.expiry_ns = MS(50);
    assert_int_equal(ask(&backoff, 2, MS(50) - MS(20) - 1, &delay_ns), ES_RETRY);
    assert_int_equal(delay_ns, MS(20));
    assert_int_equal(ask(&backoff, 2, MS(30), &delay_ns), ES_RETRY_LAST);
    assert_int_equal(delay_ns, MS(20));
    assert_int_equal(ask(&backoff, 2, MS(50) - 1, &delay_ns), ES_RETRY_LAST);
    assert_int_equal(delay_ns, 1);
}

static void nothing_follows_a_spent_budget(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = 77;
    backoff.expiry_ns = MS(50);
    assert_int_equal(ask(&backoff, 1, MS(50), &delay_ns), ES_EXHAUSTED);
    assert_int_equal(ask(&backoff, 1, INT64_MAX, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(delay_ns, 77);
}

static void nothing_follows_the_last_attempt(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = 77;
    assert_int_equal(ask(&backoff, 4, 0, &delay_ns), ES_RETRY);
    delay_ns = 77;
    assert_int_equal(ask(&backoff, 5, 0, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(ask(&backoff, UINT64_MAX, 0, &delay_ns), ES_EXHAUSTED);
    backoff.attempts_max = 1;
    assert_int_equal(ask(&backoff, 1, 0, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(es_backoff_plan(&backoff, NULL, 10), 0);
    assert_int_equal(delay_ns, 77);
}

static void a_clock_that_runs_back_spends_no_budget(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = -1;
    backoff.base_ns = MS(100);
    backoff.expiry_ns = MS(50);
    assert_int_equal(ask(&backoff, 1, INT64_MIN, &delay_ns), ES_RETRY_LAST);
    assert_int_equal(delay_ns, MS(50));
}

static void the_cap_holds_where_doubling_overflows(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = MS(1);
    backoff.cap_ns = MS(30000);
    backoff.attempts_max = ES_NO_LIMIT;
    for (uint64_t retry = 63; retry <= 67; retry++)
        assert_int_equal(delay_of(&backoff, retry), MS(30000));
}

static void doubling_is_exact_up_to_the_last_bit_and_then_forever(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = 1;
    backoff.attempts_max = ES_NO_LIMIT;
    for (uint64_t retry = 1; retry <= 63; retry++)
        assert_int_equal(delay_of(&backoff, retry), INT64_C(1) << (retry - 1));
    for (uint64_t retry = 64; retry <= 130; retry++)
        assert_int_equal(delay_of(&backoff, retry), ES_FOREVER_NS);
}

static void absurd_retry_numbers_stay_between_nothing_and_the_cap(void **state) {
    (void)state;
    const uint64_t retries[] = {1000000, UINT32_MAX, INT64_MAX, UINT64_MAX - 1};
    for (size_t curve = EXPONENTIAL; curve <= LINEAR; curve++) {
        es_backoff backoff = schedule(curve);
        backoff.attempts_max = ES_NO_LIMIT;
        for (size_t i = 0; i < sizeof retries / sizeof *retries; i++) {
            backoff.cap_ns = MS(30000);
            assert_int_equal(delay_of(&backoff, retries[i]), MS(30000));
            backoff.cap_ns = ES_FOREVER_NS;
            assert_in_range(delay_of(&backoff, retries[i]), MS(10000000), ES_FOREVER_NS);
        }
        int64_t delay_ns;
        assert_int_equal(ask(&backoff, UINT64_MAX, 0, &delay_ns), ES_EXHAUSTED);
    }
}

static void a_base_of_nothing_never_waits(void **state) {
    (void)state;
    for (size_t curve = EXPONENTIAL; curve <= CONSTANT; curve++) {
        es_backoff backoff = schedule(curve);
        backoff.base_ns = 0;
        backoff.step_ns = 0;
        ASSERT_PLAN_MS(&backoff, 0, 0, 0, 0);
        assert_int_equal(es_backoff_window_ns(&backoff), 0);
        backoff.attempts_max = UINT64_MAX - 1;
        backoff.multiplier_ppm = 1000 * ES_PPM;
        assert_int_equal(delay_of(&backoff, UINT64_MAX - 2), 0);
        assert_int_equal(es_backoff_window_ns(&backoff), 0);
    }
}

static void a_field_outside_its_range_is_a_bad_configuration(void **state) {
    (void)state;
    const es_backoff sound = schedule(EXPONENTIAL);
    es_backoff wrong[15];
    for (int i = 0; i < 15; i++)
        wrong[i] = sound;
    wrong[0].curve = NULL;
    wrong[1].base_ns = -1;
    wrong[2].step_ns = -1;
    wrong[3].multiplier_ppm = ES_PPM - 1;
    wrong[4].multiplier_ppm = 1000 * ES_PPM + 1;
    wrong[5].cap_ns = 0;
    wrong[6].expiry_ns = 0;
    wrong[7].attempts_max = 0;
    wrong[8].jitter_ppm = ES_PPM + 1;
    wrong[9].asked_max_ns = -1;
    wrong[10].steps = 1; /* for a list only */
    wrong[11] = wrong[12] = wrong[13] = schedule(LIST);
    wrong[11].steps = 0;
    wrong[12].steps_ns = (const int64_t[]){1, 2, -1};
    wrong[13].steps_ns = (const int64_t[ES_BACKOFF_STEPS_MAX + 1]){0};
    wrong[13].steps = ES_BACKOFF_STEPS_MAX + 1;
    wrong[14].jitter = (es_jitter)(ES_JITTER_DECORRELATED + 1);
    assert_int_equal(es_backoff_check(&sound), ES_OK);
    for (int i = 0; i < 15; i++)
        assert_int_equal(es_backoff_check(&wrong[i]), ES_BAD_CONFIG);
}

static void the_least_and_the_most_of_every_field_are_allowed(void **state) {
    (void)state;
    const int64_t steps_ns[ES_BACKOFF_STEPS_MAX] = {0};
    const es_backoff least = {
        .curve = es_backoff_curve_at(LINEAR), .multiplier_ppm = ES_PPM, .cap_ns = 1, .expiry_ns = 1, .attempts_max = 1};
    const es_backoff greatest = {es_backoff_curve_at(LIST),
                                 ES_FOREVER_NS,
                                 ES_FOREVER_NS,
                                 1000 * ES_PPM,
                                 steps_ns,
                                 ES_BACKOFF_STEPS_MAX,
                                 ES_FOREVER_NS,
                                 ES_FOREVER_NS,
                                 ES_NO_LIMIT,
                                 ES_JITTER_DECORRELATED,
                                 ES_PPM,
                                 ES_FOREVER_NS};
    assert_int_equal(es_backoff_check(&least), ES_OK);
    assert_int_equal(es_backoff_check(&greatest), ES_OK);
}

static void curves_are_listed_by_name(void **state) {
    (void)state;
    assert_string_equal(es_backoff_curve_at(EXPONENTIAL)->name, "exponential");
    assert_string_equal(es_backoff_curve_at(LINEAR)->name, "linear");
    assert_string_equal(es_backoff_curve_at(CONSTANT)->name, "constant");
    assert_string_equal(es_backoff_curve_at(LIST)->name, "list");
    assert_null(es_backoff_curve_at(CURVES));
    assert_null(es_backoff_curve_at(SIZE_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_delays_double),
        cmocka_unit_test(exponential_delays_grow_by_any_multiplier),
        cmocka_unit_test(the_least_multiplier_above_one_gets_anywhere_in_the_end),
        cmocka_unit_test(linear_delays_grow_by_a_step),
        cmocka_unit_test(constant_delays_stay),
        cmocka_unit_test(the_last_delay_of_a_list_repeats),
        cmocka_unit_test(no_delay_is_above_the_cap),
        cmocka_unit_test(the_delay_that_would_pass_the_expiry_is_trimmed_to_it),
        cmocka_unit_test(the_trimmed_delay_is_the_last),
        cmocka_unit_test(nothing_follows_a_spent_budget),
        cmocka_unit_test(nothing_follows_the_last_attempt),
        cmocka_unit_test(a_clock_that_runs_back_spends_no_budget),
        cmocka_unit_test(the_cap_holds_where_doubling_overflows),
        cmocka_unit_test(doubling_is_exact_up_to_the_last_bit_and_then_forever),
        cmocka_unit_test(absurd_retry_numbers_stay_between_nothing_and_the_cap),
        cmocka_unit_test(a_base_of_nothing_never_waits),
        cmocka_unit_test(a_field_outside_its_range_is_a_bad_configuration),
        cmocka_unit_test(the_least_and_the_most_of_every_field_are_allowed),
        cmocka_unit_test(curves_are_listed_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
