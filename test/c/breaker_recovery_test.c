/* SPDX-License-Identifier: Apache-2.0 */
/* How long a breaker stays open, how traffic comes back afterwards, and what it refused meanwhile. */
#include "breaker_support.h"

#define RAMP MS(1000)

static es_breaker_config doubling(int64_t max_ns) {
    es_breaker_config config = probing(1, 1);
    config.reset_factor_ppm = 2 * ES_PPM;
    config.reset_max_ns = max_ns;
    return config;
}

/* Opens at `*now`, and goes on to the moment when that is over. */
static void assert_opens_for(es_breaker *breaker, int64_t *now, int64_t open_ns) {
    assert_refused(breaker, *now, open_ns);
    assert_int_equal(state_at(breaker, *now + open_ns - 1), ES_OPEN);
    *now += open_ns;
    assert_int_equal(state_at(breaker, *now), ES_HALF_OPEN);
}

static void each_failed_probe_makes_the_open_time_longer_up_to_the_bound(void **state) {
    (void)state;
    const int64_t resets[] = {1, 2, 4, 8, 10, 10, 10};
    es_breaker *breaker = breaker_of(doubling(10 * RESET));
    int64_t now = 0;
    melt(breaker, now);
    for (int i = 0; i < 7; i++) {
        assert_opens_for(breaker, &now, resets[i] * RESET);
        report(breaker, probe(breaker, now), ES_FAILURE, now);
    }
    drop(breaker);
}

static void closing_makes_the_open_time_short_again(void **state) {
    (void)state;
    es_breaker *breaker = breaker_of(doubling(ES_FOREVER_NS));
    int64_t now = 0;
    for (int round = 0; round < 3; round++) {
        melt(breaker, now);
        assert_opens_for(breaker, &now, RESET);
        report(breaker, probe(breaker, now), ES_FAILURE, now);
        assert_opens_for(breaker, &now, 2 * RESET);
        if (round == 1)
            es_breaker_reset(breaker, now);
        else
            report(breaker, probe(breaker, now), ES_SUCCESS, now);
    }
    drop(breaker);
}

static void only_failed_probes_make_the_open_time_longer(void **state) {
    (void)state;
    es_breaker_config config = doubling(ES_FOREVER_NS);
    config.probes = 3;
    es_breaker *breaker = breaker_of(config);
    int64_t now = 0;
    melt(breaker, now);
    assert_opens_for(breaker, &now, RESET);
    es_permit first = probe(breaker, now), second = probe(breaker, now), third = probe(breaker, now);
    report(breaker, first, ES_IGNORE, now);
    report(breaker, second, ES_FAILURE, now);
    report(breaker, third, ES_FAILURE, now);
    assert_opens_for(breaker, &now, 2 * RESET);
    drop(breaker);
}

static void growth_without_a_bound_saturates_at_for_ever(void **state) {
    (void)state;
    es_breaker_config config = doubling(ES_FOREVER_NS);
    config.reset_factor_ppm = UINT32_MAX;
    es_breaker *breaker = breaker_born_at(config, INT64_MIN);
    int64_t now = INT64_MIN;
    melt(breaker, now);
    assert_opens_for(breaker, &now, RESET);
    report(breaker, probe(breaker, now), ES_FAILURE, now);
    assert_opens_for(breaker, &now, es_share_ns(RESET, UINT32_MAX));
    report(breaker, probe(breaker, now), ES_FAILURE, now);
    assert_opens_for(breaker, &now, es_share_ns(es_share_ns(RESET, UINT32_MAX), UINT32_MAX));
    report(breaker, probe(breaker, now), ES_FAILURE, now);
    assert_refused(breaker, INT64_MAX, ES_FOREVER_NS);
    drop(breaker);
}

/* The open time that this word draws when a rule opens, or when a probe that fails opens again. */
static int64_t drawn_ns(es_breaker_config config, uint64_t random_word, bool by_probe) {
    es_breaker *breaker = breaker_of(config);
    es_breaker_report(breaker, admitted(breaker, 0), ES_FAILURE, 0, 0, random_word);
    es_change change = taken(breaker);
    int64_t now = 0;
    if (by_probe) {
        now = 10 * RESET;
        es_breaker_report(breaker, probe(breaker, now), ES_FAILURE, 0, now, random_word);
        assert_int_equal(taken(breaker).to, ES_HALF_OPEN);
        change = taken(breaker);
    }
    assert_int_equal(change.to, ES_OPEN);
    assert_int_equal(change.retry_after_ns, es_breaker_look(breaker, now).retry_after_ns);
    drop(breaker);
    return change.retry_after_ns;
}

static void assert_drawn(es_breaker_config config, bool by_probe, int64_t low, int64_t high) {
    uint64_t random = 47;
    int64_t least = INT64_MAX, most = 0;
    for (int draw = 0; draw < 1000; draw++) {
        int64_t time = drawn_ns(config, next_random(&random), by_probe);
        assert_in_range(time, low, high);
        least = time < least ? time : least;
        most = time > most ? time : most;
    }
    assert_in_range(least, low, low + (high - low) / 10);
    assert_in_range(most, high - (high - low) / 10, high);
}

static void jitter_spreads_every_open_time_and_stays_below_the_bound(void **state) {
    (void)state;
    es_breaker_config config = doubling(ES_FOREVER_NS);
    config.reset_jitter_ppm = 100000;
    assert_drawn(config, false, RESET * 9 / 10, RESET * 11 / 10);
    assert_drawn(config, true, RESET * 18 / 10, RESET * 22 / 10);
    config.reset_max_ns = RESET;
    assert_drawn(config, false, RESET * 8 / 10, RESET);
    assert_drawn(config, true, RESET * 8 / 10, RESET);
}

/* How many of a thousand calls go out. */
static int admitted_of_a_thousand(es_breaker *breaker, int64_t now_ns) {
    uint64_t random = 53;
    int number = 0;
    for (int call = 0; call < 1000; call++) {
        es_admission admission = es_breaker_admit(breaker, now_ns, next_random(&random));
        assert_int_equal(admission.retry_after_ns, 0);
        number += admission.answer == ES_ADMITTED;
    }
    return number;
}

/* Closed at `from`, it ramps up, and that is no change of state. */
static void assert_ramp(es_breaker *breaker, int64_t from) {
    uint64_t generation = generation_of(breaker), seen;
    assert_in_range(admitted_of_a_thousand(breaker, from), 70, 130);
    assert_false(es_breaker_is_closed(breaker, &seen));
    assert_in_range(admitted_of_a_thousand(breaker, from + RAMP / 2), 450, 550);
    assert_int_equal(es_breaker_look(breaker, from + RAMP / 2).state, ES_CLOSED);
    assert_int_equal(es_breaker_look(breaker, from + RAMP / 2).retry_after_ns, 0);
    assert_in_range(admitted_of_a_thousand(breaker, from + RAMP - 1), 990, 1000);
    assert_int_equal(es_breaker_peek(breaker, from + RAMP, 0).answer, ES_DUE);
    assert_int_equal(admitted_of_a_thousand(breaker, from + RAMP), 1000);
    assert_true(es_breaker_is_closed(breaker, &seen));
    assert_int_equal(seen, generation);
    assert_no_change(breaker);
}

static es_breaker_config ramping(uint32_t probes) {
    es_breaker_config config = probing(probes, 1);
    config.ramp_ns = RAMP;
    return config;
}

static void a_new_breaker_needs_no_ramp(void **state) {
    (void)state;
    es_breaker *breaker = breaker_of(ramping(1));
    uint64_t generation;
    assert_true(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(admitted_of_a_thousand(breaker, 0), 1000);
    drop(breaker);
}

static void what_probes_closed_ramps_up(void **state) {
    (void)state;
    es_breaker *breaker = opened(ramping(1));
    report(breaker, probe(breaker, DUE), ES_SUCCESS, DUE + 5);
    assert_change(breaker, ES_OPEN, ES_HALF_OPEN, DUE);
    assert_change(breaker, ES_HALF_OPEN, ES_CLOSED, DUE + 5);
    assert_ramp(breaker, DUE + 5);
    drop(breaker);
}

static void what_time_closed_ramps_up(void **state) {
    (void)state;
    es_breaker *breaker = opened(ramping(0));
    assert_int_equal(state_at(breaker, DUE), ES_CLOSED);
    assert_change(breaker, ES_OPEN, ES_CLOSED, DUE);
    assert_ramp(breaker, DUE);
    es_breaker_force_open(breaker, MS(5000), MS(4000));
    assert_int_equal(state_at(breaker, MS(5000)), ES_CLOSED);
    assert_change(breaker, ES_CLOSED, ES_FORCED_OPEN, MS(4000));
    assert_change(breaker, ES_FORCED_OPEN, ES_CLOSED, MS(5000));
    assert_ramp(breaker, MS(5000));
    drop(breaker);
}

static void a_ramp_begins_when_the_time_was_over_not_when_somebody_looks(void **state) {
    (void)state;
    es_breaker *breaker = opened(ramping(0));
    assert_in_range(admitted_of_a_thousand(breaker, DUE + RAMP / 2), 450, 550);
    drop(breaker);
    breaker = opened(ramping(0));
    uint64_t generation;
    assert_int_equal(state_at(breaker, DUE + RAMP), ES_CLOSED);
    assert_true(es_breaker_is_closed(breaker, &generation));
    drop(breaker);
}

static void what_a_hand_closed_admits_all_at_once(void **state) {
    (void)state;
    es_breaker *breaker = opened(ramping(1));
    es_breaker_close(breaker, 20);
    assert_int_equal(admitted_of_a_thousand(breaker, 20), 1000);
    drop(breaker);
}

static void a_reset_ends_the_ramp_and_closing_again_does_not(void **state) {
    (void)state;
    es_breaker *breaker = opened(ramping(0));
    assert_int_equal(state_at(breaker, DUE), ES_CLOSED);
    es_breaker_close(breaker, DUE);
    assert_in_range(admitted_of_a_thousand(breaker, DUE), 70, 130);
    es_breaker_reset(breaker, DUE);
    assert_int_equal(admitted_of_a_thousand(breaker, DUE), 1000);
    drop(breaker);
}

static void calls_let_through_by_the_ramp_count_and_open_again(void **state) {
    (void)state;
    es_breaker *breaker = opened(ramping(0));
    es_permit permit = admitted(breaker, DUE);
    assert_false(permit.probe);
    report(breaker, permit, ES_FAILURE, DUE);
    assert_int_equal(state_at(breaker, DUE), ES_OPEN);
    assert_refused(breaker, DUE, RESET);
    drop(breaker);
}

static void refusals_are_counted_until_the_state_changes(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    for (int refusal = 0; refusal < 3; refusal++)
        es_breaker_refused(breaker);
    assert_int_equal(es_breaker_look(breaker, 0).rejected, 3);
    assert_int_equal(es_breaker_peek(breaker, 0, 0).answer, ES_ADMITTED);
    melt(breaker, 0);
    assert_int_equal(es_breaker_look(breaker, 0).rejected, 0);
    assert_refused(breaker, 0, RESET);
    assert_int_equal(es_breaker_look(breaker, 0).rejected, 0);
    es_breaker_refused(breaker);
    assert_int_equal(es_breaker_look(breaker, RESET - 1).rejected, 1);
    assert_int_equal(es_breaker_look(breaker, RESET).rejected, 0);
    drop(breaker);
}

static void ignored_outcomes_are_counted_until_the_state_changes(void **state) {
    (void)state;
    es_breaker *breaker = tolerating(0);
    assert_int_equal(es_breaker_look(breaker, 0).ignored, 0);
    for (int outcome = 0; outcome < 3; outcome++)
        es_breaker_ignored(breaker);
    es_breaker_refused(breaker);
    assert_int_equal(es_breaker_look(breaker, 0).ignored, 3);
    assert_int_equal(es_breaker_look(breaker, 0).rejected, 1);
    melt(breaker, 0);
    assert_int_equal(es_breaker_look(breaker, 0).ignored, 0);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_probe_makes_the_open_time_longer_up_to_the_bound),
        cmocka_unit_test(closing_makes_the_open_time_short_again),
        cmocka_unit_test(only_failed_probes_make_the_open_time_longer),
        cmocka_unit_test(growth_without_a_bound_saturates_at_for_ever),
        cmocka_unit_test(jitter_spreads_every_open_time_and_stays_below_the_bound),
        cmocka_unit_test(a_new_breaker_needs_no_ramp),
        cmocka_unit_test(what_probes_closed_ramps_up),
        cmocka_unit_test(what_time_closed_ramps_up),
        cmocka_unit_test(a_ramp_begins_when_the_time_was_over_not_when_somebody_looks),
        cmocka_unit_test(what_a_hand_closed_admits_all_at_once),
        cmocka_unit_test(a_reset_ends_the_ramp_and_closing_again_does_not),
        cmocka_unit_test(calls_let_through_by_the_ramp_count_and_open_again),
        cmocka_unit_test(refusals_are_counted_until_the_state_changes),
        cmocka_unit_test(ignored_outcomes_are_counted_until_the_state_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
