/* SPDX-License-Identifier: Apache-2.0 */
#include "cooldown.h"
#include "support.h"

static es_cooldown cooldown_of(int64_t reset_ns, uint32_t factor_ppm, int64_t max_ns, uint32_t jitter_ppm) {
    es_cooldown cooldown = {
        .reset_ns = reset_ns, .max_ns = max_ns, .factor_ppm = factor_ppm, .jitter_ppm = jitter_ppm, .last_ns = 77};
    es_cooldown_restart(&cooldown);
    return cooldown;
}

/* Without jitter the random word has no say. */
static void assert_draws(const es_cooldown *cooldown, int64_t time_ns) {
    uint64_t random = 3;
    for (int draw = 0; draw < 10; draw++)
        assert_int_equal(es_cooldown_draw_ns(cooldown, next_random(&random)), time_ns);
}

static void the_time_grows_by_the_factor_up_to_the_bound(void **state) {
    (void)state;
    const int64_t seconds[] = {1, 2, 4, 5, 5, 5};
    es_cooldown cooldown = cooldown_of(MS(1000), 2 * ES_PPM, MS(5000), 0);
    for (int time = 0; time < 6; time++) {
        assert_draws(&cooldown, MS(1000) * seconds[time]);
        es_cooldown_grow(&cooldown);
    }
}

static void a_factor_may_be_a_fraction(void **state) {
    (void)state;
    es_cooldown cooldown = cooldown_of(MS(1000), 1500000, ES_FOREVER_NS, 0);
    es_cooldown_grow(&cooldown);
    assert_draws(&cooldown, MS(1500));
    es_cooldown_grow(&cooldown);
    assert_draws(&cooldown, MS(2250));
}

static void a_factor_of_one_never_grows(void **state) {
    (void)state;
    es_cooldown cooldown = cooldown_of(MS(1000), ES_PPM, ES_FOREVER_NS, 0);
    for (int time = 0; time < 1000; time++)
        es_cooldown_grow(&cooldown);
    assert_draws(&cooldown, MS(1000));
}

static void a_restart_begins_with_the_first_time_again(void **state) {
    (void)state;
    es_cooldown cooldown = cooldown_of(MS(1000), 2 * ES_PPM, ES_FOREVER_NS, 0);
    es_cooldown_grow(&cooldown);
    es_cooldown_grow(&cooldown);
    es_cooldown_restart(&cooldown);
    assert_draws(&cooldown, MS(1000));
    es_cooldown_grow(&cooldown);
    assert_draws(&cooldown, MS(2000));
}

static void growth_saturates(void **state) {
    (void)state;
    es_cooldown unbounded = cooldown_of(1, UINT32_MAX, ES_FOREVER_NS, 0);
    es_cooldown bounded = cooldown_of(1, UINT32_MAX, ES_FOREVER_NS - 1, 0);
    for (int time = 0; time < 1000; time++) {
        es_cooldown_grow(&unbounded);
        es_cooldown_grow(&bounded);
    }
    assert_draws(&unbounded, ES_FOREVER_NS);
    assert_draws(&bounded, ES_FOREVER_NS - 1);
}

static void no_time_stays_none_and_for_ever_stays_for_ever(void **state) {
    (void)state;
    es_cooldown none = cooldown_of(0, 2 * ES_PPM, ES_FOREVER_NS, ES_PPM);
    es_cooldown for_ever = cooldown_of(ES_FOREVER_NS, 2 * ES_PPM, ES_FOREVER_NS, ES_PPM);
    for (int time = 0; time < 3; time++) {
        assert_draws(&none, 0);
        assert_draws(&for_ever, ES_FOREVER_NS);
        es_cooldown_grow(&none);
        es_cooldown_grow(&for_ever);
    }
}

/* Draws often, and finds draws all over the band from `low` to `high` and nowhere else. */
static void assert_band(const es_cooldown *cooldown, int64_t low, int64_t high) {
    uint64_t random = 11;
    int64_t least = INT64_MAX, most = INT64_MIN, tenth = (high - low) / 10;
    for (int draw = 0; draw < 2000; draw++) {
        int64_t time_ns = es_cooldown_draw_ns(cooldown, next_random(&random));
        assert_true(time_ns >= low && time_ns <= high);
        least = time_ns < least ? time_ns : least;
        most = time_ns > most ? time_ns : most;
    }
    assert_true(least < low + tenth);
    assert_true(most > high - tenth);
}

static void jitter_spreads_the_time_either_way(void **state) {
    (void)state;
    es_cooldown cooldown = cooldown_of(MS(1000), 2 * ES_PPM, ES_FOREVER_NS, 100000);
    assert_band(&cooldown, MS(900), MS(1100));
    es_cooldown_grow(&cooldown);
    assert_band(&cooldown, MS(1800), MS(2200));
    cooldown = cooldown_of(MS(1000), 2 * ES_PPM, ES_FOREVER_NS, ES_PPM);
    assert_band(&cooldown, 0, MS(2000));
}

static void jitter_does_not_add_up(void **state) {
    (void)state;
    es_cooldown cooldown = cooldown_of(MS(1000), ES_PPM, ES_FOREVER_NS, 100000);
    for (uint64_t time = 0; time < 100; time++) {
        es_cooldown_grow(&cooldown);
        assert_in_range(es_cooldown_draw_ns(&cooldown, UINT64_MAX - time), MS(900), MS(1100));
    }
}

static void at_the_bound_the_band_moves_down(void **state) {
    (void)state;
    es_cooldown cooldown = cooldown_of(MS(1000), 2 * ES_PPM, MS(1500), 100000);
    es_cooldown_grow(&cooldown);
    assert_band(&cooldown, MS(1200), MS(1500));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_grows_by_the_factor_up_to_the_bound),
        cmocka_unit_test(a_factor_may_be_a_fraction),
        cmocka_unit_test(a_factor_of_one_never_grows),
        cmocka_unit_test(a_restart_begins_with_the_first_time_again),
        cmocka_unit_test(growth_saturates),
        cmocka_unit_test(no_time_stays_none_and_for_ever_stays_for_ever),
        cmocka_unit_test(jitter_spreads_the_time_either_way),
        cmocka_unit_test(jitter_does_not_add_up),
        cmocka_unit_test(at_the_bound_the_band_moves_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
