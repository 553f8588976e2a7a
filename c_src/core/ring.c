/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <assert.h>
#include <string.h>

/* A point is its place on the circle in the high 48 bits, its owner in the low 16: one comparison puts them in order.
 * That two of a full ring share a place happens once in 500 rings; then the order of the list decides. */
#define OWNER_MASK UINT64_C(0xffff)

static_assert(ES_MEMBERS_MAX - 1 <= OWNER_MASK, "a point holds the index of any member");

struct es_ring {
    uint32_t count;  /* of points                                                              */
    uint32_t shift;  /* a place's stretch is its value shifted by this                         */
    uint32_t *first; /* of each stretch: its first point, and one entry more; follow the points */
    uint64_t points[];
};

/* How often the points have to be halved, and how many are left. */
typedef struct {
    uint32_t halvings, points;
} ring_size;

static uint32_t points_of(const es_member *member, uint32_t halvings) {
    uint32_t points = member->weight * ES_RING_POINTS >> halvings;
    return points > 0 ? points : 1;
}

static ring_size size_of(const es_member *members, uint32_t count) {
    for (uint32_t halvings = 0;; halvings++) {
        uint64_t points = 0;
        for (uint32_t i = 0; i < count; i++)
            points += points_of(&members[i], halvings);
        if (points <= ES_RING_POINTS_MAX)
            return (ring_size){halvings, (uint32_t)points};
    }
}

/* The bits that number the stretches: as many stretches as points, up to a factor of two. At least one bit, since a
 * shift by all 64 is none. */
static uint32_t bits_for(uint32_t points) {
    uint32_t bits = 1;
    while (UINT32_C(2) << bits <= points)
        bits++;
    return bits;
}

size_t es_ring_bytes(const es_member *members, uint32_t count) {
    uint32_t points = size_of(members, count).points;
    return sizeof(es_ring) + points * sizeof(uint64_t) + ((UINT32_C(1) << bits_for(points)) + 1) * sizeof(uint32_t);
}

/* Mixed twice: ids that are a multiple of ES_WEYL apart would else have points in common. */
static uint64_t place_of(uint64_t id, uint32_t number) {
    return es_mix(es_mix(id) + number * ES_WEYL) & ~OWNER_MASK;
}

static void count_in_stretches(es_ring *ring, const es_member *members, uint32_t count, uint32_t halvings) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t number = points_of(&members[i], halvings); number-- > 0;)
            ring->first[place_of(members[i].id, number) >> ring->shift]++;
}

/* Counts become the ends of the stretches. */
static void sum_up(es_ring *ring, uint32_t stretches) {
    for (uint32_t stretch = 1; stretch <= stretches; stretch++)
        ring->first[stretch] += ring->first[stretch - 1];
}

/* Each stretch is filled from its end; when it is full, its end has become its first. */
static void put_points(es_ring *ring, const es_member *members, uint32_t count, uint32_t halvings) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t number = points_of(&members[i], halvings); number-- > 0;) {
            uint64_t place = place_of(members[i].id, number);
            ring->points[--ring->first[place >> ring->shift]] = place | i;
        }
}

/* By insertion: points are in order but for those of one stretch, and these are one or two. */
static void put_in_order(es_ring *ring) {
    for (uint32_t i = 1; i < ring->count; i++) {
        uint64_t point = ring->points[i];
        uint32_t to = i;
        for (; to > 0 && ring->points[to - 1] > point; to--)
            ring->points[to] = ring->points[to - 1];
        ring->points[to] = point;
    }
}

/* A sort that needs no memory but the ring's: places are made twice, to be counted and to be put where they belong. */
void es_ring_init(es_ring *ring, const es_member *members, uint32_t count) {
    ring_size size = size_of(members, count);
    uint32_t stretches = UINT32_C(1) << bits_for(size.points);
    ring->count = size.points;
    ring->shift = 64 - bits_for(size.points);
    ring->first = (uint32_t *)(ring->points + size.points);
    memset(ring->first, 0, (stretches + 1) * sizeof *ring->first);
    count_in_stretches(ring, members, count, size.halvings);
    sum_up(ring, stretches);
    put_points(ring, members, count, size.halvings);
    put_in_order(ring);
}

uint32_t es_ring_points(const es_ring *ring) {
    return ring->count;
}

uint32_t es_ring_find(const es_ring *ring, uint64_t key_hash) {
    uint64_t place = es_mix(key_hash) & ~OWNER_MASK;
    uint32_t low = ring->first[place >> ring->shift], high = ring->first[(place >> ring->shift) + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ring->points[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ring->count ? low : 0;
}

uint32_t es_ring_next(const es_ring *ring, uint32_t point) {
    return point + 1 < ring->count ? point + 1 : 0;
}

uint32_t es_ring_owner(const es_ring *ring, uint32_t point) {
    return (uint32_t)(ring->points[point] & OWNER_MASK);
}
