/* SPDX-License-Identifier: Apache-2.0 */
/* clock_nif.c - where the core's times and random words come from. */
#include <time.h>

#include "nif.h"

bool es_clock_open(ErlNifEnv *env, es_priv *priv) {
    priv->clock_type =
        enif_open_resource_type(env, NULL, "es_clock", NULL, ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER, NULL);
    return priv->clock_type != NULL;
}

/* clock_gettime, since enif_monotonic_time costs two to three times as much and the same clock is meant. */
static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* SplitMix64 (Steele, Lea, Flood 2014): the golden ratio steps through the state, two rounds mix it. */
#define SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Every thread has its own stream, so drawing a word shares nothing; jitter needs spread, not secrecy. */
static uint64_t thread_random(void) {
    static _Thread_local uint64_t state;
    if (state == 0) {
        state = mix((uint64_t)monotonic_ns() ^ (uint64_t)(uintptr_t)&state);
    }
    state += SPLITMIX_STEP;
    return mix(state);
}

int64_t es_clock_now(es_clock *clock) {
    return clock == NULL ? monotonic_ns() : atomic_load(&clock->now_ns);
}

uint64_t es_clock_random(es_clock *clock) {
    return clock == NULL ? thread_random() : mix(atomic_fetch_add(&clock->seed, SPLITMIX_STEP) + SPLITMIX_STEP);
}

bool es_get_clock(ErlNifEnv *env, ERL_NIF_TERM term, es_clock **clock) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (enif_is_identical(term, priv->atom.nil)) {
        *clock = NULL;
        return true;
    }
    if (!enif_get_resource(env, term, priv->clock_type, &object)) {
        return false;
    }
    *clock = object;
    return true;
}

static void move_to(es_clock *clock, int64_t then_ns) {
    int64_t now = atomic_load(&clock->now_ns);
    while (now < then_ns && !atomic_compare_exchange_weak(&clock->now_ns, &now, then_ns)) {
    }
}

ES_NIF(clock_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    uint64_t seed;
    if (!es_get_count(env, argv[0], &seed)) {
        return enif_make_badarg(env);
    }
    es_clock *clock = enif_alloc_resource(priv->clock_type, sizeof *clock);
    if (clock == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    atomic_init(&clock->now_ns, 0);
    atomic_init(&clock->seed, seed);
    ERL_NIF_TERM term = enif_make_resource(env, clock);
    enif_release_resource(clock);
    return term;
}

ES_NIF(clock_now) {
    (void)argc;
    es_clock *clock;
    if (!es_get_clock(env, argv[0], &clock)) {
        return enif_make_badarg(env);
    }
    return enif_make_int64(env, es_clock_now(clock));
}

ES_NIF(clock_advance) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_clock *clock;
    int64_t by_ns;
    if (!es_get_clock(env, argv[0], &clock) || clock == NULL || !es_get_ns(env, argv[1], &by_ns) || by_ns < 0) {
        return enif_make_badarg(env);
    }
    int64_t now = atomic_load(&clock->now_ns);
    while (!atomic_compare_exchange_weak(&clock->now_ns, &now, es_add_ns(now, by_ns))) {
    }
    return priv->atom.ok;
}

ES_NIF(clock_wait_until) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_clock *clock;
    int64_t then_ns;
    if (!es_get_clock(env, argv[0], &clock) || clock == NULL || !es_get_ns(env, argv[1], &then_ns)) {
        return enif_make_badarg(env);
    }
    move_to(clock, then_ns);
    return priv->atom.ok;
}
