/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <assert.h>
#include <stdatomic.h>

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long long) == sizeof(int64_t),
              "endpoints are counted without a lock: 64-bit atomics have to be lock-free");

/* Each field is a fact of its own that leads to no other memory, so that all accesses are relaxed: who reads one late
 * picks as if a moment ago. */
struct es_endpoint {
    _Atomic int64_t out_until_ns;
    _Atomic int64_t latency_ns;
    _Atomic uint32_t in_flight;
    _Atomic bool draining;
    void (*release)(void *memory);
};

es_status es_endpoint_new(es_endpoint **endpoint, const es_allocator *allocator) {
    es_endpoint *made = allocator->alloc(sizeof *made);
    *endpoint = made;
    if (made == NULL)
        return ES_NO_MEMORY;
    atomic_init(&made->out_until_ns, INT64_MIN);
    atomic_init(&made->latency_ns, ES_UNKNOWN_NS);
    atomic_init(&made->in_flight, 0);
    atomic_init(&made->draining, false);
    made->release = allocator->free;
    return ES_OK;
}

void es_endpoint_free(es_endpoint *endpoint) {
    if (endpoint != NULL)
        endpoint->release(endpoint);
}

void es_endpoint_begin(es_endpoint *endpoint) {
    atomic_fetch_add_explicit(&endpoint->in_flight, 1, memory_order_relaxed);
}

/* Exchanged, not subtracted: below zero would be four billion calls in flight. */
static void count_down(es_endpoint *endpoint) {
    uint32_t in_flight = es_endpoint_in_flight(endpoint);
    while (in_flight > 0 && !atomic_compare_exchange_weak_explicit(&endpoint->in_flight, &in_flight, in_flight - 1,
                                                                   memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Both are at least 0, so that their difference fits. */
static int64_t averaged_ns(int64_t average_ns, int64_t duration_ns) {
    return average_ns == ES_UNKNOWN_NS ? duration_ns : average_ns + (duration_ns - average_ns) / 8;
}

void es_endpoint_took(es_endpoint *endpoint, int64_t duration_ns) {
    int64_t seen_ns = es_endpoint_latency_ns(endpoint);
    while (duration_ns >= 0 &&
           !atomic_compare_exchange_weak_explicit(&endpoint->latency_ns, &seen_ns, averaged_ns(seen_ns, duration_ns),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void es_endpoint_end(es_endpoint *endpoint, int64_t duration_ns) {
    count_down(endpoint);
    es_endpoint_took(endpoint, duration_ns);
}

uint32_t es_endpoint_in_flight(const es_endpoint *endpoint) {
    return atomic_load_explicit(&endpoint->in_flight, memory_order_relaxed);
}

int64_t es_endpoint_latency_ns(const es_endpoint *endpoint) {
    return atomic_load_explicit(&endpoint->latency_ns, memory_order_relaxed);
}

void es_endpoint_put_out(es_endpoint *endpoint, int64_t until_ns) {
    atomic_store_explicit(&endpoint->out_until_ns, until_ns, memory_order_relaxed);
}

void es_endpoint_let_in(es_endpoint *endpoint) {
    es_endpoint_put_out(endpoint, INT64_MIN);
}

int64_t es_endpoint_out_until_ns(const es_endpoint *endpoint) {
    return atomic_load_explicit(&endpoint->out_until_ns, memory_order_relaxed);
}

bool es_endpoint_is_out(const es_endpoint *endpoint, int64_t now_ns) {
    return es_endpoint_out_until_ns(endpoint) > now_ns;
}

void es_endpoint_drain(es_endpoint *endpoint, bool draining) {
    atomic_store_explicit(&endpoint->draining, draining, memory_order_relaxed);
}

bool es_endpoint_is_draining(const es_endpoint *endpoint) {
    return atomic_load_explicit(&endpoint->draining, memory_order_relaxed);
}

bool es_endpoint_is_in(const es_endpoint *endpoint, int64_t now_ns) {
    return !es_endpoint_is_out(endpoint, now_ns) && !es_endpoint_is_draining(endpoint);
}
