/* SPDX-License-Identifier: Apache-2.0 */
/* gcra.h - may this call go now, and if not, when?
 *
 * A rate limit of `limit` calls per `per_ns`: up to `limit` at once, after that one each interval of per_ns / limit, by
 * the generic cell rate algorithm. All it remembers is the time at which everything taken so far is refilled, in one
 * word; a call moves that time on by its cost in intervals, and goes if the time is then at most `per_ns` ahead.
 *
 *     3 per 10 s, asked all the time:           3 go at 0, then one each at 3.33 s, 6.67 s, 10 s ...
 *     3 per 10 s, asked at 0 and at 10 s:       3 go at 0, 3 at 10 s; a nanosecond before that only 2 would
 *     3 per 10 s, 30 callers wait up to 12 s:   3 go at 0, 3 book a place, the last at 10 s, 24 are turned away at once
 *
 * Exact: an interval is a whole number of ticks, and a tick is the nanosecond or, where `limit` does not divide
 * `per_ns`, a shade less, so nothing drifts. Rounding moves a single call by less than a nanosecond.
 *
 * Booking: a caller that may wait takes its place in the same step that tells it how long to wait, sleeps once and
 * goes without asking again. Nobody overtakes it, and those for whom the wait is too long learn that at once.
 *
 * Memory: es_gcra_new makes one allocation, es_gcra_free gives it back; nothing else allocates. The struct is opaque
 * since its fields hang together.
 * Threads: any, at any time, without a lock; es_gcra_reset and es_gcra_reconfigure need the owner's lock, one at a
 * time, while the others go on.
 * Units: nanoseconds, monotonic. A clock that another thread read earlier sees less refilled, never more. After 73
 * years without a reconfiguration time stands still and nothing is refilled.
 * Failure: es_gcra_new and es_gcra_reconfigure.
 */
#ifndef ES_GCRA_H
#define ES_GCRA_H

#include "es.h"

#define ES_GCRA_PER_MAX_NS (INT64_C(1) << 60)

typedef struct es_gcra es_gcra;

typedef struct {
    uint64_t limit; /* calls of cost 1 in each `per_ns`, to per_ns: at most one a nanosecond; 0: none at all */
    int64_t per_ns; /* 1 to ES_GCRA_PER_MAX_NS                                                 */
} es_gcra_config;

typedef enum {
    ES_GO,        /* go at once                                                             */
    ES_GO_LATER,  /* a place is booked: sleep `wait_ns`, then go without asking             */
    ES_LIMITED,   /* nothing is taken; a place would be free in `wait_ns`                   */
    ES_TOO_COSTLY /* the cost is above the limit: nothing is taken, and nothing will ever be */
} es_gcra_answer;

typedef struct {
    es_gcra_answer answer;
    int64_t wait_ns; /* 0 for ES_GO, ES_FOREVER_NS for ES_TOO_COSTLY      */
    uint64_t place;  /* for es_gcra_give_back, 0 where nothing is taken   */
} es_gcra_turn;

/* Makes a limiter with a full burst. `now_ns` is the time of its birth. */
ES_NODISCARD es_status es_gcra_new(es_gcra **gcra, const es_gcra_config *config, int64_t now_ns,
                                   const es_allocator *allocator);
/* NULL is allowed. */
void es_gcra_free(es_gcra *gcra);

/* Takes `cost` >= 1 calls: at once, or as a place that is booked if its wait is at most `wait_max_ns`. */
ES_NODISCARD es_gcra_turn es_gcra_reserve(es_gcra *gcra, int64_t now_ns, uint64_t cost, int64_t wait_max_ns);

/* The same for a caller that does not wait. */
ES_NODISCARD es_gcra_turn es_gcra_admit(es_gcra *gcra, int64_t now_ns, uint64_t cost);

/* What would es_gcra_admit answer? Takes nothing. */
ES_NODISCARD es_gcra_turn es_gcra_peek(const es_gcra *gcra, int64_t now_ns, uint64_t cost);

/* Gives back, once, what a turn took: the call was not made, or the booked place will not be used.
 *
 * What comes back is what time has not refilled meanwhile, so that no more calls go than if the turn had never been
 * taken, and never more than a full burst. While places are booked ahead only the last of them comes back: those who
 * booked behind the others have been told their times. Nothing comes back from before a reset or a reconfiguration. */
void es_gcra_give_back(es_gcra *gcra, int64_t now_ns, uint64_t cost, uint64_t place);

/* Locked. A full burst at once, whatever has been taken or booked. */
void es_gcra_reset(es_gcra *gcra, int64_t now_ns);

/* Locked. Another limit from now on. The share of the burst that is used stays used, and so do the times of booked
 * places. ES_BAD_CONFIG changes nothing. */
ES_NODISCARD es_status es_gcra_reconfigure(es_gcra *gcra, const es_gcra_config *config, int64_t now_ns);

#endif
