/* SPDX-License-Identifier: Apache-2.0 */
/* gcra_stress.c - many threads take, book and give back at once, without a lock, while the limit is changed.
 *
 * What must hold, exactly: at one moment every place is booked once, and each at its time; while time runs, no span of
 * it sees more calls than a full burst and what is refilled, whether places are given back or the limit is changed to
 * one that is no faster.
 *
 * Meant for -fsanitize=thread. Control: built with -DES_STRESS_TRUSTS_PEEK, where a thread goes when peeking said that
 * it may, it has to fail.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "gcra.h"

#define THREADS 4
#define STEPS 20000
#define LIMIT 7
#define PER_NS (7 * 100)

typedef struct {
    es_gcra *gcra;
    _Atomic int64_t now_ns;
    _Atomic int working;
    _Atomic bool started;
    bool gives_back; /* does every other call that may go turn back? */
} shared_stage;

typedef struct {
    shared_stage *stage;
    _Atomic int64_t since_ns; /* no clock it is still to use is earlier */
    uint64_t random;
    int64_t at_ns[STEPS];
    int went;
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

static void wait_for_start(shared_stage *stage) {
    while (!atomic_load(&stage->started))
        sched_yield();
}

static void *book_all(void *argument) {
    one_actor *actor = argument;
    wait_for_start(actor->stage);
    for (int step = 0; step < STEPS; step++) {
        es_gcra_turn turn = es_gcra_reserve(actor->stage->gcra, 0, 1, ES_FOREVER_NS);
        actor->at_ns[step] = turn.wait_ns;
    }
    actor->went = STEPS;
    return NULL;
}

static es_gcra_turn ask(one_actor *actor, int64_t now_ns) {
#ifdef ES_STRESS_TRUSTS_PEEK
    es_gcra_turn turn = es_gcra_peek(actor->stage->gcra, now_ns, 1);
    if (turn.answer == ES_GO && es_gcra_admit(actor->stage->gcra, now_ns, 1).answer == ES_LIMITED)
        sched_yield();
    return turn;
#else
    return es_gcra_reserve(actor->stage->gcra, now_ns, 1, (int64_t)(draw(&actor->random) % 2 * 150));
#endif
}

static void *take_as_time_runs(void *argument) {
    one_actor *actor = argument;
    shared_stage *stage = actor->stage;
    wait_for_start(stage);
    for (int step = 0; step < STEPS; step++) {
        atomic_store(&actor->since_ns, atomic_load(&stage->now_ns));
        int64_t now_ns = atomic_fetch_add(&stage->now_ns, (int64_t)(draw(&actor->random) % 30));
        es_gcra_turn turn = ask(actor, now_ns);
        if (turn.answer != ES_GO && turn.answer != ES_GO_LATER)
            continue;
        if (stage->gives_back && draw(&actor->random) % 2 == 0)
            es_gcra_give_back(stage->gcra, atomic_load(&stage->now_ns), 1, turn.place);
        else
            actor->at_ns[actor->went++] = now_ns + turn.wait_ns;
    }
    atomic_store(&actor->since_ns, INT64_MAX);
    atomic_fetch_sub(&stage->working, 1);
    return NULL;
}

/* The owner: the one thread that changes the limit, so that it needs no lock. It does so at a time that nobody's clock
 * is behind: a call would go at the time of the change, and the law be asked about an earlier one. */
static void change_the_limit(shared_stage *stage, one_actor *actors) {
    const es_gcra_config slower = {.limit = LIMIT, .per_ns = PER_NS * 3}, same = {.limit = LIMIT, .per_ns = PER_NS};
    for (int change = 0; atomic_load(&stage->working) > 0; change++) {
        int64_t now_ns = atomic_load(&stage->now_ns);
        for (int i = 0; i < THREADS; i++) {
            int64_t since_ns = atomic_load(&actors[i].since_ns);
            now_ns = since_ns < now_ns ? since_ns : now_ns;
        }
        if (es_gcra_reconfigure(stage->gcra, change % 2 == 0 ? &slower : &same, now_ns) != ES_OK)
            abort();
        sched_yield();
    }
}

static int by_time(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Runs the threads, and puts the times of all calls that went in order. */
static int run(void *(*act)(void *), bool gives_back, bool changes, int64_t *at_ns) {
    static one_actor actors[THREADS];
    const es_allocator allocator = {malloc, free};
    const es_gcra_config config = {.limit = LIMIT, .per_ns = PER_NS};
    shared_stage stage = {.working = THREADS, .gives_back = gives_back};
    pthread_t threads[THREADS];
    int went = 0;
    if (es_gcra_new(&stage.gcra, &config, 0, &allocator) != ES_OK)
        abort();
    for (int i = 0; i < THREADS; i++) {
        actors[i].stage = &stage;
        actors[i].random = (uint64_t)i;
        actors[i].went = 0;
        actors[i].since_ns = 0;
        if (pthread_create(&threads[i], NULL, act, &actors[i]) != 0)
            abort();
    }
    atomic_store(&stage.started, true);
    if (changes)
        change_the_limit(&stage, actors);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        for (int call = 0; call < actors[i].went; call++)
            at_ns[went++] = actors[i].at_ns[call];
    }
    es_gcra_free(stage.gcra);
    qsort(at_ns, (size_t)went, sizeof *at_ns, by_time);
    return went;
}

static long wrong_places(const int64_t *at_ns, int went) {
    long wrong = went != THREADS * STEPS;
    for (int call = 0; call < went; call++)
        wrong += at_ns[call] != (call < LIMIT ? 0 : (int64_t)(call - LIMIT + 1) * (PER_NS / LIMIT));
    return wrong;
}

/* Each call with the calls up to one burst and a hundred intervals later: longer spans are made of such. */
static long crowded_spans(const int64_t *at_ns, int went) {
    long crowded = 0;
    for (int first = 0; first < went; first++)
        for (int last = first; last < went && last < first + 100 + LIMIT; last++)
            crowded += last - first + 1 > LIMIT + (at_ns[last] - at_ns[first]) * LIMIT / PER_NS;
    return crowded;
}

int main(void) {
    static int64_t at_ns[THREADS * STEPS];
    int went = run(book_all, false, false, at_ns);
    check("every place is booked once and at its time", wrong_places(at_ns, went));
    went = run(take_as_time_runs, false, false, at_ns);
    check("some calls went", went == 0);
    check("no span is crowded", crowded_spans(at_ns, went));
    went = run(take_as_time_runs, true, false, at_ns);
    check("no span is crowded when places are given back", crowded_spans(at_ns, went));
    went = run(take_as_time_runs, false, true, at_ns);
    check("no span is crowded when the limit changes", crowded_spans(at_ns, went));
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
