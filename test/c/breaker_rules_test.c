/* SPDX-License-Identifier: Apache-2.0 */
/* What opens a breaker that counts more than failures. */
#include "breaker_support.h"

#define SECOND MS(1000)

/* Half of at least five calls in a minute open for ten seconds, and then one probe decides. */
static es_breaker *half_of_five(void) {
    es_breaker_config config = probing(1, 1);
    config.limits = (es_trip_limits){.tolerate = ES_TOLERATE_OFF, .failure_rate_ppm = 500000, .min_calls = 5};
    config.tally.span_ns = 60 * SECOND;
    config.reset_ns = 10 * SECOND;
    config.lease_ns = 10 * SECOND;
    return breaker_of(config);
}

static void call(es_breaker *breaker, int times, es_outcome outcome, int64_t now_ns) {
    for (int time = 0; time < times; time++)
        report(breaker, admitted(breaker, now_ns), outcome, now_ns);
}

static void assert_tally(es_counts counts, uint32_t calls, uint32_t failures) {
    assert_int_equal(counts.tally.calls, calls);
    assert_int_equal(counts.tally.failures, failures);
}

static es_breaker *opened_by_three_of_five(void) {
    es_breaker *breaker = half_of_five();
    call(breaker, 3, ES_FAILURE, 0);
    call(breaker, 2, ES_SUCCESS, 0);
    assert_change(breaker, ES_CLOSED, ES_OPEN, 0);
    return breaker;
}

static void a_rate_over_too_few_calls_is_not_believed(void **state) {
    (void)state;
    es_breaker *breaker = half_of_five();
    call(breaker, 3, ES_FAILURE, 0);
    call(breaker, 1, ES_SUCCESS, 0);
    assert_no_change(breaker);
    assert_int_equal(state_at(breaker, 0), ES_CLOSED);
    drop(breaker);
}

static void the_success_that_brings_enough_calls_opens(void **state) {
    (void)state;
    es_breaker *breaker = half_of_five();
    call(breaker, 3, ES_FAILURE, 0);
    call(breaker, 2, ES_SUCCESS, 0);
    es_change change = assert_change(breaker, ES_CLOSED, ES_OPEN, 0);
    assert_string_equal(change.rule->name, "failure_rate");
    assert_tally(change.counts, 5, 3);
    assert_int_equal(change.counts.consecutive, 0);
    assert_no_change(breaker);
    assert_refused(breaker, 0, 10 * SECOND);
    drop(breaker);
}

static void after_its_time_it_is_half_open_and_available(void **state) {
    (void)state;
    es_breaker *breaker = opened_by_three_of_five();
    assert_state(breaker, 12 * SECOND, ES_HALF_OPEN, 0);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, 10 * SECOND);
    assert_no_change(breaker);
    drop(breaker);
}

static void a_failing_probe_is_told_with_all_that_was_counted(void **state) {
    (void)state;
    es_breaker *breaker = opened_by_three_of_five();
    call(breaker, 1, ES_FAILURE, 12 * SECOND);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, 10 * SECOND);
    es_change change = assert_change(breaker, ES_HALF_OPEN, ES_OPEN, 12 * SECOND);
    assert_tally(change.counts, 6, 4);
    assert_null(change.rule);
    assert_state(breaker, 23 * SECOND, ES_HALF_OPEN, 0);
    drop(breaker);
}

static void a_failing_probe_is_told_even_when_the_window_has_passed(void **state) {
    (void)state;
    es_breaker *breaker = opened_by_three_of_five();
    call(breaker, 1, ES_FAILURE, 100 * SECOND);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, 10 * SECOND);
    assert_tally(assert_change(breaker, ES_HALF_OPEN, ES_OPEN, 100 * SECOND).counts, 1, 1);
    assert_no_change(breaker);
    drop(breaker);
}

static void a_good_probe_closes_once_and_forgets(void **state) {
    (void)state;
    es_breaker *breaker = opened_by_three_of_five();
    call(breaker, 1, ES_SUCCESS, 12 * SECOND);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, 10 * SECOND);
    assert_tally(assert_change(breaker, ES_HALF_OPEN, ES_CLOSED, 12 * SECOND).counts, 6, 3);
    assert_no_change(breaker);
    assert_tally(es_breaker_look(breaker, 12 * SECOND).counts, 0, 0);
    call(breaker, 4, ES_FAILURE, 13 * SECOND);
    assert_int_equal(state_at(breaker, 13 * SECOND), ES_CLOSED);
    drop(breaker);
}

static void what_a_passed_window_held_does_not_count(void **state) {
    (void)state;
    es_breaker *breaker = half_of_five();
    call(breaker, 4, ES_FAILURE, 0);
    call(breaker, 4, ES_FAILURE, 60 * SECOND);
    assert_int_equal(state_at(breaker, 60 * SECOND), ES_CLOSED);
    call(breaker, 8, ES_SUCCESS, 120 * SECOND);
    assert_int_equal(state_at(breaker, 120 * SECOND), ES_CLOSED);
    assert_no_change(breaker);
    drop(breaker);
}

static void a_rate_over_calls_looks_at_the_last_ones_only(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(ES_TOLERATE_OFF);
    config.limits.failure_rate_ppm = 500000;
    config.limits.min_calls = 10;
    config.tally.calls = 10;
    es_breaker *breaker = breaker_of(config);
    call(breaker, 1000, ES_SUCCESS, 0);
    call(breaker, 4, ES_FAILURE, SECOND * 86400);
    assert_int_equal(state_at(breaker, SECOND * 86400), ES_CLOSED);
    call(breaker, 1, ES_FAILURE, 2 * SECOND * 86400);
    assert_tally(assert_change(breaker, ES_CLOSED, ES_OPEN, 2 * SECOND * 86400).counts, 10, 5);
    drop(breaker);
}

static void slow_calls_open_however_they_end(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(ES_TOLERATE_OFF);
    config.limits.slow_rate_ppm = 500000;
    config.limits.min_calls = 4;
    config.tally.calls = 10;
    config.slow_ns = SECOND;
    es_breaker *breaker = breaker_of(config);
    es_breaker_report(breaker, admitted(breaker, 0), ES_SUCCESS, SECOND, 0, 0);
    es_breaker_report(breaker, admitted(breaker, 0), ES_IGNORE, SECOND, 0, 0);
    es_breaker_report(breaker, admitted(breaker, 0), ES_FAILURE, SECOND - 1, 0, 0);
    es_breaker_report(breaker, admitted(breaker, 0), ES_SUCCESS, 0, 0, 0);
    assert_int_equal(state_at(breaker, 0), ES_CLOSED);
    es_breaker_report(breaker, admitted(breaker, 0), ES_FAILURE, SECOND + 1, 0, 0);
    es_change change = assert_change(breaker, ES_CLOSED, ES_OPEN, 0);
    assert_string_equal(change.rule->name, "slow_rate");
    assert_tally(change.counts, 4, 2);
    assert_int_equal(change.counts.tally.slow, 2);
    drop(breaker);
}

static void failures_in_a_row_open_across_any_time(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(ES_TOLERATE_OFF);
    config.limits.consecutive = 3;
    es_breaker *breaker = breaker_of(config);
    call(breaker, 2, ES_FAILURE, 0);
    call(breaker, 1, ES_SUCCESS, 0);
    call(breaker, 2, ES_FAILURE, 0);
    call(breaker, 5, ES_IGNORE, 0);
    assert_no_change(breaker);
    call(breaker, 1, ES_FAILURE, SECOND * 86400);
    es_change change = assert_change(breaker, ES_CLOSED, ES_OPEN, SECOND * 86400);
    assert_string_equal(change.rule->name, "consecutive");
    assert_int_equal(change.counts.consecutive, 3);
    assert_int_equal(change.counts.failures, 0);
    drop(breaker);
}

static void any_of_several_rules_opens_and_the_one_that_fired_is_told(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(3);
    config.limits.failure_rate_ppm = 750000;
    config.limits.min_calls = 4;
    config.limits.consecutive = 3;
    config.tally.calls = 10;
    es_breaker *breaker = breaker_of(config);
    call(breaker, 3, ES_FAILURE, 0);
    assert_string_equal(assert_change(breaker, ES_CLOSED, ES_OPEN, 0).rule->name, "consecutive");
    es_breaker_close(breaker, 0);
    assert_change(breaker, ES_OPEN, ES_CLOSED, 0);
    call(breaker, 2, ES_FAILURE, 0);
    call(breaker, 1, ES_SUCCESS, 0);
    call(breaker, 1, ES_FAILURE, 0);
    assert_string_equal(assert_change(breaker, ES_CLOSED, ES_OPEN, 0).rule->name, "failure_rate");
    es_breaker_close(breaker, 0);
    assert_change(breaker, ES_OPEN, ES_CLOSED, 0);
    call(breaker, 5, ES_SUCCESS, 0);
    for (int failure = 0; failure < 4; failure++) {
        call(breaker, 1, ES_FAILURE, 0);
        if (failure < 3)
            call(breaker, 1, ES_SUCCESS, 0);
    }
    assert_string_equal(assert_change(breaker, ES_CLOSED, ES_OPEN, 0).rule->name, "tolerate");
    drop(breaker);
}

static void a_success_is_listened_to_only_where_it_counts(void **state) {
    (void)state;
    es_breaker *breaker = half_of_five();
    assert_true(es_breaker_listens(breaker, es_breaker_permit(breaker), ES_SUCCESS));
    assert_false(es_breaker_listens(breaker, es_breaker_permit(breaker), ES_IGNORE));
    drop(breaker);
    breaker = tolerating(5);
    es_permit permit = admitted(breaker, 0);
    assert_false(es_breaker_listens(breaker, permit, ES_SUCCESS));
    report(breaker, permit, ES_FAILURE, 0);
    assert_true(es_breaker_listens(breaker, permit, ES_SUCCESS));
    report(breaker, permit, ES_SUCCESS, 0);
    assert_int_equal(es_breaker_look(breaker, 0).counts.consecutive, 0);
    assert_false(es_breaker_listens(breaker, permit, ES_SUCCESS));
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_over_too_few_calls_is_not_believed),
        cmocka_unit_test(the_success_that_brings_enough_calls_opens),
        cmocka_unit_test(after_its_time_it_is_half_open_and_available),
        cmocka_unit_test(a_failing_probe_is_told_with_all_that_was_counted),
        cmocka_unit_test(a_failing_probe_is_told_even_when_the_window_has_passed),
        cmocka_unit_test(a_good_probe_closes_once_and_forgets),
        cmocka_unit_test(what_a_passed_window_held_does_not_count),
        cmocka_unit_test(a_rate_over_calls_looks_at_the_last_ones_only),
        cmocka_unit_test(slow_calls_open_however_they_end),
        cmocka_unit_test(failures_in_a_row_open_across_any_time),
        cmocka_unit_test(any_of_several_rules_opens_and_the_one_that_fired_is_told),
        cmocka_unit_test(a_success_is_listened_to_only_where_it_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
