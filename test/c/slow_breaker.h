/* SPDX-License-Identifier: Apache-2.0 */
/* slow_breaker.h - a breaker that keeps every outcome and every probe, counts them one by one, and is never asked
 * without a lock. What chance decides it is told: the caller looks that up, and checks what chance may do. */
#ifndef ES_TEST_SLOW_BREAKER_H
#define ES_TEST_SLOW_BREAKER_H

#include "breaker.h"
#include "support.h"

#define SLOW_OUTCOMES_MAX 1000
#define SLOW_PROBES_MAX 1000

typedef struct {
    bool failed, slow;
    int64_t window_at, tally_at;
} slow_outcome;

typedef struct {
    es_permit permit;
    int64_t taken_at;
    bool out;
} slow_probe;

typedef struct {
    es_breaker_config config;
    es_state state, told; /* told: what listeners know of          */
    uint64_t generation, rejected;
    int64_t changed_at, until, ramp_until, open_ns; /* open_ns: before jitter */
    bool ramps;
    uint32_t consecutive, succeeded;
    int outcomes, probes;
    slow_outcome outcome[SLOW_OUTCOMES_MAX]; /* since they were last forgotten       */
    slow_probe probe[SLOW_PROBES_MAX];       /* of this half-open state, oldest first */
    int64_t tally_newest;
    const es_trip *rule; /* why it opened last                   */
} slow_breaker;

static inline int64_t later_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t rounded_down(int64_t time, int64_t unit) {
    int64_t down = time / unit * unit;
    return down > time ? down - unit : down;
}

static inline es_counts slow_counts(const slow_breaker *slow, int64_t now) {
    es_counts counts = {.consecutive = slow->consecutive};
    const es_breaker_config *config = &slow->config;
    int64_t width = config->tally.span_ns / ES_TALLY_BUCKETS, newest_failure = INT64_MIN;
    for (int i = 0; i < slow->outcomes; i++)
        if (slow->outcome[i].failed)
            newest_failure = slow->outcome[i].window_at;
    for (int i = 0; i < slow->outcomes; i++) {
        const slow_outcome *outcome = &slow->outcome[i];
        int64_t window_now = later_of(now, newest_failure), tally_now = later_of(now, slow->tally_newest);
        bool counts_now = false;
        if (config->tally.calls > 0)
            counts_now = i + (int)config->tally.calls >= slow->outcomes;
        else if (width > 0)
            counts_now =
                rounded_down(tally_now, width) - rounded_down(outcome->tally_at, width) < config->tally.span_ns;
        counts.tally.calls += counts_now;
        counts.tally.failures += counts_now && outcome->failed;
        counts.tally.slow += counts_now && outcome->slow;
        counts.failures += outcome->failed && window_now - outcome->window_at < config->within_ns;
    }
    if (config->limits.tolerate == ES_TOLERATE_OFF)
        counts.failures = 0;
    else if (counts.failures > config->limits.tolerate + 1) /* no rule asks about more */
        counts.failures = config->limits.tolerate + 1;
    return counts;
}

static inline uint32_t slow_probes_out(const slow_breaker *slow) {
    uint32_t out = 0;
    for (int i = 0; i < slow->probes; i++)
        out += slow->probe[i].out;
    return out;
}

static inline int64_t slow_oldest_taken(const slow_breaker *slow) {
    for (int i = 0; i < slow->probes; i++)
        if (slow->probe[i].out)
            return slow->probe[i].taken_at;
    return INT64_MIN;
}

/* Could another probe still be needed, and is there a place for it? */
static inline bool slow_wants_probe(const slow_breaker *slow) {
    uint32_t out = slow_probes_out(slow), most = slow->config.probes;
    if (slow->config.successes > most)
        most = slow->config.successes;
    return out < slow->config.probes && out + slow->succeeded < most;
}

static inline void slow_change(slow_breaker *slow, es_state to, int64_t at) {
    slow->state = to;
    slow->changed_at = later_of(at, slow->changed_at);
    slow->generation++;
    slow->rejected = 0;
    slow->ramps = false;
    slow->succeeded = 0;
    slow->probes = 0;
    slow->rule = NULL;
    if (to == ES_CLOSED) {
        slow->outcomes = 0;
        slow->consecutive = 0;
        slow->open_ns = slow->config.reset_ns;
    }
}

static inline void slow_close_by_itself(slow_breaker *slow, int64_t at) {
    slow_change(slow, ES_CLOSED, at);
    slow->ramps = slow->config.ramp_ns > 0;
    slow->ramp_until = slow->changed_at + slow->config.ramp_ns;
}

static inline void slow_pass_time(slow_breaker *slow, int64_t now) {
    bool bounded = slow->state == ES_OPEN || slow->state == ES_FORCED_OPEN;
    for (int i = 0; slow->state == ES_HALF_OPEN && i < slow->probes; i++)
        slow->probe[i].out = slow->probe[i].out && now - slow->probe[i].taken_at < slow->config.lease_ns;
    if (bounded && slow->until != ES_FOREVER_NS && now >= slow->until) {
        if (slow->config.probes > 0)
            slow_change(slow, ES_HALF_OPEN, slow->until);
        else
            slow_close_by_itself(slow, slow->until);
    }
    if (slow->ramps && now >= slow->ramp_until)
        slow->ramps = false;
}

static inline int64_t slow_retry_after(const slow_breaker *slow, int64_t now) {
    int64_t end = INT64_MIN;
    if (slow->state == ES_OPEN || slow->state == ES_FORCED_OPEN)
        end = slow->until;
    if (slow->state == ES_HALF_OPEN && !slow_wants_probe(slow))
        end = slow_oldest_taken(slow) + slow->config.lease_ns;
    return end == ES_FOREVER_NS ? ES_FOREVER_NS : end <= now ? 0 : end - now;
}

/* Has time something to change, or may a probe go? */
static inline bool slow_is_due(const slow_breaker *slow, int64_t now) {
    if (slow->state == ES_HALF_OPEN)
        return slow_wants_probe(slow) || now - slow_oldest_taken(slow) >= slow->config.lease_ns;
    if (slow->state == ES_OPEN || slow->state == ES_FORCED_OPEN)
        return slow->until != ES_FOREVER_NS && now >= slow->until;
    return slow->ramps && now >= slow->ramp_until;
}

static inline void slow_take_probe(slow_breaker *slow, es_permit permit, int64_t now) {
    for (int i = 0; i < slow->probes; i++)
        if (slow->probe[i].out)
            now = later_of(now, slow->probe[i].taken_at);
    slow->probe[slow->probes] = (slow_probe){permit, now, true};
    slow->probes++;
}

static inline bool slow_listens(const slow_breaker *slow, es_permit permit, es_outcome outcome) {
    if (permit.generation != slow->generation || permit.probe != (slow->state == ES_HALF_OPEN))
        return false;
    bool closed_yet = slow->state == ES_OPEN || slow->state == ES_FORCED_OPEN;
    if (closed_yet && (slow->config.probes > 0 || slow->until == ES_FOREVER_NS))
        return false;
    bool counted = slow->config.tally.span_ns > 0 || slow->config.tally.calls > 0 || slow->consecutive > 0;
    return permit.probe || outcome == ES_FAILURE || (outcome == ES_SUCCESS && counted);
}

static inline void slow_count(slow_breaker *slow, bool failed, int64_t duration, int64_t now) {
    slow_outcome *added = &slow->outcome[slow->outcomes];
    *added = (slow_outcome){failed, duration >= slow->config.slow_ns, now, later_of(now, slow->tally_newest)};
    for (int i = 0; i < slow->outcomes; i++)
        if (slow->outcome[i].failed)
            added->window_at = later_of(added->window_at, slow->outcome[i].window_at);
    slow->tally_newest = added->tally_at;
    slow->consecutive = failed ? slow->consecutive + 1 : 0;
    slow->outcomes++;
}

/* The first rule, in the order of the table, that opens. */
static inline const es_trip *slow_rule(const slow_breaker *slow, int64_t now) {
    es_counts counts = slow_counts(slow, now);
    const es_trip_limits *limits = &slow->config.limits;
    bool enough = counts.tally.calls >= limits->min_calls;
    double calls = counts.tally.calls;
    if (limits->tolerate != ES_TOLERATE_OFF && counts.failures > limits->tolerate)
        return es_trip_at(0);
    if (limits->failure_rate_ppm > 0 && enough && counts.tally.failures * 1e6 >= limits->failure_rate_ppm * calls)
        return es_trip_at(1);
    if (limits->slow_rate_ppm > 0 && enough && counts.tally.slow * 1e6 >= limits->slow_rate_ppm * calls)
        return es_trip_at(2);
    if (limits->consecutive > 0 && counts.consecutive >= limits->consecutive)
        return es_trip_at(3);
    return NULL;
}

/* `until`: as the draw has it. */
static inline void slow_open(slow_breaker *slow, const es_trip *rule, int64_t now, int64_t until) {
    int64_t spread = slow->open_ns * slow->config.reset_jitter_ppm / 1000000;
    int64_t high = slow->open_ns + spread, low = slow->open_ns - spread;
    if (high > slow->config.reset_max_ns) {
        low -= high - slow->config.reset_max_ns;
        high = slow->config.reset_max_ns;
    }
    slow_change(slow, ES_OPEN, now);
    assert_in_range(until - slow->changed_at, low > 0 ? low : 0, high);
    slow->rule = rule;
    slow->until = until;
}

static inline void slow_report_probe(slow_breaker *slow, es_permit permit, es_outcome outcome, int64_t duration,
                                     int64_t now, int64_t until) {
    for (int i = 0; i < slow->probes; i++) {
        slow_probe *probe = &slow->probe[i];
        if (!probe->out || probe->permit.row != permit.row || probe->permit.serial != permit.serial)
            continue;
        probe->out = false;
        if (outcome == ES_IGNORE)
            return;
        slow_count(slow, outcome == ES_FAILURE, duration, now);
        slow->succeeded += outcome == ES_SUCCESS;
        if (outcome == ES_FAILURE) {
            slow->open_ns = slow->open_ns * slow->config.reset_factor_ppm / 1000000;
            if (slow->open_ns > slow->config.reset_max_ns)
                slow->open_ns = slow->config.reset_max_ns;
            slow_open(slow, NULL, now, until);
        } else if (slow->succeeded == slow->config.successes) {
            slow_close_by_itself(slow, now);
        }
        return;
    }
}

static inline void slow_report(slow_breaker *slow, es_permit permit, es_outcome outcome, int64_t duration, int64_t now,
                               int64_t until) {
    if (!slow_listens(slow, permit, outcome))
        return;
    slow_pass_time(slow, now);
    if (permit.probe) {
        slow_report_probe(slow, permit, outcome, duration, now, until);
    } else if (slow->state == ES_CLOSED || slow->state == ES_BYPASSED) {
        slow_count(slow, outcome == ES_FAILURE, duration, now);
        const es_trip *rule = slow_rule(slow, now);
        if (rule != NULL && slow->state == ES_CLOSED)
            slow_open(slow, rule, now, until);
    }
}

static inline void slow_by_hand(slow_breaker *slow, es_state to, int64_t until, int64_t now) {
    slow_pass_time(slow, now);
    if (slow->state != to) {
        slow_change(slow, to, now);
        slow->until = until == ES_FOREVER_NS ? until : later_of(until, slow->changed_at);
    } else if (to == ES_FORCED_OPEN) {
        slow->until = until;
    }
}

static inline void slow_reset(slow_breaker *slow, int64_t now) {
    slow_pass_time(slow, now);
    if (slow->state != ES_CLOSED) {
        slow_change(slow, ES_CLOSED, now);
        return;
    }
    slow->outcomes = 0;
    slow->consecutive = 0;
    slow->ramps = false;
    slow->generation++;
}

#endif
