/* SPDX-License-Identifier: Apache-2.0 */
/* bulkhead_stress.c - many threads take slots and give them back, without a lock where they can, while others wait for
 * one, lose patience, or change the limit.
 *
 * What must hold, exactly: never more are inside than the limit allows; whoever is served is told, and nobody waits
 * while a slot is free; in the end nobody holds and nobody waits.
 *
 * Meant for -fsanitize=thread. Controls, each of which has to fail: -DES_STRESS_WITHOUT_LOCK, and
 * -DES_STRESS_PASSES_NOTHING_ON, with which a slot that somebody waits for is dropped.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "bulkhead.h"
#include "support.h"

#define THREADS 8
#define ROUNDS 70000
#define QUEUE_MAX 5
#define LEASE_NS 200
#define NEVER_S 10  /* who was not told in this time never will be */
#define GUARD_S 120 /* ends a run that hangs for any other reason  */

typedef struct {
    long entered, refused, left, changed; /* events */
    long over_limit, in_vain, never_told, untold;
} tally;

typedef struct {
    es_bulkhead *bulkhead;
    uint32_t limit_max;
    bool changes_limit, resets, leased;
    _Atomic uint32_t inside;
    _Atomic int64_t now_ns;
    _Atomic bool stuck;   /* somebody was never told: nobody waits any more */
    pthread_mutex_t lock; /* guards the bulkhead's locked functions, and `told` */
} shared_stage;

typedef struct {
    es_ticket ticket; /* first, so that it leads to its actor */
    pthread_cond_t called;
    bool told;
    shared_stage *stage;
    uint64_t random;
    tally seen;
} one_actor;

/* Whoever has the lock finds no slot free while somebody waits. */
static void lock(one_actor *actor) {
    es_bulkhead *bulkhead = actor->stage->bulkhead;
#ifndef ES_STRESS_WITHOUT_LOCK
    pthread_mutex_lock(&actor->stage->lock);
#endif
    actor->seen.in_vain +=
        es_bulkhead_queued(bulkhead) > 0 && es_bulkhead_in_flight(bulkhead) < es_bulkhead_limit(bulkhead);
}

static void unlock(one_actor *actor) {
#ifndef ES_STRESS_WITHOUT_LOCK
    pthread_mutex_unlock(&actor->stage->lock);
#else
    (void)actor;
#endif
}

static bool one_in(one_actor *actor, int64_t n) {
    return random_between(&actor->random, 1, n) == 1;
}

static int64_t later(one_actor *actor) {
    return atomic_fetch_add(&actor->stage->now_ns, random_between(&actor->random, 0, 9));
}

static void tell(es_ticket *ticket) {
    one_actor *actor = (one_actor *)ticket;
    if (actor != NULL) {
        actor->told = true;
        pthread_cond_signal(&actor->called);
    }
}

static void grant_all(one_actor *actor) {
    es_bulkhead *bulkhead = actor->stage->bulkhead;
    es_ticket *served;
    uint32_t reclaimed;
    while ((served = es_bulkhead_grant(bulkhead, later(actor), &reclaimed)) != NULL)
        tell(served);
}

/* Until told. With leases nobody has to tell: time frees a slot too. */
static void wait_to_be_told(one_actor *actor) {
    shared_stage *stage = actor->stage;
    struct timespec never;
    timespec_get(&never, TIME_UTC);
    never.tv_sec += NEVER_S;
    while (!actor->told && !atomic_load(&stage->stuck)) {
        if (stage->leased) {
            unlock(actor);
            sched_yield();
            lock(actor);
            grant_all(actor);
        } else if (pthread_cond_timedwait(&actor->called, &stage->lock, &never) == ETIMEDOUT) {
            actor->seen.never_told += !actor->told;
            atomic_store(&stage->stuck, !actor->told);
        }
    }
}

/* Waits patiently or not. Has it got a permit in the end? */
static bool wait_for_slot(one_actor *actor, es_bulkhead_permit *permit) {
    if (one_in(actor, 2)) {
        wait_to_be_told(actor);
    } else {
        unlock(actor);
        sched_yield();
        lock(actor);
    }
    bool served = es_bulkhead_leave(actor->stage->bulkhead, &actor->ticket) == ES_TICKET_GRANTED;
    *permit = actor->ticket.permit;
    actor->seen.left += !served;
    actor->seen.untold += served != actor->told;
    return served;
}

static bool enter(one_actor *actor, es_bulkhead_permit *permit) {
    shared_stage *stage = actor->stage;
    uint32_t reclaimed;
    if (es_bulkhead_try_acquire(stage->bulkhead, permit))
        return true;
    if (one_in(actor, 2)) {
        actor->seen.refused++;
        return false;
    }
    lock(actor);
    if (stage->leased)
        grant_all(actor);
    actor->told = false;
    es_slot_answer answer = es_bulkhead_acquire(stage->bulkhead, &actor->ticket, later(actor), permit, &reclaimed);
    bool entered = answer == ES_SLOT_TAKEN || (answer == ES_SLOT_QUEUED && wait_for_slot(actor, permit));
    unlock(actor);
    actor->seen.refused += answer == ES_SLOT_FULL;
    return entered;
}

static void be_inside(one_actor *actor) {
    shared_stage *stage = actor->stage;
    actor->seen.entered++;
    uint32_t inside = atomic_fetch_add(&stage->inside, 1) + 1;
    actor->seen.over_limit += inside > stage->limit_max && !stage->resets && !stage->leased;
    if (one_in(actor, 4))
        sched_yield();
    atomic_fetch_sub(&stage->inside, 1);
}

static void give_back(one_actor *actor, es_bulkhead_permit permit) {
    shared_stage *stage = actor->stage;
    if (es_bulkhead_try_release(stage->bulkhead, permit))
        return;
#ifndef ES_STRESS_PASSES_NOTHING_ON
    lock(actor);
    tell(es_bulkhead_release(stage->bulkhead, permit, later(actor)));
    unlock(actor);
#endif
}

static void change(one_actor *actor) {
    shared_stage *stage = actor->stage;
    lock(actor);
    actor->seen.changed++;
    if (stage->resets)
        es_bulkhead_reset(stage->bulkhead);
    /* Larger than ever, for a moment: then a table of leases has to grow. */
    uint32_t larger = stage->limit_max + (uint32_t)actor->seen.changed;
    uint32_t limit = (uint32_t)random_between(&actor->random, 1, stage->limit_max);
    if ((!stage->leased || es_bulkhead_set_limit(stage->bulkhead, larger) == ES_OK) &&
        es_bulkhead_set_limit(stage->bulkhead, limit) == ES_OK)
        grant_all(actor);
    unlock(actor);
}

static void *act(void *argument) {
    one_actor *actor = argument;
    es_bulkhead_permit permit;
    for (int round = 0; round < ROUNDS; round++) {
        if (actor->stage->changes_limit && one_in(actor, 30))
            change(actor);
        if (!enter(actor, &permit))
            continue;
        be_inside(actor);
        /* With leases some keep a permit for good, and some give it back too often. */
        if (!actor->stage->leased || !one_in(actor, 30))
            give_back(actor, permit);
        if (actor->stage->leased && one_in(actor, 30))
            give_back(actor, permit);
        actor->seen.over_limit += es_bulkhead_in_flight(actor->stage->bulkhead) > actor->stage->limit_max;
    }
    return NULL;
}

static void add(tally *sum, const tally *more) {
    sum->entered += more->entered;
    sum->refused += more->refused;
    sum->left += more->left;
    sum->changed += more->changed;
    sum->over_limit += more->over_limit;
    sum->in_vain += more->in_vain;
    sum->never_told += more->never_told;
    sum->untold += more->untold;
}

static tally run(shared_stage *stage) {
    static one_actor actors[THREADS];
    pthread_t threads[THREADS];
    tally sum = {0};
    memset(actors, 0, sizeof actors);
    pthread_mutex_init(&stage->lock, NULL);
    for (int i = 0; i < THREADS; i++) {
        actors[i].stage = stage;
        actors[i].random = (uint64_t)i;
        pthread_cond_init(&actors[i].called, NULL);
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        add(&sum, &actors[i].seen);
    }
    return sum;
}

static void check(shared_stage *stage) {
    const es_allocator allocator = {malloc, free};
    const es_bulkhead_config config = {stage->limit_max, QUEUE_MAX, stage->leased ? LEASE_NS : ES_FOREVER_NS};
    assert_int_equal(es_bulkhead_new(&stage->bulkhead, &config, &allocator), ES_OK);
    tally sum = run(stage);
    long rounds = sum.entered + sum.refused + sum.left;
    print_message("%ld entered, %ld refused, %ld left, %ld changes\n", sum.entered, sum.refused, sum.left, sum.changed);
    assert_int_equal(rounds, (long)THREADS * ROUNDS);
    assert_int_equal(sum.over_limit, 0);
    assert_int_equal(sum.in_vain, 0);
    assert_int_equal(sum.never_told, 0);
    assert_int_equal(sum.untold, 0);
    assert_int_equal(es_bulkhead_queued(stage->bulkhead), 0);
    if (stage->leased)
        es_bulkhead_reset(stage->bulkhead);
    assert_int_equal(es_bulkhead_in_flight(stage->bulkhead), 0);
    es_bulkhead_free(stage->bulkhead);
}

static void no_more_are_inside_than_the_limit_allows(void **state) {
    (void)state;
    shared_stage stage = {.limit_max = 3};
    check(&stage);
}

static void nobody_waits_in_vain_while_the_limit_changes(void **state) {
    (void)state;
    shared_stage stage = {.limit_max = 4, .changes_limit = true};
    check(&stage);
}

static void nobody_waits_in_vain_while_slots_are_reset(void **state) {
    (void)state;
    shared_stage stage = {.limit_max = 2, .changes_limit = true, .resets = true};
    check(&stage);
}

static void nobody_waits_in_vain_for_those_who_never_give_back(void **state) {
    (void)state;
    shared_stage stage = {.limit_max = 3, .changes_limit = true, .leased = true};
    check(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_are_inside_than_the_limit_allows),
        cmocka_unit_test(nobody_waits_in_vain_while_the_limit_changes),
        cmocka_unit_test(nobody_waits_in_vain_while_slots_are_reset),
        cmocka_unit_test(nobody_waits_in_vain_for_those_who_never_give_back),
    };
    alarm(GUARD_S);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
