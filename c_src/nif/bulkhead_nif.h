/* SPDX-License-Identifier: Apache-2.0 */
/* bulkhead_nif.h - what a bulkhead's handle and the holders of its slots know of each other. */
#ifndef ES_BULKHEAD_NIF_H
#define ES_BULKHEAD_NIF_H

#include "bulkhead.h"
#include "endpoint_nif.h"
#include "nif.h"

typedef struct {
    es_bulkhead *core;  /* NULL while the handle is being made                                    */
    es_clock *clock;    /* kept; NULL for the machine's own                                       */
    es_place *endpoint; /* kept; whose calls in flight the slots count, or NULL */
    pthread_mutex_t lock;
} es_slots;

/* Opens the holders' resource type. False if the VM refuses. */
bool es_holder_open(ErlNifEnv *env, es_priv *priv);

bool es_get_slots(ErlNifEnv *env, ERL_NIF_TERM term, es_slots **slots);

/* Under the lock: lets in those who can have a slot although none was given back, a limited number at a time: true if
 * there may be more. Adds to `ended` how many leases that ended. */
bool es_slots_let_in(ErlNifEnv *env, es_slots *slots, uint32_t *ended);

/* Under the lock: tells the waiter of a granted ticket that it holds a permit. */
void es_ticket_tell(ErlNifEnv *env, es_ticket *ticket);

#endif
