/* SPDX-License-Identifier: Apache-2.0 */
/* breaker.h - may this call go out?
 *
 * A circuit breaker: closed until a trip rule fires; then open for a time; then closed again with empty windows, or, if
 * it is configured so, half-open: a few calls go out as probes, and their outcomes close it or open it again. By hand
 * it can be forced open or bypassed, and then nothing but a hand changes it, unless the forcing was given a time.
 *
 * The state is a function of the clock when it is read: an open breaker whose time is over reads half-open, or closed,
 * without traffic and without a timer.
 *
 * Generations: every change of state starts a new one. An admission carries the generation it was given in, and a
 * report from an older generation changes nothing. A probe also has a lease: a probe whose holder is gone is handed
 * back with ES_IGNORE, one that outlives its lease is replaced by the next call, and what it reports later changes
 * nothing.
 *
 * Memory: es_breaker_new makes one allocation, es_breaker_free gives it back; nothing else allocates.
 *
 * Threads: functions that take a const es_breaker may run on any thread at any time, without a lock; asking a closed
 * breaker is one acquire load. Functions that take a plain es_breaker need the owner's lock, one at a time.
 *
 * Units: nanoseconds, monotonic; shares in parts per million. Failure: only es_breaker_new can fail.
 */
#ifndef ES_BREAKER_H
#define ES_BREAKER_H

#include "es.h"
#include "tally.h"
#include "trip.h"

#define ES_PROBES_MAX UINT32_C(1000)

typedef struct es_breaker es_breaker;

typedef enum { ES_CLOSED = 0, ES_OPEN, ES_HALF_OPEN, ES_FORCED_OPEN, ES_BYPASSED } es_state;

typedef enum { ES_SUCCESS = 0, ES_FAILURE, ES_IGNORE } es_outcome;

/* All fields have to be right, also those of what is off. */
typedef struct {
    es_trip_limits limits;     /* the rules; if a rate is on, min_calls is not above the calls counted         */
    int64_t within_ns;         /* span of the failure window of `tolerate`, > 0                                */
    es_tally_config tally;     /* what rates are counted over; both fields 0: nothing, and no rate is on       */
    int64_t slow_ns;           /* a call of at least this duration is slow, > 0, ES_FOREVER_NS: none is        */
    int64_t reset_ns;          /* how long it stays open, >= 0                                                 */
    uint32_t reset_factor_ppm; /* how much longer after each failed probe, ES_PPM (always the same) up         */
    int64_t reset_max_ns;      /* no longer than this, >= reset_ns, ES_FOREVER_NS: no bound                    */
    uint32_t reset_jitter_ppm; /* spread of the open time, either way, 0 to ES_PPM; never above reset_max_ns   */
    uint32_t probes;           /* probes out at once while half-open, 0: closes without, to ES_PROBES_MAX      */
    uint32_t successes;        /* probes that have to succeed to close it, >= 1 if there are probes            */
    int64_t lease_ns;          /* how long a probe is waited for, > 0                                          */
    int64_t ramp_ns;           /* closed again by itself, it admits a tenth, growing to all in this time, >= 0 */
    uint32_t fault_ppm;        /* share of admissions refused on purpose while closed, 0 (none) to ES_PPM      */
} es_breaker_config;

typedef enum {
    ES_ADMITTED, /* go ahead; report with `permit`                                                   */
    ES_REFUSED,  /* do not call; `retry_after_ns` says how long it stays so at least, 0 if chance decided */
    ES_DUE       /* only es_breaker_admit, under the lock, can tell                                  */
} es_answer;

/* The right to make one call. A value: reporting with it twice, or late, changes nothing. It fits two registers. */
typedef struct {
    uint64_t generation;
    uint32_t serial; /* of a probe: with `row`, its lease                             */
    uint16_t row;    /* below the configured number of probes                         */
    bool probe;      /* a probe reports every outcome and is handed back by ES_IGNORE */
} es_permit;

typedef struct {
    es_answer answer;
    es_permit permit;
    int64_t retry_after_ns;
} es_admission;

/* One change of state, as listeners are told of it. */
typedef struct {
    es_state from, to;
    const es_trip *rule;    /* the rule that fired, NULL if time, a probe or a hand made the change */
    bool by_hand;           /* a hand made it                                                       */
    es_counts counts;       /* at the moment of the change, before anything was cleared             */
    uint64_t generation;    /* that it began                                                        */
    int64_t at_ns;          /* when                                                                 */
    int64_t retry_after_ns; /* how long the new state refuses, 0 unless open or forced open         */
} es_change;

/* What a look at the breaker shows. */
typedef struct {
    es_state state;
    uint64_t generation;
    es_counts counts;       /* now                                         */
    uint64_t rejected;      /* refused since the last change of state      */
    uint64_t ignored;       /* reported with ES_IGNORE since then          */
    int64_t changed_at_ns;  /* time of the last change                     */
    int64_t retry_after_ns; /* as es_admission; 0 if it would admit        */
    uint32_t probes_out;    /* probes whose outcome is awaited             */
} es_breaker_view;

/* Makes a closed breaker with empty windows. `now_ns` is the time of its birth. */
ES_NODISCARD es_status es_breaker_new(es_breaker **breaker, const es_breaker_config *config, int64_t now_ns,
                                      const es_allocator *allocator);
/* NULL is allowed. */
void es_breaker_free(es_breaker *breaker);

/* Lock-free. Is it closed, with nothing left to chance? Then `generation` is set. Reads no clock. */
bool es_breaker_is_closed(const es_breaker *breaker, uint64_t *generation);

/* Lock-free. What would admit answer? Takes nothing. ES_DUE where time has something to change, or a probe may go. */
es_admission es_breaker_peek(const es_breaker *breaker, int64_t now_ns, uint64_t random_word);

/* Lock-free. Counts one refusal, for es_breaker_view. Nothing else does: who peeks or admits may have other uses for a
 * refusal than to refuse a call. */
void es_breaker_refused(es_breaker *breaker);

/* Lock-free. The same for an outcome that says nothing. */
void es_breaker_ignored(es_breaker *breaker);

/* Lock-free. The permit that a report made now, without an admission, has. */
es_permit es_breaker_permit(const es_breaker *breaker);

/* Lock-free. Could this outcome still change anything? Saves the lock when it could not: a success counts only where
 * a rate is counted, a streak is to be ended, or a probe reports. An open breaker that is going to close by itself
 * listens to its own generation, that of es_breaker_permit: its time may be over. */
bool es_breaker_listens(const es_breaker *breaker, es_permit permit, es_outcome outcome);

/* Locked. Admits or refuses; the answer is never ES_DUE. The random word decides what is left to chance. */
es_admission es_breaker_admit(es_breaker *breaker, int64_t now_ns, uint64_t random_word);

/* Locked. How an admitted call ended, and how long it took (0 if unknown). The random word draws the open time's jitter
 * if this opens. */
void es_breaker_report(es_breaker *breaker, es_permit permit, es_outcome outcome, int64_t duration_ns, int64_t now_ns,
                       uint64_t random_word);

/* Locked. By hand. Each ends whatever state it finds, a forced one included.
 * open:   refuses everything until `until_ns` (ES_FOREVER_NS: until another hand), then as if its open time were over
 * bypass: admits everything and goes on counting, but no rule opens it
 * close:  closed at once, with empty windows; nothing happens to a breaker that is closed
 * reset:  as close, and the windows of a closed breaker are emptied, too, and its ramp is over */
void es_breaker_force_open(es_breaker *breaker, int64_t until_ns, int64_t now_ns);
void es_breaker_bypass(es_breaker *breaker, int64_t now_ns);
void es_breaker_close(es_breaker *breaker, int64_t now_ns);
void es_breaker_reset(es_breaker *breaker, int64_t now_ns);

/* Locked, since it lets time pass. */
es_breaker_view es_breaker_look(es_breaker *breaker, int64_t now_ns);

/* Locked. Is there nothing to remember: closed to all, and with empty windows? A new breaker in its place would do. */
bool es_breaker_is_idle(es_breaker *breaker, int64_t now_ns);

/* Lock-free. Are changes waiting to be taken? */
bool es_breaker_has_changes(const es_breaker *breaker);

/* Locked. Takes the oldest change nobody has taken, false if there is none. */
ES_NODISCARD bool es_breaker_take_change(es_breaker *breaker, es_change *change);

#endif
