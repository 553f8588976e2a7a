/* SPDX-License-Identifier: Apache-2.0 */
/* The tally against one that keeps every outcome. */
#include "tally_support.h"

typedef struct {
    bool failed, slow;
    int64_t at_ns;
} kept_outcome;

typedef struct {
    es_tally_config config;
    kept_outcome kept[3000];
    uint32_t number;
    uint32_t cleared; /* outcomes before this one are forgotten */
} slow_tally;

static int64_t rounded_down(int64_t time, int64_t unit) {
    int64_t down = time / unit * unit;
    return down > time ? down - unit : down;
}

static int64_t later_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool still_counts(const slow_tally *slow, uint32_t number, int64_t now_ns) {
    int64_t width = slow->config.span_ns / ES_TALLY_BUCKETS;
    if (slow->config.calls > 0)
        return number + slow->config.calls >= slow->number;
    return rounded_down(now_ns, width) - rounded_down(slow->kept[number].at_ns, width) < slow->config.span_ns;
}

static es_tally_counts slow_look(const slow_tally *slow, int64_t now_ns) {
    es_tally_counts counts = {0, 0, 0};
    if (slow->number > 0)
        now_ns = later_of(now_ns, slow->kept[slow->number - 1].at_ns);
    for (uint32_t number = slow->cleared; number < slow->number; number++) {
        if (still_counts(slow, number, now_ns)) {
            counts.calls++;
            counts.failures += slow->kept[number].failed;
            counts.slow += slow->kept[number].slow;
        }
    }
    return counts;
}

static es_tally_counts slow_record(slow_tally *slow, bool failed, bool is_slow, int64_t now_ns) {
    if (slow->number > 0)
        now_ns = later_of(now_ns, slow->kept[slow->number - 1].at_ns);
    slow->kept[slow->number] = (kept_outcome){failed, is_slow, now_ns};
    slow->number++;
    return slow_look(slow, now_ns);
}

static void one_random_step(es_tally *tally, slow_tally *slow, int64_t now_ns, uint64_t *random) {
    bool failed = random_between(random, 0, 2) == 0, is_slow = random_between(random, 0, 3) == 0;
    if (random_between(random, 0, 99) == 0) {
        es_tally_clear(tally);
        slow->cleared = slow->number;
    }
    assert_same(es_tally_record(tally, failed, is_slow, now_ns), slow_record(slow, failed, is_slow, now_ns));
    int64_t at_ns = now_ns + random_between(random, -20, 3 * slow->config.span_ns / 2 + 1);
    assert_same(es_tally_look(tally, at_ns), slow_look(slow, at_ns));
}

static void compare_with_the_slow_tally(es_tally_config config, uint64_t *random) {
    static slow_tally slow;
    slow = (slow_tally){.config = config};
    es_tally *tally = tally_of(config);
    int64_t now_ns = random_between(random, -2000, 2000);
    for (int step = 0; step < 1000; step++) {
        bool idle = random_between(random, 0, 49) == 0;
        now_ns += idle ? random_between(random, 0, 2 * config.span_ns) : random_between(random, -3, 9);
        one_random_step(tally, &slow, now_ns, random);
    }
    free(tally);
}

static void both_kinds_count_like_a_tally_that_keeps_every_outcome(void **state) {
    (void)state;
    uint64_t random = 67;
    for (int run = 0; run < 60; run++) {
        int64_t width = random_between(&random, 1, 30);
        compare_with_the_slow_tally((es_tally_config){.span_ns = width * ES_TALLY_BUCKETS}, &random);
        compare_with_the_slow_tally((es_tally_config){.calls = (uint32_t)random_between(&random, 1, 40)}, &random);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_kinds_count_like_a_tally_that_keeps_every_outcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
