/* SPDX-License-Identifier: Apache-2.0 */
/* balancer_stress.c - many threads pick, call, end calls and put endpoints out at once; only the last takes a lock.
 *
 * What must hold, exactly: in the end nothing is in flight; never more are out than the share allows; each turn of the
 * round robin is taken once; no duration takes the average out of the range of all durations.
 *
 * Meant for -fsanitize=thread. Control: built with -DES_STRESS_EJECTS_UNLOCKED, where threads put out without the lock,
 * it has to fail.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "balancer.h"

#define THREADS 4
#define STEPS 50000
#define ENDPOINTS 10
#define DRAINING 9 /* drains now and then, and is never put out */
#define OUT_MAX 5
#define LEAST_NS 1000
#define MOST_NS 2000

typedef struct {
    es_balancer *balancers[4]; /* one for each rule, over the same endpoints */
    es_endpoint *endpoints[ENDPOINTS];
    pthread_mutex_t lock;
    _Atomic int64_t now_ns;
    _Atomic bool started;
    _Atomic long picked[ENDPOINTS];
    _Atomic long refused, over_share, strange;
} shared_stage;

typedef struct {
    shared_stage *stage;
    uint64_t random;
} one_actor;

static int passed, failed;

static void check(const char *law, long violations) {
    printf("%s: %s (%ld)\n", violations == 0 ? "ok" : "FAILED", law, violations);
    passed += violations == 0;
    failed += violations != 0;
}

static void must(bool holds) {
    if (!holds)
        abort();
}

static uint64_t draw(one_actor *actor) {
    actor->random += ES_WEYL;
    return es_mix(actor->random);
}

static void wait_for_start(shared_stage *stage) {
    while (!atomic_load(&stage->started))
        sched_yield();
}

static void lock(shared_stage *stage) {
#ifndef ES_STRESS_EJECTS_UNLOCKED
    pthread_mutex_lock(&stage->lock);
#else
    (void)stage;
#endif
}

static void unlock(shared_stage *stage) {
#ifndef ES_STRESS_EJECTS_UNLOCKED
    pthread_mutex_unlock(&stage->lock);
#else
    (void)stage;
#endif
}

static void put_out(one_actor *actor) {
    shared_stage *stage = actor->stage;
    uint32_t index = (uint32_t)(draw(actor) % DRAINING);
    lock(stage);
    int64_t now_ns = atomic_load(&stage->now_ns);
    es_balancer_eject(stage->balancers[0], index, now_ns + (int64_t)(draw(actor) % 100), now_ns);
    if (es_balancer_out(stage->balancers[0], now_ns) > OUT_MAX)
        atomic_fetch_add(&stage->over_share, 1);
    unlock(stage);
}

static void call_one(one_actor *actor) {
    shared_stage *stage = actor->stage;
    int64_t now_ns = atomic_fetch_add(&stage->now_ns, (int64_t)(draw(actor) % 10));
    const es_pick how = {.now_ns = now_ns, .random_word = draw(actor), .key_hash = draw(actor)};
    uint32_t index = es_balancer_pick(stage->balancers[draw(actor) % 4], &how);
    if (index == ES_NO_ENDPOINT) {
        atomic_fetch_add(&stage->refused, 1);
        return;
    }
    es_endpoint *endpoint = stage->endpoints[index];
    es_endpoint_begin(endpoint);
    if (draw(actor) % 8 == 0)
        sched_yield();
    es_endpoint_end(endpoint, LEAST_NS + (int64_t)(draw(actor) % (MOST_NS - LEAST_NS + 1)));
    int64_t latency_ns = es_endpoint_latency_ns(endpoint);
    if (latency_ns < LEAST_NS || latency_ns > MOST_NS || es_endpoint_in_flight(endpoint) >= THREADS)
        atomic_fetch_add(&stage->strange, 1);
    atomic_fetch_add(&stage->picked[index], 1);
}

static void *call_and_put_out(void *argument) {
    one_actor *actor = argument;
    wait_for_start(actor->stage);
    for (int step = 0; step < STEPS; step++) {
        call_one(actor);
        put_out(actor);
        if (draw(actor) % 16 == 0)
            es_endpoint_drain(actor->stage->endpoints[DRAINING], draw(actor) % 2 == 0);
    }
    return NULL;
}

static void *take_turns(void *argument) {
    one_actor *actor = argument;
    const es_pick how = {.now_ns = 0};
    wait_for_start(actor->stage);
    for (int step = 0; step < STEPS; step++)
        atomic_fetch_add(&actor->stage->picked[es_balancer_pick(actor->stage->balancers[0], &how)], 1);
    return NULL;
}

static void set_up(shared_stage *stage) {
    const es_allocator allocator = {malloc, free};
    es_member members[ENDPOINTS];
    pthread_mutex_init(&stage->lock, NULL);
    for (uint32_t i = 0; i < ENDPOINTS; i++) {
        must(es_endpoint_new(&stage->endpoints[i], &allocator) == ES_OK);
        members[i] = (es_member){stage->endpoints[i], i, i < 5 ? 1 : 3};
    }
    for (size_t rule = 0; rule < 4; rule++) {
        const es_balancer_config config = {es_balancer_rule_at(rule), members, ENDPOINTS, ES_PPM / 2};
        must(es_balancer_new(&stage->balancers[rule], &config, &allocator) == ES_OK);
    }
}

static void tear_down(shared_stage *stage) {
    for (size_t rule = 0; rule < 4; rule++)
        es_balancer_free(stage->balancers[rule]);
    for (uint32_t i = 0; i < ENDPOINTS; i++)
        es_endpoint_free(stage->endpoints[i]);
    pthread_mutex_destroy(&stage->lock);
}

static void run(shared_stage *stage, void *(*act)(void *)) {
    one_actor actors[THREADS];
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        actors[i] = (one_actor){stage, es_mix(i + 1)};
        must(pthread_create(&threads[i], NULL, act, &actors[i]) == 0);
    }
    atomic_store(&stage->started, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void calls_while_endpoints_come_and_go(void) {
    shared_stage stage = {0};
    long in_flight = 0, calls = 0;
    set_up(&stage);
    run(&stage, call_and_put_out);
    for (uint32_t i = 0; i < ENDPOINTS; i++) {
        in_flight += es_endpoint_in_flight(stage.endpoints[i]);
        calls += atomic_load(&stage.picked[i]);
    }
    check("in the end nothing is in flight", in_flight);
    check("no more are out than the share allows", atomic_load(&stage.over_share));
    check("averages and counts stay in their range", atomic_load(&stage.strange));
    check("each pick is a call or a refusal", calls + atomic_load(&stage.refused) - (long)THREADS * STEPS);
    tear_down(&stage);
}

/* As many picks as make whole rounds of the rota, 20 turns. */
static void turns_of_threads_that_come_at_once(void) {
    shared_stage stage = {0};
    long off = 0;
    set_up(&stage);
    run(&stage, take_turns);
    for (uint32_t i = 0; i < ENDPOINTS; i++)
        off += labs(atomic_load(&stage.picked[i]) - (long)THREADS * STEPS / 20 * (i < 5 ? 1 : 3));
    check("each turn is taken once", off);
    tear_down(&stage);
}

int main(void) {
    calls_while_endpoints_come_and_go();
    turns_of_threads_that_come_at_once();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
