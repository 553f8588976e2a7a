/* SPDX-License-Identifier: Apache-2.0 */
/* es.h - the units, the arithmetic and the memory that every mechanism of the core shares.
 *
 * Units: every time is an int64_t count of nanoseconds on a monotonic clock whose zero means nothing; it may be
 * negative, and only differences mean something. Shares are parts per million. Arithmetic on times saturates, so
 * ES_FOREVER_NS plus anything is ES_FOREVER_NS: a deadline can be infinite, it can not wrap into the past.
 *
 * Threads: nothing here has state.
 */
#ifndef ES_H
#define ES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ES_NODISCARD __attribute__((warn_unused_result))

#define ES_FOREVER_NS INT64_MAX   /* no bound                                 */
#define ES_MS_NS INT64_C(1000000) /* nanoseconds in a millisecond             */
#define ES_PPM UINT32_C(1000000)  /* a share of one, in parts per million     */

/* 2^64 over the golden ratio: its multiples, cut off at 64 bits, keep further apart than those of any other number. */
#define ES_WEYL UINT64_C(0x9e3779b97f4a7c15)

/* What a constructor says. */
typedef enum {
    ES_OK = 0,
    ES_NO_MEMORY, /* the allocator gave NULL; nothing was made           */
    ES_BAD_CONFIG /* a field is outside what its header comment allows   */
} es_status;

/* Where objects get their memory. `alloc` may return NULL; `free` takes what `alloc` gave. Both must stay valid
 * until the last object made with them is freed. */
typedef struct {
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
} es_allocator;

/* a + b, held inside the range of int64_t. */
int64_t es_add_ns(int64_t a, int64_t b);

/* From `since` to `now`, never negative: a thread that read the clock earlier has waited for nothing.
 * Saturates at ES_FOREVER_NS. */
int64_t es_elapsed_ns(int64_t since_ns, int64_t now_ns);

/* time * n for time >= 0, at most ES_FOREVER_NS. */
int64_t es_scale_ns(int64_t time_ns, uint64_t n);

/* The share `ppm` of time >= 0, rounded down, exact over the whole range. ppm may exceed ES_PPM; saturates. */
int64_t es_share_ns(int64_t time_ns, uint32_t ppm);

/* A number in [0, bound] made from one random word: uniform as far as 64 bits allow. bound >= 0. */
int64_t es_random_up_to(uint64_t random_word, int64_t bound);

/* A time spread by the share `ppm` of it either way, drawn with one random word, never above most_ns. The band is moved
 * down there, not cut off: cut off, most callers would draw most_ns itself and return together.
 * 0 <= time <= most, ppm <= ES_PPM. */
int64_t es_spread_ns(int64_t time_ns, uint32_t ppm, int64_t most_ns, uint64_t random_word);

/* Another word for each word, with its bits mixed: words that differ little give words that have nothing in common.
 * Counting in steps of ES_WEYL and mixing makes many random words of one. */
uint64_t es_mix(uint64_t word);

/* Is an event of probability `ppm` drawn with this random word? 0 never, ES_PPM and above always. */
bool es_random_hit(uint64_t random_word, uint32_t ppm);

#endif
