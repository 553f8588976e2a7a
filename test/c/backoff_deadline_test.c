/* SPDX-License-Identifier: Apache-2.0 */
/* Delays that the server asks for, and the call's deadline. */
#include "backoff_support.h"

static void a_delay_that_would_outlast_the_call_is_late(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = -1;
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){0, MS(10) + 1}, 0, &delay_ns), ES_RETRY);
    assert_int_equal(delay_ns, MS(10));
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){0, MS(10)}, 0, &delay_ns), ES_RETRY_LATE);
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){0, INT64_MIN}, 0, &delay_ns), ES_RETRY_LATE);
    backoff.base_ns = 0;
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){0, 0}, 0, &delay_ns), ES_RETRY_LATE);
    backoff.base_ns = ES_FOREVER_NS;
    assert_int_equal(es_backoff_next(&backoff, 1, 0, no_hurry, 0, &delay_ns), ES_RETRY);
}

static void the_delay_that_counts_for_the_deadline_is_the_trimmed_one(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = -1;
    backoff.expiry_ns = MS(5);
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){0, MS(6)}, 0, &delay_ns), ES_RETRY_LAST);
    assert_int_equal(delay_ns, MS(5));
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){0, MS(5)}, 0, &delay_ns), ES_RETRY_LATE);
}

static void an_exhausted_schedule_is_never_late(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = 77;
    backoff.expiry_ns = MS(50);
    assert_int_equal(es_backoff_next(&backoff, 5, 0, (es_backoff_time){0, 0}, 0, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(es_backoff_next(&backoff, 1, 0, (es_backoff_time){MS(50), 0}, 0, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(es_backoff_after(&backoff, 5, 0, (es_backoff_time){0, 0}, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(es_backoff_after(&backoff, 1, 0, (es_backoff_time){MS(50), 0}, &delay_ns), ES_EXHAUSTED);
    assert_int_equal(delay_ns, 77);
}

static void a_delay_that_the_server_asks_for_replaces_curve_cap_and_jitter(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    const int64_t asked_ms[] = {0, 1, 7, 29999, 30000, 30001, 1000000};
    backoff.cap_ns = MS(5);
    backoff.jitter = ES_JITTER_FULL;
    for (int i = 0; i < 7; i++) {
        int64_t delay_ns = -1;
        assert_int_equal(es_backoff_after(&backoff, 4, MS(asked_ms[i]), no_hurry, &delay_ns), ES_RETRY);
        assert_int_equal(delay_ns, MS(asked_ms[i] < 30000 ? asked_ms[i] : 30000));
    }
}

static void a_delay_that_the_server_asks_for_is_trimmed_and_may_be_late(void **state) {
    (void)state;
    es_backoff backoff = schedule(EXPONENTIAL);
    int64_t delay_ns = -1;
    backoff.expiry_ns = MS(50);
    const es_backoff_time time = {MS(20), MS(40)};
    assert_int_equal(es_backoff_after(&backoff, 1, MS(29), time, &delay_ns), ES_RETRY);
    assert_int_equal(es_backoff_after(&backoff, 1, MS(60), time, &delay_ns), ES_RETRY_LAST);
    assert_int_equal(delay_ns, MS(30));
    backoff.expiry_ns = ES_FOREVER_NS;
    assert_int_equal(es_backoff_after(&backoff, 1, MS(60), time, &delay_ns), ES_RETRY_LATE);
    assert_int_equal(es_backoff_after(&backoff, 1, MS(39), time, &delay_ns), ES_RETRY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_delay_that_would_outlast_the_call_is_late),
        cmocka_unit_test(the_delay_that_counts_for_the_deadline_is_the_trimmed_one),
        cmocka_unit_test(an_exhausted_schedule_is_never_late),
        cmocka_unit_test(a_delay_that_the_server_asks_for_replaces_curve_cap_and_jitter),
        cmocka_unit_test(a_delay_that_the_server_asks_for_is_trimmed_and_may_be_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
