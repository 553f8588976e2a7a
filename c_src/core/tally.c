/* SPDX-License-Identifier: Apache-2.0 */
#include "tally.h"

#include <string.h>

#define FAILED 1
#define SLOW 2

/* Over a time, a ring of buckets, each a whole multiple of its width on the clock: bucket number n holds what came from
 * n * width on. Over calls, the counts, and a ring of what each call was. */
struct es_tally {
    int64_t width_ns; /* of a bucket; 0 if calls are counted          */
    union {
        struct {
            int64_t newest; /* number of the bucket of the latest time      */
            uint32_t place; /* where that one is                            */
            es_tally_counts buckets[ES_TALLY_BUCKETS];
        };
        struct {
            es_tally_counts counts;
            uint32_t capacity; /* the calls to be counted                      */
            uint32_t next;     /* where the next outcome goes                  */
            uint8_t *outcomes; /* follow in the same memory                    */
        };
    };
};

size_t es_tally_bytes(const es_tally_config *config) {
    bool over_time = config->span_ns >= ES_TALLY_BUCKETS && config->calls == 0;
    bool over_calls = config->span_ns == 0 && config->calls >= 1 && config->calls <= ES_TALLY_CALLS_MAX;
    return over_time || over_calls ? sizeof(es_tally) + config->calls : 0;
}

void es_tally_init(es_tally *tally, const es_tally_config *config) {
    memset(tally, 0, sizeof *tally);
    tally->width_ns = config->span_ns / ES_TALLY_BUCKETS + (config->span_ns % ES_TALLY_BUCKETS != 0);
    if (tally->width_ns > 0) {
        tally->newest = INT64_MIN;
    } else {
        tally->capacity = config->calls;
        tally->outcomes = (uint8_t *)(tally + 1);
    }
}

/* Where a ring begins does not matter, and the buckets stay in step with the clock. */
void es_tally_clear(es_tally *tally) {
    if (tally->width_ns > 0)
        memset(tally->buckets, 0, sizeof tally->buckets);
    else
        tally->counts = (es_tally_counts){0, 0, 0};
}

/* a + b, held at UINT32_MAX. */
static uint32_t plus(uint32_t a, uint32_t b) {
    uint32_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT32_MAX : sum;
}

static void add(es_tally_counts *counts, es_tally_counts more) {
    counts->calls = plus(counts->calls, more.calls);
    counts->failures = plus(counts->failures, more.failures);
    counts->slow = plus(counts->slow, more.slow);
}

/* Rounded down for negative times, too: a bucket around zero would be twice as wide. */
static int64_t bucket_number(const es_tally *tally, int64_t now_ns) {
    return now_ns / tally->width_ns - (now_ns % tally->width_ns < 0);
}

/* How many buckets have run out, from the oldest on, when `number` is the newest. */
static uint32_t run_out(const es_tally *tally, int64_t number) {
    int64_t passed = es_elapsed_ns(tally->newest, number);
    return passed < ES_TALLY_BUCKETS ? (uint32_t)passed : ES_TALLY_BUCKETS;
}

/* The counts of all buckets but the `old` oldest. The oldest is the one after the newest. */
static es_tally_counts sum_of_newest(const es_tally *tally, uint32_t old) {
    es_tally_counts sum = {0, 0, 0};
    for (uint32_t age_rank = old + 1; age_rank <= ES_TALLY_BUCKETS; age_rank++)
        add(&sum, tally->buckets[(tally->place + age_rank) % ES_TALLY_BUCKETS]);
    return sum;
}

static es_tally_counts record_in_bucket(es_tally *tally, es_tally_counts outcome, int64_t now_ns) {
    int64_t number = bucket_number(tally, now_ns);
    for (uint32_t old = run_out(tally, number); old > 0; old--) {
        tally->place = (tally->place + 1) % ES_TALLY_BUCKETS;
        tally->buckets[tally->place] = (es_tally_counts){0, 0, 0};
    }
    if (number > tally->newest)
        tally->newest = number;
    add(&tally->buckets[tally->place], outcome);
    return sum_of_newest(tally, 0);
}

static es_tally_counts record_in_ring(es_tally *tally, es_tally_counts outcome) {
    uint8_t *place = &tally->outcomes[tally->next];
    if (tally->counts.calls == tally->capacity) {
        tally->counts.calls--;
        tally->counts.failures -= (*place & FAILED) != 0;
        tally->counts.slow -= (*place & SLOW) != 0;
    }
    *place = (uint8_t)((outcome.failures > 0 ? FAILED : 0) | (outcome.slow > 0 ? SLOW : 0));
    tally->next = (tally->next + 1) % tally->capacity;
    add(&tally->counts, outcome);
    return tally->counts;
}

es_tally_counts es_tally_record(es_tally *tally, bool failed, bool slow, int64_t now_ns) {
    const es_tally_counts outcome = {1, failed, slow};
    return tally->width_ns > 0 ? record_in_bucket(tally, outcome, now_ns) : record_in_ring(tally, outcome);
}

es_tally_counts es_tally_look(const es_tally *tally, int64_t now_ns) {
    if (tally->width_ns == 0)
        return tally->counts;
    return sum_of_newest(tally, run_out(tally, bucket_number(tally, now_ns)));
}
