/* SPDX-License-Identifier: Apache-2.0 */
/* The rules, one by one. */
#include "balancer_support.h"
#include "rota.h"

#define PICKS 100000

static const struct {
    uint32_t weights[10], count;
} weight_sets[] = {
    {{1, 1}, 2}, {{1, 2, 3}, 3}, {{5, 1, 1}, 3}, {{100, 100, 50, 50, 25}, 5}, {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 10},
};

#define WEIGHT_SETS (sizeof weight_sets / sizeof *weight_sets)

static void assert_shares_follow_weights(const char *rule, uint32_t picks) {
    for (size_t i = 0; i < WEIGHT_SETS; i++) {
        test_table *table = table_of(rule, weight_sets[i].weights, weight_sets[i].count);
        pick_many(table, picks);
        assert_shares_within(table, 2);
        drop(table);
    }
}

/* Each in turn, and in the larger tables half of them. */
static void assert_shares_follow_weights_of_those_in(const char *rule, uint32_t picks) {
    for (size_t i = 0; i < WEIGHT_SETS; i++)
        for (uint32_t out = 0; out < weight_sets[i].count; out++) {
            test_table *table = table_of(rule, weight_sets[i].weights, weight_sets[i].count);
            put_out(table, out);
            for (uint32_t index = 0; index < out / 2; index++)
                put_out(table, index);
            pick_many(table, picks);
            assert_shares_within(table, 2);
            drop(table);
        }
}

static void round_robin_gives_each_its_share(void **state) {
    (void)state;
    assert_shares_follow_weights("round_robin", PICKS);
}

static void round_robin_spreads_the_turns_of_those_that_are_out(void **state) {
    (void)state;
    assert_shares_follow_weights_of_those_in("round_robin", 5 * PICKS);
}

static void round_robin_goes_in_the_order_of_the_rota(void **state) {
    (void)state;
    const uint32_t order[] = {0, 0, 1, 0, 2, 0, 0};
    test_table *table = table_of("round_robin", WEIGHTS(5, 1, 1));
    for (int turn = 0; turn < 70; turn++)
        assert_int_equal(pick(table), order[turn % 7]);
    drop(table);
}

/* Weights whose rota would be too long: any stretch of turns has the shares, to within a few turns. */
static void round_robin_without_a_rota_is_as_even(void **state) {
    (void)state;
    uint32_t weights[300];
    for (uint32_t i = 0; i < 300; i++)
        weights[i] = i < 5 ? ES_WEIGHT_MAX : 500 + i;
    test_table *table = table_of("round_robin", weights, 300);
    assert_int_equal(es_rota_bytes(table->members, 300), 0);
    pick_many(table, 3 * PICKS);
    assert_shares_within(table, 2);
    drop(table);
}

/* A call that finds all tried takes one turn, not two: those that come after meet each endpoint alike. */
static void round_robin_takes_one_turn_a_pick(void **state) {
    (void)state;
    const uint32_t tried[] = {0, 1};
    test_table *table = table_of_equals("round_robin", 2);
    for (uint32_t round = 0; round < 10; round++) {
        assert_int_equal(pick(table), round % 2);
        assert_in_range(pick_after(table, tried, 2), 0, 1);
        assert_in_range(pick_after(table, tried, 2), 0, 1);
    }
    drop(table);
}

static void random_gives_each_its_share(void **state) {
    (void)state;
    assert_shares_follow_weights("random", 10 * PICKS);
}

static void random_gives_each_its_share_of_those_that_are_in(void **state) {
    (void)state;
    assert_shares_follow_weights_of_those_in("random", 10 * PICKS);
}

/* All draws fail for most picks: then all are looked at. */
static void random_gives_each_its_share_when_nearly_all_are_out(void **state) {
    (void)state;
    test_table *table = table_of("random", WEIGHTS(1000, 1, 1000, 2, 3));
    put_out(table, 0);
    put_out(table, 2);
    pick_many(table, 5 * PICKS);
    assert_shares_within(table, 2);
    drop(table);
}

static void the_fewest_in_flight_is_the_least_busy(void **state) {
    (void)state;
    for (uint32_t least = 0; least < 8; least++) {
        uint32_t calls[8] = {3, 4, 5, 6, 7, 3, 4, 5};
        test_table *table = table_of_equals("least_busy", 8);
        calls[least] = 2;
        begin_calls(table, calls);
        for (int i = 0; i < 100; i++)
            assert_int_equal(pick(table), least);
        drop(table);
    }
}

static void calls_in_flight_count_for_the_weight(void **state) {
    (void)state;
    test_table *table = table_of("least_busy", WEIGHTS(1, 3, 1000));
    begin_calls(table, (const uint32_t[]){1, 2, 667});
    assert_int_equal(pick(table), 1); /* 1, 0.6667 and 0.667 for a weight of one */
    es_endpoint_end(at(table, 2), ES_UNKNOWN_NS);
    assert_int_equal(pick(table), 2); /* 0.666 */
    es_endpoint_end(at(table, 0), ES_UNKNOWN_NS);
    assert_int_equal(pick(table), 0);
    drop(table);
}

static void at_equal_load_the_lowest_latency_is_picked(void **state) {
    (void)state;
    test_table *table = table_of("least_busy", WEIGHTS(1, 2, 1));
    es_endpoint_end(at(table, 0), 1001);
    es_endpoint_end(at(table, 1), 1000);
    es_endpoint_end(at(table, 2), 1002);
    begin_calls(table, (const uint32_t[]){1, 2, 1});
    assert_int_equal(pick(table), 1);
    es_endpoint_begin(at(table, 1));
    assert_int_equal(pick(table), 0);
    drop(table);
}

static void an_unknown_latency_is_the_lowest(void **state) {
    (void)state;
    test_table *table = table_of_equals("least_busy", 3);
    es_endpoint_end(at(table, 0), 0);
    es_endpoint_end(at(table, 2), 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(pick(table), 1);
    drop(table);
}

static void among_equals_chance_decides(void **state) {
    (void)state;
    test_table *table = table_of("least_busy", WEIGHTS(1, 2, 3, 2));
    es_endpoint_begin(at(table, 3));
    pick_many(table, 5 * PICKS);
    assert_int_equal(table->picked[3], 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_in_range(table->picked[i], 5 * PICKS * (i + 1) / 6 * 98 / 100, 5 * PICKS * (i + 1) / 6 * 102 / 100);
    drop(table);
}

/* Of many only some are compared: whoever is busier than seven others of eight is hardly ever picked. */
static void of_many_those_with_much_to_do_are_left_alone(void **state) {
    (void)state;
    uint32_t calls[TABLE_MAX], busiest = 0;
    test_table *table = table_of_equals("least_busy", TABLE_MAX);
    for (uint32_t i = 0; i < TABLE_MAX; i++)
        calls[i] = i / 10;
    begin_calls(table, calls);
    pick_many(table, PICKS);
    for (uint32_t i = TABLE_MAX / 2; i < TABLE_MAX; i++)
        busiest += table->picked[i];
    assert_in_range(busiest, 1, PICKS / 100);
    drop(table);
}

static void of_many_idle_ones_each_gets_its_share(void **state) {
    (void)state;
    test_table *table = table_of("least_busy", WEIGHTS(1, 1, 1, 1, 1, 2, 2, 2, 2, 2));
    pick_many(table, 10 * PICKS);
    assert_shares_within(table, 2);
    drop(table);
}

static void of_many_that_are_nearly_all_out_the_least_busy_is_found(void **state) {
    (void)state;
    test_table *table = table_of_equals("least_busy", TABLE_MAX);
    for (uint32_t i = 0; i < TABLE_MAX - 2; i++)
        put_out(table, i);
    es_endpoint_begin(at(table, TABLE_MAX - 2));
    uint32_t last = 0;
    for (int i = 0; i < 1000; i++)
        last += pick(table) == TABLE_MAX - 1;
    assert_in_range(last, 980, 1000); /* 20: where draws find the busy one and not the other */
    drop(table);
}

static void a_key_keeps_to_its_endpoint(void **state) {
    (void)state;
    test_table *table = table_of_equals("hash", 10);
    for (uint64_t key = 0; key < 1000; key++) {
        uint32_t index = pick_for(table, key);
        for (int i = 0; i < 5; i++)
            assert_int_equal(pick_for(table, key), index);
    }
    pick_many(table, PICKS);
    assert_shares_within(table, 15);
    drop(table);
}

/* The next on the ring is the one that a ring without the first would give. */
static void a_key_goes_to_the_next_on_the_ring_while_its_own_is_out(void **state) {
    (void)state;
    test_table *table = table_of_equals("hash", 10);
    es_allocator allocator = {counted_alloc, counted_free};
    const es_balancer_config config = {rule_called("hash"), table->members + 1, 9, ES_PPM};
    es_balancer *without;
    memory()->allowed = 1;
    assert_int_equal(es_balancer_new(&without, &config, &allocator), ES_OK);
    for (uint64_t key = 0; key < 10000; key++) {
        uint32_t own = pick_for(table, key), next = es_balancer_pick(without, &table->how) + 1;
        es_endpoint_put_out(at(table, 0), MS(10));
        assert_int_equal(pick_for(table, key), next);
        es_endpoint_let_in(at(table, 0));
        assert_int_equal(pick_after(table, (const uint32_t[]){0}, 1), next);
        assert_int_equal(pick_for(table, key), own);
    }
    es_balancer_free(without);
    drop(table);
}

static void a_key_finds_the_only_one_that_is_in(void **state) {
    (void)state;
    test_table *table = table_of("hash", WEIGHTS(1000, 1000, 1, 1000, 1));
    put_out(table, 0);
    put_out(table, 1);
    put_out(table, 3);
    for (uint64_t key = 0; key < 1000; key++) {
        uint32_t index = pick_for(table, key);
        assert_true(index == 2 || index == 4);
        assert_int_equal(pick_for(table, key), index);
    }
    pick_many(table, PICKS);
    assert_in_range(table->picked[2], PICKS / 3, PICKS * 2 / 3);
    drop(table);
}

static void a_thousand_endpoints_are_all_picked(void **state) {
    (void)state;
    const struct {
        const char *rule;
        uint32_t fewest;
    } rows[] = {{"round_robin", 100}, {"random", 50}, {"hash", 50}, {"least_busy", 50}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_table *table = table_of_equals(rows[i].rule, TABLE_MAX);
        pick_many(table, PICKS);
        for (uint32_t index = 0; index < TABLE_MAX; index++)
            assert_in_range(table->picked[index], rows[i].fewest, 200);
        drop(table);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_robin_gives_each_its_share),
        cmocka_unit_test(round_robin_spreads_the_turns_of_those_that_are_out),
        cmocka_unit_test(round_robin_goes_in_the_order_of_the_rota),
        cmocka_unit_test(round_robin_without_a_rota_is_as_even),
        cmocka_unit_test(round_robin_takes_one_turn_a_pick),
        cmocka_unit_test(random_gives_each_its_share),
        cmocka_unit_test(random_gives_each_its_share_of_those_that_are_in),
        cmocka_unit_test(random_gives_each_its_share_when_nearly_all_are_out),
        cmocka_unit_test(the_fewest_in_flight_is_the_least_busy),
        cmocka_unit_test(calls_in_flight_count_for_the_weight),
        cmocka_unit_test(at_equal_load_the_lowest_latency_is_picked),
        cmocka_unit_test(an_unknown_latency_is_the_lowest),
        cmocka_unit_test(among_equals_chance_decides),
        cmocka_unit_test(of_many_those_with_much_to_do_are_left_alone),
        cmocka_unit_test(of_many_idle_ones_each_gets_its_share),
        cmocka_unit_test(of_many_that_are_nearly_all_out_the_least_busy_is_found),
        cmocka_unit_test(a_key_keeps_to_its_endpoint),
        cmocka_unit_test(a_key_goes_to_the_next_on_the_ring_while_its_own_is_out),
        cmocka_unit_test(a_key_finds_the_only_one_that_is_in),
        cmocka_unit_test(a_thousand_endpoints_are_all_picked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
