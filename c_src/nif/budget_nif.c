/* SPDX-License-Identifier: Apache-2.0 */
/* budget_nif.c - a budget of retries behind a handle. Calls pay in and take out without a lock. */
#include "budget.h"
#include "nif.h"

typedef struct {
    es_budget *budget; /* NULL while the handle is being made     */
    es_clock *clock;   /* kept; NULL for the machine's own        */
} handle;

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    handle *h = object;
    es_budget_free(h->budget);
    if (h->clock != NULL) {
        enif_release_resource(h->clock);
    }
}

bool es_budget_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    priv->budget_type = enif_open_resource_type(env, NULL, "es_budget", destroy, flags, NULL);
    return priv->budget_type != NULL;
}

static bool get_budget(ErlNifEnv *env, ERL_NIF_TERM term, handle **h) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, term, priv->budget_type, &object)) {
        return false;
    }
    *h = object;
    return true;
}

static bool get_config(ErlNifEnv *env, ERL_NIF_TERM term, es_budget_config *config) {
    const ERL_NIF_TERM *field;
    int arity;
    return enif_get_tuple(env, term, &arity, &field) && arity == 2 && es_get_u32(env, field[0], &config->ratio_ppm) &&
           es_get_u32(env, field[1], &config->per_second);
}

ES_NIF(budget_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_budget_config config;
    es_clock *clock;
    if (!get_config(env, argv[0], &config) || !es_get_clock(env, argv[1], &clock)) {
        return enif_make_badarg(env);
    }
    handle *h = enif_alloc_resource(priv->budget_type, sizeof *h);
    if (h == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *h = (handle){.clock = clock};
    if (clock != NULL) {
        enif_keep_resource(clock);
    }
    es_status status = es_budget_new(&h->budget, &config, es_clock_now(clock), &es_enif_allocator);
    ERL_NIF_TERM term = status == ES_OK ? enif_make_resource(env, h) : es_raise(env, status);
    enif_release_resource(h);
    return term;
}

ES_NIF(budget_deposit) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    if (!get_budget(env, argv[0], &h)) {
        return enif_make_badarg(env);
    }
    es_budget_deposit(h->budget);
    return priv->atom.ok;
}

ES_NIF(budget_withdraw) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    if (!get_budget(env, argv[0], &h)) {
        return enif_make_badarg(env);
    }
    return priv->boolean[es_budget_withdraw(h->budget, es_clock_now(h->clock))];
}

ES_NIF(budget_balance) {
    (void)argc;
    handle *h;
    if (!get_budget(env, argv[0], &h)) {
        return enif_make_badarg(env);
    }
    return enif_make_uint64(env, es_budget_balance_ppm(h->budget, es_clock_now(h->clock)));
}
