/* SPDX-License-Identifier: Apache-2.0 */
#include "growth.h"

__extension__ typedef unsigned __int128 wide;

/* From an exponent of 0 on a number is above any time; two of these added stay far inside an int. */
#define EXPONENT_MAX 64

static const es_growth one = {UINT64_C(1) << 63, -63};

/* value * 2^exponent, rounded to 64 bits. value >= 2^126, as all that is rounded here is: so the shift is by one or
 * none, which costs less than one by a count. */
static es_growth rounded(wide value, int exponent) {
    if (value >> 127 == 0) {
        value <<= 1;
        exponent--;
    }
    uint64_t mantissa = (uint64_t)(value >> 64) + ((uint64_t)value >> 63);
    if (mantissa == 0) {
        mantissa = UINT64_C(1) << 63;
        exponent++;
    }
    exponent += 64;
    return (es_growth){mantissa, exponent < EXPONENT_MAX ? exponent : EXPONENT_MAX};
}

static es_growth times(es_growth a, es_growth b) {
    return rounded((wide)a.mantissa * b.mantissa, a.exponent + b.exponent);
}

/* The exponents are at most EXPONENT_MAX + 63 apart. */
static es_growth plus(es_growth a, es_growth b) {
    es_growth large = a.exponent > b.exponent ? a : b, small = a.exponent > b.exponent ? b : a;
    wide addend = ((wide)small.mantissa << 63) >> (large.exponent - small.exponent);
    return rounded(((wide)large.mantissa << 63) + addend, large.exponent - 63);
}

/* A division in two steps of 64 bits: one of 128 bits costs as much as all the rest of a delay. */
es_growth es_growth_of(uint32_t ppm) {
    int spare = __builtin_clzll(ppm);
    uint64_t shifted = (uint64_t)ppm << spare;
    uint64_t whole = shifted / ES_PPM, rest = (shifted % ES_PPM << 44) / ES_PPM;
    return rounded(((wide)whole << 83) + ((wide)rest << 39), -83 - spare);
}

es_growth es_growth_power(es_growth factor, uint64_t n) {
    es_growth power = one;
    while (n > 0) {
        if (n % 2 == 1)
            power = times(power, factor);
        n >>= 1;
        if (n > 0)
            factor = times(factor, factor);
    }
    return power;
}

int64_t es_growth_scale_ns(int64_t time_ns, es_growth growth) {
    if (time_ns == 0)
        return 0;
    if (growth.exponent >= 0)
        return ES_FOREVER_NS;
    /* A number of at least one has an exponent of at least -63. */
    wide scaled = (((wide)(uint64_t)time_ns * growth.mantissa >> (-growth.exponent - 1)) + 1) >> 1;
    return scaled < (wide)ES_FOREVER_NS ? (int64_t)scaled : ES_FOREVER_NS;
}

/* Of 2^i steps: factor^(2^i), and the sum of the powers 1 to 2^i. */
typedef struct {
    es_growth power, sum;
} stride;

es_growth_span es_growth_below(int64_t time_ns, es_growth factor, int64_t below_ns, uint64_t steps_max) {
    stride strides[64] = {{factor, factor}};
    es_growth_span span = {0, one};
    es_growth power = one;
    int i = 0;
    for (; i < 63 && steps_max >> i > 1 && es_growth_scale_ns(time_ns, strides[i].power) < below_ns; i++) {
        const stride *half = &strides[i];
        strides[i + 1] = (stride){times(half->power, half->power), plus(half->sum, times(half->power, half->sum))};
    }
    for (; i >= 0; i--) {
        es_growth further = times(power, strides[i].power);
        if (steps_max - span.steps < UINT64_C(1) << i || es_growth_scale_ns(time_ns, further) >= below_ns)
            continue;
        span.steps += UINT64_C(1) << i;
        span.sum = plus(span.sum, times(power, strides[i].sum));
        power = further;
    }
    return span;
}
