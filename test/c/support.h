/* SPDX-License-Identifier: Apache-2.0 */
/* support.h - what the core's tests share: cmocka's includes, a counting allocator that fails on demand, and a small
 * random generator that gives the same numbers on every run.
 *
 * The allocator keeps its counts in one static place, because es_allocator carries no context of its own.
 */
#ifndef ES_TEST_SUPPORT_H
#define ES_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "es.h"

#define MS(n) ((int64_t)(n)*ES_MS_NS)

typedef struct {
    size_t allowed; /* allocations that still succeed */
    size_t live;    /* allocations not yet freed      */
    size_t bytes;   /* size of the last one           */
} test_memory;

static inline test_memory *memory(void) {
    static test_memory counts;
    return &counts;
}

static inline void *counted_alloc(size_t bytes) {
    if (memory()->allowed == 0)
        return NULL;
    memory()->allowed--;
    memory()->live++;
    memory()->bytes = bytes;
    void *made = malloc(bytes);
    if (made != NULL)
        memset(made, 0xa5, bytes); /* whoever reads what was never set reads nonsense */
    return made;
}

static inline void counted_free(void *block) {
    memory()->live--;
    free(block);
}

/* An allocator whose allocation number `allowed` + 1 fails, and each after it. Starts counting anew. */
static inline es_allocator allocator_that_allows(size_t allowed) {
    *memory() = (test_memory){.allowed = allowed};
    return (es_allocator){counted_alloc, counted_free};
}

/* Weyl sequence, mixed: every 64-bit state gives another word. */
static inline uint64_t next_random(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t word = *state;
    word = (word ^ word >> 32) * UINT64_C(0xd6e8feb86659fd93);
    word = (word ^ word >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return word ^ word >> 32;
}

/* A number from low to high, both included. */
static inline int64_t random_between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(next_random(state) % (uint64_t)(high - low + 1));
}

#endif
