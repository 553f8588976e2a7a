/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_stress.c - many threads ask a breaker without a lock while others change it under one.
 *
 * What must hold, exactly, with probes and without: every opening is told once; told changes form a chain; an admission
 * carries a generation that let calls through, a refusal one that did not; a thread never sees a generation go back or
 * comes by one from the future; a refusal never lasts longer than the reset.
 *
 * Meant for -fsanitize=thread. Control: built with that and -DES_STRESS_WITHOUT_LOCK, it has to fail.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "breaker.h"

#define ASKERS 4
#define CHANGERS 3
#define STEPS 60000
#define GENERATIONS (CHANGERS * STEPS * 2 + 2) /* a step starts at most two */
#define RESET_NS 200

enum { CLOSED_SEEN = 1, OPEN_SEEN = 2 }; /* half-open is both */

typedef struct {
    es_breaker *breaker;
    _Atomic int64_t now_ns;
    _Atomic int changers; /* still at work */
    _Atomic bool started;
    pthread_mutex_t lock; /* guards what follows, and the breaker's locked functions */
    unsigned char was[GENERATIONS];
    es_state told;
    long opened, openings_told, broken_links;
} shared_stage;

typedef struct {
    shared_stage *stage;
    uint64_t random;
    unsigned char saw[GENERATIONS];
    long went_back, from_the_future, too_long, listened;
} one_actor;

static uint64_t draw(uint64_t *random) {
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *random >> 33;
}

static void lock(shared_stage *stage) {
#ifndef ES_STRESS_WITHOUT_LOCK
    pthread_mutex_lock(&stage->lock);
#else
    (void)stage;
#endif
}

static void unlock(shared_stage *stage) {
#ifndef ES_STRESS_WITHOUT_LOCK
    pthread_mutex_unlock(&stage->lock);
#else
    (void)stage;
#endif
}

/* A refusal by chance says nothing of the state. */
static void note(one_actor *actor, const es_admission *admission) {
    if (admission->answer == ES_ADMITTED)
        actor->saw[admission->permit.generation] |= CLOSED_SEEN;
    else if (admission->retry_after_ns > 0)
        actor->saw[admission->permit.generation] |= OPEN_SEEN;
}

static void listen(shared_stage *stage) {
    es_change change;
    while (es_breaker_take_change(stage->breaker, &change)) {
        stage->broken_links += change.from != stage->told;
        stage->openings_told += change.to == ES_OPEN;
        stage->told = change.to;
    }
}

static void note_state(shared_stage *stage, const es_breaker_view *view) {
    if (view->state == ES_CLOSED || view->state == ES_BYPASSED || view->state == ES_HALF_OPEN)
        stage->was[view->generation] |= CLOSED_SEEN;
    if (view->state == ES_OPEN || view->state == ES_FORCED_OPEN || view->state == ES_HALF_OPEN)
        stage->was[view->generation] |= OPEN_SEEN;
}

static void act_by_hand(es_breaker *breaker, uint64_t choice, int64_t now_ns) {
    if (choice == 0)
        es_breaker_reset(breaker, now_ns);
    else if (choice == 1)
        es_breaker_force_open(breaker, now_ns + RESET_NS, now_ns);
    else
        es_breaker_bypass(breaker, now_ns);
}

/* One locked step: at most one change by time, then one act. */
static void change_once(one_actor *actor, int64_t now_ns) {
    shared_stage *stage = actor->stage;
    es_breaker *breaker = stage->breaker;
    es_breaker_view before = es_breaker_look(breaker, now_ns);
    uint64_t choice = draw(&actor->random) % 32;
    note_state(stage, &before);
    if (choice < 3) {
        act_by_hand(breaker, choice, now_ns);
    } else {
        es_admission admission = es_breaker_admit(breaker, now_ns, draw(&actor->random));
        note(actor, &admission);
        es_breaker_report(breaker, admission.permit, ES_FAILURE, 0, now_ns, 0);
    }
    es_breaker_view after = es_breaker_look(breaker, now_ns);
    note_state(stage, &after);
    stage->opened += before.state != ES_OPEN && after.state == ES_OPEN;
    listen(stage);
}

/* Threads that all wait here run at once afterwards, instead of one after the other as they are made. */
static void wait_for_start(const shared_stage *stage) {
    while (!atomic_load(&stage->started))
        sched_yield();
}

static void *change(void *argument) {
    one_actor *actor = argument;
    shared_stage *stage = actor->stage;
    wait_for_start(stage);
    for (int step = 0; step < STEPS; step++) {
        int64_t now_ns = atomic_fetch_add(&stage->now_ns, 1 + (int64_t)(draw(&actor->random) % 20));
        lock(stage);
        change_once(actor, now_ns);
        unlock(stage);
    }
    atomic_fetch_sub(&stage->changers, 1);
    return NULL;
}

static void ask_once(one_actor *actor, uint64_t *newest) {
    es_breaker *breaker = actor->stage->breaker;
    es_admission admission = {.answer = ES_ADMITTED};
    int64_t now_ns = atomic_load(&actor->stage->now_ns);
    if (!es_breaker_is_closed(breaker, &admission.permit.generation))
        admission = es_breaker_peek(breaker, now_ns, draw(&actor->random));
    int64_t since_ns = atomic_load(&actor->stage->now_ns) - now_ns;
    uint64_t generation = admission.permit.generation;
    note(actor, &admission);
    if (admission.answer == ES_REFUSED)
        es_breaker_refused(breaker);
    actor->went_back += generation < *newest;
    actor->from_the_future += generation > es_breaker_permit(breaker).generation;
    actor->too_long += admission.retry_after_ns > RESET_NS + since_ns;
    actor->listened += es_breaker_listens(breaker, admission.permit, ES_SUCCESS) || es_breaker_has_changes(breaker);
    *newest = generation;
}

static void *ask(void *argument) {
    one_actor *actor = argument;
    uint64_t newest = 0;
    wait_for_start(actor->stage);
    do {
        ask_once(actor, &newest);
    } while (atomic_load(&actor->stage->changers) > 0);
    return NULL;
}

static long mismatches(const shared_stage *stage, const one_actor *actor) {
    long wrong = 0;
    for (size_t generation = 0; generation < GENERATIONS; generation++)
        wrong += (actor->saw[generation] & ~stage->was[generation]) != 0;
    return wrong;
}

static int failed;

static void check(const char *law, long violations) {
    printf("%s: %s (%ld)\n", violations == 0 ? "ok" : "FAILED", law, violations);
    failed += violations != 0;
}

static int judge(const shared_stage *stage, const one_actor *actors) {
    failed = 0;
    long wrong = 0, went_back = 0, from_the_future = 0, too_long = 0;
    for (int i = 0; i < ASKERS + CHANGERS; i++) {
        wrong += mismatches(stage, &actors[i]);
        went_back += actors[i].went_back;
        from_the_future += actors[i].from_the_future;
        too_long += actors[i].too_long;
    }
    check("some openings happened", stage->opened == 0);
    check("every opening is told once", stage->opened - stage->openings_told);
    check("told changes form a chain", stage->broken_links);
    check("answers agree with the state of their generation", wrong);
    check("generations never go back", went_back);
    check("no generation is from the future", from_the_future);
    check("no refusal lasts longer than the reset", too_long);
    printf("%d passed, %d failed (%ld openings)\n", 7 - failed, failed, stage->opened);
    return failed == 0 ? 0 : 1;
}

static int run(const es_breaker_config *config) {
    static shared_stage shared;
    static one_actor actors[ASKERS + CHANGERS];
    pthread_t threads[ASKERS + CHANGERS];
    const es_allocator allocator = {malloc, free};
    memset(&shared, 0, sizeof shared);
    memset(actors, 0, sizeof actors);
    if (es_breaker_new(&shared.breaker, config, 0, &allocator) != ES_OK)
        return 1;
    pthread_mutex_init(&shared.lock, NULL);
    shared.changers = CHANGERS;
    for (int i = 0; i < ASKERS + CHANGERS; i++) {
        actors[i].stage = &shared;
        actors[i].random = (uint64_t)i;
        if (pthread_create(&threads[i], NULL, i < ASKERS ? ask : change, &actors[i]) != 0)
            return 1;
    }
    atomic_store(&shared.started, true);
    for (int i = 0; i < ASKERS + CHANGERS; i++)
        pthread_join(threads[i], NULL);
    int result = judge(&shared, actors);
    es_breaker_free(shared.breaker);
    return result;
}

int main(void) {
    es_breaker_config config = {
        .limits = {.tolerate = 3, .min_calls = 1},
        .within_ns = 500,
        .slow_ns = ES_FOREVER_NS,
        .reset_ns = RESET_NS,
        .reset_factor_ppm = ES_PPM,
        .reset_max_ns = RESET_NS,
        .successes = 1,
        .lease_ns = RESET_NS,
    };
    int result = run(&config);
    config.ramp_ns = RESET_NS;
    result |= run(&config);
    config.probes = 2;
    return result | run(&config);
}
