/* SPDX-License-Identifier: Apache-2.0 */
/* What a breaker tells of its changes, and what reports from before a change may still do. */
#include "breaker_support.h"

#define KEPT 4 /* changes a breaker keeps for slow listeners */

static void every_change_starts_a_generation(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t first = generation_of(breaker);
    melt(breaker, 0);
    assert_int_equal(generation_of(breaker), first + 1);
    assert_int_equal(es_breaker_look(breaker, RESET).generation, first + 2);
    es_breaker_reset(breaker, RESET);
    assert_int_equal(generation_of(breaker), first + 3);
    es_breaker_free(breaker);
}

static void a_late_failure_of_an_older_generation_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    es_permit old = admitted(breaker, 0);
    melt(breaker, 1);
    melt(breaker, 2);
    assert_false(es_breaker_listens(breaker, old, ES_FAILURE));
    report(breaker, old, ES_FAILURE, 3);
    assert_int_equal(es_breaker_look(breaker, 3).counts.failures, 2);
    assert_int_equal(es_breaker_admit(breaker, 2 + RESET, 0).answer, ES_ADMITTED);
    for (int late = 0; late < 10; late++)
        report(breaker, old, ES_FAILURE, 3 + RESET);
    es_breaker_view view = es_breaker_look(breaker, 3 + RESET);
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.counts.failures, 0);
    es_breaker_free(breaker);
}

static void a_late_success_of_an_older_generation_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    es_permit old = admitted(breaker, 0);
    melt(breaker, 1);
    uint64_t open = generation_of(breaker);
    report(breaker, old, ES_SUCCESS, 2);
    report(breaker, old, ES_IGNORE, 2);
    report(breaker, old, ES_SUCCESS, MS(90000));
    assert_int_equal(generation_of(breaker), open);
    assert_int_equal(es_breaker_peek(breaker, 2, 0).answer, ES_REFUSED);
    es_breaker_free(breaker);
}

static void a_generation_of_the_future_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    es_permit next = es_breaker_permit(breaker);
    next.generation++;
    assert_false(es_breaker_listens(breaker, next, ES_FAILURE));
    report(breaker, next, ES_FAILURE, 0);
    assert_int_equal(es_breaker_look(breaker, 0).state, ES_CLOSED);
    es_breaker_free(breaker);
}

static void a_failure_of_the_current_generation_is_listened_to(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    es_permit permit = admitted(breaker, 0);
    assert_true(es_breaker_listens(breaker, permit, ES_FAILURE));
    report(breaker, permit, ES_FAILURE, 0);
    assert_int_equal(es_breaker_look(breaker, 0).state, ES_OPEN);
    es_breaker_free(breaker);
}

static void a_failure_without_admission_counts_once_the_open_time_is_over(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    melt(breaker, 0);
    melt(breaker, 0);
    assert_true(es_breaker_listens(breaker, es_breaker_permit(breaker), ES_FAILURE));
    melt(breaker, RESET - 1);
    assert_int_equal(es_breaker_look(breaker, RESET - 1).state, ES_OPEN);
    melt(breaker, RESET);
    es_breaker_view view = es_breaker_look(breaker, RESET);
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.counts.failures, 1);
    es_breaker_free(breaker);
}

static void opening_tells_its_rule_its_count_and_how_long(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(2);
    for (int failures = 0; failures < 3; failures++) {
        assert_no_change(breaker);
        melt(breaker, 10 + failures);
    }
    es_change change = taken(breaker);
    assert_int_equal(change.from, ES_CLOSED);
    assert_int_equal(change.to, ES_OPEN);
    assert_ptr_equal(change.rule, es_trip_at(0));
    assert_int_equal(change.counts.failures, 3);
    assert_int_equal(change.at_ns, 12);
    assert_int_equal(change.retry_after_ns, RESET);
    assert_no_change(breaker);
    es_breaker_free(breaker);
}

static void closing_by_time_is_told_at_the_moment_it_was_due(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 10);
    assert_int_equal(taken(breaker).to, ES_OPEN);
    assert_int_equal(es_breaker_admit(breaker, MS(90000), 0).answer, ES_ADMITTED);
    es_change change = taken(breaker);
    assert_int_equal(change.from, ES_OPEN);
    assert_int_equal(change.to, ES_CLOSED);
    assert_null(change.rule);
    assert_int_equal(change.counts.failures, 1);
    assert_int_equal(change.at_ns, 10 + RESET);
    assert_int_equal(change.retry_after_ns, 0);
    assert_no_change(breaker);
    es_breaker_free(breaker);
}

static void closing_by_hand_is_told_at_the_moment_of_the_hand(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    melt(breaker, 10);
    melt(breaker, 11);
    assert_int_equal(taken(breaker).to, ES_OPEN);
    es_breaker_reset(breaker, 20);
    es_change change = taken(breaker);
    assert_int_equal(change.from, ES_OPEN);
    assert_int_equal(change.to, ES_CLOSED);
    assert_null(change.rule);
    assert_int_equal(change.counts.failures, 2);
    assert_int_equal(change.at_ns, 20);
    assert_int_equal(change.retry_after_ns, 0);
    assert_int_equal(es_breaker_look(breaker, 20).changed_at_ns, 20);
    assert_int_equal(es_breaker_look(breaker, 20).counts.failures, 0);
    assert_no_change(breaker);
    es_breaker_free(breaker);
}

static void a_reset_when_due_is_told_as_closing_by_time(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 10);
    assert_int_equal(taken(breaker).to, ES_OPEN);
    es_breaker_reset(breaker, MS(90000));
    assert_int_equal(taken(breaker).at_ns, 10 + RESET);
    assert_no_change(breaker);
    es_breaker_free(breaker);
}

static void resetting_a_closed_breaker_empties_it_without_a_change(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    es_permit old = es_breaker_permit(breaker);
    melt(breaker, 10);
    es_breaker_reset(breaker, 20);
    assert_no_change(breaker);
    assert_int_equal(es_breaker_look(breaker, 20).counts.failures, 0);
    assert_int_equal(es_breaker_look(breaker, 20).changed_at_ns, 0);
    report(breaker, old, ES_FAILURE, 30);
    melt(breaker, 30);
    assert_int_equal(es_breaker_look(breaker, 30).state, ES_CLOSED);
    assert_int_equal(es_breaker_look(breaker, 30).counts.failures, 1);
    es_breaker_free(breaker);
}

static void after_a_reset_without_calls_it_stays_closed(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 10);
    es_breaker_reset(breaker, 20);
    for (int64_t now = 20; now < MS(100000); now += MS(10))
        assert_int_equal(es_breaker_look(breaker, now).state, ES_CLOSED);
    es_breaker_free(breaker);
}

static void a_clock_that_runs_back_does_not_reorder_changes(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 100);
    es_breaker_reset(breaker, 50);
    melt(breaker, 60);
    for (int i = 0; i < 3; i++)
        assert_int_equal(taken(breaker).at_ns, 100);
    assert_int_equal(es_breaker_admit(breaker, 99 + RESET, 0).answer, ES_REFUSED);
    assert_int_equal(es_breaker_admit(breaker, 100 + RESET, 0).answer, ES_ADMITTED);
    es_breaker_free(breaker);
}

/* Changes the state `changes` times, by failures and resets in turn, at times 1, 2, 3 ... */
static void change_repeatedly(es_breaker *breaker, int changes) {
    for (int number = 1; number <= changes; number++) {
        if (number % 2 == 1)
            melt(breaker, number);
        else
            es_breaker_reset(breaker, number);
    }
}

static void changes_are_kept_in_order_for_slow_listeners(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    for (int round = 0; round < 5; round++) {
        change_repeatedly(breaker, KEPT);
        for (int number = 1; number <= KEPT; number++)
            assert_int_equal(taken(breaker).to, number % 2 == 1 ? ES_OPEN : ES_CLOSED);
        assert_no_change(breaker);
    }
    es_breaker_free(breaker);
}

static void slower_listeners_still_see_an_unbroken_chain_to_the_present(void **state) {
    (void)state;
    for (int changes = 0; changes < 40; changes++) {
        es_breaker *breaker = tolerating(0);
        es_state reached = ES_CLOSED;
        int told = 0;
        change_repeatedly(breaker, changes);
        while (es_breaker_has_changes(breaker)) {
            es_change change = taken(breaker);
            told++;
            assert_int_equal(change.from, reached);
            assert_int_not_equal(change.to, reached);
            assert_int_equal(change.at_ns, told < KEPT ? told : changes);
            reached = change.to;
        }
        assert_in_range(told, changes < KEPT ? changes : KEPT - 1, KEPT);
        assert_int_equal(reached, es_breaker_look(breaker, changes).state);
        es_breaker_free(breaker);
    }
}

static void it_is_idle_while_a_new_one_would_do_in_its_place(void **state) {
    (void)state;
    es_breaker *breaker = breaker_of(only_tolerating(1));
    assert_true(es_breaker_is_idle(breaker, 0));
    melt(breaker, 0);
    assert_false(es_breaker_is_idle(breaker, 0));
    assert_true(es_breaker_is_idle(breaker, only_tolerating(1).within_ns));
    es_breaker_force_open(breaker, ES_FOREVER_NS, 0);
    assert_false(es_breaker_is_idle(breaker, 0));
    es_breaker_close(breaker, 0);
    assert_false(es_breaker_is_idle(breaker, 0)); /* nobody was told of the changes yet */
    taken(breaker);
    taken(breaker);
    assert_true(es_breaker_is_idle(breaker, 0));
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_idle_while_a_new_one_would_do_in_its_place),
        cmocka_unit_test(every_change_starts_a_generation),
        cmocka_unit_test(a_late_failure_of_an_older_generation_changes_nothing),
        cmocka_unit_test(a_late_success_of_an_older_generation_changes_nothing),
        cmocka_unit_test(a_generation_of_the_future_changes_nothing),
        cmocka_unit_test(a_failure_of_the_current_generation_is_listened_to),
        cmocka_unit_test(a_failure_without_admission_counts_once_the_open_time_is_over),
        cmocka_unit_test(opening_tells_its_rule_its_count_and_how_long),
        cmocka_unit_test(closing_by_time_is_told_at_the_moment_it_was_due),
        cmocka_unit_test(closing_by_hand_is_told_at_the_moment_of_the_hand),
        cmocka_unit_test(a_reset_when_due_is_told_as_closing_by_time),
        cmocka_unit_test(resetting_a_closed_breaker_empties_it_without_a_change),
        cmocka_unit_test(after_a_reset_without_calls_it_stays_closed),
        cmocka_unit_test(a_clock_that_runs_back_does_not_reorder_changes),
        cmocka_unit_test(changes_are_kept_in_order_for_slow_listeners),
        cmocka_unit_test(slower_listeners_still_see_an_unbroken_chain_to_the_present),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
