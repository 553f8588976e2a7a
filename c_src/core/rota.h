/* SPDX-License-Identifier: Apache-2.0 */
/* rota.h - whose turn is it?
 *
 * A list of turns in which each member stands as often as its weight says, spread as evenly as that goes: the smooth
 * weighted round robin of nginx, laid out once. At each turn every member gains its weight, who has most goes, and pays
 * the sum of all weights.
 *
 *     weights 5, 1, 1:   0 0 1 0 2 0 0, and again
 *
 * Weights are divided by what divides all of them, so that 100, 100, 200 make four turns. Where there would be more
 * than ES_ROTA_TURNS_MAX turns, or more than ES_ROTA_STEPS_MAX turns times members, there is no rota: es_rota_bytes
 * says 0, and the owner finds another way.
 *
 * Memory: the owner gives es_rota_bytes bytes, aligned for uint64_t, and keeps them; there is no free.
 * Threads: any, once it is made; nothing changes then. Failure: none but that.
 */
#ifndef ES_ROTA_H
#define ES_ROTA_H

#include "endpoint.h"

#define ES_ROTA_TURNS_MAX UINT32_C(65536)
#define ES_ROTA_STEPS_MAX (UINT64_C(1) << 23) /* some ten milliseconds; equal weights take none of them */

typedef struct es_rota es_rota;

/* For `count` members, 1 to ES_MEMBERS_MAX. 0 if the rota would be too long. */
size_t es_rota_bytes(const es_member *members, uint32_t count);

/* O(turns * count), O(count) where all weights are the same. */
void es_rota_init(es_rota *rota, const es_member *members, uint32_t count);

/* The member at turn number `turn`; after the last turn comes the first. */
uint32_t es_rota_at(const es_rota *rota, uint64_t turn);

/* How many turns there are until they repeat. */
uint32_t es_rota_length(const es_rota *rota);

#endif
