/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff_support.h"

#define SAMPLES 100000

/* Jittered, of 100 ms. */
static es_backoff jittered(es_jitter jitter, uint32_t ppm) {
    es_backoff backoff = schedule(EXPONENTIAL);
    backoff.base_ns = MS(100);
    backoff.jitter = jitter;
    backoff.jitter_ppm = ppm;
    return backoff;
}

static int by_value(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static void assert_near(int64_t value_ns, int64_t expected_ns, int64_t tolerance_ns) {
    assert_true(value_ns >= expected_ns - tolerance_ns && value_ns <= expected_ns + tolerance_ns);
}

/* Draws the delay many times. None is outside [low, high] ms, mean and quartiles are those of a uniform draw from it to
 * within 2 %, and more than nine in ten differ. */
static void assert_uniform(const es_backoff *backoff, uint64_t retry, int64_t previous_ns, int64_t low_ms,
                           int64_t high_ms) {
    static int64_t drawn_ns[SAMPLES];
    uint64_t random = 31;
    int64_t sum_ns = 0, different = 1, width_ns = MS(high_ms - low_ms);
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t word = next_random(&random);
        assert_int_equal(es_backoff_next(backoff, retry, previous_ns, no_hurry, word, &drawn_ns[i]), ES_RETRY);
        assert_in_range(drawn_ns[i], MS(low_ms), MS(high_ms));
        sum_ns += drawn_ns[i];
    }
    qsort(drawn_ns, SAMPLES, sizeof *drawn_ns, by_value);
    for (int i = 1; i < SAMPLES; i++)
        different += drawn_ns[i] != drawn_ns[i - 1];
    assert_in_range(different, SAMPLES / 10 * 9 + 1, SAMPLES);
    assert_near(sum_ns / SAMPLES, MS(low_ms) + width_ns / 2, width_ns / 50);
    for (int quarter = 1; quarter <= 3; quarter++)
        assert_near(drawn_ns[SAMPLES / 4 * quarter], MS(low_ms) + width_ns * quarter / 4, width_ns / 50);
}

static void a_proportion_spreads_the_delay_either_way(void **state) {
    (void)state;
    es_backoff backoff = jittered(ES_JITTER_SPREAD, 100000);
    assert_uniform(&backoff, 1, 0, 90, 110);
    assert_uniform(&backoff, 2, 0, 180, 220);
    backoff.jitter_ppm = ES_PPM;
    assert_uniform(&backoff, 1, 0, 0, 200);
}

static void a_proportion_at_the_cap_moves_the_band_down(void **state) {
    (void)state;
    es_backoff backoff = jittered(ES_JITTER_SPREAD, 100000);
    backoff.cap_ns = MS(100);
    assert_uniform(&backoff, 1, 0, 80, 100);
    assert_uniform(&backoff, 4, 0, 80, 100);
    backoff.cap_ns = MS(105);
    assert_uniform(&backoff, 1, 0, 85, 105);
    backoff.cap_ns = MS(50);
    assert_uniform(&backoff, 1, 0, 40, 50);
    backoff.jitter_ppm = ES_PPM;
    assert_uniform(&backoff, 1, 0, 0, 50);
}

static void full_jitter_goes_from_nothing_to_the_delay(void **state) {
    (void)state;
    es_backoff backoff = jittered(ES_JITTER_FULL, 0);
    assert_uniform(&backoff, 1, 0, 0, 100);
    assert_uniform(&backoff, 3, 0, 0, 400);
    backoff.cap_ns = MS(250);
    assert_uniform(&backoff, 3, 0, 0, 250);
}

static void decorrelated_jitter_goes_from_base_to_three_times_the_delay_before(void **state) {
    (void)state;
    es_backoff backoff = jittered(ES_JITTER_DECORRELATED, 0);
    assert_uniform(&backoff, 1, MS(5000), 100, 300);
    assert_uniform(&backoff, 2, MS(100), 100, 300);
    assert_uniform(&backoff, 4, MS(250), 100, 750);
    assert_uniform(&backoff, 2, MS(250), 100, 750);
}

static void decorrelated_jitter_at_the_cap_keeps_callers_apart(void **state) {
    (void)state;
    es_backoff backoff = jittered(ES_JITTER_DECORRELATED, 0);
    backoff.cap_ns = MS(600);
    assert_uniform(&backoff, 4, MS(600), 100, 600);
    assert_uniform(&backoff, 4, ES_FOREVER_NS, 100, 600);
    backoff.cap_ns = MS(90);
    assert_uniform(&backoff, 1, 0, 30, 90);
    assert_uniform(&backoff, 4, MS(30), 30, 90);
    backoff.cap_ns = MS(100);
    backoff.base_ns = MS(90);
    assert_uniform(&backoff, 1, 0, 90, 100);
}

static void decorrelated_jitter_starts_with_the_first_delay_of_a_list(void **state) {
    (void)state;
    es_backoff backoff = schedule(LIST);
    backoff.base_ns = 0;
    backoff.jitter = ES_JITTER_DECORRELATED;
    assert_uniform(&backoff, 1, 0, 10, 30);
    assert_uniform(&backoff, 3, MS(100), 10, 300);
}

/* Each delay is the next one's previous, as in a call. */
static void chains_of_decorrelated_delays_stay_between_base_and_cap(void **state) {
    (void)state;
    uint64_t random = 61;
    es_backoff backoff = jittered(ES_JITTER_DECORRELATED, 0);
    backoff.cap_ns = MS(2000);
    for (int call = 0; call < SAMPLES / 50; call++) {
        int64_t delay_ns = 0;
        for (uint64_t retry = 1; retry < 5; retry++) {
            int64_t most_ns = retry == 1 ? MS(300) : delay_ns * 3;
            uint64_t word = next_random(&random);
            assert_int_equal(es_backoff_next(&backoff, retry, delay_ns, no_hurry, word, &delay_ns), ES_RETRY);
            assert_in_range(delay_ns, MS(100), most_ns < MS(2000) ? most_ns : MS(2000));
        }
    }
}

static void both_ends_of_each_band_are_reached(void **state) {
    (void)state;
    const es_jitter kinds[] = {ES_JITTER_SPREAD, ES_JITTER_FULL, ES_JITTER_DECORRELATED};
    const int64_t low_ns[] = {9, 0, 10}, high_ns[] = {11, 10, 30};
    for (int kind = 0; kind < 3; kind++) {
        es_backoff backoff = jittered(kinds[kind], 100000);
        bool seen[31] = {false};
        uint64_t random = 41;
        int64_t delay_ns;
        backoff.base_ns = 10;
        for (int i = 0; i < 2000; i++) {
            assert_int_equal(es_backoff_next(&backoff, 1, 0, no_hurry, next_random(&random), &delay_ns), ES_RETRY);
            assert_in_range(delay_ns, low_ns[kind], high_ns[kind]);
            seen[delay_ns] = true;
        }
        for (int64_t ns = low_ns[kind]; ns <= high_ns[kind]; ns++)
            assert_true(seen[ns]);
    }
}

static void jitter_never_leaves_the_budget_or_the_range(void **state) {
    (void)state;
    const es_jitter kinds[] = {ES_JITTER_SPREAD, ES_JITTER_FULL, ES_JITTER_DECORRELATED};
    uint64_t random = 51;
    int64_t delay_ns;
    for (int i = 0; i < 3000; i++) {
        es_backoff backoff = jittered(kinds[i % 3], ES_PPM);
        uint64_t word = next_random(&random);
        backoff.base_ns = ES_FOREVER_NS;
        assert_int_equal(es_backoff_next(&backoff, 2, ES_FOREVER_NS, no_hurry, word, &delay_ns), ES_RETRY);
        assert_in_range(delay_ns, 0, ES_FOREVER_NS);
        backoff.expiry_ns = MS(50);
        const es_backoff_time time = {MS(20), ES_FOREVER_NS};
        assert_int_equal(es_backoff_next(&backoff, 2, ES_FOREVER_NS, time, word, &delay_ns), ES_RETRY_LAST);
        assert_int_equal(delay_ns, MS(30));
    }
}

static void a_base_of_nothing_stays_nothing(void **state) {
    (void)state;
    const es_jitter kinds[] = {ES_JITTER_SPREAD, ES_JITTER_FULL, ES_JITTER_DECORRELATED};
    for (int kind = 0; kind < 3; kind++) {
        es_backoff backoff = jittered(kinds[kind], ES_PPM);
        int64_t delay_ns = -1;
        backoff.base_ns = 0;
        assert_int_equal(es_backoff_next(&backoff, 2, 0, no_hurry, UINT64_MAX, &delay_ns), ES_RETRY);
        assert_int_equal(delay_ns, 0);
    }
}

static void only_a_schedule_with_jitter_needs_a_random_word(void **state) {
    (void)state;
    const es_backoff none = jittered(ES_JITTER_SPREAD, 0), spread = jittered(ES_JITTER_SPREAD, 1);
    const es_backoff full = jittered(ES_JITTER_FULL, 0), decorrelated = jittered(ES_JITTER_DECORRELATED, 0);
    assert_false(es_backoff_is_random(&none));
    assert_true(es_backoff_is_random(&spread));
    assert_true(es_backoff_is_random(&full));
    assert_true(es_backoff_is_random(&decorrelated));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proportion_spreads_the_delay_either_way),
        cmocka_unit_test(a_proportion_at_the_cap_moves_the_band_down),
        cmocka_unit_test(full_jitter_goes_from_nothing_to_the_delay),
        cmocka_unit_test(decorrelated_jitter_goes_from_base_to_three_times_the_delay_before),
        cmocka_unit_test(decorrelated_jitter_at_the_cap_keeps_callers_apart),
        cmocka_unit_test(decorrelated_jitter_starts_with_the_first_delay_of_a_list),
        cmocka_unit_test(chains_of_decorrelated_delays_stay_between_base_and_cap),
        cmocka_unit_test(both_ends_of_each_band_are_reached),
        cmocka_unit_test(jitter_never_leaves_the_budget_or_the_range),
        cmocka_unit_test(a_base_of_nothing_stays_nothing),
        cmocka_unit_test(only_a_schedule_with_jitter_needs_a_random_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
