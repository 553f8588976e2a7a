/* SPDX-License-Identifier: Apache-2.0 */
/* budget_stress.c - many threads pay in and take out at once, without a lock, while time runs.
 *
 * What must hold: retries taken, and what is left, are never more than were in the bucket at first, were paid in by
 * successes and by time; and where the brim is never reached, exactly as much. A reader never sees more than fits.
 *
 * Meant for -fsanitize=thread. Control: built with -DES_STRESS_TRUSTS_BALANCE, where a thread retries when the balance
 * said that it may, it has to fail.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "budget.h"

#define THREADS 4
#define STEPS 20000

typedef struct {
    es_budget *budget;
    _Atomic int64_t now_ns;
    _Atomic bool started;
    uint64_t brim_ppm;
} shared_stage;

typedef struct {
    shared_stage *stage;
    uint64_t random;
    long paid_in, taken, overfull;
} one_actor;

static int passed, failed;

static void check(const char *law, long violations) {
    printf("%s: %s (%ld)\n", violations == 0 ? "ok" : "FAILED", law, violations);
    passed += violations == 0;
    failed += violations != 0;
}

static uint64_t draw(uint64_t *random) {
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *random >> 33;
}

static bool take(es_budget *budget, int64_t now_ns) {
#ifdef ES_STRESS_TRUSTS_BALANCE
    if (es_budget_balance_ppm(budget, now_ns) < ES_PPM)
        return false;
    sched_yield();
    bool unasked = es_budget_withdraw(budget, now_ns);
    (void)unasked;
    return true;
#else
    return es_budget_withdraw(budget, now_ns);
#endif
}

/* The clock a thread has read is often behind that of the others. */
static void *act(void *argument) {
    one_actor *actor = argument;
    shared_stage *stage = actor->stage;
    while (!atomic_load(&stage->started))
        sched_yield();
    for (int step = 0; step < STEPS; step++) {
        int64_t now_ns = atomic_fetch_add(&stage->now_ns, (int64_t)(draw(&actor->random) % 100000));
        switch (draw(&actor->random) % 4) {
        case 0:
            es_budget_deposit(stage->budget);
            actor->paid_in++;
            break;
        case 1:
            actor->overfull += es_budget_balance_ppm(stage->budget, now_ns) > stage->brim_ppm;
            break;
        default:
            actor->taken += take(stage->budget, now_ns);
        }
    }
    return NULL;
}

/* In millionths of a retry: what went in at most, less what was taken and what is left. */
static int64_t run(es_budget_config config, bool starts_empty) {
    const es_allocator allocator = {malloc, free};
    one_actor actors[THREADS];
    pthread_t threads[THREADS];
    uint64_t retries = config.per_second > 1 ? config.per_second * 10ull : 10;
    shared_stage stage = {.brim_ppm = retries * ES_PPM};
    int64_t in_ppm = starts_empty ? 0 : (int64_t)stage.brim_ppm, out_ppm = 0;
    long overfull = 0;
    if (es_budget_new(&stage.budget, &config, 0, &allocator) != ES_OK)
        abort();
    while (starts_empty && es_budget_withdraw(stage.budget, 0))
        continue;
    for (int i = 0; i < THREADS; i++) {
        actors[i] = (one_actor){.stage = &stage, .random = (uint64_t)i};
        if (pthread_create(&threads[i], NULL, act, &actors[i]) != 0)
            abort();
    }
    atomic_store(&stage.started, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        in_ppm += (int64_t)config.ratio_ppm * actors[i].paid_in;
        out_ppm += (int64_t)ES_PPM * actors[i].taken;
        overfull += actors[i].overfull;
    }
    check("some retries went", out_ppm == 0);
    int64_t now_ns = atomic_load(&stage.now_ns);
    in_ppm += now_ns * config.per_second / 1000;
    out_ppm += (int64_t)es_budget_balance_ppm(stage.budget, now_ns);
    es_budget_free(stage.budget);
    check("nobody saw more than fits", overfull);
    return in_ppm - out_ppm;
}

int main(void) {
    /* Some 4 s pass and 20,000 successes pay in: never as much as 10,000 retries, so nothing runs over. */
    check("of an empty bucket exactly what went in comes out",
          (long)run((es_budget_config){.ratio_ppm = 200000, .per_second = 1000}, true));
    check("of a full one no more comes out than went in",
          run((es_budget_config){.ratio_ppm = 200000, .per_second = 10}, false) < 0);
    check("nor of one that runs over all the time",
          run((es_budget_config){.ratio_ppm = 10 * ES_PPM, .per_second = 1}, false) < 0);
    check("successes alone pay in exactly their share",
          (long)run((es_budget_config){.ratio_ppm = 200000, .per_second = 0}, true));
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
