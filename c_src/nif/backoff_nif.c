/* SPDX-License-Identifier: Apache-2.0 */
/* backoff_nif.c - retry schedules, and the counting windows that are sized against them. */
#include "nif.h"

/* A plan is for people and for sizing: longer ones are cut, so the call stays short. */
#define PLAN_MAX 1000

static bool get_retry(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *retry) {
    return es_get_count(env, term, retry) && *retry > 0;
}

static bool get_delay(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *delay_ns) {
    return es_get_ns(env, term, delay_ns) && *delay_ns >= 0;
}

static bool get_time(ErlNifEnv *env, ERL_NIF_TERM elapsed, ERL_NIF_TERM left, es_backoff_time *time) {
    return es_get_ns(env, elapsed, &time->elapsed_ns) && es_get_ns_or_infinity(env, left, &time->left_ns);
}

static ERL_NIF_TERM make_step(ErlNifEnv *env, es_backoff_step step, int64_t delay_ns) {
    if (step == ES_RETRY) {
        return enif_make_int64(env, delay_ns);
    }
    const es_priv *priv = enif_priv_data(env);
    switch (step) {
    case ES_RETRY_LAST:
        return enif_make_tuple2(env, priv->atom.last, enif_make_int64(env, delay_ns));
    case ES_RETRY_LATE:
        return priv->atom.late;
    default:
        return priv->atom.exhausted;
    }
}

ES_NIF(backoff_next) {
    (void)argc;
    es_backoff backoff;
    es_backoff_time time;
    uint64_t retry;
    int64_t previous_ns, delay_ns = 0, steps_ns[ES_BACKOFF_STEPS_MAX];
    es_clock *clock;
    if (!es_get_backoff(env, argv[0], &backoff, steps_ns) || !get_retry(env, argv[1], &retry) ||
        !get_delay(env, argv[2], &previous_ns) || !get_time(env, argv[3], argv[4], &time) ||
        !es_get_clock(env, argv[5], &clock)) {
        return enif_make_badarg(env);
    }
    uint64_t word = es_backoff_is_random(&backoff) ? es_clock_random(clock) : 0;
    es_backoff_step step = es_backoff_next(&backoff, retry, previous_ns, time, word, &delay_ns);
    return make_step(env, step, delay_ns);
}

ES_NIF(backoff_after) {
    (void)argc;
    es_backoff backoff;
    es_backoff_time time;
    uint64_t retry;
    int64_t asked_ns, delay_ns = 0, steps_ns[ES_BACKOFF_STEPS_MAX];
    if (!es_get_backoff(env, argv[0], &backoff, steps_ns) || !get_retry(env, argv[1], &retry) ||
        !get_delay(env, argv[2], &asked_ns) || !get_time(env, argv[3], argv[4], &time)) {
        return enif_make_badarg(env);
    }
    es_backoff_step step = es_backoff_after(&backoff, retry, asked_ns, time, &delay_ns);
    return make_step(env, step, delay_ns);
}

ES_NIF(backoff_plan) {
    (void)argc;
    es_backoff backoff;
    uint32_t max;
    int64_t steps_ns[ES_BACKOFF_STEPS_MAX];
    if (!es_get_backoff(env, argv[0], &backoff, steps_ns) || !es_get_u32(env, argv[1], &max) || max > PLAN_MAX) {
        return enif_make_badarg(env);
    }
    int64_t delays_ns[PLAN_MAX];
    ERL_NIF_TERM list = enif_make_list(env, 0);
    for (size_t i = es_backoff_plan(&backoff, delays_ns, max); i > 0; i--) {
        list = enif_make_list_cell(env, enif_make_int64(env, delays_ns[i - 1]), list);
    }
    return list;
}

ES_NIF(backoff_window) {
    (void)argc;
    es_backoff backoff;
    int64_t steps_ns[ES_BACKOFF_STEPS_MAX];
    if (!es_get_backoff(env, argv[0], &backoff, steps_ns)) {
        return enif_make_badarg(env);
    }
    return es_make_ns_or_infinity(env, es_backoff_window_ns(&backoff));
}

ES_NIF(backoff_curves) {
    (void)argc;
    (void)argv;
    const es_priv *priv = enif_priv_data(env);
    return es_make_names(env, priv->curves);
}

static bool get_melt(const es_priv *priv, ERL_NIF_TERM term, bool *per_call) {
    *per_call = enif_is_identical(term, priv->atom.per_call);
    return *per_call || enif_is_identical(term, priv->atom.per_attempt);
}

/* What a counting window is sized against. */
typedef struct {
    int64_t window_ns;
    uint64_t attempts;
    uint32_t tolerate;
    bool per_call;
} sizing;

static bool get_sizing(ErlNifEnv *env, const ERL_NIF_TERM argv[], sizing *of) {
    es_backoff backoff;
    int64_t steps_ns[ES_BACKOFF_STEPS_MAX];
    if (!es_get_backoff(env, argv[0], &backoff, steps_ns) || !es_get_u32(env, argv[1], &of->tolerate) ||
        of->tolerate > ES_TOLERATE_MAX || !get_melt(enif_priv_data(env), argv[2], &of->per_call)) {
        return false;
    }
    size_t retries = es_backoff_plan(&backoff, NULL, PLAN_MAX);
    of->window_ns = es_backoff_window_ns(&backoff);
    of->attempts = retries < PLAN_MAX ? retries + 1 : 0;
    return true;
}

ES_NIF(trip_within) {
    (void)argc;
    sizing of;
    if (!get_sizing(env, argv, &of)) {
        return enif_make_badarg(env);
    }
    return enif_make_int64(env, es_trip_auto_within_ns(of.window_ns, of.attempts, of.tolerate, of.per_call));
}

ES_NIF(trip_narrowest) {
    (void)argc;
    sizing of;
    if (!get_sizing(env, argv, &of)) {
        return enif_make_badarg(env);
    }
    int64_t narrowest_ns = es_trip_narrowest_ns(of.window_ns, of.attempts, of.tolerate, of.per_call);
    uint64_t calls = es_trip_calls(of.attempts, of.tolerate, of.per_call);
    return enif_make_tuple2(env, enif_make_uint64(env, calls), es_make_ns_or_infinity(env, narrowest_ns));
}

ES_NIF(trip_names) {
    (void)argc;
    (void)argv;
    const es_priv *priv = enif_priv_data(env);
    return es_make_names(env, priv->rules);
}
