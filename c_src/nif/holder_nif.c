/* SPDX-License-Identifier: Apache-2.0 */
/* holder_nif.c - who holds slots, and gives them back when it dies.
 *
 * Every process that takes slots has one holder, made on first use and kept in its dictionary. It is the stack of the
 * permits the process holds, of whatever bulkheads, and its one place in a queue: a process waits for one slot at a
 * time. When the process dies, its monitor gives everything back. Only its process touches a holder while that lives,
 * so the stack needs no lock.
 */
#include <string.h>

#include "bulkhead_nif.h"

/* Calls nested deeper than this make the stack grow, once. */
#define HELD_INLINE 4

typedef struct {
    es_slots *from; /* kept while the permit is held */
    es_bulkhead_permit permit;
} held;

typedef struct {
    ErlNifPid pid;
    held *stack;
    uint32_t depth, capacity;
    held first[HELD_INLINE];
    es_slots *waits_for; /* kept while the ticket is queued or granted; the ticket is under its lock */
    es_ticket ticket;
    uint64_t token; /* tells the answer to this wait from answers to earlier ones */
} holder;

static holder *holder_of(es_ticket *ticket) {
    return (holder *)((char *)ticket - offsetof(holder, ticket));
}

/* Tells a waiter that it holds a permit. Under the bulkhead's lock: a waiter that finds its ticket granted then also
 * finds the message. If it is dead its monitor finds the ticket. */
void es_ticket_tell(ErlNifEnv *env, es_ticket *ticket) {
    const es_priv *priv = enif_priv_data(env);
    holder *h = holder_of(ticket);
    ErlNifEnv *message = enif_alloc_env();
    ERL_NIF_TERM term =
        enif_make_tuple2(message, priv->atom.external_service_slot, enif_make_uint64(message, h->token));
    enif_send(env, &h->pid, message, term);
    enif_free_env(message);
}

static void give_back(ErlNifEnv *env, held *slot) {
    es_slots *slots = slot->from;
    if (slots->endpoint != NULL) {
        es_endpoint_end(slots->endpoint->core, ES_UNKNOWN_NS);
    }
    if (!es_bulkhead_try_release(slots->core, slot->permit)) {
        int64_t now_ns = es_clock_now(slots->clock);
        pthread_mutex_lock(&slots->lock);
        es_ticket *next = es_bulkhead_release(slots->core, slot->permit, now_ns);
        if (next != NULL) {
            es_ticket_tell(env, next);
        }
        pthread_mutex_unlock(&slots->lock);
    }
    enif_release_resource(slots);
}

static void push(holder *h, es_slots *slots, es_bulkhead_permit permit) {
    if (slots->endpoint != NULL) {
        es_endpoint_begin(slots->endpoint->core);
    }
    h->stack[h->depth++] = (held){slots, permit};
}

/* Takes the holder out of the queue it is in. True if its turn had come: the permit is on the stack. */
static bool leave_queue(holder *h) {
    es_slots *slots = h->waits_for;
    pthread_mutex_lock(&slots->lock);
    bool granted = es_bulkhead_leave(slots->core, &h->ticket) == ES_TICKET_GRANTED;
    pthread_mutex_unlock(&slots->lock);
    h->waits_for = NULL;
    if (granted) {
        push(h, slots, h->ticket.permit);
    } else {
        enif_release_resource(slots);
    }
    return granted;
}

/* Its process is gone: nobody else touches the holder any more. */
static void down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor) {
    (void)pid;
    (void)monitor;
    holder *h = object;
    if (h->waits_for != NULL) {
        leave_queue(h);
    }
    while (h->depth > 0) {
        give_back(env, &h->stack[--h->depth]);
    }
}

static void destroy(ErlNifEnv *env, void *object) {
    holder *h = object;
    down(env, h, NULL, NULL);
    if (h->stack != h->first) {
        enif_free(h->stack);
    }
}

bool es_holder_open(ErlNifEnv *env, es_priv *priv) {
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    const ErlNifResourceTypeInit init = {.dtor = destroy, .down = down};
    priv->holder_type = enif_open_resource_type_x(env, "es_holder", &init, flags, NULL);
    return priv->holder_type != NULL;
}

/* A holder serves its own process alone. */
static bool get_holder(ErlNifEnv *env, ERL_NIF_TERM term, holder **mine) {
    const es_priv *priv = enif_priv_data(env);
    ErlNifPid self;
    void *object;
    if (!enif_get_resource(env, term, priv->holder_type, &object) || enif_self(env, &self) == NULL) {
        return false;
    }
    *mine = object;
    return enif_compare_pids(&self, &(*mine)->pid) == 0;
}

ES_NIF(holder_new) {
    (void)argc;
    (void)argv;
    const es_priv *priv = enif_priv_data(env);
    holder *h = enif_alloc_resource(priv->holder_type, sizeof *h);
    if (h == NULL) {
        return es_raise(env, ES_NO_MEMORY);
    }
    *h = (holder){.capacity = HELD_INLINE};
    h->stack = h->first;
    enif_self(env, &h->pid);
    bool monitored = enif_monitor_process(env, h, &h->pid, NULL) == 0;
    ERL_NIF_TERM term = monitored ? enif_make_resource(env, h) : enif_make_badarg(env);
    enif_release_resource(h);
    return term;
}

/* Room for one more permit, so that nothing can fail once a slot is taken. */
static bool make_room(holder *h) {
    if (h->depth < h->capacity) {
        return true;
    }
    held *larger = enif_alloc(2 * h->capacity * sizeof *larger);
    if (larger == NULL) {
        return false;
    }
    memcpy(larger, h->stack, h->depth * sizeof *larger);
    if (h->stack != h->first) {
        enif_free(h->stack);
    }
    h->stack = larger;
    h->capacity *= 2;
    return true;
}

static ERL_NIF_TERM make_queued(ErlNifEnv *env, const es_priv *priv, const holder *h, int64_t lease_end_ns) {
    return enif_make_tuple3(env, priv->atom.queued, enif_make_uint64(env, h->token),
                            es_make_ns_or_infinity(env, lease_end_ns));
}

static ERL_NIF_TERM acquire_locked(ErlNifEnv *env, const es_priv *priv, es_slots *slots, holder *h, bool may_wait) {
    es_bulkhead_permit permit;
    uint32_t ended = 0, reclaimed = 0;
    ERL_NIF_TERM answer = priv->atom.full;
    int64_t now_ns = es_clock_now(slots->clock);
    pthread_mutex_lock(&slots->lock);
    es_slots_let_in(env, slots, &ended); /* leases that have ended are for those who wait */
    switch (es_bulkhead_acquire(slots->core, may_wait ? &h->ticket : NULL, now_ns, &permit, &reclaimed)) {
    case ES_SLOT_TAKEN:
        push(h, slots, permit);
        enif_keep_resource(slots);
        answer = priv->atom.ok;
        break;
    case ES_SLOT_QUEUED:
        h->waits_for = slots;
        h->token++;
        enif_keep_resource(slots);
        answer = make_queued(env, priv, h, es_bulkhead_lease_end_ns(slots->core));
        break;
    case ES_SLOT_FULL:
        break;
    }
    pthread_mutex_unlock(&slots->lock);
    ended += reclaimed;
    return ended == 0 ? answer : enif_make_tuple3(env, priv->atom.reclaimed, enif_make_uint(env, ended), answer);
}

ES_NIF(bulkhead_acquire) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_slots *slots;
    holder *h;
    es_bulkhead_permit permit;
    bool may_wait = enif_is_identical(argv[2], priv->atom.wait);
    if (!es_get_slots(env, argv[0], &slots) || !get_holder(env, argv[1], &h) || h->waits_for != NULL ||
        (!may_wait && !enif_is_identical(argv[2], priv->atom.now))) {
        return enif_make_badarg(env);
    }
    if (!make_room(h)) {
        return es_raise(env, ES_NO_MEMORY);
    }
    if (!es_bulkhead_try_acquire(slots->core, &permit)) {
        return acquire_locked(env, priv, slots, h, may_wait);
    }
    push(h, slots, permit);
    enif_keep_resource(slots);
    return priv->atom.ok;
}

ES_NIF(bulkhead_release) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    es_slots *slots;
    holder *h;
    if (!es_get_slots(env, argv[0], &slots) || !get_holder(env, argv[1], &h)) {
        return enif_make_badarg(env);
    }
    for (uint32_t i = h->depth; i > 0; i--) {
        if (h->stack[i - 1].from == slots) {
            held slot = h->stack[i - 1];
            h->depth--;
            memmove(&h->stack[i - 1], &h->stack[i], (h->depth - (i - 1)) * sizeof slot);
            give_back(env, &slot);
            break;
        }
    }
    return priv->atom.ok;
}

ES_NIF(bulkhead_leave) {
    (void)argc;
    const es_priv *priv = enif_priv_data(env);
    holder *h;
    if (!get_holder(env, argv[0], &h)) {
        return enif_make_badarg(env);
    }
    return h->waits_for != NULL && leave_queue(h) ? priv->atom.granted : priv->atom.left;
}
