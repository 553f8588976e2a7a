/* SPDX-License-Identifier: Apache-2.0 */
#include "window.h"

struct es_window {
    int64_t span_ns;
    uint32_t capacity;
    uint32_t oldest; /* index of the oldest failure held          */
    uint32_t held;   /* failures held, 0 to capacity              */
    int64_t times_ns[];
};

size_t es_window_bytes(uint32_t capacity) {
    if (capacity == 0 || capacity > ES_WINDOW_CAPACITY_MAX)
        return 0;
    return sizeof(es_window) + capacity * sizeof(int64_t);
}

void es_window_init(es_window *window, uint32_t capacity, int64_t span_ns) {
    window->span_ns = span_ns;
    window->capacity = capacity;
    es_window_clear(window);
}

void es_window_clear(es_window *window) {
    window->oldest = 0;
    window->held = 0;
}

/* Where failure number `age_rank` is kept, 0 being the oldest. No sum overflows: both terms are at most the capacity.
 */
static uint32_t slot(const es_window *window, uint32_t age_rank) {
    uint32_t index = window->oldest + age_rank;
    return index < window->capacity ? index : index - window->capacity;
}

/* Times in the ring never decrease, which is what lets count search it by halving. */
static int64_t not_before_newest(const es_window *window, int64_t now_ns) {
    if (window->held == 0)
        return now_ns;
    int64_t newest_ns = window->times_ns[slot(window, window->held - 1)];
    return now_ns > newest_ns ? now_ns : newest_ns;
}

static bool is_fresh(const es_window *window, uint32_t age_rank, int64_t now_ns) {
    return es_elapsed_ns(window->times_ns[slot(window, age_rank)], now_ns) < window->span_ns;
}

static void drop_oldest(es_window *window) {
    window->oldest = slot(window, 1);
    window->held--;
}

uint32_t es_window_record(es_window *window, int64_t now_ns) {
    now_ns = not_before_newest(window, now_ns);
    for (int dropped = 0; dropped < 2 && window->held > 0 && !is_fresh(window, 0, now_ns); dropped++)
        drop_oldest(window);
    if (window->held == window->capacity)
        drop_oldest(window);
    window->times_ns[slot(window, window->held)] = now_ns;
    window->held++;
    return window->held;
}

uint32_t es_window_count(const es_window *window, int64_t now_ns) {
    uint32_t old = 0, end = window->held; /* everything below `old` is old, everything from `end` on is fresh */
    now_ns = not_before_newest(window, now_ns);
    while (old < end) {
        uint32_t middle = old + (end - old) / 2;
        if (is_fresh(window, middle, now_ns))
            end = middle;
        else
            old = middle + 1;
    }
    return window->held - old;
}
