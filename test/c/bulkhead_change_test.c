/* SPDX-License-Identifier: Apache-2.0 */
/* The bulkhead while its limit, its queue or its epoch changes under those who hold and those who wait. */
#include "bulkhead_support.h"

static es_bulkhead *bulkhead_of(uint32_t limit, uint32_t queue_max) {
    return new_bulkhead(limit, queue_max, ES_FOREVER_NS);
}

static void a_larger_limit_lets_waiters_in(void **state) {
    (void)state;
    es_ticket tickets[3] = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 3);
    take(bulkhead, 0);
    for (int i = 0; i < 3; i++)
        wait_in_line(bulkhead, &tickets[i], 0);
    assert_nobody_next(bulkhead, 0);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 3), ES_OK);
    assert_int_equal(es_bulkhead_limit(bulkhead), 3);
    assert_granted(bulkhead, &tickets[0], 0, false);
    assert_granted(bulkhead, &tickets[1], 0, false);
    assert_nobody_next(bulkhead, 0);
    assert_counts(bulkhead, 3, 1);
    drop(bulkhead);
}

static void a_smaller_limit_takes_slots_away_as_they_are_given_back(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead_permit held[3], permit;
    es_bulkhead *bulkhead = bulkhead_of(3, 1);
    for (int i = 0; i < 3; i++)
        held[i] = take(bulkhead, 0);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 1), ES_OK);
    wait_in_line(bulkhead, &ticket, 0);
    assert_null(es_bulkhead_release(bulkhead, held[0], 0));
    assert_null(es_bulkhead_release(bulkhead, held[1], 0));
    assert_counts(bulkhead, 1, 1);
    assert_next(es_bulkhead_release(bulkhead, held[2], 0), &ticket);
    assert_counts(bulkhead, 1, 0);
    assert_false(es_bulkhead_try_acquire(bulkhead, &permit));
    drop(bulkhead);
}

static void a_smaller_limit_holds_without_the_lock_too(void **state) {
    (void)state;
    es_bulkhead_permit held[3], permit;
    es_bulkhead *bulkhead = bulkhead_of(3, 0);
    for (int i = 0; i < 3; i++)
        held[i] = take_at_once(bulkhead);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 2), ES_OK);
    assert_true(es_bulkhead_try_release(bulkhead, held[0]));
    assert_false(es_bulkhead_try_acquire(bulkhead, &permit));
    assert_true(es_bulkhead_try_release(bulkhead, held[1]));
    take_at_once(bulkhead);
    assert_counts(bulkhead, 2, 0);
    drop(bulkhead);
}

static void the_ends_of_every_range_are_allowed(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(ES_SLOTS_MAX, ES_QUEUE_MAX);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 1), ES_OK);
    assert_int_equal(es_bulkhead_limit(bulkhead), 1);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, ES_SLOTS_MAX), ES_OK);
    assert_int_equal(es_bulkhead_limit(bulkhead), ES_SLOTS_MAX);
    assert_int_equal(es_bulkhead_set_queue(bulkhead, 0), ES_OK);
    assert_int_equal(es_bulkhead_set_queue(bulkhead, ES_QUEUE_MAX), ES_OK);
    drop(bulkhead);
    drop(new_bulkhead(1, 0, 1));
}

static void a_limit_outside_its_range_changes_nothing(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, 0), ES_BAD_CONFIG);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, ES_SLOTS_MAX + 1), ES_BAD_CONFIG);
    assert_int_equal(es_bulkhead_set_limit(bulkhead, UINT32_MAX), ES_BAD_CONFIG);
    assert_int_equal(es_bulkhead_limit(bulkhead), 2);
    drop(bulkhead);
}

static void a_queue_outside_its_range_changes_nothing(void **state) {
    (void)state;
    es_ticket first = {0}, second = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    take(bulkhead, 0);
    assert_int_equal(es_bulkhead_set_queue(bulkhead, ES_QUEUE_MAX + 1), ES_BAD_CONFIG);
    assert_int_equal(es_bulkhead_set_queue(bulkhead, UINT32_MAX), ES_BAD_CONFIG);
    wait_in_line(bulkhead, &first, 0);
    assert_full(bulkhead, &second, 0);
    drop(bulkhead);
}

static void who_waits_stays_when_the_queue_gets_shorter(void **state) {
    (void)state;
    es_ticket tickets[3] = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 2);
    es_bulkhead_permit permit = take(bulkhead, 0);
    wait_in_line(bulkhead, &tickets[0], 0);
    wait_in_line(bulkhead, &tickets[1], 0);
    assert_int_equal(es_bulkhead_set_queue(bulkhead, 1), ES_OK);
    assert_counts(bulkhead, 1, 2);
    assert_full(bulkhead, &tickets[2], 0);
    assert_next(es_bulkhead_release(bulkhead, permit, 0), &tickets[0]);
    assert_full(bulkhead, &tickets[2], 0);
    assert_next(es_bulkhead_release(bulkhead, tickets[0].permit, 0), &tickets[1]);
    wait_in_line(bulkhead, &tickets[2], 0);
    drop(bulkhead);
}

static void a_longer_queue_has_places_at_once(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 0);
    take(bulkhead, 0);
    assert_int_equal(es_bulkhead_set_queue(bulkhead, 1), ES_OK);
    wait_in_line(bulkhead, &ticket, 0);
    drop(bulkhead);
}

static void a_reset_frees_all_slots(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    take(bulkhead, 0);
    take_at_once(bulkhead);
    es_bulkhead_reset(bulkhead);
    assert_counts(bulkhead, 0, 0);
    take(bulkhead, 0);
    take_at_once(bulkhead);
    assert_full(bulkhead, NULL, 0);
    drop(bulkhead);
}

static void permits_from_before_a_reset_change_nothing(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit old = take(bulkhead, 0);
    es_bulkhead_reset(bulkhead);
    es_bulkhead_permit young = take(bulkhead, 0);
    assert_true(es_bulkhead_try_release(bulkhead, old));
    give_back(bulkhead, old);
    assert_counts(bulkhead, 1, 0);
    wait_in_line(bulkhead, &ticket, 0);
    assert_true(es_bulkhead_try_release(bulkhead, old));
    give_back(bulkhead, old);
    assert_counts(bulkhead, 1, 1);
    assert_next(es_bulkhead_release(bulkhead, young, 0), &ticket);
    drop(bulkhead);
}

static void a_reset_lets_waiters_in_with_permits_of_the_new_epoch(void **state) {
    (void)state;
    es_ticket tickets[3] = {0};
    es_bulkhead *bulkhead = bulkhead_of(2, 3);
    es_bulkhead_permit old = take(bulkhead, 0);
    take(bulkhead, 0);
    for (int i = 0; i < 3; i++)
        wait_in_line(bulkhead, &tickets[i], 0);
    es_bulkhead_reset(bulkhead);
    assert_counts(bulkhead, 0, 3);
    give_back(bulkhead, old);
    assert_granted(bulkhead, &tickets[0], 0, false);
    assert_granted(bulkhead, &tickets[1], 0, false);
    assert_nobody_next(bulkhead, 0);
    give_back(bulkhead, old);
    assert_counts(bulkhead, 2, 1);
    assert_next(es_bulkhead_release(bulkhead, tickets[0].permit, 0), &tickets[2]);
    drop(bulkhead);
}

/* Nobody can hold a permit of this epoch: what is given back is made up, or given back twice. */
static void a_permit_too_many_is_not_passed_on(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    take(bulkhead, 0);
    wait_in_line(bulkhead, &ticket, 0);
    es_bulkhead_reset(bulkhead);
    const es_bulkhead_permit made_up = {0, 1};
    assert_true(es_bulkhead_try_release(bulkhead, made_up));
    give_back(bulkhead, made_up);
    assert_counts(bulkhead, 0, 1);
    assert_granted(bulkhead, &ticket, 0, false);
    assert_int_equal(ticket.permit.serial, made_up.serial);
    drop(bulkhead);
}

static void a_million_resets_touch_neither_the_queue_nor_later_permits(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit old = take(bulkhead, 0);
    wait_in_line(bulkhead, &ticket, 0);
    for (uint32_t reset = 1; reset < 1 << 20; reset++)
        es_bulkhead_reset(bulkhead);
    assert_counts(bulkhead, 0, 1);
    assert_granted(bulkhead, &ticket, 0, false);
    assert_int_equal(ticket.permit.serial, (1 << 20) - 1);
    give_back(bulkhead, old);
    assert_counts(bulkhead, 1, 0);
    es_bulkhead_reset(bulkhead);
    assert_counts(bulkhead, 0, 0);
    assert_int_equal(take(bulkhead, 0).serial, old.serial);
    drop(bulkhead);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_larger_limit_lets_waiters_in),
        cmocka_unit_test(a_smaller_limit_takes_slots_away_as_they_are_given_back),
        cmocka_unit_test(a_smaller_limit_holds_without_the_lock_too),
        cmocka_unit_test(the_ends_of_every_range_are_allowed),
        cmocka_unit_test(a_limit_outside_its_range_changes_nothing),
        cmocka_unit_test(a_queue_outside_its_range_changes_nothing),
        cmocka_unit_test(who_waits_stays_when_the_queue_gets_shorter),
        cmocka_unit_test(a_longer_queue_has_places_at_once),
        cmocka_unit_test(a_reset_frees_all_slots),
        cmocka_unit_test(permits_from_before_a_reset_change_nothing),
        cmocka_unit_test(a_reset_lets_waiters_in_with_permits_of_the_new_epoch),
        cmocka_unit_test(a_permit_too_many_is_not_passed_on),
        cmocka_unit_test(a_million_resets_touch_neither_the_queue_nor_later_permits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
