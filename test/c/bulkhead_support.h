/* SPDX-License-Identifier: Apache-2.0 */
/* bulkhead_support.h - what the tests of the bulkhead share: one step each, whose ordinary outcome is asserted. */
#ifndef ES_TEST_BULKHEAD_SUPPORT_H
#define ES_TEST_BULKHEAD_SUPPORT_H

#include "bulkhead.h"
#include "support.h"

static inline es_bulkhead *new_bulkhead(uint32_t limit, uint32_t queue_max, int64_t lease_ns) {
    const es_bulkhead_config config = {.limit = limit, .queue_max = queue_max, .lease_ns = lease_ns};
    es_bulkhead *bulkhead = NULL;
    es_allocator allocator = allocator_that_allows(100);
    assert_int_equal(es_bulkhead_new(&bulkhead, &config, &allocator), ES_OK);
    assert_non_null(bulkhead);
    return bulkhead;
}

static inline void drop(es_bulkhead *bulkhead) {
    es_bulkhead_free(bulkhead);
    assert_int_equal(memory()->live, 0);
}

static inline void assert_counts(const es_bulkhead *bulkhead, uint32_t in_flight, uint32_t queued) {
    assert_int_equal(es_bulkhead_in_flight(bulkhead), in_flight);
    assert_int_equal(es_bulkhead_queued(bulkhead), queued);
}

static inline es_bulkhead_permit take(es_bulkhead *bulkhead, int64_t now_ns) {
    es_bulkhead_permit permit = {77, 77};
    uint32_t reclaimed = 1;
    assert_int_equal(es_bulkhead_acquire(bulkhead, NULL, now_ns, &permit, &reclaimed), ES_SLOT_TAKEN);
    assert_int_equal(reclaimed, 0);
    return permit;
}

static inline es_bulkhead_permit take_at_once(es_bulkhead *bulkhead) {
    es_bulkhead_permit permit = {77, 77};
    assert_true(es_bulkhead_try_acquire(bulkhead, &permit));
    return permit;
}

static inline void wait_in_line(es_bulkhead *bulkhead, es_ticket *ticket, int64_t now_ns) {
    es_bulkhead_permit permit;
    uint32_t reclaimed = 1;
    assert_int_equal(es_bulkhead_acquire(bulkhead, ticket, now_ns, &permit, &reclaimed), ES_SLOT_QUEUED);
    assert_int_equal(reclaimed, 0);
    assert_int_equal(ticket->state, ES_TICKET_QUEUED);
}

static inline void assert_full(es_bulkhead *bulkhead, es_ticket *ticket, int64_t now_ns) {
    es_bulkhead_permit permit;
    uint32_t reclaimed = 1;
    assert_int_equal(es_bulkhead_acquire(bulkhead, ticket, now_ns, &permit, &reclaimed), ES_SLOT_FULL);
    assert_int_equal(reclaimed, 0);
}

static inline void assert_next(const es_ticket *served, const es_ticket *expected) {
    assert_ptr_equal(served, expected);
    assert_int_equal(served->state, ES_TICKET_GRANTED);
}

/* Gives a permit back that nobody waits for. */
static inline void give_back(es_bulkhead *bulkhead, es_bulkhead_permit permit) {
    assert_null(es_bulkhead_release(bulkhead, permit, 0));
}

static inline void assert_nobody_next(es_bulkhead *bulkhead, int64_t now_ns) {
    uint32_t reclaimed = 1;
    assert_null(es_bulkhead_grant(bulkhead, now_ns, &reclaimed));
    assert_int_equal(reclaimed, 0);
}

static inline void assert_granted(es_bulkhead *bulkhead, const es_ticket *expected, int64_t now_ns,
                                  bool by_reclaiming) {
    uint32_t reclaimed = 7;
    assert_next(es_bulkhead_grant(bulkhead, now_ns, &reclaimed), expected);
    assert_int_equal(reclaimed, by_reclaiming ? 1 : 0);
}

#endif
