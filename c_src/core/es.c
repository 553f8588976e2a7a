/* SPDX-License-Identifier: Apache-2.0 */
#include "es.h"

int64_t es_add_ns(int64_t a, int64_t b) {
    int64_t sum;
    if (a == ES_FOREVER_NS || b == ES_FOREVER_NS)
        return ES_FOREVER_NS;
    if (!__builtin_add_overflow(a, b, &sum))
        return sum;
    return b < 0 ? INT64_MIN : ES_FOREVER_NS;
}

int64_t es_elapsed_ns(int64_t since_ns, int64_t now_ns) {
    int64_t elapsed;
    if (now_ns <= since_ns)
        return 0;
    return __builtin_sub_overflow(now_ns, since_ns, &elapsed) ? ES_FOREVER_NS : elapsed;
}

int64_t es_scale_ns(int64_t time_ns, uint64_t n) {
    int64_t product;
    return __builtin_mul_overflow(time_ns, n, &product) ? ES_FOREVER_NS : product;
}

int64_t es_share_ns(int64_t time_ns, uint32_t ppm) {
    /* Whole millions and the rest apart: the rest times ppm is below 2^52, so the division loses nothing. */
    int64_t whole = es_scale_ns(time_ns / ES_PPM, ppm);
    int64_t rest = time_ns % ES_PPM * ppm / ES_PPM;
    return es_add_ns(whole, rest);
}

int64_t es_random_up_to(uint64_t random_word, int64_t bound) {
    return (int64_t)(random_word % ((uint64_t)bound + 1));
}

int64_t es_spread_ns(int64_t time_ns, uint32_t ppm, int64_t most_ns, uint64_t random_word) {
    int64_t either_way_ns = es_share_ns(time_ns, ppm);
    int64_t high_ns = es_add_ns(time_ns, either_way_ns);
    if (high_ns > most_ns)
        high_ns = most_ns;
    int64_t width_ns = es_scale_ns(either_way_ns, 2);
    if (width_ns > high_ns)
        width_ns = high_ns;
    return high_ns - es_random_up_to(random_word, width_ns);
}

/* The last steps of SplitMix64 (Steele, Lea and Flood 2014), which can be undone: no two words give the same. */
uint64_t es_mix(uint64_t word) {
    word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
    return word ^ word >> 31;
}

bool es_random_hit(uint64_t random_word, uint32_t ppm) {
    return random_word % ES_PPM < ppm;
}
