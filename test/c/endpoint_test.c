/* SPDX-License-Identifier: Apache-2.0 */
#include "cas_hook.h"
#include "endpoint.h"
#include "support.h"

static es_endpoint *new_endpoint(void) {
    es_endpoint *endpoint;
    es_allocator allocator = allocator_that_allows(1);
    assert_int_equal(es_endpoint_new(&endpoint, &allocator), ES_OK);
    return endpoint;
}

static void drop(es_endpoint *endpoint) {
    es_endpoint_free(endpoint);
    assert_int_equal(memory()->live, 0);
}

static int64_t average_after(const int64_t *durations_ns, size_t count) {
    es_endpoint *endpoint = new_endpoint();
    for (size_t i = 0; i < count; i++) {
        es_endpoint_begin(endpoint);
        es_endpoint_end(endpoint, durations_ns[i]);
    }
    int64_t average_ns = es_endpoint_latency_ns(endpoint);
    drop(endpoint);
    return average_ns;
}

static void a_new_endpoint_is_in_idle_and_of_unknown_latency(void **state) {
    (void)state;
    es_endpoint *endpoint = new_endpoint();
    assert_int_equal(es_endpoint_in_flight(endpoint), 0);
    assert_int_equal(es_endpoint_latency_ns(endpoint), ES_UNKNOWN_NS);
    assert_true(es_endpoint_is_in(endpoint, INT64_MIN));
    assert_false(es_endpoint_is_out(endpoint, INT64_MIN));
    assert_false(es_endpoint_is_draining(endpoint));
    assert_int_equal(es_endpoint_out_until_ns(endpoint), INT64_MIN);
    drop(endpoint);
}

static void without_memory_there_is_no_endpoint(void **state) {
    (void)state;
    es_allocator allocator = allocator_that_allows(0);
    es_endpoint *endpoint = (es_endpoint *)&allocator;
    assert_int_equal(es_endpoint_new(&endpoint, &allocator), ES_NO_MEMORY);
    assert_null(endpoint);
    es_endpoint_free(endpoint);
    assert_int_equal(memory()->live, 0);
}

static void calls_are_in_flight_from_begin_to_end(void **state) {
    (void)state;
    es_endpoint *endpoint = new_endpoint();
    for (uint32_t begun = 1; begun <= 5; begun++) {
        es_endpoint_begin(endpoint);
        assert_int_equal(es_endpoint_in_flight(endpoint), begun);
    }
    for (uint32_t left = 5; left-- > 0;) {
        es_endpoint_end(endpoint, left % 2 == 0 ? ES_UNKNOWN_NS : MS(1));
        assert_int_equal(es_endpoint_in_flight(endpoint), left);
    }
    drop(endpoint);
}

static void a_call_that_ends_twice_is_not_counted_below_zero(void **state) {
    (void)state;
    es_endpoint *endpoint = new_endpoint();
    es_endpoint_end(endpoint, ES_UNKNOWN_NS);
    es_endpoint_begin(endpoint);
    es_endpoint_end(endpoint, MS(1));
    es_endpoint_end(endpoint, MS(1));
    assert_int_equal(es_endpoint_in_flight(endpoint), 0);
    es_endpoint_begin(endpoint);
    assert_int_equal(es_endpoint_in_flight(endpoint), 1);
    drop(endpoint);
}

static void a_duration_moves_the_average_an_eighth_of_the_way(void **state) {
    (void)state;
    const int64_t durations_ns[] = {MS(8), MS(16), MS(8)};
    assert_int_equal(average_after(durations_ns, 1), MS(8));
    assert_int_equal(average_after(durations_ns, 2), MS(9));
    assert_int_equal(average_after(durations_ns, 3), 8875000);
}

static void an_unknown_duration_leaves_the_average_as_it_is(void **state) {
    (void)state;
    const int64_t durations_ns[] = {ES_UNKNOWN_NS, INT64_MIN, 0, ES_UNKNOWN_NS, -5};
    assert_int_equal(average_after(durations_ns, 2), ES_UNKNOWN_NS);
    assert_int_equal(average_after(durations_ns, 5), 0);
}

static void the_longest_and_the_shortest_duration_are_averaged(void **state) {
    (void)state;
    const int64_t durations_ns[] = {0, INT64_MAX, INT64_MAX, 0};
    assert_int_equal(average_after(durations_ns, 2), INT64_MAX / 8);
    assert_int_equal(average_after(durations_ns + 1, 2), INT64_MAX);
    assert_int_equal(average_after(durations_ns + 2, 2), INT64_MAX - INT64_MAX / 8);
}

static void an_endpoint_is_out_until_its_time_has_come(void **state) {
    (void)state;
    es_endpoint *endpoint = new_endpoint();
    es_endpoint_put_out(endpoint, MS(5));
    assert_true(es_endpoint_is_out(endpoint, MS(5) - 1));
    assert_false(es_endpoint_is_in(endpoint, MS(5) - 1));
    assert_false(es_endpoint_is_out(endpoint, MS(5)));
    assert_true(es_endpoint_is_in(endpoint, MS(5)));
    assert_int_equal(es_endpoint_out_until_ns(endpoint), MS(5));
    es_endpoint_put_out(endpoint, -MS(5));
    assert_true(es_endpoint_is_out(endpoint, -MS(5) - 1));
    assert_false(es_endpoint_is_out(endpoint, -MS(5)));
    drop(endpoint);
}

static void an_endpoint_that_is_out_can_be_let_in(void **state) {
    (void)state;
    es_endpoint *endpoint = new_endpoint();
    es_endpoint_put_out(endpoint, ES_FOREVER_NS);
    assert_true(es_endpoint_is_out(endpoint, INT64_MAX - 1));
    es_endpoint_let_in(endpoint);
    assert_true(es_endpoint_is_in(endpoint, INT64_MIN));
    drop(endpoint);
}

static void draining_is_apart_from_being_out(void **state) {
    (void)state;
    es_endpoint *endpoint = new_endpoint();
    es_endpoint_begin(endpoint);
    es_endpoint_drain(endpoint, true);
    assert_true(es_endpoint_is_draining(endpoint));
    assert_false(es_endpoint_is_in(endpoint, 0));
    assert_false(es_endpoint_is_out(endpoint, 0));
    assert_int_equal(es_endpoint_in_flight(endpoint), 1);
    es_endpoint_let_in(endpoint);
    assert_false(es_endpoint_is_in(endpoint, 0));
    es_endpoint_drain(endpoint, false);
    assert_true(es_endpoint_is_in(endpoint, 0));
    drop(endpoint);
}

static es_endpoint *shared;
static int others_left;

/* Another call begins, and another duration is learned, in between. */
static bool another_thread_comes(void) {
    if (others_left-- > 0) {
        bool (*hook)(void) = cas_hook;
        cas_hook = NULL;
        es_endpoint_begin(shared);
        es_endpoint_begin(shared);
        es_endpoint_end(shared, MS(8));
        cas_hook = hook;
    }
    return false;
}

static void nothing_is_lost_when_another_thread_comes_between(void **state) {
    (void)state;
    shared = new_endpoint();
    es_endpoint_begin(shared);
    others_left = 2;
    cas_hook = another_thread_comes;
    es_endpoint_end(shared, MS(16));
    cas_hook = NULL;
    assert_int_equal(es_endpoint_in_flight(shared), 2);
    assert_int_equal(es_endpoint_latency_ns(shared), MS(9));
    drop(shared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_endpoint_is_in_idle_and_of_unknown_latency),
        cmocka_unit_test(without_memory_there_is_no_endpoint),
        cmocka_unit_test(calls_are_in_flight_from_begin_to_end),
        cmocka_unit_test(a_call_that_ends_twice_is_not_counted_below_zero),
        cmocka_unit_test(a_duration_moves_the_average_an_eighth_of_the_way),
        cmocka_unit_test(an_unknown_duration_leaves_the_average_as_it_is),
        cmocka_unit_test(the_longest_and_the_shortest_duration_are_averaged),
        cmocka_unit_test(an_endpoint_is_out_until_its_time_has_come),
        cmocka_unit_test(an_endpoint_that_is_out_can_be_let_in),
        cmocka_unit_test(draining_is_apart_from_being_out),
        cmocka_unit_test(nothing_is_lost_when_another_thread_comes_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
