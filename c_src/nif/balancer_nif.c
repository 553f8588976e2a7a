/* SPDX-License-Identifier: Apache-2.0 */
/* balancer_nif.c - a balancer behind a handle, which keeps the endpoints that stand in it. Picking takes no lock. */
#include "balancer.h"

#include "endpoint_nif.h"
#include "nif.h"

typedef struct {
    es_balancer *core; /* NULL while the handle is being made                  */
    es_clock *clock;   /* kept; NULL for the machine's own                     */
    uint32_t count;
    es_place **places; /* kept, `count` of them; NULL while being made */
} handle;

/* The core wants one lock for all tables that an endpoint may stand in. Endpoints go out rarely. */
static pthread_mutex_t ejecting = PTHREAD_MUTEX_INITIALIZER;

static void destroy(ErlNifEnv *env, void *object) {
    (void)env;
    handle *h = object;
    es_balancer_free(h->core);
    for (uint32_t i = 0; i < h->count; i++) {
        enif_release_resource(h->places[i]);
    }
    enif_free(h->places);
    if (h->clock != NULL) {
        enif_release_resource(h->clock);
    }
}

bool es_balancer_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    priv->balancer_type = enif_open_resource_type(env, NULL, "es_balancer", destroy, flags, NULL);
    return priv->balancer_type != NULL;
}

static bool get_balancer(ErlNifEnv *env, ERL_NIF_TERM term, handle **h) {
    const es_priv *priv = enif_priv_data(env);
    void *object;
    if (!enif_get_resource(env, term, priv->balancer_type, &object)) {
        return false;
    }
    *h = object;
    return true;
}

static bool get_rule(ErlNifEnv *env, ERL_NIF_TERM term, const es_balancer_rule **rule) {
    const es_priv *priv = enif_priv_data(env);
    for (size_t i = 0; i < ES_NAMES_MAX && priv->balancers[i] != 0; i++) {
        if (enif_is_identical(term, priv->balancers[i])) {
            *rule = es_balancer_rule_at(i);
            return true;
        }
    }
    return false;
}

/* {endpoint, id, weight} */
static bool get_member(ErlNifEnv *env, ERL_NIF_TERM term, es_place **place, es_member *member) {
    const ERL_NIF_TERM *field;
    int arity;
    if (!enif_get_tuple(env, term, &arity, &field) || arity != 3 || !es_get_place(env, field[0], place) ||
        !es_get_count(env, field[1], &member->id) || !es_get_u32(env, field[2], &member->weight)) {
        return false;
    }
    member->endpoint = (*place)->core;
    return true;
}

/* Takes over what the list says: every place that it has read is kept, so that `destroy` may release it. */
static bool read_members(ErlNifEnv *env, ERL_NIF_TERM list, handle *h, es_member *members) {
    ERL_NIF_TERM head;
    for (; enif_get_list_cell(env, list, &head, &list); h->count++) {
        if (!get_member(env, head, &h->places[h->count], &members[h->count])) {
            return false;
        }
        enif_keep_resource(h->places[h->count]);
    }
    return true;
}

static ERL_NIF_TERM fill(ErlNifEnv *env, handle *h, es_balancer_config *config, ERL_NIF_TERM list) {
    es_member *members = enif_alloc(config->count * sizeof *members);
    h->places = enif_alloc(config->count * sizeof *h->places);
    es_status status = members == NULL || h->places == NULL ? ES_NO_MEMORY : ES_BAD_CONFIG;
    if (status != ES_NO_MEMORY && read_members(env, list, h, members)) {
        config->members = members;
        status = es_balancer_new(&h->core, config, &es_enif_allocator);
    }
    enif_free(members);
    return status == ES_OK ? enif_make_resource(env, h) : es_raise(env, status);
}

ES_NIF(balancer_new) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_balancer_config config = {.members = NULL};
    es_clock *clock;
    unsigned count;
    if (!get_rule(env, argv[0], &config.rule) || !enif_get_list_length(env, argv[1], &count) || count == 0 ||
        count > ES_MEMBERS_MAX || !es_get_u32(env, argv[2], &config.max_ejected_ppm) ||
        !es_get_clock(env, argv[3], &clock)) {
        return enif_make_badarg(env);
    }
    handle *h = enif_alloc_resource(priv->balancer_type, sizeof *h);
    if (h == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *h = (handle){.clock = clock};
    if (clock != NULL) {
        enif_keep_resource(clock);
    }
    config.count = count;
    ERL_NIF_TERM term = fill(env, h, &config, argv[1]);
    enif_release_resource(h);
    return term;
}

static bool get_tried(ErlNifEnv *env, ERL_NIF_TERM list, uint32_t tried[ES_TRIED_MAX], size_t *count) {
    ERL_NIF_TERM head;
    for (*count = 0; enif_get_list_cell(env, list, &head, &list); (*count)++) {
        if (*count == ES_TRIED_MAX || !es_get_u32(env, head, &tried[*count])) {
            return false;
        }
    }
    return enif_is_empty_list(env, list);
}

ES_NIF(balancer_pick) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    uint32_t tried[ES_TRIED_MAX];
    es_pick how = {.tried = tried};
    if (!get_balancer(env, argv[0], &h) || !es_get_count(env, argv[1], &how.key_hash) ||
        !get_tried(env, argv[2], tried, &how.tried_count)) {
        return enif_make_badarg(env);
    }
    how.now_ns = es_clock_now(h->clock);
    how.random_word = es_clock_random(h->clock);
    uint32_t index = es_balancer_pick(h->core, &how);
    return index == ES_NO_ENDPOINT ? priv->atom.nil : enif_make_uint(env, index);
}

ES_NIF(balancer_eject) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    handle *h;
    uint32_t index;
    int64_t for_ns;
    if (!get_balancer(env, argv[0], &h) || !es_get_u32(env, argv[1], &index) || index >= h->count ||
        !es_get_ns_or_infinity(env, argv[2], &for_ns) || for_ns < 0) {
        return enif_make_badarg(env);
    }
    int64_t now_ns = es_clock_now(h->clock);
    pthread_mutex_lock(&ejecting);
    bool ejected = es_balancer_eject(h->core, index, es_add_ns(now_ns, for_ns), now_ns);
    pthread_mutex_unlock(&ejecting);
    return priv->boolean[ejected];
}

ES_NIF(balancer_soonest) {
    (void)argc;
    handle *h;
    if (!get_balancer(env, argv[0], &h)) {
        return enif_make_badarg(env);
    }
    int64_t now_ns = es_clock_now(h->clock);
    int64_t at_ns = es_balancer_soonest_ns(h->core, now_ns);
    return es_make_ns_or_infinity(env, at_ns == ES_FOREVER_NS ? ES_FOREVER_NS : es_elapsed_ns(now_ns, at_ns));
}

ES_NIF(balancer_rules) {
    (void)argc;
    (void)argv;
    const es_priv *priv = enif_priv_data(env);
    return es_make_names(env, priv->balancers);
}
