/* SPDX-License-Identifier: Apache-2.0 */
/* The breaker against a slow one, command by command, over random configurations. */
#include "breaker_support.h"
#include "slow_breaker.h"

#define PERMITS 16
#define MOST_AT_ONCE 4
#define LONGEST 100000 /* more than any open time, lease and ramp together */

typedef struct {
    es_breaker *breaker;
    slow_breaker slow;
    es_permit permits[PERMITS]; /* given lately; used in any order, twice, late, or not at all */
    int64_t now;
    uint64_t random;
} pair;

static int64_t pick(pair *p, int64_t low, int64_t high) {
    return random_between(&p->random, low, high);
}

static bool one_in(pair *p, int64_t times) {
    return pick(p, 1, times) == 1;
}

static uint32_t pick_u32(pair *p, int64_t low, int64_t high) {
    return (uint32_t)pick(p, low, high);
}

static es_breaker_config any_config(pair *p) {
    es_breaker_config config = only_tolerating(one_in(p, 3) ? ES_TOLERATE_OFF : pick_u32(p, 0, 8));
    config.within_ns = pick(p, 1, 40);
    if (one_in(p, 2))
        config.tally.span_ns = pick(p, 1, 8) * ES_TALLY_BUCKETS;
    else if (one_in(p, 2))
        config.tally.calls = pick_u32(p, 10, 20);
    if (config.tally.span_ns > 0 || config.tally.calls > 0) {
        config.limits.failure_rate_ppm = one_in(p, 2) ? pick_u32(p, 1, ES_PPM) : 0;
        config.limits.slow_rate_ppm = one_in(p, 2) ? pick_u32(p, 1, ES_PPM) : 0;
        config.limits.min_calls = pick_u32(p, 1, 10);
    }
    config.limits.consecutive = one_in(p, 2) ? pick_u32(p, 1, 6) : 0;
    config.slow_ns = pick(p, 1, 10);
    config.reset_ns = pick(p, 0, 30);
    config.reset_factor_ppm = pick_u32(p, ES_PPM, 3 * ES_PPM);
    config.reset_max_ns = config.reset_ns + pick(p, 0, 200);
    config.reset_jitter_ppm = one_in(p, 2) ? pick_u32(p, 0, ES_PPM) : 0;
    config.probes = one_in(p, 3) ? 0 : pick_u32(p, 1, MOST_AT_ONCE);
    config.successes = pick_u32(p, 1, 6);
    config.lease_ns = pick(p, 1, 40);
    config.ramp_ns = one_in(p, 2) ? pick(p, 1, 50) : 0;
    config.fault_ppm = one_in(p, 4) ? 300000 : 0;
    return config;
}

static void compare_views(pair *p) {
    es_breaker_view view = es_breaker_look(p->breaker, p->now);
    slow_pass_time(&p->slow, p->now);
    es_counts counts = slow_counts(&p->slow, p->now);
    assert_int_equal(view.state, p->slow.state);
    assert_int_equal(view.generation, p->slow.generation);
    assert_memory_equal(&view.counts, &counts, sizeof counts);
    assert_int_equal(view.rejected, p->slow.rejected);
    assert_int_equal(view.changed_at_ns, p->slow.changed_at);
    assert_int_equal(view.retry_after_ns, slow_retry_after(&p->slow, p->now));
    assert_int_equal(view.probes_out, view.state == ES_HALF_OPEN ? slow_probes_out(&p->slow) : 0);
    uint64_t generation;
    bool sure = view.state == ES_CLOSED && !p->slow.ramps && p->slow.config.fault_ppm == 0;
    assert_int_equal(es_breaker_is_closed(p->breaker, &generation), sure);
    assert_int_equal(generation, p->slow.generation);
    assert_int_equal(generation_of(p->breaker), p->slow.generation);
}

static es_answer expected_answer(const pair *p, uint64_t word, es_answer actual) {
    bool chance = p->slow.state == ES_CLOSED;
    if (slow_retry_after(&p->slow, p->now) > 0 || (chance && word % 1000000 < p->slow.config.fault_ppm))
        return ES_REFUSED;
    return chance && p->slow.ramps ? actual : ES_ADMITTED;
}

/* A look before says the same, or that only the lock can tell. */
static void compare_admissions(pair *p) {
    uint64_t word = next_random(&p->random);
    es_admission peek = es_breaker_peek(p->breaker, p->now, word);
    assert_int_equal(peek.answer == ES_DUE, slow_is_due(&p->slow, p->now));
    es_admission admission = es_breaker_admit(p->breaker, p->now, word);
    slow_pass_time(&p->slow, p->now);
    assert_int_equal(admission.answer, expected_answer(p, word, admission.answer));
    assert_int_equal(admission.retry_after_ns, slow_retry_after(&p->slow, p->now));
    assert_int_equal(admission.permit.generation, p->slow.generation);
    bool is_probe = p->slow.state == ES_HALF_OPEN && admission.answer == ES_ADMITTED;
    assert_int_equal(admission.permit.probe, is_probe);
    if (is_probe)
        slow_take_probe(&p->slow, admission.permit, p->now);
    if (peek.answer != ES_DUE) {
        assert_int_equal(peek.answer, admission.answer);
        assert_int_equal(peek.retry_after_ns, admission.retry_after_ns);
        assert_int_equal(peek.permit.generation, admission.permit.generation);
        assert_false(admission.permit.probe);
    }
    if (admission.answer == ES_ADMITTED)
        p->permits[pick(p, 0, PERMITS - 1)] = admission.permit;
}

static void compare_refusals(pair *p) {
    es_breaker_refused(p->breaker);
    p->slow.rejected++;
}

/* Until when an open breaker refuses, seen without letting time pass. */
static int64_t until_ns(const es_breaker *breaker) {
    return INT64_MIN / 2 + es_breaker_peek(breaker, INT64_MIN / 2, 0).retry_after_ns;
}

static void compare_reports(pair *p, es_permit permit) {
    es_outcome outcome = one_in(p, 3) ? ES_SUCCESS : one_in(p, 8) ? ES_IGNORE : ES_FAILURE;
    int64_t duration = pick(p, 0, 12);
    assert_int_equal(es_breaker_listens(p->breaker, permit, outcome), slow_listens(&p->slow, permit, outcome));
    es_breaker_report(p->breaker, permit, outcome, duration, p->now, next_random(&p->random));
    slow_report(&p->slow, permit, outcome, duration, p->now, until_ns(p->breaker));
}

static void compare_hands(pair *p) {
    int64_t until = one_in(p, 4) ? ES_FOREVER_NS : p->now + pick(p, -5, 40);
    switch (pick(p, 0, 3)) {
    case 0:
        es_breaker_force_open(p->breaker, until, p->now);
        slow_by_hand(&p->slow, ES_FORCED_OPEN, until, p->now);
        break;
    case 1:
        es_breaker_bypass(p->breaker, p->now);
        slow_by_hand(&p->slow, ES_BYPASSED, 0, p->now);
        break;
    case 2:
        es_breaker_close(p->breaker, p->now);
        slow_by_hand(&p->slow, ES_CLOSED, 0, p->now);
        break;
    default:
        es_breaker_reset(p->breaker, p->now);
        slow_reset(&p->slow, p->now);
    }
}

static void listen(pair *p) {
    es_change change = {.generation = UINT64_MAX};
    while (es_breaker_take_change(p->breaker, &change)) {
        assert_int_equal(change.from, p->slow.told);
        assert_int_not_equal(change.to, change.from);
        p->slow.told = change.to;
    }
    assert_int_equal(p->slow.told, p->slow.state);
    if (p->slow.rule != NULL && change.generation == p->slow.generation)
        assert_ptr_equal(change.rule, p->slow.rule);
}

static void one_random_command(pair *p) {
    p->now += one_in(p, 40) ? pick(p, 0, 400) : pick(p, -2, 6);
    switch (pick(p, 0, 19)) {
    case 0:
        listen(p);
        break;
    case 1:
        compare_refusals(p);
        break;
    case 2:
    case 3:
        compare_views(p);
        break;
    case 4:
    case 5:
    case 6:
        compare_reports(p, es_breaker_permit(p->breaker));
        break;
    case 7:
        if (one_in(p, 3))
            compare_hands(p);
        break;
    case 8:
    case 9:
    case 10:
    case 11:
    case 12:
        compare_admissions(p);
        break;
    default:
        compare_reports(p, p->permits[pick(p, 0, PERMITS - 1)]);
    }
}

static void start(pair *p) {
    es_breaker_config config = any_config(p);
    p->now = pick(p, -100, 100);
    p->breaker = breaker_born_at(config, p->now);
    memset(&p->slow, 0, sizeof p->slow);
    memset(p->permits, 0, sizeof p->permits);
    p->slow.config = config;
    p->slow.changed_at = p->now;
    p->slow.open_ns = config.reset_ns;
    p->slow.tally_newest = INT64_MIN / 2;
}

/* Unless a hand has closed the way for ever, some time and one call lead out of any state. */
static void assert_a_way_out(pair *p) {
    bool for_ever = p->slow.state == ES_FORCED_OPEN && p->slow.until == ES_FOREVER_NS;
    es_admission admission = es_breaker_admit(p->breaker, p->now + LONGEST, ES_PPM - 1);
    assert_int_equal(admission.answer, for_ever ? ES_REFUSED : ES_ADMITTED);
}

static void a_breaker_behaves_like_a_slow_one_and_there_is_always_a_way_out(void **state) {
    (void)state;
    static pair p;
    p.random = 61;
    for (int run = 0; run < 3000; run++) {
        int64_t commands = 0;
        start(&p);
        for (commands = pick(&p, 0, 200); commands > 0; commands--)
            one_random_command(&p);
        compare_views(&p);
        listen(&p);
        assert_a_way_out(&p);
        drop(p.breaker);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_breaker_behaves_like_a_slow_one_and_there_is_always_a_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
