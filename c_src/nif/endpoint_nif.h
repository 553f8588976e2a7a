/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_nif.h - an endpoint's handle, as the files that count its calls and pick it see it. */
#ifndef ES_ENDPOINT_NIF_H
#define ES_ENDPOINT_NIF_H

#include "endpoint.h"
#include "nif.h"

typedef struct {
    es_endpoint *core; /* NULL while the handle is being made */
} es_place;

bool es_get_place(ErlNifEnv *env, ERL_NIF_TERM term, es_place **place);

#endif
