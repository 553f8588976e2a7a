/* SPDX-License-Identifier: Apache-2.0 */
#include "cooldown.h"

void es_cooldown_restart(es_cooldown *cooldown) {
    cooldown->last_ns = cooldown->reset_ns;
}

void es_cooldown_grow(es_cooldown *cooldown) {
    int64_t grown_ns = es_share_ns(cooldown->last_ns, cooldown->factor_ppm);
    cooldown->last_ns = grown_ns < cooldown->max_ns ? grown_ns : cooldown->max_ns;
}

int64_t es_cooldown_draw_ns(const es_cooldown *cooldown, uint64_t random_word) {
    if (cooldown->last_ns == ES_FOREVER_NS) /* a part of for ever would be an end */
        return ES_FOREVER_NS;
    return es_spread_ns(cooldown->last_ns, cooldown->jitter_ppm, cooldown->max_ns, random_word);
}
