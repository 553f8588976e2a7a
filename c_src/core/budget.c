/* SPDX-License-Identifier: Apache-2.0 */
#include "budget.h"

#include <assert.h>
#include <stdatomic.h>

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long long) == sizeof(uint64_t),
              "retries are counted without a lock: 64-bit atomics have to be lock-free");

/* Counted in units of a billionth of a retry: at n retries a second a nanosecond pays in n of them. A full bucket is at
 * most 10^7 retries, 10^16 units, so that no sum of two overflows. */
#define RETRY UINT64_C(1000000000)
#define UNITS_PER_PPM (RETRY / ES_PPM)
#define CAPACITY_SECONDS 10
#define CAPACITY_MIN 10

/* Two words. `held` is what is in the bucket, `paid_ns` the time up to which time has paid into it. A nanosecond is
 * paid by who moves `paid_ns` past it, so by one thread and once; that thread then adds it to `held`. */
struct es_budget {
    _Atomic uint64_t held;
    _Atomic int64_t paid_ns;
    uint64_t capacity;
    uint64_t per_success;
    uint64_t per_ns;
    void (*release)(void *memory);
};

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

es_status es_budget_new(es_budget **budget, const es_budget_config *config, int64_t now_ns,
                        const es_allocator *allocator) {
    *budget = NULL;
    if (config->ratio_ppm > ES_BUDGET_RATIO_MAX || config->per_second > ES_BUDGET_PER_SECOND_MAX)
        return ES_BAD_CONFIG;
    es_budget *made = allocator->alloc(sizeof *made);
    if (made == NULL)
        return ES_NO_MEMORY;
    uint64_t retries = (uint64_t)config->per_second * CAPACITY_SECONDS;
    made->capacity = (retries > CAPACITY_MIN ? retries : CAPACITY_MIN) * RETRY;
    made->per_success = config->ratio_ppm * UNITS_PER_PPM;
    made->per_ns = config->per_second;
    made->release = allocator->free;
    atomic_init(&made->held, made->capacity);
    atomic_init(&made->paid_ns, now_ns);
    *budget = made;
    return ES_OK;
}

void es_budget_free(es_budget *budget) {
    if (budget != NULL)
        budget->release(budget);
}

/* Relaxed: the word is only ever exchanged for one that follows from it, which fails if it was not true any more, or
 * found to be full or empty, which it then was at that moment. */
static uint64_t read_held(const es_budget *budget) {
    return atomic_load_explicit(&budget->held, memory_order_relaxed);
}

/* Release: whoever sees what time paid in also sees that it was paid, see es_budget_balance_ppm. Relaxed where it
 * fails: the value that was found instead is only tried again. */
static bool replace_held(es_budget *budget, uint64_t *held, uint64_t next) {
    return atomic_compare_exchange_weak_explicit(&budget->held, held, next, memory_order_release, memory_order_relaxed);
}

void es_budget_deposit(es_budget *budget) {
    uint64_t held = read_held(budget), next;
    do {
        next = least(held + budget->per_success, budget->capacity);
    } while (next != held && !replace_held(budget, &held, next));
}

/* What time pays in between two moments. */
static uint64_t earned(const es_budget *budget, int64_t since_ns, int64_t now_ns) {
    return least((uint64_t)es_scale_ns(es_elapsed_ns(since_ns, now_ns), budget->per_ns), budget->capacity);
}

/* Makes the caller the one who adds what time has paid in until now, and returns it. Relaxed: all that counts is that
 * one thread moves the word from one time to the next, and exchanges of one word are in one order for all. */
static uint64_t collect(es_budget *budget, int64_t now_ns) {
    int64_t paid_ns = atomic_load_explicit(&budget->paid_ns, memory_order_relaxed);
    while (budget->per_ns > 0 && now_ns > paid_ns) {
        if (atomic_compare_exchange_weak_explicit(&budget->paid_ns, &paid_ns, now_ns, memory_order_relaxed,
                                                  memory_order_relaxed))
            return earned(budget, paid_ns, now_ns);
    }
    return 0;
}

/* Time is collected even where there are retries enough: left for later, what was paid into a full bucket would fill it
 * a second time. Who is refused for what another has collected but not yet added has asked a moment too early. */
bool es_budget_withdraw(es_budget *budget, int64_t now_ns) {
    uint64_t collected = collect(budget, now_ns), held = read_held(budget), next;
    bool enough;
    do {
        next = least(held + collected, budget->capacity);
        enough = next >= RETRY;
        if (!enough && collected == 0)
            return false;
    } while (!replace_held(budget, &held, enough ? next - RETRY : next));
    return enough;
}

/* Acquire, and in this order: if what time paid in is seen in `held`, the moved `paid_ns` is seen as well, and no
 * nanosecond is counted twice. */
uint64_t es_budget_balance_ppm(const es_budget *budget, int64_t now_ns) {
    uint64_t held = atomic_load_explicit(&budget->held, memory_order_acquire);
    int64_t paid_ns = atomic_load_explicit(&budget->paid_ns, memory_order_relaxed);
    return least(held + earned(budget, paid_ns, now_ns), budget->capacity) / UNITS_PER_PPM;
}
