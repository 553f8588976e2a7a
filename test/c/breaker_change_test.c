/* SPDX-License-Identifier: Apache-2.0 */
/* What a breaker tells of its changes, and what reports from before a change may still do. */
#include "breaker.h"
#include "support.h"

#define WITHIN MS(10000)
#define RESET MS(1000)
#define KEPT 4 /* changes a breaker keeps for slow listeners */

static es_breaker *tolerating(uint32_t tolerate) {
    es_breaker_config config = {.limits = {.tolerate = tolerate}, .within_ns = WITHIN, .reset_ns = RESET};
    es_allocator allocator = allocator_that_allows(1);
    es_breaker *breaker = NULL;
    assert_int_equal(es_breaker_new(&breaker, &config, 0, &allocator), ES_OK);
    return breaker;
}

static void melt(es_breaker *breaker, int64_t now_ns) {
    es_breaker_report(breaker, es_breaker_generation(breaker), ES_FAILURE, now_ns);
}

static es_change taken(es_breaker *breaker) {
    es_change change;
    memset(&change, 0xa5, sizeof change);
    assert_true(es_breaker_has_changes(breaker));
    assert_true(es_breaker_take_change(breaker, &change));
    return change;
}

static void assert_no_change(es_breaker *breaker) {
    es_change change;
    assert_false(es_breaker_has_changes(breaker));
    assert_false(es_breaker_take_change(breaker, &change));
}

static void every_change_starts_a_generation(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t first = es_breaker_generation(breaker);
    melt(breaker, 0);
    assert_int_equal(es_breaker_generation(breaker), first + 1);
    assert_int_equal(es_breaker_look(breaker, RESET).generation, first + 2);
    es_breaker_reset(breaker, RESET);
    assert_int_equal(es_breaker_generation(breaker), first + 3);
    es_breaker_free(breaker);
}

static void a_late_failure_of_an_older_generation_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    uint64_t old = es_breaker_admit(breaker, 0, 0).generation;
    melt(breaker, 1);
    melt(breaker, 2);
    assert_false(es_breaker_listens(breaker, old));
    es_breaker_report(breaker, old, ES_FAILURE, 3);
    assert_int_equal(es_breaker_look(breaker, 3).failures, 2);
    assert_int_equal(es_breaker_admit(breaker, 2 + RESET, 0).answer, ES_ADMITTED);
    for (int late = 0; late < 10; late++)
        es_breaker_report(breaker, old, ES_FAILURE, 3 + RESET);
    es_breaker_view view = es_breaker_look(breaker, 3 + RESET);
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.failures, 0);
    es_breaker_free(breaker);
}

static void a_late_success_of_an_older_generation_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t old = es_breaker_admit(breaker, 0, 0).generation;
    melt(breaker, 1);
    uint64_t open = es_breaker_generation(breaker);
    es_breaker_report(breaker, old, ES_SUCCESS, 2);
    es_breaker_report(breaker, old, ES_IGNORE, 2);
    es_breaker_report(breaker, old, ES_SUCCESS, MS(90000));
    assert_int_equal(es_breaker_generation(breaker), open);
    assert_int_equal(es_breaker_peek(breaker, 2, 0).answer, ES_REFUSED);
    es_breaker_free(breaker);
}

static void a_generation_of_the_future_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t next = es_breaker_generation(breaker) + 1;
    assert_false(es_breaker_listens(breaker, next));
    es_breaker_report(breaker, next, ES_FAILURE, 0);
    assert_int_equal(es_breaker_look(breaker, 0).state, ES_CLOSED);
    es_breaker_free(breaker);
}

static void a_failure_of_the_current_generation_is_listened_to(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t generation = es_breaker_admit(breaker, 0, 0).generation;
    assert_true(es_breaker_listens(breaker, generation));
    es_breaker_report(breaker, generation, ES_FAILURE, 0);
    assert_int_equal(es_breaker_look(breaker, 0).state, ES_OPEN);
    es_breaker_free(breaker);
}

static void a_failure_without_admission_counts_once_the_open_time_is_over(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    melt(breaker, 0);
    melt(breaker, 0);
    assert_true(es_breaker_listens(breaker, es_breaker_generation(breaker)));
    melt(breaker, RESET - 1);
    assert_int_equal(es_breaker_look(breaker, RESET - 1).state, ES_OPEN);
    melt(breaker, RESET);
    es_breaker_view view = es_breaker_look(breaker, RESET);
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.failures, 1);
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
    assert_int_equal(change.failures, 3);
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
    assert_int_equal(change.failures, 1);
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
    assert_int_equal(change.failures, 2);
    assert_int_equal(change.at_ns, 20);
    assert_int_equal(change.retry_after_ns, 0);
    assert_int_equal(es_breaker_look(breaker, 20).changed_at_ns, 20);
    assert_int_equal(es_breaker_look(breaker, 20).failures, 0);
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
    uint64_t old = es_breaker_generation(breaker);
    melt(breaker, 10);
    es_breaker_reset(breaker, 20);
    assert_no_change(breaker);
    assert_int_equal(es_breaker_look(breaker, 20).failures, 0);
    assert_int_equal(es_breaker_look(breaker, 20).changed_at_ns, 0);
    es_breaker_report(breaker, old, ES_FAILURE, 30);
    melt(breaker, 30);
    assert_int_equal(es_breaker_look(breaker, 30).state, ES_CLOSED);
    assert_int_equal(es_breaker_look(breaker, 30).failures, 1);
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

int main(void) {
    const struct CMUnitTest tests[] = {
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
