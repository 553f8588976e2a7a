/* SPDX-License-Identifier: Apache-2.0 */
/* breaker_nif.c - a breaker behind a handle.
 *
 * The handle owns the lock that the core asks for. A call that finds the breaker closed takes no lock and reads no
 * clock; a refused one takes no lock.
 */
#include "nif.h"

typedef struct {
    es_breaker *breaker; /* NULL while the handle is being made                                  */
    es_clock *clock;     /* kept; NULL for the machine's own                                     */
    pthread_mutex_t lock;
    bool announcing; /* under lock: `announcer` is telling listeners of the changes taken    */
    ErlNifPid announcer;
} handle;

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    handle *h = object;
    es_breaker_free(h->breaker);
    if (h->clock != NULL) {
        enif_release_resource(h->clock);
    }
    pthread_mutex_destroy(&h->lock);
}

bool es_breaker_open(ErlNifEnv *env, es_priv *priv) {
    priv->breaker_type =
        enif_open_resource_type(env, NULL, "es_breaker", destroy, ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER, NULL);
    return priv->breaker_type != NULL;
}

typedef ERL_NIF_TERM body(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]);

/* Fetches the handle in argv[0] for a body that needs no lock. */
static ERL_NIF_TERM with_breaker(ErlNifEnv *env, const ERL_NIF_TERM argv[], body *run) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, argv[0], priv->breaker_type, &object)) {
        return enif_make_badarg(env);
    }
    return run(env, priv, object, argv);
}

/* The same under the handle's lock. */
static ERL_NIF_TERM locked(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[], body *run) {
    pthread_mutex_lock(&h->lock);
    ERL_NIF_TERM result = run(env, priv, h, argv);
    pthread_mutex_unlock(&h->lock);
    return result;
}

static ERL_NIF_TERM make_state(const es_priv *priv, es_state state) {
    return state == ES_OPEN ? priv->atom.open : priv->atom.closed;
}

static ERL_NIF_TERM make_done(const es_priv *priv, const handle *h) {
    return es_breaker_has_changes(h->breaker) ? priv->atom.changed : priv->atom.ok;
}

static ERL_NIF_TERM make_admission(ErlNifEnv *env, const es_priv *priv, const es_admission *admission) {
    if (admission->answer == ES_ADMITTED) {
        return enif_make_uint64(env, admission->generation);
    }
    return enif_make_tuple2(env, priv->atom.open, es_make_ns_or_infinity(env, admission->retry_after_ns));
}

static bool get_config(ErlNifEnv *env, ERL_NIF_TERM term, es_breaker_config *config) {
    const ERL_NIF_TERM *field;
    int arity;
    return enif_get_tuple(env, term, &arity, &field) && arity == 4 &&
           es_get_u32(env, field[0], &config->limits.tolerate) && es_get_ns(env, field[1], &config->within_ns) &&
           es_get_ns(env, field[2], &config->reset_ns) && es_get_u32(env, field[3], &config->fault_ppm);
}

ES_NIF(breaker_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_breaker_config config;
    es_clock *clock;
    if (!get_config(env, argv[0], &config) || !es_get_clock(env, argv[1], &clock)) {
        return enif_make_badarg(env);
    }
    handle *h = enif_alloc_resource(priv->breaker_type, sizeof *h);
    if (h == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *h = (handle){.clock = clock};
    pthread_mutex_init(&h->lock, NULL);
    if (clock != NULL) {
        enif_keep_resource(clock);
    }
    es_status status = es_breaker_new(&h->breaker, &config, es_clock_now(clock), &es_enif_allocator);
    ERL_NIF_TERM term = status == ES_OK ? enif_make_resource(env, h) : es_raise(env, status);
    enif_release_resource(h);
    return term;
}

static ERL_NIF_TERM admit_locked(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    (void)argv;
    es_admission admission = es_breaker_admit(h->breaker, es_clock_now(h->clock), es_clock_random(h->clock));
    ERL_NIF_TERM term = make_admission(env, priv, &admission);
    bool announce = admission.answer == ES_ADMITTED && es_breaker_has_changes(h->breaker);
    return announce ? enif_make_tuple2(env, priv->atom.changed, term) : term;
}

static ERL_NIF_TERM admit(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    es_admission admission;
    if (es_breaker_is_closed(h->breaker, &admission.generation)) {
        return enif_make_uint64(env, admission.generation);
    }
    admission = es_breaker_peek(h->breaker, es_clock_now(h->clock), es_clock_random(h->clock));
    return admission.answer == ES_DUE ? locked(env, priv, h, argv, admit_locked)
                                      : make_admission(env, priv, &admission);
}

ES_NIF(breaker_admit) {
    (void)argc;
    return with_breaker(env, argv, admit);
}

static ERL_NIF_TERM ask(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    (void)argv;
    (void)env;
    uint64_t generation;
    if (es_breaker_is_closed(h->breaker, &generation)) {
        return priv->atom.ok;
    }
    switch (es_breaker_peek(h->breaker, es_clock_now(h->clock), es_clock_random(h->clock)).answer) {
    case ES_ADMITTED:
        return priv->atom.ok;
    case ES_REFUSED:
        return priv->atom.blown;
    default:
        return priv->atom.due;
    }
}

ES_NIF(breaker_ask) {
    (void)argc;
    return with_breaker(env, argv, ask);
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

static ERL_NIF_TERM record(const es_priv *priv, handle *h, uint64_t generation, es_outcome outcome) {
    if (outcome != ES_FAILURE || !es_breaker_listens(h->breaker, generation)) {
        return priv->atom.ok;
    }
    int64_t now_ns = es_clock_now(h->clock);
    pthread_mutex_lock(&h->lock);
    es_breaker_report(h->breaker, generation, outcome, now_ns);
    ERL_NIF_TERM done = make_done(priv, h);
    pthread_mutex_unlock(&h->lock);
    return done;
}

static ERL_NIF_TERM report(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    uint64_t generation;
    es_outcome outcome;
    if (!es_get_count(env, argv[1], &generation) || !get_outcome(priv, argv[2], &outcome)) {
        return enif_make_badarg(env);
    }
    return record(priv, h, generation, outcome);
}

ES_NIF(breaker_report) {
    (void)argc;
    return with_breaker(env, argv, report);
}

static ERL_NIF_TERM melt(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    (void)env;
    (void)argv;
    return record(priv, h, es_breaker_generation(h->breaker), ES_FAILURE);
}

ES_NIF(breaker_melt) {
    (void)argc;
    return with_breaker(env, argv, melt);
}

static ERL_NIF_TERM reset(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    (void)env;
    (void)argv;
    es_breaker_reset(h->breaker, es_clock_now(h->clock));
    return make_done(priv, h);
}

static ERL_NIF_TERM reset_locked(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    return locked(env, priv, h, argv, reset);
}

ES_NIF(breaker_reset) {
    (void)argc;
    return with_breaker(env, argv, reset_locked);
}

static ERL_NIF_TERM look(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    (void)argv;
    es_breaker_view view = es_breaker_look(h->breaker, es_clock_now(h->clock));
    return enif_make_tuple5(env, make_state(priv, view.state), enif_make_uint(env, view.failures),
                            es_make_ns_or_infinity(env, view.retry_after_ns), enif_make_int64(env, view.changed_at_ns),
                            enif_make_uint64(env, view.generation));
}

static ERL_NIF_TERM look_locked(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    return locked(env, priv, h, argv, look);
}

ES_NIF(breaker_state) {
    (void)argc;
    return with_breaker(env, argv, look_locked);
}

static ERL_NIF_TERM make_rule(const es_priv *priv, const es_trip *rule) {
    for (size_t i = 0; rule != NULL && i < ES_NAMES_MAX; i++) {
        if (es_trip_at(i) == rule) {
            return priv->rules[i];
        }
    }
    return priv->atom.nil;
}

static ERL_NIF_TERM make_change(ErlNifEnv *env, const es_priv *priv, const es_change *change) {
    return enif_make_tuple6(env, make_state(priv, change->from), make_state(priv, change->to),
                            make_rule(priv, change->rule), enif_make_uint(env, change->failures),
                            enif_make_int64(env, change->at_ns), es_make_ns_or_infinity(env, change->retry_after_ns));
}

static ERL_NIF_TERM take(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    bool first = enif_is_identical(argv[1], priv->atom.first);
    ErlNifPid self;
    es_change change;
    enif_self(env, &self);
    bool mine = h->announcing && enif_compare_pids(&self, &h->announcer) == 0;
    bool taken = h->announcing && enif_is_process_alive(env, &h->announcer);
    if (first ? taken : !mine) {
        return priv->atom.nil;
    }
    h->announcing = es_breaker_take_change(h->breaker, &change);
    h->announcer = self;
    return h->announcing ? make_change(env, priv, &change) : priv->atom.nil;
}

/* Changes are told by one process at a time, or listeners would see them out of order: who asks for the :first
 * while another, or an outer frame of the same process, is at it gets nil, and that one finds the change with its
 * next :next. If it died, the next to ask takes over. */
static ERL_NIF_TERM change(ErlNifEnv *env, const es_priv *priv, handle *h, const ERL_NIF_TERM argv[]) {
    bool first = enif_is_identical(argv[1], priv->atom.first);
    if (!first && !enif_is_identical(argv[1], priv->atom.next)) {
        return enif_make_badarg(env);
    }
    if (first && !es_breaker_has_changes(h->breaker)) {
        return priv->atom.nil;
    }
    return locked(env, priv, h, argv, take);
}

ES_NIF(breaker_change) {
    (void)argc;
    return with_breaker(env, argv, change);
}
