/* SPDX-License-Identifier: Apache-2.0 */
/* The bulkhead when its word changes between the reading and the exchange: each test lets something happen there that
 * another thread could do in that moment. */
#include "bulkhead_support.h"
#include "cas_hook.h"

/* What the hook does when it is called, and to whom. */
typedef struct {
    void (*interfere)(void); /* once, on the first call                 */
    int failures;            /* exchanges that fail for no reason       */
    int calls;
    es_bulkhead *bulkhead;
    es_bulkhead_permit permit;
    es_ticket *ticket;
} interference;

static interference *stage(void) {
    static interference shared;
    return &shared;
}

/* What the hook does may itself exchange words, undisturbed. */
static bool on_exchange(void) {
    void (*interfere)(void) = stage()->interfere;
    stage()->calls++;
    if (interfere != NULL) {
        stage()->interfere = NULL;
        cas_hook = NULL;
        interfere();
        cas_hook = on_exchange;
    }
    if (stage()->failures == 0)
        return false;
    stage()->failures--;
    return true;
}

static es_bulkhead *bulkhead_of(uint32_t limit, uint32_t queue_max) {
    *stage() = (interference){.bulkhead = new_bulkhead(limit, queue_max, ES_FOREVER_NS)};
    return stage()->bulkhead;
}

static void meanwhile(void (*interfere)(void)) {
    stage()->interfere = interfere;
    stage()->calls = 0;
    cas_hook = on_exchange;
}

static void fail_times(int failures) {
    meanwhile(NULL);
    stage()->failures = failures;
}

static int calls_until_now(void) {
    cas_hook = NULL;
    return stage()->calls;
}

static void another_takes(void) {
    take_at_once(stage()->bulkhead);
}

static void another_gives_back(void) {
    assert_true(es_bulkhead_try_release(stage()->bulkhead, stage()->permit));
}

static void another_waits(void) {
    wait_in_line(stage()->bulkhead, stage()->ticket, 0);
}

static void another_resets(void) {
    es_bulkhead_reset(stage()->bulkhead);
}

static void another_resets_and_takes(void) {
    es_bulkhead_reset(stage()->bulkhead);
    take_at_once(stage()->bulkhead);
}

static void an_exchange_that_fails_for_no_reason_is_tried_again(void **state) {
    (void)state;
    for (int failures = 0; failures < 5; failures++) {
        es_ticket ticket = {0};
        es_bulkhead *bulkhead = bulkhead_of(1, 1);
        fail_times(failures);
        es_bulkhead_permit permit = take_at_once(bulkhead);
        assert_int_equal(calls_until_now(), failures + 1);
        fail_times(failures);
        assert_true(es_bulkhead_try_release(bulkhead, permit));
        assert_int_equal(calls_until_now(), failures + 1);
        fail_times(failures);
        take(bulkhead, 0);
        assert_int_equal(calls_until_now(), failures + 1);
        fail_times(failures);
        wait_in_line(bulkhead, &ticket, 0);
        assert_int_equal(calls_until_now(), failures + 1);
        assert_counts(bulkhead, 1, 1);
        drop(bulkhead);
    }
}

static void two_can_not_take_the_last_slot(void **state) {
    (void)state;
    es_bulkhead_permit permit;
    es_bulkhead *bulkhead = bulkhead_of(1, 0);
    meanwhile(another_takes);
    assert_false(es_bulkhead_try_acquire(bulkhead, &permit));
    assert_int_equal(calls_until_now(), 1);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void two_can_take_two_slots(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    meanwhile(another_takes);
    take_at_once(bulkhead);
    assert_int_equal(calls_until_now(), 2);
    assert_counts(bulkhead, 2, 0);
    drop(bulkhead);
}

static void a_permit_has_the_epoch_in_which_it_was_taken(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    meanwhile(another_resets);
    assert_int_equal(take_at_once(bulkhead).serial, 1);
    meanwhile(another_resets);
    assert_int_equal(take(bulkhead, 0).serial, 2);
    assert_int_equal(calls_until_now(), 2);
    drop(bulkhead);
}

static void a_newcomer_under_the_lock_waits_if_another_takes_the_last_slot(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    meanwhile(another_takes);
    wait_in_line(bulkhead, &ticket, 0);
    assert_int_equal(calls_until_now(), 2);
    assert_counts(bulkhead, 1, 1);
    drop(bulkhead);
}

static void a_newcomer_under_the_lock_is_turned_away_if_another_takes_the_last_slot(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(1, 0);
    meanwhile(another_takes);
    assert_full(bulkhead, NULL, 0);
    assert_int_equal(calls_until_now(), 1);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

/* The lost wake-up: had the newcomer been queued, nobody would have been left to wake it. */
static void who_is_about_to_wait_takes_the_slot_given_back_meanwhile(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead_permit permit;
    uint32_t reclaimed;
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    stage()->permit = take_at_once(bulkhead);
    meanwhile(another_gives_back);
    assert_int_equal(es_bulkhead_acquire(bulkhead, &ticket, 0, &permit, &reclaimed), ES_SLOT_TAKEN);
    assert_int_equal(calls_until_now(), 2);
    assert_int_equal(ticket.state, ES_TICKET_IDLE);
    assert_counts(bulkhead, 1, 0);
    assert_true(es_bulkhead_try_release(bulkhead, permit));
    drop(bulkhead);
}

static void a_slot_given_back_is_not_lost_to_who_began_to_wait_meanwhile(void **state) {
    (void)state;
    es_ticket ticket = {0};
    es_bulkhead *bulkhead = bulkhead_of(1, 1);
    es_bulkhead_permit permit = take_at_once(bulkhead);
    stage()->ticket = &ticket;
    meanwhile(another_waits);
    assert_false(es_bulkhead_try_release(bulkhead, permit));
    assert_int_equal(calls_until_now(), 1);
    assert_counts(bulkhead, 1, 1);
    assert_next(es_bulkhead_release(bulkhead, permit, 0), &ticket);
    drop(bulkhead);
}

static void a_permit_made_void_meanwhile_gives_nothing_back(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    es_bulkhead_permit permit = take_at_once(bulkhead);
    meanwhile(another_resets_and_takes);
    assert_true(es_bulkhead_try_release(bulkhead, permit));
    assert_int_equal(calls_until_now(), 1);
    assert_counts(bulkhead, 1, 0);
    drop(bulkhead);
}

static void two_can_not_give_the_last_slot_back(void **state) {
    (void)state;
    es_bulkhead *bulkhead = bulkhead_of(2, 0);
    stage()->permit = take_at_once(bulkhead);
    meanwhile(another_gives_back);
    assert_true(es_bulkhead_try_release(bulkhead, stage()->permit));
    assert_int_equal(calls_until_now(), 1);
    assert_counts(bulkhead, 0, 0);
    drop(bulkhead);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exchange_that_fails_for_no_reason_is_tried_again),
        cmocka_unit_test(two_can_not_take_the_last_slot),
        cmocka_unit_test(two_can_take_two_slots),
        cmocka_unit_test(a_permit_has_the_epoch_in_which_it_was_taken),
        cmocka_unit_test(a_newcomer_under_the_lock_waits_if_another_takes_the_last_slot),
        cmocka_unit_test(a_newcomer_under_the_lock_is_turned_away_if_another_takes_the_last_slot),
        cmocka_unit_test(who_is_about_to_wait_takes_the_slot_given_back_meanwhile),
        cmocka_unit_test(a_slot_given_back_is_not_lost_to_who_began_to_wait_meanwhile),
        cmocka_unit_test(a_permit_made_void_meanwhile_gives_nothing_back),
        cmocka_unit_test(two_can_not_give_the_last_slot_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
