/* SPDX-License-Identifier: Apache-2.0 */
/* window.h - how many failures were seen inside the last `span_ns`?
 *
 * An exact sliding window: a ring that keeps the time of each failure, not buckets. A failure counts while its age is
 * strictly below the span. Recording is O(1) whatever the capacity: it lets go of at most two old failures, which is
 * enough, since it adds one.
 *
 *     capacity 3, span 100:   recorded at 0, 50, 99 -> 3 held      recorded at 0, 50, 100 -> 2 held (0 is 100 old)
 *
 * Memory: the owner gives es_window_bytes(capacity) bytes, aligned for int64_t, and keeps them; there is no free.
 * Threads: one at a time; the owner locks. Times that arrive out of order count as the latest time seen.
 * Failure: none, once the capacity and the span were right.
 */
#ifndef ES_WINDOW_H
#define ES_WINDOW_H

#include "es.h"

#define ES_WINDOW_CAPACITY_MAX UINT32_C(1000001)

typedef struct es_window es_window;

/* Bytes for a window of `capacity` failures: 8 for each, and a fixed part. 0 if capacity is 0 or above the maximum. */
size_t es_window_bytes(uint32_t capacity);

/* Makes the memory an empty window. capacity as given to es_window_bytes; span_ns > 0. */
void es_window_init(es_window *window, uint32_t capacity, int64_t span_ns);

/* Adds a failure and returns how many are held. While fewer than `capacity` are fresh the result may still include
 * old ones, but it reaches `capacity` exactly when the last `capacity` failures are all inside the span. */
ES_NODISCARD uint32_t es_window_record(es_window *window, int64_t now_ns);

/* How many failures are inside the span at `now_ns`: exact, O(log capacity), changes nothing. */
uint32_t es_window_count(const es_window *window, int64_t now_ns);

/* Forgets every failure. O(1). */
void es_window_clear(es_window *window);

#endif
