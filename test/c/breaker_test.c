/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"
#include "support.h"

#define WITHIN MS(10000)
#define RESET MS(1000)

static es_breaker *new_breaker(es_breaker_config config, int64_t now_ns) {
    es_breaker *breaker = NULL;
    es_allocator allocator = allocator_that_allows(1);
    assert_int_equal(es_breaker_new(&breaker, &config, now_ns, &allocator), ES_OK);
    assert_non_null(breaker);
    return breaker;
}

static es_breaker *tolerating(uint32_t tolerate) {
    es_breaker_config config = {.limits = {.tolerate = tolerate}, .within_ns = WITHIN, .reset_ns = RESET};
    return new_breaker(config, 0);
}

static void drop(es_breaker *breaker) {
    es_breaker_free(breaker);
    assert_int_equal(memory()->live, 0);
}

/* A failure reported without an admission. */
static void melt(es_breaker *breaker, int64_t now_ns) {
    es_breaker_report(breaker, es_breaker_generation(breaker), ES_FAILURE, now_ns);
}

static es_state state_at(es_breaker *breaker, int64_t now_ns) {
    return es_breaker_look(breaker, now_ns).state;
}

static void a_new_breaker_is_closed_and_has_seen_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(10);
    uint64_t generation = 99;
    assert_true(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(generation, es_breaker_generation(breaker));
    assert_int_equal(es_breaker_admit(breaker, 5, 0).answer, ES_ADMITTED);
    es_breaker_view view = es_breaker_look(breaker, 5);
    assert_int_equal(view.state, ES_CLOSED);
    assert_int_equal(view.failures, 0);
    assert_int_equal(view.changed_at_ns, 0);
    assert_int_equal(view.retry_after_ns, 0);
    assert_int_equal(view.generation, generation);
    assert_false(es_breaker_has_changes(breaker));
    drop(breaker);
}

static void a_usual_breaker_is_one_small_allocation(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(10);
    assert_int_equal(memory()->live, 1);
    assert_in_range(memory()->bytes, 1, 420);
    drop(breaker);
}

static void without_memory_there_is_no_breaker(void **state) {
    (void)state;
    es_breaker_config config = {.limits = {.tolerate = 1}, .within_ns = WITHIN, .reset_ns = RESET};
    es_allocator allocator = allocator_that_allows(0);
    es_breaker *breaker = (es_breaker *)&config;
    assert_int_equal(es_breaker_new(&breaker, &config, 0, &allocator), ES_NO_MEMORY);
    assert_null(breaker);
    assert_int_equal(memory()->live, 0);
    es_breaker_free(breaker);
}

static void a_field_outside_its_range_makes_no_breaker(void **state) {
    (void)state;
    const es_breaker_config sound = {.limits = {.tolerate = 1}, .within_ns = WITHIN, .reset_ns = RESET};
    es_breaker_config wrong[6] = {sound, sound, sound, sound, sound, sound};
    wrong[0].limits.tolerate = ES_TOLERATE_MAX + 1;
    wrong[1].limits.tolerate = UINT32_MAX;
    wrong[2].within_ns = 0;
    wrong[3].within_ns = -1;
    wrong[4].reset_ns = -1;
    wrong[5].fault_ppm = ES_PPM + 1;
    es_allocator allocator = allocator_that_allows(6);
    for (int i = 0; i < 6; i++) {
        es_breaker *breaker = (es_breaker *)&wrong[i];
        assert_int_equal(es_breaker_new(&breaker, &wrong[i], 0, &allocator), ES_BAD_CONFIG);
        assert_null(breaker);
    }
    assert_int_equal(memory()->allowed, 6);
}

static void the_ends_of_every_range_are_allowed(void **state) {
    (void)state;
    es_breaker_config least = {.limits = {.tolerate = 0}, .within_ns = 1, .reset_ns = 0, .fault_ppm = 0};
    es_breaker_config most = {.limits = {.tolerate = ES_TOLERATE_MAX},
                              .within_ns = ES_FOREVER_NS,
                              .reset_ns = ES_FOREVER_NS,
                              .fault_ppm = ES_PPM};
    drop(new_breaker(least, INT64_MIN));
    drop(new_breaker(most, INT64_MAX));
}

static void one_failure_more_than_tolerated_opens(void **state) {
    (void)state;
    for (uint32_t tolerate = 0; tolerate < 20; tolerate++) {
        es_breaker *breaker = tolerating(tolerate);
        for (uint32_t failures = 1; failures <= tolerate; failures++) {
            melt(breaker, failures);
            assert_int_equal(state_at(breaker, failures), ES_CLOSED);
            assert_int_equal(es_breaker_look(breaker, failures).failures, failures);
        }
        melt(breaker, tolerate + 1);
        assert_int_equal(state_at(breaker, tolerate + 1), ES_OPEN);
        assert_int_equal(es_breaker_look(breaker, tolerate + 1).failures, tolerate + 1);
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
    uint64_t generation = es_breaker_generation(breaker);
    es_breaker_report(breaker, generation, ES_SUCCESS, 1);
    es_breaker_report(breaker, generation, ES_IGNORE, 2);
    assert_int_equal(state_at(breaker, 3), ES_CLOSED);
    assert_int_equal(es_breaker_look(breaker, 3).failures, 0);
    assert_int_equal(es_breaker_generation(breaker), generation);
    drop(breaker);
}

/* Opened at `t`, the breaker refuses until just before t + reset and admits from then on. */
static void assert_open_for(int64_t t, int64_t reset_ns) {
    es_breaker_config config = {.limits = {.tolerate = 0}, .within_ns = WITHIN, .reset_ns = reset_ns};
    es_breaker *breaker = new_breaker(config, t - 1);
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
    assert_int_equal(admission.generation, refusal.generation + 1);
    assert_int_equal(es_breaker_look(breaker, t + reset_ns).failures, 0);
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
    es_breaker_config config = {.limits = {.tolerate = 0}, .within_ns = WITHIN, .reset_ns = 0};
    es_breaker *breaker = new_breaker(config, 0);
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
    es_breaker_config config = {.limits = {.tolerate = 0}, .within_ns = WITHIN, .reset_ns = ES_FOREVER_NS};
    es_breaker *breaker = new_breaker(config, -10);
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
    assert_int_equal(es_breaker_look(breaker, RESET - 1).failures, 1);
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
    assert_int_equal(view.failures, 0);
    assert_true(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(generation, view.generation);
    drop(breaker);
}

static void looking_at_a_due_breaker_from_outside_changes_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    melt(breaker, 0);
    uint64_t generation = es_breaker_generation(breaker), seen;
    assert_int_equal(es_breaker_peek(breaker, MS(90000), 0).answer, ES_DUE);
    assert_int_equal(es_breaker_peek(breaker, MS(90000), 0).generation, generation);
    assert_false(es_breaker_is_closed(breaker, &seen));
    assert_int_equal(es_breaker_generation(breaker), generation);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_breaker_is_closed_and_has_seen_nothing),
        cmocka_unit_test(a_usual_breaker_is_one_small_allocation),
        cmocka_unit_test(without_memory_there_is_no_breaker),
        cmocka_unit_test(a_field_outside_its_range_makes_no_breaker),
        cmocka_unit_test(the_ends_of_every_range_are_allowed),
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
