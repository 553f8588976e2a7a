/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include <assert.h>
#include <stdatomic.h>

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long long) == sizeof(uint64_t),
              "a breaker is asked without a lock: 64-bit atomics have to be lock-free");

/* The word is the generation, shifted up, over a byte of the state and flags. A byte of zero is a closed breaker that
 * refuses nothing, so the fast path looks at nothing else. */
#define GENERATION_SHIFT 8
#define STATE_AND_FLAGS UINT64_C(0xff)
#define STATE UINT64_C(0x07)
#define FAULT_FLAG UINT64_C(0x08) /* closed, and faults are injected */
#define RAMP_FLAG UINT64_C(0x10)  /* closed, and the ramp is running */

static uint64_t fault_flag(const es_gate *gate) {
    return gate->fault_ppm > 0 ? FAULT_FLAG : 0;
}

void es_gate_init(es_gate *gate, int64_t ramp_ns, uint32_t fault_ppm) {
    gate->ramp_ns = ramp_ns;
    gate->fault_ppm = fault_ppm;
    atomic_init(&gate->word, fault_flag(gate));
    atomic_init(&gate->until_ns, INT64_MIN);
    atomic_init(&gate->ramp_until_ns, INT64_MIN);
}

/* Acquire: a reader that sees a state also sees the times that were stored before the word that says so. */
static uint64_t read_word(const es_gate *gate) {
    return atomic_load_explicit(&gate->word, memory_order_acquire);
}

/* Release: the times stored before the word are seen by every reader of the word. */
static void write_word(es_gate *gate, uint64_t word) {
    atomic_store_explicit(&gate->word, word, memory_order_release);
}

/* Read after the word, a time may belong to a later state than the word does. What it says is as true then, and one
 * that is over sends the reader to the lock. Relaxed: the acquire load of the word has ordered it, and nothing else
 * hangs on it. */
static int64_t read_time(const _Atomic int64_t *time_ns) {
    return atomic_load_explicit(time_ns, memory_order_relaxed);
}

static void write_time(_Atomic int64_t *time_ns, int64_t value_ns) {
    atomic_store_explicit(time_ns, value_ns, memory_order_relaxed);
}

static int64_t left_ns(const _Atomic int64_t *end, int64_t now_ns) {
    int64_t end_ns = read_time(end);
    return end_ns == ES_FOREVER_NS ? ES_FOREVER_NS : es_elapsed_ns(now_ns, end_ns);
}

static uint64_t generation_in(uint64_t word) {
    return word >> GENERATION_SHIFT;
}

static es_state state_in(uint64_t word) {
    return (es_state)(word & STATE);
}

bool es_gate_is_closed(const es_gate *gate, uint64_t *generation) {
    uint64_t word = read_word(gate);
    *generation = generation_in(word);
    return (word & STATE_AND_FLAGS) == 0;
}

es_gate_sight es_gate_look(const es_gate *gate) {
    uint64_t word = read_word(gate);
    return (es_gate_sight){state_in(word), generation_in(word)};
}

bool es_gate_holds_back(es_state state) {
    return state != ES_CLOSED && state != ES_BYPASSED;
}

int64_t es_gate_until_ns(const es_gate *gate) {
    return read_time(&gate->until_ns);
}

int64_t es_gate_left_ns(const es_gate *gate, int64_t now_ns) {
    return left_ns(&gate->until_ns, now_ns);
}

/* A call draws the moment of the ramp from which on calls like it go out; a tenth of them go from the start. The halves
 * of the word change places, so that this draw and that of the faults have nothing to do with each other. */
static bool is_let_through(const es_gate *gate, int64_t ramp_left_ns, uint64_t random_word) {
    int64_t moment_ns = es_random_up_to(random_word << 32 | random_word >> 32, gate->ramp_ns - 1);
    return moment_ns <= (gate->ramp_ns - 1) / 10 || moment_ns < es_elapsed_ns(ramp_left_ns, gate->ramp_ns);
}

static es_answer leave_to_chance(const es_gate *gate, uint64_t word, int64_t now_ns, uint64_t random_word) {
    bool ramps = (word & RAMP_FLAG) != 0;
    int64_t ramp_left_ns = ramps ? left_ns(&gate->ramp_until_ns, now_ns) : 0;
    if (ramps && ramp_left_ns == 0)
        return ES_DUE;
    if (es_random_hit(random_word, gate->fault_ppm))
        return ES_REFUSED;
    return !ramps || is_let_through(gate, ramp_left_ns, random_word) ? ES_ADMITTED : ES_REFUSED;
}

es_admission es_gate_peek(const es_gate *gate, int64_t now_ns, uint64_t random_word) {
    uint64_t word = read_word(gate);
    es_admission admission = {.answer = ES_ADMITTED, .permit = {.generation = generation_in(word)}};
    if (es_gate_holds_back(state_in(word))) {
        admission.retry_after_ns = left_ns(&gate->until_ns, now_ns);
        admission.answer = admission.retry_after_ns > 0 ? ES_REFUSED : ES_DUE;
    } else if (state_in(word) == ES_CLOSED) {
        admission.answer = leave_to_chance(gate, word, now_ns, random_word);
    }
    return admission;
}

void es_gate_hold(es_gate *gate, int64_t until_ns) {
    write_time(&gate->until_ns, until_ns);
}

static void start(es_gate *gate, uint64_t state_and_flags) {
    write_word(gate, (generation_in(read_word(gate)) + 1) << GENERATION_SHIFT | state_and_flags);
}

void es_gate_start(es_gate *gate, es_state state, int64_t until_ns) {
    write_time(&gate->until_ns, until_ns);
    start(gate, state == ES_CLOSED ? fault_flag(gate) : (uint64_t)state);
}

void es_gate_ramp_up(es_gate *gate, int64_t at_ns) {
    write_time(&gate->ramp_until_ns, es_add_ns(at_ns, gate->ramp_ns));
    start(gate, fault_flag(gate) | (gate->ramp_ns > 0 ? RAMP_FLAG : 0));
}

void es_gate_end_ramp(es_gate *gate, int64_t now_ns) {
    uint64_t word = read_word(gate);
    if ((word & RAMP_FLAG) != 0 && left_ns(&gate->ramp_until_ns, now_ns) == 0)
        write_word(gate, word & ~RAMP_FLAG);
}
