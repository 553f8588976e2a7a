/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_nif.h - a breaker's handle, as the files that work on it see it. */
#ifndef ES_BREAKER_NIF_H
#define ES_BREAKER_NIF_H

#include "breaker.h"
#include "nif.h"

/* Whose death gives a probe back. */
typedef struct {
    bool watched;
    es_permit permit;
    ErlNifMonitor monitor;
} es_watch;

/* The reason that was given for a state set by hand. As many are kept as there can be changes that were not told yet,
 * and the one of the state there is. */
#define ES_NOTES 5

typedef struct {
    ErlNifEnv *env; /* NULL for none */
    ERL_NIF_TERM term;
    uint64_t generation; /* the state it belongs to */
} es_note;

/* The handle owns the lock that the core asks for; everything below `lock` is under it. */
typedef struct {
    es_breaker *core; /* NULL while the handle is being made         */
    es_clock *clock;  /* kept; NULL for the machine's own            */
    pthread_mutex_t lock;
    uint32_t rows;     /* of `watches`: one for each probe that may be out */
    es_watch *watches; /* NULL without probes                              */
    bool announcing;   /* `announcer` is telling listeners of the changes it took */
    ErlNifPid announcer;
    es_note *notes;     /* ES_NOTES of them once a hand has given a reason, NULL before */
    unsigned next_note; /* the place of the oldest */
} es_fuse;

bool es_get_fuse(ErlNifEnv *env, ERL_NIF_TERM term, es_fuse **fuse);

/* `changed` if listeners have to be told of something, else `ok`. */
ERL_NIF_TERM es_fuse_done(ErlNifEnv *env, const es_fuse *fuse);

ERL_NIF_TERM es_make_state(const es_priv *priv, es_state state);

/* Under the lock: the reason that was given for the state of this generation, or nil. `env` may be no process's, so it
 * can not give `priv`. */
ERL_NIF_TERM es_fuse_note(ErlNifEnv *env, const es_priv *priv, const es_fuse *fuse, uint64_t generation);

/* Calls one of the core's functions under the lock. */
typedef void es_fuse_act(es_fuse *fuse, int64_t now_ns);
ERL_NIF_TERM es_fuse_locked(ErlNifEnv *env, ERL_NIF_TERM term, es_fuse_act *act);

#endif
