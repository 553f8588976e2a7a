/* SPDX-License-Identifier: Apache-2.0 */
/* The budget when one of its words changes between the reading and the exchange: what another thread could do in that
 * moment happens there. */
#include "budget_support.h"
#include "cas_hook.h"

typedef struct {
    void (*interfere)(es_budget *budget);
    int at;       /* on which exchange, 1 is the first      */
    int failures; /* exchanges that fail for no reason      */
    int exchanges;
    es_budget *budget;
} interference;

static interference *stage(void) {
    static interference shared;
    return &shared;
}

/* What interferes may itself exchange words, undisturbed. */
static bool on_exchange(void) {
    stage()->exchanges++;
    if (stage()->exchanges == stage()->at) {
        cas_hook = NULL;
        stage()->interfere(stage()->budget);
        cas_hook = on_exchange;
    }
    if (stage()->failures == 0)
        return false;
    stage()->failures--;
    return true;
}

static void fail_times(int failures) {
    *stage() = (interference){.failures = failures};
    cas_hook = on_exchange;
}

static void meanwhile(es_budget *budget, int at, void (*interfere)(es_budget *budget)) {
    *stage() = (interference){.budget = budget, .at = at, .interfere = interfere};
    cas_hook = on_exchange;
}

static int exchanges_until_now(void) {
    cas_hook = NULL;
    return stage()->exchanges;
}

static void another_takes_at_once(es_budget *budget) {
    assert_true(es_budget_withdraw(budget, 0));
}

static void another_takes_at_100_ms(es_budget *budget) {
    assert_true(es_budget_withdraw(budget, MS(100)));
}

static void another_is_refused_at_100_ms(es_budget *budget) {
    assert_false(es_budget_withdraw(budget, MS(100)));
}

static void another_succeeds(es_budget *budget) {
    es_budget_deposit(budget);
}

/* With one retry left. */
static es_budget *nearly_empty(uint32_t per_second) {
    es_budget *budget = budget_of(500000, per_second, 0);
    take_all(budget, 0);
    deposit(budget, 2);
    return budget;
}

static void an_exchange_that_fails_for_no_reason_is_tried_again(void **state) {
    (void)state;
    for (int failures = 0; failures < 5; failures++) {
        es_budget *budget = budget_of(200000, 10, 0);
        fail_times(failures);
        assert_true(es_budget_withdraw(budget, 0));
        assert_int_equal(exchanges_until_now(), failures + 1);
        fail_times(failures);
        es_budget_deposit(budget);
        assert_int_equal(exchanges_until_now(), failures + 1);
        fail_times(failures);
        assert_true(es_budget_withdraw(budget, MS(50)));
        assert_int_equal(exchanges_until_now(), failures + 2);
        assert_int_equal(es_budget_balance_ppm(budget, MS(50)), 98700000);
        drop(budget);
    }
}

static void a_full_bucket_is_not_written_to_by_successes(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    fail_times(0);
    deposit(budget, 100);
    assert_int_equal(exchanges_until_now(), 0);
    drop(budget);
}

static void an_empty_bucket_is_not_written_to_by_those_it_refuses(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    take_all(budget, 0);
    fail_times(0);
    assert_false(es_budget_withdraw(budget, 0));
    assert_int_equal(exchanges_until_now(), 0);
    drop(budget);
}

static void the_last_retry_goes_to_one_of_two(void **state) {
    (void)state;
    es_budget *budget = nearly_empty(10);
    meanwhile(budget, 1, another_takes_at_once);
    assert_false(es_budget_withdraw(budget, 0));
    assert_int_equal(exchanges_until_now(), 1);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 0);
    drop(budget);
}

static void a_success_and_a_retry_at_the_same_time_both_count(void **state) {
    (void)state;
    es_budget *budget = nearly_empty(0);
    meanwhile(budget, 1, another_takes_at_once);
    es_budget_deposit(budget);
    assert_int_equal(exchanges_until_now(), 2);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 500000);
    deposit(budget, 1);
    meanwhile(budget, 1, another_succeeds);
    assert_true(es_budget_withdraw(budget, 0));
    assert_int_equal(exchanges_until_now(), 2);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 500000);
    drop(budget);
}

static void two_successes_that_fill_the_bucket_leave_it_full(void **state) {
    (void)state;
    es_budget *budget = budget_of(ES_PPM, 0, 0);
    assert_true(es_budget_withdraw(budget, 0));
    meanwhile(budget, 1, another_succeeds);
    es_budget_deposit(budget);
    assert_int_equal(exchanges_until_now(), 1);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 10 * ES_PPM);
    drop(budget);
}

static void the_same_time_is_paid_to_one_of_two(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    take_all(budget, 0);
    meanwhile(budget, 1, another_takes_at_100_ms);
    assert_false(es_budget_withdraw(budget, MS(100)));
    assert_int_equal(exchanges_until_now(), 1);
    assert_int_equal(es_budget_balance_ppm(budget, MS(100)), 0);
    drop(budget);
}

static void a_clock_that_is_behind_by_now_earns_only_what_is_new(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    take_all(budget, 0);
    meanwhile(budget, 1, another_takes_at_100_ms);
    assert_true(es_budget_withdraw(budget, MS(210)));
    assert_int_equal(exchanges_until_now(), 3);
    assert_int_equal(es_budget_balance_ppm(budget, MS(210)), 100000);
    drop(budget);
}

/* Between moving the time and adding what it paid. */
static void who_asks_while_time_is_being_collected_takes_nothing_and_loses_nothing(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    take_all(budget, 0);
    meanwhile(budget, 2, another_is_refused_at_100_ms);
    assert_true(es_budget_withdraw(budget, MS(250)));
    assert_int_equal(exchanges_until_now(), 2);
    assert_int_equal(es_budget_balance_ppm(budget, MS(250)), 1500000);
    drop(budget);
}

static void what_was_collected_is_kept_where_it_is_too_little(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    take_all(budget, 0);
    meanwhile(budget, 2, another_succeeds);
    assert_false(es_budget_withdraw(budget, MS(50)));
    assert_int_equal(exchanges_until_now(), 3);
    assert_int_equal(es_budget_balance_ppm(budget, MS(50)), 700000);
    drop(budget);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exchange_that_fails_for_no_reason_is_tried_again),
        cmocka_unit_test(a_full_bucket_is_not_written_to_by_successes),
        cmocka_unit_test(an_empty_bucket_is_not_written_to_by_those_it_refuses),
        cmocka_unit_test(the_last_retry_goes_to_one_of_two),
        cmocka_unit_test(a_success_and_a_retry_at_the_same_time_both_count),
        cmocka_unit_test(two_successes_that_fill_the_bucket_leave_it_full),
        cmocka_unit_test(the_same_time_is_paid_to_one_of_two),
        cmocka_unit_test(a_clock_that_is_behind_by_now_earns_only_what_is_new),
        cmocka_unit_test(who_asks_while_time_is_being_collected_takes_nothing_and_loses_nothing),
        cmocka_unit_test(what_was_collected_is_kept_where_it_is_too_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
