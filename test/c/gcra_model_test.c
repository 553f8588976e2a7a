/* SPDX-License-Identifier: Apache-2.0 */
/* The limiter against exact fractions, and against the law it stands for: in any span of time no more calls go than a
 * full burst and what the span refills. */
#include "gcra_support.h"

#define CALLS_MAX 400

__extension__ typedef __int128 wide;

/* Time in parts of a nanosecond, `limit` of them: then an interval is `per_ns` parts, exactly. */
typedef struct {
    wide limit, per_ns;
    wide refilled; /* in parts since the start */
} fractions;

static wide later_of(wide a, wide b) {
    return a > b ? a : b;
}

/* How long until a call of this cost may go, in parts; not above 0 if it may go at once. */
static wide exact_wait(const fractions *exact, int64_t now_ns, int64_t cost) {
    wide now = now_ns * exact->limit, burst = exact->limit * exact->per_ns;
    return later_of(exact->refilled, now) + cost * exact->per_ns - burst - now;
}

static void exact_take(fractions *exact, int64_t now_ns, int64_t cost) {
    exact->refilled = later_of(exact->refilled, now_ns * exact->limit) + cost * exact->per_ns;
}

/* The limiter may be off by less than a nanosecond, and by nothing if an interval is a number of nanoseconds. */
static void compare_a_turn(const fractions *exact, es_gcra_turn turn, int64_t now_ns, int64_t cost) {
    wide wait = exact_wait(exact, now_ns, cost), told = turn.wait_ns * exact->limit;
    if (wait < 0)
        wait = 0;
    wide off = told - wait;
    if (exact->per_ns % exact->limit == 0)
        assert_true(off == 0);
    else
        assert_true(off < exact->limit && -off < exact->limit);
    assert_int_equal(turn.wait_ns == 0, turn.answer == ES_GO);
}

static void compare_with_fractions(uint64_t limit, int64_t per_ns, uint64_t *random) {
    fractions exact = {.limit = (wide)limit, .per_ns = per_ns, .refilled = 0};
    es_gcra *gcra = limiter(limit, per_ns);
    int64_t now = 0, interval = per_ns / (int64_t)limit + 1;
    for (int step = 0; step < 400; step++) {
        int64_t cost = random_between(random, 1, limit < 5 ? (int64_t)limit : 5);
        int64_t wait_max = random_between(random, 0, 1) * random_between(random, 0, 4 * interval);
        now += random_between(random, 0, 7) / 3 * random_between(random, 0, 3 * interval);
        es_gcra_turn peek = es_gcra_peek(gcra, now, (uint64_t)cost);
        es_gcra_turn turn = es_gcra_reserve(gcra, now, (uint64_t)cost, wait_max);
        compare_a_turn(&exact, turn, now, cost);
        assert_int_equal(peek.wait_ns, turn.wait_ns);
        assert_int_equal(turn.answer == ES_LIMITED, turn.wait_ns > wait_max);
        if (turn.answer != ES_LIMITED)
            exact_take(&exact, now, cost);
    }
    drop(gcra);
}

static void answers_are_those_of_exact_fractions(void **state) {
    (void)state;
    uint64_t random = 81;
    for (int run = 0; run < 1000; run++) {
        int64_t per_ns = (int64_t)(next_random(&random) >> random_between(&random, 18, 60)) + 1;
        uint64_t limit = (uint64_t)random_between(&random, 1, per_ns < 100 ? per_ns : 100);
        if (run % 2 == 0)
            per_ns = per_ns % MS(3600000) * (int64_t)limit + (int64_t)limit;
        compare_with_fractions(limit, per_ns, &random);
    }
}

static void over_a_long_time_the_rate_is_exact(void **state) {
    (void)state;
    const uint64_t limits[] = {3, 7, 11, 999, 1000, 999983};
    const int64_t pers_ns[] = {MS(10000), MS(1000), 1000000007, MS(60000), MS(1), MS(1000)};
    for (int i = 0; i < 6; i++) {
        es_gcra *gcra = limiter(limits[i], pers_ns[i]);
        go(gcra, 0, limits[i]);
        for (int64_t call = 1; call <= 100000; call++) {
            wide exact = ((wide)call * pers_ns[i] + (wide)limits[i] - 1) / (wide)limits[i];
            book(gcra, 0, (int64_t)exact);
        }
        drop(gcra);
    }
}

static void a_year_of_traffic_does_not_drift(void **state) {
    (void)state;
    es_gcra *gcra = limiter(7, MS(1000));
    const int64_t year_ns = INT64_C(365) * 86400 * MS(1000);
    go(gcra, year_ns, 7);
    for (int64_t second = 1; second < 1000; second++)
        assert_left(gcra, year_ns + second * MS(1000), 7);
    drop(gcra);
}

/* The calls that go, with the time of each. */
typedef struct {
    int64_t at_ns[CALLS_MAX], cost[CALLS_MAX];
    uint64_t place[CALLS_MAX];
    bool made[CALLS_MAX];
    int count;
} traffic;

/* Of a span of `span_ns`, both ends included: a full burst, what is refilled meanwhile, and a nanosecond's worth where
 * an interval is no number of nanoseconds. */
static int64_t allowed_in(int64_t limit, int64_t per_ns, int64_t span_ns) {
    int64_t slack_ns = per_ns % limit == 0 ? 0 : 1;
    return limit + (int64_t)((wide)(span_ns + slack_ns) * limit / per_ns);
}

static void assert_law(const traffic *calls, int64_t limit, int64_t per_ns) {
    for (int first = 0; first < calls->count; first++) {
        for (int last = 0; last < calls->count; last++) {
            int64_t from = calls->at_ns[first], to = calls->at_ns[last], taken = 0;
            for (int i = 0; i < calls->count && from <= to; i++)
                taken += calls->made[i] && calls->at_ns[i] >= from && calls->at_ns[i] <= to ? calls->cost[i] : 0;
            if (from <= to)
                assert_in_range(taken, 0, allowed_in(limit, per_ns, to - from));
        }
    }
}

/* A call is made when its time comes. Of those taken some are given back before that, or, like a call that an inner
 * layer turns away, a while after it and never made. */
static void give_some_back(es_gcra *gcra, traffic *calls, int64_t now, uint64_t *random) {
    for (int i = calls->count - 1; i >= 0 && i >= calls->count - 6; i--) {
        if (calls->made[i] && random_between(random, 0, 5) == 0) {
            es_gcra_give_back(gcra, now, (uint64_t)calls->cost[i], calls->place[i]);
            calls->made[i] = false;
        }
    }
}

static void run_random_traffic(int64_t limit, int64_t per_ns, uint64_t *random) {
    static traffic calls;
    es_gcra *gcra = limiter((uint64_t)limit, per_ns);
    int64_t now = 0;
    calls.count = 0;
    for (int step = 0; step < 90; step++) {
        int64_t cost = random_between(random, 1, limit), wait_max = random_between(random, 0, 2 * per_ns);
        now += random_between(random, 0, 3) / 2 * random_between(random, 0, per_ns);
        int64_t late = random_between(random, 0, 20) == 0 ? now - random_between(random, 0, per_ns) : now;
        es_gcra_turn turn = es_gcra_reserve(gcra, late, (uint64_t)cost, step % 3 == 0 ? wait_max : 0);
        if (turn.answer == ES_GO || turn.answer == ES_GO_LATER) {
            calls.at_ns[calls.count] = late + turn.wait_ns;
            calls.cost[calls.count] = cost;
            calls.place[calls.count] = turn.place;
            calls.made[calls.count] = true;
            calls.count++;
        }
        give_some_back(gcra, &calls, now, random);
    }
    assert_law(&calls, limit, per_ns);
    drop(gcra);
}

static void in_any_span_no_more_go_than_a_burst_and_what_is_refilled(void **state) {
    (void)state;
    uint64_t random = 91;
    for (int run = 0; run < 600; run++) {
        int64_t limit = random_between(&random, 1, 6);
        run_random_traffic(limit, limit * random_between(&random, 1, 60), &random);
        run_random_traffic(limit, random_between(&random, limit, 300), &random);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_exact_fractions),
        cmocka_unit_test(over_a_long_time_the_rate_is_exact),
        cmocka_unit_test(a_year_of_traffic_does_not_drift),
        cmocka_unit_test(in_any_span_no_more_go_than_a_burst_and_what_is_refilled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
