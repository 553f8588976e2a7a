/* SPDX-License-Identifier: Apache-2.0 */
/* A breaker that is open opens again, or closes, by what its probes report, and by nothing else. */
#include "breaker_support.h"

static void it_reads_half_open_when_due_without_any_traffic(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    uint64_t generation = generation_of(breaker);
    assert_state(breaker, DUE - 1, ES_OPEN, 0);
    assert_int_equal(es_breaker_peek(breaker, DUE, 0).answer, ES_DUE);
    es_breaker_view view = es_breaker_look(breaker, MS(90000));
    assert_int_equal(view.state, ES_HALF_OPEN);
    assert_int_equal(view.generation, generation + 1);
    assert_int_equal(view.changed_at_ns, DUE);
    assert_int_equal(view.retry_after_ns, 0);
    assert_int_equal(view.probes_out, 0);
    es_change change = assert_change(breaker, ES_OPEN, ES_HALF_OPEN, DUE);
    assert_null(change.rule);
    assert_false(change.by_hand);
    assert_int_equal(change.retry_after_ns, 0);
    assert_int_equal(change.generation, generation + 1);
    drop(breaker);
}

static void asking_agrees_with_what_a_call_would_get(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    for (int64_t now = DUE - 5; now < DUE + 5; now++) {
        bool available = es_breaker_look(breaker, now).retry_after_ns == 0;
        es_admission admission = es_breaker_admit(breaker, now, 0);
        assert_int_equal(admission.answer == ES_ADMITTED, available);
        if (available)
            report(breaker, admission.permit, ES_IGNORE, now);
    }
    drop(breaker);
}

static void asking_takes_no_probe(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    for (int ask = 0; ask < 10; ask++) {
        assert_int_equal(es_breaker_peek(breaker, DUE, 0).answer, ES_DUE);
        assert_int_equal(es_breaker_look(breaker, DUE).retry_after_ns, 0);
    }
    probe(breaker, DUE);
    drop(breaker);
}

static void exactly_as_many_probes_go_out_as_may(void **state) {
    (void)state;
    for (uint32_t probes = 1; probes <= 20; probes++) {
        es_breaker *breaker = opened(probing(probes, 1));
        for (uint32_t call = 0; call < probes; call++)
            probe(breaker, DUE);
        for (int call = 0; call < 100; call++)
            assert_refused(breaker, DUE, LEASE);
        assert_state(breaker, DUE, ES_HALF_OPEN, probes);
        drop(breaker);
    }
}

static void of_nine_callers_at_once_one_goes_out(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    int admissions = 0;
    for (int caller = 0; caller < 9; caller++)
        admissions += es_breaker_admit(breaker, DUE, (uint64_t)caller).answer == ES_ADMITTED;
    assert_int_equal(admissions, 1);
    drop(breaker);
}

static void a_probe_that_succeeds_closes(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    es_permit permit = probe(breaker, DUE);
    report(breaker, permit, ES_SUCCESS, DUE + 5);
    assert_state(breaker, DUE + 5, ES_CLOSED, 0);
    assert_int_equal(es_breaker_look(breaker, DUE + 5).counts.failures, 0);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, DUE);
    es_change change = assert_change(breaker, ES_HALF_OPEN, ES_CLOSED, DUE + 5);
    assert_null(change.rule);
    assert_false(change.by_hand);
    assert_no_change(breaker);
    uint64_t generation;
    assert_true(es_breaker_is_closed(breaker, &generation));
    drop(breaker);
}

static void a_probe_that_fails_opens_again_once_and_is_told(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    report(breaker, probe(breaker, DUE), ES_FAILURE, DUE + 5);
    assert_state(breaker, DUE + 5, ES_OPEN, 0);
    assert_refused(breaker, DUE + 5, RESET);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, DUE);
    es_change change = assert_change(breaker, ES_HALF_OPEN, ES_OPEN, DUE + 5);
    assert_null(change.rule);
    assert_int_equal(change.retry_after_ns, RESET);
    assert_int_equal(change.counts.consecutive, 2);
    assert_no_change(breaker);
    assert_state(breaker, DUE + 5 + RESET, ES_HALF_OPEN, 0);
    drop(breaker);
}

static void a_failed_probe_opens_whatever_the_rules_count(void **state) {
    (void)state;
    es_breaker_config config = probing(1, 1);
    config.limits =
        (es_trip_limits){.tolerate = ES_TOLERATE_OFF, .failure_rate_ppm = ES_PPM, .min_calls = 20, .consecutive = 3};
    config.tally.span_ns = MS(100);
    es_breaker *breaker = breaker_of(config);
    for (int failure = 0; failure < 3; failure++)
        melt(breaker, 10);
    es_permit permit = probe(breaker, DUE);
    assert_int_equal(es_breaker_look(breaker, DUE).counts.tally.calls, 0);
    report(breaker, permit, ES_FAILURE, DUE);
    assert_state(breaker, DUE, ES_OPEN, 0);
    assert_int_equal(es_breaker_look(breaker, DUE).counts.tally.calls, 1);
    drop(breaker);
}

static void the_first_failure_opens_whatever_succeeds_later(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(4, 3));
    es_permit permits[4];
    for (int i = 0; i < 4; i++)
        permits[i] = probe(breaker, DUE);
    report(breaker, permits[0], ES_FAILURE, DUE + 1);
    for (int i = 1; i < 4; i++)
        report(breaker, permits[i], ES_SUCCESS, DUE + 2);
    assert_state(breaker, DUE + 2, ES_OPEN, 0);
    drop(breaker);
}

static void enough_successes_close_and_one_less_does_not(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(3, 3));
    es_permit permits[3];
    for (int i = 0; i < 3; i++)
        permits[i] = probe(breaker, DUE);
    report(breaker, permits[2], ES_SUCCESS, DUE);
    report(breaker, permits[0], ES_SUCCESS, DUE);
    assert_state(breaker, DUE, ES_HALF_OPEN, 1);
    assert_refused(breaker, DUE, LEASE);
    report(breaker, permits[1], ES_SUCCESS, DUE);
    assert_state(breaker, DUE, ES_CLOSED, 0);
    drop(breaker);
}

static void more_successes_than_probes_at_once_close_one_after_the_other(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(2, 5));
    for (int success = 0; success < 5; success++) {
        assert_state(breaker, DUE, ES_HALF_OPEN, 0);
        report(breaker, probe(breaker, DUE), ES_SUCCESS, DUE);
    }
    assert_state(breaker, DUE, ES_CLOSED, 0);
    drop(breaker);
}

static void two_successes_at_once_close_once(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(2, 1));
    es_permit first = probe(breaker, DUE), second = probe(breaker, DUE);
    report(breaker, first, ES_SUCCESS, DUE);
    report(breaker, second, ES_SUCCESS, DUE);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, DUE);
    assert_change(breaker, ES_HALF_OPEN, ES_CLOSED, DUE);
    assert_no_change(breaker);
    drop(breaker);
}

static void an_ignored_probe_is_handed_back_and_decides_nothing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    uint64_t generation = probe(breaker, DUE).generation;
    assert_refused(breaker, DUE, LEASE);
    for (int call = 0; call < 100; call++) {
        es_breaker_look(breaker, DUE + LEASE);
        report(breaker, probe(breaker, DUE + LEASE), ES_IGNORE, DUE + LEASE);
        assert_state(breaker, DUE + LEASE, ES_HALF_OPEN, 0);
        assert_int_equal(generation_of(breaker), generation);
    }
    assert_int_equal(es_breaker_look(breaker, DUE + LEASE).counts.consecutive, 1);
    drop(breaker);
}

static void a_window_shorter_than_the_reset_makes_no_difference(void **state) {
    (void)state;
    es_breaker_config config = probing(1, 1);
    config.within_ns = MS(100);
    config.reset_ns = MS(400);
    es_breaker *breaker = breaker_of(config);
    melt(breaker, 0);
    assert_refused(breaker, MS(399), MS(1));
    assert_state(breaker, MS(400), ES_HALF_OPEN, 0);
    probe(breaker, MS(400));
    assert_refused(breaker, MS(400), LEASE);
    drop(breaker);
}

static void a_reset_of_nothing_is_half_open_at_once(void **state) {
    (void)state;
    es_breaker_config config = probing(1, 1);
    config.reset_ns = 0;
    es_breaker *breaker = breaker_of(config);
    for (int round = 0; round < 100; round++) {
        melt(breaker, 7);
        assert_change(breaker, ES_CLOSED, ES_OPEN, 7);
        report(breaker, probe(breaker, 7), ES_SUCCESS, 7);
        assert_change(breaker, ES_OPEN, ES_HALF_OPEN, 7);
        assert_change(breaker, ES_HALF_OPEN, ES_CLOSED, 7);
    }
    drop(breaker);
}

static void a_hundred_rounds_of_open_and_half_open_are_each_on_time(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    int64_t opened_at = 10;
    for (int round = 0; round < 100; round++) {
        assert_state(breaker, opened_at + RESET - 1, ES_OPEN, 0);
        es_permit permit = probe(breaker, opened_at + RESET);
        assert_change(breaker, ES_OPEN, ES_HALF_OPEN, opened_at + RESET);
        opened_at += RESET + round;
        report(breaker, permit, ES_FAILURE, opened_at);
        assert_change(breaker, ES_HALF_OPEN, ES_OPEN, opened_at);
        assert_no_change(breaker);
    }
    drop(breaker);
}

static void faults_are_not_injected_into_probes(void **state) {
    (void)state;
    es_breaker_config config = probing(1, 1);
    config.fault_ppm = ES_PPM;
    es_breaker *breaker = opened(config);
    report(breaker, probe(breaker, DUE), ES_SUCCESS, DUE);
    assert_state(breaker, DUE, ES_CLOSED, 0);
    assert_refused(breaker, DUE, 0);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_reads_half_open_when_due_without_any_traffic),
        cmocka_unit_test(asking_agrees_with_what_a_call_would_get),
        cmocka_unit_test(asking_takes_no_probe),
        cmocka_unit_test(exactly_as_many_probes_go_out_as_may),
        cmocka_unit_test(of_nine_callers_at_once_one_goes_out),
        cmocka_unit_test(a_probe_that_succeeds_closes),
        cmocka_unit_test(a_probe_that_fails_opens_again_once_and_is_told),
        cmocka_unit_test(a_failed_probe_opens_whatever_the_rules_count),
        cmocka_unit_test(the_first_failure_opens_whatever_succeeds_later),
        cmocka_unit_test(enough_successes_close_and_one_less_does_not),
        cmocka_unit_test(more_successes_than_probes_at_once_close_one_after_the_other),
        cmocka_unit_test(two_successes_at_once_close_once),
        cmocka_unit_test(an_ignored_probe_is_handed_back_and_decides_nothing),
        cmocka_unit_test(a_window_shorter_than_the_reset_makes_no_difference),
        cmocka_unit_test(a_reset_of_nothing_is_half_open_at_once),
        cmocka_unit_test(a_hundred_rounds_of_open_and_half_open_are_each_on_time),
        cmocka_unit_test(faults_are_not_injected_into_probes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
