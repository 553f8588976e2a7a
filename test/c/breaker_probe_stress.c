/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_probe_stress.c - many callers race to open a breaker, and again when its open time is over.
 *
 * What must hold, exactly, in each round: the racing failures open it once; of the callers at the end of the open time
 * as many go out as there may be probes, and the others are refused; half of the probes' reports are given twice, and
 * the breaker closes once.
 *
 * Meant for -fsanitize=thread. Control: built with that and -DES_STRESS_WITHOUT_LOCK, it has to fail.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "breaker.h"

#define THREADS 4
#define CALLERS 50 /* each thread is so many callers, one after the other */
#define ROUNDS 2000
#define PROBES 3
#define RESET_NS 1000
#define ROUND_NS (10 * RESET_NS)

typedef void act(void *stage, int64_t now_ns);

typedef struct {
    es_breaker *breaker;
    pthread_mutex_t lock;
    _Atomic int phase;    /* the threads act once in each, whenever it grows  */
    _Atomic int finished; /* threads that have acted in this phase            */
    _Atomic int64_t now_ns;
    act *_Atomic act; /* NULL: end */
    _Atomic long admitted, refused;
} shared_stage;

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

static void report(shared_stage *stage, es_permit permit, es_outcome outcome, int64_t now_ns) {
    if (!es_breaker_listens(stage->breaker, permit, outcome))
        return;
    lock(stage);
    es_breaker_report(stage->breaker, permit, outcome, 0, now_ns, 0);
    unlock(stage);
}

static void call_that_fails(void *argument, int64_t now_ns) {
    shared_stage *stage = argument;
    report(stage, es_breaker_permit(stage->breaker), ES_FAILURE, now_ns);
}

static es_admission admit(shared_stage *stage, int64_t now_ns) {
    es_admission admission = es_breaker_peek(stage->breaker, now_ns, 0);
    if (admission.answer != ES_DUE)
        return admission;
    lock(stage);
    admission = es_breaker_admit(stage->breaker, now_ns, 0);
    unlock(stage);
    return admission;
}

static void call(void *argument, int64_t now_ns) {
    shared_stage *stage = argument;
    es_admission admission = admit(stage, now_ns);
    if (admission.answer == ES_ADMITTED)
        atomic_fetch_add(&stage->admitted, 1);
    else
        atomic_fetch_add(&stage->refused, 1);
}

/* A probe that succeeds, and says so twice. */
static void call_that_succeeds(void *argument, int64_t now_ns) {
    shared_stage *stage = argument;
    es_admission admission = admit(stage, now_ns);
    if (admission.answer != ES_ADMITTED || !admission.permit.probe)
        return;
    atomic_fetch_add(&stage->admitted, 1);
    report(stage, admission.permit, ES_SUCCESS, now_ns);
    report(stage, admission.permit, ES_SUCCESS, now_ns);
}

static void *act_in_each_phase(void *argument) {
    shared_stage *stage = argument;
    for (int phase = 1;; phase++) {
        while (atomic_load(&stage->phase) < phase)
            sched_yield();
        act *todo = atomic_load(&stage->act);
        if (todo == NULL)
            return NULL;
        for (int caller = 0; caller < CALLERS; caller++)
            todo(stage, atomic_load(&stage->now_ns));
        atomic_fetch_add(&stage->finished, 1);
    }
}

static void run_phase(shared_stage *stage, act *todo, int64_t now_ns) {
    atomic_store(&stage->admitted, 0);
    atomic_store(&stage->refused, 0);
    atomic_store(&stage->finished, 0);
    atomic_store(&stage->now_ns, now_ns);
    atomic_store(&stage->act, todo);
    atomic_fetch_add(&stage->phase, 1);
    while (todo != NULL && atomic_load(&stage->finished) < THREADS)
        sched_yield();
}

/* Of the changes that wait, as many as lead to `to`. */
static long changes_to(shared_stage *stage, es_state to) {
    es_change change;
    long number = 0;
    lock(stage);
    while (es_breaker_take_change(stage->breaker, &change))
        number += change.to == to;
    unlock(stage);
    return number;
}

static long wrong_openings, wrong_probes, wrong_refusals, wrong_closings;

/* The second race is for probes that are never heard of again: their leases are over when the third begins. */
static void run_round(shared_stage *stage, int64_t born_ns) {
    int64_t due_ns = born_ns + RESET_NS, leases_over_ns = due_ns + RESET_NS;
    run_phase(stage, call_that_fails, born_ns);
    wrong_openings += changes_to(stage, ES_OPEN) != 1;
    run_phase(stage, call, due_ns);
    wrong_probes += atomic_load(&stage->admitted) != PROBES;
    wrong_refusals += atomic_load(&stage->refused) != THREADS * CALLERS - PROBES;
    run_phase(stage, call_that_succeeds, leases_over_ns);
    wrong_probes += atomic_load(&stage->admitted) < PROBES;
    wrong_closings += changes_to(stage, ES_CLOSED) != 1;
}

static int check(const char *law, long violations) {
    printf("%s: %s (%ld)\n", violations == 0 ? "ok" : "FAILED", law, violations);
    return violations != 0;
}

static int judge(void) {
    int failed = check("racing failures open once", wrong_openings) +
                 check("exactly as many probes go out as may", wrong_probes) +
                 check("all others are refused", wrong_refusals) + check("they close it once", wrong_closings);
    printf("%d passed, %d failed (%d rounds of %d callers)\n", 4 - failed, failed, ROUNDS, THREADS * CALLERS);
    return failed == 0 ? 0 : 1;
}

int main(void) {
    static shared_stage shared;
    pthread_t threads[THREADS];
    const es_allocator allocator = {malloc, free};
    const es_breaker_config config = {
        .limits = {.tolerate = 20, .min_calls = 1},
        .within_ns = RESET_NS,
        .slow_ns = ES_FOREVER_NS,
        .reset_ns = RESET_NS,
        .reset_factor_ppm = ES_PPM,
        .reset_max_ns = RESET_NS,
        .probes = PROBES,
        .successes = PROBES,
        .lease_ns = RESET_NS,
    };
    if (es_breaker_new(&shared.breaker, &config, 0, &allocator) != ES_OK)
        return 1;
    pthread_mutex_init(&shared.lock, NULL);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, act_in_each_phase, &shared) != 0)
            return 1;
    for (int64_t round = 0; round < ROUNDS; round++)
        run_round(&shared, round * ROUND_NS);
    run_phase(&shared, NULL, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    es_breaker_free(shared.breaker);
    return judge();
}
