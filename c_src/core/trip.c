/* SPDX-License-Identifier: Apache-2.0 */
#include "trip.h"

#define LEAST_AUTO_WITHIN_NS (10000 * ES_MS_NS)

static bool over_tolerance(const es_counts *counts, const es_trip_limits *limits) {
    return counts->failures > limits->tolerate;
}

/* Is `some` at least this share of the calls, and are there enough calls to tell? A share of 0 is none asked for. */
static bool is_share(uint32_t some, uint32_t share_ppm, const es_counts *counts, const es_trip_limits *limits) {
    uint32_t calls = counts->tally.calls;
    return share_ppm > 0 && calls >= limits->min_calls && (uint64_t)some * ES_PPM >= (uint64_t)share_ppm * calls;
}

static bool failing_often(const es_counts *counts, const es_trip_limits *limits) {
    return is_share(counts->tally.failures, limits->failure_rate_ppm, counts, limits);
}

static bool slow_often(const es_counts *counts, const es_trip_limits *limits) {
    return is_share(counts->tally.slow, limits->slow_rate_ppm, counts, limits);
}

static bool failing_in_a_row(const es_counts *counts, const es_trip_limits *limits) {
    return limits->consecutive > 0 && counts->consecutive >= limits->consecutive;
}

static const es_trip rules[] = {
    {"tolerate", over_tolerance},
    {"failure_rate", failing_often},
    {"slow_rate", slow_often},
    {"consecutive", failing_in_a_row},
};

#define RULES (sizeof rules / sizeof *rules)

const es_trip *es_trip_first(const es_counts *counts, const es_trip_limits *limits) {
    /* Unrolled, the compiler knows each function it calls: every outcome asks all of them. */
#pragma GCC unroll 8
    for (size_t i = 0; i < RULES; i++)
        if (rules[i].should_open(counts, limits))
            return &rules[i];
    return NULL;
}

const es_trip *es_trip_at(size_t index) {
    return index < RULES ? &rules[index] : NULL;
}

/* How many calls that fail throughout go by before the rule fires. Counted from the end of the first, a call that
 * melts once is `tolerate` calls away from the failure too many; one that melts each attempt gets there part-way
 * through the last call, which is counted whole. */
uint64_t es_trip_calls(uint64_t attempts, uint32_t tolerate, bool per_call) {
    if (per_call)
        return tolerate;
    return attempts == 0 ? 1 : tolerate / attempts + 1;
}

int64_t es_trip_narrowest_ns(int64_t retry_window_ns, uint64_t attempts, uint32_t tolerate, bool per_call) {
    return es_scale_ns(retry_window_ns, es_trip_calls(attempts, tolerate, per_call));
}

int64_t es_trip_auto_within_ns(int64_t retry_window_ns, uint64_t attempts, uint32_t tolerate, bool per_call) {
    if (retry_window_ns == ES_FOREVER_NS)
        return LEAST_AUTO_WITHIN_NS;
    int64_t twice_ns = es_scale_ns(es_trip_narrowest_ns(retry_window_ns, attempts, tolerate, per_call), 2);
    return twice_ns > LEAST_AUTO_WITHIN_NS ? twice_ns : LEAST_AUTO_WITHIN_NS;
}
