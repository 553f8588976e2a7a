/* SPDX-License-Identifier: Apache-2.0 */
#include "tally_support.h"

#define SECOND MS(1000)

static es_tally *over_time(int64_t span_ns) {
    return tally_of((es_tally_config){.span_ns = span_ns});
}

static es_tally *over_calls(uint32_t calls) {
    return tally_of((es_tally_config){.calls = calls});
}

static void assert_counts(const es_tally *tally, int64_t now_ns, uint32_t calls, uint32_t failures, uint32_t slow) {
    assert_same(es_tally_look(tally, now_ns), (es_tally_counts){calls, failures, slow});
}

static void a_new_tally_has_counted_nothing(void **state) {
    (void)state;
    es_tally *tallies[] = {over_time(SECOND), over_calls(10)};
    for (int i = 0; i < 2; i++) {
        assert_counts(tallies[i], INT64_MIN, 0, 0, 0);
        assert_counts(tallies[i], 0, 0, 0, 0);
        assert_counts(tallies[i], INT64_MAX, 0, 0, 0);
        free(tallies[i]);
    }
}

static void only_one_of_the_kinds_is_a_configuration(void **state) {
    (void)state;
    const es_tally_config wrong[] = {
        {0, 0},      {ES_TALLY_BUCKETS - 1, 0},   {-1, 0}, {INT64_MIN, 0},
        {SECOND, 1}, {0, ES_TALLY_CALLS_MAX + 1}, {-1, 1}, {0, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(es_tally_bytes(&wrong[i]), 0);
}

static void the_ends_of_the_ranges_are_configurations(void **state) {
    (void)state;
    es_tally *shortest = over_time(ES_TALLY_BUCKETS), *longest = over_time(INT64_MAX);
    es_tally *fewest = over_calls(1), *most = over_calls(ES_TALLY_CALLS_MAX);
    es_tally *tallies[] = {shortest, longest, fewest, most};
    for (int i = 0; i < 4; i++) {
        assert_same(es_tally_record(tallies[i], true, false, 5), (es_tally_counts){1, 1, 0});
        free(tallies[i]);
    }
}

static void a_failure_and_a_slow_call_are_calls_too(void **state) {
    (void)state;
    es_tally *tallies[] = {over_time(SECOND), over_calls(10)};
    for (int i = 0; i < 2; i++) {
        assert_same(es_tally_record(tallies[i], false, false, 0), (es_tally_counts){1, 0, 0});
        assert_same(es_tally_record(tallies[i], true, false, 0), (es_tally_counts){2, 1, 0});
        assert_same(es_tally_record(tallies[i], false, true, 0), (es_tally_counts){3, 1, 1});
        assert_same(es_tally_record(tallies[i], true, true, 0), (es_tally_counts){4, 2, 2});
        assert_counts(tallies[i], 0, 4, 2, 2);
        free(tallies[i]);
    }
}

static void after_an_idle_span_only_the_new_failure_is_left(void **state) {
    (void)state;
    es_tally *tally = over_time(10 * SECOND);
    for (int second = 0; second < 10; second++)
        es_tally_record(tally, true, true, second * SECOND);
    assert_counts(tally, 9 * SECOND, 10, 10, 10);
    assert_counts(tally, 19 * SECOND, 0, 0, 0);
    assert_same(es_tally_record(tally, true, false, 20 * SECOND), (es_tally_counts){1, 1, 0});
    assert_counts(tally, 20 * SECOND, 1, 1, 0);
    free(tally);
}

static void a_bucket_used_again_has_forgotten_every_count(void **state) {
    (void)state;
    es_tally *tally = over_time(10 * SECOND);
    es_tally_record(tally, true, true, 0);
    assert_same(es_tally_record(tally, false, false, 10 * SECOND), (es_tally_counts){1, 0, 0});
    assert_counts(tally, 10 * SECOND, 1, 0, 0);
    free(tally);
}

/* In steps of one nanosecond, so that each age on either side of both bounds is seen. */
static void an_outcome_counts_for_less_than_the_span_and_a_tenth_less_at_least(void **state) {
    (void)state;
    const int64_t span = 100, bucket = 10;
    for (int64_t at = -60; at < 60; at++) {
        es_tally *tally = over_time(span);
        int64_t age = 0;
        es_tally_record(tally, true, false, at);
        while (es_tally_look(tally, at + age).calls == 1)
            age++;
        assert_in_range(age, span - bucket + 1, span);
        for (int64_t later = age; later < 3 * span; later++)
            assert_counts(tally, at + later, 0, 0, 0);
        free(tally);
    }
}

static void buckets_stand_still_on_the_clock(void **state) {
    (void)state;
    for (int64_t at = -20; at < 20; at++) {
        es_tally *tally = over_time(100);
        int64_t bucket_from = at - (at % 10 + 10) % 10;
        es_tally_record(tally, true, false, at);
        assert_counts(tally, bucket_from + 99, 1, 1, 0);
        assert_counts(tally, bucket_from + 100, 0, 0, 0);
        free(tally);
    }
}

static void a_span_that_buckets_do_not_divide_counts_as_the_next_they_do(void **state) {
    (void)state;
    es_tally *tally = over_time(91);
    es_tally_record(tally, true, false, 0);
    assert_counts(tally, 99, 1, 1, 0);
    assert_counts(tally, 100, 0, 0, 0);
    free(tally);
}

static void looking_changes_nothing(void **state) {
    (void)state;
    es_tally *tally = over_time(100);
    es_tally_record(tally, true, true, 50);
    assert_counts(tally, 1000, 0, 0, 0);
    assert_counts(tally, 50, 1, 1, 1);
    assert_same(es_tally_record(tally, false, false, 60), (es_tally_counts){2, 1, 1});
    free(tally);
}

static void a_time_from_before_counts_as_the_latest_seen(void **state) {
    (void)state;
    es_tally *tally = over_time(100);
    es_tally_record(tally, true, false, 500);
    assert_same(es_tally_record(tally, true, false, 20), (es_tally_counts){2, 2, 0});
    assert_counts(tally, INT64_MIN, 2, 2, 0);
    assert_counts(tally, 599, 2, 2, 0);
    assert_counts(tally, 600, 0, 0, 0);
    free(tally);
}

static void the_ends_of_time_are_times(void **state) {
    (void)state;
    const int64_t spans[] = {ES_TALLY_BUCKETS, SECOND, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        es_tally *tally = over_time(spans[i]);
        assert_same(es_tally_record(tally, true, false, INT64_MIN), (es_tally_counts){1, 1, 0});
        assert_counts(tally, INT64_MIN, 1, 1, 0);
        assert_counts(tally, INT64_MAX, 0, 0, 0);
        assert_same(es_tally_record(tally, false, true, INT64_MAX), (es_tally_counts){1, 0, 1});
        assert_counts(tally, INT64_MAX, 1, 0, 1);
        free(tally);
    }
}

static void over_calls_the_last_ones_count_whatever_the_time(void **state) {
    (void)state;
    es_tally *tally = over_calls(3);
    es_tally_record(tally, true, false, 0);
    es_tally_record(tally, true, true, INT64_MAX);
    assert_same(es_tally_record(tally, false, true, INT64_MIN), (es_tally_counts){3, 2, 2});
    assert_same(es_tally_record(tally, false, false, 0), (es_tally_counts){3, 1, 2});
    assert_same(es_tally_record(tally, false, false, 0), (es_tally_counts){3, 0, 1});
    assert_same(es_tally_record(tally, true, false, 0), (es_tally_counts){3, 1, 0});
    assert_counts(tally, INT64_MAX, 3, 1, 0);
    free(tally);
}

static void clearing_forgets_everything_and_goes_on(void **state) {
    (void)state;
    es_tally *tallies[] = {over_time(100), over_calls(3)};
    for (int i = 0; i < 2; i++) {
        for (int call = 0; call < 5; call++)
            es_tally_record(tallies[i], true, true, call);
        es_tally_clear(tallies[i]);
        assert_counts(tallies[i], 4, 0, 0, 0);
        assert_same(es_tally_record(tallies[i], true, false, 5), (es_tally_counts){1, 1, 0});
        assert_same(es_tally_record(tallies[i], false, true, 6), (es_tally_counts){2, 1, 1});
        assert_same(es_tally_record(tallies[i], false, false, 6), (es_tally_counts){3, 1, 1});
        free(tallies[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_tally_has_counted_nothing),
        cmocka_unit_test(only_one_of_the_kinds_is_a_configuration),
        cmocka_unit_test(the_ends_of_the_ranges_are_configurations),
        cmocka_unit_test(a_failure_and_a_slow_call_are_calls_too),
        cmocka_unit_test(after_an_idle_span_only_the_new_failure_is_left),
        cmocka_unit_test(a_bucket_used_again_has_forgotten_every_count),
        cmocka_unit_test(an_outcome_counts_for_less_than_the_span_and_a_tenth_less_at_least),
        cmocka_unit_test(buckets_stand_still_on_the_clock),
        cmocka_unit_test(a_span_that_buckets_do_not_divide_counts_as_the_next_they_do),
        cmocka_unit_test(looking_changes_nothing),
        cmocka_unit_test(a_time_from_before_counts_as_the_latest_seen),
        cmocka_unit_test(the_ends_of_time_are_times),
        cmocka_unit_test(over_calls_the_last_ones_count_whatever_the_time),
        cmocka_unit_test(clearing_forgets_everything_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
