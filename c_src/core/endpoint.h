/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - what is known of one endpoint?
 *
 * How many calls it has in flight, how long its calls take, until when it is out, and whether it is draining. That is
 * kept apart from the tables it stands in, so that an endpoint that stays in a new list keeps what is known of it.
 *
 * Out is for a while: at the time it was given, an endpoint is in again, without a timer. Draining is for good: calls
 * in flight go on, no new one is sent there, until it is told otherwise.
 *
 * The latency is an exponentially weighted average: each call that ended moves it an eighth of the way to its own
 * duration, the first one all the way.
 *
 *     calls of 8, 16 and 8 ms:   8 ms, 9 ms, 8.875 ms
 *
 * Memory: es_endpoint_new makes one allocation, es_endpoint_free gives it back; the owner keeps an endpoint for as long
 * as a table points to it or a call is in flight.
 * Threads: any, at any time, without a lock.
 * Units: nanoseconds, monotonic. Failure: only es_endpoint_new.
 */
#ifndef ES_ENDPOINT_H
#define ES_ENDPOINT_H

#include "es.h"

#define ES_UNKNOWN_NS INT64_C(-1) /* a duration that nobody measured */

typedef struct es_endpoint es_endpoint;

/* An endpoint as it stands in a table. */
typedef struct {
    es_endpoint *endpoint; /* not owned                                                     */
    uint64_t id;           /* stays the same from list to list: keys keep to it             */
    uint32_t weight;       /* its share of the calls is its share of all weights, 1 to 1000 */
} es_member;

#define ES_WEIGHT_MAX UINT32_C(1000)
#define ES_MEMBERS_MAX UINT32_C(65536)

/* Makes an endpoint that is in, idle and of unknown latency. */
ES_NODISCARD es_status es_endpoint_new(es_endpoint **endpoint, const es_allocator *allocator);
/* NULL is allowed. */
void es_endpoint_free(es_endpoint *endpoint);

/* A call goes there. */
void es_endpoint_begin(es_endpoint *endpoint);

/* It ended, and took `duration_ns`; ES_UNKNOWN_NS, or anything negative, leaves the average as it is. Without a call in
 * flight nothing is counted down. */
void es_endpoint_end(es_endpoint *endpoint, int64_t duration_ns);

/* Tells how long a call took whose end is, or was, told apart from this. */
void es_endpoint_took(es_endpoint *endpoint, int64_t duration_ns);

uint32_t es_endpoint_in_flight(const es_endpoint *endpoint);

/* ES_UNKNOWN_NS until a call has ended with a known duration. */
int64_t es_endpoint_latency_ns(const es_endpoint *endpoint);

/* Puts it out until that time, ES_FOREVER_NS for no end, whatever was said before. Most callers want es_balancer_eject,
 * which keeps some of a table in. */
void es_endpoint_put_out(es_endpoint *endpoint, int64_t until_ns);

/* Ends that. It may drain still. */
void es_endpoint_let_in(es_endpoint *endpoint);

bool es_endpoint_is_out(const es_endpoint *endpoint, int64_t now_ns);

/* Until when it is out, or was: a time that may be over, INT64_MIN for never. */
int64_t es_endpoint_out_until_ns(const es_endpoint *endpoint);

void es_endpoint_drain(es_endpoint *endpoint, bool draining);
bool es_endpoint_is_draining(const es_endpoint *endpoint);

/* May new calls go there? Neither out nor draining. */
bool es_endpoint_is_in(const es_endpoint *endpoint, int64_t now_ns);

#endif
