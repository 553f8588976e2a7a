/* SPDX-License-Identifier: Apache-2.0 */
/* The breaker against a slow one that keeps every failure and does one thing at a time. */
#include "breaker.h"
#include "support.h"

#define FAILURES_MAX 5000

typedef struct {
    es_breaker_config config;
    es_state state;
    uint64_t generation;
    int64_t changed_at;
    int64_t failures[FAILURES_MAX]; /* since the window was last emptied */
    int recorded;
    es_state told; /* state the listeners know of */
} slow_breaker;

static int64_t later_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static uint32_t slow_count(const slow_breaker *slow, int64_t now) {
    uint32_t count = 0;
    if (slow->recorded > 0)
        now = later_of(now, slow->failures[slow->recorded - 1]);
    for (int i = 0; i < slow->recorded; i++)
        count += now - slow->failures[i] < slow->config.within_ns;
    return count;
}

static void slow_close(slow_breaker *slow, int64_t now) {
    slow->state = ES_CLOSED;
    slow->changed_at = later_of(now, slow->changed_at);
    slow->generation++;
    slow->recorded = 0;
}

static void slow_pass_time(slow_breaker *slow, int64_t now) {
    int64_t due = slow->changed_at + slow->config.reset_ns;
    if (slow->state == ES_OPEN && now >= due)
        slow_close(slow, due);
}

static bool slow_admits(slow_breaker *slow, int64_t now, uint64_t word) {
    slow_pass_time(slow, now);
    return slow->state == ES_CLOSED && word % 1000000 >= slow->config.fault_ppm;
}

static void slow_fail(slow_breaker *slow, uint64_t generation, int64_t now) {
    bool current = slow->generation == generation;
    if (!current)
        return;
    slow_pass_time(slow, now);
    if (slow->state == ES_OPEN)
        return;
    if (slow->recorded > 0)
        slow->failures[slow->recorded] = later_of(now, slow->failures[slow->recorded - 1]);
    else
        slow->failures[0] = now;
    slow->recorded++;
    if (slow_count(slow, now) > slow->config.limits.tolerate) {
        slow->state = ES_OPEN;
        slow->changed_at = later_of(now, slow->changed_at);
        slow->generation++;
    }
}

static void slow_reset(slow_breaker *slow, int64_t now) {
    slow_pass_time(slow, now);
    if (slow->state == ES_OPEN) {
        slow_close(slow, now);
    } else {
        slow->recorded = 0;
        slow->generation++;
    }
}

static void compare_admissions(es_breaker *breaker, slow_breaker *slow, int64_t now, uint64_t word) {
    es_admission peek = es_breaker_peek(breaker, now, word);
    es_admission admission = es_breaker_admit(breaker, now, word);
    bool admitted = slow_admits(slow, now, word);
    assert_int_equal(admission.answer, admitted ? ES_ADMITTED : ES_REFUSED);
    assert_int_equal(admission.generation, slow->generation);
    int64_t left = slow->state == ES_OPEN ? slow->changed_at + slow->config.reset_ns - now : 0;
    assert_int_equal(admission.retry_after_ns, left);
    if (peek.answer == ES_DUE) {
        assert_int_equal(peek.generation + 1, admission.generation);
    } else {
        assert_int_equal(peek.answer, admission.answer);
        assert_int_equal(peek.generation, admission.generation);
        assert_int_equal(peek.retry_after_ns, admission.retry_after_ns);
    }
}

static void compare_views(es_breaker *breaker, slow_breaker *slow, int64_t now) {
    es_breaker_view view = es_breaker_look(breaker, now);
    slow_pass_time(slow, now);
    assert_int_equal(view.state, slow->state);
    assert_int_equal(view.generation, slow->generation);
    assert_int_equal(view.changed_at_ns, slow->changed_at);
    /* The window holds no more than one failure over the tolerance, and an open one takes none. */
    assert_int_equal(view.failures, slow_count(slow, now));
    uint64_t generation;
    bool fast = slow->state == ES_CLOSED && slow->config.fault_ppm == 0;
    assert_int_equal(es_breaker_is_closed(breaker, &generation), fast);
    assert_int_equal(generation, slow->generation);
}

static void listen(es_breaker *breaker, slow_breaker *slow) {
    es_change change;
    while (es_breaker_take_change(breaker, &change)) {
        assert_int_equal(change.from, slow->told);
        assert_int_not_equal(change.to, change.from);
        assert_int_equal(change.rule != NULL, change.to == ES_OPEN);
        slow->told = change.to;
    }
    assert_int_equal(slow->told, slow->state);
}

static void one_random_step(es_breaker *breaker, slow_breaker *slow, int64_t now, uint64_t *random) {
    uint64_t generation = slow->generation - (uint64_t)random_between(random, 0, 5) / 4;
    switch (random_between(random, 0, 15)) {
    case 0:
        es_breaker_reset(breaker, now);
        slow_reset(slow, now);
        break;
    case 1:
        es_breaker_report(breaker, generation, random_between(random, 0, 1) == 0 ? ES_SUCCESS : ES_IGNORE, now);
        break;
    case 2:
        compare_views(breaker, slow, now);
        listen(breaker, slow);
        break;
    case 3:
    case 4:
        compare_admissions(breaker, slow, now, next_random(random));
        break;
    case 5:
        compare_views(breaker, slow, now);
        break;
    default:
        assert_int_equal(es_breaker_listens(breaker, generation), generation == slow->generation);
        es_breaker_report(breaker, generation, ES_FAILURE, now);
        slow_fail(slow, generation, now);
    }
}

static void compare_with_the_slow_breaker(uint64_t *random) {
    static slow_breaker slow;
    int64_t now = random_between(random, -100, 100);
    memset(&slow, 0, sizeof slow);
    slow.config.limits.tolerate = (uint32_t)random_between(random, 0, 8);
    slow.config.within_ns = random_between(random, 1, 40);
    slow.config.reset_ns = random_between(random, 0, 30);
    slow.config.fault_ppm = random_between(random, 0, 3) == 0 ? 300000 : 0;
    slow.changed_at = now;
    es_breaker *breaker = NULL;
    es_allocator allocator = allocator_that_allows(1);
    assert_int_equal(es_breaker_new(&breaker, &slow.config, now, &allocator), ES_OK);
    for (int step = 0; step < 1000; step++) {
        now += random_between(random, -2, 6);
        one_random_step(breaker, &slow, now, random);
    }
    compare_views(breaker, &slow, now);
    listen(breaker, &slow);
    es_breaker_free(breaker);
    assert_int_equal(memory()->live, 0);
}

static void a_breaker_behaves_like_a_slow_one(void **state) {
    (void)state;
    uint64_t random = 61;
    for (int run = 0; run < 300; run++)
        compare_with_the_slow_breaker(&random);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_breaker_behaves_like_a_slow_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
