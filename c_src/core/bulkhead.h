/* SPDX-License-Identifier: Apache-2.0 */
/* bulkhead.h - is there a free slot, and whose turn is it when there is none?
 *
 * A concurrency limit: `limit` permits, and behind them a queue of tickets served in the order in which they came.
 * A permit that is given back goes to the oldest ticket; while somebody waits nobody passes them by. With a lease a
 * permit that is held too long can be taken from its holder; what that holder gives back later changes nothing.
 *
 * Memory: es_bulkhead_new allocates, es_bulkhead_set_limit may, es_bulkhead_free gives back; nothing else allocates.
 * A ticket belongs to its waiter, who keeps it in place from the moment it is queued until it is granted or has left.
 *
 * Threads: the es_bulkhead_try_ functions and the snapshots at the end run on any thread without a lock; all others
 * need the owner's lock, one at a time. Whoever gets a ticket back must tell its waiter that it holds a permit. What a
 * holder did before it gave a slot back has happened for whoever takes that slot.
 *
 * The law: permits given out and neither given back nor reclaimed are `in_flight`, never above the limit that was in
 * force when the last of them was given out (an es_bulkhead_try_acquire that runs while the limit shrinks may go by the
 * old one); and while a ticket waits, in_flight is at least the limit, once es_bulkhead_grant has said NULL.
 *
 * Cost: every call costs the same however many hold or wait, except that each reclaimed permit costs a step, and that
 * es_bulkhead_set_limit may copy the table of leases.
 *
 * Units: nanoseconds, monotonic. Failure: es_bulkhead_new, es_bulkhead_set_limit and es_bulkhead_set_queue.
 */
#ifndef ES_BULKHEAD_H
#define ES_BULKHEAD_H

#include "es.h"

#define ES_SLOTS_MAX UINT32_C(1000000)  /* the largest limit */
#define ES_QUEUE_MAX UINT32_C(0xffffff) /* the longest queue */

typedef struct es_bulkhead es_bulkhead;

typedef struct {
    uint32_t limit;     /* permits, 1 to ES_SLOTS_MAX                                       */
    uint32_t queue_max; /* places in the queue, 0 to ES_QUEUE_MAX                           */
    int64_t lease_ns;   /* how long a permit is safe from being reclaimed, > 0, or ES_FOREVER_NS */
} es_bulkhead_config;

/* The right to one slot. A value: copy it, keep it, give it back once. Giving it back after the bulkhead was reset
 * changes nothing. With a lease each permit is told from all others: giving it back again, or after it was reclaimed,
 * changes nothing either. Without one, permits are alike and only counted: giving one back twice gives back somebody
 * else's, though never more than there are, so the holder has to see to it that it happens once. */
typedef struct {
    uint32_t slot;   /* with a lease: its row in the table, else 0           */
    uint32_t serial; /* with a lease: which one of this row, else the epoch: */
                     /* resets so far, modulo 2^20                           */
} es_bulkhead_permit;

typedef enum { ES_TICKET_IDLE = 0, ES_TICKET_QUEUED, ES_TICKET_GRANTED } es_ticket_state;

/* A place in the queue. Zero it before its first use; the fields are the bulkhead's, to be read under the lock. */
typedef struct es_ticket es_ticket;
struct es_ticket {
    es_ticket *older, *newer;
    es_ticket_state state;
    es_bulkhead_permit permit; /* set when granted */
};

typedef enum {
    ES_SLOT_TAKEN,  /* `permit` is set; give it back                                             */
    ES_SLOT_QUEUED, /* the ticket waits                                                          */
    ES_SLOT_FULL    /* no slot and no place in the queue; nothing has changed                    */
} es_slot_answer;

ES_NODISCARD es_status es_bulkhead_new(es_bulkhead **bulkhead, const es_bulkhead_config *config,
                                       const es_allocator *allocator);
/* NULL is allowed. Nobody may wait any more. */
void es_bulkhead_free(es_bulkhead *bulkhead);

/* Lock-free. A permit if one is free and nobody waits. Never with a lease: those take the lock. */
ES_NODISCARD bool es_bulkhead_try_acquire(es_bulkhead *bulkhead, es_bulkhead_permit *permit);

/* Lock-free. Gives a permit back if nobody waits for it. False: take the lock and use es_bulkhead_release. */
ES_NODISCARD bool es_bulkhead_try_release(es_bulkhead *bulkhead, es_bulkhead_permit permit);

/* Locked. A permit, or a place in the queue if `ticket` is not NULL; the ticket is idle. `reclaimed` says how many
 * permits, whose leases were over, were taken from their holders for it. While others wait that is es_bulkhead_grant's
 * to do: with a lease, call it first. */
ES_NODISCARD es_slot_answer es_bulkhead_acquire(es_bulkhead *bulkhead, es_ticket *ticket, int64_t now_ns,
                                                es_bulkhead_permit *permit, uint32_t *reclaimed);

/* Locked. Gives a permit back. The result is the ticket that got the slot, or NULL. */
ES_NODISCARD es_ticket *es_bulkhead_release(es_bulkhead *bulkhead, es_bulkhead_permit permit, int64_t now_ns);

/* Locked. Takes a ticket out of the queue. The state it had: ES_TICKET_GRANTED means that it holds a permit, which the
 * caller must use or give back. Afterwards the ticket is idle. */
es_ticket_state es_bulkhead_leave(es_bulkhead *bulkhead, es_ticket *ticket);

/* Locked. The next waiter who can have a permit although none was given back: after the limit grew, after a reset, or
 * when a lease is over (`reclaimed` says how many; after the limit shrank there may be some although nobody is served
 * yet). NULL when there is none; call until then. */
ES_NODISCARD es_ticket *es_bulkhead_grant(es_bulkhead *bulkhead, int64_t now_ns, uint32_t *reclaimed);

/* Locked. When the oldest lease ends, ES_FOREVER_NS if none will. Until then there is nothing to reclaim. */
int64_t es_bulkhead_lease_end_ns(const es_bulkhead *bulkhead);

/* Locked. A larger limit may let waiters in: call es_bulkhead_grant. A smaller one takes slots away as they are given
 * back. ES_BAD_CONFIG or ES_NO_MEMORY change nothing. */
ES_NODISCARD es_status es_bulkhead_set_limit(es_bulkhead *bulkhead, uint32_t limit);

/* Locked. Other places in the queue from now on; who waits stays. ES_BAD_CONFIG changes nothing. */
ES_NODISCARD es_status es_bulkhead_set_queue(es_bulkhead *bulkhead, uint32_t queue_max);

/* Locked. Frees all slots: permits given out until now mean nothing any more. Call es_bulkhead_grant afterwards. */
void es_bulkhead_reset(es_bulkhead *bulkhead);

/* Lock-free snapshots. */
uint32_t es_bulkhead_limit(const es_bulkhead *bulkhead);
uint32_t es_bulkhead_in_flight(const es_bulkhead *bulkhead);
uint32_t es_bulkhead_queued(const es_bulkhead *bulkhead);

#endif
