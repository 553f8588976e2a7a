/* SPDX-License-Identifier: Apache-2.0 */
#include "probes.h"
#include "support.h"

#define LEASE 100

static es_probes *probes_of(uint32_t at_once, uint32_t successes) {
    size_t bytes = es_probes_bytes(at_once);
    assert_int_equal(bytes % sizeof(int64_t), 0);
    es_probes *probes = malloc(bytes);
    assert_non_null(probes);
    memset(probes, 0xa5, bytes);
    es_probes_init(probes, at_once, successes, LEASE);
    return probes;
}

static bool may_go(const es_probes *probes) {
    return es_probes_until_ns(probes) == INT64_MIN;
}

static es_lease go(es_probes *probes, int64_t now_ns) {
    assert_true(may_go(probes));
    return es_probes_take(probes, now_ns);
}

static void come_back(es_probes *probes, es_lease lease) {
    assert_true(es_probes_give_back(probes, lease));
}

/* Sends out all that may go, and tells how many. */
static uint32_t all_that_may_go(es_probes *probes) {
    uint32_t gone = 0;
    for (; may_go(probes); gone++)
        es_probes_take(probes, 0);
    return gone;
}

static void as_many_go_out_as_may_at_once(void **state) {
    (void)state;
    for (uint32_t at_once = 1; at_once < 50; at_once++) {
        es_probes *probes = probes_of(at_once, 1);
        assert_int_equal(es_probes_out(probes), 0);
        assert_int_equal(all_that_may_go(probes), at_once);
        assert_int_equal(es_probes_out(probes), at_once);
        free(probes);
    }
}

static void until_the_oldest_lease_ends_no_other_goes(void **state) {
    (void)state;
    es_probes *probes = probes_of(2, 1);
    go(probes, 10);
    es_lease second = go(probes, 30);
    assert_int_equal(es_probes_until_ns(probes), 10 + LEASE);
    es_probes_reclaim(probes, 9 + LEASE);
    assert_int_equal(es_probes_until_ns(probes), 10 + LEASE);
    es_probes_reclaim(probes, 10 + LEASE);
    assert_int_equal(es_probes_out(probes), 1);
    go(probes, 10 + LEASE);
    assert_int_equal(es_probes_until_ns(probes), 30 + LEASE);
    come_back(probes, second);
    assert_true(may_go(probes));
    free(probes);
}

static void all_leases_that_ended_are_let_go(void **state) {
    (void)state;
    es_probes *probes = probes_of(5, 1);
    for (int number = 0; number < 5; number++)
        go(probes, number);
    es_probes_reclaim(probes, 3 + LEASE);
    assert_int_equal(es_probes_out(probes), 1);
    free(probes);
}

static void a_probe_comes_back_once(void **state) {
    (void)state;
    es_probes *probes = probes_of(1, 1);
    es_lease lease = go(probes, 0);
    come_back(probes, lease);
    assert_int_equal(es_probes_out(probes), 0);
    for (int again = 0; again < 3; again++)
        assert_false(es_probes_give_back(probes, lease));
    assert_int_equal(all_that_may_go(probes), 1);
    free(probes);
}

static void a_probe_whose_lease_is_over_does_not_come_back(void **state) {
    (void)state;
    es_probes *probes = probes_of(1, 1);
    es_lease late = go(probes, 0);
    es_probes_reclaim(probes, LEASE);
    go(probes, LEASE);
    assert_false(es_probes_give_back(probes, late));
    assert_int_equal(es_probes_out(probes), 1);
    free(probes);
}

static void enough_successes_are_as_many_as_have_to_be(void **state) {
    (void)state;
    es_probes *probes = probes_of(3, 2);
    assert_false(es_probes_succeed(probes));
    assert_true(es_probes_succeed(probes));
    assert_true(es_probes_succeed(probes));
    free(probes);
}

/* One after the other, `successes` go out and no more are ever needed. */
static void more_have_to_succeed_than_may_go_at_once(void **state) {
    (void)state;
    es_probes *probes = probes_of(2, 5);
    for (int success = 1; success <= 4; success++) {
        es_lease lease = go(probes, 0);
        come_back(probes, lease);
        assert_int_equal(es_probes_succeed(probes), false);
    }
    assert_int_equal(all_that_may_go(probes), 1);
    assert_int_equal(es_probes_until_ns(probes), LEASE);
    free(probes);
}

static void no_more_go_than_could_be_needed(void **state) {
    (void)state;
    es_probes *probes = probes_of(3, 3);
    es_lease first = go(probes, 0);
    come_back(probes, first);
    assert_false(es_probes_succeed(probes));
    assert_int_equal(all_that_may_go(probes), 2);
    free(probes);
}

static void one_that_is_handed_back_can_be_replaced(void **state) {
    (void)state;
    es_probes *probes = probes_of(3, 3);
    for (int time = 0; time < 100; time++)
        come_back(probes, go(probes, 0));
    assert_int_equal(all_that_may_go(probes), 3);
    free(probes);
}

static void clearing_begins_anew_and_ends_all_leases(void **state) {
    (void)state;
    es_probes *probes = probes_of(2, 2);
    es_lease old = go(probes, 0);
    come_back(probes, go(probes, 0));
    assert_false(es_probes_succeed(probes));
    es_probes_clear(probes);
    assert_int_equal(es_probes_out(probes), 0);
    assert_false(es_probes_give_back(probes, old));
    assert_int_equal(all_that_may_go(probes), 2);
    assert_false(es_probes_give_back(probes, old));
    assert_false(es_probes_succeed(probes));
    assert_true(es_probes_succeed(probes));
    free(probes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_go_out_as_may_at_once),
        cmocka_unit_test(until_the_oldest_lease_ends_no_other_goes),
        cmocka_unit_test(all_leases_that_ended_are_let_go),
        cmocka_unit_test(a_probe_comes_back_once),
        cmocka_unit_test(a_probe_whose_lease_is_over_does_not_come_back),
        cmocka_unit_test(enough_successes_are_as_many_as_have_to_be),
        cmocka_unit_test(more_have_to_succeed_than_may_go_at_once),
        cmocka_unit_test(no_more_go_than_could_be_needed),
        cmocka_unit_test(one_that_is_handed_back_can_be_replaced),
        cmocka_unit_test(clearing_begins_anew_and_ends_all_leases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
