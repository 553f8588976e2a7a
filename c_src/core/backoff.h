/* SPDX-License-Identifier: Apache-2.0 */
/* backoff.h - how long until the next attempt, and is there one?
 *
 * A retry schedule is arithmetic over its configuration: it owns no memory and keeps no state, so any thread may ask
 * at any time. The caller says which retry it is, what the delay before was, how much time has gone and how much is
 * left, and gives a random word. A list of delays is the caller's, and has to stay as long as the schedule is used.
 *
 * Each delay is made in this order: the curve's value for the retry, held at the cap, changed by jitter, trimmed to
 * what is left of the budget; and it has to end before the call's deadline. Whatever the number of the retry, a delay
 * is never negative and never above the cap.
 *
 *     exponential, base 100 ms, multiplier 2, cap 2 s:   100 200 400 800 1600 2000 2000 ...
 *     exponential, base 100 ms, multiplier 1.1:          100 110 121 133.1 146.41 ...
 *     linear, base 100 ms, step 50 ms:                   100 150 200 250 ...
 *     constant, base 100 ms:                             100 100 100 ...
 *     list 10 50 200 ms:                                 10 50 200 200 200 ...
 *     exponential, base 10 ms, expiry 50 ms:             10 20 20, and the attempt after them is the last
 *
 * To add a curve: write its two functions in backoff.c, add one row to the table at the end of them, and one test in
 * test/c/backoff_test.c. Nothing else in C changes; the NIF layer finds curves by name.
 */
#ifndef ES_BACKOFF_H
#define ES_BACKOFF_H

#include "es.h"

#define ES_NO_LIMIT UINT64_MAX
#define ES_BACKOFF_STEPS_MAX 64

typedef struct es_backoff_curve es_backoff_curve;

/* How callers that failed together are kept from coming back together.
 *
 * Spread: in a band of jitter_ppm either way around the curve's delay. At the cap the band moves down instead of being
 * cut off, so callers stay apart there too. 0 ppm is no jitter.
 *     10 % of 100 ms, cap 2 s:   90 to 110;  of 2 s: 1600 to 2000
 * Full: anywhere from nothing to the curve's delay.
 *     100 ms:                    0 to 100
 * Decorrelated: anywhere from the first delay to three times the one before, in place of the curve, which only says the
 * first. The upper end is held at the cap before drawing, and where that leaves no room above the first delay the lower
 * end is a third of the upper.
 *     base 100 ms:               100 to 300;  after 250: 100 to 750;  cap 90 ms: 30 to 90
 *
 * The last two are those of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. */
typedef enum { ES_JITTER_SPREAD, ES_JITTER_FULL, ES_JITTER_DECORRELATED } es_jitter;

typedef struct {
    const es_backoff_curve *curve; /* from es_backoff_curve_at                                              */
    int64_t base_ns;               /* delay before the first retry, >= 0; a list has its own                */
    int64_t step_ns;               /* linear: each delay is longer by this, >= 0                            */
    uint32_t multiplier_ppm;       /* exponential: each delay is this many times the one before, ES_PPM to
                                      1000 * ES_PPM                                                         */
    const int64_t *steps_ns;       /* list: the delays, each >= 0, and the last of them repeats             */
    size_t steps;                  /* list: how many, 1 to ES_BACKOFF_STEPS_MAX; other curves: 0            */
    int64_t cap_ns;                /* no delay is longer, > 0, ES_FOREVER_NS for none                       */
    int64_t expiry_ns;             /* budget from the end of the first attempt, > 0, ES_FOREVER_NS: none    */
    uint64_t attempts_max;         /* first attempt included, >= 1, ES_NO_LIMIT for none                    */
    es_jitter jitter;              /* see above                                                             */
    uint32_t jitter_ppm;           /* 0 to ES_PPM; for ES_JITTER_SPREAD only                                */
    int64_t asked_max_ns;          /* a server that asks for a longer delay gets this one, >= 0             */
} es_backoff;

struct es_backoff_curve {
    const char *name;
    bool listed;                                                      /* does it take a list of delays?     */
    int64_t (*delay_ns)(const es_backoff *backoff, uint64_t retry);   /* nominal, no cap, retry >= 1        */
    int64_t (*total_ns)(const es_backoff *backoff, uint64_t retries); /* sum of the first `retries`, capped */
};

typedef struct {
    int64_t elapsed_ns; /* of the budget: since the first delay was asked for          */
    int64_t left_ns;    /* until the call's deadline, ES_FOREVER_NS if it has none     */
} es_backoff_time;

typedef enum {
    ES_RETRY,      /* wait, then attempt again                                             */
    ES_RETRY_LAST, /* the same, and the budget ends with that attempt                      */
    ES_EXHAUSTED,  /* no further attempt                                                   */
    ES_RETRY_LATE  /* nothing would be left of the call's deadline: it has to end now      */
} es_backoff_step;

/* Curve number `index` of the table, or NULL past its end. Static: never free it. */
const es_backoff_curve *es_backoff_curve_at(size_t index);

/* ES_BAD_CONFIG when a field is outside what its comment allows. */
ES_NODISCARD es_status es_backoff_check(const es_backoff *backoff);

/* Do delays depend on the random word? */
bool es_backoff_is_random(const es_backoff *backoff);

/* The delay before retry number `retry` (1 is the first). `previous_ns` >= 0 is the one before and only counts for
 * decorrelated jitter, from the second retry on. A schedule that is exhausted is so even where the deadline is near.
 * `delay_ns` is left alone by ES_EXHAUSTED. */
ES_NODISCARD es_backoff_step es_backoff_next(const es_backoff *backoff, uint64_t retry, int64_t previous_ns,
                                             es_backoff_time time, uint64_t random_word, int64_t *delay_ns);

/* The same with a delay that the server asked for, >= 0, in place of the curve, the cap and the jitter: whoever comes
 * earlier comes in vain. */
ES_NODISCARD es_backoff_step es_backoff_after(const es_backoff *backoff, uint64_t retry, int64_t asked_ns,
                                              es_backoff_time time, int64_t *delay_ns);

/* Writes the delays of a call that fails throughout and costs no time itself, without jitter, at most `max` of them,
 * and returns how many there are, at most `max`. `delays_ns` may be NULL to count only. O(result). */
size_t es_backoff_plan(const es_backoff *backoff, int64_t *delays_ns, size_t max);

/* The sum of the whole plan; ES_FOREVER_NS when neither attempts nor budget bound it. No step for each retry: some
 * hundred in all. Exact, but with a multiplier that is not whole: there each delay of the plan is rounded, and the sum
 * only once, so that they may be half a nanosecond a retry apart. */
int64_t es_backoff_window_ns(const es_backoff *backoff);

#endif
