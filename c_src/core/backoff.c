/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* a * b and a + b, held at UINT64_MAX. */
static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* base, base * 2, base * 4, ... */
static int64_t exponential_delay_ns(const es_backoff *backoff, uint64_t retry) {
    uint64_t doublings = retry - 1;
    return es_scale_ns(backoff->base_ns, doublings < 63 ? UINT64_C(1) << doublings : UINT64_MAX);
}

/* A base of at least 1 ns is at any cap after 63 doublings; what follows is a multiple of the cap. */
static int64_t exponential_total_ns(const es_backoff *backoff, uint64_t retries) {
    int64_t total_ns = 0, delay_ns = backoff->base_ns;
    if (delay_ns == 0)
        return 0;
    for (; retries > 0 && delay_ns < backoff->cap_ns; retries--) {
        total_ns = es_add_ns(total_ns, delay_ns);
        delay_ns = es_scale_ns(delay_ns, 2);
    }
    return es_add_ns(total_ns, es_scale_ns(backoff->cap_ns, retries));
}

/* base, base * (1 + factor), base * (1 + 2 * factor), ... */
static int64_t linear_delay_ns(const es_backoff *backoff, uint64_t retry) {
    return es_scale_ns(backoff->base_ns, plus(1, times(backoff->factor, retry - 1)));
}

/* How many of the first `retries` linear delays are below the cap. base_ns > 0. */
static uint64_t linear_below_cap(const es_backoff *backoff, uint64_t retries) {
    if (backoff->base_ns >= backoff->cap_ns)
        return 0;
    uint64_t bases_max = (uint64_t)((backoff->cap_ns - 1) / backoff->base_ns);
    uint64_t below = (bases_max - 1) / backoff->factor + 1;
    return retries < below ? retries : below;
}

static int64_t linear_total_ns(const es_backoff *backoff, uint64_t retries) {
    if (backoff->base_ns == 0)
        return 0;
    uint64_t below = linear_below_cap(backoff, retries);
    /* 0 + 1 + ... + (below - 1), halving the even one of the two so that nothing is rounded. */
    uint64_t steps = below % 2 == 0 ? times(below / 2, below - 1) : times(below, below / 2);
    int64_t rising_ns = es_scale_ns(backoff->base_ns, plus(below, times(backoff->factor, steps)));
    return es_add_ns(rising_ns, es_scale_ns(backoff->cap_ns, retries - below));
}

static const es_backoff_curve curves[] = {
    {"exponential", exponential_delay_ns, exponential_total_ns},
    {"linear", linear_delay_ns, linear_total_ns},
};

#define CURVES (sizeof curves / sizeof *curves)

const es_backoff_curve *es_backoff_curve_at(size_t index) {
    return index < CURVES ? &curves[index] : NULL;
}

es_status es_backoff_check(const es_backoff *backoff) {
    bool right = backoff->curve != NULL && backoff->base_ns >= 0 && backoff->factor >= 1 && backoff->cap_ns > 0 &&
                 backoff->expiry_ns > 0 && backoff->attempts_max >= 1 && backoff->jitter_ppm <= ES_PPM;
    return right ? ES_OK : ES_BAD_CONFIG;
}

es_backoff_step es_backoff_next(const es_backoff *backoff, uint64_t retry, int64_t elapsed_ns, uint64_t random_word,
                                int64_t *delay_ns) {
    bool bounded = backoff->expiry_ns != ES_FOREVER_NS;
    int64_t left_ns = es_elapsed_ns(elapsed_ns > 0 ? elapsed_ns : 0, backoff->expiry_ns);
    if (retry >= backoff->attempts_max || (bounded && left_ns == 0))
        return ES_EXHAUSTED;
    int64_t nominal_ns = least(backoff->curve->delay_ns(backoff, retry), backoff->cap_ns);
    *delay_ns = es_spread_ns(nominal_ns, backoff->jitter_ppm, backoff->cap_ns, random_word);
    if (!bounded || *delay_ns < left_ns)
        return ES_RETRY;
    *delay_ns = left_ns;
    return ES_RETRY_LAST;
}

size_t es_backoff_plan(const es_backoff *backoff, int64_t *delays_ns, size_t max) {
    es_backoff steady = *backoff;
    int64_t elapsed_ns = 0, delay_ns;
    size_t planned = 0;
    steady.jitter_ppm = 0;
    while (planned < max && es_backoff_next(&steady, planned + 1, elapsed_ns, 0, &delay_ns) != ES_EXHAUSTED) {
        if (delays_ns != NULL)
            delays_ns[planned] = delay_ns;
        elapsed_ns = es_add_ns(elapsed_ns, delay_ns);
        planned++;
    }
    return planned;
}

int64_t es_backoff_window_ns(const es_backoff *backoff) {
    if (backoff->attempts_max == ES_NO_LIMIT)
        return backoff->expiry_ns;
    return least(backoff->curve->total_ns(backoff, backoff->attempts_max - 1), backoff->expiry_ns);
}
