/* SPDX-License-Identifier: Apache-2.0 */
/* bulkhead_order_stress.c - many threads take the only slot in turn, without a lock, and touch something that nothing
 * but the slot guards.
 *
 * What must hold: what a holder did has happened for the next one. Meant for -fsanitize=thread, which sees when that is
 * luck. Control: built with that and -DES_STRESS_ASIDE, with which some touch it without the slot, it has to fail.
 */
#include <pthread.h>
#include <sched.h>

#include "bulkhead.h"
#include "support.h"

#define THREADS 4
#define ROUNDS 20000

typedef struct {
    es_bulkhead *bulkhead;
    long guarded;
} shared_stage;

static void *take_turns(void *argument) {
    shared_stage *stage = argument;
    es_bulkhead_permit permit;
    for (int round = 0; round < ROUNDS; round++) {
        while (!es_bulkhead_try_acquire(stage->bulkhead, &permit))
            sched_yield();
        stage->guarded++;
        while (!es_bulkhead_try_release(stage->bulkhead, permit))
            sched_yield();
#ifdef ES_STRESS_ASIDE
        stage->guarded += round % 100 == 0;
#endif
        if (round % 4 == 0)
            sched_yield();
    }
    return NULL;
}

static void what_the_holder_of_the_only_slot_did_has_happened_for_the_next(void **state) {
    (void)state;
    const es_allocator allocator = {malloc, free};
    const es_bulkhead_config config = {.limit = 1, .lease_ns = ES_FOREVER_NS};
    shared_stage stage = {0};
    pthread_t threads[THREADS];
    assert_int_equal(es_bulkhead_new(&stage.bulkhead, &config, &allocator), ES_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &stage), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(stage.guarded, (long)THREADS * ROUNDS);
    assert_int_equal(es_bulkhead_in_flight(stage.bulkhead), 0);
    es_bulkhead_free(stage.bulkhead);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_holder_of_the_only_slot_did_has_happened_for_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
