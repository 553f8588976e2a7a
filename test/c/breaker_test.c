/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker_support.h"

static void a_new_breaker_is_closed_and_has_seen_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(10);
    uint64_t generation = 99;
    assert_true(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(generation, generation_of(breaker));
    assert_int_equal(es_breaker_admit(breaker, 5, 0).answer, ES_ADMITTED);
    es_breaker_view view = es_breaker_look(breaker, 5);
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.counts.failures, 0);
    assert_int_equal(view.changed_at_ns, 0);
    assert_int_equal(view.retry_after_ns, 0);
    assert_int_equal(view.generation, generation);
    assert_false(es_breaker_has_changes(breaker));
    drop(breaker);
}

static void one_failure_more_than_tolerated_opens(void **state) {
    (void)state;
    for (uint32_t tolerate = 0; tolerate < 20; tolerate++) {
        es_breaker *breaker = tolerating(tolerate);
        for (uint32_t failures = 1; failures <= tolerate; failures++) {
            melt(breaker, failures);
            assert_int_equal(state_at(breaker, failures), ES_CLOSED);
            assert_int_equal(es_breaker_look(breaker, failures).counts.failures, failures);
        }
        melt(breaker, tolerate + 1);
        assert_int_equal(state_at(breaker, tolerate + 1), ES_OPEN);
        assert_int_equal(es_breaker_look(breaker, tolerate + 1).counts.failures, tolerate + 1);
        drop(breaker);
    }
}

static void a_failure_every_two_days_never_opens(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(3);
    for (int64_t day = 0; day < 2000; day += 2) {
        melt(breaker, day * 86400 * MS(1000));
        assert_int_equal(state_at(breaker, day * 86400 * MS(1000)), ES_CLOSED);
    }
    drop(breaker);
}

static void a_failure_as_old_as_the_span_does_not_count(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    melt(breaker, 0);
    melt(breaker, WITHIN);
    assert_int_equal(state_at(breaker, WITHIN), ES_CLOSED);
    melt(breaker, 2 * WITHIN - 1);
    assert_int_equal(state_at(breaker, 2 * WITHIN - 1), ES_OPEN);
    drop(breaker);
}

static void successes_and_ignored_outcomes_do_not_count(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t generation = generation_of(breaker);
    note(breaker, ES_SUCCESS, 1);
    note(breaker, ES_IGNORE, 2);
    assert_int_equal(state_at(breaker, 3), ES_CLOSED);
    assert_int_equal(es_breaker_look(breaker, 3).counts.failures, 0);
    assert_int_equal(generation_of(breaker), generation);
    drop(breaker);
}

/* Opened at `t`, the breaker refuses until just before t + reset and admits from then on. */
static void assert_open_for(int64_t t, int64_t reset_ns) {
    es_breaker_config config = only_tolerating(0);
    config.reset_ns = reset_ns;
    es_breaker *breaker = breaker_born_at(config, t - 1);
    melt(breaker, t);
    es_admission refusal = es_breaker_admit(breaker, t, 0);
    assert_int_equal(refusal.answer, ES_REFUSED);
    assert_int_equal(refusal.retry_after_ns, reset_ns);
    assert_int_equal(es_breaker_admit(breaker, t + reset_ns - 1, 0).answer, ES_REFUSED);
    assert_int_equal(es_breaker_admit(breaker, t + reset_ns - 1, 0).retry_after_ns, 1);
    assert_int_equal(es_breaker_look(breaker, t + reset_ns - 1).retry_after_ns, 1);
    assert_int_equal(es_breaker_peek(breaker, t + reset_ns, 0).answer, ES_DUE);
    es_admission admission = es_breaker_admit(breaker, t + reset_ns, 0);
    assert_int_equal(admission.answer, ES_ADMITTED);
    assert_int_equal(admission.retry_after_ns, 0);
    assert_int_equal(admission.permit.generation, refusal.permit.generation + 1);
    assert_int_equal(es_breaker_look(breaker, t + reset_ns).counts.failures, 0);
    drop(breaker);
}

static void an_open_breaker_refuses_exactly_as_long_as_its_reset(void **state) {
    (void)state;
    assert_open_for(MS(900), MS(1000));
    assert_open_for(MS(900), 1);
    assert_open_for(0, WITHIN * 5);
}

static void negative_clocks_work_like_any_other(void **state) {
    (void)state;
    assert_open_for(-MS(500), MS(1000));
    assert_open_for(INT64_MIN + 1, MS(1000));
    assert_open_for(INT64_MIN + 1, INT64_MAX - 1);
}

static void a_reset_of_nothing_closes_at_once(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(0);
    config.reset_ns = 0;
    es_breaker *breaker = breaker_born_at(config, 0);
    es_change change;
    for (int i = 0; i < 100; i++) {
        melt(breaker, 7);
        assert_true(es_breaker_take_change(breaker, &change));
        assert_int_equal(change.to, ES_OPEN);
        assert_int_equal(es_breaker_admit(breaker, 7, 0).answer, ES_ADMITTED);
        assert_true(es_breaker_take_change(breaker, &change));
        assert_int_equal(change.to, ES_CLOSED);
    }
    drop(breaker);
}

static void a_reset_of_forever_never_ends(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(0);
    config.reset_ns = ES_FOREVER_NS;
    es_breaker *breaker = breaker_born_at(config, -10);
    melt(breaker, -10);
    assert_int_equal(es_breaker_admit(breaker, INT64_MAX, 0).answer, ES_REFUSED);
    assert_int_equal(es_breaker_admit(breaker, INT64_MAX, 0).retry_after_ns, ES_FOREVER_NS);
    assert_int_equal(state_at(breaker, INT64_MAX), ES_OPEN);
    es_breaker_reset(breaker, INT64_MAX);
    assert_int_equal(state_at(breaker, INT64_MAX), ES_CLOSED);
    drop(breaker);
}

static void a_clock_read_before_the_opening_is_refused_too(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, MS(100));
    assert_int_equal(es_breaker_admit(breaker, MS(99), 0).answer, ES_REFUSED);
    assert_int_equal(es_breaker_admit(breaker, INT64_MIN, 0).answer, ES_REFUSED);
    assert_int_equal(es_breaker_look(breaker, INT64_MIN).retry_after_ns, ES_FOREVER_NS);
    assert_int_equal(es_breaker_admit(breaker, MS(1100), 0).answer, ES_ADMITTED);
    drop(breaker);
}

static void failures_while_open_neither_count_nor_prolong(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 0);
    for (int64_t now = 1; now < RESET; now += MS(1))
        melt(breaker, now);
    assert_int_equal(es_breaker_look(breaker, RESET - 1).counts.failures, 1);
    assert_int_equal(es_breaker_admit(breaker, RESET, 0).answer, ES_ADMITTED);
    drop(breaker);
}

static void the_state_follows_the_clock_without_traffic(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    uint64_t generation;
    melt(breaker, MS(5));
    assert_false(es_breaker_is_closed(breaker, &generation));
    es_breaker_view view = es_breaker_look(breaker, MS(90000));
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.changed_at_ns, MS(5) + RESET);
    assert_int_equal(view.counts.failures, 0);
    assert_true(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(generation, view.generation);
    drop(breaker);
}

static void looking_at_a_due_breaker_from_outside_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 0);
    uint64_t generation = generation_of(breaker), seen;
    assert_int_equal(es_breaker_peek(breaker, MS(90000), 0).answer, ES_DUE);
    assert_int_equal(es_breaker_peek(breaker, MS(90000), 0).permit.generation, generation);
    assert_false(es_breaker_is_closed(breaker, &seen));
    assert_int_equal(generation_of(breaker), generation);
    drop(breaker);
}

static void faults_are_injected_never_always_or_about_their_share(void **state) {
    (void)state;
    const uint32_t shares[] = {0, 1, 250000, ES_PPM};
    const int least[] = {0, 0, 2300, 10000}, most[] = {0, 1, 2700, 10000};
    for (int i = 0; i < 4; i++) {
        es_breaker_config config = only_tolerating(0);
        config.fault_ppm = shares[i];
        es_breaker *breaker = breaker_born_at(config, 0);
        uint64_t random = 5, generation;
        int refused = 0;
        assert_int_equal(es_breaker_is_closed(breaker, &generation), shares[i] == 0);
        for (int call = 0; call < 10000; call++) {
            es_admission admission = es_breaker_admit(breaker, call, next_random(&random));
            assert_int_equal(admission.retry_after_ns, 0);
            assert_int_equal(admission.permit.generation, generation);
            refused += admission.answer == ES_REFUSED;
        }
        assert_in_range(refused, least[i], most[i]);
        assert_int_equal(state_at(breaker, 10000), ES_CLOSED);
        drop(breaker);
    }
}

static void a_breaker_with_faults_opens_and_injects_again_after_its_reset(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(0);
    config.fault_ppm = 500000;
    es_breaker *breaker = breaker_born_at(config, 0);
    uint64_t generation;
    melt(breaker, 0);
    assert_int_equal(es_breaker_admit(breaker, 0, ES_PPM - 1).answer, ES_REFUSED);
    assert_int_equal(es_breaker_admit(breaker, 0, 0).retry_after_ns, RESET);
    assert_int_equal(es_breaker_admit(breaker, RESET, ES_PPM - 1).answer, ES_ADMITTED);
    assert_int_equal(es_breaker_admit(breaker, RESET, 0).answer, ES_REFUSED);
    es_breaker_reset(breaker, RESET);
    assert_false(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(es_breaker_admit(breaker, RESET, 0).answer, ES_REFUSED);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_breaker_is_closed_and_has_seen_nothing),
        cmocka_unit_test(one_failure_more_than_tolerated_opens),
        cmocka_unit_test(a_failure_every_two_days_never_opens),
        cmocka_unit_test(a_failure_as_old_as_the_span_does_not_count),
        cmocka_unit_test(successes_and_ignored_outcomes_do_not_count),
        cmocka_unit_test(an_open_breaker_refuses_exactly_as_long_as_its_reset),
        cmocka_unit_test(negative_clocks_work_like_any_other),
        cmocka_unit_test(a_reset_of_nothing_closes_at_once),
        cmocka_unit_test(a_reset_of_forever_never_ends),
        cmocka_unit_test(a_clock_read_before_the_opening_is_refused_too),
        cmocka_unit_test(failures_while_open_neither_count_nor_prolong),
        cmocka_unit_test(the_state_follows_the_clock_without_traffic),
        cmocka_unit_test(looking_at_a_due_breaker_from_outside_changes_nothing),
        cmocka_unit_test(faults_are_injected_never_always_or_about_their_share),
        cmocka_unit_test(a_breaker_with_faults_opens_and_injects_again_after_its_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
