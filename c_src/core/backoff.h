/* SPDX-License-Identifier: Apache-2.0 */
/* backoff.h - how long until the next attempt, and is there one?
 *
 * A retry schedule is arithmetic over its configuration: it owns no memory and keeps no state, so any thread may ask
 * at any time. The caller says which retry it is, how much of the time budget has gone, and gives a random word.
 *
 * Each delay is made in this order: the curve's value for the retry, held at the cap, spread by jitter, trimmed to
 * what is left of the budget. Whatever the number of the retry, a delay is never negative and never above the cap.
 *
 *     exponential, base 100 ms, cap 2 s:       100 200 400 800 1600 2000 2000 ...
 *     linear, base 100 ms, factor 1:           100 200 300 400 ...
 *     exponential, base 10 ms, expiry 50 ms:   10 20 20, and the attempt after them is the last
 *
 * To add a curve: write its two functions in backoff.c, add one row to the table at the end of that file, and one
 * test in test/c/backoff_test.c. Nothing else in C changes; the NIF layer finds curves by name.
 */
#ifndef ES_BACKOFF_H
#define ES_BACKOFF_H

#include "es.h"

#define ES_NO_LIMIT UINT64_MAX

typedef struct es_backoff_curve es_backoff_curve;

typedef struct {
    const es_backoff_curve *curve; /* from es_backoff_curve_at                                            */
    int64_t base_ns;               /* delay before the first retry, >= 0                                  */
    uint64_t factor;               /* linear: each delay grows by this many bases, >= 1                   */
    int64_t cap_ns;                /* no delay is longer, > 0, ES_FOREVER_NS for none                     */
    int64_t expiry_ns;             /* budget from the end of the first attempt, > 0, ES_FOREVER_NS: none  */
    uint64_t attempts_max;         /* first attempt included, >= 1, ES_NO_LIMIT for none                  */
    uint32_t jitter_ppm;           /* spread around the delay, either way, 0 to ES_PPM                    */
} es_backoff;

struct es_backoff_curve {
    const char *name;
    int64_t (*delay_ns)(const es_backoff *backoff, uint64_t retry);   /* nominal, no cap, retry >= 1      */
    int64_t (*total_ns)(const es_backoff *backoff, uint64_t retries); /* sum of the first `retries`, capped */
};

typedef enum {
    ES_RETRY,      /* wait, then attempt again                          */
    ES_RETRY_LAST, /* the same, and the budget ends with that attempt  */
    ES_EXHAUSTED   /* no further attempt                                */
} es_backoff_step;

/* Curve number `index` of the table, or NULL past its end. Static: never free it. */
const es_backoff_curve *es_backoff_curve_at(size_t index);

/* ES_BAD_CONFIG when a field is outside what its comment allows. */
ES_NODISCARD es_status es_backoff_check(const es_backoff *backoff);

/* The delay before retry number `retry` (1 is the first). `elapsed_ns` is the time since the first delay was asked
 * for. `delay_ns` is set unless the answer is ES_EXHAUSTED.
 *
 * Jitter draws uniformly from a band of twice the proportion's width around the nominal delay; at the cap the band
 * moves down instead of being cut off, so callers stay apart there too. */
ES_NODISCARD es_backoff_step es_backoff_next(const es_backoff *backoff, uint64_t retry, int64_t elapsed_ns,
                                             uint64_t random_word, int64_t *delay_ns);

/* Writes the delays of a call that fails throughout and costs no time itself, without jitter, at most `max` of them,
 * and returns how many there are, at most `max`. `delays_ns` may be NULL to count only. O(result). */
size_t es_backoff_plan(const es_backoff *backoff, int64_t *delays_ns, size_t max);

/* The sum of the whole plan; ES_FOREVER_NS when neither attempts nor budget bound it. O(1), but for the curve's own
 * steps, at most 64. */
int64_t es_backoff_window_ns(const es_backoff *backoff);

#endif
