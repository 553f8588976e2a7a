/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"
#include "trip.h"

static const es_trip *first_at(uint32_t failures, uint32_t tolerate) {
    const es_counts counts = {.failures = failures};
    const es_trip_limits limits = {.tolerate = tolerate, .min_calls = 1};
    return es_trip_first(&counts, &limits);
}

/* Nothing is on. */
static es_trip_limits off(void) {
    return (es_trip_limits){.tolerate = ES_TOLERATE_OFF, .min_calls = 1};
}

/* At so many calls of which so many failed, is this failing share too much? And the same for slow calls. */
static bool opens_at_rate(uint32_t some, uint32_t calls, uint32_t rate_ppm, uint32_t min_calls) {
    const es_counts failing = {.tally = {.calls = calls, .failures = some}};
    const es_counts slow = {.tally = {.calls = calls, .slow = some}};
    es_trip_limits failing_limits = off(), slow_limits = off();
    failing_limits.failure_rate_ppm = slow_limits.slow_rate_ppm = rate_ppm;
    failing_limits.min_calls = slow_limits.min_calls = min_calls;
    bool opens = es_trip_first(&failing, &failing_limits) != NULL;
    assert_int_equal(es_trip_first(&slow, &slow_limits) != NULL, opens);
    assert_null(es_trip_first(&failing, &slow_limits));
    assert_null(es_trip_first(&slow, &failing_limits));
    return opens;
}

static const char *name_at(es_counts counts, es_trip_limits limits) {
    const es_trip *rule = es_trip_first(&counts, &limits);
    assert_non_null(rule);
    return rule->name;
}

static void tolerated_failures_leave_the_breaker_closed(void **state) {
    (void)state;
    for (uint32_t failures = 0; failures <= 15; failures++)
        assert_null(first_at(failures, 15));
}

static void one_failure_more_than_tolerated_opens(void **state) {
    (void)state;
    assert_non_null(first_at(16, 15));
    assert_non_null(first_at(ES_TOLERATE_MAX + 1, ES_TOLERATE_MAX));
    assert_null(first_at(ES_TOLERATE_MAX, ES_TOLERATE_MAX));
}

static void tolerating_none_opens_on_the_first_failure(void **state) {
    (void)state;
    assert_null(first_at(0, 0));
    assert_non_null(first_at(1, 0));
}

static void a_rule_that_is_off_never_opens(void **state) {
    (void)state;
    const es_trip_limits limits = off();
    const es_counts all = {UINT32_MAX, {UINT32_MAX, UINT32_MAX, UINT32_MAX}, UINT32_MAX};
    const es_counts none = {0};
    assert_null(es_trip_first(&all, &limits));
    assert_null(es_trip_first(&none, &limits));
}

static void a_rate_opens_when_it_is_reached(void **state) {
    (void)state;
    assert_false(opens_at_rate(4, 10, 500000, 10));
    assert_true(opens_at_rate(5, 10, 500000, 10));
    assert_true(opens_at_rate(10, 10, 500000, 10));
    assert_false(opens_at_rate(333333, 1000000, 333334, 1));
    assert_true(opens_at_rate(333334, 1000000, 333334, 1));
    assert_false(opens_at_rate(9, 10, ES_PPM, 1));
    assert_true(opens_at_rate(10, 10, ES_PPM, 1));
    assert_false(opens_at_rate(0, 10, 1, 1));
    assert_true(opens_at_rate(1, 1000000, 1, 1));
    assert_false(opens_at_rate(1, 1000001, 1, 1));
}

static void rate_needs_enough_calls(void **state) {
    (void)state;
    assert_false(opens_at_rate(9, 9, 500000, 10));
    assert_true(opens_at_rate(9, 10, 500000, 10));
    assert_false(opens_at_rate(0, 0, 500000, 1));
    assert_true(opens_at_rate(1, 1, 500000, 1));
}

static void rates_of_the_largest_counts_are_exact(void **state) {
    (void)state;
    assert_true(opens_at_rate(UINT32_MAX, UINT32_MAX, ES_PPM, UINT32_MAX));
    assert_false(opens_at_rate(UINT32_MAX - 1, UINT32_MAX, ES_PPM, UINT32_MAX));
    assert_false(opens_at_rate(UINT32_MAX / 2, UINT32_MAX, 500000, 1));
    assert_true(opens_at_rate(UINT32_MAX / 2 + 1, UINT32_MAX, 500000, 1));
}

static void failures_in_a_row_open_when_there_are_enough(void **state) {
    (void)state;
    es_trip_limits limits = off();
    limits.consecutive = 3;
    for (uint32_t consecutive = 0; consecutive < 6; consecutive++) {
        const es_counts counts = {.consecutive = consecutive};
        assert_int_equal(es_trip_first(&counts, &limits) != NULL, consecutive >= 3);
    }
}

static void the_rule_that_fired_is_told_by_name(void **state) {
    (void)state;
    es_trip_limits limits = {.tolerate = 2, .min_calls = 1};
    assert_string_equal(name_at((es_counts){.failures = 3}, limits), "tolerate");
    limits = off();
    limits.failure_rate_ppm = 500000;
    assert_string_equal(name_at((es_counts){.tally = {2, 1, 0}}, limits), "failure_rate");
    limits = off();
    limits.slow_rate_ppm = 500000;
    assert_string_equal(name_at((es_counts){.tally = {2, 0, 1}}, limits), "slow_rate");
    limits = off();
    limits.consecutive = 2;
    assert_string_equal(name_at((es_counts){.consecutive = 2}, limits), "consecutive");
}

static void of_several_rules_any_opens_and_the_first_is_told(void **state) {
    (void)state;
    const es_trip_limits limits = {2, 500000, 500000, 4, 3};
    const es_counts quiet = {2, {4, 1, 1}, 2};
    assert_null(es_trip_first(&quiet, &limits));
    assert_string_equal(name_at((es_counts){3, {4, 2, 2}, 3}, limits), "tolerate");
    assert_string_equal(name_at((es_counts){2, {4, 2, 2}, 3}, limits), "failure_rate");
    assert_string_equal(name_at((es_counts){2, {4, 1, 2}, 3}, limits), "slow_rate");
    assert_string_equal(name_at((es_counts){2, {4, 1, 1}, 3}, limits), "consecutive");
}

static void the_table_lists_each_rule_once_and_ends(void **state) {
    (void)state;
    size_t rules = 0;
    while (es_trip_at(rules) != NULL) {
        for (size_t earlier = 0; earlier < rules; earlier++)
            assert_string_not_equal(es_trip_at(earlier)->name, es_trip_at(rules)->name);
        rules++;
    }
    assert_int_equal(rules, 4);
    assert_string_equal(es_trip_at(0)->name, "tolerate");
    assert_null(es_trip_at(SIZE_MAX));
}

static void failures_of_each_attempt_meet_within_the_calls_it_takes(void **state) {
    (void)state;
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 10, false), MS(4500));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 9, false), MS(3000));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 4, false), MS(1500));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 0, false), MS(1500));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 1, 10, false), MS(16500));
}

static void calls_are_counted_whole_and_from_the_end_of_the_first_where_they_melt_once(void **state) {
    (void)state;
    assert_int_equal(es_trip_calls(5, 10, false), 3);
    assert_int_equal(es_trip_calls(5, 9, false), 2);
    assert_int_equal(es_trip_calls(5, 4, false), 1);
    assert_int_equal(es_trip_calls(0, 10, false), 1);
    assert_int_equal(es_trip_calls(5, 10, true), 10);
    assert_int_equal(es_trip_calls(5, 0, true), 0);
}

static void failures_of_each_call_meet_within_as_many_calls_as_are_tolerated(void **state) {
    (void)state;
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 10, true), MS(15000));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 1, true), MS(1500));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 5, 0, true), 0);
}

static void unbounded_attempts_open_within_one_call(void **state) {
    (void)state;
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 0, 10, false), MS(1500));
    assert_int_equal(es_trip_narrowest_ns(MS(1500), 0, 10, true), MS(15000));
}

static void the_narrowest_window_saturates(void **state) {
    (void)state;
    assert_int_equal(es_trip_narrowest_ns(ES_FOREVER_NS, 5, 10, false), ES_FOREVER_NS);
    assert_int_equal(es_trip_narrowest_ns(ES_FOREVER_NS / 2, 5, ES_TOLERATE_MAX, true), ES_FOREVER_NS);
}

static void the_automatic_window_is_twice_the_narrowest(void **state) {
    (void)state;
    assert_int_equal(es_trip_auto_within_ns(MS(1500), 5, 10, true), MS(30000));
    assert_int_equal(es_trip_auto_within_ns(MS(5001), 5, 4, false), MS(10002));
    assert_int_equal(es_trip_auto_within_ns(ES_FOREVER_NS / 2, 1, 10, false), ES_FOREVER_NS);
}

static void the_automatic_window_is_never_below_ten_seconds(void **state) {
    (void)state;
    assert_int_equal(es_trip_auto_within_ns(MS(1500), 5, 10, false), MS(10000));
    assert_int_equal(es_trip_auto_within_ns(0, 1, 10, false), MS(10000));
    assert_int_equal(es_trip_auto_within_ns(MS(4999), 5, 4, false), MS(10000));
}

static void the_automatic_window_of_endless_retries_is_ten_seconds(void **state) {
    (void)state;
    assert_int_equal(es_trip_auto_within_ns(ES_FOREVER_NS, 0, 10, false), MS(10000));
    assert_int_equal(es_trip_auto_within_ns(ES_FOREVER_NS, 0, 10, true), MS(10000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tolerated_failures_leave_the_breaker_closed),
        cmocka_unit_test(one_failure_more_than_tolerated_opens),
        cmocka_unit_test(tolerating_none_opens_on_the_first_failure),
        cmocka_unit_test(a_rule_that_is_off_never_opens),
        cmocka_unit_test(a_rate_opens_when_it_is_reached),
        cmocka_unit_test(rate_needs_enough_calls),
        cmocka_unit_test(rates_of_the_largest_counts_are_exact),
        cmocka_unit_test(failures_in_a_row_open_when_there_are_enough),
        cmocka_unit_test(the_rule_that_fired_is_told_by_name),
        cmocka_unit_test(of_several_rules_any_opens_and_the_first_is_told),
        cmocka_unit_test(the_table_lists_each_rule_once_and_ends),
        cmocka_unit_test(failures_of_each_attempt_meet_within_the_calls_it_takes),
        cmocka_unit_test(calls_are_counted_whole_and_from_the_end_of_the_first_where_they_melt_once),
        cmocka_unit_test(failures_of_each_call_meet_within_as_many_calls_as_are_tolerated),
        cmocka_unit_test(unbounded_attempts_open_within_one_call),
        cmocka_unit_test(the_narrowest_window_saturates),
        cmocka_unit_test(the_automatic_window_is_twice_the_narrowest),
        cmocka_unit_test(the_automatic_window_is_never_below_ten_seconds),
        cmocka_unit_test(the_automatic_window_of_endless_retries_is_ten_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
