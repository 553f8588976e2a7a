/* SPDX-License-Identifier: Apache-2.0 */
/* The bulkhead without a lease: slots, and the queue for them. */
#include "bulkhead_support.h"

static es_bulkhead *bulkhead_of(uint32_t limit, uint32_t queue_max) {
    return new_bulkhead(limit, queue_max, ES_FOREVER_NS);
}

static void a_new_bulkhead_is_empty(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(3, 5);
    assert_int_equal(es_bulkhead_limit(bulkhead), 3);
    assert_counts(bulkhead, 0, 0);
    assert_nobody_next(bulkhead, 0);
    assert_int_equal(es_bulkhead_lease_end_ns(bulkhead), ES_FOREVER_NS);
    drop(bulkhead);
}

static void a_bulkhead_is_one_small_allocation_whatever_its_limit(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(ES_SLOTS_MAX, ES_QUEUE_MAX);
    assert_int_equal(memory()->live, 1);
    assert_in_range(memory()->bytes, 1, 72);
    drop(bulkhead);
}

static void without_memory_there_is_no_bulkhead(void **state) {
    (void)state;
    const es_bulkhead_config config = {.limit = 1, .lease_ns = ES_FOREVER_NS};
    es_allocator allocator = allocator_that_allows(0);
    es_bulkhead *bulkhead = (es_bulkhead *)&allocator;
    assert_int_equal(es_bulkhead_new(&bulkhead, &config, &allocator), ES_NO_MEMORY);
    assert_null(bulkhead);
    assert_int_equal(memory()->live, 0);
    es_bulkhead_free(bulkhead);
}

static void a_field_outside_its_range_makes_no_bulkhead(void **state) {
    (void)state;
    const es_bulkhead_config wrong[] = {
        {0, 0, 1},          {ES_SLOTS_MAX + 1, 0, 1},
        {UINT32_MAX, 0, 1}, {1, ES_QUEUE_MAX + 1, 1},
        {1, UINT32_MAX, 1}, {1, 0, 0},
        {1, 0, -1},
    };
    es_allocator allocator = allocator_that_allows(2);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        es_bulkhead *bulkhead = (es_bulkhead *)&allocator;
        assert_int_equal(es_bulkhead_new(&bulkhead, &wrong[i], &allocator), ES_BAD_CONFIG);
        assert_null(bulkhead);
    }
    assert_int_equal(memory()->allowed, 2);
}

static void exactly_the_limit_gets_in(void **state) {
    (void)state;
    es_bulkhead_permit permit;
    es_bulkhead *bulkhead = bulkhead_of(4, 0);
    for (uint32_t held = 1; held <= 4; held++) {
        if (held % 2 == 0)
            take_at_once(bulkhead);
        else
            take(bulkhead, 0);
        assert_counts(bulkhead, held, 0);
    }
    assert_false(es_bulkhead_try_acquire(bulkhead, &permit));
    assert_full(bulkhead, NULL, 0);
    assert_counts(bulkhead, 4, 0);
    drop(bulkhead);
}

static void the_largest_limit_can_be_filled_and_emptied(void **state) {
    (void)state;
    es_bulkhead_permit permit = {0, 0};
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(ES_SLOTS_MAX, ES_QUEUE_MAX);
    for (uint32_t held = 0; held < ES_SLOTS_MAX; held++)
        permit = take_at_once(bulkhead);
    wait_in_line(bulkhead, &ticket, 0);
    assert_counts(bulkhead, ES_SLOTS_MAX, 1);
    assert_next(es_bulkhead_release(bulkhead, permit, 0), &ticket);
    for (uint32_t held = 0; held < ES_SLOTS_MAX; held++)
        assert_true(es_bulkhead_try_release(bulkhead, permit));
    assert_counts(bulkhead, 0, 0);
    drop(bulkhead);
}

static void a_slot_given_back_can_be_taken_again(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(1, 0);
    for (int round = 0; round < 3; round++) {
        es_bulkhead_permit permit = take_at_once(bulkhead);
        assert_true(es_bulkhead_try_release(bulkhead, permit));
        assert_counts(bulkhead, 0, 0);
        give_back(bulkhead, take(bulkhead, 0));
        assert_counts(bulkhead, 0, 0);
    }
    drop(bulkhead);
}

static void a_queue_of_none_turns_the_first_extra_caller_away(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    take(bulkhead, 0);
    take(bulkhead, 0);
    assert_full(bulkhead, &ticket, 0);
    assert_int_equal(ticket.state, ES_TICKET_IDLE);
    assert_counts(bulkhead, 2, 0);
    drop(bulkhead);
}

static void who_brings_no_ticket_does_not_wait(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(1, 5);
    take(bulkhead, 0);
    assert_full(bulkhead, NULL, 0);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void the_queue_has_as_many_places_as_was_said(void **state) {
    (void)state;
    es_ticket tickets[4] = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 2);
    es_bulkhead_permit permit = take(bulkhead, 0);
    wait_in_line(bulkhead, &tickets[0], 0);
    wait_in_line(bulkhead, &tickets[1], 0);
    assert_full(bulkhead, &tickets[2], 0);
    assert_counts(bulkhead, 1, 2);
    assert_next(es_bulkhead_release(bulkhead, permit, 0), &tickets[0]);
    wait_in_line(bulkhead, &tickets[2], 0);
    assert_full(bulkhead, &tickets[3], 0);
    drop(bulkhead);
}

static void a_thousand_tickets_are_served_in_the_order_in_which_they_came(void **state) {
    (void)state;
    static es_ticket tickets[1000];
    memset(tickets, 0, sizeof tickets);
    es_bulkhead *bulkhead = bulkhead_of(1, ES_QUEUE_MAX);
    es_bulkhead_permit permit = take(bulkhead, 0);
    for (int i = 0; i < 1000; i++)
        wait_in_line(bulkhead, &tickets[i], i);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_counts(bulkhead, 1, 1000 - i);
        assert_next(es_bulkhead_release(bulkhead, permit, 0), &tickets[i]);
        permit = tickets[i].permit;
    }
    give_back(bulkhead, permit);
    assert_counts(bulkhead, 0, 0);
    drop(bulkhead);
}

static void nobody_passes_a_waiter_by(void **state) {
    (void)state;
    es_ticket first = {0}, second = {0};
    es_bulkhead_permit permit;
    es_bulkhead *bulkhead = bulkhead_of(1, 5);
    permit = take(bulkhead, 0);
    wait_in_line(bulkhead, &first, 0);
    assert_false(es_bulkhead_try_release(bulkhead, permit));
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 3), ES_OK);
    assert_false(es_bulkhead_try_acquire(bulkhead, &permit));
    assert_full(bulkhead, NULL, 0);
    wait_in_line(bulkhead, &second, 0);
    assert_counts(bulkhead, 1, 2);
    assert_granted(bulkhead, &first, 0, false);
    assert_granted(bulkhead, &second, 0, false);
    assert_counts(bulkhead, 3, 0);
    drop(bulkhead);
}

/* Four wait, the one at `position` leaves: the others are served in their order. */
static void leave_at(int position) {
    es_ticket tickets[4] = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 4);
    es_bulkhead_permit permit = take(bulkhead, 0);
    for (int i = 0; i < 4; i++)
        wait_in_line(bulkhead, &tickets[i], 0);
    assert_int_equal(es_bulkhead_leave(bulkhead, &tickets[position]), ES_TICKET_QUEUED);
    assert_int_equal(tickets[position].state, ES_TICKET_IDLE);
    assert_counts(bulkhead, 1, 3);
    wait_in_line(bulkhead, &tickets[position], 0);
    for (int i = 0; i < 4; i++) {
        if (i == position)
            continue;
        assert_next(es_bulkhead_release(bulkhead, permit, 0), &tickets[i]);
        permit = tickets[i].permit;
    }
    assert_next(es_bulkhead_release(bulkhead, permit, 0), &tickets[position]);
    drop(bulkhead);
}

static void leaving_works_from_every_place_in_the_queue(void **state) {
    (void)state;
    for (int position = 0; position < 4; position++)
        leave_at(position);
}

static void when_all_have_left_the_lock_is_not_needed_any_more(void **state) {
    (void)state;
    es_ticket first = {0}, second = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 2);
    es_bulkhead_permit permit = take(bulkhead, 0);
    wait_in_line(bulkhead, &first, 0);
    wait_in_line(bulkhead, &second, 0);
    assert_int_equal(es_bulkhead_leave(bulkhead, &first), ES_TICKET_QUEUED);
    assert_false(es_bulkhead_try_release(bulkhead, permit));
    assert_int_equal(es_bulkhead_leave(bulkhead, &second), ES_TICKET_QUEUED);
    assert_counts(bulkhead, 1, 0);
    assert_true(es_bulkhead_try_release(bulkhead, permit));
    take_at_once(bulkhead);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void who_leaves_after_the_grant_holds_a_permit(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit permit = take(bulkhead, 0);
    wait_in_line(bulkhead, &ticket, 0);
    assert_next(es_bulkhead_release(bulkhead, permit, 0), &ticket);
    assert_int_equal(es_bulkhead_leave(bulkhead, &ticket), ES_TICKET_GRANTED);
    assert_int_equal(ticket.state, ES_TICKET_IDLE);
    assert_counts(bulkhead, 1, 0);
    assert_true(es_bulkhead_try_release(bulkhead, ticket.permit));
    assert_counts(bulkhead, 0, 0);
    drop(bulkhead);
}

static void leaving_without_waiting_changes_nothing(void **state) {
    (void)state;
    es_ticket waiting = {0}, idle = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 2);
    take(bulkhead, 0);
    wait_in_line(bulkhead, &waiting, 0);
    assert_int_equal(es_bulkhead_leave(bulkhead, &idle), ES_TICKET_IDLE);
    assert_int_equal(idle.state, ES_TICKET_IDLE);
    assert_counts(bulkhead, 1, 1);
    assert_int_equal(es_bulkhead_leave(bulkhead, &waiting), ES_TICKET_QUEUED);
    assert_int_equal(es_bulkhead_leave(bulkhead, &waiting), ES_TICKET_IDLE);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void a_permit_given_back_twice_never_makes_room_for_more_than_the_limit(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit permit = take_at_once(bulkhead), other;
    for (int time = 0; time < 3; time++)
        assert_true(es_bulkhead_try_release(bulkhead, permit));
    give_back(bulkhead, permit);
    assert_counts(bulkhead, 0, 0);
    take_at_once(bulkhead);
    assert_false(es_bulkhead_try_acquire(bulkhead, &other));
    drop(bulkhead);
}

static void freeing_no_bulkhead_is_allowed(void **state) {
    (void)state;
    allocator_that_allows(0);
    es_bulkhead_free(NULL);
    assert_int_equal(memory()->live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_bulkhead_is_empty),
        cmocka_unit_test(a_bulkhead_is_one_small_allocation_whatever_its_limit),
        cmocka_unit_test(without_memory_there_is_no_bulkhead),
        cmocka_unit_test(a_field_outside_its_range_makes_no_bulkhead),
        cmocka_unit_test(exactly_the_limit_gets_in),
        cmocka_unit_test(the_largest_limit_can_be_filled_and_emptied),
        cmocka_unit_test(a_slot_given_back_can_be_taken_again),
        cmocka_unit_test(a_queue_of_none_turns_the_first_extra_caller_away),
        cmocka_unit_test(who_brings_no_ticket_does_not_wait),
        cmocka_unit_test(the_queue_has_as_many_places_as_was_said),
        cmocka_unit_test(a_thousand_tickets_are_served_in_the_order_in_which_they_came),
        cmocka_unit_test(nobody_passes_a_waiter_by),
        cmocka_unit_test(leaving_works_from_every_place_in_the_queue),
        cmocka_unit_test(when_all_have_left_the_lock_is_not_needed_any_more),
        cmocka_unit_test(who_leaves_after_the_grant_holds_a_permit),
        cmocka_unit_test(leaving_without_waiting_changes_nothing),
        cmocka_unit_test(a_permit_given_back_twice_never_makes_room_for_more_than_the_limit),
        cmocka_unit_test(freeing_no_bulkhead_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
