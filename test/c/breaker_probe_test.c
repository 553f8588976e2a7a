/* SPDX-License-Identifier: Apache-2.0 */
/* What a probe may do: once, in time, and in its own half-open state. */
#include "breaker_support.h"

static void handing_back_twice_raises_nothing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(2, 2));
    es_permit first = probe(breaker, DUE);
    probe(breaker, DUE);
    for (int again = 0; again < 5; again++)
        report(breaker, first, ES_IGNORE, DUE);
    assert_state(breaker, DUE, ES_HALF_OPEN, 1);
    es_permit third = probe(breaker, DUE);
    assert_refused(breaker, DUE, LEASE);
    for (int again = 0; again < 5; again++)
        report(breaker, first, ES_IGNORE, DUE);
    assert_refused(breaker, DUE, LEASE);
    report(breaker, third, ES_SUCCESS, DUE);
    for (int again = 0; again < 5; again++)
        report(breaker, third, ES_SUCCESS, DUE);
    assert_state(breaker, DUE, ES_HALF_OPEN, 1);
    drop(breaker);
}

static void a_probe_that_outlives_its_lease_is_replaced_and_not_listened_to(void **state) {
    (void)state;
    const es_outcome outcomes[] = {ES_SUCCESS, ES_FAILURE, ES_IGNORE};
    for (int i = 0; i < 3; i++) {
        es_breaker *breaker = opened(probing(1, 1));
        es_permit late = probe(breaker, DUE);
        assert_refused(breaker, DUE + LEASE - 1, 1);
        assert_int_equal(es_breaker_peek(breaker, DUE + LEASE, 0).answer, ES_DUE);
        es_permit next = probe(breaker, DUE + LEASE);
        report(breaker, late, outcomes[i], DUE + LEASE);
        assert_state(breaker, DUE + LEASE, ES_HALF_OPEN, 1);
        report(breaker, next, ES_SUCCESS, DUE + LEASE);
        assert_state(breaker, DUE + LEASE, ES_CLOSED, 0);
        drop(breaker);
    }
}

static void a_report_as_late_as_the_lease_changes_nothing_even_without_a_successor(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    es_permit late = probe(breaker, DUE);
    report(breaker, late, ES_SUCCESS, DUE + LEASE);
    assert_state(breaker, DUE + LEASE, ES_HALF_OPEN, 0);
    es_permit in_time = probe(breaker, DUE + LEASE);
    report(breaker, in_time, ES_SUCCESS, DUE + 2 * LEASE - 1);
    assert_state(breaker, DUE + 2 * LEASE - 1, ES_CLOSED, 0);
    drop(breaker);
}

static void one_lost_of_many_probes_keeps_nothing_from_closing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1000, 1000));
    es_permit permits[1000];
    for (int i = 0; i < 1000; i++)
        permits[i] = probe(breaker, DUE);
    for (int i = 1; i < 1000; i++)
        report(breaker, permits[i], ES_SUCCESS, DUE);
    assert_state(breaker, DUE, ES_HALF_OPEN, 1);
    report(breaker, probe(breaker, DUE + LEASE), ES_SUCCESS, DUE + LEASE);
    assert_state(breaker, DUE + LEASE, ES_CLOSED, 0);
    drop(breaker);
}

static void an_old_call_decides_nothing_while_the_probe_is_out(void **state) {
    (void)state;
    const es_outcome outcomes[] = {ES_SUCCESS, ES_FAILURE, ES_IGNORE};
    for (int i = 0; i < 3; i++) {
        es_breaker *breaker = breaker_of(probing(1, 1));
        es_permit old = admitted(breaker, 0);
        melt(breaker, 10);
        es_permit permit = probe(breaker, DUE);
        assert_false(es_breaker_listens(breaker, old, outcomes[i]));
        report(breaker, old, outcomes[i], DUE + 1);
        assert_state(breaker, DUE + 1, ES_HALF_OPEN, 1);
        report(breaker, permit, ES_SUCCESS, DUE + 2);
        assert_state(breaker, DUE + 2, ES_CLOSED, 0);
        drop(breaker);
    }
}

static void a_report_without_a_probe_changes_nothing_while_half_open(void **state) {
    (void)state;
    const es_outcome outcomes[] = {ES_SUCCESS, ES_FAILURE, ES_IGNORE};
    es_breaker *breaker = opened(probing(2, 2));
    report(breaker, probe(breaker, DUE), ES_SUCCESS, DUE);
    for (int i = 0; i < 3; i++) {
        assert_false(es_breaker_listens(breaker, es_breaker_permit(breaker), outcomes[i]));
        note(breaker, outcomes[i], DUE);
        assert_state(breaker, DUE, ES_HALF_OPEN, 0);
    }
    report(breaker, probe(breaker, DUE), ES_SUCCESS, DUE);
    assert_state(breaker, DUE, ES_CLOSED, 0);
    drop(breaker);
}

static void a_probe_of_an_earlier_half_open_state_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(2, 1));
    es_permit first = probe(breaker, DUE), stray = probe(breaker, DUE);
    report(breaker, first, ES_FAILURE, DUE);
    int64_t due = DUE + RESET;
    assert_false(es_breaker_listens(breaker, stray, ES_SUCCESS));
    es_permit next = probe(breaker, due);
    assert_int_equal(next.row, 0);
    report(breaker, stray, ES_SUCCESS, due);
    report(breaker, first, ES_SUCCESS, due);
    assert_state(breaker, due, ES_HALF_OPEN, 1);
    report(breaker, next, ES_SUCCESS, due);
    report(breaker, stray, ES_FAILURE, due);
    assert_state(breaker, due, ES_CLOSED, 0);
    assert_int_equal(es_breaker_look(breaker, due).counts.failures, 0);
    drop(breaker);
}

static void a_permit_with_a_lease_that_was_never_given_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(2, 1));
    es_permit permit = probe(breaker, DUE);
    es_permit wrong[] = {permit, permit, permit};
    wrong[0].row = 1;
    wrong[1].row = UINT16_MAX;
    wrong[2].serial++;
    for (int i = 0; i < 3; i++) {
        report(breaker, wrong[i], ES_FAILURE, DUE);
        assert_state(breaker, DUE, ES_HALF_OPEN, 1);
    }
    report(breaker, permit, ES_SUCCESS, DUE);
    es_permit closed = es_breaker_permit(breaker);
    closed.probe = true;
    assert_false(es_breaker_listens(breaker, closed, ES_FAILURE));
    report(breaker, closed, ES_FAILURE, DUE);
    assert_state(breaker, DUE, ES_CLOSED, 0);
    drop(breaker);
}

static void a_probe_is_always_listened_to(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    es_permit permit = probe(breaker, DUE);
    assert_true(es_breaker_listens(breaker, permit, ES_SUCCESS));
    assert_true(es_breaker_listens(breaker, permit, ES_FAILURE));
    assert_true(es_breaker_listens(breaker, permit, ES_IGNORE));
    drop(breaker);
}

static void an_open_breaker_that_will_be_half_open_listens_to_nothing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    es_permit permit = es_breaker_permit(breaker);
    assert_false(es_breaker_listens(breaker, permit, ES_FAILURE));
    melt(breaker, DUE);
    assert_int_equal(generation_of(breaker), permit.generation);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handing_back_twice_raises_nothing),
        cmocka_unit_test(a_probe_that_outlives_its_lease_is_replaced_and_not_listened_to),
        cmocka_unit_test(a_report_as_late_as_the_lease_changes_nothing_even_without_a_successor),
        cmocka_unit_test(one_lost_of_many_probes_keeps_nothing_from_closing),
        cmocka_unit_test(an_old_call_decides_nothing_while_the_probe_is_out),
        cmocka_unit_test(a_report_without_a_probe_changes_nothing_while_half_open),
        cmocka_unit_test(a_probe_of_an_earlier_half_open_state_changes_nothing),
        cmocka_unit_test(a_permit_with_a_lease_that_was_never_given_changes_nothing),
        cmocka_unit_test(a_probe_is_always_listened_to),
        cmocka_unit_test(an_open_breaker_that_will_be_half_open_listens_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
