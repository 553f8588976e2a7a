/* SPDX-License-Identifier: Apache-2.0 */
#include "balancer.h"

#include <stdatomic.h>
#include <string.h>

#include "draw.h"
#include "ring.h"
#include "rota.h"

#define DRAWS 8        /* tries to draw one that can be taken, before all are looked at           */
#define CHOICES 8      /* how many least_busy compares                                            */
#define STEPS_MAX 1024 /* along the ring; beyond it nearly all of the ring is out, and all are looked at */

__extension__ typedef unsigned __int128 wide;

#define CACHE_LINE 64

/* Everything but the turn is set once, and is a line of memory away from it: else whoever takes a turn would take what
 * is only read from all others. */
struct es_balancer {
    _Atomic uint64_t turn;
    char apart[CACHE_LINE - sizeof(uint64_t)];
    const es_balancer_rule *rule;
    uint32_t count, max_ejected_ppm;
    const es_draw *draw; /* these follow in the same memory            */
    const es_rota *rota; /* NULL if the rule has none, or it is too long */
    const es_ring *ring; /* NULL if the rule has none                  */
    void (*release)(void *memory);
    es_member members[];
};

/* One pass over the table for one call. */
struct es_search {
    const es_pick *how;
    size_t tried_count; /* those who tried do not count: 0 the second time */
    uint64_t random;
    bool again; /* the second pass: all that are in were tried */
};

static uint64_t next_random(es_search *search) {
    search->random += ES_WEYL;
    return es_mix(search->random);
}

/* Drawn with `some` of `all` tickets? By a product, since a division is the dearest part of a pick. */
static bool is_lucky(es_search *search, uint64_t some, uint64_t all) {
    return (uint64_t)((wide)next_random(search) * all >> 64) < some;
}

static bool was_tried(const es_search *search, uint32_t index) {
    for (size_t i = 0; i < search->tried_count; i++)
        if (search->how->tried[i] == index)
            return true;
    return false;
}

static bool can_take(const es_balancer *balancer, const es_search *search, uint32_t index) {
    return es_endpoint_is_in(balancer->members[index].endpoint, search->how->now_ns) && !was_tried(search, index);
}

/* Any that can be taken, by weight: each takes the place of the one before with the share it has of both and all before
 * them. */
static uint32_t one_of_all(const es_balancer *balancer, es_search *search) {
    uint64_t weights = 0;
    uint32_t chosen = ES_NO_ENDPOINT;
    for (uint32_t i = 0; i < balancer->count; i++) {
        if (!can_take(balancer, search, i))
            continue;
        weights += balancer->members[i].weight;
        if (is_lucky(search, balancer->members[i].weight, weights))
            chosen = i;
    }
    return chosen;
}

static uint32_t by_chance(es_balancer *balancer, es_search *search) {
    for (int draw = 0; draw < DRAWS; draw++) {
        uint32_t index = es_draw_at(balancer->draw, next_random(search));
        if (can_take(balancer, search, index))
            return index;
    }
    return one_of_all(balancer, search);
}

/* Relaxed: that no two threads get the same turn is all that is asked of it. Which of two that come at once is first,
 * and what else they see, does not matter. */
static uint32_t whose_turn(es_balancer *balancer) {
    uint64_t turn = atomic_fetch_add_explicit(&balancer->turn, 1, memory_order_relaxed);
    return balancer->rota != NULL ? es_rota_at(balancer->rota, turn) : es_draw_at(balancer->draw, turn * ES_WEYL);
}

/* A call takes one turn. With two, one that was refused by an endpoint would leave the next call with the same
 * endpoint's turn, and one that finds all tried would always meet the same turns. */
static uint32_t by_turn(es_balancer *balancer, es_search *search) {
    uint32_t index = search->how->tried_count > 0 ? ES_NO_ENDPOINT : whose_turn(balancer);
    return index != ES_NO_ENDPOINT && can_take(balancer, search, index) ? index : by_chance(balancer, search);
}

/* The least busy so far. */
typedef struct {
    uint32_t index, weight;
    uint32_t in_flight;
    int64_t latency_ns;
    uint64_t tickets; /* of all that are as good as this one */
} leader;

/* Below 0 if `one` is less busy. In flight for their weights: multiplied crosswise, nothing is rounded. */
static int compare(const leader *one, const leader *other) {
    uint64_t ours = (uint64_t)one->in_flight * other->weight, theirs = (uint64_t)other->in_flight * one->weight;
    if (ours != theirs)
        return ours < theirs ? -1 : 1;
    return (one->latency_ns > other->latency_ns) - (one->latency_ns < other->latency_ns);
}

/* An unknown latency is below all others. Equals draw lots, each with its number of tickets. */
static void stand_against(leader *best, const es_balancer *balancer, es_search *search, uint32_t index,
                          uint32_t tickets) {
    const es_member *member = &balancer->members[index];
    if (!can_take(balancer, search, index))
        return;
    leader next = {index, member->weight, es_endpoint_in_flight(member->endpoint),
                   es_endpoint_latency_ns(member->endpoint), tickets};
    int order = best->index == ES_NO_ENDPOINT ? -1 : compare(&next, best);
    if (order == 0)
        next.tickets += best->tickets;
    if (order < 0 || (order == 0 && is_lucky(search, tickets, next.tickets)))
        *best = next;
    else if (order == 0)
        best->tickets = next.tickets;
}

static uint32_t least_busy_of_all(const es_balancer *balancer, es_search *search) {
    leader best = {.index = ES_NO_ENDPOINT};
    for (uint32_t i = 0; i < balancer->count; i++)
        stand_against(&best, balancer, search, i, balancer->members[i].weight);
    return best.index;
}

/* Those that are drawn are drawn by weight already: one ticket each. */
static uint32_t by_load(es_balancer *balancer, es_search *search) {
    leader best = {.index = ES_NO_ENDPOINT};
    for (int draw = 0; balancer->count > CHOICES && draw < CHOICES; draw++)
        stand_against(&best, balancer, search, es_draw_at(balancer->draw, next_random(search)), 1);
    return best.index != ES_NO_ENDPOINT ? best.index : least_busy_of_all(balancer, search);
}

/* What is left to chance is left to the key: the same key gets the same endpoint. */
static uint32_t by_key(es_balancer *balancer, es_search *search) {
    uint32_t point = es_ring_find(balancer->ring, search->how->key_hash);
    for (uint32_t step = 0; step < STEPS_MAX && step < es_ring_points(balancer->ring); step++) {
        uint32_t index = es_ring_owner(balancer->ring, point);
        if (can_take(balancer, search, index))
            return index;
        point = es_ring_next(balancer->ring, point);
    }
    search->random = search->how->key_hash;
    return one_of_all(balancer, search);
}

static const es_balancer_rule rules[] = {
    {"round_robin", by_turn, true, false},
    {"random", by_chance, false, false},
    {"least_busy", by_load, false, false},
    {"hash", by_key, false, true},
};

#define RULES (sizeof rules / sizeof *rules)

const es_balancer_rule *es_balancer_rule_at(size_t index) {
    return index < RULES ? &rules[index] : NULL;
}

uint32_t es_balancer_pick(es_balancer *balancer, const es_pick *how) {
    size_t tried_count = how->tried_count < ES_TRIED_MAX ? how->tried_count : ES_TRIED_MAX;
    es_search search = {how, tried_count, how->random_word, false};
    uint32_t index = balancer->rule->pick(balancer, &search);
    if (index != ES_NO_ENDPOINT || tried_count == 0)
        return index;
    search.tried_count = 0;
    search.again = true;
    return balancer->rule->pick(balancer, &search);
}

static bool is_sound(const es_balancer_config *config) {
    if (config->rule == NULL || config->count == 0 || config->count > ES_MEMBERS_MAX ||
        config->max_ejected_ppm > ES_PPM)
        return false;
    for (uint32_t i = 0; i < config->count; i++) {
        const es_member *member = &config->members[i];
        if (member->endpoint == NULL || member->weight == 0 || member->weight > ES_WEIGHT_MAX)
            return false;
    }
    return true;
}

static void sift_down(uint64_t *heap, uint32_t root, uint32_t count) {
    uint64_t sinking = heap[root];
    for (uint32_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && heap[child + 1] > heap[child])
            child++;
        if (heap[child] <= sinking)
            break;
        heap[root] = heap[child];
    }
    heap[root] = sinking;
}

/* Heapsort: the C library's sort may allocate. Each number that comes out is compared with the one before. */
static bool has_twins(uint64_t *ids, uint32_t count) {
    for (uint32_t root = count / 2; root-- > 0;)
        sift_down(ids, root, count);
    while (count > 1) {
        uint64_t most = ids[0];
        ids[0] = ids[--count];
        sift_down(ids, 0, count);
        if (ids[0] == most)
            return true;
    }
    return false;
}

/* Where things are in the memory. */
typedef struct {
    size_t draw, rota, ring, bytes;
} layout;

/* Each part aligned for what may follow. */
static size_t rounded(size_t bytes) {
    return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

static layout lay_out(const es_balancer_config *config) {
    layout at = {.draw = sizeof(es_balancer) + config->count * sizeof(es_member)};
    at.rota = at.draw + rounded(es_draw_bytes(config->count));
    at.ring = at.rota;
    if (config->rule->has_rota)
        at.ring += rounded(es_rota_bytes(config->members, config->count));
    at.bytes = at.ring;
    if (config->rule->has_ring)
        at.bytes += rounded(es_ring_bytes(config->members, config->count));
    return at;
}

/* The ids are put in order where the draw will be: it has a column of their size for each. */
static bool ids_differ(const es_balancer_config *config, void *scratch) {
    uint64_t *ids = scratch;
    for (uint32_t i = 0; i < config->count; i++)
        ids[i] = config->members[i].id;
    return !has_twins(ids, config->count);
}

static void fill(es_balancer *made, const es_balancer_config *config, const layout *at) {
    void *draw = (char *)made + at->draw, *rota = (char *)made + at->rota, *ring = (char *)made + at->ring;
    atomic_init(&made->turn, 0);
    made->rule = config->rule;
    made->count = config->count;
    made->max_ejected_ppm = config->max_ejected_ppm;
    memcpy(made->members, config->members, config->count * sizeof *config->members);
    es_draw_init(draw, config->members, config->count);
    made->draw = draw;
    made->rota = at->ring > at->rota ? rota : NULL;
    if (made->rota != NULL)
        es_rota_init(rota, config->members, config->count);
    made->ring = at->bytes > at->ring ? ring : NULL;
    if (made->ring != NULL)
        es_ring_init(ring, config->members, config->count);
}

es_status es_balancer_new(es_balancer **balancer, const es_balancer_config *config, const es_allocator *allocator) {
    *balancer = NULL;
    if (!is_sound(config))
        return ES_BAD_CONFIG;
    const layout at = lay_out(config);
    es_balancer *made = allocator->alloc(at.bytes);
    if (made == NULL)
        return ES_NO_MEMORY;
    made->release = allocator->free;
    if (!ids_differ(config, (char *)made + at.draw)) {
        es_balancer_free(made);
        return ES_BAD_CONFIG;
    }
    fill(made, config, &at);
    *balancer = made;
    return ES_OK;
}

void es_balancer_free(es_balancer *balancer) {
    if (balancer != NULL)
        balancer->release(balancer);
}

static bool is_counted_out(const es_member *member, int64_t now_ns) {
    return es_endpoint_is_out(member->endpoint, now_ns) && !es_endpoint_is_draining(member->endpoint);
}

uint32_t es_balancer_out(const es_balancer *balancer, int64_t now_ns) {
    uint32_t out = 0;
    for (uint32_t i = 0; i < balancer->count; i++)
        out += is_counted_out(&balancer->members[i], now_ns);
    return out;
}

int64_t es_balancer_soonest_ns(const es_balancer *balancer, int64_t now_ns) {
    int64_t soonest_ns = ES_FOREVER_NS;
    for (uint32_t i = 0; i < balancer->count; i++) {
        int64_t until_ns = es_endpoint_out_until_ns(balancer->members[i].endpoint);
        if (is_counted_out(&balancer->members[i], now_ns) && until_ns < soonest_ns)
            soonest_ns = until_ns;
    }
    return soonest_ns;
}

/* Those that drain are on their way out of the table: counted as in, they would let the last one that works be put out.
 */
static uint32_t out_max(const es_balancer *balancer) {
    uint64_t staying = 0;
    for (uint32_t i = 0; i < balancer->count; i++)
        staying += !es_endpoint_is_draining(balancer->members[i].endpoint);
    return (uint32_t)(staying * balancer->max_ejected_ppm / ES_PPM);
}

bool es_balancer_eject(es_balancer *balancer, uint32_t index, int64_t until_ns, int64_t now_ns) {
    es_endpoint *endpoint = balancer->members[index].endpoint;
    bool stays = until_ns > now_ns && es_endpoint_is_in(endpoint, now_ns) &&
                 es_balancer_out(balancer, now_ns) >= out_max(balancer);
    if (!stays)
        es_endpoint_put_out(endpoint, until_ns);
    return !stays;
}
