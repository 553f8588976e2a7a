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

static bool is_infinity(ErlNifEnv *env, ERL_NIF_TERM term) {
    const es_priv *priv = enif_priv_data(env);
    return enif_is_identical(term, priv->atom.infinity);
}

/* Numbers first, here and below: they are the usual case, and the atoms are two calls of the VM away. */
bool es_get_ns_or_infinity(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *value) {
    if (es_get_ns(env, term, value)) {
        return true;
    }
    *value = ES_FOREVER_NS;
    return is_infinity(env, term);
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
    if (es_get_count(env, term, attempts)) {
        return true;
    }
    *attempts = ES_NO_LIMIT;
    return is_infinity(env, term);
}

/* {} is what every curve but the list has. */
static bool get_steps(ErlNifEnv *env, ERL_NIF_TERM term, es_backoff *backoff, int64_t steps_ns[ES_BACKOFF_STEPS_MAX]) {
    const ERL_NIF_TERM *step;
    int arity;
    if (!enif_get_tuple(env, term, &arity, &step) || arity > ES_BACKOFF_STEPS_MAX) {
        return false;
    }
    for (int i = 0; i < arity; i++) {
        if (!es_get_ns(env, step[i], &steps_ns[i])) {
            return false;
        }
    }
    backoff->steps_ns = steps_ns;
    backoff->steps = (size_t)arity;
    return true;
}

/* A share is spread; the others have a name. */
static bool get_jitter(ErlNifEnv *env, ERL_NIF_TERM term, es_backoff *backoff) {
    backoff->jitter = ES_JITTER_SPREAD;
    if (es_get_u32(env, term, &backoff->jitter_ppm)) {
        return true;
    }
    const es_priv *priv = enif_priv_data(env);
    backoff->jitter_ppm = 0;
    backoff->jitter = enif_is_identical(term, priv->atom.full) ? ES_JITTER_FULL : ES_JITTER_DECORRELATED;
    return backoff->jitter == ES_JITTER_FULL || enif_is_identical(term, priv->atom.decorrelated);
}

bool es_get_backoff(ErlNifEnv *env, ERL_NIF_TERM term, es_backoff *backoff, int64_t steps_ns[ES_BACKOFF_STEPS_MAX]) {
    const ERL_NIF_TERM *field;
    int arity;
    return enif_get_tuple(env, term, &arity, &field) && arity == 10 && get_curve(env, field[0], &backoff->curve) &&
           es_get_ns(env, field[1], &backoff->base_ns) && es_get_ns(env, field[2], &backoff->step_ns) &&
           es_get_u32(env, field[3], &backoff->multiplier_ppm) && get_steps(env, field[4], backoff, steps_ns) &&
           es_get_ns_or_infinity(env, field[5], &backoff->cap_ns) &&
           es_get_ns_or_infinity(env, field[6], &backoff->expiry_ns) &&
           get_attempts(env, field[7], &backoff->attempts_max) && get_jitter(env, field[8], backoff) &&
           es_get_ns_or_infinity(env, field[9], &backoff->asked_max_ns) && es_backoff_check(backoff) == ES_OK;
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
