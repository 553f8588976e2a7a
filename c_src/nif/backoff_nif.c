/* SPDX-License-Identifier: Apache-2.0 */
/* backoff_nif.c - retry schedules, and the counting windows that are sized against them. */
#include "nif.h"

/* A plan is for people and for sizing: longer ones are cut, so the call stays short. */
#define PLAN_MAX 1000

ES_NIF(backoff_next) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_backoff backoff;
    uint64_t retry;
    int64_t elapsed_ns;
    es_clock *clock;
    if (!es_get_backoff(env, argv[0], &backoff) || !es_get_count(env, argv[1], &retry) || retry == 0 ||
        !es_get_ns(env, argv[2], &elapsed_ns) || !es_get_clock(env, argv[3], &clock)) {
        return enif_make_badarg(env);
    }
    int64_t delay_ns = 0;
    uint64_t word = backoff.jitter_ppm == 0 ? 0 : es_clock_random(clock);
    switch (es_backoff_next(&backoff, retry, elapsed_ns, word, &delay_ns)) {
    case ES_RETRY:
        return enif_make_int64(env, delay_ns);
    case ES_RETRY_LAST:
        return enif_make_tuple2(env, priv->atom.last, enif_make_int64(env, delay_ns));
    default:
        return priv->atom.exhausted;
    }
}

ES_NIF(backoff_plan) {
    (void)argc;
    es_backoff backoff;
    uint32_t max;
    if (!es_get_backoff(env, argv[0], &backoff) || !es_get_u32(env, argv[1], &max) || max > PLAN_MAX) {
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
    if (!es_get_backoff(env, argv[0], &backoff)) {
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

ES_NIF(trip_within) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_backoff backoff;
    uint32_t tolerate;
    bool per_call;
    if (!es_get_backoff(env, argv[0], &backoff) || !es_get_u32(env, argv[1], &tolerate) || tolerate > ES_TOLERATE_MAX ||
        !get_melt(priv, argv[2], &per_call)) {
        return enif_make_badarg(env);
    }
    size_t retries = es_backoff_plan(&backoff, NULL, PLAN_MAX);
    uint64_t attempts = retries < PLAN_MAX ? retries + 1 : 0;
    return enif_make_int64(env, es_trip_auto_within_ns(es_backoff_window_ns(&backoff), attempts, tolerate, per_call));
}

ES_NIF(trip_names) {
    (void)argc;
    (void)argv;
    const es_priv *priv = enif_priv_data(env);
    return es_make_names(env, priv->rules);
}
