/* SPDX-License-Identifier: Apache-2.0 */
/* balancer.h - which endpoint does this call go to?
 *
 * A table of endpoints, and a rule that picks one of them. An endpoint that is out or draining is not picked; one that
 * this call has tried already only when all others that are in were tried, too. When nobody is in, nobody is picked.
 *
 * round_robin: each in its turn, as often as its weight says (rota.h). If the one whose turn it is can not be taken,
 * its turn is drawn for by weight: all others share it, not only its neighbour. A call that has tried one before takes
 * no further turn, it draws as well.
 *
 * random: drawn by weight (draw.h).
 *
 * least_busy: of up to eight, all there are or else drawn by weight (the power of choices, Mitzenmacher 1996), the one
 * with fewest calls in flight for its weight, then with the lowest latency, where none is known yet counts as the
 * lowest, then by chance.
 *
 * hash: the one to which the key belongs (ring.h); if that can not be taken, the next on the ring.
 *
 * Where there are too many turns for a rota, round_robin spreads its turns evenly over the weights instead: shares are
 * as exact, the order is less even.
 *
 * To add a rule: write its function in balancer.c, add one row to the table at the end of that file, and one test in
 * test/c/balancer_test.c. Nothing else in C changes; the NIF layer finds rules by name.
 *
 * Memory: es_balancer_new makes one allocation, es_balancer_free gives it back; nothing else allocates. It does not own
 * the endpoints: the owner keeps them for as long, and may put one into several tables, the old and the new list. What
 * is out or draining is known of the endpoint, and so holds in all of them.
 * Threads: any, at any time, without a lock; es_balancer_eject needs the owner's lock, the same for all tables that an
 * endpoint stands in, while others go on picking.
 * Units: nanoseconds, monotonic. Time: a pick is O(1) while some of what is drawn can be taken, at most O(count);
 * es_balancer_new takes up to some ten milliseconds for large tables. Failure: es_balancer_new.
 */
#ifndef ES_BALANCER_H
#define ES_BALANCER_H

#include "endpoint.h"

#define ES_NO_ENDPOINT UINT32_MAX
#define ES_TRIED_MAX 64

typedef struct es_balancer es_balancer;
typedef struct es_search es_search;

typedef struct {
    const char *name;
    uint32_t (*pick)(es_balancer *balancer, es_search *search); /* or ES_NO_ENDPOINT */
    bool has_rota, has_ring;                                    /* what the rule asks */
} es_balancer_rule;

typedef struct {
    const es_balancer_rule *rule; /* from es_balancer_rule_at                                       */
    const es_member *members;     /* copied; ids that differ, weights from 1 to ES_WEIGHT_MAX       */
    uint32_t count;               /* of them, 1 to ES_MEMBERS_MAX                                   */
    uint32_t max_ejected_ppm;     /* the share that may be out by es_balancer_eject, 0 to ES_PPM    */
} es_balancer_config;

/* What is known of the call. */
typedef struct {
    int64_t now_ns;
    uint64_t random_word;  /* anew for each pick                                                     */
    uint64_t key_hash;     /* for rules with a ring: any number, the same for the same key           */
    const uint32_t *tried; /* indices of those that were tried                                       */
    size_t tried_count;    /* 0 to ES_TRIED_MAX; what is beyond is not looked at                     */
} es_pick;

/* Rule number `index` of the table, or NULL past its end. Static: never free it. */
const es_balancer_rule *es_balancer_rule_at(size_t index);

ES_NODISCARD es_status es_balancer_new(es_balancer **balancer, const es_balancer_config *config,
                                       const es_allocator *allocator);
/* NULL is allowed. */
void es_balancer_free(es_balancer *balancer);

/* The index of the endpoint to call, as it stood in the configuration, or ES_NO_ENDPOINT if none is in. Nothing is
 * counted: the caller tells the endpoint when its call begins and ends. */
ES_NODISCARD uint32_t es_balancer_pick(es_balancer *balancer, const es_pick *how);

/* Puts an endpoint out until then, unless that would put out more than the share allows, rounded down, of those that
 * are not draining: then it stays in, and the answer is false. One that is out already gets the new time; a time that
 * is not to come lets it in. Needs the owner's lock. O(count).
 *
 *     3 endpoints, share 0.5: one may be out;   share 0.67: two;   1 endpoint, share 0.5: none;   share 1: one
 */
bool es_balancer_eject(es_balancer *balancer, uint32_t index, int64_t until_ns, int64_t now_ns);

/* How many are out, those that are draining not counted. O(count). */
uint32_t es_balancer_out(const es_balancer *balancer, int64_t now_ns);

/* The time at which the first of those comes back; ES_FOREVER_NS if none is out, or none comes back. O(count). */
int64_t es_balancer_soonest_ns(const es_balancer *balancer, int64_t now_ns);

#endif
