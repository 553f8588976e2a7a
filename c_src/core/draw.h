/* SPDX-License-Identifier: Apache-2.0 */
/* draw.h - which member, at random and by weight?
 *
 * The alias method (Walker 1977, built as Vose 1991 does): as many columns as members, all of the same height, each
 * shared by at most two of them. A draw finds a column and then a side of it, with one word and in O(1).
 *
 *     weights 1 and 3:   column 0 is half member 0 and half member 1, column 1 is all member 1
 *
 * Memory: the owner gives es_draw_bytes(count) bytes, aligned for uint64_t, and keeps them; there is no free.
 * Threads: any, once it is made; nothing changes then. Failure: none.
 */
#ifndef ES_DRAW_H
#define ES_DRAW_H

#include "endpoint.h"

typedef struct es_draw es_draw;

size_t es_draw_bytes(uint32_t count);

/* Of `count` members, 1 to ES_MEMBERS_MAX. O(count). */
void es_draw_init(es_draw *draw, const es_member *members, uint32_t count);

/* The member at this word. Over all words each has its share, to the 32nd bit, in at most two unbroken runs of words a
 * column: words that are spread evenly draw evenly. */
uint32_t es_draw_at(const es_draw *draw, uint64_t word);

#endif
