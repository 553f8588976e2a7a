/* SPDX-License-Identifier: Apache-2.0 */
#include "probes.h"

struct es_probes {
    uint32_t at_once;   /* may be out at once          */
    uint32_t successes; /* have to succeed             */
    uint32_t succeeded; /* have succeeded              */
    uint32_t out;
    es_leases *leases; /* follows in the same memory  */
};

size_t es_probes_bytes(uint32_t at_once) {
    return sizeof(es_probes) + es_leases_bytes(at_once);
}

void es_probes_init(es_probes *probes, uint32_t at_once, uint32_t successes, int64_t lease_ns) {
    *probes = (es_probes){.at_once = at_once, .successes = successes, .leases = (void *)(probes + 1)};
    es_leases_init(probes->leases, at_once, lease_ns);
}

void es_probes_clear(es_probes *probes) {
    probes->succeeded = 0;
    probes->out = 0;
    es_leases_clear(probes->leases);
}

void es_probes_reclaim(es_probes *probes, int64_t now_ns) {
    while (es_leases_reclaim(probes->leases, now_ns))
        probes->out--;
}

/* As long as fewer have succeeded than have to, both bounds are met only while a probe is out. */
int64_t es_probes_until_ns(const es_probes *probes) {
    uint32_t most = probes->at_once > probes->successes ? probes->at_once : probes->successes;
    bool may_go = probes->out < probes->at_once && probes->out < most - probes->succeeded;
    return may_go ? INT64_MIN : es_leases_end_ns(probes->leases);
}

es_lease es_probes_take(es_probes *probes, int64_t now_ns) {
    probes->out++;
    return es_leases_take(probes->leases, now_ns);
}

bool es_probes_give_back(es_probes *probes, es_lease lease) {
    if (!es_leases_give_back(probes->leases, lease))
        return false;
    probes->out--;
    return true;
}

bool es_probes_succeed(es_probes *probes) {
    probes->succeeded++;
    return probes->succeeded >= probes->successes;
}

uint32_t es_probes_out(const es_probes *probes) {
    return probes->out;
}
