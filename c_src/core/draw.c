/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"

#define NOBODY UINT32_MAX

typedef struct {
    uint32_t own;   /* the column is its own member's below this, of 2^32 */
    uint32_t other; /* and this one's above                               */
} column;

struct es_draw {
    uint32_t count;
    column columns[];
};

__extension__ typedef unsigned __int128 wide;

size_t es_draw_bytes(uint32_t count) {
    return sizeof(es_draw) + count * sizeof(column);
}

static uint32_t sum_of_weights(const es_member *members, uint32_t count) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += members[i].weight;
    return sum;
}

static void put_on(uint32_t *list, column *columns, uint32_t i) {
    columns[i].other = *list;
    *list = i;
}

static uint32_t take_off(uint32_t *list, const column *columns) {
    uint32_t i = *list;
    *list = columns[i].other;
    return i;
}

/* A weight is counted in units of which a column holds `height`: the sum of all weights. While columns are filled `own`
 * is what is left of the weight of its member, and `other` links the lists of those that have less than a column of it
 * and of those that have at least one: no further memory is needed. In whole numbers, so that as long as somebody has
 * less, somebody has more. */
void es_draw_init(es_draw *draw, const es_member *members, uint32_t count) {
    uint32_t height = sum_of_weights(members, count), less = NOBODY, more = NOBODY;
    column *columns = draw->columns;
    draw->count = count;
    for (uint32_t i = count; i-- > 0;) {
        columns[i].own = members[i].weight * count;
        put_on(columns[i].own < height ? &less : &more, columns, i);
    }
    while (less != NOBODY) {
        uint32_t poor = take_off(&less, columns), rich = more;
        columns[rich].own -= height - columns[poor].own;
        columns[poor].own = (uint32_t)(((uint64_t)columns[poor].own << 32) / height);
        columns[poor].other = rich;
        if (columns[rich].own < height)
            put_on(&less, columns, take_off(&more, columns));
    }
    while (more != NOBODY) {
        uint32_t whole = take_off(&more, columns);
        columns[whole] = (column){UINT32_MAX, whole};
    }
}

uint32_t es_draw_at(const es_draw *draw, uint64_t word) {
    wide place = (wide)word * draw->count;
    uint32_t i = (uint32_t)(place >> 64), height = (uint32_t)((uint64_t)place >> 32);
    column drawn = draw->columns[i];
    return height < drawn.own ? i : drawn.other;
}
