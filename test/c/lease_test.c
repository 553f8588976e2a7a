/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"
#include "support.h"

#define LENGTH 100

static es_leases *new_leases(uint32_t capacity) {
    es_leases *leases = malloc(es_leases_bytes(capacity));
    assert_non_null(leases);
    memset(leases, 0xa5, es_leases_bytes(capacity));
    es_leases_init(leases, capacity, LENGTH);
    return leases;
}

/* The same leases in a larger table. */
static es_leases *grown(es_leases *leases, uint32_t capacity) {
    es_leases *larger = malloc(es_leases_bytes(capacity));
    assert_non_null(larger);
    memset(larger, 0xa5, es_leases_bytes(capacity));
    es_leases_init_from(larger, capacity, leases);
    free(leases);
    return larger;
}

static void a_lease_costs_twenty_four_bytes(void **state) {
    (void)state;
    size_t fixed = es_leases_bytes(1) - 24;
    assert_in_range(fixed, 8, 32);
    assert_int_equal(es_leases_bytes(1000000), fixed + 24000000);
}

static void an_empty_table_has_nothing_to_reclaim(void **state) {
    (void)state;
    es_leases *leases = new_leases(2);
    assert_int_equal(es_leases_capacity(leases), 2);
    assert_int_equal(es_leases_end_ns(leases), ES_FOREVER_NS);
    assert_false(es_leases_reclaim(leases, INT64_MAX));
    assert_false(es_leases_give_back(leases, (es_lease){0, 0}));
    assert_false(es_leases_give_back(leases, (es_lease){UINT32_MAX, 0}));
    free(leases);
}

static void a_lease_can_be_reclaimed_when_its_length_is_over_and_not_before(void **state) {
    (void)state;
    es_leases *leases = new_leases(1);
    es_lease lease = es_leases_take(leases, -50);
    assert_int_equal(es_leases_end_ns(leases), 50);
    assert_false(es_leases_reclaim(leases, 49));
    assert_true(es_leases_reclaim(leases, 50));
    assert_false(es_leases_reclaim(leases, 50));
    assert_false(es_leases_give_back(leases, lease));
    free(leases);
}

static void leases_end_in_the_order_in_which_they_were_taken(void **state) {
    (void)state;
    es_leases *leases = new_leases(4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(es_leases_take(leases, i * 10).row, i);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(es_leases_end_ns(leases), LENGTH + i * 10);
        assert_false(es_leases_reclaim(leases, LENGTH + i * 10 - 1));
        assert_true(es_leases_reclaim(leases, LENGTH + i * 10));
    }
    assert_int_equal(es_leases_end_ns(leases), ES_FOREVER_NS);
    free(leases);
}

/* Three are taken at 0, 10 and 20, the one at `position` is given back, one is taken at 30: the ends show the order. */
static void give_back_at(int position) {
    es_leases *leases = new_leases(3);
    es_lease lease[3];
    for (int i = 0; i < 3; i++)
        lease[i] = es_leases_take(leases, i * 10);
    assert_true(es_leases_give_back(leases, lease[position]));
    es_leases_take(leases, 30);
    for (int i = 0; i < 4; i++) {
        if (i == position)
            continue;
        assert_int_equal(es_leases_end_ns(leases), LENGTH + i * 10);
        assert_true(es_leases_reclaim(leases, 1000));
    }
    assert_false(es_leases_reclaim(leases, 1000));
    free(leases);
}

static void giving_back_works_from_every_place_in_the_order(void **state) {
    (void)state;
    for (int position = 0; position < 3; position++)
        give_back_at(position);
}

static void a_lease_given_back_again_changes_nothing(void **state) {
    (void)state;
    es_leases *leases = new_leases(1);
    es_lease first = es_leases_take(leases, 0);
    assert_true(es_leases_give_back(leases, first));
    assert_false(es_leases_give_back(leases, first));
    es_lease second = es_leases_take(leases, 5);
    assert_int_equal(second.row, first.row);
    assert_false(es_leases_give_back(leases, first));
    assert_int_equal(es_leases_end_ns(leases), 105);
    assert_true(es_leases_give_back(leases, second));
    free(leases);
}

static void the_serials_of_a_row_begin_at_one_whatever_was_in_its_memory(void **state) {
    (void)state;
    es_leases *leases = new_leases(1);
    assert_int_equal(es_leases_take(leases, 0).serial, 1);
    leases = grown(leases, 3);
    assert_int_equal(es_leases_take(leases, 0).serial, 1);
    assert_int_equal(es_leases_take(leases, 0).serial, 1);
    free(leases);
}

static void rows_are_used_again(void **state) {
    (void)state;
    es_leases *leases = new_leases(3);
    uint64_t random = 5;
    es_lease held[3];
    for (int i = 0; i < 3; i++)
        held[i] = es_leases_take(leases, 0);
    for (int round = 0; round < 1000; round++) {
        size_t one = (size_t)random_between(&random, 0, 2), other = (one + 1) % 3;
        assert_true(es_leases_give_back(leases, held[one]));
        assert_true(es_leases_give_back(leases, held[other]));
        held[one] = es_leases_take(leases, round);
        held[other] = es_leases_take(leases, round);
        assert_in_range(held[one].row, 0, 2);
        assert_in_range(held[other].row, 0, 2);
        assert_int_not_equal(held[one].row, held[other].row);
    }
    free(leases);
}

static void a_time_before_the_newest_lease_counts_as_its_time(void **state) {
    (void)state;
    es_leases *leases = new_leases(3);
    es_leases_take(leases, 10);
    es_lease late = es_leases_take(leases, 20);
    es_leases_take(leases, 5); /* counts as 20 */
    assert_true(es_leases_reclaim(leases, 110));
    assert_false(es_leases_reclaim(leases, 119));
    assert_true(es_leases_give_back(leases, late));
    assert_int_equal(es_leases_end_ns(leases), 120);
    assert_false(es_leases_reclaim(leases, INT64_MIN));
    free(leases);
}

static void a_lease_that_outlasts_all_time_is_never_reclaimed(void **state) {
    (void)state;
    es_leases *leases = new_leases(1);
    es_leases_take(leases, INT64_MAX - LENGTH + 1);
    assert_int_equal(es_leases_end_ns(leases), ES_FOREVER_NS);
    assert_false(es_leases_reclaim(leases, INT64_MAX));
    free(leases);
}

static void clearing_ends_all_leases_for_good(void **state) {
    (void)state;
    es_leases *leases = new_leases(2);
    es_lease first = es_leases_take(leases, 0), second = es_leases_take(leases, 0);
    assert_true(es_leases_give_back(leases, first));
    es_leases_clear(leases);
    assert_int_equal(es_leases_end_ns(leases), ES_FOREVER_NS);
    assert_false(es_leases_give_back(leases, second));
    assert_int_equal(es_leases_take(leases, 7).row, 0);
    assert_int_equal(es_leases_take(leases, 7).row, 1);
    assert_false(es_leases_give_back(leases, first));
    assert_false(es_leases_give_back(leases, second));
    assert_int_equal(es_leases_end_ns(leases), 107);
    free(leases);
}

static void a_larger_table_keeps_the_leases_and_their_order(void **state) {
    (void)state;
    es_leases *leases = new_leases(2);
    es_lease first = es_leases_take(leases, 0), second = es_leases_take(leases, 10);
    leases = grown(leases, 4);
    assert_int_equal(es_leases_capacity(leases), 4);
    es_lease third = es_leases_take(leases, 20), fourth = es_leases_take(leases, 30);
    assert_true(es_leases_give_back(leases, second));
    assert_int_equal(es_leases_end_ns(leases), 100);
    assert_true(es_leases_give_back(leases, first));
    assert_int_equal(es_leases_end_ns(leases), 120);
    assert_true(es_leases_give_back(leases, third));
    assert_int_equal(es_leases_end_ns(leases), 130);
    assert_true(es_leases_give_back(leases, fourth));
    free(leases);
}

static void a_larger_table_still_knows_what_was_held_before_it_was_cleared(void **state) {
    (void)state;
    es_leases *leases = new_leases(2);
    es_leases_take(leases, 0);
    es_lease old = es_leases_take(leases, 0);
    es_leases_clear(leases);
    leases = grown(leases, 3);
    for (int i = 0; i < 3; i++)
        es_leases_take(leases, 0);
    assert_false(es_leases_give_back(leases, old));
    free(leases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lease_costs_twenty_four_bytes),
        cmocka_unit_test(an_empty_table_has_nothing_to_reclaim),
        cmocka_unit_test(a_lease_can_be_reclaimed_when_its_length_is_over_and_not_before),
        cmocka_unit_test(leases_end_in_the_order_in_which_they_were_taken),
        cmocka_unit_test(giving_back_works_from_every_place_in_the_order),
        cmocka_unit_test(a_lease_given_back_again_changes_nothing),
        cmocka_unit_test(the_serials_of_a_row_begin_at_one_whatever_was_in_its_memory),
        cmocka_unit_test(rows_are_used_again),
        cmocka_unit_test(a_time_before_the_newest_lease_counts_as_its_time),
        cmocka_unit_test(a_lease_that_outlasts_all_time_is_never_reclaimed),
        cmocka_unit_test(clearing_ends_all_leases_for_good),
        cmocka_unit_test(a_larger_table_keeps_the_leases_and_their_order),
        cmocka_unit_test(a_larger_table_still_knows_what_was_held_before_it_was_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
