/* SPDX-License-Identifier: Apache-2.0 */
/* budget_support.h - what the retry budget's tests share. */
#ifndef ES_TEST_BUDGET_SUPPORT_H
#define ES_TEST_BUDGET_SUPPORT_H

#include "budget.h"
#include "support.h"

static inline es_budget *budget_of(uint32_t ratio_ppm, uint32_t per_second, int64_t now_ns) {
    const es_budget_config config = {.ratio_ppm = ratio_ppm, .per_second = per_second};
    es_allocator allocator = allocator_that_allows(1);
    es_budget *budget = NULL;
    assert_int_equal(es_budget_new(&budget, &config, now_ns, &allocator), ES_OK);
    assert_non_null(budget);
    return budget;
}

static inline void drop(es_budget *budget) {
    es_budget_free(budget);
    assert_int_equal(memory()->live, 0);
}

static inline void deposit(es_budget *budget, int successes) {
    for (int i = 0; i < successes; i++)
        es_budget_deposit(budget);
}

/* Takes as many as there are, and returns how many that were. */
static inline uint64_t take_all(es_budget *budget, int64_t now_ns) {
    uint64_t taken = 0;
    while (es_budget_withdraw(budget, now_ns))
        taken++;
    return taken;
}

#endif
