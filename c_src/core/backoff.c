/* SPDX-License-Identifier: Apache-2.0 */
#include "backoff.h"

#include "growth.h"

__extension__ typedef unsigned __int128 wide;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* base, base * multiplier, base * multiplier^2, ... */
static int64_t exponential_delay_ns(const es_backoff *backoff, uint64_t retry) {
    es_growth factor = es_growth_of(backoff->multiplier_ppm);
    return es_growth_scale_ns(backoff->base_ns, es_growth_power(factor, retry - 1));
}

static int64_t exponential_total_ns(const es_backoff *backoff, uint64_t retries) {
    int64_t base_ns = backoff->base_ns, cap_ns = backoff->cap_ns;
    if (base_ns == 0 || retries == 0)
        return 0;
    if (base_ns >= cap_ns)
        return es_scale_ns(cap_ns, retries);
    es_growth_span rising = es_growth_below(base_ns, es_growth_of(backoff->multiplier_ppm), cap_ns, retries - 1);
    int64_t rising_ns = es_growth_scale_ns(base_ns, rising.sum);
    return es_add_ns(rising_ns, es_scale_ns(cap_ns, retries - 1 - rising.steps));
}

/* base, base + step, base + 2 * step, ... */
static int64_t linear_delay_ns(const es_backoff *backoff, uint64_t retry) {
    return es_add_ns(backoff->base_ns, es_scale_ns(backoff->step_ns, retry - 1));
}

/* How many of the first `retries` linear delays are below the cap. */
static uint64_t linear_below_cap(const es_backoff *backoff, uint64_t retries) {
    if (backoff->base_ns >= backoff->cap_ns)
        return 0;
    if (backoff->step_ns == 0)
        return retries;
    uint64_t below = (uint64_t)((backoff->cap_ns - 1 - backoff->base_ns) / backoff->step_ns) + 1;
    return retries < below ? retries : below;
}

/* Where there is a step, those below the cap are at most 2^63, and step * (below - 1) is below the cap: no product of
 * 128 bits overflows. */
static int64_t linear_total_ns(const es_backoff *backoff, uint64_t retries) {
    uint64_t below = linear_below_cap(backoff, retries);
    wide rising = (wide)(uint64_t)backoff->base_ns * below;
    if (below > 1)
        rising += (wide)(uint64_t)backoff->step_ns * (below - 1) * below / 2;
    int64_t rising_ns = rising < (wide)ES_FOREVER_NS ? (int64_t)rising : ES_FOREVER_NS;
    return es_add_ns(rising_ns, es_scale_ns(backoff->cap_ns, retries - below));
}

static int64_t constant_delay_ns(const es_backoff *backoff, uint64_t retry) {
    (void)retry;
    return backoff->base_ns;
}

static int64_t constant_total_ns(const es_backoff *backoff, uint64_t retries) {
    return es_scale_ns(least(backoff->base_ns, backoff->cap_ns), retries);
}

static int64_t list_delay_ns(const es_backoff *backoff, uint64_t retry) {
    return backoff->steps_ns[retry < backoff->steps ? retry - 1 : backoff->steps - 1];
}

static int64_t list_total_ns(const es_backoff *backoff, uint64_t retries) {
    int64_t total_ns = 0;
    uint64_t listed = retries < backoff->steps ? retries : backoff->steps;
    for (size_t i = 0; i < listed; i++)
        total_ns = es_add_ns(total_ns, least(backoff->steps_ns[i], backoff->cap_ns));
    int64_t last_ns = least(backoff->steps_ns[backoff->steps - 1], backoff->cap_ns);
    return es_add_ns(total_ns, es_scale_ns(last_ns, retries - listed));
}

static const es_backoff_curve curves[] = {
    {"exponential", false, exponential_delay_ns, exponential_total_ns},
    {"linear", false, linear_delay_ns, linear_total_ns},
    {"constant", false, constant_delay_ns, constant_total_ns},
    {"list", true, list_delay_ns, list_total_ns},
};

#define CURVES (sizeof curves / sizeof *curves)

const es_backoff_curve *es_backoff_curve_at(size_t index) {
    return index < CURVES ? &curves[index] : NULL;
}

static bool is_curve_sound(const es_backoff *backoff) {
    if (backoff->curve == NULL || backoff->curve->listed != (backoff->steps > 0) ||
        backoff->steps > ES_BACKOFF_STEPS_MAX)
        return false;
    for (size_t i = 0; i < backoff->steps; i++) {
        if (backoff->steps_ns[i] < 0)
            return false;
    }
    return backoff->base_ns >= 0 && backoff->step_ns >= 0 && backoff->multiplier_ppm >= ES_PPM &&
           backoff->multiplier_ppm <= 1000 * ES_PPM;
}

es_status es_backoff_check(const es_backoff *backoff) {
    bool right = is_curve_sound(backoff) && backoff->cap_ns > 0 && backoff->expiry_ns > 0 &&
                 backoff->attempts_max >= 1 && backoff->jitter <= ES_JITTER_DECORRELATED &&
                 backoff->jitter_ppm <= ES_PPM && backoff->asked_max_ns >= 0;
    return right ? ES_OK : ES_BAD_CONFIG;
}

bool es_backoff_is_random(const es_backoff *backoff) {
    return backoff->jitter != ES_JITTER_SPREAD || backoff->jitter_ppm > 0;
}

static int64_t decorrelated_ns(const es_backoff *backoff, uint64_t retry, int64_t previous_ns, uint64_t random_word) {
    int64_t first_ns = backoff->curve->delay_ns(backoff, 1);
    int64_t thrice_ns = es_scale_ns(retry == 1 ? first_ns : previous_ns, 3);
    int64_t high_ns = least(most(first_ns, thrice_ns), backoff->cap_ns);
    int64_t low_ns = first_ns < high_ns ? first_ns : high_ns / 3;
    return low_ns + es_random_up_to(random_word, high_ns - low_ns);
}

static int64_t drawn_ns(const es_backoff *backoff, uint64_t retry, int64_t previous_ns, uint64_t random_word) {
    if (backoff->jitter == ES_JITTER_DECORRELATED)
        return decorrelated_ns(backoff, retry, previous_ns, random_word);
    int64_t nominal_ns = least(backoff->curve->delay_ns(backoff, retry), backoff->cap_ns);
    if (backoff->jitter == ES_JITTER_FULL)
        return es_random_up_to(random_word, nominal_ns);
    return es_spread_ns(nominal_ns, backoff->jitter_ppm, backoff->cap_ns, random_word);
}

/* What is left of the budget: ES_FOREVER_NS where there is none, 0 where it is spent. */
static int64_t budget_left_ns(const es_backoff *backoff, int64_t elapsed_ns) {
    if (backoff->expiry_ns == ES_FOREVER_NS)
        return ES_FOREVER_NS;
    return es_elapsed_ns(most(elapsed_ns, 0), backoff->expiry_ns);
}

static bool is_exhausted(const es_backoff *backoff, uint64_t retry, int64_t budget_ns) {
    return retry >= backoff->attempts_max || budget_ns == 0;
}

/* Trims the delay to the budget, and asks whether it ends before the deadline. */
static es_backoff_step fit(int64_t *delay_ns, int64_t budget_ns, int64_t left_ns) {
    es_backoff_step step = ES_RETRY;
    if (budget_ns != ES_FOREVER_NS && *delay_ns >= budget_ns) {
        *delay_ns = budget_ns;
        step = ES_RETRY_LAST;
    }
    return left_ns != ES_FOREVER_NS && *delay_ns >= left_ns ? ES_RETRY_LATE : step;
}

es_backoff_step es_backoff_next(const es_backoff *backoff, uint64_t retry, int64_t previous_ns, es_backoff_time time,
                                uint64_t random_word, int64_t *delay_ns) {
    int64_t budget_ns = budget_left_ns(backoff, time.elapsed_ns);
    if (is_exhausted(backoff, retry, budget_ns))
        return ES_EXHAUSTED;
    *delay_ns = drawn_ns(backoff, retry, previous_ns, random_word);
    return fit(delay_ns, budget_ns, time.left_ns);
}

es_backoff_step es_backoff_after(const es_backoff *backoff, uint64_t retry, int64_t asked_ns, es_backoff_time time,
                                 int64_t *delay_ns) {
    int64_t budget_ns = budget_left_ns(backoff, time.elapsed_ns);
    if (is_exhausted(backoff, retry, budget_ns))
        return ES_EXHAUSTED;
    *delay_ns = least(asked_ns, backoff->asked_max_ns);
    return fit(delay_ns, budget_ns, time.left_ns);
}

size_t es_backoff_plan(const es_backoff *backoff, int64_t *delays_ns, size_t max) {
    es_backoff steady = *backoff;
    es_backoff_time time = {0, ES_FOREVER_NS};
    int64_t delay_ns;
    size_t planned = 0;
    steady.jitter = ES_JITTER_SPREAD;
    steady.jitter_ppm = 0;
    while (planned < max && es_backoff_next(&steady, planned + 1, 0, time, 0, &delay_ns) != ES_EXHAUSTED) {
        if (delays_ns != NULL)
            delays_ns[planned] = delay_ns;
        time.elapsed_ns = es_add_ns(time.elapsed_ns, delay_ns);
        planned++;
    }
    return planned;
}

int64_t es_backoff_window_ns(const es_backoff *backoff) {
    if (backoff->attempts_max == ES_NO_LIMIT)
        return backoff->expiry_ns;
    return least(backoff->curve->total_ns(backoff, backoff->attempts_max - 1), backoff->expiry_ns);
}
