/* SPDX-License-Identifier: Apache-2.0 */
/* nif.c - loading, upgrading and unloading the library, and the table of its functions. */
#define _GNU_SOURCE /* adaptive mutexes */

#include "nif.h"

#include "balancer.h"

void es_lock_init(pthread_mutex_t *lock) {
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_t spinning;
    pthread_mutexattr_init(&spinning);
    pthread_mutexattr_settype(&spinning, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &spinning);
    pthread_mutexattr_destroy(&spinning);
#else
    pthread_mutex_init(lock, NULL);
#endif
}

static bool name_rules(ErlNifEnv *env, es_priv *priv) {
    size_t i = 0;
    for (const es_trip *rule = es_trip_at(0); rule != NULL; rule = es_trip_at(++i)) {
        if (i >= ES_NAMES_MAX) {
            return false;
        }
        priv->rules[i] = enif_make_atom(env, rule->name);
    }
    return true;
}

static bool name_curves(ErlNifEnv *env, es_priv *priv) {
    size_t i = 0;
    for (const es_backoff_curve *curve = es_backoff_curve_at(0); curve != NULL; curve = es_backoff_curve_at(++i)) {
        if (i >= ES_NAMES_MAX) {
            return false;
        }
        priv->curves[i] = enif_make_atom(env, curve->name);
    }
    return true;
}

static bool name_balancers(ErlNifEnv *env, es_priv *priv) {
    size_t i = 0;
    for (const es_balancer_rule *rule = es_balancer_rule_at(0); rule != NULL; rule = es_balancer_rule_at(++i)) {
        if (i >= ES_NAMES_MAX) {
            return false;
        }
        priv->balancers[i] = enif_make_atom(env, rule->name);
    }
    return true;
}

static int load(ErlNifEnv *env, void **priv_data, ERL_NIF_TERM info) {
    (void)info;
    es_priv *priv = enif_alloc(sizeof *priv);
    if (priv == NULL) {
        return 1;
    }
    *priv = (es_priv){.layout = ES_LAYOUT};
#define ES_MAKE(name) priv->atom.name = enif_make_atom(env, #name);
    ES_ATOMS(ES_MAKE)
#undef ES_MAKE
    priv->boolean[false] = enif_make_atom(env, "false");
    priv->boolean[true] = enif_make_atom(env, "true");
    bool loaded = name_rules(env, priv) && name_curves(env, priv) && name_balancers(env, priv) &&
                  es_endpoint_open(env, priv) && es_balancer_open(env, priv) && es_clock_open(env, priv) &&
                  es_breaker_open(env, priv) && es_bulkhead_open(env, priv) && es_limiter_open(env, priv) &&
                  es_budget_open(env, priv);
    if (!loaded) {
        enif_free(priv);
        return 1;
    }
    *priv_data = priv;
    return 0;
}

static int upgrade(ErlNifEnv *env, void **priv_data, void **old_priv_data, ERL_NIF_TERM info) {
    const es_priv *old = *old_priv_data;
    if (old->layout != ES_LAYOUT) {
        return 1;
    }
    return load(env, priv_data, info);
}

static void unload(ErlNifEnv *env, void *priv_data) {
    (void)env;
    enif_free(priv_data);
}

#define ES_ROW(name, arity)                                                                                            \
    { #name, arity, name, 0 }

/* Takes longer than a normal scheduler may be kept from others. */
#define ES_LONG_ROW(name, arity)                                                                                       \
    { #name, arity, name, ERL_NIF_DIRTY_JOB_CPU_BOUND }

static ErlNifFunc functions[] = {
    ES_ROW(breaker_new, 2),      ES_ROW(breaker_admit, 1),    ES_ROW(breaker_ask, 1),       ES_ROW(breaker_report, 4),
    ES_ROW(breaker_melt, 1),     ES_ROW(breaker_look, 1),     ES_ROW(breaker_change, 2),    ES_ROW(breaker_open, 3),
    ES_ROW(breaker_bypass, 1),   ES_ROW(breaker_close, 1),    ES_ROW(breaker_reset, 1),     ES_ROW(breaker_inherit, 2),
    ES_ROW(breaker_retire, 1),   ES_ROW(breaker_idle, 1),     ES_ROW(clock_new, 1),         ES_ROW(clock_now, 1),
    ES_ROW(clock_advance, 2),    ES_ROW(clock_wait_until, 2), ES_ROW(bulkhead_new, 3),      ES_ROW(bulkhead_acquire, 3),
    ES_ROW(bulkhead_release, 2), ES_ROW(bulkhead_leave, 1),   ES_ROW(bulkhead_grant, 1),    ES_ROW(bulkhead_reset, 1),
    ES_ROW(bulkhead_set, 3),     ES_ROW(bulkhead_counts, 1),  ES_ROW(holder_new, 0),        ES_ROW(limiter_new, 2),
    ES_ROW(limiter_reserve, 3),  ES_ROW(limiter_peek, 2),     ES_ROW(limiter_give_back, 3), ES_ROW(limiter_reset, 1),
    ES_ROW(limiter_set, 2),      ES_ROW(endpoint_new, 0),     ES_ROW(endpoint_took, 2),     ES_ROW(endpoint_let_in, 1),
    ES_ROW(endpoint_drain, 2),   ES_ROW(endpoint_look, 2),    ES_LONG_ROW(balancer_new, 4), ES_ROW(balancer_pick, 3),
    ES_ROW(balancer_eject, 3),   ES_ROW(balancer_soonest, 1), ES_ROW(balancer_rules, 0),    ES_ROW(budget_new, 2),
    ES_ROW(budget_deposit, 1),   ES_ROW(budget_withdraw, 1),  ES_ROW(budget_balance, 1),    ES_ROW(backoff_next, 6),
    ES_ROW(backoff_after, 5),    ES_ROW(backoff_plan, 2),     ES_ROW(backoff_window, 1),    ES_ROW(backoff_curves, 0),
    ES_ROW(trip_within, 3),      ES_ROW(trip_narrowest, 3),   ES_ROW(trip_names, 0),
};

ERL_NIF_INIT(Elixir.ExternalService.Native, functions, load, NULL, upgrade, unload)
