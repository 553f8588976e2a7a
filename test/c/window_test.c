/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"
#include "window.h"

static es_window *new_window(uint32_t capacity, int64_t span_ns) {
    es_window *window = malloc(es_window_bytes(capacity));
    assert_non_null(window);
    memset(window, 0xa5, es_window_bytes(capacity));
    es_window_init(window, capacity, span_ns);
    return window;
}

static void a_window_costs_eight_bytes_a_failure(void **state) {
    (void)state;
    size_t fixed = es_window_bytes(1) - 8;
    assert_in_range(fixed, 8, 32);
    assert_int_equal(es_window_bytes(11), fixed + 88);
    assert_int_equal(es_window_bytes(ES_WINDOW_CAPACITY_MAX), fixed + 8 * (size_t)ES_WINDOW_CAPACITY_MAX);
}

static void capacities_outside_the_range_have_no_size(void **state) {
    (void)state;
    assert_int_equal(es_window_bytes(0), 0);
    assert_int_equal(es_window_bytes(ES_WINDOW_CAPACITY_MAX + 1), 0);
    assert_int_equal(es_window_bytes(UINT32_MAX), 0);
}

static void a_new_window_is_empty(void **state) {
    (void)state;
    es_window *window = new_window(3, 100);
    assert_int_equal(es_window_count(window, 0), 0);
    assert_int_equal(es_window_count(window, INT64_MIN), 0);
    free(window);
}

static void failures_inside_the_span_are_held(void **state) {
    (void)state;
    es_window *window = new_window(3, 100);
    assert_int_equal(es_window_record(window, 0), 1);
    assert_int_equal(es_window_record(window, 50), 2);
    assert_int_equal(es_window_record(window, 99), 3);
    assert_int_equal(es_window_count(window, 99), 3);
    free(window);
}

static void a_failure_of_exactly_the_spans_age_does_not_count(void **state) {
    (void)state;
    es_window *window = new_window(3, 100);
    assert_int_equal(es_window_record(window, 0), 1);
    assert_int_equal(es_window_record(window, 50), 2);
    assert_int_equal(es_window_count(window, 99), 2);
    assert_int_equal(es_window_count(window, 100), 1);
    assert_int_equal(es_window_record(window, 100), 2);
    free(window);
}

static void a_full_window_forgets_its_oldest_failure(void **state) {
    (void)state;
    es_window *window = new_window(2, 100);
    for (int64_t now = 0; now < 10; now++)
        assert_int_equal(es_window_record(window, now), now == 0 ? 1 : 2);
    assert_int_equal(es_window_count(window, 9), 2);
    assert_int_equal(es_window_count(window, 107), 2);
    assert_int_equal(es_window_count(window, 108), 1);
    free(window);
}

static void a_late_clock_counts_as_the_latest_time_seen(void **state) {
    (void)state;
    es_window *window = new_window(5, 100);
    assert_int_equal(es_window_record(window, 0), 1);
    assert_int_equal(es_window_record(window, 90), 2);
    assert_int_equal(es_window_record(window, 40), 3); /* counts as 90 */
    assert_int_equal(es_window_count(window, -1000), 3);
    assert_int_equal(es_window_count(window, 150), 2);
    assert_int_equal(es_window_count(window, 189), 2);
    assert_int_equal(es_window_count(window, 190), 0);
    free(window);
}

static void clearing_forgets_every_failure(void **state) {
    (void)state;
    es_window *window = new_window(3, 100);
    for (int64_t now = 0; now < 5; now++)
        assert_int_not_equal(es_window_record(window, now), 0);
    es_window_clear(window);
    assert_int_equal(es_window_count(window, 5), 0);
    assert_int_equal(es_window_record(window, 2), 1);
    free(window);
}

static void negative_times_count_like_any_other(void **state) {
    (void)state;
    es_window *window = new_window(3, 100);
    assert_int_equal(es_window_record(window, INT64_MIN), 1);
    assert_int_equal(es_window_record(window, -50), 1);
    assert_int_equal(es_window_record(window, 49), 2);
    assert_int_equal(es_window_record(window, 50), 2);
    free(window);
}

static void one_failure_after_a_long_idle_counts_alone(void **state) {
    (void)state;
    es_window *window = new_window(11, MS(10000));
    for (int second = 0; second < 10; second++)
        assert_int_equal(es_window_record(window, MS(1000) * second), second + 1);
    assert_int_equal(es_window_count(window, MS(9000)), 10);
    int64_t later = MS(9000) + MS(20000);
    assert_int_equal(es_window_count(window, later), 0);
    assert_int_not_equal(es_window_record(window, later), 11);
    assert_int_equal(es_window_count(window, later), 1);
    free(window);
}

/* What a record may cost is visible in what it leaves behind: two old failures less, the new one more. */
static void recording_lets_go_of_at_most_two_failures_whatever_the_capacity(void **state) {
    (void)state;
    const uint32_t capacity = ES_WINDOW_CAPACITY_MAX;
    es_window *window = new_window(capacity, MS(1000));
    for (uint32_t held = 1; held <= capacity; held++)
        assert_int_equal(es_window_record(window, 0), held);
    int64_t later = MS(1000) * 1000;
    assert_int_equal(es_window_record(window, later), capacity - 1);
    assert_int_equal(es_window_record(window, later), capacity - 2);
    assert_int_equal(es_window_count(window, later), 2);
    free(window);
}

/* The naive window: every time ever recorded, and a count from the newest back. */
typedef struct {
    int64_t times[4000];
    uint32_t recorded;
    uint32_t capacity;
    int64_t span_ns;
} naive_window;

static int64_t naive_now(const naive_window *naive, int64_t now_ns) {
    int64_t newest = naive->recorded == 0 ? now_ns : naive->times[naive->recorded - 1];
    return newest > now_ns ? newest : now_ns;
}

static uint32_t naive_count(const naive_window *naive, int64_t now_ns) {
    uint32_t fresh = 0;
    now_ns = naive_now(naive, now_ns);
    while (fresh < naive->capacity && fresh < naive->recorded &&
           now_ns - naive->times[naive->recorded - 1 - fresh] < naive->span_ns)
        fresh++;
    return fresh;
}

static void compare_with_the_naive_window(uint32_t capacity, uint64_t *random) {
    static naive_window naive;
    naive.recorded = 0;
    naive.capacity = capacity;
    naive.span_ns = random_between(random, 1, 60);
    es_window *window = new_window(capacity, naive.span_ns);
    int64_t now = random_between(random, -1000, 1000);
    for (int step = 0; step < 4000; step++) {
        now += random_between(random, -4, step % 50 == 0 ? 100 : 8);
        int64_t choice = random_between(random, 0, 99);
        if (choice == 0) {
            es_window_clear(window);
            naive.recorded = 0;
        } else if (choice < 80) {
            naive.times[naive.recorded] = naive_now(&naive, now);
            naive.recorded++;
            uint32_t held = es_window_record(window, now), fresh = naive_count(&naive, now);
            assert_in_range(held, fresh, capacity);
            assert_int_equal(held == capacity, fresh == capacity);
        }
        assert_int_equal(es_window_count(window, now), naive_count(&naive, now));
    }
    free(window);
}

static void a_window_is_as_exact_as_a_naive_one(void **state) {
    (void)state;
    uint64_t random = 11;
    for (uint32_t capacity = 1; capacity <= 20; capacity++)
        for (int run = 0; run < 5; run++)
            compare_with_the_naive_window(capacity, &random);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_costs_eight_bytes_a_failure),
        cmocka_unit_test(capacities_outside_the_range_have_no_size),
        cmocka_unit_test(a_new_window_is_empty),
        cmocka_unit_test(failures_inside_the_span_are_held),
        cmocka_unit_test(a_failure_of_exactly_the_spans_age_does_not_count),
        cmocka_unit_test(a_full_window_forgets_its_oldest_failure),
        cmocka_unit_test(a_late_clock_counts_as_the_latest_time_seen),
        cmocka_unit_test(clearing_forgets_every_failure),
        cmocka_unit_test(negative_times_count_like_any_other),
        cmocka_unit_test(one_failure_after_a_long_idle_counts_alone),
        cmocka_unit_test(recording_lets_go_of_at_most_two_failures_whatever_the_capacity),
        cmocka_unit_test(a_window_is_as_exact_as_a_naive_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
