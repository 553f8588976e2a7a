/* SPDX-License-Identifier: Apache-2.0 */
#include "outcomes.h"
#include "support.h"

#define SLOW MS(100)

/* Counts everything, and opens at nothing. */
static es_outcomes_config counting(void) {
    return (es_outcomes_config){.limits = {.tolerate = 1000, .min_calls = 1},
                                .within_ns = MS(10000),
                                .tally = {.span_ns = MS(10000)},
                                .slow_ns = SLOW};
}

static es_outcomes *outcomes_of(es_outcomes_config config) {
    size_t bytes = es_outcomes_bytes(&config);
    assert_true(bytes > 0);
    assert_int_equal(bytes % 8, 0);
    es_outcomes *outcomes = malloc(bytes);
    assert_non_null(outcomes);
    memset(outcomes, 0xa5, bytes);
    es_outcomes_init(outcomes, &config);
    return outcomes;
}

static const char *after_failure(es_outcomes *outcomes, int64_t now_ns) {
    const es_trip *rule = es_outcomes_record(outcomes, true, 0, now_ns);
    return rule == NULL ? "none" : rule->name;
}

static const char *after_success(es_outcomes *outcomes, int64_t now_ns) {
    const es_trip *rule = es_outcomes_record(outcomes, false, 0, now_ns);
    return rule == NULL ? "none" : rule->name;
}

static void assert_counts(const es_outcomes *outcomes, int64_t now_ns, es_counts expected) {
    es_counts counts = es_outcomes_look(outcomes, now_ns);
    assert_int_equal(counts.failures, expected.failures);
    assert_int_equal(counts.tally.calls, expected.tally.calls);
    assert_int_equal(counts.tally.failures, expected.tally.failures);
    assert_int_equal(counts.tally.slow, expected.tally.slow);
    assert_int_equal(counts.consecutive, expected.consecutive);
}

static void nothing_was_seen_at_first(void **state) {
    (void)state;
    es_outcomes *outcomes = outcomes_of(counting());
    assert_counts(outcomes, 0, (es_counts){0});
    free(outcomes);
}

static void every_outcome_is_counted_for_every_rule(void **state) {
    (void)state;
    es_outcomes *outcomes = outcomes_of(counting());
    assert_string_equal(after_failure(outcomes, 0), "none");
    assert_string_equal(after_failure(outcomes, 0), "none");
    assert_counts(outcomes, 0, (es_counts){2, {2, 2, 0}, 2});
    assert_string_equal(after_success(outcomes, 0), "none");
    assert_counts(outcomes, 0, (es_counts){2, {3, 2, 0}, 0});
    assert_string_equal(after_failure(outcomes, 0), "none");
    assert_counts(outcomes, 0, (es_counts){3, {4, 3, 0}, 1});
    free(outcomes);
}

static void a_call_is_slow_from_the_given_duration_on_however_it_ends(void **state) {
    (void)state;
    es_outcomes *outcomes = outcomes_of(counting());
    assert_null(es_outcomes_record(outcomes, false, SLOW - 1, 0));
    assert_null(es_outcomes_record(outcomes, true, SLOW - 1, 0));
    assert_counts(outcomes, 0, (es_counts){1, {2, 1, 0}, 1});
    assert_null(es_outcomes_record(outcomes, false, SLOW, 0));
    assert_null(es_outcomes_record(outcomes, true, SLOW + 1, 0));
    assert_counts(outcomes, 0, (es_counts){2, {4, 2, 2}, 1});
    free(outcomes);
}

static void only_the_streak_outlives_an_idle_window(void **state) {
    (void)state;
    es_outcomes *outcomes = outcomes_of(counting());
    after_failure(outcomes, 0);
    after_failure(outcomes, MS(1));
    assert_counts(outcomes, MS(20000), (es_counts){.consecutive = 2});
    free(outcomes);
}

static void what_no_rule_asks_about_is_not_counted(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    config.limits.tolerate = ES_TOLERATE_OFF;
    es_outcomes *outcomes = outcomes_of(config);
    after_failure(outcomes, 0);
    assert_counts(outcomes, 0, (es_counts){0, {1, 1, 0}, 1});
    es_outcomes_clear(outcomes);
    assert_counts(outcomes, 0, (es_counts){0});
    free(outcomes);

    config = counting();
    config.tally = (es_tally_config){0, 0};
    outcomes = outcomes_of(config);
    after_failure(outcomes, 0);
    assert_counts(outcomes, 0, (es_counts){1, {0, 0, 0}, 1});
    es_outcomes_clear(outcomes);
    assert_counts(outcomes, 0, (es_counts){0});
    free(outcomes);
}

static void without_any_rule_only_the_streak_is_kept(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    config.limits.tolerate = ES_TOLERATE_OFF;
    config.tally = (es_tally_config){0, 0};
    es_outcomes *outcomes = outcomes_of(config);
    for (uint32_t failures = 1; failures < 100; failures++) {
        assert_string_equal(after_failure(outcomes, 0), "none");
        assert_counts(outcomes, 0, (es_counts){.consecutive = failures});
    }
    free(outcomes);
}

static void the_failure_too_many_opens(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    config.limits.tolerate = 2;
    es_outcomes *outcomes = outcomes_of(config);
    assert_string_equal(after_failure(outcomes, 0), "none");
    assert_string_equal(after_success(outcomes, 0), "none");
    assert_string_equal(after_failure(outcomes, 0), "none");
    assert_string_equal(after_failure(outcomes, MS(10000) - 1), "tolerate");
    free(outcomes);
}

static void a_success_can_bring_the_calls_a_rate_needs(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    config.limits.failure_rate_ppm = 600000;
    config.limits.min_calls = 5;
    es_outcomes *outcomes = outcomes_of(config);
    for (int call = 0; call < 3; call++)
        assert_string_equal(after_failure(outcomes, 0), "none");
    assert_string_equal(after_success(outcomes, 0), "none");
    assert_string_equal(after_success(outcomes, 0), "failure_rate");
    free(outcomes);
}

static void a_slow_success_can_open(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    config.limits.slow_rate_ppm = 500000;
    config.limits.min_calls = 2;
    es_outcomes *outcomes = outcomes_of(config);
    assert_string_equal(after_success(outcomes, 0), "none");
    assert_string_equal(es_outcomes_record(outcomes, false, SLOW, 0)->name, "slow_rate");
    free(outcomes);
}

static void a_success_ends_the_row(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    config.limits.consecutive = 3;
    es_outcomes *outcomes = outcomes_of(config);
    for (int row = 0; row < 5; row++) {
        assert_string_equal(after_failure(outcomes, 0), "none");
        assert_string_equal(after_failure(outcomes, 0), "none");
        assert_string_equal(after_success(outcomes, 0), "none");
    }
    after_failure(outcomes, 0);
    after_failure(outcomes, 0);
    assert_string_equal(after_failure(outcomes, 0), "consecutive");
    free(outcomes);
}

static void successes_count_where_calls_are_counted_or_a_row_is_to_end(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    es_outcomes *outcomes = outcomes_of(config);
    assert_true(es_outcomes_counts_successes(outcomes));
    free(outcomes);

    config.tally = (es_tally_config){0, 0};
    outcomes = outcomes_of(config);
    assert_false(es_outcomes_counts_successes(outcomes));
    after_failure(outcomes, 0);
    assert_true(es_outcomes_counts_successes(outcomes));
    after_success(outcomes, 0);
    assert_false(es_outcomes_counts_successes(outcomes));
    free(outcomes);
}

static void clearing_forgets_everything(void **state) {
    (void)state;
    es_outcomes *outcomes = outcomes_of(counting());
    for (int call = 0; call < 10; call++)
        assert_null(es_outcomes_record(outcomes, true, SLOW, 0));
    assert_counts(outcomes, 0, (es_counts){10, {10, 10, 10}, 10});
    es_outcomes_clear(outcomes);
    assert_counts(outcomes, 0, (es_counts){0});
    free(outcomes);
}

static void each_failure_tolerated_costs_eight_bytes_and_each_call_counted_one(void **state) {
    (void)state;
    es_outcomes_config config = counting();
    size_t before = es_outcomes_bytes(&config);
    config.limits.tolerate += 1000;
    assert_int_equal(es_outcomes_bytes(&config), before + 8 * 1000);
    config.tally = (es_tally_config){.calls = 8};
    before = es_outcomes_bytes(&config);
    config.tally.calls += 8000;
    assert_int_equal(es_outcomes_bytes(&config), before + 8000);
}

static void a_field_out_of_range_is_no_configuration(void **state) {
    (void)state;
    es_outcomes_config wrong[11];
    for (int i = 0; i < 11; i++)
        wrong[i] = counting();
    wrong[0].limits.tolerate = ES_TOLERATE_MAX + 1;
    wrong[1].limits.failure_rate_ppm = ES_PPM + 1;
    wrong[2].limits.slow_rate_ppm = ES_PPM + 1;
    wrong[3].limits.min_calls = 0;
    wrong[4].within_ns = 0;
    wrong[5].slow_ns = 0;
    wrong[6].tally.calls = 1;
    wrong[7].tally.span_ns = -1;
    wrong[8].tally.span_ns = 0;
    wrong[8].limits.failure_rate_ppm = 1;
    wrong[9].tally.span_ns = 0;
    wrong[9].limits.slow_rate_ppm = 1;
    wrong[10].tally = (es_tally_config){.calls = 10};
    wrong[10].limits.slow_rate_ppm = 1;
    wrong[10].limits.min_calls = 11;
    for (int i = 0; i < 11; i++)
        assert_int_equal(es_outcomes_bytes(&wrong[i]), 0);
}

static void it_is_empty_while_there_is_nothing_a_rule_could_ask_about(void **state) {
    (void)state;
    const es_outcomes_config window = {
        .limits = {.tolerate = 3, .min_calls = 1}, .within_ns = 100, .slow_ns = ES_FOREVER_NS};
    const es_outcomes_config row = {.limits = {.tolerate = ES_TOLERATE_OFF, .min_calls = 1, .consecutive = 3},
                                    .within_ns = 100,
                                    .slow_ns = ES_FOREVER_NS};
    es_outcomes *seen = malloc(es_outcomes_bytes(&window)), *in_a_row = malloc(es_outcomes_bytes(&row));
    es_outcomes_init(seen, &window);
    es_outcomes_init(in_a_row, &row);
    assert_true(es_outcomes_is_empty(seen, 0));
    assert_null(es_outcomes_record(seen, true, 0, 0));
    assert_null(es_outcomes_record(in_a_row, true, 0, 0));
    assert_false(es_outcomes_is_empty(seen, 99));
    assert_true(es_outcomes_is_empty(seen, 100));
    assert_false(es_outcomes_is_empty(in_a_row, 1000000));
    assert_null(es_outcomes_record(in_a_row, false, 0, 0));
    assert_true(es_outcomes_is_empty(in_a_row, 0));
    free(seen);
    free(in_a_row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_was_seen_at_first),
        cmocka_unit_test(every_outcome_is_counted_for_every_rule),
        cmocka_unit_test(a_call_is_slow_from_the_given_duration_on_however_it_ends),
        cmocka_unit_test(only_the_streak_outlives_an_idle_window),
        cmocka_unit_test(what_no_rule_asks_about_is_not_counted),
        cmocka_unit_test(without_any_rule_only_the_streak_is_kept),
        cmocka_unit_test(the_failure_too_many_opens),
        cmocka_unit_test(a_success_can_bring_the_calls_a_rate_needs),
        cmocka_unit_test(a_slow_success_can_open),
        cmocka_unit_test(a_success_ends_the_row),
        cmocka_unit_test(successes_count_where_calls_are_counted_or_a_row_is_to_end),
        cmocka_unit_test(it_is_empty_while_there_is_nothing_a_rule_could_ask_about),
        cmocka_unit_test(clearing_forgets_everything),
        cmocka_unit_test(each_failure_tolerated_costs_eight_bytes_and_each_call_counted_one),
        cmocka_unit_test(a_field_out_of_range_is_no_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
