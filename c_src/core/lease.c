/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"

#include <string.h>

#define NONE UINT32_MAX

/* Held rows form a list from the oldest to the newest, rows given back a list of their own through `newer`. */
typedef struct {
    int64_t taken_ns;
    uint32_t serial; /* another one each time the row is taken or given back; survives es_leases_clear */
    uint32_t older, newer;
} lease_row;

struct es_leases {
    int64_t length_ns;
    uint32_t capacity;
    uint32_t used;  /* rows from here on have not been taken since the table was cleared */
    uint32_t spare; /* first of the rows given back, or NONE                             */
    uint32_t oldest, newest;
    lease_row rows[];
};

size_t es_leases_bytes(uint32_t capacity) {
    return sizeof(es_leases) + capacity * sizeof(lease_row);
}

void es_leases_init(es_leases *leases, uint32_t capacity, int64_t length_ns) {
    leases->length_ns = length_ns;
    leases->capacity = capacity;
    memset(leases->rows, 0, capacity * sizeof *leases->rows);
    es_leases_clear(leases);
}

/* Rows not in use are copied too: their serials are what tells a lease from before es_leases_clear. */
void es_leases_init_from(es_leases *leases, uint32_t capacity, const es_leases *from) {
    memcpy(leases, from, es_leases_bytes(from->capacity));
    memset(leases->rows + from->capacity, 0, (capacity - from->capacity) * sizeof *leases->rows);
    leases->capacity = capacity;
}

uint32_t es_leases_capacity(const es_leases *leases) {
    return leases->capacity;
}

void es_leases_clear(es_leases *leases) {
    leases->used = 0;
    leases->spare = NONE;
    leases->oldest = NONE;
    leases->newest = NONE;
}

static uint32_t free_row(es_leases *leases) {
    uint32_t row = leases->spare;
    if (row == NONE)
        return leases->used++;
    leases->spare = leases->rows[row].newer;
    return row;
}

/* Where the index of the row after `row` is kept, from the oldest on; NONE stands for the end before the oldest. */
static uint32_t *newer_than(es_leases *leases, uint32_t row) {
    return row == NONE ? &leases->oldest : &leases->rows[row].newer;
}

static uint32_t *older_than(es_leases *leases, uint32_t row) {
    return row == NONE ? &leases->newest : &leases->rows[row].older;
}

es_lease es_leases_take(es_leases *leases, int64_t now_ns) {
    if (leases->newest != NONE && now_ns < leases->rows[leases->newest].taken_ns)
        now_ns = leases->rows[leases->newest].taken_ns;
    uint32_t number = free_row(leases);
    lease_row *row = &leases->rows[number];
    *row = (lease_row){.taken_ns = now_ns, .serial = row->serial + 1, .older = leases->newest, .newer = NONE};
    *newer_than(leases, leases->newest) = number;
    leases->newest = number;
    return (es_lease){number, row->serial};
}

static void end_lease(es_leases *leases, uint32_t number) {
    lease_row *row = &leases->rows[number];
    *newer_than(leases, row->older) = row->newer;
    *older_than(leases, row->newer) = row->older;
    row->serial++;
    row->newer = leases->spare;
    leases->spare = number;
}

bool es_leases_give_back(es_leases *leases, es_lease lease) {
    if (lease.row >= leases->used || leases->rows[lease.row].serial != lease.serial)
        return false;
    end_lease(leases, lease.row);
    return true;
}

bool es_leases_reclaim(es_leases *leases, int64_t now_ns) {
    if (leases->oldest == NONE || es_elapsed_ns(leases->rows[leases->oldest].taken_ns, now_ns) < leases->length_ns)
        return false;
    end_lease(leases, leases->oldest);
    return true;
}

int64_t es_leases_end_ns(const es_leases *leases) {
    if (leases->oldest == NONE)
        return ES_FOREVER_NS;
    return es_add_ns(leases->rows[leases->oldest].taken_ns, leases->length_ns);
}
