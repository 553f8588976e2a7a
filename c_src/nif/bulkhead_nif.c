/* SPDX-License-Identifier: Apache-2.0 */
/* bulkhead_nif.c - a bulkhead behind a handle. Its slots are taken through holders, in holder_nif.c. */
#include "bulkhead_nif.h"

/* The most waiters that one call lets in, so that it stays short: the caller calls again. */
#define GRANTS_MAX 64

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    es_slots *slots = object;
    es_bulkhead_free(slots->core);
    if (slots->clock != NULL) {
        enif_release_resource(slots->clock);
    }
    if (slots->endpoint != NULL) {
        enif_release_resource(slots->endpoint);
    }
    pthread_mutex_destroy(&slots->lock);
}

bool es_bulkhead_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    priv->slots_type = enif_open_resource_type(env, NULL, "es_slots", destroy, flags, NULL);
    return priv->slots_type != NULL && es_holder_open(env, priv);
}

bool es_get_slots(ErlNifEnv *env, ERL_NIF_TERM term, es_slots **slots) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, term, priv->slots_type, &object)) {
        return false;
    }
    *slots = object;
    return true;
}

static bool get_queue(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *places) {
    const es_priv *priv = enif_priv_data(env);
    if (enif_is_identical(term, priv->atom.infinity)) {
        *places = ES_QUEUE_MAX;
        return true;
    }
    return es_get_u32(env, term, places) && *places <= ES_QUEUE_MAX;
}

static bool get_config(ErlNifEnv *env, ERL_NIF_TERM term, es_bulkhead_config *config) {
    const ERL_NIF_TERM *field;
    int arity;
    return enif_get_tuple(env, term, &arity, &field) && arity == 3 && es_get_u32(env, field[0], &config->limit) &&
           get_queue(env, field[1], &config->queue_max) && es_get_ns_or_infinity(env, field[2], &config->lease_ns);
}

/* nil gives NULL */
static bool get_endpoint(ErlNifEnv *env, ERL_NIF_TERM term, es_place **endpoint) {
    const es_priv *priv = enif_priv_data(env);
    *endpoint = NULL;
    return enif_is_identical(term, priv->atom.nil) || es_get_place(env, term, endpoint);
}

ES_NIF(bulkhead_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_bulkhead_config config;
    es_clock *clock;
    es_place *endpoint;
    if (!get_config(env, argv[0], &config) || !es_get_clock(env, argv[1], &clock) ||
        !get_endpoint(env, argv[2], &endpoint)) {
        return enif_make_badarg(env);
    }
    es_slots *slots = enif_alloc_resource(priv->slots_type, sizeof *slots);
    if (slots == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *slots = (es_slots){.clock = clock, .endpoint = endpoint};
    es_lock_init(&slots->lock);
    if (clock != NULL) {
        enif_keep_resource(clock);
    }
    if (endpoint != NULL) {
        enif_keep_resource(endpoint);
    }
    es_status status = es_bulkhead_new(&slots->core, &config, &es_enif_allocator);
    ERL_NIF_TERM term = status == ES_OK ? enif_make_resource(env, slots) : es_raise(env, status);
    enif_release_resource(slots);
    return term;
}

bool es_slots_let_in(ErlNifEnv *env, es_slots *slots, uint32_t *ended) {
    unsigned granted = 0;
    int64_t now_ns = es_clock_now(slots->clock);
    es_ticket *next;
    do {
        uint32_t reclaimed = 0;
        next = es_bulkhead_grant(slots->core, now_ns, &reclaimed);
        *ended += reclaimed;
        if (next != NULL) {
            es_ticket_tell(env, next);
            granted++;
        }
    } while (next != NULL && granted < GRANTS_MAX);
    return next != NULL;
}

/* How many leases ended for those who were let in, when the next one does, and whether more may be let in. */
static ERL_NIF_TERM let_in(ErlNifEnv *env, es_slots *slots) {
    const es_priv *priv = enif_priv_data(env);
    uint32_t ended = 0;
    bool more = es_slots_let_in(env, slots, &ended);
    return enif_make_tuple3(env, enif_make_uint(env, ended),
                            es_make_ns_or_infinity(env, es_bulkhead_lease_end_ns(slots->core)),
                            more ? priv->atom.more : priv->atom.done);
}

/* Decodes the handle in argv[0] and runs one of the bodies below under its lock. */
typedef ERL_NIF_TERM body(ErlNifEnv *env, es_slots *slots, const ERL_NIF_TERM argv[]);

static ERL_NIF_TERM locked(ErlNifEnv *env, const ERL_NIF_TERM argv[], body *run) {
    es_slots *slots;
    if (!es_get_slots(env, argv[0], &slots)) {
        return enif_make_badarg(env);
    }
    pthread_mutex_lock(&slots->lock);
    ERL_NIF_TERM result = run(env, slots, argv);
    pthread_mutex_unlock(&slots->lock);
    return result;
}

static ERL_NIF_TERM grant(ErlNifEnv *env, es_slots *slots, const ERL_NIF_TERM argv[]) {
    (void)argv;
    return let_in(env, slots);
}

ES_NIF(bulkhead_grant) {
    (void)argc;
    return locked(env, argv, grant);
}

static ERL_NIF_TERM reset(ErlNifEnv *env, es_slots *slots, const ERL_NIF_TERM argv[]) {
    (void)argv;
    es_bulkhead_reset(slots->core);
    return let_in(env, slots);
}

ES_NIF(bulkhead_reset) {
    (void)argc;
    return locked(env, argv, reset);
}

static ERL_NIF_TERM set(ErlNifEnv *env, es_slots *slots, const ERL_NIF_TERM argv[]) {
    uint32_t limit, places;
    if (!es_get_u32(env, argv[1], &limit) || !get_queue(env, argv[2], &places)) {
        return enif_make_badarg(env);
    }
    es_status status = es_bulkhead_set_limit(slots->core, limit);
    if (status == ES_OK) {
        status = es_bulkhead_set_queue(slots->core, places);
    }
    return status == ES_OK ? let_in(env, slots) : es_raise(env, status);
}

ES_NIF(bulkhead_set) {
    (void)argc;
    return locked(env, argv, set);
}

static ERL_NIF_TERM counts(ErlNifEnv *env, es_slots *slots, const ERL_NIF_TERM argv[]) {
    (void)argv;
    return enif_make_tuple4(env, enif_make_uint(env, es_bulkhead_limit(slots->core)),
                            enif_make_uint(env, es_bulkhead_in_flight(slots->core)),
                            enif_make_uint(env, es_bulkhead_queued(slots->core)),
                            es_make_ns_or_infinity(env, es_bulkhead_lease_end_ns(slots->core)));
}

ES_NIF(bulkhead_counts) {
    (void)argc;
    return locked(env, argv, counts);
}
