/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_hand_nif.c - states that a hand sets, and how a breaker that takes another's place takes over such a state.
 */
#include "breaker_nif.h"

static void close_fuse(es_fuse *fuse, int64_t now_ns) {
    es_breaker_close(fuse->core, now_ns);
}

ES_NIF(breaker_close) {
    (void)argc;
    return es_fuse_locked(env, argv[0], close_fuse);
}

static void reset(es_fuse *fuse, int64_t now_ns) {
    es_breaker_reset(fuse->core, now_ns);
}

ES_NIF(breaker_reset) {
    (void)argc;
    return es_fuse_locked(env, argv[0], reset);
}

static void bypass(es_fuse *fuse, int64_t now_ns) {
    es_breaker_bypass(fuse->core, now_ns);
}

ES_NIF(breaker_bypass) {
    (void)argc;
    return es_fuse_locked(env, argv[0], bypass);
}

static void discard_changes(es_fuse *fuse) {
    es_change change;
    while (es_breaker_take_change(fuse->core, &change)) {
    }
}

/* Nobody hears of it any more: its place has been taken. Who still holds it finds it forced open for good if it was,
 * and else lets through whatever comes. */
static void retire(es_fuse *fuse, int64_t now_ns) {
    if (es_breaker_look(fuse->core, now_ns).state == ES_FORCED_OPEN) {
        es_breaker_force_open(fuse->core, ES_FOREVER_NS, now_ns);
    } else {
        es_breaker_reset(fuse->core, now_ns);
        es_breaker_bypass(fuse->core, now_ns);
    }
    discard_changes(fuse);
}

ES_NIF(breaker_retire) {
    (void)argc;
    return es_fuse_locked(env, argv[0], retire);
}

/* Room for the reasons that hands give. Most breakers never need it. */
static bool make_notes(es_fuse *fuse) {
    if (fuse->notes == NULL) {
        fuse->notes = enif_alloc(ES_NOTES * sizeof *fuse->notes);
        for (unsigned i = 0; fuse->notes != NULL && i < ES_NOTES; i++) {
            fuse->notes[i] = (es_note){.env = NULL};
        }
    }
    return fuse->notes != NULL;
}

/* Under the lock: puts a note in the place of the oldest, and gives that one back to be freed, or the note itself if
 * there is no memory for it. */
static ErlNifEnv *replace_note(es_fuse *fuse, ErlNifEnv *note_env, ERL_NIF_TERM note) {
    if (!make_notes(fuse)) {
        return note_env;
    }
    es_note *place = &fuse->notes[fuse->next_note];
    ErlNifEnv *old = place->env;
    *place = (es_note){note_env, note, es_breaker_permit(fuse->core).generation};
    fuse->next_note = (fuse->next_note + 1) % ES_NOTES;
    return old;
}

ERL_NIF_TERM es_fuse_note(ErlNifEnv *env, const es_priv *priv, const es_fuse *fuse, uint64_t generation) {
    /* Newest first: forcing open what is forced open gives the same state another reason. */
    for (unsigned back = 1; fuse->notes != NULL && back <= ES_NOTES; back++) {
        const es_note *note = &fuse->notes[(fuse->next_note + ES_NOTES - back) % ES_NOTES];
        if (note->env != NULL && note->generation == generation) {
            return enif_make_copy(env, note->term);
        }
    }
    return priv->atom.nil;
}

ES_NIF(breaker_open) {
    (void)argc;
    es_fuse *fuse;
    int64_t for_ns;
    if (!es_get_fuse(env, argv[0], &fuse) || !es_get_ns_or_infinity(env, argv[1], &for_ns) || for_ns < 0) {
        return enif_make_badarg(env);
    }
    ErlNifEnv *note_env = enif_alloc_env();
    ERL_NIF_TERM note = enif_make_copy(note_env, argv[2]);
    int64_t now_ns = es_clock_now(fuse->clock);
    pthread_mutex_lock(&fuse->lock);
    es_breaker_force_open(fuse->core, es_add_ns(now_ns, for_ns), now_ns);
    ErlNifEnv *old = replace_note(fuse, note_env, note);
    pthread_mutex_unlock(&fuse->lock);
    if (old != NULL) {
        enif_free_env(old);
    }
    return es_fuse_done(env, fuse);
}

/* Under the lock. */
static es_breaker_view look(es_fuse *fuse) {
    return es_breaker_look(fuse->core, es_clock_now(fuse->clock));
}

/* Gives a breaker nobody uses yet the state that a hand has set, if one has. */
static void take_over(es_fuse *fuse, const es_breaker_view *view) {
    int64_t now_ns = es_clock_now(fuse->clock);
    if (view->state == ES_BYPASSED) {
        es_breaker_bypass(fuse->core, now_ns);
    } else {
        es_breaker_force_open(fuse->core, es_add_ns(now_ns, view->retry_after_ns), now_ns);
    }
    discard_changes(fuse);
}

ES_NIF(breaker_inherit) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_fuse *heir, *from;
    if (!es_get_fuse(env, argv[0], &heir) || !es_get_fuse(env, argv[1], &from) || heir == from) {
        return enif_make_badarg(env);
    }
    ErlNifEnv *note_env = enif_alloc_env();
    pthread_mutex_lock(&from->lock);
    es_breaker_view view = look(from);
    ERL_NIF_TERM note = es_fuse_note(note_env, priv, from, view.generation);
    pthread_mutex_unlock(&from->lock);
    bool forced = view.state == ES_FORCED_OPEN || view.state == ES_BYPASSED;
    if (forced) {
        pthread_mutex_lock(&heir->lock);
        take_over(heir, &view);
        note_env = replace_note(heir, note_env, note);
        pthread_mutex_unlock(&heir->lock);
    }
    if (note_env != NULL) {
        enif_free_env(note_env);
    }
    return forced ? priv->atom.kept : priv->atom.free;
}
