/* SPDX-License-Identifier: Apache-2.0 */
/* cooldown.h - for how long does a breaker open this time?
 *
 * The first time for reset_ns; each time that a probe has failed, longer by a factor, up to a bound. What is drawn from
 * it lies in a band around that, so that breakers that opened together do not try again together.
 *
 *     reset 1 s, factor 2, at most 5 s:   1 2 4 5 5 ... seconds
 *
 * Memory: a plain struct of the owner's. Threads: one at a time; the owner locks. Units: nanoseconds. Failure: none,
 * once the fields were right.
 */
#ifndef ES_COOLDOWN_H
#define ES_COOLDOWN_H

#include "es.h"

typedef struct {
    int64_t reset_ns;    /* the first time, >= 0, ES_FOREVER_NS: for ever                */
    int64_t max_ns;      /* never longer, >= reset_ns                                    */
    uint32_t factor_ppm; /* how much longer each time, >= ES_PPM                         */
    uint32_t jitter_ppm; /* width of the band, either way, to ES_PPM; never above max_ns */
    int64_t last_ns;     /* of the last time, before the draw; set by these functions    */
} es_cooldown;

/* The next time is the first again. To be called before any other function. */
void es_cooldown_restart(es_cooldown *cooldown);

/* Grows the time, for a probe has failed. */
void es_cooldown_grow(es_cooldown *cooldown);

/* The time, drawn with one random word. */
int64_t es_cooldown_draw_ns(const es_cooldown *cooldown, uint64_t random_word);

#endif
