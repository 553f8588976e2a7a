/* SPDX-License-Identifier: Apache-2.0 */
/* What is done by hand holds against time, rules and outcomes, and only as long as it was meant to. */
#include "breaker_support.h"

#define SOME_TIME MS(86400000)

static void every_outcome_at(es_breaker *breaker, int64_t now_ns) {
    note(breaker, ES_FAILURE, now_ns);
    note(breaker, ES_SUCCESS, now_ns);
    note(breaker, ES_IGNORE, now_ns);
}

static es_breaker *forced_open(es_breaker_config config, int64_t until_ns, int64_t now_ns) {
    es_breaker *breaker = breaker_born_at(config, now_ns - 1);
    es_breaker_force_open(breaker, until_ns, now_ns);
    return breaker;
}

/* In any of the states, at time `now_ns`, with no change waiting to be taken. */
static es_breaker *in_state(es_state wanted, int64_t now_ns) {
    es_breaker *breaker = breaker_born_at(probing(1, 1), now_ns - RESET);
    es_change change;
    if (wanted == ES_OPEN)
        melt(breaker, now_ns);
    if (wanted == ES_HALF_OPEN)
        melt(breaker, now_ns - RESET);
    if (wanted == ES_FORCED_OPEN)
        es_breaker_force_open(breaker, ES_FOREVER_NS, now_ns);
    if (wanted == ES_BYPASSED)
        es_breaker_bypass(breaker, now_ns);
    assert_int_equal(state_at(breaker, now_ns), wanted);
    while (es_breaker_take_change(breaker, &change))
        assert_int_not_equal(change.from, change.to);
    return breaker;
}

typedef void by_hand(es_breaker *breaker, int64_t now_ns);

static void force_open(es_breaker *breaker, int64_t now_ns) {
    es_breaker_force_open(breaker, now_ns + 5, now_ns);
}

/* From every state but its own, the hand makes one change to `to`, and tells that it did. */
static void assert_leads_from_everywhere(by_hand *hand, es_state to) {
    for (es_state from = ES_CLOSED; from <= ES_BYPASSED; from++) {
        es_breaker *breaker = in_state(from, 100);
        uint64_t before = generation_of(breaker);
        hand(breaker, 110);
        assert_int_equal(state_at(breaker, 110), to);
        if (from == to) {
            assert_no_change(breaker);
        } else {
            es_change change = assert_change(breaker, from, to, 110);
            assert_true(change.by_hand);
            assert_null(change.rule);
            assert_int_equal(change.generation, before + 1);
            assert_int_equal(generation_of(breaker), before + 1);
            assert_int_equal(change.retry_after_ns, to == ES_FORCED_OPEN ? 5 : 0);
            assert_no_change(breaker);
        }
        drop(breaker);
    }
}

static void each_hand_ends_whatever_state_it_finds(void **state) {
    (void)state;
    assert_leads_from_everywhere(force_open, ES_FORCED_OPEN);
    assert_leads_from_everywhere(es_breaker_bypass, ES_BYPASSED);
    assert_leads_from_everywhere(es_breaker_close, ES_CLOSED);
    assert_leads_from_everywhere(es_breaker_reset, ES_CLOSED);
}

static void forced_open_for_ever_refuses_and_listens_to_nothing_whatever_the_time(void **state) {
    (void)state;
    es_breaker *breaker = forced_open(only_tolerating(0), ES_FOREVER_NS, 0);
    assert_false(es_breaker_listens(breaker, es_breaker_permit(breaker), ES_FAILURE));
    for (int64_t now = 0; now < 100 * SOME_TIME; now += SOME_TIME) {
        assert_refused(breaker, now, ES_FOREVER_NS);
        every_outcome_at(breaker, now);
        assert_int_equal(state_at(breaker, now), ES_FORCED_OPEN);
    }
    assert_refused(breaker, INT64_MAX, ES_FOREVER_NS);
    es_breaker_close(breaker, 0);
    assert_int_equal(es_breaker_admit(breaker, 0, 0).answer, ES_ADMITTED);
    drop(breaker);
}

static void forced_open_for_a_time_ends_in_the_closed_state(void **state) {
    (void)state;
    es_breaker *breaker = forced_open(only_tolerating(0), 500, 100);
    assert_change(breaker, ES_CLOSED, ES_FORCED_OPEN, 100);
    assert_refused(breaker, 100, 400);
    assert_refused(breaker, 499, 1);
    assert_int_equal(es_breaker_peek(breaker, 500, 0).answer, ES_DUE);
    admitted(breaker, 9000);
    es_change change = assert_change(breaker, ES_FORCED_OPEN, ES_CLOSED, 500);
    assert_false(change.by_hand);
    assert_no_change(breaker);
    drop(breaker);
}

static void forced_open_for_a_time_ends_half_open_where_there_are_probes(void **state) {
    (void)state;
    es_breaker *breaker = forced_open(probing(1, 1), 500, 100);
    assert_change(breaker, ES_CLOSED, ES_FORCED_OPEN, 100);
    report(breaker, probe(breaker, 500), ES_FAILURE, 500);
    es_change change = assert_change(breaker, ES_FORCED_OPEN, ES_HALF_OPEN, 500);
    assert_false(change.by_hand);
    assert_change(breaker, ES_HALF_OPEN, ES_OPEN, 500);
    drop(breaker);
}

static void forcing_again_sets_another_end_and_is_no_change(void **state) {
    (void)state;
    es_breaker *breaker = forced_open(only_tolerating(0), 500, 100);
    uint64_t generation = generation_of(breaker);
    assert_change(breaker, ES_CLOSED, ES_FORCED_OPEN, 100);
    es_breaker_force_open(breaker, 900, 200);
    assert_refused(breaker, 500, 400);
    es_breaker_force_open(breaker, ES_FOREVER_NS, 300);
    assert_refused(breaker, SOME_TIME, ES_FOREVER_NS);
    es_breaker_force_open(breaker, 400, 300);
    assert_refused(breaker, 399, 1);
    assert_int_equal(generation_of(breaker), generation);
    assert_int_equal(es_breaker_look(breaker, 399).changed_at_ns, 100);
    assert_no_change(breaker);
    assert_int_equal(state_at(breaker, 400), ES_CLOSED);
    assert_change(breaker, ES_FORCED_OPEN, ES_CLOSED, 400);
    drop(breaker);
}

static void forcing_until_a_time_that_is_over_ends_at_once(void **state) {
    (void)state;
    es_breaker *breaker = forced_open(only_tolerating(0), 50, 100);
    assert_int_equal(es_breaker_peek(breaker, 100, 0).answer, ES_DUE);
    admitted(breaker, 100);
    assert_int_equal(assert_change(breaker, ES_CLOSED, ES_FORCED_OPEN, 100).retry_after_ns, 0);
    assert_change(breaker, ES_FORCED_OPEN, ES_CLOSED, 100);
    es_breaker_force_open(breaker, 500, 100);
    es_breaker_force_open(breaker, 50, 110);
    admitted(breaker, 110);
    assert_change(breaker, ES_CLOSED, ES_FORCED_OPEN, 100);
    assert_change(breaker, ES_FORCED_OPEN, ES_CLOSED, 100);
    drop(breaker);
}

static void a_hand_whose_clock_lags_forces_until_the_same_end(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    es_breaker_bypass(breaker, 100);
    es_breaker_force_open(breaker, 500, 90);
    assert_change(breaker, ES_CLOSED, ES_BYPASSED, 100);
    assert_int_equal(assert_change(breaker, ES_BYPASSED, ES_FORCED_OPEN, 100).retry_after_ns, 400);
    assert_refused(breaker, 499, 1);
    assert_int_equal(state_at(breaker, 500), ES_CLOSED);
    drop(breaker);
}

static void a_failure_that_comes_after_a_forced_time_counts(void **state) {
    (void)state;
    es_breaker *breaker = forced_open(only_tolerating(1), 500, 100);
    es_permit permit = es_breaker_permit(breaker);
    assert_true(es_breaker_listens(breaker, permit, ES_FAILURE));
    melt(breaker, 499);
    assert_int_equal(state_at(breaker, 499), ES_FORCED_OPEN);
    melt(breaker, 500);
    assert_int_equal(state_at(breaker, 500), ES_CLOSED);
    assert_int_equal(es_breaker_look(breaker, 500).counts.failures, 1);
    drop(breaker);
}

static void who_holds_a_permit_from_before_is_not_listened_to(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    es_permit before = admitted(breaker, 0);
    es_breaker_bypass(breaker, 1);
    es_breaker_close(breaker, 2);
    assert_false(es_breaker_listens(breaker, before, ES_FAILURE));
    report(breaker, before, ES_FAILURE, 3);
    assert_int_equal(state_at(breaker, 3), ES_CLOSED);
    drop(breaker);
}

static void a_bypass_admits_all_goes_on_counting_and_never_opens(void **state) {
    (void)state;
    es_breaker_config config = probing(1, 1);
    config.limits = (es_trip_limits){0, 1, 1, 1, 1};
    config.tally.calls = 1000;
    config.slow_ns = 10;
    config.fault_ppm = ES_PPM;
    es_breaker *breaker = breaker_of(config);
    uint64_t generation;
    es_breaker_bypass(breaker, 0);
    assert_false(es_breaker_is_closed(breaker, &generation));
    for (uint32_t call = 1; call <= 500; call++) {
        es_permit permit = admitted(breaker, call);
        assert_true(es_breaker_listens(breaker, permit, ES_FAILURE));
        es_breaker_report(breaker, permit, ES_FAILURE, 10, call, 0);
        es_counts counts = es_breaker_look(breaker, call).counts;
        assert_int_equal(counts.consecutive, call);
        assert_int_equal(counts.tally.calls, call);
        assert_int_equal(counts.tally.failures, call);
        assert_int_equal(counts.tally.slow, call);
        assert_true(counts.failures > 0);
    }
    assert_int_equal(state_at(breaker, SOME_TIME), ES_BYPASSED);
    assert_change(breaker, ES_CLOSED, ES_BYPASSED, 0);
    assert_no_change(breaker);
    drop(breaker);
}

static void the_end_of_a_bypass_forgets_what_it_counted(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    es_breaker_bypass(breaker, 0);
    melt(breaker, 1);
    es_breaker_close(breaker, 2);
    assert_change(breaker, ES_CLOSED, ES_BYPASSED, 0);
    assert_int_equal(assert_change(breaker, ES_BYPASSED, ES_CLOSED, 2).counts.failures, 1);
    assert_int_equal(es_breaker_look(breaker, 2).counts.failures, 0);
    assert_int_equal(es_breaker_look(breaker, 2).counts.consecutive, 0);
    drop(breaker);
}

static void closing_a_closed_breaker_does_nothing(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(1);
    uint64_t generation = generation_of(breaker);
    melt(breaker, 1);
    es_breaker_close(breaker, 2);
    assert_no_change(breaker);
    assert_int_equal(generation_of(breaker), generation);
    assert_int_equal(es_breaker_look(breaker, 2).counts.failures, 1);
    drop(breaker);
}

static void resetting_a_closed_breaker_forgets_and_starts_a_generation(void **state) {
    (void)state;
    es_breaker_config config = only_tolerating(5);
    config.tally.calls = 10;
    es_breaker *breaker = breaker_of(config);
    es_permit before = admitted(breaker, 0);
    melt(breaker, 1);
    es_breaker_reset(breaker, 2);
    assert_no_change(breaker);
    es_breaker_view view = es_breaker_look(breaker, 2);
    assert_int_equal(view.generation, before.generation + 1);
    assert_int_equal(view.counts.failures, 0);
    assert_int_equal(view.counts.tally.calls, 0);
    assert_int_equal(view.counts.consecutive, 0);
    assert_int_equal(view.changed_at_ns, 0);
    assert_false(es_breaker_listens(breaker, before, ES_FAILURE));
    drop(breaker);
}

static void what_is_due_is_told_before_what_the_hand_does(void **state) {
    (void)state;
    by_hand *const hands[] = {force_open, es_breaker_bypass, es_breaker_close, es_breaker_reset};
    const es_state to[] = {ES_FORCED_OPEN, ES_BYPASSED, ES_CLOSED, ES_CLOSED};
    for (int i = 0; i < 4; i++) {
        es_breaker *breaker = opened(probing(1, 1));
        hands[i](breaker, SOME_TIME);
        assert_false(assert_change(breaker, ES_OPEN, ES_HALF_OPEN, DUE).by_hand);
        assert_true(assert_change(breaker, ES_HALF_OPEN, to[i], SOME_TIME).by_hand);
        assert_no_change(breaker);
        drop(breaker);
    }
}

static void probes_out_when_a_hand_comes_decide_nothing(void **state) {
    (void)state;
    es_breaker *breaker = opened(probing(1, 1));
    es_permit permit = probe(breaker, DUE);
    es_breaker_close(breaker, DUE);
    report(breaker, permit, ES_FAILURE, DUE);
    assert_state(breaker, DUE, ES_CLOSED, 0);
    assert_int_equal(es_breaker_look(breaker, DUE).counts.failures, 0);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_hand_ends_whatever_state_it_finds),
        cmocka_unit_test(forced_open_for_ever_refuses_and_listens_to_nothing_whatever_the_time),
        cmocka_unit_test(forced_open_for_a_time_ends_in_the_closed_state),
        cmocka_unit_test(forced_open_for_a_time_ends_half_open_where_there_are_probes),
        cmocka_unit_test(forcing_again_sets_another_end_and_is_no_change),
        cmocka_unit_test(forcing_until_a_time_that_is_over_ends_at_once),
        cmocka_unit_test(a_hand_whose_clock_lags_forces_until_the_same_end),
        cmocka_unit_test(a_failure_that_comes_after_a_forced_time_counts),
        cmocka_unit_test(who_holds_a_permit_from_before_is_not_listened_to),
        cmocka_unit_test(a_bypass_admits_all_goes_on_counting_and_never_opens),
        cmocka_unit_test(the_end_of_a_bypass_forgets_what_it_counted),
        cmocka_unit_test(closing_a_closed_breaker_does_nothing),
        cmocka_unit_test(resetting_a_closed_breaker_forgets_and_starts_a_generation),
        cmocka_unit_test(what_is_due_is_told_before_what_the_hand_does),
        cmocka_unit_test(probes_out_when_a_hand_comes_decide_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
