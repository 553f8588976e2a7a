/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"
#include "trip.h"

static const es_trip *first_at(uint32_t failures, uint32_t tolerate) {
    const es_counts counts = {.failures = failures};
    const es_trip_limits limits = {.tolerate = tolerate};
    return es_trip_first(&counts, &limits);
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

static void the_rule_that_fired_is_told_by_name(void **state) {
    (void)state;
    assert_string_equal(first_at(1, 0)->name, "tolerate");
}

static void the_table_lists_each_rule_once_and_ends(void **state) {
    (void)state;
    size_t rules = 0;
    while (es_trip_at(rules) != NULL) {
        for (size_t earlier = 0; earlier < rules; earlier++)
            assert_string_not_equal(es_trip_at(earlier)->name, es_trip_at(rules)->name);
        rules++;
    }
    assert_int_equal(rules, 1);
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
        cmocka_unit_test(the_rule_that_fired_is_told_by_name),
        cmocka_unit_test(the_table_lists_each_rule_once_and_ends),
        cmocka_unit_test(failures_of_each_attempt_meet_within_the_calls_it_takes),
        cmocka_unit_test(failures_of_each_call_meet_within_as_many_calls_as_are_tolerated),
        cmocka_unit_test(unbounded_attempts_open_within_one_call),
        cmocka_unit_test(the_narrowest_window_saturates),
        cmocka_unit_test(the_automatic_window_is_twice_the_narrowest),
        cmocka_unit_test(the_automatic_window_is_never_below_ten_seconds),
        cmocka_unit_test(the_automatic_window_of_endless_retries_is_ten_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
