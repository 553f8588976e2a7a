/* SPDX-License-Identifier: Apache-2.0 */
/* The table: what it is made of, who may be out, and who is picked whatever the rule. */
#include "balancer_support.h"

static const char *const rule_names[] = {"round_robin", "random", "least_busy", "hash"};

#define RULES (sizeof rule_names / sizeof *rule_names)

static bool may_be_out(uint32_t endpoints, uint32_t max_ejected_ppm, uint32_t out) {
    uint32_t weights[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    test_table *table = table_sharing("random", max_ejected_ppm, weights, endpoints);
    bool ejected = true;
    for (uint32_t i = 0; i < out && ejected; i++)
        ejected = es_balancer_eject(table->balancer, i, MS(10), 0);
    assert_int_equal(ejected, es_balancer_out(table->balancer, 0) == out);
    drop(table);
    return ejected;
}

static void the_table_of_rules_lists_each_once_and_ends(void **state) {
    (void)state;
    for (size_t i = 0; i < RULES; i++)
        assert_string_equal(es_balancer_rule_at(i)->name, rule_names[i]);
    assert_null(es_balancer_rule_at(RULES));
    assert_null(es_balancer_rule_at(SIZE_MAX));
}

static void a_table_is_one_allocation(void **state) {
    (void)state;
    for (size_t i = 0; i < RULES; i++) {
        test_table *table = table_of_equals(rule_names[i], 10);
        assert_int_equal(memory()->live, 11);
        drop(table);
    }
}

static void without_memory_there_is_no_balancer(void **state) {
    (void)state;
    for (size_t i = 0; i < RULES; i++) {
        test_table *table = table_of_equals(rule_names[i], 3);
        const es_balancer_config config = {rule_called(rule_names[i]), table->members, 3, 0};
        es_allocator allocator = {counted_alloc, counted_free};
        es_balancer *balancer = table->balancer;
        assert_int_equal(memory()->allowed, 0);
        assert_int_equal(es_balancer_new(&balancer, &config, &allocator), ES_NO_MEMORY);
        assert_null(balancer);
        es_balancer_free(balancer);
        drop(table);
    }
}

static void assert_bad(es_balancer_config config) {
    es_allocator allocator = {counted_alloc, counted_free};
    size_t live = memory()->live;
    es_balancer *balancer = (es_balancer *)&allocator;
    memory()->allowed = 1;
    assert_int_equal(es_balancer_new(&balancer, &config, &allocator), ES_BAD_CONFIG);
    assert_null(balancer);
    assert_int_equal(memory()->live, live);
}

static void a_field_outside_its_range_makes_no_balancer(void **state) {
    (void)state;
    test_table *table = table_of_equals("random", 5);
    const es_balancer_rule *rule = rule_called("random");
    assert_bad((es_balancer_config){NULL, table->members, 5, 0});
    assert_bad((es_balancer_config){rule, table->members, 0, 0});
    assert_bad((es_balancer_config){rule, table->members, ES_MEMBERS_MAX + 1, 0});
    assert_bad((es_balancer_config){rule, table->members, 5, ES_PPM + 1});
    for (uint32_t i = 0; i < 5; i++) {
        const es_member right = table->members[i];
        table->members[i].weight = 0;
        assert_bad((es_balancer_config){rule, table->members, 5, 0});
        table->members[i].weight = ES_WEIGHT_MAX + 1;
        assert_bad((es_balancer_config){rule, table->members, 5, 0});
        table->members[i] = right;
        table->members[i].endpoint = NULL;
        assert_bad((es_balancer_config){rule, table->members, 5, 0});
        table->members[i] = right;
    }
    drop(table);
}

static void no_two_members_have_the_same_id(void **state) {
    (void)state;
    test_table *table = table_of_equals("random", 9);
    for (uint32_t i = 0; i < 9; i++)
        for (uint32_t j = 0; j < 9; j++) {
            uint64_t id = table->members[i].id;
            table->members[i].id = table->members[j].id;
            if (i != j)
                assert_bad((es_balancer_config){rule_called("random"), table->members, 9, 0});
            table->members[i].id = id;
        }
    drop(table);
}

static void the_share_that_may_be_out_is_rounded_down(void **state) {
    (void)state;
    const struct {
        uint32_t endpoints, max_ejected_ppm, out;
    } rows[] = {
        {3, 500000, 1}, {3, 670000, 2}, {3, 666666, 1}, {3, 666667, 2}, {1, 500000, 0}, {1, 999999, 0},
        {1, ES_PPM, 1}, {3, ES_PPM, 3}, {3, 0, 0},      {2, 500000, 1}, {2, 499999, 0}, {10, 300000, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(may_be_out(rows[i].endpoints, rows[i].max_ejected_ppm, rows[i].out));
        if (rows[i].out < rows[i].endpoints)
            assert_false(may_be_out(rows[i].endpoints, rows[i].max_ejected_ppm, rows[i].out + 1));
    }
}

static void one_that_stays_in_goes_on_being_picked(void **state) {
    (void)state;
    test_table *table = table_sharing("round_robin", 500000, WEIGHTS(1, 1, 1));
    assert_true(es_balancer_eject(table->balancer, 1, MS(10), 0));
    assert_false(es_balancer_eject(table->balancer, 2, MS(10), 0));
    assert_true(es_endpoint_is_in(at(table, 2), 0));
    pick_many(table, 1000);
    assert_shares_within(table, 10);
    assert_true(es_balancer_eject(table->balancer, 2, MS(20), MS(10)));
    drop(table);
}

static void putting_one_out_again_only_moves_its_time(void **state) {
    (void)state;
    test_table *table = table_sharing("random", 500000, WEIGHTS(1, 1));
    assert_true(es_balancer_eject(table->balancer, 0, MS(10), 0));
    assert_true(es_balancer_eject(table->balancer, 0, MS(30), MS(5)));
    assert_int_equal(es_balancer_out(table->balancer, MS(29)), 1);
    assert_true(es_balancer_eject(table->balancer, 0, MS(20), MS(5)));
    assert_int_equal(es_balancer_out(table->balancer, MS(20)), 0);
    assert_true(es_balancer_eject(table->balancer, 0, MS(40), MS(21)));
    assert_true(es_balancer_eject(table->balancer, 0, MS(21), MS(21)));
    assert_true(es_endpoint_is_in(at(table, 0), MS(21)));
    drop(table);
}

static void those_that_drain_are_no_part_of_the_share(void **state) {
    (void)state;
    test_table *table = table_sharing("random", 500000, WEIGHTS(1, 1, 1, 1));
    assert_true(es_balancer_eject(table->balancer, 0, MS(10), 0));
    es_endpoint_drain(at(table, 3), true);
    assert_false(es_balancer_eject(table->balancer, 1, MS(10), 0));
    es_endpoint_drain(at(table, 0), true);
    assert_int_equal(es_balancer_out(table->balancer, 0), 0);
    assert_int_equal(es_balancer_soonest_ns(table->balancer, 0), ES_FOREVER_NS);
    assert_true(es_balancer_eject(table->balancer, 1, MS(10), 0));
    assert_false(es_balancer_eject(table->balancer, 2, MS(10), 0));
    drop(table);
}

static void the_soonest_that_comes_back_is_told(void **state) {
    (void)state;
    test_table *table = table_of_equals("random", 4);
    assert_int_equal(es_balancer_soonest_ns(table->balancer, 0), ES_FOREVER_NS);
    assert_true(es_balancer_eject(table->balancer, 0, ES_FOREVER_NS, 0));
    assert_int_equal(es_balancer_soonest_ns(table->balancer, 0), ES_FOREVER_NS);
    assert_true(es_balancer_eject(table->balancer, 1, MS(20), 0));
    assert_true(es_balancer_eject(table->balancer, 2, MS(10), 0));
    assert_int_equal(es_balancer_soonest_ns(table->balancer, 0), MS(10));
    assert_int_equal(es_balancer_soonest_ns(table->balancer, MS(10)), MS(20));
    assert_int_equal(es_balancer_soonest_ns(table->balancer, MS(20)), ES_FOREVER_NS);
    drop(table);
}

static void one_that_is_out_or_draining_is_not_picked(void **state) {
    (void)state;
    for (size_t i = 0; i < RULES; i++) {
        test_table *table = table_of_equals(rule_names[i], 5);
        put_out(table, 1);
        es_endpoint_drain(at(table, 3), true);
        pick_many(table, 1000);
        assert_int_equal(table->picked[1] + table->picked[3], 0);
        drop(table);
    }
}

static void one_that_was_out_is_picked_from_its_time_on(void **state) {
    (void)state;
    for (size_t i = 0; i < RULES; i++) {
        test_table *table = table_of_equals(rule_names[i], 1);
        es_endpoint_put_out(at(table, 0), MS(10));
        table->how.now_ns = MS(10) - 1;
        assert_int_equal(pick(table), ES_NO_ENDPOINT);
        table->how.now_ns = MS(10);
        assert_int_equal(pick(table), 0);
        drop(table);
    }
}

static void when_all_are_out_nobody_is_picked(void **state) {
    (void)state;
    const uint32_t counts[] = {1, 2, 8, 9, TABLE_MAX}, tried[] = {0, 1};
    for (size_t i = 0; i < RULES; i++)
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            test_table *table = table_of_equals(rule_names[i], counts[j]);
            for (uint32_t index = 0; index < counts[j]; index++)
                put_out(table, index);
            assert_int_equal(pick(table), ES_NO_ENDPOINT);
            assert_int_equal(pick_after(table, tried, 2), ES_NO_ENDPOINT);
            es_endpoint_let_in(at(table, counts[j] - 1));
            assert_int_equal(pick(table), counts[j] - 1);
            drop(table);
        }
}

static void one_not_yet_tried_is_picked_first(void **state) {
    (void)state;
    const uint32_t tried[] = {2, 0, 4, 9};
    for (size_t i = 0; i < RULES; i++) {
        test_table *table = table_of_equals(rule_names[i], 5);
        for (uint32_t key = 0; key < 200; key++) {
            table->how.key_hash = key;
            uint32_t index = pick_after(table, tried, 4);
            assert_true(index == 1 || index == 3);
            put_out(table, 1);
            assert_int_equal(pick_after(table, tried, 4), 3);
            es_endpoint_let_in(at(table, 1));
        }
        drop(table);
    }
}

static void when_all_that_are_in_were_tried_one_of_them_is_picked(void **state) {
    (void)state;
    const uint32_t tried[] = {0, 1, 2};
    for (size_t i = 0; i < RULES; i++) {
        uint32_t picked[4] = {0};
        test_table *table = table_of_equals(rule_names[i], 4);
        put_out(table, 3);
        for (uint32_t key = 0; key < 600; key++) {
            table->how.key_hash = key;
            uint32_t index = pick_after(table, tried, 3);
            assert_in_range(index, 0, 2);
            picked[index]++;
        }
        for (int index = 0; index < 3; index++)
            assert_in_range(picked[index], 100, 300);
        drop(table);
    }
}

static void no_more_are_tried_than_can_be(void **state) {
    (void)state;
    uint32_t tried[ES_TRIED_MAX + 1] = {0};
    test_table *table = table_of_equals("random", 2);
    tried[ES_TRIED_MAX] = 1;
    assert_int_equal(pick_after(table, tried, ES_TRIED_MAX + 1), 1);
    drop(table);
}

static void a_single_endpoint_is_always_picked(void **state) {
    (void)state;
    const uint32_t tried[] = {0};
    for (size_t i = 0; i < RULES; i++) {
        test_table *table = table_of(rule_names[i], WEIGHTS(ES_WEIGHT_MAX));
        pick_many(table, 100);
        assert_int_equal(table->picked[0], 100);
        assert_int_equal(pick_after(table, tried, 1), 0);
        drop(table);
    }
}

/* An endpoint of two tables, the old and the new list. */
static void what_is_known_of_an_endpoint_holds_in_every_table(void **state) {
    (void)state;
    test_table *table = table_of_equals("random", 3);
    const es_balancer_config config = {rule_called("round_robin"), table->members + 1, 2, ES_PPM};
    es_allocator allocator = {counted_alloc, counted_free};
    es_balancer *next;
    memory()->allowed = 1;
    assert_true(es_balancer_eject(table->balancer, 1, MS(10), 0));
    assert_int_equal(es_balancer_new(&next, &config, &allocator), ES_OK);
    assert_int_equal(es_balancer_out(next, 0), 1);
    for (int i = 0; i < 10; i++)
        assert_int_equal(es_balancer_pick(next, &table->how), 1);
    es_balancer_free(next);
    drop(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_rules_lists_each_once_and_ends),
        cmocka_unit_test(a_table_is_one_allocation),
        cmocka_unit_test(without_memory_there_is_no_balancer),
        cmocka_unit_test(a_field_outside_its_range_makes_no_balancer),
        cmocka_unit_test(no_two_members_have_the_same_id),
        cmocka_unit_test(the_share_that_may_be_out_is_rounded_down),
        cmocka_unit_test(one_that_stays_in_goes_on_being_picked),
        cmocka_unit_test(putting_one_out_again_only_moves_its_time),
        cmocka_unit_test(those_that_drain_are_no_part_of_the_share),
        cmocka_unit_test(the_soonest_that_comes_back_is_told),
        cmocka_unit_test(one_that_is_out_or_draining_is_not_picked),
        cmocka_unit_test(one_that_was_out_is_picked_from_its_time_on),
        cmocka_unit_test(when_all_are_out_nobody_is_picked),
        cmocka_unit_test(one_not_yet_tried_is_picked_first),
        cmocka_unit_test(when_all_that_are_in_were_tried_one_of_them_is_picked),
        cmocka_unit_test(no_more_are_tried_than_can_be),
        cmocka_unit_test(a_single_endpoint_is_always_picked),
        cmocka_unit_test(what_is_known_of_an_endpoint_holds_in_every_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
