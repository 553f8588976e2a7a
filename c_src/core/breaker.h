/* SPDX-License-Identifier: Apache-2.0 */
/* breaker.h - may this call go out?
 *
 * A circuit breaker: closed until a trip rule fires, then open for `reset_ns`, then closed again with an empty window.
 * The state is a function of the clock when it is read: an open breaker whose time is over reads closed without
 * traffic and without a timer.
 *
 * Generations: every change of state starts a new one. An admission carries the generation it was given in, and a
 * report from an older generation changes nothing, so a call that outlives the breaker's opening can not undo or
 * repeat it.
 *
 * Memory: es_breaker_new makes one allocation, es_breaker_free gives it back; nothing else allocates.
 *
 * Threads: functions that take a const es_breaker may run on any thread at any time, without a lock; asking a closed
 * breaker is one acquire load. Functions that take a plain es_breaker need the owner's lock, one at a time.
 *
 * Units: nanoseconds, monotonic. Failure: only es_breaker_new can fail.
 */
#ifndef ES_BREAKER_H
#define ES_BREAKER_H

#include "es.h"
#include "trip.h"

typedef struct es_breaker es_breaker;

typedef enum { ES_CLOSED = 0, ES_OPEN } es_state;

typedef enum { ES_SUCCESS = 0, ES_FAILURE, ES_IGNORE } es_outcome;

typedef struct {
    es_trip_limits limits;
    int64_t within_ns;  /* span of the failure window, > 0                                              */
    int64_t reset_ns;   /* how long the breaker stays open, >= 0                                        */
    uint32_t fault_ppm; /* share of admissions refused on purpose while closed, 0 (none) to ES_PPM     */
} es_breaker_config;

typedef enum {
    ES_ADMITTED, /* go ahead; report with `generation`                                               */
    ES_REFUSED,  /* do not call; `retry_after_ns` says how long it stays so, 0 for an injected fault */
    ES_DUE       /* the open time is over: take the lock and use es_breaker_admit                     */
} es_answer;

typedef struct {
    es_answer answer;
    uint64_t generation;
    int64_t retry_after_ns;
} es_admission;

/* One change of state, as listeners are told of it. */
typedef struct {
    es_state from, to;
    const es_trip *rule;    /* the rule that fired, NULL if the change was made by time or by hand */
    uint32_t failures;      /* failures in the window at the moment of the change                 */
    int64_t at_ns;          /* when                                                               */
    int64_t retry_after_ns; /* how long the new state refuses, 0 unless open                      */
} es_change;

/* What a look at the breaker shows. */
typedef struct {
    es_state state;
    uint64_t generation;
    uint32_t failures;      /* inside the window now                  */
    int64_t changed_at_ns;  /* time of the last change                */
    int64_t retry_after_ns; /* 0 unless open                          */
} es_breaker_view;

/* Makes a closed breaker with an empty window. `now_ns` is the time of its birth. */
ES_NODISCARD es_status es_breaker_new(es_breaker **breaker, const es_breaker_config *config, int64_t now_ns,
                                      const es_allocator *allocator);
/* NULL is allowed. */
void es_breaker_free(es_breaker *breaker);

/* Lock-free. Is it closed and without fault injection? Then `generation` is set. Reads no clock. */
bool es_breaker_is_closed(const es_breaker *breaker, uint64_t *generation);

/* Lock-free. What would admit answer? Changes nothing. ES_DUE when only es_breaker_admit can tell. */
es_admission es_breaker_peek(const es_breaker *breaker, int64_t now_ns, uint64_t random_word);

/* Lock-free. The generation a report made now, without an admission, belongs to. */
uint64_t es_breaker_generation(const es_breaker *breaker);

/* Lock-free. Could a failure of this generation still change anything? Saves the lock when it could not. */
bool es_breaker_listens(const es_breaker *breaker, uint64_t generation);

/* Locked. Admits or refuses; the answer is never ES_DUE. */
es_admission es_breaker_admit(es_breaker *breaker, int64_t now_ns, uint64_t random_word);

/* Locked. How an admitted call ended. Only a failure of the current generation, while closed, counts. A failure without
 * an admission takes its generation under the same lock; it counts if the open time of that generation is over. */
void es_breaker_report(es_breaker *breaker, uint64_t generation, es_outcome outcome, int64_t now_ns);

/* Locked. Closed at once, with an empty window. */
void es_breaker_reset(es_breaker *breaker, int64_t now_ns);

/* Locked, since it lets time pass: a breaker whose open time is over closes here. */
es_breaker_view es_breaker_look(es_breaker *breaker, int64_t now_ns);

/* Lock-free. Are changes waiting to be taken? */
bool es_breaker_has_changes(const es_breaker *breaker);

/* Locked. Takes the oldest change nobody has taken, false if there is none. Changes form a chain: `from` of one is
 * `to` of the one before it. A few are kept; when listeners are slower than that, the newest kept change is drawn
 * out to the state reached since, so the chain is never broken. */
ES_NODISCARD bool es_breaker_take_change(es_breaker *breaker, es_change *change);

#endif
