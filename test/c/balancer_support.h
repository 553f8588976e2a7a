/* SPDX-License-Identifier: Apache-2.0 */
/* balancer_support.h - tables of endpoints for the balancer's tests, and counts of whom they pick. */
#ifndef ES_TEST_BALANCER_SUPPORT_H
#define ES_TEST_BALANCER_SUPPORT_H

#include "balancer.h"
#include "support.h"

#define TABLE_MAX 1000
#define WEIGHTS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

typedef struct {
    es_balancer *balancer;
    uint32_t count;
    uint64_t random;
    es_pick how; /* what the next pick is asked with, but for the random word */
    es_member members[TABLE_MAX];
    uint32_t picked[TABLE_MAX];
} test_table;

static inline const es_balancer_rule *rule_called(const char *name) {
    for (size_t i = 0; es_balancer_rule_at(i) != NULL; i++)
        if (strcmp(es_balancer_rule_at(i)->name, name) == 0)
            return es_balancer_rule_at(i);
    fail_msg("no rule is called %s", name);
    return NULL;
}

static inline es_endpoint *at(const test_table *table, uint32_t index) {
    return table->members[index].endpoint;
}

/* One table at a time: it is made anew by each call. */
static inline test_table *table_sharing(const char *rule, uint32_t max_ejected_ppm, const uint32_t *weights,
                                        uint32_t count) {
    static test_table table;
    es_allocator allocator = allocator_that_allows(count + 1);
    memset(&table, 0, sizeof table);
    table.count = count;
    for (uint32_t i = 0; i < count; i++) {
        table.members[i] = (es_member){.id = i, .weight = weights[i]};
        assert_int_equal(es_endpoint_new(&table.members[i].endpoint, &allocator), ES_OK);
    }
    const es_balancer_config config = {rule_called(rule), table.members, count, max_ejected_ppm};
    assert_int_equal(es_balancer_new(&table.balancer, &config, &allocator), ES_OK);
    return &table;
}

static inline test_table *table_of(const char *rule, const uint32_t *weights, uint32_t count) {
    return table_sharing(rule, ES_PPM, weights, count);
}

static inline test_table *table_of_equals(const char *rule, uint32_t count) {
    uint32_t weights[TABLE_MAX];
    for (uint32_t i = 0; i < count; i++)
        weights[i] = 1;
    return table_of(rule, weights, count);
}

static inline void drop(test_table *table) {
    es_balancer_free(table->balancer);
    for (uint32_t i = 0; i < table->count; i++)
        es_endpoint_free(at(table, i));
    assert_int_equal(memory()->live, 0);
}

static inline void put_out(test_table *table, uint32_t index) {
    es_endpoint_put_out(at(table, index), ES_FOREVER_NS);
}

static inline uint32_t pick(test_table *table) {
    table->how.random_word = next_random(&table->random);
    return es_balancer_pick(table->balancer, &table->how);
}

static inline uint32_t pick_for(test_table *table, uint64_t key_hash) {
    table->how.key_hash = key_hash;
    return pick(table);
}

static inline uint32_t pick_after(test_table *table, const uint32_t *tried, size_t tried_count) {
    table->how.tried = tried;
    table->how.tried_count = tried_count;
    uint32_t index = pick(table);
    table->how.tried = NULL;
    table->how.tried_count = 0;
    return index;
}

/* A call to each in flight as often as told. */
static inline void begin_calls(test_table *table, const uint32_t *calls) {
    for (uint32_t i = 0; i < table->count; i++)
        for (uint32_t call = 0; call < calls[i]; call++)
            es_endpoint_begin(at(table, i));
}

/* Counts whom `picks` picks, each with another key, go to. */
static inline void pick_many(test_table *table, uint32_t picks) {
    memset(table->picked, 0, sizeof table->picked);
    for (uint32_t i = 0; i < picks; i++) {
        uint32_t index = pick_for(table, i);
        assert_in_range(index, 0, table->count - 1);
        table->picked[index]++;
    }
}

/* Each that is in got its share of the weights of those that are in, to within so many parts in a hundred of it, and
 * no other got any. */
static inline void assert_shares_within(test_table *table, uint32_t percent) {
    uint64_t weights = 0, picks = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        weights += es_endpoint_is_in(at(table, i), table->how.now_ns) ? table->members[i].weight : 0;
        picks += table->picked[i];
    }
    for (uint32_t i = 0; i < table->count; i++) {
        uint64_t share = picks * table->members[i].weight / weights;
        if (es_endpoint_is_in(at(table, i), table->how.now_ns))
            assert_in_range(table->picked[i], share * (100 - percent) / 100, share * (100 + percent) / 100 + 1);
        else
            assert_int_equal(table->picked[i], 0);
    }
}

#endif
