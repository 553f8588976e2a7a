/* SPDX-License-Identifier: Apache-2.0 */
#include "gcra_support.h"

static void a_full_burst_goes_at_once_and_no_more(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, MS(1000));
    assert_left(gcra, 0, 10);
    drop(gcra);
}

static void after_the_burst_one_goes_each_interval(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, MS(1000));
    go(gcra, 0, 10);
    assert_limited(gcra, 0, MS(100));
    for (int64_t now = MS(100); now <= MS(2000); now += MS(100)) {
        assert_limited(gcra, now - 1, 1);
        assert_left(gcra, now, 1);
    }
    drop(gcra);
}

static void idle_time_refills_up_to_a_full_burst(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, MS(1000));
    go(gcra, 0, 10);
    assert_left(gcra, MS(399), 3);
    assert_left(gcra, MS(1000), 7);
    assert_left(gcra, MS(3600000), 10);
    drop(gcra);
}

static void three_per_ten_seconds_are_three_again_at_ten_seconds(void **state) {
    (void)state;
    for (int64_t start = 0; start < 100; start++) {
        es_gcra *early = limiter(3, MS(10000)), *exact = limiter(3, MS(10000));
        go(early, MS(5) * start, 3);
        go(exact, MS(5) * start, 3);
        assert_left(early, MS(5) * start + MS(10000) - 1, 2);
        assert_left(exact, MS(5) * start + MS(10000), 3);
        es_gcra_free(early);
        es_gcra_free(exact);
    }
}

static void a_herd_that_waits_is_told_at_once_who_goes_when(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(10000));
    const int64_t waits_ns[] = {0, 0, 0, 3333333334, 6666666667, MS(10000)};
    for (int caller = 0; caller < 30; caller++) {
        es_gcra_turn turn = es_gcra_reserve(gcra, 0, 1, MS(12000));
        assert_int_equal(turn.answer, caller < 3 ? ES_GO : caller < 6 ? ES_GO_LATER : ES_LIMITED);
        assert_int_equal(turn.wait_ns, caller < 6 ? waits_ns[caller] : 13333333334);
    }
    assert_limited(gcra, MS(10000), 3333333334);
    assert_left(gcra, MS(20000), 3);
    drop(gcra);
}

static void a_wait_is_booked_only_if_it_fits(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1, MS(10));
    go(gcra, 0, 1);
    assert_int_equal(es_gcra_reserve(gcra, 0, 1, MS(10) - 1).answer, ES_LIMITED);
    assert_int_equal(es_gcra_reserve(gcra, 0, 1, -1).answer, ES_LIMITED);
    assert_int_equal(es_gcra_reserve(gcra, 0, 1, MS(10)).answer, ES_GO_LATER);
    assert_int_equal(es_gcra_reserve(gcra, 0, 1, MS(10)).answer, ES_LIMITED);
    assert_limited(gcra, 0, MS(20));
    drop(gcra);
}

static void nobody_overtakes_a_booked_place(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1, MS(10));
    go(gcra, 0, 1);
    book(gcra, 0, MS(10));
    assert_limited(gcra, MS(10), MS(10));
    assert_limited(gcra, MS(20) - 1, 1);
    assert_left(gcra, MS(20), 1);
    drop(gcra);
}

static void peeking_takes_nothing(void **state) {
    (void)state;
    es_gcra *gcra = limiter(2, MS(10));
    for (int call = 0; call < 2; call++) {
        for (int peek = 0; peek < 5; peek++) {
            assert_int_equal(es_gcra_peek(gcra, MS(1), 1).answer, ES_GO);
            assert_int_equal(es_gcra_peek(gcra, MS(1), 1).place, 0);
        }
        go(gcra, 0, 1);
    }
    for (int peek = 0; peek < 5; peek++) {
        assert_int_equal(es_gcra_peek(gcra, 0, 1).answer, ES_LIMITED);
        assert_int_equal(es_gcra_peek(gcra, 0, 1).wait_ns, MS(5));
    }
    assert_left(gcra, MS(5), 1);
    drop(gcra);
}

static void a_call_may_cost_as_much_as_several(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, MS(1000));
    assert_int_equal(es_gcra_admit(gcra, 0, 4).answer, ES_GO);
    assert_int_equal(es_gcra_admit(gcra, 0, 7).answer, ES_LIMITED);
    assert_int_equal(es_gcra_admit(gcra, 0, 7).wait_ns, MS(100));
    assert_left(gcra, 0, 6);
    assert_int_equal(es_gcra_reserve(gcra, 0, 10, ES_FOREVER_NS).wait_ns, MS(1000));
    assert_limited(gcra, MS(1000), MS(100));
    drop(gcra);
}

static void a_cost_above_the_limit_can_never_go(void **state) {
    (void)state;
    es_gcra *gcra = limiter(10, MS(1000));
    const uint64_t costs[] = {11, INT64_MAX, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        es_gcra_turn turn = es_gcra_reserve(gcra, 0, costs[i], ES_FOREVER_NS);
        assert_int_equal(turn.answer, ES_TOO_COSTLY);
        assert_int_equal(turn.wait_ns, ES_FOREVER_NS);
        assert_int_equal(turn.place, 0);
        assert_int_equal(es_gcra_peek(gcra, 0, costs[i]).answer, ES_TOO_COSTLY);
    }
    assert_int_equal(es_gcra_admit(gcra, 0, 10).answer, ES_GO);
    drop(gcra);
}

static void a_reset_gives_a_full_burst(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(10000));
    for (int round = 0; round < 10; round++) {
        go(gcra, MS(round), 3);
        book(gcra, MS(round), 3333333334);
        es_gcra_reset(gcra, MS(round));
    }
    assert_left(gcra, MS(10), 3);
    assert_left(gcra, MS(10010), 3);
    drop(gcra);
}

static void negative_clocks_work_like_any_other(void **state) {
    (void)state;
    es_gcra *gcra = limiter_born_at(2, MS(10), INT64_MIN);
    assert_left(gcra, INT64_MIN, 2);
    assert_left(gcra, INT64_MIN + MS(5), 1);
    drop(gcra);
    gcra = limiter_born_at(2, MS(10), -MS(7));
    assert_left(gcra, -MS(7), 2);
    assert_left(gcra, -MS(2), 1);
    assert_limited(gcra, MS(2), MS(1));
    assert_left(gcra, MS(3), 1);
    drop(gcra);
}

static void a_clock_read_earlier_sees_no_more_than_there_is(void **state) {
    (void)state;
    es_gcra *gcra = limiter_born_at(2, MS(10), MS(100));
    assert_left(gcra, MS(90), 2);
    assert_limited(gcra, MS(80), MS(25));
    assert_left(gcra, MS(105), 1);
    assert_limited(gcra, MS(104), MS(6));
    assert_limited(gcra, INT64_MIN, ES_FOREVER_NS);
    drop(gcra);
}

static void at_the_end_of_time_nothing_is_refilled(void **state) {
    (void)state;
    es_gcra *gcra = limiter_born_at(3, ES_GCRA_PER_MAX_NS, INT64_MIN);
    assert_left(gcra, INT64_MAX, 3);
    for (int i = 0; i < 3; i++) {
        es_gcra_turn turn = es_gcra_reserve(gcra, INT64_MAX, 1, ES_FOREVER_NS);
        assert_int_equal(turn.answer, ES_LIMITED);
        assert_int_equal(turn.wait_ns, ES_FOREVER_NS);
    }
    es_gcra_reset(gcra, INT64_MAX);
    assert_left(gcra, INT64_MAX, 3);
    drop(gcra);
}

static void a_reset_winds_up_a_clock_that_stood_still(void **state) {
    (void)state;
    es_gcra *gcra = limiter_born_at(3, MS(3000), INT64_MIN);
    assert_left(gcra, 0, 3);
    assert_left(gcra, MS(1000), 0);
    es_gcra_reset(gcra, MS(1000));
    assert_left(gcra, MS(1000), 3);
    assert_left(gcra, MS(2000), 1);
    drop(gcra);
}

static void the_fastest_limit_is_one_a_nanosecond(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1000000, MS(1));
    go(gcra, 0, 1000000);
    for (int64_t now = 1; now < 1000; now++)
        assert_left(gcra, now, 1);
    drop(gcra);
}

static void a_limit_of_zero_lets_nothing_go_until_it_is_another(void **state) {
    (void)state;
    es_gcra *gcra = limiter(0, MS(1000));
    es_gcra_config three = {.limit = 3, .per_ns = MS(1000)};
    for (int64_t now = 0; now < MS(5000); now += MS(100)) {
        assert_int_equal(es_gcra_reserve(gcra, now, 1, ES_FOREVER_NS).answer, ES_TOO_COSTLY);
        assert_int_equal(es_gcra_peek(gcra, now, 1).wait_ns, ES_FOREVER_NS);
    }
    assert_int_equal(es_gcra_reconfigure(gcra, &three, MS(5000)), ES_OK);
    assert_left(gcra, MS(5000), 3);
    drop(gcra);
}

static void a_field_outside_its_range_makes_no_limiter(void **state) {
    (void)state;
    const es_gcra_config wrong[] = {
        {1, 0}, {1, -1}, {1, ES_GCRA_PER_MAX_NS + 1}, {11, 10}, {UINT64_MAX, MS(1)}, {1, INT64_MIN},
    };
    es_allocator allocator = allocator_that_allows(1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        es_gcra *gcra = (es_gcra *)&allocator;
        assert_int_equal(es_gcra_new(&gcra, &wrong[i], 0, &allocator), ES_BAD_CONFIG);
        assert_null(gcra);
    }
    assert_int_equal(memory()->allowed, 1);
}

static void the_ends_of_every_range_are_allowed(void **state) {
    (void)state;
    drop(limiter(1, 1));
    drop(limiter(10, 10));
    drop(limiter(1, ES_GCRA_PER_MAX_NS));
    es_gcra *gcra = limiter((uint64_t)ES_GCRA_PER_MAX_NS - 1, ES_GCRA_PER_MAX_NS);
    assert_int_equal(es_gcra_admit(gcra, INT64_MAX, (uint64_t)ES_GCRA_PER_MAX_NS - 1).answer, ES_GO);
    assert_int_equal(es_gcra_admit(gcra, INT64_MAX, 1).answer, ES_LIMITED);
    drop(gcra);
}

static void without_memory_there_is_no_limiter(void **state) {
    (void)state;
    es_gcra_config config = {.limit = 1, .per_ns = MS(1)};
    es_allocator allocator = allocator_that_allows(0);
    es_gcra *gcra = (es_gcra *)&config;
    assert_int_equal(es_gcra_new(&gcra, &config, 0, &allocator), ES_NO_MEMORY);
    assert_null(gcra);
    assert_int_equal(memory()->live, 0);
    es_gcra_free(gcra);
}

static void a_limiter_is_one_small_allocation_whatever_its_limit(void **state) {
    (void)state;
    es_gcra *gcra = limiter(1000000, MS(1000));
    assert_int_equal(memory()->live, 1);
    assert_in_range(memory()->bytes, 1, 96);
    drop(gcra);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_burst_goes_at_once_and_no_more),
        cmocka_unit_test(after_the_burst_one_goes_each_interval),
        cmocka_unit_test(idle_time_refills_up_to_a_full_burst),
        cmocka_unit_test(three_per_ten_seconds_are_three_again_at_ten_seconds),
        cmocka_unit_test(a_herd_that_waits_is_told_at_once_who_goes_when),
        cmocka_unit_test(a_wait_is_booked_only_if_it_fits),
        cmocka_unit_test(nobody_overtakes_a_booked_place),
        cmocka_unit_test(peeking_takes_nothing),
        cmocka_unit_test(a_call_may_cost_as_much_as_several),
        cmocka_unit_test(a_cost_above_the_limit_can_never_go),
        cmocka_unit_test(a_reset_gives_a_full_burst),
        cmocka_unit_test(negative_clocks_work_like_any_other),
        cmocka_unit_test(a_clock_read_earlier_sees_no_more_than_there_is),
        cmocka_unit_test(at_the_end_of_time_nothing_is_refilled),
        cmocka_unit_test(a_reset_winds_up_a_clock_that_stood_still),
        cmocka_unit_test(the_fastest_limit_is_one_a_nanosecond),
        cmocka_unit_test(a_limit_of_zero_lets_nothing_go_until_it_is_another),
        cmocka_unit_test(a_field_outside_its_range_makes_no_limiter),
        cmocka_unit_test(the_ends_of_every_range_are_allowed),
        cmocka_unit_test(without_memory_there_is_no_limiter),
        cmocka_unit_test(a_limiter_is_one_small_allocation_whatever_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
