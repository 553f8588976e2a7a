/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"
#include "support.h"

#define KEYS 100000

static es_member members[ES_MEMBERS_MAX];

static es_ring *new_ring(uint32_t count) {
    es_ring *ring = malloc(es_ring_bytes(members, count));
    assert_non_null(ring);
    es_ring_init(ring, members, count);
    return ring;
}

static void set_members(uint32_t count, uint32_t weight) {
    for (uint32_t i = 0; i < count; i++)
        members[i] = (es_member){.id = 1000 + i, .weight = weight};
}

static void remove_member(uint32_t index, uint32_t count) {
    memmove(members + index, members + index + 1, (count - index - 1) * sizeof *members);
}

/* The ids of the owners of all keys. */
static void owners_of_keys(uint32_t count, uint64_t *ids) {
    es_ring *ring = new_ring(count);
    for (uint64_t key = 0; key < KEYS; key++)
        ids[key] = members[es_ring_owner(ring, es_ring_find(ring, key))].id;
    free(ring);
}

/* Each member's share of the keys is within 15 % of its share of the weights. */
static void assert_shares(uint32_t count) {
    static uint32_t keys[ES_MEMBERS_MAX];
    uint64_t weights = 0;
    es_ring *ring = new_ring(count);
    memset(keys, 0, count * sizeof *keys);
    for (uint64_t key = 0; key < 10 * KEYS; key++)
        keys[es_ring_owner(ring, es_ring_find(ring, key))]++;
    for (uint32_t i = 0; i < count; i++)
        weights += members[i].weight;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t share = 10 * KEYS * members[i].weight / weights;
        assert_in_range(keys[i], share * 85 / 100, share * 115 / 100);
    }
    free(ring);
}

static void assert_only_its_own_keys_move(uint32_t count, uint32_t leaver) {
    static uint64_t before[KEYS], after[KEYS];
    uint64_t id = members[leaver].id;
    uint32_t moved = 0;
    owners_of_keys(count, before);
    remove_member(leaver, count);
    owners_of_keys(count - 1, after);
    for (int key = 0; key < KEYS; key++) {
        assert_int_not_equal(after[key], id);
        if (before[key] == id)
            moved++;
        else
            assert_int_equal(after[key], before[key]);
    }
    assert_in_range(moved, 1, KEYS / count + KEYS / 20);
}

static void when_one_leaves_only_its_own_keys_move(void **state) {
    (void)state;
    const uint32_t counts[] = {2, 3, 10, 100};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const uint32_t leavers[] = {0, counts[i] / 2, counts[i] - 1};
        for (size_t j = 0; j < 3; j++) {
            set_members(counts[i], 1);
            assert_only_its_own_keys_move(counts[i], leavers[j]);
        }
    }
}

static void its_weight_does_not_matter_to_the_keys_of_the_others(void **state) {
    (void)state;
    set_members(10, 2);
    members[4].weight = 1; /* what divides the weights changes with it */
    assert_only_its_own_keys_move(10, 4);
}

static void its_keys_are_spread_over_the_others(void **state) {
    (void)state;
    static uint64_t before[KEYS], after[KEYS];
    uint32_t gained[10] = {0}, moved = 0;
    set_members(10, 1);
    owners_of_keys(10, before);
    owners_of_keys(9, after);
    for (int key = 0; key < KEYS; key++) {
        gained[after[key] - 1000] += before[key] != after[key];
        moved += before[key] != after[key];
    }
    for (int i = 0; i < 9; i++)
        assert_in_range(gained[i], moved / 18, moved / 4);
}

static void the_order_of_the_list_does_not_matter(void **state) {
    (void)state;
    static uint64_t before[KEYS], after[KEYS];
    set_members(30, 2);
    owners_of_keys(30, before);
    for (uint32_t i = 0; i < 15; i++) {
        es_member swapped = members[i];
        members[i] = members[29 - i];
        members[29 - i] = swapped;
    }
    owners_of_keys(30, after);
    assert_memory_equal(before, after, sizeof before);
}

static void shares_follow_the_weights(void **state) {
    (void)state;
    const uint32_t counts[] = {1, 2, 3, 10, 100};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        set_members(counts[i], 1);
        assert_shares(counts[i]);
        for (uint32_t j = 0; j < counts[i]; j++)
            members[j].weight = 1 + j % 5;
        assert_shares(counts[i]);
    }
    set_members(4, 100);
    members[2].weight = 10;
    assert_shares(4);
}

static void the_points_make_one_circle(void **state) {
    (void)state;
    set_members(7, 1);
    es_ring *ring = new_ring(7);
    uint32_t point = 0, wrapped = 0;
    for (uint32_t i = 0; i < es_ring_points(ring); i++) {
        uint32_t next = es_ring_next(ring, point);
        assert_true(es_ring_owner(ring, next) < 7);
        wrapped += next == 0;
        point = next;
    }
    assert_int_equal(point, 0);
    assert_int_equal(wrapped, 1);
    assert_int_equal(es_ring_points(ring), 7 * ES_RING_POINTS);
    free(ring);
}

/* Without the index, by asking all points. */
static void a_key_goes_where_a_search_of_all_points_says(void **state) {
    (void)state;
    set_members(3, 1);
    es_ring *ring = new_ring(3);
    for (uint64_t key = 0; key < 2000; key++) {
        uint64_t place = es_mix(key) >> 16, best = UINT64_MAX;
        uint32_t owner = 0;
        for (uint32_t i = 0; i < 3; i++)
            for (uint64_t number = 0; number < ES_RING_POINTS; number++) {
                uint64_t ahead = (es_mix(es_mix(members[i].id) + number * ES_WEYL) >> 16) - place;
                ahead &= UINT64_MAX >> 16;
                owner = ahead < best ? i : owner;
                best = ahead < best ? ahead : best;
            }
        assert_int_equal(es_ring_owner(ring, es_ring_find(ring, key)), owner);
    }
    free(ring);
}

static void ids_in_steps_of_the_mixing_constant_share_no_points(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        members[i] = (es_member){.id = i * ES_WEYL, .weight = 1};
    assert_shares(10);
}

static void the_ring_is_bounded(void **state) {
    (void)state;
    for (uint32_t i = 0; i < ES_MEMBERS_MAX; i++)
        members[i] = (es_member){.id = i, .weight = i % 2 == 0 ? 1 : ES_WEIGHT_MAX};
    es_ring *ring = new_ring(ES_MEMBERS_MAX);
    assert_in_range(es_ring_points(ring), ES_MEMBERS_MAX, ES_RING_POINTS_MAX);
    static uint8_t seen[ES_MEMBERS_MAX];
    for (uint32_t point = 0; point < es_ring_points(ring); point++)
        seen[es_ring_owner(ring, point)] = 1;
    assert_null(memchr(seen, 0, sizeof seen));
    free(ring);
    set_members(10, ES_WEIGHT_MAX);
    assert_shares(10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(when_one_leaves_only_its_own_keys_move),
        cmocka_unit_test(its_weight_does_not_matter_to_the_keys_of_the_others),
        cmocka_unit_test(its_keys_are_spread_over_the_others),
        cmocka_unit_test(the_order_of_the_list_does_not_matter),
        cmocka_unit_test(shares_follow_the_weights),
        cmocka_unit_test(the_points_make_one_circle),
        cmocka_unit_test(a_key_goes_where_a_search_of_all_points_says),
        cmocka_unit_test(ids_in_steps_of_the_mixing_constant_share_no_points),
        cmocka_unit_test(the_ring_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
