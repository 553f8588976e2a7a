/* SPDX-License-Identifier: Apache-2.0 */
/* The limiter when its word changes between the reading and the exchange: what another thread could do in that moment
 * happens there. */
#include "cas_hook.h"
#include "gcra_support.h"

typedef struct {
    void (*interfere)(es_gcra *gcra); /* once, on the first exchange       */
    int failures;                     /* exchanges that fail for no reason */
    int exchanges;
    es_gcra *gcra;
} interference;

static interference *stage(void) {
    static interference shared;
    return &shared;
}

/* What interferes may itself exchange words, undisturbed. */
static bool on_exchange(void) {
    void (*interfere)(es_gcra *) = stage()->interfere;
    stage()->exchanges++;
    if (interfere != NULL) {
        stage()->interfere = NULL;
        cas_hook = NULL;
        interfere(stage()->gcra);
        cas_hook = on_exchange;
    }
    if (stage()->failures == 0)
        return false;
    stage()->failures--;
    return true;
}

static void fail_times(int failures) {
    *stage() = (interference){.failures = failures};
    cas_hook = on_exchange;
}

static void meanwhile(es_gcra *gcra, void (*interfere)(es_gcra *gcra)) {
    *stage() = (interference){.gcra = gcra, .interfere = interfere};
    cas_hook = on_exchange;
}

static int exchanges_until_now(void) {
    cas_hook = NULL;
    return stage()->exchanges;
}

static void another_takes(es_gcra *gcra) {
    go(gcra, 0, 1);
}

static void another_resets(es_gcra *gcra) {
    es_gcra_reset(gcra, 0);
}

static void another_changes_the_limit_twice(es_gcra *gcra) {
    const es_gcra_config faster = {.limit = 30, .per_ns = MS(3000)}, same = {.limit = 3, .per_ns = MS(3000)};
    assert_int_equal(es_gcra_reconfigure(gcra, &faster, 0), ES_OK);
    assert_int_equal(es_gcra_reconfigure(gcra, &same, 0), ES_OK);
}

static void an_exchange_that_fails_for_no_reason_is_tried_again(void **state) {
    (void)state;
    const es_gcra_config config = {.limit = 3, .per_ns = MS(3000)};
    for (int failures = 0; failures < 5; failures++) {
        es_gcra *gcra = limiter(3, MS(3000));
        fail_times(failures);
        uint64_t place = go(gcra, 0, 1);
        assert_int_equal(exchanges_until_now(), failures + 1);
        fail_times(failures);
        es_gcra_give_back(gcra, 0, 1, place);
        assert_int_equal(exchanges_until_now(), failures + 1);
        fail_times(failures);
        assert_int_equal(es_gcra_reconfigure(gcra, &config, 0), ES_OK);
        assert_int_equal(exchanges_until_now(), failures + 1);
        fail_times(failures);
        es_gcra_reset(gcra, 0);
        assert_int_equal(exchanges_until_now(), failures + 1);
        assert_left(gcra, 0, 3);
        drop(gcra);
    }
}

static void the_last_of_a_burst_goes_to_one_of_two(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 2);
    meanwhile(gcra, another_takes);
    assert_limited(gcra, 0, MS(1000));
    assert_int_equal(exchanges_until_now(), 1);
    drop(gcra);
}

static void two_never_book_the_same_place(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 2);
    meanwhile(gcra, another_takes);
    book(gcra, 0, MS(1000));
    assert_int_equal(exchanges_until_now(), 2);
    drop(gcra);
}

static void what_is_given_back_and_what_is_taken_meanwhile_both_count(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t place = go(gcra, 0, 2);
    meanwhile(gcra, another_takes);
    es_gcra_give_back(gcra, 0, 1, place);
    assert_int_equal(exchanges_until_now(), 2);
    assert_left(gcra, 0, 1);
    drop(gcra);
}

static void a_reset_meanwhile_gives_a_burst_to_those_who_ask(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 2);
    meanwhile(gcra, another_resets);
    go(gcra, 0, 1);
    assert_int_equal(exchanges_until_now(), 2);
    assert_left(gcra, 0, 2);
    drop(gcra);
}

static void a_reset_meanwhile_takes_nothing_back(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    uint64_t place = go(gcra, 0, 3);
    meanwhile(gcra, another_resets);
    es_gcra_give_back(gcra, 0, 1, place);
    assert_int_equal(exchanges_until_now(), 1);
    assert_left(gcra, 0, 3);
    drop(gcra);
}

static void a_limit_that_changes_meanwhile_is_seen(void **state) {
    (void)state;
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 1);
    meanwhile(gcra, another_changes_the_limit_twice);
    go(gcra, 0, 1);
    assert_int_equal(exchanges_until_now(), 2);
    assert_left(gcra, 0, 1);
    drop(gcra);
}

static void a_reconfiguration_carries_over_what_is_taken_meanwhile(void **state) {
    (void)state;
    const es_gcra_config twice = {.limit = 6, .per_ns = MS(3000)};
    es_gcra *gcra = limiter(3, MS(3000));
    go(gcra, 0, 1);
    meanwhile(gcra, another_takes);
    assert_int_equal(es_gcra_reconfigure(gcra, &twice, 0), ES_OK);
    assert_int_equal(exchanges_until_now(), 2);
    assert_left(gcra, 0, 2);
    drop(gcra);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exchange_that_fails_for_no_reason_is_tried_again),
        cmocka_unit_test(the_last_of_a_burst_goes_to_one_of_two),
        cmocka_unit_test(two_never_book_the_same_place),
        cmocka_unit_test(what_is_given_back_and_what_is_taken_meanwhile_both_count),
        cmocka_unit_test(a_reset_meanwhile_gives_a_burst_to_those_who_ask),
        cmocka_unit_test(a_reset_meanwhile_takes_nothing_back),
        cmocka_unit_test(a_limit_that_changes_meanwhile_is_seen),
        cmocka_unit_test(a_reconfiguration_carries_over_what_is_taken_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
