/* SPDX-License-Identifier: Apache-2.0 */
#include "rota.h"

#include <assert.h>
#include <string.h>

static_assert(ES_MEMBERS_MAX - 1 <= UINT16_MAX, "a turn holds the index of any member");

struct es_rota {
    uint32_t length;
    uint16_t *turns;  /* follow the gains                                            */
    int32_t gained[]; /* one a member, used while it is laid out; at most a sum of weights */
};

static_assert((uint64_t)ES_ROTA_TURNS_MAX * ES_WEIGHT_MAX <= INT32_MAX, "gains have to fit");

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint32_t turns_of(const es_member *members, uint32_t count) {
    uint32_t sum = 0, divisor = members[0].weight;
    for (uint32_t i = 0; i < count; i++) {
        sum += members[i].weight;
        divisor = common_divisor(members[i].weight, divisor);
    }
    return sum / divisor;
}

size_t es_rota_bytes(const es_member *members, uint32_t count) {
    uint32_t turns = turns_of(members, count);
    bool is_long = turns > ES_ROTA_TURNS_MAX || (turns > count && (uint64_t)turns * count > ES_ROTA_STEPS_MAX);
    return is_long ? 0 : sizeof(es_rota) + count * sizeof(int32_t) + turns * sizeof(uint16_t);
}

/* The first of those who have most. */
static uint32_t next_turn(int32_t *gained, const es_member *members, uint32_t count) {
    uint32_t most = 0;
    int32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t weight = (int32_t)members[i].weight;
        sum += weight;
        gained[i] += weight;
        if (gained[i] > gained[most])
            most = i;
    }
    gained[most] -= sum;
    return most;
}

void es_rota_init(es_rota *rota, const es_member *members, uint32_t count) {
    rota->length = turns_of(members, count);
    rota->turns = (uint16_t *)(rota->gained + count);
    memset(rota->gained, 0, count * sizeof *rota->gained);
    for (uint32_t turn = 0; turn < rota->length; turn++)
        rota->turns[turn] = (uint16_t)(rota->length == count ? turn : next_turn(rota->gained, members, count));
}

uint32_t es_rota_at(const es_rota *rota, uint64_t turn) {
    return rota->turns[turn % rota->length];
}

uint32_t es_rota_length(const es_rota *rota) {
    return rota->length;
}
