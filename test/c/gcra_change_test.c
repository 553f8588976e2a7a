/* SPDX-License-Identifier: Apache-2.0 */
/* What a limiter keeps when places are given back and when its limit changes. */
#include "gcra_support.h"

static void reconfigure(es_gcra *gcra, uint64_t limit, int64_t per_ns, int64_t now_ns) {
    es_gcra_config config = {.limit = limit, .per_ns = per_ns};
    assert_int_equal(es_gcra_reconfigure(gcra, &config, now_ns), ES_OK);
}

static void a_call_that_was_not_made_gives_its_place_back(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(10000));
    for (int call = 0; call < 20; call++)
        es_gcra_give_back(gcra, 0, 1, go(gcra, 0, 1));
    assert_left(gcra, 0, 3);
    drop(gcra);
}

static void a_full_limiter_that_gets_one_back_lets_one_more_go(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(10000));
    uint64_t place = go(gcra, MS(7), 3);
    es_gcra_give_back(gcra, MS(7), 1, place);
    assert_left(gcra, MS(7), 1);
    drop(gcra);
}

static void a_costly_call_gives_its_whole_cost_back(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, MS(1000));
    es_gcra_turn turn = es_gcra_admit(gcra, 0, 7);
    assert_int_equal(turn.answer, ES_GO);
    es_gcra_give_back(gcra, 0, 7, turn.place);
    assert_left(gcra, 0, 10);
    drop(gcra);
}

static void what_time_has_refilled_does_not_come_back_twice(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t place = go(gcra, 0, 1);
    go(gcra, MS(1000), 1);
    es_gcra_give_back(gcra, MS(1000), 1, place);
    assert_left(gcra, MS(1000), 2);
    drop(gcra);
}

static void what_time_has_refilled_in_part_comes_back_in_part(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 2);
    uint64_t place = go(gcra, 0, 1);
    es_gcra_give_back(gcra, MS(400), 1, place);
    assert_left(gcra, MS(400), 1);
    assert_limited(gcra, MS(400), MS(1000));
    drop(gcra);
}

static void what_comes_back_to_a_limiter_just_used_up_is_what_time_has_not_refilled(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 1);
    uint64_t place = go(gcra, MS(500), 1);
    assert_left(gcra, MS(1000), 2);
    es_gcra_give_back(gcra, MS(1000), 1, place);
    assert_limited(gcra, MS(1000), MS(500));
    drop(gcra);
}

static void the_least_that_can_be_taken_comes_back(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, 10);
    uint64_t place = go(gcra, 0, 10);
    es_gcra_give_back(gcra, 0, 1, place);
    assert_left(gcra, 0, 1);
    drop(gcra);
}

static void giving_back_never_makes_more_than_a_full_burst(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t first = go(gcra, MS(10000), 1), second = go(gcra, MS(10000), 1);
    es_gcra_give_back(gcra, MS(10000), 1, first);
    es_gcra_give_back(gcra, MS(10000), 1, second);
    es_gcra_give_back(gcra, MS(10000), 1, second);
    es_gcra_give_back(gcra, MS(90000), 1, second);
    assert_left(gcra, MS(90000), 3);
    drop(gcra);
}

static void the_last_booked_place_leaves_no_trace(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1, MS(1000));
    go(gcra, 0, 1);
    uint64_t first = book(gcra, 0, MS(1000)), second = book(gcra, MS(100), MS(1900));
    es_gcra_give_back(gcra, MS(200), 1, second);
    assert_limited(gcra, MS(200), MS(1800));
    es_gcra_give_back(gcra, MS(300), 1, first);
    assert_limited(gcra, MS(300), MS(700));
    assert_left(gcra, MS(1000), 1);
    drop(gcra);
}

static void a_gap_between_booked_places_is_nobodys(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1, MS(1000));
    uint64_t made = go(gcra, 0, 1);
    uint64_t first = book(gcra, 0, MS(1000));
    book(gcra, 0, MS(2000));
    es_gcra_give_back(gcra, 0, 1, first);
    es_gcra_give_back(gcra, 0, 1, made);
    assert_limited(gcra, 0, MS(3000));
    assert_limited(gcra, MS(2000), MS(1000));
    drop(gcra);
}

static void a_costly_gap_in_the_middle_does_not_move_those_behind(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 3);
    es_gcra_turn first = es_gcra_reserve(gcra, 0, 3, ES_FOREVER_NS);
    es_gcra_turn second = es_gcra_reserve(gcra, 0, 3, ES_FOREVER_NS);
    book(gcra, 0, MS(7000));
    es_gcra_give_back(gcra, 0, 3, second.place);
    es_gcra_give_back(gcra, 0, 3, first.place);
    assert_limited(gcra, MS(7000), MS(1000));
    drop(gcra);
}

static void a_booked_place_whose_time_has_come_is_given_back_like_any_other(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1, MS(1000));
    go(gcra, 0, 1);
    uint64_t place = book(gcra, 0, MS(1000));
    es_gcra_give_back(gcra, MS(1000), 1, place);
    assert_left(gcra, MS(1000), 1);
    drop(gcra);
}

static void places_from_before_a_reset_are_gone(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t place = go(gcra, 0, 3);
    for (int resets = 1; resets < 4; resets++) {
        es_gcra_reset(gcra, 0);
        go(gcra, 0, 3);
        es_gcra_give_back(gcra, 0, 1, place);
        assert_left(gcra, 0, 0);
    }
    drop(gcra);
}

static void places_from_before_a_reconfiguration_are_gone(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t place = go(gcra, 0, 3);
    reconfigure(gcra, 6, MS(3000), 0);
    es_gcra_give_back(gcra, 0, 1, place);
    assert_left(gcra, 0, 0);
    drop(gcra);
}

static void a_cost_that_was_never_taken_is_not_given_back(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t place = go(gcra, 0, 3);
    es_gcra_give_back(gcra, 0, 4, place);
    es_gcra_give_back(gcra, 0, UINT64_MAX, place);
    es_gcra_give_back(gcra, 0, 0, place);
    assert_left(gcra, 0, 0);
    drop(gcra);
}

static void another_limit_keeps_the_share_that_is_used(void **state) {
    (void)state;
    const uint64_t limits[] = {100, 2, 10, 1000000};
    for (size_t i = 0; i < 4; i++) {
        es_gcra *gcra = limiter(10, MS(1000));
        go(gcra, MS(50), 5);
        reconfigure(gcra, limits[i], MS(60000), MS(50));
        assert_left(gcra, MS(50), limits[i] / 2);
        drop(gcra);
    }
}

static void what_is_used_in_part_counts_as_used(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 1);
    reconfigure(gcra, 10, MS(1000), 0);
    assert_left(gcra, 0, 6);
    assert_limited(gcra, 0, 33333334);
    drop(gcra);
}

static void an_idle_limiter_is_full_with_its_new_limit(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 3);
    reconfigure(gcra, 7, MS(1000), MS(3000));
    assert_left(gcra, MS(3000), 7);
    drop(gcra);
}

static void another_limit_refills_at_its_own_pace(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 3);
    reconfigure(gcra, 10, MS(1000), 0);
    assert_left(gcra, MS(100), 1);
    assert_limited(gcra, MS(199), MS(1));
    drop(gcra);
}

static void booked_places_keep_their_time_under_another_limit(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1, MS(1000));
    go(gcra, 0, 1);
    book(gcra, 0, MS(1000));
    book(gcra, 0, MS(2000));
    reconfigure(gcra, 10, MS(1000), MS(500));
    assert_limited(gcra, MS(500), MS(1600));
    assert_limited(gcra, MS(2000), MS(100));
    assert_left(gcra, MS(2100), 1);
    drop(gcra);
}

static void a_bad_configuration_changes_nothing(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    es_gcra_config wrong = {.limit = 3, .per_ns = 0};
    go(gcra, 0, 2);
    assert_int_equal(es_gcra_reconfigure(gcra, &wrong, 0), ES_BAD_CONFIG);
    assert_left(gcra, 0, 1);
    assert_left(gcra, MS(1000), 1);
    drop(gcra);
}

static void the_same_limit_again_changes_nothing(void **state) {
    (void)state;
    es_gcra *gcra = limiter(8, MS(1000)), *untouched = limiter(8, MS(1000));
    uint64_t random = 71;
    int64_t now = 0;
    for (int step = 0; step < 1000; step++) {
        now += random_between(&random, 0, MS(200));
        reconfigure(gcra, 8, MS(1000), now);
        es_gcra_turn turn = es_gcra_reserve(gcra, now, 1, MS(3000));
        es_gcra_turn same = es_gcra_reserve(untouched, now, 1, MS(3000));
        assert_int_equal(turn.answer, same.answer);
        assert_int_equal(turn.wait_ns, same.wait_ns);
    }
    es_gcra_free(untouched);
    es_gcra_free(gcra);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_was_not_made_gives_its_place_back),
        cmocka_unit_test(a_full_limiter_that_gets_one_back_lets_one_more_go),
        cmocka_unit_test(a_costly_call_gives_its_whole_cost_back),
        cmocka_unit_test(what_time_has_refilled_does_not_come_back_twice),
        cmocka_unit_test(what_time_has_refilled_in_part_comes_back_in_part),
        cmocka_unit_test(what_comes_back_to_a_limiter_just_used_up_is_what_time_has_not_refilled),
        cmocka_unit_test(the_least_that_can_be_taken_comes_back),
        cmocka_unit_test(giving_back_never_makes_more_than_a_full_burst),
        cmocka_unit_test(the_last_booked_place_leaves_no_trace),
        cmocka_unit_test(a_gap_between_booked_places_is_nobodys),
        cmocka_unit_test(a_costly_gap_in_the_middle_does_not_move_those_behind),
        cmocka_unit_test(a_booked_place_whose_time_has_come_is_given_back_like_any_other),
        cmocka_unit_test(places_from_before_a_reset_are_gone),
        cmocka_unit_test(places_from_before_a_reconfiguration_are_gone),
        cmocka_unit_test(a_cost_that_was_never_taken_is_not_given_back),
        cmocka_unit_test(another_limit_keeps_the_share_that_is_used),
        cmocka_unit_test(what_is_used_in_part_counts_as_used),
        cmocka_unit_test(an_idle_limiter_is_full_with_its_new_limit),
        cmocka_unit_test(another_limit_refills_at_its_own_pace),
        cmocka_unit_test(booked_places_keep_their_time_under_another_limit),
        cmocka_unit_test(a_bad_configuration_changes_nothing),
        cmocka_unit_test(the_same_limit_again_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
