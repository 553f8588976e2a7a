/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_nif.c - an endpoint behind a handle. Its calls in flight are counted by the slots they hold (holder_nif.c),
 * so that a process that dies is counted down as well. */
#include "endpoint_nif.h"

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    es_place *place = object;
    es_endpoint_free(place->core);
}

bool es_endpoint_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    priv->endpoint_type = enif_open_resource_type(env, NULL, "es_endpoint", destroy, flags, NULL);
    return priv->endpoint_type != NULL;
}

bool es_get_place(ErlNifEnv *env, ERL_NIF_TERM term, es_place **place) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, term, priv->endpoint_type, &object)) {
        return false;
    }
    *place = object;
    return true;
}

ES_NIF(endpoint_new) {
    (void)argc;
    (void)argv;
    const es_priv *priv = enif_priv_data(env);
    es_place *place = enif_alloc_resource(priv->endpoint_type, sizeof *place);
    if (place == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    es_status status = es_endpoint_new(&place->core, &es_enif_allocator);
    ERL_NIF_TERM term = status == ES_OK ? enif_make_resource(env, place) : es_raise(env, status);
    enif_release_resource(place);
    return term;
}

ES_NIF(endpoint_took) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_place *place;
    int64_t duration_ns;
    if (!es_get_place(env, argv[0], &place) || !es_get_ns(env, argv[1], &duration_ns)) {
        return enif_make_badarg(env);
    }
    es_endpoint_took(place->core, duration_ns);
    return priv->atom.ok;
}

ES_NIF(endpoint_let_in) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_place *place;
    if (!es_get_place(env, argv[0], &place)) {
        return enif_make_badarg(env);
    }
    es_endpoint_let_in(place->core);
    return priv->atom.ok;
}

ES_NIF(endpoint_drain) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_place *place;
    bool draining = enif_is_identical(argv[1], priv->boolean[true]);
    if (!es_get_place(env, argv[0], &place) || (!draining && !enif_is_identical(argv[1], priv->boolean[false]))) {
        return enif_make_badarg(env);
    }
    es_endpoint_drain(place->core, draining);
    return priv->atom.ok;
}

ES_NIF(endpoint_look) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_place *place;
    es_clock *clock;
    if (!es_get_place(env, argv[0], &place) || !es_get_clock(env, argv[1], &clock)) {
        return enif_make_badarg(env);
    }
    int64_t latency_ns = es_endpoint_latency_ns(place->core);
    int64_t until_ns = es_endpoint_out_until_ns(place->core);
    int64_t out_ns = until_ns == ES_FOREVER_NS ? ES_FOREVER_NS : es_elapsed_ns(es_clock_now(clock), until_ns);
    return enif_make_tuple4(env, enif_make_uint(env, es_endpoint_in_flight(place->core)),
                            latency_ns == ES_UNKNOWN_NS ? priv->atom.nil : enif_make_int64(env, latency_ns),
                            es_make_ns_or_infinity(env, out_ns), priv->boolean[es_endpoint_is_draining(place->core)]);
}
