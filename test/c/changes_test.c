/* SPDX-License-Identifier: Apache-2.0 */
#include "changes.h"
#include "support.h"

static es_changes *no_changes(void) {
    assert_int_equal(es_changes_bytes() % sizeof(int64_t), 0);
    es_changes *changes = malloc(es_changes_bytes());
    assert_non_null(changes);
    memset(changes, 0xa5, es_changes_bytes());
    es_changes_init(changes);
    return changes;
}

static void keep(es_changes *changes, es_state from, es_state to, int64_t at_ns) {
    es_changes_keep(changes, &(es_change){.from = from, .to = to, .at_ns = at_ns});
}

static void assert_takes(es_changes *changes, es_state from, es_state to, int64_t at_ns) {
    es_change change;
    memset(&change, 0xa5, sizeof change);
    assert_true(es_changes_held(changes));
    assert_true(es_changes_take(changes, &change));
    assert_int_equal(change.from, from);
    assert_int_equal(change.to, to);
    assert_int_equal(change.at_ns, at_ns);
}

static void assert_empty(es_changes *changes) {
    es_change change = {.at_ns = 77};
    assert_false(es_changes_held(changes));
    assert_false(es_changes_take(changes, &change));
    assert_int_equal(change.at_ns, 77);
}

static void a_new_queue_holds_nothing(void **state) {
    (void)state;
    es_changes *changes = no_changes();
    assert_empty(changes);
    free(changes);
}

static void a_change_is_taken_as_it_was_kept(void **state) {
    (void)state;
    es_changes *changes = no_changes();
    for (size_t rule = 0; rule == 0 || es_trip_at(rule - 1) != NULL; rule++) {
        const es_change kept = {
            .from = ES_HALF_OPEN,
            .to = ES_BYPASSED,
            .rule = es_trip_at(rule),
            .by_hand = rule % 2 == 0,
            .counts = {UINT32_MAX, {UINT32_MAX - 1, UINT32_MAX - 2, UINT32_MAX - 3}, UINT32_MAX - 4},
            .generation = UINT64_MAX >> 8,
            .at_ns = INT64_MIN,
            .retry_after_ns = INT64_MAX,
        };
        es_change taken;
        es_changes_keep(changes, &kept);
        assert_true(es_changes_take(changes, &taken));
        assert_int_equal(taken.from, kept.from);
        assert_int_equal(taken.to, kept.to);
        assert_ptr_equal(taken.rule, kept.rule);
        assert_int_equal(taken.by_hand, kept.by_hand);
        assert_memory_equal(&taken.counts, &kept.counts, sizeof kept.counts);
        assert_int_equal(taken.generation, kept.generation);
        assert_int_equal(taken.at_ns, kept.at_ns);
        assert_int_equal(taken.retry_after_ns, kept.retry_after_ns);
    }
    free(changes);
}

static void changes_are_taken_in_the_order_they_were_kept(void **state) {
    (void)state;
    es_changes *changes = no_changes();
    for (int64_t round = 0; round < 10; round++) {
        keep(changes, ES_CLOSED, ES_OPEN, 3 * round);
        keep(changes, ES_OPEN, ES_HALF_OPEN, 3 * round + 1);
        keep(changes, ES_HALF_OPEN, ES_CLOSED, 3 * round + 2);
        assert_takes(changes, ES_CLOSED, ES_OPEN, 3 * round);
        assert_takes(changes, ES_OPEN, ES_HALF_OPEN, 3 * round + 1);
        assert_takes(changes, ES_HALF_OPEN, ES_CLOSED, 3 * round + 2);
        assert_empty(changes);
    }
    free(changes);
}

static void one_change_too_many_draws_out_the_newest(void **state) {
    (void)state;
    es_changes *changes = no_changes();
    keep(changes, ES_CLOSED, ES_OPEN, 1);
    keep(changes, ES_OPEN, ES_HALF_OPEN, 2);
    keep(changes, ES_HALF_OPEN, ES_OPEN, 3);
    keep(changes, ES_OPEN, ES_HALF_OPEN, 4);
    keep(changes, ES_HALF_OPEN, ES_CLOSED, 5);
    assert_takes(changes, ES_CLOSED, ES_OPEN, 1);
    assert_takes(changes, ES_OPEN, ES_HALF_OPEN, 2);
    assert_takes(changes, ES_HALF_OPEN, ES_OPEN, 3);
    assert_takes(changes, ES_OPEN, ES_CLOSED, 5);
    assert_empty(changes);
    free(changes);
}

static void there_and_back_again_is_no_change(void **state) {
    (void)state;
    es_changes *changes = no_changes();
    for (int64_t at_ns = 1; at_ns <= ES_CHANGES_KEPT; at_ns++)
        keep(changes, at_ns % 2 == 1 ? ES_CLOSED : ES_OPEN, at_ns % 2 == 1 ? ES_OPEN : ES_CLOSED, at_ns);
    keep(changes, ES_CLOSED, ES_OPEN, 5);
    assert_takes(changes, ES_CLOSED, ES_OPEN, 1);
    assert_takes(changes, ES_OPEN, ES_CLOSED, 2);
    assert_takes(changes, ES_CLOSED, ES_OPEN, 3);
    assert_empty(changes);
    keep(changes, ES_OPEN, ES_CLOSED, 6);
    assert_takes(changes, ES_OPEN, ES_CLOSED, 6);
    free(changes);
}

/* However many changes go by, and wherever the listener comes in. */
static void the_chain_is_never_broken_and_ends_in_the_present(void **state) {
    (void)state;
    es_changes *changes = no_changes();
    es_state reached = ES_CLOSED, told = ES_CLOSED;
    uint64_t random = 5;
    for (int64_t at_ns = 0; at_ns < 20000; at_ns++) {
        es_state to = (es_state)((reached + random_between(&random, 1, 4)) % 5);
        es_change change;
        keep(changes, reached, to, at_ns);
        reached = to;
        for (int64_t taken = random_between(&random, 0, 5); taken > 0 && es_changes_take(changes, &change); taken--) {
            assert_int_equal(change.from, told);
            assert_int_not_equal(change.to, told);
            told = change.to;
        }
        if (!es_changes_held(changes))
            assert_int_equal(told, reached);
    }
    free(changes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_queue_holds_nothing),
        cmocka_unit_test(a_change_is_taken_as_it_was_kept),
        cmocka_unit_test(changes_are_taken_in_the_order_they_were_kept),
        cmocka_unit_test(one_change_too_many_draws_out_the_newest),
        cmocka_unit_test(there_and_back_again_is_no_change),
        cmocka_unit_test(the_chain_is_never_broken_and_ends_in_the_present),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
