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

/* The handle owns the lock that the core asks for; everything below `lock` is under it. */
typedef struct {
    es_breaker *core; /* NULL while the handle is being made         */
    es_clock *clock;  /* kept; NULL for the machine's own            */
    pthread_mutex_t lock;
    uint32_t rows;     /* of `watches`: one for each probe that may be out */
    es_watch *watches; /* NULL without probes                              */
    bool announcing;   /* `announcer` is telling listeners of the changes it took */
    ErlNifPid announcer;
    ErlNifEnv *note_env; /* what was given as the reason of the last state forced by hand, NULL for none */
    ERL_NIF_TERM note;
    uint64_t note_generation; /* the state it belongs to */
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
