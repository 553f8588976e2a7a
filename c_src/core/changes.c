/* SPDX-License-Identifier: Apache-2.0 */
#include "changes.h"

#include <stdatomic.h>

/* A change without padding: what a breaker costs is mostly this queue. */
typedef struct {
    int64_t at_ns, retry_after_ns;
    uint64_t generation;
    es_counts counts;
    uint8_t from, to;
    uint8_t rule; /* its number in the table, from 1 on; 0: none */
    bool by_hand;
} kept_change;

struct es_changes {
    _Atomic uint32_t held;
    uint32_t oldest; /* index of the oldest change held */
    kept_change kept[ES_CHANGES_KEPT];
};

size_t es_changes_bytes(void) {
    return sizeof(es_changes);
}

void es_changes_init(es_changes *changes) {
    atomic_init(&changes->held, 0);
    changes->oldest = 0;
}

static kept_change pack(const es_change *change) {
    return (kept_change){
        .at_ns = change->at_ns,
        .retry_after_ns = change->retry_after_ns,
        .generation = change->generation,
        .counts = change->counts,
        .from = (uint8_t)change->from,
        .to = (uint8_t)change->to,
        .rule = (uint8_t)(change->rule == NULL ? 0 : change->rule - es_trip_at(0) + 1),
        .by_hand = change->by_hand,
    };
}

static es_change unpack(const kept_change *kept) {
    return (es_change){
        .from = (es_state)kept->from,
        .to = (es_state)kept->to,
        .rule = kept->rule == 0 ? NULL : es_trip_at(kept->rule - 1u),
        .by_hand = kept->by_hand,
        .counts = kept->counts,
        .generation = kept->generation,
        .at_ns = kept->at_ns,
        .retry_after_ns = kept->retry_after_ns,
    };
}

/* The changes themselves are touched under the owner's lock only. Relaxed: the number is a hint to take that lock, and
 * orders nothing. */
static uint32_t held(const es_changes *changes) {
    return atomic_load_explicit(&changes->held, memory_order_relaxed);
}

static void hold(es_changes *changes, uint32_t number) {
    atomic_store_explicit(&changes->held, number, memory_order_relaxed);
}

static kept_change *change_number(es_changes *changes, uint32_t number) {
    return &changes->kept[(changes->oldest + number) % ES_CHANGES_KEPT];
}

void es_changes_keep(es_changes *changes, const es_change *change) {
    uint32_t number = held(changes);
    kept_change added = pack(change);
    if (number == ES_CHANGES_KEPT) {
        number--;
        added.from = change_number(changes, number)->from;
    }
    if (added.from != added.to) { /* there and back again is no change */
        *change_number(changes, number) = added;
        number++;
    }
    hold(changes, number);
}

bool es_changes_held(const es_changes *changes) {
    return held(changes) > 0;
}

bool es_changes_take(es_changes *changes, es_change *change) {
    uint32_t number = held(changes);
    if (number == 0)
        return false;
    *change = unpack(change_number(changes, 0));
    changes->oldest = (changes->oldest + 1) % ES_CHANGES_KEPT;
    hold(changes, number - 1);
    return true;
}
