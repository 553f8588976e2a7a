/* SPDX-License-Identifier: Apache-2.0 */
/* core_bench.c - what does the core cost without a VM?
 *
 * Each row is run in turn, REPEATS times over, and the median is shown, so that a busy moment of the machine hits all
 * rows alike. The baseline is a pthread mutex, locked and unlocked in the same run with as many threads.
 * With two threads the figure is what one operation takes as one of them sees it.
 */
/* For clock_gettime, which C11 alone does not have. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "breaker.h"

#define REPEATS 21
#define OPERATIONS 500000
#define THREADS_MAX 2

typedef struct {
    es_breaker *breaker;  /* counts failures in a window                  */
    es_breaker *counting; /* counts every call, for a rate                */
    pthread_mutex_t lock; /* the lock that a breaker asks of its owner    */
    int64_t now_ns;       /* under lock: moves by one with each failure   */
    atomic_int waiting;   /* threads that have not come to the start line */
} subject;

typedef void body(subject *s);

typedef struct {
    const char *name;
    body *run;
    int threads;
    double budget_ns; /* 0 if there is none */
    double seen_ns[REPEATS];
} row;

typedef struct {
    subject *subject;
    body *run;
    double elapsed_ns;
} runner;

static void lock_only(subject *s) {
    for (int i = 0; i < OPERATIONS; i++) {
        pthread_mutex_lock(&s->lock);
        s->now_ns++;
        pthread_mutex_unlock(&s->lock);
    }
}

static void must(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "core_bench: %s\n", what);
        exit(1);
    }
}

static es_permit admitted(const es_breaker *breaker) {
    es_permit permit = {0};
    must(es_breaker_is_closed(breaker, &permit.generation), "the breaker opened");
    return permit;
}

/* A success changes nothing in a breaker that counts failures, so its owner needs no lock and makes no report. */
static void admit_and_succeed(subject *s) {
    for (int i = 0; i < OPERATIONS; i++) {
        es_permit permit = admitted(s->breaker);
        must(!es_breaker_listens(s->breaker, permit, ES_SUCCESS), "the success counts");
    }
}

static void report(subject *s, es_breaker *breaker, es_permit permit, es_outcome outcome) {
    pthread_mutex_lock(&s->lock);
    es_breaker_report(breaker, permit, outcome, 1, ++s->now_ns, 0);
    pthread_mutex_unlock(&s->lock);
}

static void admit_and_fail(subject *s) {
    for (int i = 0; i < OPERATIONS; i++)
        report(s, s->breaker, admitted(s->breaker), ES_FAILURE);
    report(s, s->breaker, admitted(s->breaker), ES_SUCCESS); /* ends the streak */
}

static void admit_and_count(subject *s) {
    for (int i = 0; i < OPERATIONS; i++)
        report(s, s->counting, admitted(s->counting), ES_SUCCESS);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *run_one(void *argument) {
    runner *r = argument;
    atomic_fetch_sub(&r->subject->waiting, 1);
    while (atomic_load(&r->subject->waiting) > 0) {
    }
    double started_ns = now_ns();
    r->run(r->subject);
    r->elapsed_ns = now_ns() - started_ns;
    return NULL;
}

/* Nanoseconds an operation takes: the slowest thread's. */
static double measure(subject *s, const row *r) {
    pthread_t threads[THREADS_MAX];
    runner runners[THREADS_MAX];
    double slowest_ns = 0;
    atomic_store(&s->waiting, r->threads);
    for (int i = 0; i < r->threads; i++) {
        runners[i] = (runner){s, r->run, 0};
        must(pthread_create(&threads[i], NULL, run_one, &runners[i]) == 0, "no thread");
    }
    for (int i = 0; i < r->threads; i++) {
        pthread_join(threads[i], NULL);
        if (runners[i].elapsed_ns > slowest_ns)
            slowest_ns = runners[i].elapsed_ns;
    }
    return slowest_ns / OPERATIONS;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ns(row *r) {
    qsort(r->seen_ns, REPEATS, sizeof r->seen_ns[0], ascending);
    return r->seen_ns[REPEATS / 2];
}

static void show(row *r, const double mutex_ns[THREADS_MAX]) {
    double ns = median_ns(r);
    printf("%-20s %7d %9.1f %8.2f", r->name, r->threads, ns, ns / mutex_ns[r->threads - 1]);
    if (r->budget_ns > 0)
        printf(" %8.0f  %s", r->budget_ns, ns > r->budget_ns ? "OVER BUDGET" : "ok");
    printf("\n");
}

/* The clock moves by one with each report, so at most WITHIN failures are in the window, and it never opens. */
static es_breaker *never_opening(es_tally_config tally) {
    static const es_allocator allocator = {malloc, free};
    enum { WITHIN = 1000 };
    es_breaker_config config = {
        .limits = {.tolerate = WITHIN, .failure_rate_ppm = tally.span_ns > 0 ? ES_PPM : 0, .min_calls = 1},
        .within_ns = WITHIN,
        .tally = tally,
        .slow_ns = ES_FOREVER_NS,
        .reset_ns = ES_MS_NS,
        .reset_factor_ppm = ES_PPM,
        .reset_max_ns = ES_FOREVER_NS,
        .lease_ns = ES_MS_NS,
    };
    es_breaker *breaker;
    must(es_breaker_new(&breaker, &config, 0, &allocator) == ES_OK, "no breaker");
    return breaker;
}

int main(void) {
    row rows[] = {
        {.name = "mutex", .run = lock_only, .threads = 1},
        {.name = "mutex", .run = lock_only, .threads = 2},
        {.name = "admit + success", .run = admit_and_succeed, .threads = 1, .budget_ns = 10},
        {.name = "admit + success", .run = admit_and_succeed, .threads = 2, .budget_ns = 10},
        {.name = "admit + failure", .run = admit_and_fail, .threads = 1, .budget_ns = 20},
        {.name = "admit + failure", .run = admit_and_fail, .threads = 2, .budget_ns = 80},
        {.name = "admit + counted", .run = admit_and_count, .threads = 1},
        {.name = "admit + counted", .run = admit_and_count, .threads = 2},
    };
    size_t count = sizeof rows / sizeof rows[0];
    subject s = {
        .breaker = never_opening((es_tally_config){0, 0}),
        .counting = never_opening((es_tally_config){.span_ns = 1000}),
        .lock = PTHREAD_MUTEX_INITIALIZER,
    };
    for (int i = 0; i < REPEATS; i++) {
        for (size_t j = 0; j < count; j++)
            rows[j].seen_ns[i] = measure(&s, &rows[j]);
    }
    double mutex_ns[THREADS_MAX] = {median_ns(&rows[0]), median_ns(&rows[1])};
    printf("%-20s %7s %9s %8s %8s\n", "core, without a VM", "threads", "ns", "mutexes", "budget");
    for (size_t j = 0; j < count; j++)
        show(&rows[j], mutex_ns);
    es_breaker_free(s.breaker);
    es_breaker_free(s.counting);
    return 0;
}
