/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_nif.c - a breaker behind a handle: made, asked and reported to.
 *
 * A call that finds the breaker closed takes no lock and reads no clock; a refused one takes no lock. A probe is
 * watched: when the process that holds it dies, it is given back.
 */
#include "breaker_nif.h"

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    es_fuse *fuse = object;
    es_breaker_free(fuse->core);
    enif_free(fuse->watches);
    for (unsigned i = 0; fuse->notes != NULL && i < ES_NOTES; i++) {
        if (fuse->notes[i].env != NULL) {
            enif_free_env(fuse->notes[i].env);
        }
    }
    enif_free(fuse->notes);
    if (fuse->clock != NULL) {
        enif_release_resource(fuse->clock);
    }
    pthread_mutex_destroy(&fuse->lock);
}

/* A process that held a probe is gone. */
static void down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor) {
    (void)env;
    (void)pid;
    es_fuse *fuse = object;
    int64_t now_ns = es_clock_now(fuse->clock);
    uint64_t word = es_clock_random(fuse->clock);
    pthread_mutex_lock(&fuse->lock);
    for (uint32_t row = 0; row < fuse->rows; row++) {
        es_watch *watch = &fuse->watches[row];
        if (watch->watched && enif_compare_monitors(&watch->monitor, monitor) == 0) {
            watch->watched = false;
            es_breaker_report(fuse->core, watch->permit, ES_IGNORE, 0, now_ns, word);
        }
    }
    pthread_mutex_unlock(&fuse->lock);
}

bool es_breaker_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    const ErlNifResourceTypeInit init = {.dtor = destroy, .down = down};
    priv->breaker_type = enif_open_resource_type_x(env, "es_breaker", &init, flags, NULL);
    return priv->breaker_type != NULL;
}

bool es_get_fuse(ErlNifEnv *env, ERL_NIF_TERM term, es_fuse **fuse) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, term, priv->breaker_type, &object)) {
        return false;
    }
    *fuse = object;
    return true;
}

ERL_NIF_TERM es_fuse_done(ErlNifEnv *env, const es_fuse *fuse) {
    const es_priv *priv = enif_priv_data(env);
    return es_breaker_has_changes(fuse->core) ? priv->atom.changed : priv->atom.ok;
}

ERL_NIF_TERM es_fuse_locked(ErlNifEnv *env, ERL_NIF_TERM term, es_fuse_act *act) {
    es_fuse *fuse;
    if (!es_get_fuse(env, term, &fuse)) {
        return enif_make_badarg(env);
    }
    pthread_mutex_lock(&fuse->lock);
    act(fuse, es_clock_now(fuse->clock));
    ERL_NIF_TERM done = es_fuse_done(env, fuse);
    pthread_mutex_unlock(&fuse->lock);
    return done;
}

/* Fields of the configuration, by the names of the core's own. */
static bool get_number(ErlNifEnv *env, ERL_NIF_TERM map, ERL_NIF_TERM key, uint32_t *value) {
    ERL_NIF_TERM term;
    return enif_get_map_value(env, map, key, &term) && es_get_u32(env, term, value);
}

static bool get_time(ErlNifEnv *env, ERL_NIF_TERM map, ERL_NIF_TERM key, int64_t *value) {
    ERL_NIF_TERM term;
    return enif_get_map_value(env, map, key, &term) && es_get_ns_or_infinity(env, term, value);
}

static bool get_tolerance(ErlNifEnv *env, ERL_NIF_TERM map, uint32_t *tolerate) {
    const es_priv *priv = enif_priv_data(env);
    ERL_NIF_TERM term;
    if (!enif_get_map_value(env, map, priv->atom.tolerate, &term)) {
        return false;
    }
    if (enif_is_identical(term, priv->atom.infinity)) {
        *tolerate = ES_TOLERATE_OFF;
        return true;
    }
    return es_get_u32(env, term, tolerate) && *tolerate != ES_TOLERATE_OFF;
}

static bool get_config(ErlNifEnv *env, ERL_NIF_TERM map, es_breaker_config *c) {
    const es_priv *p = enif_priv_data(env);
    return get_tolerance(env, map, &c->limits.tolerate) && get_time(env, map, p->atom.within, &c->within_ns) &&
           get_number(env, map, p->atom.failure_rate, &c->limits.failure_rate_ppm) &&
           get_number(env, map, p->atom.slow_rate, &c->limits.slow_rate_ppm) &&
           get_number(env, map, p->atom.min_calls, &c->limits.min_calls) &&
           get_number(env, map, p->atom.consecutive, &c->limits.consecutive) &&
           get_time(env, map, p->atom.window_time, &c->tally.span_ns) &&
           get_number(env, map, p->atom.window_calls, &c->tally.calls) &&
           get_time(env, map, p->atom.slow_call, &c->slow_ns) && get_time(env, map, p->atom.reset, &c->reset_ns) &&
           get_number(env, map, p->atom.reset_factor, &c->reset_factor_ppm) &&
           get_time(env, map, p->atom.reset_max, &c->reset_max_ns) &&
           get_number(env, map, p->atom.reset_jitter, &c->reset_jitter_ppm) &&
           get_number(env, map, p->atom.probes, &c->probes) && get_number(env, map, p->atom.successes, &c->successes) &&
           get_time(env, map, p->atom.lease, &c->lease_ns) && get_time(env, map, p->atom.ramp_up, &c->ramp_ns) &&
           get_number(env, map, p->atom.faults, &c->fault_ppm);
}

static es_status fill(es_fuse *fuse, const es_breaker_config *config) {
    es_status status = es_breaker_new(&fuse->core, config, es_clock_now(fuse->clock), &es_enif_allocator);
    if (status != ES_OK || config->probes == 0) {
        return status;
    }
    fuse->watches = enif_alloc(config->probes * sizeof *fuse->watches);
    if (fuse->watches == NULL) {
        return ES_NO_MEMORY;
    }
    for (; fuse->rows < config->probes; fuse->rows++) {
        fuse->watches[fuse->rows].watched = false;
    }
    return ES_OK;
}

ES_NIF(breaker_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_breaker_config config;
    es_clock *clock;
    if (!get_config(env, argv[0], &config) || !es_get_clock(env, argv[1], &clock)) {
        return enif_make_badarg(env);
    }
    es_fuse *fuse = enif_alloc_resource(priv->breaker_type, sizeof *fuse);
    if (fuse == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *fuse = (es_fuse){.clock = clock};
    es_lock_init(&fuse->lock);
    if (clock != NULL) {
        enif_keep_resource(clock);
    }
    es_status status = fill(fuse, &config);
    ERL_NIF_TERM term = status == ES_OK ? enif_make_resource(env, fuse) : es_raise(env, status);
    enif_release_resource(fuse);
    return term;
}

/* A permit is its generation, and of a probe {generation, row, serial}. */
static ERL_NIF_TERM make_permit(ErlNifEnv *env, const es_permit *permit) {
    ERL_NIF_TERM generation = enif_make_uint64(env, permit->generation);
    if (!permit->probe) {
        return generation;
    }
    return enif_make_tuple3(env, generation, enif_make_uint(env, permit->row), enif_make_uint(env, permit->serial));
}

static bool get_permit(ErlNifEnv *env, ERL_NIF_TERM term, const es_fuse *fuse, es_permit *permit) {
    const ERL_NIF_TERM *field;
    uint32_t row;
    int arity;
    *permit = (es_permit){.probe = false};
    if (es_get_count(env, term, &permit->generation)) {
        return true;
    }
    if (!enif_get_tuple(env, term, &arity, &field) || arity != 3 || !es_get_count(env, field[0], &permit->generation) ||
        !es_get_u32(env, field[1], &row) || row >= fuse->rows || !es_get_u32(env, field[2], &permit->serial)) {
        return false;
    }
    permit->probe = true;
    permit->row = (uint16_t)row; /* rows are at most ES_PROBES_MAX */
    return true;
}

static bool same_permit(const es_permit *a, const es_permit *b) {
    return a->generation == b->generation && a->row == b->row && a->serial == b->serial;
}

/* Puts a watch, or none, in the place of the one the row has; monitors are asked for outside of the lock. */
static void replace_watch(ErlNifEnv *env, es_fuse *fuse, uint32_t row, const es_watch *next, const es_permit *only) {
    pthread_mutex_lock(&fuse->lock);
    es_watch old = fuse->watches[row];
    bool replaced = only == NULL || (old.watched && same_permit(&old.permit, only));
    if (replaced) {
        fuse->watches[row] = *next;
    }
    pthread_mutex_unlock(&fuse->lock);
    if (replaced && old.watched) {
        enif_demonitor_process(env, fuse, &old.monitor);
    }
}

static void watch(ErlNifEnv *env, es_fuse *fuse, const es_permit *permit) {
    ErlNifPid self;
    es_watch next = {.permit = *permit};
    if (enif_self(env, &self) != NULL) {
        next.watched = enif_monitor_process(env, fuse, &self, &next.monitor) == 0;
    }
    replace_watch(env, fuse, permit->row, &next, NULL);
}

static void unwatch(ErlNifEnv *env, es_fuse *fuse, const es_permit *permit) {
    const es_watch none = {.watched = false};
    replace_watch(env, fuse, permit->row, &none, permit);
}

static ERL_NIF_TERM make_answer(ErlNifEnv *env, es_fuse *fuse, const es_admission *admission) {
    const es_priv *priv = enif_priv_data(env);
    if (admission->answer == ES_ADMITTED) {
        return make_permit(env, &admission->permit);
    }
    es_breaker_refused(fuse->core);
    return enif_make_tuple2(env, priv->atom.open, es_make_ns_or_infinity(env, admission->retry_after_ns));
}

static ERL_NIF_TERM admit_due(ErlNifEnv *env, es_fuse *fuse) {
    const es_priv *priv = enif_priv_data(env);
    int64_t now_ns = es_clock_now(fuse->clock);
    pthread_mutex_lock(&fuse->lock);
    es_admission admission = es_breaker_admit(fuse->core, now_ns, es_clock_random(fuse->clock));
    pthread_mutex_unlock(&fuse->lock);
    if (admission.answer == ES_ADMITTED && admission.permit.probe) {
        watch(env, fuse, &admission.permit);
    }
    ERL_NIF_TERM answer = make_answer(env, fuse, &admission);
    bool announce = admission.answer == ES_ADMITTED && es_breaker_has_changes(fuse->core);
    return announce ? enif_make_tuple2(env, priv->atom.changed, answer) : answer;
}

ES_NIF(breaker_admit) {
    (void)argc;
    es_fuse *fuse;
    es_admission admission;
    uint64_t generation;
    if (!es_get_fuse(env, argv[0], &fuse)) {
        return enif_make_badarg(env);
    }
    if (es_breaker_is_closed(fuse->core, &generation)) {
        return enif_make_uint64(env, generation);
    }
    admission = es_breaker_peek(fuse->core, es_clock_now(fuse->clock), es_clock_random(fuse->clock));
    return admission.answer == ES_DUE ? admit_due(env, fuse) : make_answer(env, fuse, &admission);
}

ES_NIF(breaker_ask) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_fuse *fuse;
    uint64_t generation;
    if (!es_get_fuse(env, argv[0], &fuse)) {
        return enif_make_badarg(env);
    }
    if (es_breaker_is_closed(fuse->core, &generation)) {
        return priv->atom.ok;
    }
    switch (es_breaker_peek(fuse->core, es_clock_now(fuse->clock), es_clock_random(fuse->clock)).answer) {
    case ES_ADMITTED:
        return priv->atom.ok;
    case ES_REFUSED:
        return priv->atom.blown;
    default:
        return priv->atom.due;
    }
}

static bool get_outcome(const es_priv *priv, ERL_NIF_TERM term, es_outcome *outcome) {
    if (enif_is_identical(term, priv->atom.failure)) {
        *outcome = ES_FAILURE;
    } else if (enif_is_identical(term, priv->atom.success)) {
        *outcome = ES_SUCCESS;
    } else if (enif_is_identical(term, priv->atom.ignore)) {
        *outcome = ES_IGNORE;
    } else {
        return false;
    }
    return true;
}

static ERL_NIF_TERM report(ErlNifEnv *env, es_fuse *fuse, es_permit permit, es_outcome outcome, int64_t duration_ns) {
    const es_priv *priv = enif_priv_data(env);
    if (outcome == ES_IGNORE) {
        es_breaker_ignored(fuse->core);
    }
    if (!es_breaker_listens(fuse->core, permit, outcome)) {
        return priv->atom.ok;
    }
    int64_t now_ns = es_clock_now(fuse->clock);
    uint64_t word = es_clock_random(fuse->clock);
    pthread_mutex_lock(&fuse->lock);
    es_breaker_report(fuse->core, permit, outcome, duration_ns, now_ns, word);
    pthread_mutex_unlock(&fuse->lock);
    return es_fuse_done(env, fuse);
}

ES_NIF(breaker_report) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_fuse *fuse;
    es_permit permit;
    es_outcome outcome;
    int64_t duration_ns;
    if (!es_get_fuse(env, argv[0], &fuse) || !get_permit(env, argv[1], fuse, &permit) ||
        !get_outcome(priv, argv[2], &outcome) || !es_get_ns(env, argv[3], &duration_ns) || duration_ns < 0) {
        return enif_make_badarg(env);
    }
    ERL_NIF_TERM done = report(env, fuse, permit, outcome, duration_ns);
    if (permit.probe) {
        unwatch(env, fuse, &permit);
    }
    return done;
}

ES_NIF(breaker_melt) {
    (void)argc;
    es_fuse *fuse;
    if (!es_get_fuse(env, argv[0], &fuse)) {
        return enif_make_badarg(env);
    }
    return report(env, fuse, es_breaker_permit(fuse->core), ES_FAILURE, 0);
}
