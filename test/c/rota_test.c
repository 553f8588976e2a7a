/* SPDX-License-Identifier: Apache-2.0 */
#include "rota.h"
#include "support.h"

static es_member members[ES_MEMBERS_MAX];

static void set_members(const uint32_t *weights, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        members[i] = (es_member){.id = i, .weight = weights[i]};
}

static es_rota *rota_of(const uint32_t *weights, uint32_t count) {
    set_members(weights, count);
    size_t bytes = es_rota_bytes(members, count);
    assert_int_not_equal(bytes, 0);
    es_rota *rota = malloc(bytes);
    assert_non_null(rota);
    es_rota_init(rota, members, count);
    return rota;
}

static void assert_turns(const uint32_t *weights, uint32_t count, const char *turns) {
    es_rota *rota = rota_of(weights, count);
    assert_int_equal(es_rota_length(rota), strlen(turns));
    for (uint64_t turn = 0; turn < 3 * strlen(turns); turn++)
        assert_int_equal(es_rota_at(rota, turn), turns[turn % strlen(turns)] - '0');
    free(rota);
}

static size_t bytes_of_equals(uint32_t weight, uint32_t count, uint32_t last_weight) {
    for (uint32_t i = 0; i < count; i++)
        members[i] = (es_member){.id = i, .weight = weight};
    members[count - 1].weight = last_weight;
    return es_rota_bytes(members, count);
}

static void turns_are_spread_as_nginx_spreads_them(void **state) {
    (void)state;
    assert_turns((const uint32_t[]){5, 1, 1}, 3, "0010200");
    assert_turns((const uint32_t[]){1, 2, 3}, 3, "210212");
    assert_turns((const uint32_t[]){4, 2, 1}, 3, "0102010");
}

static void equal_weights_take_turns_in_order(void **state) {
    (void)state;
    assert_turns((const uint32_t[]){1, 1, 1, 1}, 4, "0123");
    assert_turns((const uint32_t[]){7, 7, 7}, 3, "012");
    assert_turns((const uint32_t[]){1000}, 1, "0");
}

static void weights_are_divided_by_what_divides_them_all(void **state) {
    (void)state;
    assert_turns((const uint32_t[]){500, 100, 100}, 3, "0010200");
    assert_turns((const uint32_t[]){6, 3}, 2, "010");
}

static void each_has_as_many_turns_as_its_weight(void **state) {
    (void)state;
    uint32_t weights[20], turns[20];
    uint64_t random = 3;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 20; i++) {
            weights[i] = (uint32_t)random_between(&random, 1, ES_WEIGHT_MAX);
            turns[i] = 0;
        }
        weights[round] = 1; /* nothing divides them all */
        es_rota *rota = rota_of(weights, 20);
        for (uint32_t turn = 0; turn < es_rota_length(rota); turn++)
            turns[es_rota_at(rota, turn)]++;
        assert_memory_equal(turns, weights, sizeof turns);
        free(rota);
    }
}

static void turns_go_on_to_the_last_number(void **state) {
    (void)state;
    es_rota *rota = rota_of((const uint32_t[]){1, 1, 1}, 3);
    assert_int_equal(es_rota_at(rota, UINT64_MAX), UINT64_MAX % 3);
    free(rota);
}

static void a_rota_that_would_be_too_long_is_none(void **state) {
    (void)state;
    assert_int_not_equal(bytes_of_equals(1000, 66, 536), 0); /* divided by 8  */
    assert_int_equal(bytes_of_equals(1000, 67, 1), 0);       /* 66001 turns   */
    assert_int_not_equal(bytes_of_equals(1000, 66, 501), 0); /* 65501 turns   */
    assert_int_not_equal(bytes_of_equals(1, 2895, 2), 0);    /* 2896 * 2895 < 2^23 */
    assert_int_equal(bytes_of_equals(1, 2896, 2), 0);        /* 2897 * 2896 > 2^23 */
    assert_int_not_equal(bytes_of_equals(1000, ES_MEMBERS_MAX, 1000), 0);
    assert_int_equal(bytes_of_equals(1000, ES_MEMBERS_MAX, 999), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_are_spread_as_nginx_spreads_them),
        cmocka_unit_test(equal_weights_take_turns_in_order),
        cmocka_unit_test(weights_are_divided_by_what_divides_them_all),
        cmocka_unit_test(each_has_as_many_turns_as_its_weight),
        cmocka_unit_test(turns_go_on_to_the_last_number),
        cmocka_unit_test(a_rota_that_would_be_too_long_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
