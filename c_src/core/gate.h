/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h - what does a breaker show to those who ask without a lock?
 *
 * The part of a breaker that many threads read while one changes it: its state and generation in one word, the time
 * before which nobody is admitted, and the ramp. It decides nothing but what is left to chance.
 *
 * Memory: a plain struct, here so that it can be a part of another; its fields are gate.c's own.
 *
 * Threads: functions that take a const es_gate may run on any thread at any time; those that take a plain one need the
 * owner's lock, one at a time.
 *
 * Units: nanoseconds, monotonic. Failure: none.
 */
#ifndef ES_GATE_H
#define ES_GATE_H

#include "breaker.h"

typedef struct {
    _Atomic uint64_t word;
    _Atomic int64_t until_ns, ramp_until_ns;
    int64_t ramp_ns;
    uint32_t fault_ppm;
} es_gate;

typedef struct {
    es_state state;
    uint64_t generation;
} es_gate_sight;

/* Closed. The last two as in es_breaker_config. */
void es_gate_init(es_gate *gate, int64_t ramp_ns, uint32_t fault_ppm);

/* Closed, with nothing left to chance? Then `generation` is set. */
bool es_gate_is_closed(const es_gate *gate, uint64_t *generation);

/* State and generation at one moment. */
es_gate_sight es_gate_look(const es_gate *gate);

/* As es_breaker_peek. */
es_admission es_gate_peek(const es_gate *gate, int64_t now_ns, uint64_t random_word);

/* Is nobody admitted in this state before a certain time? */
bool es_gate_holds_back(es_state state);

/* That time, and how far off it is. */
int64_t es_gate_until_ns(const es_gate *gate);
int64_t es_gate_left_ns(const es_gate *gate, int64_t now_ns);

/* Sets that time anew. */
void es_gate_hold(es_gate *gate, int64_t until_ns);

/* Starts a generation, with that time. */
void es_gate_start(es_gate *gate, es_state state, int64_t until_ns);

/* Starts a closed generation, and the ramp with it if there is one. */
void es_gate_ramp_up(es_gate *gate, int64_t at_ns);

/* Ends the ramp if its time is over. */
void es_gate_end_ramp(es_gate *gate, int64_t now_ns);

#endif
