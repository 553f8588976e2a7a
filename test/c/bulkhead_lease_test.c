/* SPDX-License-Identifier: Apache-2.0 */
/* The bulkhead with a lease: permits held too long can be taken from their holders. */
#include "bulkhead_support.h"

#define LEASE 100

static es_bulkhead *bulkhead_of(uint32_t limit, uint32_t queue_max) {
    return new_bulkhead(limit, queue_max, LEASE);
}

static es_bulkhead_permit take_reclaimed(es_bulkhead *bulkhead, int64_t now_ns) {
    es_bulkhead_permit permit = {77, 77};
    uint32_t reclaimed = 0;
    assert_int_equal(es_bulkhead_acquire(bulkhead, NULL, now_ns, &permit, &reclaimed), ES_SLOT_TAKEN);
    assert_int_equal(reclaimed, 1);
    return permit;
}

static void leases_cost_a_second_allocation(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(10, 0);
    assert_int_equal(memory()->live, 2);
    assert_in_range(memory()->bytes, 240, 280);
    drop(bulkhead);
}

static void without_memory_there_is_no_bulkhead(void **state) {
    (void)state;
    const es_bulkhead_config config = {.limit = 1, .lease_ns = LEASE};
    for (size_t allowed = 0; allowed < 2; allowed++) {
        es_allocator allocator = allocator_that_allows(allowed);
        es_bulkhead *bulkhead = (es_bulkhead *)&allocator;
        assert_int_equal(es_bulkhead_new(&bulkhead, &config, &allocator), ES_NO_MEMORY);
        assert_null(bulkhead);
        assert_int_equal(memory()->live, 0);
    }
}

static void with_a_lease_everything_needs_the_lock(void **state) {
    (void)state;
    es_bulkhead_permit permit;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    assert_false(es_bulkhead_try_acquire(bulkhead, &permit));
    assert_counts(bulkhead, 0, 0);
    permit = take(bulkhead, 0);
    assert_false(es_bulkhead_try_release(bulkhead, permit));
    assert_counts(bulkhead, 1, 0);
    give_back(bulkhead, permit);
    assert_counts(bulkhead, 0, 0);
    drop(bulkhead);
}

static void a_permit_is_safe_until_its_lease_ends(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    take(bulkhead, 0);
    assert_full(bulkhead, NULL, LEASE - 1);
    wait_in_line(bulkhead, &ticket, LEASE - 1);
    assert_nobody_next(bulkhead, LEASE - 1);
    assert_counts(bulkhead, 1, 1);
    assert_granted(bulkhead, &ticket, LEASE, true);
    assert_nobody_next(bulkhead, LEASE);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void a_newcomer_gets_the_slot_of_a_lease_that_is_over(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(1, 0);
    take(bulkhead, 0);
    take_reclaimed(bulkhead, LEASE);
    assert_counts(bulkhead, 1, 0);
    assert_full(bulkhead, NULL, 2 * LEASE - 1);
    take_reclaimed(bulkhead, 2 * LEASE);
    drop(bulkhead);
}

static void nothing_is_reclaimed_while_there_is_room(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    es_bulkhead_permit permit = take(bulkhead, 0);
    take(bulkhead, 10 * LEASE);
    assert_counts(bulkhead, 2, 0);
    give_back(bulkhead, permit);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void nothing_is_reclaimed_when_nobody_waits_for_it(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    take(bulkhead, 0);
    assert_nobody_next(bulkhead, 10 * LEASE);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void the_oldest_permit_is_reclaimed_first(void **state) {
    (void)state;
    es_bulkhead_permit held[3];
    es_bulkhead *bulkhead = bulkhead_of(3, 0);
    for (int i = 0; i < 3; i++)
        held[i] = take(bulkhead, i);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), LEASE);
    take_reclaimed(bulkhead, LEASE + 1);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), LEASE + 1);
    give_back(bulkhead, held[0]);
    assert_counts(bulkhead, 3, 0);
    give_back(bulkhead, held[1]);
    give_back(bulkhead, held[2]);
    assert_counts(bulkhead, 1, 0);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), 2 * LEASE + 1);
    drop(bulkhead);
}

static void what_was_reclaimed_or_given_back_can_not_be_given_back_again(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(2, 1);
    es_bulkhead_permit reclaimed = take(bulkhead, 0), given_back = take(bulkhead, 1);
    give_back(bulkhead, given_back);
    take(bulkhead, 2);
    take_reclaimed(bulkhead, LEASE);
    wait_in_line(bulkhead, &ticket, LEASE);
    for (int time = 0; time < 3; time++) {
        give_back(bulkhead, reclaimed);
        give_back(bulkhead, given_back);
        assert_counts(bulkhead, 2, 1);
    }
    drop(bulkhead);
}

static void reclaimed_slots_go_to_those_who_wait_in_their_order(void **state) {
    (void)state;
    es_ticket tickets[3] = {0};
    es_bulkhead *bulkhead = bulkhead_of(2, 3);
    take(bulkhead, 0);
    take(bulkhead, 0);
    for (int i = 0; i < 3; i++)
        wait_in_line(bulkhead, &tickets[i], 1);
    assert_full(bulkhead, NULL, LEASE);
    assert_counts(bulkhead, 2, 3);
    assert_granted(bulkhead, &tickets[0], LEASE, true);
    assert_granted(bulkhead, &tickets[1], LEASE, true);
    assert_nobody_next(bulkhead, 2 * LEASE - 1);
    assert_granted(bulkhead, &tickets[2], 2 * LEASE, true);
    drop(bulkhead);
}

static void a_slot_passed_on_is_leased_from_then_on(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit permit = take(bulkhead, 0);
    wait_in_line(bulkhead, &ticket, 1);
    assert_next(es_bulkhead_release(bulkhead, permit, 50), &ticket);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), LEASE + 50);
    assert_full(bulkhead, NULL, LEASE + 49);
    give_back(bulkhead, permit);
    assert_counts(bulkhead, 1, 0);
    give_back(bulkhead, ticket.permit);
    assert_counts(bulkhead, 0, 0);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), ES_FOREVER_NS);
    drop(bulkhead);
}

static void after_a_reset_neither_permits_nor_leases_mean_anything(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(2, 1);
    es_bulkhead_permit first = take(bulkhead, 0), second = take(bulkhead, 0);
    wait_in_line(bulkhead, &ticket, 0);
    es_bulkhead_reset(bulkhead);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), ES_FOREVER_NS);
    assert_counts(bulkhead, 0, 1);
    give_back(bulkhead, second);
    assert_granted(bulkhead, &ticket, 5, false);
    take(bulkhead, 5);
    give_back(bulkhead, first);
    give_back(bulkhead, second);
    assert_counts(bulkhead, 2, 0);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), LEASE + 5);
    drop(bulkhead);
}

static void a_larger_limit_keeps_who_holds_and_when_their_leases_end(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit first = take(bulkhead, 0);
    wait_in_line(bulkhead, &ticket, 1);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 2), ES_OK);
    assert_int_equal(memory()->live, 2);
    assert_granted(bulkhead, &ticket, 2, false);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), LEASE);
    give_back(bulkhead, first);
    assert_counts(bulkhead, 1, 0);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), LEASE + 2);
    drop(bulkhead);
}

static void without_memory_the_limit_stays(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    es_bulkhead_permit permit = take(bulkhead, 0);
    memory()->allowed = 0;
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 3), ES_NO_MEMORY);
    assert_int_equal(es_bulkhead_limit(bulkhead), 2);
    take(bulkhead, 0);
    assert_full(bulkhead, NULL, 0);
    give_back(bulkhead, permit);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void only_a_limit_never_had_before_needs_memory(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(3, 0);
    size_t allowed = memory()->allowed;
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 1), ES_OK);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 3), ES_OK);
    assert_int_equal(memory()->allowed, allowed);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 4), ES_OK);
    assert_int_equal(memory()->allowed, allowed - 1);
    for (int i = 0; i < 4; i++)
        take(bulkhead, 0);
    drop(bulkhead);
}

static void after_the_limit_shrank_all_leases_in_the_way_are_reclaimed(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead_permit held[4];
    es_bulkhead *bulkhead = bulkhead_of(4, 1);
    for (int i = 0; i < 4; i++)
        held[i] = take(bulkhead, i);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 2), ES_OK);
    wait_in_line(bulkhead, &ticket, 50);
    uint32_t reclaimed = 0;
    assert_null(es_bulkhead_grant(bulkhead, LEASE + 1, &reclaimed));
    assert_int_equal(reclaimed, 2);
    assert_counts(bulkhead, 2, 1);
    assert_granted(bulkhead, &ticket, LEASE + 2, true);
    assert_counts(bulkhead, 2, 0);
    for (int i = 0; i < 3; i++)
        give_back(bulkhead, held[i]);
    assert_counts(bulkhead, 2, 0);
    give_back(bulkhead, held[3]);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leases_cost_a_second_allocation),
        cmocka_unit_test(without_memory_there_is_no_bulkhead),
        cmocka_unit_test(with_a_lease_everything_needs_the_lock),
        cmocka_unit_test(a_permit_is_safe_until_its_lease_ends),
        cmocka_unit_test(a_newcomer_gets_the_slot_of_a_lease_that_is_over),
        cmocka_unit_test(nothing_is_reclaimed_while_there_is_room),
        cmocka_unit_test(nothing_is_reclaimed_when_nobody_waits_for_it),
        cmocka_unit_test(the_oldest_permit_is_reclaimed_first),
        cmocka_unit_test(what_was_reclaimed_or_given_back_can_not_be_given_back_again),
        cmocka_unit_test(reclaimed_slots_go_to_those_who_wait_in_their_order),
        cmocka_unit_test(a_slot_passed_on_is_leased_from_then_on),
        cmocka_unit_test(after_a_reset_neither_permits_nor_leases_mean_anything),
        cmocka_unit_test(a_larger_limit_keeps_who_holds_and_when_their_leases_end),
        cmocka_unit_test(without_memory_the_limit_stays),
        cmocka_unit_test(only_a_limit_never_had_before_needs_memory),
        cmocka_unit_test(after_the_limit_shrank_all_leases_in_the_way_are_reclaimed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
