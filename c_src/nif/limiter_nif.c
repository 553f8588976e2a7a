/* SPDX-License-Identifier: Apache-2.0 */
/* limiter_nif.c - a rate limiter behind a handle. Calls take from it without a lock. */
#include "gcra.h"
#include "nif.h"

typedef struct {
    es_gcra *gcra;        /* NULL while the handle is being made                     */
    es_clock *clock;      /* kept; NULL for the machine's own                        */
    pthread_mutex_t lock; /* for those functions of the core that ask for one        */
} handle;

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    handle *h = object;
    es_gcra_free(h->gcra);
    if (h->clock != NULL) {
        enif_release_resource(h->clock);
    }
    pthread_mutex_destroy(&h->lock);
}

bool es_limiter_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    priv->limiter_type = enif_open_resource_type(env, NULL, "es_limiter", destroy, flags, NULL);
    return priv->limiter_type != NULL;
}

static bool get_limiter(ErlNifEnv *env, ERL_NIF_TERM term, handle **h) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, term, priv->limiter_type, &object)) {
        return false;
    }
    *h = object;
    return true;
}

static bool get_rate(ErlNifEnv *env, ERL_NIF_TERM term, es_gcra_config *config) {
    const ERL_NIF_TERM *field;
    int arity;
    return enif_get_tuple(env, term, &arity, &field) && arity == 2 && es_get_count(env, field[0], &config->limit) &&
           es_get_ns(env, field[1], &config->per_ns);
}

static bool get_cost(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *cost) {
    return es_get_count(env, term, cost) && *cost > 0;
}

ES_NIF(limiter_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_gcra_config config;
    es_clock *clock;
    if (!get_rate(env, argv[0], &config) || !es_get_clock(env, argv[1], &clock)) {
        return enif_make_badarg(env);
    }
    handle *h = enif_alloc_resource(priv->limiter_type, sizeof *h);
    if (h == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *h = (handle){.clock = clock};
    es_lock_init(&h->lock);
    if (clock != NULL) {
        enif_keep_resource(clock);
    }
    es_status status = es_gcra_new(&h->gcra, &config, es_clock_now(clock), &es_enif_allocator);
    ERL_NIF_TERM term = status == ES_OK ? enif_make_resource(env, h) : es_raise(env, status);
    enif_release_resource(h);
    return term;
}

static ERL_NIF_TERM make_turn(ErlNifEnv *env, const es_gcra_turn *turn) {
    const es_priv *priv = enif_priv_data(env);
    switch (turn->answer) {
    case ES_GO:
        return enif_make_uint64(env, turn->place);
    case ES_GO_LATER:
        return enif_make_tuple3(env, priv->atom.wait, enif_make_int64(env, turn->wait_ns),
                                enif_make_uint64(env, turn->place));
    default:
        return enif_make_tuple2(env, priv->atom.refused, es_make_ns_or_infinity(env, turn->wait_ns));
    }
}

ES_NIF(limiter_reserve) {
    (void)argc;
    handle *h;
    uint64_t cost;
    int64_t wait_ns;
    if (!get_limiter(env, argv[0], &h) || !get_cost(env, argv[1], &cost) ||
        !es_get_ns_or_infinity(env, argv[2], &wait_ns) || wait_ns < 0) {
        return enif_make_badarg(env);
    }
    es_gcra_turn turn = es_gcra_reserve(h->gcra, es_clock_now(h->clock), cost, wait_ns);
    return make_turn(env, &turn);
}

ES_NIF(limiter_peek) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    uint64_t cost;
    if (!get_limiter(env, argv[0], &h) || !get_cost(env, argv[1], &cost)) {
        return enif_make_badarg(env);
    }
    es_gcra_turn turn = es_gcra_peek(h->gcra, es_clock_now(h->clock), cost);
    return turn.answer == ES_GO ? priv->atom.ok : make_turn(env, &turn);
}

ES_NIF(limiter_give_back) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    uint64_t cost, place;
    if (!get_limiter(env, argv[0], &h) || !get_cost(env, argv[1], &cost) || !es_get_count(env, argv[2], &place)) {
        return enif_make_badarg(env);
    }
    es_gcra_give_back(h->gcra, es_clock_now(h->clock), cost, place);
    return priv->atom.ok;
}

ES_NIF(limiter_reset) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    if (!get_limiter(env, argv[0], &h)) {
        return enif_make_badarg(env);
    }
    pthread_mutex_lock(&h->lock);
    es_gcra_reset(h->gcra, es_clock_now(h->clock));
    pthread_mutex_unlock(&h->lock);
    return priv->atom.ok;
}

ES_NIF(limiter_set) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    es_gcra_config config;
    if (!get_limiter(env, argv[0], &h) || !get_rate(env, argv[1], &config)) {
        return enif_make_badarg(env);
    }
    pthread_mutex_lock(&h->lock);
    es_status status = es_gcra_reconfigure(h->gcra, &config, es_clock_now(h->clock));
    pthread_mutex_unlock(&h->lock);
    return status == ES_OK ? priv->atom.ok : es_raise(env, status);
}
