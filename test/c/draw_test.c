/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"
#include "support.h"

#define MANY 1000

static es_member members[ES_MEMBERS_MAX];

static es_draw *draw_of(const uint32_t *weights, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        members[i] = (es_member){.id = i, .weight = weights[i]};
    es_draw *draw = malloc(es_draw_bytes(count));
    assert_non_null(draw);
    es_draw_init(draw, members, count);
    return draw;
}

/* Each member's part of 2^20 words in even steps is its share of the weights, but for one word at each end of a run. */
static void assert_drawn_by_weight(const uint32_t *weights, uint32_t count) {
    static uint32_t drawn[MANY];
    const uint32_t words = UINT32_C(1) << 20;
    uint64_t sum = 0;
    es_draw *draw = draw_of(weights, count);
    memset(drawn, 0, sizeof drawn);
    for (uint32_t word = 0; word < words; word++)
        drawn[es_draw_at(draw, (uint64_t)word << 44)]++;
    for (uint32_t i = 0; i < count; i++)
        sum += weights[i];
    for (uint32_t i = 0; i < count; i++) {
        int64_t share = (int64_t)((uint64_t)words * weights[i] / sum);
        assert_in_range(drawn[i] + (int64_t)count, share, share + 2 * (int64_t)count);
    }
    free(draw);
}

static void each_is_drawn_by_its_weight(void **state) {
    (void)state;
    assert_drawn_by_weight((const uint32_t[]){1, 3}, 2);
    assert_drawn_by_weight((const uint32_t[]){1, 1, 1}, 3);
    assert_drawn_by_weight((const uint32_t[]){5, 1, 1}, 3);
    assert_drawn_by_weight((const uint32_t[]){1, 1000, 1}, 3);
    assert_drawn_by_weight((const uint32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 10);
    assert_drawn_by_weight((const uint32_t[]){1000, 1, 500, 1, 250, 999}, 6);
}

static void each_of_many_is_drawn_by_its_weight(void **state) {
    (void)state;
    uint32_t weights[MANY];
    uint64_t random = 7;
    for (int round = 0; round < 5; round++) {
        uint32_t count = (uint32_t)random_between(&random, 1, 60);
        for (uint32_t i = 0; i < count; i++)
            weights[i] = (uint32_t)random_between(&random, 1, ES_WEIGHT_MAX);
        assert_drawn_by_weight(weights, count);
    }
}

static void a_single_member_is_always_drawn(void **state) {
    (void)state;
    es_draw *draw = draw_of((const uint32_t[]){17}, 1);
    assert_int_equal(es_draw_at(draw, 0), 0);
    assert_int_equal(es_draw_at(draw, UINT64_MAX), 0);
    assert_int_equal(es_draw_at(draw, UINT64_MAX / 3), 0);
    free(draw);
}

static void the_largest_table_can_be_drawn_from(void **state) {
    (void)state;
    static uint32_t weights[ES_MEMBERS_MAX];
    for (uint32_t i = 0; i < ES_MEMBERS_MAX; i++)
        weights[i] = ES_WEIGHT_MAX;
    es_draw *draw = draw_of(weights, ES_MEMBERS_MAX);
    assert_int_equal(es_draw_at(draw, 0), 0);
    assert_int_equal(es_draw_at(draw, UINT64_MAX), ES_MEMBERS_MAX - 1);
    assert_int_equal(es_draw_at(draw, UINT64_C(1) << 63), ES_MEMBERS_MAX / 2);
    free(draw);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_drawn_by_its_weight),
        cmocka_unit_test(each_of_many_is_drawn_by_its_weight),
        cmocka_unit_test(a_single_member_is_always_drawn),
        cmocka_unit_test(the_largest_table_can_be_drawn_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
