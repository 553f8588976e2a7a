/* SPDX-License-Identifier: Apache-2.0 */
#include "budget_support.h"

static void it_starts_full_with_what_ten_seconds_pay_in(void **state) {
    (void)state;
    const uint32_t per_second[] = {1, 2, 10, 1000};
    for (int i = 0; i < 4; i++) {
        es_budget *budget = budget_of(200000, per_second[i], 0);
        assert_int_equal(es_budget_balance_ppm(budget, 0), 10ull * per_second[i] * ES_PPM);
        assert_int_equal(take_all(budget, 0), 10 * per_second[i]);
        drop(budget);
    }
}

static void it_holds_ten_at_least(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 0, 0);
    assert_int_equal(take_all(budget, 0), 10);
    drop(budget);
}

static void a_success_pays_in_its_share(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 0, 0);
    take_all(budget, 0);
    deposit(budget, 4);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 800000);
    assert_int_equal(take_all(budget, 0), 0);
    deposit(budget, 1);
    assert_int_equal(take_all(budget, 0), 1);
    deposit(budget, 12);
    assert_int_equal(take_all(budget, 0), 2);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 400000);
    drop(budget);
}

static void a_success_may_pay_for_several_retries_or_for_none(void **state) {
    (void)state;
    es_budget *generous = budget_of(10 * ES_PPM, 10, 0), *mean = budget_of(0, 0, 0);
    take_all(generous, 0);
    take_all(mean, 0);
    deposit(generous, 2);
    deposit(mean, 1000);
    assert_int_equal(take_all(generous, 0), 20);
    assert_int_equal(take_all(mean, 0), 0);
    es_budget_free(generous);
    es_budget_free(mean);
}

static void successes_never_fill_it_above_the_brim(void **state) {
    (void)state;
    es_budget *budget = budget_of(300000, 10, 0);
    deposit(budget, 100);
    assert_true(es_budget_withdraw(budget, 0));
    deposit(budget, 100);
    assert_int_equal(es_budget_balance_ppm(budget, 0), 100 * ES_PPM);
    assert_int_equal(take_all(budget, 0), 100);
    drop(budget);
}

static void time_pays_in_to_the_nanosecond(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, MS(500));
    take_all(budget, MS(500));
    assert_false(es_budget_withdraw(budget, MS(600) - 1));
    assert_true(es_budget_withdraw(budget, MS(600)));
    assert_false(es_budget_withdraw(budget, MS(600)));
    assert_int_equal(es_budget_balance_ppm(budget, MS(650)), 500000);
    assert_int_equal(take_all(budget, MS(1600)), 10);
    drop(budget);
}

static void no_fraction_of_a_retry_is_lost_however_often_it_is_asked(void **state) {
    (void)state;
    const uint32_t per_second[] = {1, 3, 7, 997, 4999};
    for (int i = 0; i < 5; i++) {
        uint64_t random = 71, taken = 0;
        int64_t now_ns = 0;
        es_budget *budget = budget_of(0, per_second[i], 0);
        take_all(budget, 0);
        while (now_ns < MS(20000)) {
            now_ns += random_between(&random, 1, MS(20000) / 100000);
            taken += es_budget_withdraw(budget, now_ns);
        }
        uint64_t earned_ppm = (uint64_t)now_ns * per_second[i] / 1000;
        assert_int_equal(taken * ES_PPM + es_budget_balance_ppm(budget, now_ns), earned_ppm);
        drop(budget);
    }
}

static void idle_time_fills_it_to_the_brim_and_no_further(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, INT64_MIN);
    assert_int_equal(take_all(budget, INT64_MIN), 100);
    assert_int_equal(es_budget_balance_ppm(budget, INT64_MAX), 100 * ES_PPM);
    assert_int_equal(take_all(budget, INT64_MAX), 100);
    drop(budget);
}

static void what_time_paid_into_a_full_bucket_is_not_paid_again(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    assert_int_equal(take_all(budget, MS(3600000)), 100);
    assert_int_equal(take_all(budget, MS(3600000)), 0);
    drop(budget);
}

static void a_clock_that_runs_back_earns_nothing_nor_again(void **state) {
    (void)state;
    es_budget *budget = budget_of(0, 10, MS(1000));
    take_all(budget, MS(1000));
    assert_false(es_budget_withdraw(budget, INT64_MIN));
    assert_int_equal(es_budget_balance_ppm(budget, 0), 0);
    assert_int_equal(take_all(budget, MS(1200)), 2);
    assert_false(es_budget_withdraw(budget, MS(1000)));
    assert_false(es_budget_withdraw(budget, MS(1299)));
    assert_true(es_budget_withdraw(budget, MS(1300)));
    drop(budget);
}

static void without_a_rate_time_pays_nothing(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 0, 0);
    take_all(budget, 0);
    assert_false(es_budget_withdraw(budget, INT64_MAX));
    assert_int_equal(es_budget_balance_ppm(budget, INT64_MAX), 0);
    drop(budget);
}

static void a_thousand_failing_calls_a_second_get_the_rate_and_no_more(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 10, 0);
    int retried = 0;
    for (int call = 0; call < 60000; call++)
        retried += es_budget_withdraw(budget, MS(call));
    assert_int_equal(retried, 100 + 599);
    drop(budget);
}

static void a_few_failures_among_successes_are_always_retried(void **state) {
    (void)state;
    es_budget *budget = budget_of(200000, 0, 0);
    for (int call = 0; call < 60000; call++) {
        if (call % 10 == 0)
            assert_true(es_budget_withdraw(budget, MS(call)));
        else
            es_budget_deposit(budget);
    }
    drop(budget);
}

static void a_configuration_out_of_range_is_refused(void **state) {
    (void)state;
    const es_budget_config wrong[] = {{10 * ES_PPM + 1, 10}, {UINT32_MAX, 10}, {0, 1000001}, {0, UINT32_MAX}};
    const es_allocator allocator = allocator_that_allows(1);
    for (int i = 0; i < 4; i++) {
        es_budget *budget = (es_budget *)(uintptr_t)1;
        assert_int_equal(es_budget_new(&budget, &wrong[i], 0, &allocator), ES_BAD_CONFIG);
        assert_null(budget);
    }
    drop(budget_of(10 * ES_PPM, 1000000, 0));
    drop(budget_of(0, 0, 0));
}

static void without_memory_there_is_no_budget(void **state) {
    (void)state;
    const es_budget_config config = {200000, 10};
    const es_allocator allocator = allocator_that_allows(0);
    es_budget *budget = (es_budget *)(uintptr_t)1;
    assert_int_equal(es_budget_new(&budget, &config, 0, &allocator), ES_NO_MEMORY);
    assert_null(budget);
    es_budget_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_starts_full_with_what_ten_seconds_pay_in),
        cmocka_unit_test(it_holds_ten_at_least),
        cmocka_unit_test(a_success_pays_in_its_share),
        cmocka_unit_test(a_success_may_pay_for_several_retries_or_for_none),
        cmocka_unit_test(successes_never_fill_it_above_the_brim),
        cmocka_unit_test(time_pays_in_to_the_nanosecond),
        cmocka_unit_test(no_fraction_of_a_retry_is_lost_however_often_it_is_asked),
        cmocka_unit_test(idle_time_fills_it_to_the_brim_and_no_further),
        cmocka_unit_test(what_time_paid_into_a_full_bucket_is_not_paid_again),
        cmocka_unit_test(a_clock_that_runs_back_earns_nothing_nor_again),
        cmocka_unit_test(without_a_rate_time_pays_nothing),
        cmocka_unit_test(a_thousand_failing_calls_a_second_get_the_rate_and_no_more),
        cmocka_unit_test(a_few_failures_among_successes_are_always_retried),
        cmocka_unit_test(a_configuration_out_of_range_is_refused),
        cmocka_unit_test(without_memory_there_is_no_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
