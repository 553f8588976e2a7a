/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_look_nif.c - what a breaker shows: its state now, and the changes it has gone through. */
#include "breaker_nif.h"

ERL_NIF_TERM es_make_state(const es_priv *priv, es_state state) {
    switch (state) {
    case ES_CLOSED:
        return priv->atom.closed;
    case ES_OPEN:
        return priv->atom.open;
    case ES_HALF_OPEN:
        return priv->atom.half_open;
    case ES_FORCED_OPEN:
        return priv->atom.forced_open;
    default:
        return priv->atom.bypassed;
    }
}

static ERL_NIF_TERM make_map(ErlNifEnv *env, const ERL_NIF_TERM keys[], const ERL_NIF_TERM values[], size_t count) {
    ERL_NIF_TERM map;
    enif_make_map_from_arrays(env, (ERL_NIF_TERM *)keys, (ERL_NIF_TERM *)values, count, &map);
    return map;
}

static ERL_NIF_TERM make_counts(ErlNifEnv *env, const es_counts *counts) {
    const es_priv *p = enif_priv_data(env);
    const ERL_NIF_TERM keys[] = {p->atom.window_failures, p->atom.calls, p->atom.failures, p->atom.slow,
                                 p->atom.consecutive};
    const ERL_NIF_TERM values[] = {
        enif_make_uint(env, counts->failures),       enif_make_uint(env, counts->tally.calls),
        enif_make_uint(env, counts->tally.failures), enif_make_uint(env, counts->tally.slow),
        enif_make_uint(env, counts->consecutive),
    };
    return make_map(env, keys, values, sizeof keys / sizeof *keys);
}

/* Under the lock. */
static ERL_NIF_TERM make_view(ErlNifEnv *env, const es_fuse *fuse, const es_breaker_view *view) {
    const es_priv *p = enif_priv_data(env);
    const ERL_NIF_TERM keys[] = {p->atom.state,      p->atom.counts,      p->atom.rejected, p->atom.ignored,
                                 p->atom.changed_at, p->atom.retry_after, p->atom.probes,   p->atom.reason};
    const ERL_NIF_TERM values[] = {
        es_make_state(p, view->state),
        make_counts(env, &view->counts),
        enif_make_uint64(env, view->rejected),
        enif_make_uint64(env, view->ignored),
        enif_make_int64(env, view->changed_at_ns),
        es_make_ns_or_infinity(env, view->retry_after_ns),
        enif_make_uint(env, view->probes_out),
        es_fuse_note(env, p, fuse, view->generation),
    };
    return make_map(env, keys, values, sizeof keys / sizeof *keys);
}

ES_NIF(breaker_idle) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_fuse *fuse;
    if (!es_get_fuse(env, argv[0], &fuse)) {
        return enif_make_badarg(env);
    }
    pthread_mutex_lock(&fuse->lock);
    bool idle = es_breaker_is_idle(fuse->core, es_clock_now(fuse->clock));
    pthread_mutex_unlock(&fuse->lock);
    return priv->boolean[idle];
}

ES_NIF(breaker_look) {
    (void)argc;
    es_fuse *fuse;
    if (!es_get_fuse(env, argv[0], &fuse)) {
        return enif_make_badarg(env);
    }
    int64_t now_ns = es_clock_now(fuse->clock);
    pthread_mutex_lock(&fuse->lock);
    es_breaker_view view = es_breaker_look(fuse->core, now_ns);
    ERL_NIF_TERM map = make_view(env, fuse, &view);
    pthread_mutex_unlock(&fuse->lock);
    return map;
}

static ERL_NIF_TERM make_rule(const es_priv *priv, const es_trip *rule) {
    for (size_t i = 0; rule != NULL && i < ES_NAMES_MAX; i++) {
        if (es_trip_at(i) == rule) {
            return priv->rules[i];
        }
    }
    return priv->atom.nil;
}

/* Under the lock. */
static ERL_NIF_TERM make_change(ErlNifEnv *env, const es_fuse *fuse, const es_change *change) {
    const es_priv *p = enif_priv_data(env);
    const ERL_NIF_TERM keys[] = {p->atom.from,   p->atom.to,     p->atom.rule,
                                 p->atom.counts, p->atom.reason, p->atom.retry_after};
    const ERL_NIF_TERM values[] = {
        es_make_state(p, change->from),
        es_make_state(p, change->to),
        make_rule(p, change->rule),
        make_counts(env, &change->counts),
        es_fuse_note(env, p, fuse, change->generation),
        es_make_ns_or_infinity(env, change->retry_after_ns),
    };
    return make_map(env, keys, values, sizeof keys / sizeof *keys);
}

/* Under the lock. */
static ERL_NIF_TERM take(ErlNifEnv *env, es_fuse *fuse, bool first) {
    const es_priv *priv = enif_priv_data(env);
    ErlNifPid self;
    es_change change;
    enif_self(env, &self);
    bool mine = fuse->announcing && enif_compare_pids(&self, &fuse->announcer) == 0;
    bool taken = fuse->announcing && enif_is_process_alive(env, &fuse->announcer);
    if (first ? taken : !mine) {
        return priv->atom.nil;
    }
    fuse->announcing = es_breaker_take_change(fuse->core, &change);
    fuse->announcer = self;
    return fuse->announcing ? make_change(env, fuse, &change) : priv->atom.nil;
}

/* Changes are told by one process at a time, or listeners would see them out of order: who asks for the :first
 * while another, or an outer frame of the same process, is at it gets nil, and that one finds the change with its
 * next :next. If it died, the next to ask takes over. */
ES_NIF(breaker_change) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_fuse *fuse;
    bool first = enif_is_identical(argv[1], priv->atom.first);
    if (!es_get_fuse(env, argv[0], &fuse) || (!first && !enif_is_identical(argv[1], priv->atom.next))) {
        return enif_make_badarg(env);
    }
    if (first && !es_breaker_has_changes(fuse->core)) {
        return priv->atom.nil;
    }
    pthread_mutex_lock(&fuse->lock);
    ERL_NIF_TERM term = take(env, fuse, first);
    pthread_mutex_unlock(&fuse->lock);
    return term;
}
