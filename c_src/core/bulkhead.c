/* SPDX-License-Identifier: Apache-2.0 */
#include "bulkhead.h"

#include <assert.h>
#include <stdatomic.h>

#include "lease.h"

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long long) == sizeof(uint64_t),
              "a slot is taken without a lock: 64-bit atomics have to be lock-free");

/* The word, the one truth about counts: epoch | waiting | in_flight. The epoch is the number of resets. Who sees
 * waiting > 0 in it changes it only under the lock, so there a count read once stays true while somebody waits. */
#define WAITING_SHIFT 20
#define EPOCH_SHIFT 44
#define IN_FLIGHT_MASK UINT64_C(0xfffff)
#define WAITING_MASK UINT64_C(0xffffff)
#define ONE_IN_FLIGHT UINT64_C(1)
#define ONE_WAITING (UINT64_C(1) << WAITING_SHIFT)
#define ONE_EPOCH (UINT64_C(1) << EPOCH_SHIFT)

static_assert(ES_SLOTS_MAX <= IN_FLIGHT_MASK && ES_QUEUE_MAX <= WAITING_MASK, "the counts have to fit into the word");

struct es_bulkhead {
    _Atomic uint64_t word;
    _Atomic uint32_t limit;
    bool leased; /* set once: the lock-free functions read it, and not `leases` */
    uint32_t queue_max;
    es_ticket *oldest, *newest; /* the queue           */
    es_leases *leases;          /* NULL unless leased  */
    es_allocator allocator;
};

static uint32_t in_flight_in(uint64_t word) {
    return (uint32_t)(word & IN_FLIGHT_MASK);
}

static uint32_t waiting_in(uint64_t word) {
    return (uint32_t)(word >> WAITING_SHIFT & WAITING_MASK);
}

static uint32_t epoch_in(uint64_t word) {
    return (uint32_t)(word >> EPOCH_SHIFT);
}

/* Relaxed: either the word is then exchanged for one that follows from it, which fails if it was not true any more, or
 * it is read under the lock while somebody waits, or it is a snapshot that may be old when it is looked at. */
static uint64_t read_word(const es_bulkhead *bulkhead) {
    return atomic_load_explicit(&bulkhead->word, memory_order_relaxed);
}

/* Acquire and release: what the last holder of a slot did before giving it back has happened for the next. Relaxed on
 * failure: the word that was found instead is only tried again. */
static bool replace_word(es_bulkhead *bulkhead, uint64_t *word, uint64_t next) {
    return atomic_compare_exchange_weak_explicit(&bulkhead->word, word, next, memory_order_acq_rel,
                                                 memory_order_relaxed);
}

/* Locked. For changes that hold whatever lock-free callers do meanwhile. Acquire and release as above. */
static void add_to_word(es_bulkhead *bulkhead, uint64_t difference) {
    atomic_fetch_add_explicit(&bulkhead->word, difference, memory_order_acq_rel);
}

/* Relaxed: it is written under the lock. Who reads it without one may find the limit from before a change, as if that
 * reader had come before it. */
uint32_t es_bulkhead_limit(const es_bulkhead *bulkhead) {
    return atomic_load_explicit(&bulkhead->limit, memory_order_relaxed);
}

uint32_t es_bulkhead_in_flight(const es_bulkhead *bulkhead) {
    return in_flight_in(read_word(bulkhead));
}

uint32_t es_bulkhead_queued(const es_bulkhead *bulkhead) {
    return waiting_in(read_word(bulkhead));
}

static bool is_limit(uint32_t limit) {
    return limit >= 1 && limit <= ES_SLOTS_MAX;
}

es_status es_bulkhead_new(es_bulkhead **bulkhead, const es_bulkhead_config *config, const es_allocator *allocator) {
    *bulkhead = NULL;
    if (!is_limit(config->limit) || config->queue_max > ES_QUEUE_MAX || config->lease_ns <= 0)
        return ES_BAD_CONFIG;
    es_bulkhead *made = allocator->alloc(sizeof *made);
    if (made == NULL)
        return ES_NO_MEMORY;
    atomic_init(&made->word, 0);
    atomic_init(&made->limit, config->limit);
    made->queue_max = config->queue_max;
    made->oldest = NULL;
    made->newest = NULL;
    made->leased = config->lease_ns != ES_FOREVER_NS;
    made->leases = NULL;
    made->allocator = *allocator;
    if (made->leased) {
        made->leases = allocator->alloc(es_leases_bytes(config->limit));
        if (made->leases == NULL) {
            es_bulkhead_free(made);
            return ES_NO_MEMORY;
        }
        es_leases_init(made->leases, config->limit, config->lease_ns);
    }
    *bulkhead = made;
    return ES_OK;
}

void es_bulkhead_free(es_bulkhead *bulkhead) {
    if (bulkhead == NULL)
        return;
    if (bulkhead->leases != NULL)
        bulkhead->allocator.free(bulkhead->leases);
    bulkhead->allocator.free(bulkhead);
}

static bool has_room(const es_bulkhead *bulkhead, uint64_t word) {
    return in_flight_in(word) < es_bulkhead_limit(bulkhead);
}

/* While somebody waits a slot is theirs. */
static bool is_free(const es_bulkhead *bulkhead, uint64_t word) {
    return waiting_in(word) == 0 && has_room(bulkhead, word);
}

/* The permit for a slot that was just counted in this epoch. Locked if there are leases. */
static es_bulkhead_permit permit_for(es_bulkhead *bulkhead, uint32_t epoch, int64_t now_ns) {
    if (!bulkhead->leased)
        return (es_bulkhead_permit){0, epoch};
    es_lease lease = es_leases_take(bulkhead->leases, now_ns);
    return (es_bulkhead_permit){lease.row, lease.serial};
}

bool es_bulkhead_try_acquire(es_bulkhead *bulkhead, es_bulkhead_permit *permit) {
    uint64_t word = read_word(bulkhead);
    while (!bulkhead->leased && is_free(bulkhead, word)) {
        if (replace_word(bulkhead, &word, word + ONE_IN_FLIGHT)) {
            *permit = permit_for(bulkhead, epoch_in(word), 0);
            return true;
        }
    }
    return false;
}

bool es_bulkhead_try_release(es_bulkhead *bulkhead, es_bulkhead_permit permit) {
    if (bulkhead->leased)
        return false;
    uint64_t word = read_word(bulkhead);
    while (epoch_in(word) == permit.serial && in_flight_in(word) > 0) {
        if (waiting_in(word) > 0)
            return false;
        if (replace_word(bulkhead, &word, word - ONE_IN_FLIGHT))
            return true;
    }
    return true;
}

static void join_queue(es_bulkhead *bulkhead, es_ticket *ticket) {
    ticket->state = ES_TICKET_QUEUED;
    ticket->older = bulkhead->newest;
    ticket->newer = NULL;
    *(bulkhead->newest == NULL ? &bulkhead->oldest : &bulkhead->newest->newer) = ticket;
    bulkhead->newest = ticket;
}

static void leave_queue(es_bulkhead *bulkhead, es_ticket *ticket) {
    *(ticket->older == NULL ? &bulkhead->oldest : &ticket->older->newer) = ticket->newer;
    *(ticket->newer == NULL ? &bulkhead->newest : &ticket->newer->older) = ticket->older;
}

/* Gives the oldest ticket a slot that was just counted. */
static es_ticket *serve_oldest(es_bulkhead *bulkhead, int64_t now_ns) {
    es_ticket *ticket = bulkhead->oldest;
    leave_queue(bulkhead, ticket);
    ticket->state = ES_TICKET_GRANTED;
    ticket->permit = permit_for(bulkhead, epoch_in(read_word(bulkhead)), now_ns);
    return ticket;
}

/* Takes permits whose lease is over from their holders while there is no room: one, or more if the limit shrank. */
static uint32_t reclaim(es_bulkhead *bulkhead, int64_t now_ns) {
    uint32_t reclaimed = 0;
    while (bulkhead->leased && !has_room(bulkhead, read_word(bulkhead)) &&
           es_leases_reclaim(bulkhead->leases, now_ns)) {
        add_to_word(bulkhead, -ONE_IN_FLIGHT);
        reclaimed++;
    }
    return reclaimed;
}

/* A releaser that sees the ticket counted takes the lock, and so finds it in the queue; one that came before changed
 * the word, and so made a slot free for this caller. No wake-up is lost between the two. */
es_slot_answer es_bulkhead_acquire(es_bulkhead *bulkhead, es_ticket *ticket, int64_t now_ns, es_bulkhead_permit *permit,
                                   uint32_t *reclaimed) {
    uint64_t word = read_word(bulkhead);
    *reclaimed = waiting_in(word) == 0 ? reclaim(bulkhead, now_ns) : 0;
    if (*reclaimed > 0)
        word = read_word(bulkhead);
    for (;;) {
        bool taken = is_free(bulkhead, word);
        if (!taken && (ticket == NULL || waiting_in(word) >= bulkhead->queue_max))
            return ES_SLOT_FULL;
        if (!replace_word(bulkhead, &word, word + (taken ? ONE_IN_FLIGHT : ONE_WAITING)))
            continue;
        if (taken)
            *permit = permit_for(bulkhead, epoch_in(word), now_ns);
        else
            join_queue(bulkhead, ticket);
        return taken ? ES_SLOT_TAKEN : ES_SLOT_QUEUED;
    }
}

es_ticket *es_bulkhead_release(es_bulkhead *bulkhead, es_bulkhead_permit permit, int64_t now_ns) {
    if (!bulkhead->leased) {
        if (es_bulkhead_try_release(bulkhead, permit))
            return NULL;
    } else if (!es_leases_give_back(bulkhead->leases, (es_lease){permit.slot, permit.serial})) {
        return NULL;
    }
    uint64_t word = read_word(bulkhead);
    if (waiting_in(word) == 0 || in_flight_in(word) > es_bulkhead_limit(bulkhead)) {
        add_to_word(bulkhead, -ONE_IN_FLIGHT);
        return NULL;
    }
    add_to_word(bulkhead, -ONE_WAITING);
    return serve_oldest(bulkhead, now_ns);
}

es_ticket_state es_bulkhead_leave(es_bulkhead *bulkhead, es_ticket *ticket) {
    es_ticket_state state = ticket->state;
    if (state == ES_TICKET_QUEUED) {
        leave_queue(bulkhead, ticket);
        add_to_word(bulkhead, -ONE_WAITING);
    }
    ticket->state = ES_TICKET_IDLE;
    return state;
}

es_ticket *es_bulkhead_grant(es_bulkhead *bulkhead, int64_t now_ns, uint32_t *reclaimed) {
    *reclaimed = bulkhead->oldest != NULL ? reclaim(bulkhead, now_ns) : 0;
    if (bulkhead->oldest == NULL || !has_room(bulkhead, read_word(bulkhead)))
        return NULL;
    add_to_word(bulkhead, ONE_IN_FLIGHT - ONE_WAITING);
    return serve_oldest(bulkhead, now_ns);
}

int64_t es_bulkhead_lease_end_ns(const es_bulkhead *bulkhead) {
    return bulkhead->leased ? es_leases_end_ns(bulkhead->leases) : ES_FOREVER_NS;
}

/* The table of leases never gets smaller: after the limit shrank, more may be held than it allows. */
es_status es_bulkhead_set_limit(es_bulkhead *bulkhead, uint32_t limit) {
    if (!is_limit(limit))
        return ES_BAD_CONFIG;
    if (bulkhead->leased && limit > es_leases_capacity(bulkhead->leases)) {
        es_leases *larger = bulkhead->allocator.alloc(es_leases_bytes(limit));
        if (larger == NULL)
            return ES_NO_MEMORY;
        es_leases_init_from(larger, limit, bulkhead->leases);
        bulkhead->allocator.free(bulkhead->leases);
        bulkhead->leases = larger;
    }
    atomic_store_explicit(&bulkhead->limit, limit, memory_order_relaxed);
    return ES_OK;
}

es_status es_bulkhead_set_queue(es_bulkhead *bulkhead, uint32_t queue_max) {
    if (queue_max > ES_QUEUE_MAX)
        return ES_BAD_CONFIG;
    bulkhead->queue_max = queue_max;
    return ES_OK;
}

/* No loop: the epoch and the waiters change under the lock only, and what a lock-free caller does to in_flight
 * meanwhile belongs to the epoch that ends here. An epoch that overflows drops out of the word's upper end. Acquire and
 * release as above. */
void es_bulkhead_reset(es_bulkhead *bulkhead) {
    uint64_t word = read_word(bulkhead);
    atomic_exchange_explicit(&bulkhead->word, (word & ~IN_FLIGHT_MASK) + ONE_EPOCH, memory_order_acq_rel);
    if (bulkhead->leased)
        es_leases_clear(bulkhead->leases);
}
