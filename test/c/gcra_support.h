/* SPDX-License-Identifier: Apache-2.0 */
/* gcra_support.h - what the limiter's tests share. */
#ifndef ES_TEST_GCRA_SUPPORT_H
#define ES_TEST_GCRA_SUPPORT_H

#include "gcra.h"
#include "support.h"

static inline es_gcra *limiter_born_at(uint64_t limit, int64_t per_ns, int64_t now_ns) {
    es_gcra_config config = {.limit = limit, .per_ns = per_ns};
    es_allocator allocator = allocator_that_allows(1);
    es_gcra *gcra = NULL;
    assert_int_equal(es_gcra_new(&gcra, &config, now_ns, &allocator), ES_OK);
    assert_non_null(gcra);
    return gcra;
}

static inline es_gcra *limiter(uint64_t limit, int64_t per_ns) {
    return limiter_born_at(limit, per_ns, 0);
}

static inline void drop(es_gcra *gcra) {
    es_gcra_free(gcra);
    assert_int_equal(memory()->live, 0);
}

/* Takes `calls` of cost 1 that have to go at once, and returns the place of the last. */
static inline uint64_t go(es_gcra *gcra, int64_t now_ns, uint64_t calls) {
    es_gcra_turn turn = {.place = 0};
    for (uint64_t call = 0; call < calls; call++) {
        turn = es_gcra_admit(gcra, now_ns, 1);
        assert_int_equal(turn.answer, ES_GO);
        assert_int_equal(turn.wait_ns, 0);
    }
    return turn.place;
}

/* Books a call of cost 1 that has to wait `wait_ns`, and returns its place. */
static inline uint64_t book(es_gcra *gcra, int64_t now_ns, int64_t wait_ns) {
    es_gcra_turn turn = es_gcra_reserve(gcra, now_ns, 1, ES_FOREVER_NS);
    assert_int_equal(turn.answer, ES_GO_LATER);
    assert_int_equal(turn.wait_ns, wait_ns);
    return turn.place;
}

/* A call of cost 1 is refused now, and would be for `wait_ns`. */
static inline void assert_limited(es_gcra *gcra, int64_t now_ns, int64_t wait_ns) {
    es_gcra_turn turn = es_gcra_admit(gcra, now_ns, 1);
    assert_int_equal(turn.answer, ES_LIMITED);
    assert_int_equal(turn.wait_ns, wait_ns);
    assert_int_equal(turn.place, 0);
}

/* As many go at once as `calls`, and the next waits; takes them. */
static inline void assert_left(es_gcra *gcra, int64_t now_ns, uint64_t calls) {
    go(gcra, now_ns, calls);
    assert_int_equal(es_gcra_peek(gcra, now_ns, 1).answer, ES_LIMITED);
}

#endif
