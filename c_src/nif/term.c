/* SPDX-License-Identifier: Apache-2.0 */
/* term.c - between terms and the core's types. */
#include "nif.h"

static void *allocate(size_t bytes) {
    return enif_alloc(bytes);
}

static void release(void *memory) {
    enif_free(memory);
}

const es_allocator es_enif_allocator = {.alloc = allocate, .free = release};

bool es_get_ns(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *value) {
    ErlNifSInt64 number;
    if (!enif_get_int64(env, term, &number)) {
        return false;
    }
    *value = number;
    return true;
}

bool es_get_ns_or_infinity(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *value) {
    const es_priv *priv = enif_priv_data(env);
    if (enif_is_identical(term, priv->atom.infinity)) {
        *value = ES_FOREVER_NS;
        return true;
    }
    return es_get_ns(env, term, value);
}

bool es_get_count(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *value) {
    ErlNifUInt64 number;
    if (!enif_get_uint64(env, term, &number)) {
        return false;
    }
    *value = number;
    return true;
}

bool es_get_u32(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *value) {
    uint64_t number;
    if (!es_get_count(env, term, &number) || number > UINT32_MAX) {
        return false;
    }
    *value = (uint32_t)number;
    return true;
}

static bool get_curve(ErlNifEnv *env, ERL_NIF_TERM term, const es_backoff_curve **curve) {
    const es_priv *priv = enif_priv_data(env);
    for (size_t i = 0; i < ES_NAMES_MAX && priv->curves[i] != 0; i++) {
        if (enif_is_identical(term, priv->curves[i])) {
            *curve = es_backoff_curve_at(i);
            return true;
        }
    }
    return false;
}

static bool get_attempts(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *attempts) {
    const es_priv *priv = enif_priv_data(env);
    if (enif_is_identical(term, priv->atom.infinity)) {
        *attempts = ES_NO_LIMIT;
        return true;
    }
    return es_get_count(env, term, attempts);
}

bool es_get_backoff(ErlNifEnv *env, ERL_NIF_TERM term, es_backoff *backoff) {
    const ERL_NIF_TERM *field;
    int arity;
    return enif_get_tuple(env, term, &arity, &field) && arity == 7 && get_curve(env, field[0], &backoff->curve) &&
           es_get_ns(env, field[1], &backoff->base_ns) && es_get_count(env, field[2], &backoff->factor) &&
           es_get_ns_or_infinity(env, field[3], &backoff->cap_ns) &&
           es_get_ns_or_infinity(env, field[4], &backoff->expiry_ns) &&
           get_attempts(env, field[5], &backoff->attempts_max) && es_get_u32(env, field[6], &backoff->jitter_ppm) &&
           es_backoff_check(backoff) == ES_OK;
}

ERL_NIF_TERM es_make_ns_or_infinity(ErlNifEnv *env, int64_t ns) {
    const es_priv *priv = enif_priv_data(env);
    return ns == ES_FOREVER_NS ? priv->atom.infinity : enif_make_int64(env, ns);
}

ERL_NIF_TERM es_make_names(ErlNifEnv *env, const ERL_NIF_TERM names[ES_NAMES_MAX]) {
    unsigned count = 0;
    while (count < ES_NAMES_MAX && names[count] != 0) {
        count++;
    }
    return enif_make_list_from_array(env, names, count);
}

ERL_NIF_TERM es_raise(ErlNifEnv *env, es_status status) {
    const es_priv *priv = enif_priv_data(env);
    return status == ES_NO_MEMORY ? enif_raise_exception(env, priv->atom.enomem) : enif_make_badarg(env);
}
