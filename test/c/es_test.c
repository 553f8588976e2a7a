/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

static void sums_of_times_are_plain_sums(void **state) {
    (void)state;
    assert_int_equal(es_add_ns(2, 3), 5);
    assert_int_equal(es_add_ns(-7, 3), -4);
    assert_int_equal(es_add_ns(INT64_MIN, INT64_MAX - 1), -2);
}

static void sums_of_times_saturate_at_both_ends(void **state) {
    (void)state;
    assert_int_equal(es_add_ns(INT64_MAX - 1, 2), ES_FOREVER_NS);
    assert_int_equal(es_add_ns(2, INT64_MAX - 1), ES_FOREVER_NS);
    assert_int_equal(es_add_ns(INT64_MIN, -1), INT64_MIN);
    assert_int_equal(es_add_ns(-1, INT64_MIN), INT64_MIN);
}

static void forever_plus_anything_is_forever(void **state) {
    (void)state;
    assert_int_equal(es_add_ns(ES_FOREVER_NS, -5), ES_FOREVER_NS);
    assert_int_equal(es_add_ns(INT64_MIN, ES_FOREVER_NS), ES_FOREVER_NS);
    assert_int_equal(es_add_ns(ES_FOREVER_NS, ES_FOREVER_NS), ES_FOREVER_NS);
}

static void elapsed_time_counts_from_since_to_now(void **state) {
    (void)state;
    assert_int_equal(es_elapsed_ns(10, 25), 15);
    assert_int_equal(es_elapsed_ns(-10, -4), 6);
    assert_int_equal(es_elapsed_ns(10, 10), 0);
    assert_int_equal(es_elapsed_ns(10, 11), 1);
}

static void elapsed_time_is_never_negative(void **state) {
    (void)state;
    assert_int_equal(es_elapsed_ns(10, 9), 0);
    assert_int_equal(es_elapsed_ns(INT64_MAX, INT64_MIN), 0);
}

static void elapsed_time_saturates_at_forever(void **state) {
    (void)state;
    assert_int_equal(es_elapsed_ns(INT64_MIN, INT64_MAX), ES_FOREVER_NS);
    assert_int_equal(es_elapsed_ns(-1, INT64_MAX), ES_FOREVER_NS);
    assert_int_equal(es_elapsed_ns(-1, INT64_MAX - 2), INT64_MAX - 1);
}

static void multiples_of_a_time_saturate_at_forever(void **state) {
    (void)state;
    assert_int_equal(es_scale_ns(7, 6), 42);
    assert_int_equal(es_scale_ns(7, 0), 0);
    assert_int_equal(es_scale_ns(0, UINT64_MAX), 0);
    assert_int_equal(es_scale_ns(1, INT64_MAX), ES_FOREVER_NS);
    assert_int_equal(es_scale_ns(1, UINT64_MAX), ES_FOREVER_NS);
    assert_int_equal(es_scale_ns(ES_FOREVER_NS, 1), ES_FOREVER_NS);
    assert_int_equal(es_scale_ns(ES_FOREVER_NS / 2, 3), ES_FOREVER_NS);
}

static void shares_of_a_time_round_down(void **state) {
    (void)state;
    assert_int_equal(es_share_ns(1000, 100000), 100);
    assert_int_equal(es_share_ns(9, 100000), 0);
    assert_int_equal(es_share_ns(19, 100000), 1);
    assert_int_equal(es_share_ns(1999999, 999999), 1999997);
    assert_int_equal(es_share_ns(1234567, 0), 0);
    assert_int_equal(es_share_ns(0, ES_PPM), 0);
}

static void the_whole_share_is_the_time_itself(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 1000; i++) {
        int64_t time_ns = (int64_t)(next_random(&random) >> 1 >> i % 60);
        assert_int_equal(es_share_ns(time_ns, ES_PPM), time_ns);
    }
    assert_int_equal(es_share_ns(ES_FOREVER_NS, ES_PPM), ES_FOREVER_NS);
}

static void shares_above_one_saturate_at_forever(void **state) {
    (void)state;
    assert_int_equal(es_share_ns(10, 2 * ES_PPM), 20);
    assert_int_equal(es_share_ns(ES_FOREVER_NS, ES_PPM + 1), ES_FOREVER_NS);
    assert_int_equal(es_share_ns(ES_FOREVER_NS / 2, UINT32_MAX), ES_FOREVER_NS);
    assert_int_equal(es_share_ns(ES_FOREVER_NS / 2, 2 * ES_PPM), ES_FOREVER_NS - 1);
}

static void random_numbers_reach_every_value_up_to_the_bound(void **state) {
    (void)state;
    uint64_t random = 2;
    int seen[5] = {0};
    for (int i = 0; i < 5000; i++) {
        int64_t drawn = es_random_up_to(next_random(&random), 4);
        assert_in_range(drawn, 0, 4);
        seen[drawn]++;
    }
    for (int value = 0; value <= 4; value++)
        assert_in_range(seen[value], 800, 1200);
}

static void random_numbers_work_at_both_extreme_bounds(void **state) {
    (void)state;
    assert_int_equal(es_random_up_to(UINT64_MAX, 0), 0);
    assert_int_equal(es_random_up_to(UINT64_MAX, INT64_MAX), INT64_MAX);
    assert_int_equal(es_random_up_to(0, INT64_MAX), 0);
}

static void hits_are_exactly_as_many_as_their_share(void **state) {
    (void)state;
    uint32_t hits = 0;
    for (uint32_t word = 0; word < ES_PPM; word++)
        hits += es_random_hit(word, 333333);
    assert_int_equal(hits, 333333);
}

static void hits_are_never_always_or_about_their_share(void **state) {
    (void)state;
    uint64_t random = 3;
    int hits = 0;
    for (int i = 0; i < 10000; i++) {
        uint64_t word = next_random(&random);
        assert_false(es_random_hit(word, 0));
        assert_true(es_random_hit(word, ES_PPM));
        assert_true(es_random_hit(word, UINT32_MAX));
        hits += es_random_hit(word, 250000);
    }
    assert_in_range(hits, 2300, 2700);
}

static void a_spread_covers_the_share_either_way(void **state) {
    (void)state;
    bool seen[21] = {false};
    for (uint64_t word = 0; word < 1000; word++) {
        int64_t time_ns = es_spread_ns(100, 100000, ES_FOREVER_NS, word);
        assert_in_range(time_ns, 90, 110);
        seen[time_ns - 90] = true;
    }
    for (int i = 0; i < 21; i++)
        assert_true(seen[i]);
}

static void a_spread_without_a_share_is_the_time_itself(void **state) {
    (void)state;
    assert_int_equal(es_spread_ns(100, 0, 100, 12345), 100);
    assert_int_equal(es_spread_ns(0, ES_PPM, ES_FOREVER_NS, 12345), 0);
}

/* The ends of the band: the words 0 and its width draw them, and with the next word it begins again. */
static void assert_band(int64_t time_ns, uint32_t ppm, int64_t most_ns, int64_t low, int64_t high) {
    assert_int_equal(es_spread_ns(time_ns, ppm, most_ns, 0), high);
    assert_int_equal(es_spread_ns(time_ns, ppm, most_ns, (uint64_t)(high - low)), low);
    assert_int_equal(es_spread_ns(time_ns, ppm, most_ns, (uint64_t)(high - low) + 1), high);
}

static void a_spread_moves_down_below_the_most(void **state) {
    (void)state;
    assert_band(100, 100000, 111, 90, 110);
    assert_band(100, 100000, 110, 90, 110);
    assert_band(100, 100000, 105, 85, 105);
    assert_band(100, 100000, 100, 80, 100);
}

static void a_spread_is_never_negative_and_saturates(void **state) {
    (void)state;
    assert_band(100, ES_PPM, ES_FOREVER_NS, 0, 200);
    assert_band(100, ES_PPM, 150, 0, 150);
    assert_band(INT64_MAX - 1, ES_PPM, INT64_MAX - 1, 0, INT64_MAX - 1);
    assert_band(INT64_MAX / 2 + 1, ES_PPM, INT64_MAX - 1, 0, INT64_MAX - 1);
}

static void words_that_differ_in_one_bit_are_mixed_to_differ_in_half_of_them(void **state) {
    (void)state;
    for (uint64_t word = 1; word < 1000; word++)
        for (int bit = 0; bit < 64; bit++) {
            uint64_t changed = es_mix(word * ES_WEYL) ^ es_mix(word * ES_WEYL ^ UINT64_C(1) << bit);
            assert_in_range(__builtin_popcountll(changed), 8, 56);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_times_are_plain_sums),
        cmocka_unit_test(sums_of_times_saturate_at_both_ends),
        cmocka_unit_test(forever_plus_anything_is_forever),
        cmocka_unit_test(elapsed_time_counts_from_since_to_now),
        cmocka_unit_test(elapsed_time_is_never_negative),
        cmocka_unit_test(elapsed_time_saturates_at_forever),
        cmocka_unit_test(multiples_of_a_time_saturate_at_forever),
        cmocka_unit_test(shares_of_a_time_round_down),
        cmocka_unit_test(the_whole_share_is_the_time_itself),
        cmocka_unit_test(shares_above_one_saturate_at_forever),
        cmocka_unit_test(random_numbers_reach_every_value_up_to_the_bound),
        cmocka_unit_test(random_numbers_work_at_both_extreme_bounds),
        cmocka_unit_test(a_spread_covers_the_share_either_way),
        cmocka_unit_test(a_spread_without_a_share_is_the_time_itself),
        cmocka_unit_test(a_spread_moves_down_below_the_most),
        cmocka_unit_test(a_spread_is_never_negative_and_saturates),
        cmocka_unit_test(hits_are_exactly_as_many_as_their_share),
        cmocka_unit_test(hits_are_never_always_or_about_their_share),
        cmocka_unit_test(words_that_differ_in_one_bit_are_mixed_to_differ_in_half_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
