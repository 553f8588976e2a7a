/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h - may this call be tried once more?
 *
 * When a server is down each call retries, and the retries alone keep it down. So a service has a bucket of retries,
 * one for all its calls: each success pays a share of a retry in, time pays some in each second, each retry takes one
 * out, and while there is none no call retries. The bucket holds what ten seconds pay in, ten retries at least, and is
 * full at first. The ten seconds, and the usual 20 % and 10 a second, are those of RetryBudget in Twitter's Finagle.
 *
 *     20 %, 10 a second, all is well:                  full at 100, successes change nothing
 *     20 %, 10 a second, 1000 calls a second all fail:  100 retries at once, then 10 a second
 *     20 %, 10 a second, 10 of these 1000 fail:         198 + 10 a second paid in, 10 taken: full again at once
 *     20 %, 0 a second:                                 10 retries, then one for each 5 successes
 *
 * Exact: a bucket counts in billionths of a retry, so that each nanosecond and each success pay in a whole number, and
 * nothing is rounded.
 *
 * Memory: es_budget_new makes one allocation, es_budget_free gives it back; nothing else allocates. The struct is
 * opaque since its fields hang together. Threads: any, at any time, without a lock. Retries taken are never more than
 * were in it at first, were paid in by successes and by time. What time has paid in may be seen a moment late by those
 * who ask in that moment. Units: nanoseconds, monotonic. A clock that runs back, or was read earlier by another thread,
 * earns nothing, and what it repeats is not paid again. Failure: es_budget_new.
 */
#ifndef ES_BUDGET_H
#define ES_BUDGET_H

#include "es.h"

#define ES_BUDGET_RATIO_MAX (10 * ES_PPM)
#define ES_BUDGET_PER_SECOND_MAX UINT32_C(1000000)

typedef struct es_budget es_budget;

typedef struct {
    uint32_t ratio_ppm;  /* what a success pays in, share of a retry, 0 to ES_BUDGET_RATIO_MAX  */
    uint32_t per_second; /* retries that time pays in, 0 to ES_BUDGET_PER_SECOND_MAX            */
} es_budget_config;

/* Makes a full bucket. `now_ns` is the time of its birth. */
ES_NODISCARD es_status es_budget_new(es_budget **budget, const es_budget_config *config, int64_t now_ns,
                                     const es_allocator *allocator);
/* NULL is allowed. */
void es_budget_free(es_budget *budget);

/* A success. While the bucket is full this is one load, so that it costs nothing as long as all is well. */
void es_budget_deposit(es_budget *budget);

/* Takes one retry, or nothing. */
ES_NODISCARD bool es_budget_withdraw(es_budget *budget, int64_t now_ns);

/* How many retries there are, in parts per million of one. */
uint64_t es_budget_balance_ppm(const es_budget *budget, int64_t now_ns);

#endif
