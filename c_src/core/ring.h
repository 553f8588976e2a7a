/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - which member does this key belong to?
 *
 * A consistent hash ring: each member has many points on a circle of 2^48 places, made from its id alone, and a key
 * belongs to the member whose point comes next. When a member leaves, its keys go to those whose points follow its own,
 * and no other key moves; when it comes back, they come back.
 *
 *     10 members of the same weight, one leaves:   a tenth of the keys moves, spread over the other nine
 *
 * A member has ES_RING_POINTS points for each unit of weight. That makes its share of the keys right to within 1 in
 * sqrt(points): 4.4 % is the standard deviation at weight 1. So that the ring never has more than ES_RING_POINTS_MAX
 * points, of all members together, the points of each are halved until they fit, at least one each; a list that grows
 * past such a step moves more keys than the new member's.
 *
 * A key is found in O(1) on average: an index by the first bits of a place leads to a stretch of about one point, in
 * which it is searched by halves. 16 bytes a point at most.
 *
 * Memory: the owner gives es_ring_bytes bytes, aligned for uint64_t, and keeps them; there is no free.
 * Threads: any, once it is made; nothing changes then. Failure: none.
 */
#ifndef ES_RING_H
#define ES_RING_H

#include "endpoint.h"

#define ES_RING_POINTS UINT32_C(512)
#define ES_RING_POINTS_MAX (UINT32_C(1) << 20)

typedef struct es_ring es_ring;

/* For `count` members, 1 to ES_MEMBERS_MAX. */
size_t es_ring_bytes(const es_member *members, uint32_t count);

/* Members have different ids. O(points). */
void es_ring_init(es_ring *ring, const es_member *members, uint32_t count);

/* How many points there are; they are numbered from 0 in their order on the ring. */
uint32_t es_ring_points(const es_ring *ring);

/* The point that comes next after this key's place. A key may be any number: it is mixed here. */
uint32_t es_ring_find(const es_ring *ring, uint64_t key_hash);

/* The point after this one; after the last comes the first. */
uint32_t es_ring_next(const es_ring *ring, uint32_t point);

/* The member a point belongs to. */
uint32_t es_ring_owner(const es_ring *ring, uint32_t point);

#endif
