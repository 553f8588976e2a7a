/* SPDX-License-Identifier: Apache-2.0 */
/* The bulkhead against a slow one that keeps every holder and every waiter in an array, in the order in which they
 * came. */
#include "bulkhead_support.h"

#define LIMIT_MAX 6
#define TICKETS 8
#define PERMITS 16

typedef struct {
    es_bulkhead_permit permit;
    int64_t taken_ns;
} slow_holder;

typedef struct {
    es_bulkhead *fast;
    uint64_t random;
    int64_t now_ns, lease_ns;
    uint32_t limit, queue_max, holders, waiters, epoch;
    slow_holder held[LIMIT_MAX + 1];
    es_ticket *waiting[TICKETS + 1];
    es_ticket tickets[TICKETS];
    es_bulkhead_permit seen[PERMITS]; /* permits given out, in use or not */
    bool settled;                     /* nobody waits who could be served */
} slow_bulkhead;

static bool has_leases(const slow_bulkhead *slow) {
    return slow->lease_ns != ES_FOREVER_NS;
}

static int64_t below(slow_bulkhead *slow, int64_t end) {
    return random_between(&slow->random, 0, end - 1);
}

static bool is_same(es_bulkhead_permit a, es_bulkhead_permit b) {
    return a.slot == b.slot && a.serial == b.serial;
}

/* The holder of this permit, or `holders` if there is none. Without leases any holder of its epoch will do. */
static uint32_t find_holder(const slow_bulkhead *slow, es_bulkhead_permit permit) {
    uint32_t i = 0;
    if (!has_leases(slow))
        return permit.serial == slow->epoch ? 0 : slow->holders;
    while (i < slow->holders && !is_same(slow->held[i].permit, permit))
        i++;
    return i;
}

static void slow_hold(slow_bulkhead *slow, es_bulkhead_permit permit) {
    int64_t newest_ns = slow->holders > 0 ? slow->held[slow->holders - 1].taken_ns : slow->now_ns;
    if (has_leases(slow))
        assert_int_equal(find_holder(slow, permit), slow->holders);
    else
        assert_int_equal(permit.serial, slow->epoch);
    slow->held[slow->holders++] = (slow_holder){permit, newest_ns > slow->now_ns ? newest_ns : slow->now_ns};
    slow->seen[below(slow, PERMITS)] = permit;
    assert_in_range(slow->holders, 1, slow->limit);
}

static void slow_drop_holder(slow_bulkhead *slow, uint32_t index) {
    slow->holders--;
    memmove(slow->held + index, slow->held + index + 1, (slow->holders - index) * sizeof *slow->held);
}

static void slow_drop_waiter(slow_bulkhead *slow, uint32_t index) {
    slow->waiters--;
    memmove(slow->waiting + index, slow->waiting + index + 1, (slow->waiters - index) * sizeof(es_ticket *));
}

static uint32_t slow_reclaim(slow_bulkhead *slow) {
    uint32_t reclaimed = 0;
    while (has_leases(slow) && slow->holders >= slow->limit &&
           slow->now_ns - slow->held[0].taken_ns >= slow->lease_ns) {
        slow_drop_holder(slow, 0);
        reclaimed++;
    }
    return reclaimed;
}

/* The ticket that was served is the one that waited longest, and holds a permit. */
static void slow_serve(slow_bulkhead *slow, const es_ticket *served) {
    assert_true(slow->waiters > 0);
    assert_next(served, slow->waiting[0]);
    slow_drop_waiter(slow, 0);
    slow_hold(slow, served->permit);
}

static bool slow_is_free(const slow_bulkhead *slow) {
    return slow->waiters == 0 && slow->holders < slow->limit;
}

static void try_acquire(slow_bulkhead *slow) {
    es_bulkhead_permit permit;
    bool free = slow_is_free(slow) && !has_leases(slow);
    assert_int_equal(es_bulkhead_try_acquire(slow->fast, &permit), free);
    if (free)
        slow_hold(slow, permit);
}

/* Takes with a ticket, if that one is idle, or without. */
static void acquire(slow_bulkhead *slow) {
    es_ticket *ticket = &slow->tickets[below(slow, TICKETS)];
    es_bulkhead_permit permit;
    uint32_t reclaimed, reclaims = slow->waiters == 0 ? slow_reclaim(slow) : 0;
    es_slot_answer expected = ES_SLOT_FULL;
    if (ticket->state != ES_TICKET_IDLE || below(slow, 8) == 0)
        ticket = NULL;
    if (slow_is_free(slow))
        expected = ES_SLOT_TAKEN;
    else if (ticket != NULL && slow->waiters < slow->queue_max)
        expected = ES_SLOT_QUEUED;
    assert_int_equal(es_bulkhead_acquire(slow->fast, ticket, slow->now_ns, &permit, &reclaimed), expected);
    assert_int_equal(reclaimed, reclaims);
    if (expected == ES_SLOT_TAKEN)
        slow_hold(slow, permit);
    if (expected == ES_SLOT_QUEUED)
        slow->waiting[slow->waiters++] = ticket;
}

static es_bulkhead_permit any_permit(slow_bulkhead *slow) {
    if (slow->holders > 0 && below(slow, 4) > 0)
        return slow->held[below(slow, slow->holders)].permit;
    return slow->seen[below(slow, PERMITS)];
}

static void try_release(slow_bulkhead *slow) {
    es_bulkhead_permit permit = any_permit(slow);
    uint32_t holder = find_holder(slow, permit);
    bool known = holder < slow->holders, done = !has_leases(slow) && (!known || slow->waiters == 0);
    assert_int_equal(es_bulkhead_try_release(slow->fast, permit), done);
    if (done && known)
        slow_drop_holder(slow, holder);
}

static void release(slow_bulkhead *slow) {
    es_bulkhead_permit permit = any_permit(slow);
    uint32_t holder = find_holder(slow, permit);
    bool known = holder < slow->holders, passes = known && slow->waiters > 0 && slow->holders <= slow->limit;
    es_ticket *served = es_bulkhead_release(slow->fast, permit, slow->now_ns);
    if (known)
        slow_drop_holder(slow, holder);
    if (passes)
        slow_serve(slow, served);
    else
        assert_null(served);
}

static void leave(slow_bulkhead *slow) {
    es_ticket *ticket = &slow->tickets[below(slow, TICKETS)];
    uint32_t place = 0;
    while (place < slow->waiters && slow->waiting[place] != ticket)
        place++;
    es_ticket_state before = ticket->state;
    assert_int_equal(before == ES_TICKET_QUEUED, place < slow->waiters);
    assert_int_equal(es_bulkhead_leave(slow->fast, ticket), before);
    assert_int_equal(ticket->state, ES_TICKET_IDLE);
    if (place < slow->waiters)
        slow_drop_waiter(slow, place);
}

static void grant(slow_bulkhead *slow) {
    uint32_t reclaimed, reclaims = slow->waiters > 0 ? slow_reclaim(slow) : 0;
    bool serves = slow->waiters > 0 && slow->holders < slow->limit;
    es_ticket *served = es_bulkhead_grant(slow->fast, slow->now_ns, &reclaimed);
    assert_int_equal(reclaimed, reclaims);
    if (serves)
        slow_serve(slow, served);
    else
        assert_null(served);
    slow->settled = slow->settled || !serves;
}

/* Others may be served from now on, and are not before grant was called. */
static void change(slow_bulkhead *slow) {
    uint32_t limit = (uint32_t)random_between(&slow->random, 1, LIMIT_MAX);
    slow->settled = false;
    switch (below(slow, 4)) {
    case 0:
        slow->queue_max = (uint32_t)below(slow, TICKETS);
        assert_int_equal(es_bulkhead_set_queue(slow->fast, slow->queue_max), ES_OK);
        break;
    case 1:
        slow->holders = 0;
        slow->epoch++;
        es_bulkhead_reset(slow->fast);
        break;
    default:
        memory()->allowed = (size_t)below(slow, 2);
        if (es_bulkhead_set_limit(slow->fast, limit) == ES_OK)
            slow->limit = limit;
        else
            assert_int_equal(memory()->allowed, 0);
    }
}

static void assert_same(const slow_bulkhead *slow) {
    assert_counts(slow->fast, slow->holders, slow->waiters);
    assert_int_equal(es_bulkhead_limit(slow->fast), slow->limit);
    bool ends = has_leases(slow) && slow->holders > 0;
    int64_t end_ns = ends ? slow->held[0].taken_ns + slow->lease_ns : ES_FOREVER_NS;
    assert_int_equal(es_bulkhead_lease_end_ns(slow->fast), end_ns);
    if (slow->settled && slow->waiters > 0)
        assert_true(slow->holders >= slow->limit);
}

static void one_random_step(slow_bulkhead *slow) {
    static void (*const steps[])(slow_bulkhead *) = {
        try_acquire, acquire, acquire, acquire, try_release, release, release, leave, grant,
    };
    slow->now_ns += random_between(&slow->random, -2, 6);
    if (below(slow, 40) == 0)
        change(slow);
    else
        steps[below(slow, sizeof steps / sizeof *steps)](slow);
    assert_same(slow);
}

static void compare_with_the_slow_bulkhead(uint64_t random, int64_t lease_ns) {
    static slow_bulkhead slow;
    memset(&slow, 0, sizeof slow);
    slow.random = random;
    slow.limit = (uint32_t)random_between(&slow.random, 1, LIMIT_MAX);
    slow.queue_max = (uint32_t)random_between(&slow.random, 0, TICKETS);
    slow.lease_ns = lease_ns;
    slow.now_ns = random_between(&slow.random, -100, 100);
    slow.settled = true;
    slow.fast = new_bulkhead(slow.limit, slow.queue_max, lease_ns);
    for (int i = 0; i < PERMITS; i++)
        slow.seen[i] = (es_bulkhead_permit){(uint32_t)i, 0};
    for (int step = 0; step < 2000; step++)
        one_random_step(&slow);
    drop(slow.fast);
}

static void without_leases_a_bulkhead_behaves_like_a_slow_one(void **state) {
    (void)state;
    for (uint64_t run = 0; run < 250; run++)
        compare_with_the_slow_bulkhead(run, ES_FOREVER_NS);
}

static void with_leases_a_bulkhead_behaves_like_a_slow_one(void **state) {
    (void)state;
    for (uint64_t run = 0; run < 250; run++)
        compare_with_the_slow_bulkhead(run, (int64_t)(1 + run % 60));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_leases_a_bulkhead_behaves_like_a_slow_one),
        cmocka_unit_test(with_leases_a_bulkhead_behaves_like_a_slow_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
