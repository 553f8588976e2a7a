/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff.h"
#include "support.h"

/* 10 ms doubling, five attempts: the defaults. */
static es_backoff schedule(void) {
    return (es_backoff){.curve = es_backoff_curve_at(0),
                        .base_ns = MS(10),
                        .factor = 1,
                        .cap_ns = ES_FOREVER_NS,
                        .expiry_ns = ES_FOREVER_NS,
                        .attempts_max = 5,
                        .jitter_ppm = 0};
}

static int by_value(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Draws the first delay 10,000 times, checks that it stays inside [low, high] ms and about in the middle on average,
 * and returns how many different delays were drawn. */
static int draw(const es_backoff *backoff, int64_t low_ms, int64_t high_ms) {
    static int64_t drawn_ns[10000];
    uint64_t random = 31;
    int64_t sum_ns = 0;
    int different = 1;
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(es_backoff_next(backoff, 1, 0, next_random(&random), &drawn_ns[i]), ES_RETRY);
        assert_in_range(drawn_ns[i], MS(low_ms), MS(high_ms));
        sum_ns += drawn_ns[i];
    }
    int64_t middle_ns = MS(low_ms + high_ms) / 2, tolerance_ns = MS(high_ms - low_ms) / 50;
    assert_in_range(sum_ns / 10000, middle_ns - tolerance_ns, middle_ns + tolerance_ns);
    qsort(drawn_ns, 10000, sizeof *drawn_ns, by_value);
    for (int i = 1; i < 10000; i++)
        different += drawn_ns[i] != drawn_ns[i - 1];
    return different;
}

static void jitter_spreads_the_delay_either_way(void **state) {
    (void)state;
    es_backoff backoff = schedule();
    backoff.base_ns = MS(100);
    backoff.jitter_ppm = 100000;
    assert_in_range(draw(&backoff, 90, 110), 9000, 10000);
    backoff.jitter_ppm = ES_PPM;
    assert_in_range(draw(&backoff, 0, 200), 9000, 10000);
}

static void jitter_at_the_cap_moves_the_band_down(void **state) {
    (void)state;
    es_backoff backoff = schedule();
    backoff.base_ns = MS(100);
    backoff.jitter_ppm = 100000;
    backoff.cap_ns = MS(100);
    assert_in_range(draw(&backoff, 80, 100), 9000, 10000);
    backoff.cap_ns = MS(105);
    assert_in_range(draw(&backoff, 85, 105), 9000, 10000);
    backoff.cap_ns = MS(50);
    assert_in_range(draw(&backoff, 40, 50), 9000, 10000);
    backoff.jitter_ppm = ES_PPM;
    assert_in_range(draw(&backoff, 0, 50), 9000, 10000);
}

static void jitter_reaches_both_ends_of_its_band(void **state) {
    (void)state;
    es_backoff backoff = schedule();
    bool seen[21] = {false};
    uint64_t random = 41;
    int64_t delay_ns;
    backoff.base_ns = 100;
    backoff.jitter_ppm = 100000;
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(es_backoff_next(&backoff, 1, 0, next_random(&random), &delay_ns), ES_RETRY);
        assert_in_range(delay_ns, 90, 110);
        seen[delay_ns - 90] = true;
    }
    for (int i = 0; i <= 20; i++)
        assert_true(seen[i]);
}

static void jitter_never_leaves_the_budget_or_the_range(void **state) {
    (void)state;
    es_backoff backoff = schedule();
    uint64_t random = 51;
    int64_t delay_ns;
    backoff.jitter_ppm = ES_PPM;
    backoff.base_ns = ES_FOREVER_NS;
    for (int i = 0; i < 1000; i++) {
        backoff.expiry_ns = ES_FOREVER_NS;
        assert_int_equal(es_backoff_next(&backoff, 1, 0, next_random(&random), &delay_ns), ES_RETRY);
        assert_in_range(delay_ns, 0, ES_FOREVER_NS);
        backoff.expiry_ns = MS(50);
        assert_int_equal(es_backoff_next(&backoff, 1, MS(20), next_random(&random), &delay_ns), ES_RETRY_LAST);
        assert_int_equal(delay_ns, MS(30));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jitter_spreads_the_delay_either_way),
        cmocka_unit_test(jitter_at_the_cap_moves_the_band_down),
        cmocka_unit_test(jitter_reaches_both_ends_of_its_band),
        cmocka_unit_test(jitter_never_leaves_the_budget_or_the_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
