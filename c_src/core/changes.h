/* SPDX-License-Identifier: Apache-2.0 */
/* changes.h - which changes of state has nobody been told of yet?
 *
 * A short queue of changes, kept for listeners that are told of them later, outside of every lock. Changes form a
 * chain: `from` of one is `to` of the one before it. A few are kept; when listeners are slower than that, the newest
 * kept change is drawn out to the state reached since, so the chain is never broken.
 *
 *     4 are kept: closed > open > half-open > open > half-open, and then the breaker closes:
 *     closed > open, open > half-open, half-open > open, open > closed
 *
 * Memory: the owner gives es_changes_bytes() bytes, aligned for int64_t, and keeps them; there is no free.
 *
 * Threads: es_changes_held may run on any thread at any time, the rest one at a time; the owner locks.
 *
 * Failure: none.
 */
#ifndef ES_CHANGES_H
#define ES_CHANGES_H

#include "breaker.h"

#define ES_CHANGES_KEPT 4

typedef struct es_changes es_changes;

size_t es_changes_bytes(void);

/* Makes the memory an empty queue. */
void es_changes_init(es_changes *changes);

/* Adds a change whose `from` is the `to` of the one added before it. */
void es_changes_keep(es_changes *changes, const es_change *change);

/* Lock-free. Is there a change to take? */
bool es_changes_held(const es_changes *changes);

/* Takes the oldest change, false if there is none. */
ES_NODISCARD bool es_changes_take(es_changes *changes, es_change *change);

#endif
