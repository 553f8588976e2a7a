/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"

#include <stdatomic.h>

#include "changes.h"
#include "cooldown.h"
#include "gate.h"
#include "outcomes.h"
#include "probes.h"

struct es_breaker {
    es_gate gate;
    es_outcomes *outcomes; /* this and the next two follow in the same allocation */
    es_changes *changes;
    es_probes *probes; /* NULL if it closes without                           */
    es_cooldown cooldown;
    int64_t changed_at_ns;
    void (*release)(void *memory);
    _Atomic uint64_t rejected; /* far from the gate: a refusal leaves the gate in other threads' caches */
    _Atomic uint64_t ignored;
};

static es_outcomes_config outcomes_of(const es_breaker_config *config) {
    return (es_outcomes_config){config->limits, config->within_ns, config->tally, config->slow_ns};
}

/* Whatever es_outcomes_bytes has not looked at. */
static bool is_sound(const es_breaker_config *config) {
    return config->reset_ns >= 0 && config->reset_factor_ppm >= ES_PPM && config->reset_max_ns >= config->reset_ns &&
           config->reset_jitter_ppm <= ES_PPM && config->probes <= ES_PROBES_MAX &&
           (config->probes == 0 || config->successes >= 1) && config->lease_ns > 0 && config->ramp_ns >= 0 &&
           config->fault_ppm <= ES_PPM;
}

static void init(es_breaker *breaker, const es_breaker_config *config, int64_t now_ns) {
    es_gate_init(&breaker->gate, config->ramp_ns, config->fault_ppm);
    atomic_init(&breaker->rejected, 0);
    atomic_init(&breaker->ignored, 0);
    breaker->cooldown = (es_cooldown){
        .reset_ns = config->reset_ns,
        .max_ns = config->reset_max_ns,
        .factor_ppm = config->reset_factor_ppm,
        .jitter_ppm = config->reset_jitter_ppm,
    };
    breaker->changed_at_ns = now_ns;
    es_cooldown_restart(&breaker->cooldown);
}

es_status es_breaker_new(es_breaker **breaker, const es_breaker_config *config, int64_t now_ns,
                         const es_allocator *allocator) {
    const es_outcomes_config outcomes = outcomes_of(config);
    size_t outcomes_bytes = es_outcomes_bytes(&outcomes);
    *breaker = NULL;
    if (outcomes_bytes == 0 || !is_sound(config))
        return ES_BAD_CONFIG;
    size_t probes_bytes = config->probes > 0 ? es_probes_bytes(config->probes) : 0;
    es_breaker *made = allocator->alloc(sizeof *made + outcomes_bytes + es_changes_bytes() + probes_bytes);
    if (made == NULL)
        return ES_NO_MEMORY;
    init(made, config, now_ns);
    made->release = allocator->free;
    made->outcomes = (void *)(made + 1);
    made->changes = (void *)((char *)made->outcomes + outcomes_bytes);
    made->probes = config->probes > 0 ? (void *)((char *)made->changes + es_changes_bytes()) : NULL;
    es_outcomes_init(made->outcomes, &outcomes);
    es_changes_init(made->changes);
    if (made->probes != NULL)
        es_probes_init(made->probes, config->probes, config->successes, config->lease_ns);
    *breaker = made;
    return ES_OK;
}

void es_breaker_free(es_breaker *breaker) {
    if (breaker != NULL)
        breaker->release(breaker);
}

bool es_breaker_is_closed(const es_breaker *breaker, uint64_t *generation) {
    return es_gate_is_closed(&breaker->gate, generation);
}

es_admission es_breaker_peek(const es_breaker *breaker, int64_t now_ns, uint64_t random_word) {
    return es_gate_peek(&breaker->gate, now_ns, random_word);
}

es_permit es_breaker_permit(const es_breaker *breaker) {
    return (es_permit){.generation = es_gate_look(&breaker->gate).generation};
}

/* Relaxed: a number to look at; it orders nothing. */
void es_breaker_refused(es_breaker *breaker) {
    atomic_fetch_add_explicit(&breaker->rejected, 1, memory_order_relaxed);
}

void es_breaker_ignored(es_breaker *breaker) {
    atomic_fetch_add_explicit(&breaker->ignored, 1, memory_order_relaxed);
}

/* What is reported to a state that holds back counts if that state turns out to have closed since. */
static bool may_have_closed(const es_breaker *breaker) {
    return breaker->probes == NULL && es_gate_until_ns(&breaker->gate) != ES_FOREVER_NS;
}

bool es_breaker_listens(const es_breaker *breaker, es_permit permit, es_outcome outcome) {
    es_gate_sight seen = es_gate_look(&breaker->gate);
    if (permit.generation != seen.generation || permit.probe != (seen.state == ES_HALF_OPEN))
        return false;
    if (permit.probe)
        return true;
    if (es_gate_holds_back(seen.state) && !may_have_closed(breaker))
        return false;
    return outcome == ES_FAILURE || (outcome == ES_SUCCESS && es_outcomes_counts_successes(breaker->outcomes));
}

static es_state state_of(const es_breaker *breaker) {
    return es_gate_look(&breaker->gate).state;
}

/* While half-open, nobody is admitted before the oldest lease ends or a probe comes back, unless another may go. */
static void follow_probes(es_breaker *breaker) {
    es_gate_hold(&breaker->gate, es_probes_until_ns(breaker->probes));
}

static int64_t not_before_last_change(const es_breaker *breaker, int64_t at_ns) {
    return at_ns > breaker->changed_at_ns ? at_ns : breaker->changed_at_ns;
}

/* The only function that changes the state. Told are where to, why, when, and how long it refuses. A thread that read
 * its clock before the last change does not put this change before that one. */
static void change_state(es_breaker *breaker, es_change change) {
    es_gate_sight before = es_gate_look(&breaker->gate);
    change.from = before.state;
    change.generation = before.generation + 1;
    change.at_ns = not_before_last_change(breaker, change.at_ns);
    change.counts = es_outcomes_look(breaker->outcomes, change.at_ns);
    es_changes_keep(breaker->changes, &change);
    breaker->changed_at_ns = change.at_ns;
    atomic_store_explicit(&breaker->rejected, 0, memory_order_relaxed);
    atomic_store_explicit(&breaker->ignored, 0, memory_order_relaxed);
    int64_t until_ns = es_add_ns(change.at_ns, change.retry_after_ns);
    if (change.to == ES_CLOSED) {
        es_outcomes_clear(breaker->outcomes);
        es_cooldown_restart(&breaker->cooldown);
    } else if (change.to == ES_HALF_OPEN) {
        es_probes_clear(breaker->probes);
        until_ns = es_probes_until_ns(breaker->probes);
    }
    if (change.to == ES_CLOSED && !change.by_hand)
        es_gate_ramp_up(&breaker->gate, change.at_ns);
    else
        es_gate_start(&breaker->gate, change.to, until_ns);
}

static void open_by_outcome(es_breaker *breaker, const es_trip *rule, int64_t now_ns, uint64_t random_word) {
    int64_t refuses_ns = es_cooldown_draw_ns(&breaker->cooldown, random_word);
    change_state(breaker, (es_change){.to = ES_OPEN, .rule = rule, .at_ns = now_ns, .retry_after_ns = refuses_ns});
}

/* The only function that lets time pass. Time ends open states, leases of probes and the ramp, each at the moment it is
 * due, whenever somebody looks. */
static void let_time_pass(es_breaker *breaker, int64_t now_ns) {
    es_state state = state_of(breaker);
    if (state == ES_HALF_OPEN) {
        es_probes_reclaim(breaker->probes, now_ns);
        follow_probes(breaker);
    } else if (es_gate_holds_back(state) && es_gate_left_ns(&breaker->gate, now_ns) == 0) {
        es_state next = breaker->probes != NULL ? ES_HALF_OPEN : ES_CLOSED;
        change_state(breaker, (es_change){.to = next, .at_ns = es_gate_until_ns(&breaker->gate)});
    }
    es_gate_end_ramp(&breaker->gate, now_ns);
}

es_admission es_breaker_admit(es_breaker *breaker, int64_t now_ns, uint64_t random_word) {
    let_time_pass(breaker, now_ns);
    es_admission admission = es_breaker_peek(breaker, now_ns, random_word);
    if (admission.answer == ES_DUE) { /* time has passed: what is left is a place for a probe */
        es_lease lease = es_probes_take(breaker->probes, now_ns);
        follow_probes(breaker);
        admission.answer = ES_ADMITTED;
        admission.permit.probe = true;
        admission.permit.row = (uint16_t)lease.row;
        admission.permit.serial = lease.serial;
    }
    return admission;
}

/* What a probe saw is counted, too, so that the change it makes is told with it. */
static void report_probe(es_breaker *breaker, es_permit permit, es_outcome outcome, int64_t duration_ns, int64_t now_ns,
                         uint64_t random_word) {
    if (!es_probes_give_back(breaker->probes, (es_lease){permit.row, permit.serial}))
        return;
    if (outcome != ES_IGNORE)
        (void)es_outcomes_record(breaker->outcomes, outcome == ES_FAILURE, duration_ns, now_ns);
    if (outcome == ES_FAILURE) {
        es_cooldown_grow(&breaker->cooldown);
        open_by_outcome(breaker, NULL, now_ns, random_word);
    } else if (outcome == ES_SUCCESS && es_probes_succeed(breaker->probes)) {
        change_state(breaker, (es_change){.to = ES_CLOSED, .at_ns = now_ns});
    } else {
        follow_probes(breaker);
    }
}

void es_breaker_report(es_breaker *breaker, es_permit permit, es_outcome outcome, int64_t duration_ns, int64_t now_ns,
                       uint64_t random_word) {
    /* Asked before time passes: the generation of an open breaker belongs to a failure reported without an admission,
     * and if the open time is over that failure is the first of the closed state that begins with it. */
    if (!es_breaker_listens(breaker, permit, outcome))
        return;
    let_time_pass(breaker, now_ns);
    if (permit.probe) {
        report_probe(breaker, permit, outcome, duration_ns, now_ns, random_word);
    } else if (!es_gate_holds_back(state_of(breaker))) {
        const es_trip *rule = es_outcomes_record(breaker->outcomes, outcome == ES_FAILURE, duration_ns, now_ns);
        if (rule != NULL && state_of(breaker) == ES_CLOSED)
            open_by_outcome(breaker, rule, now_ns, random_word);
    }
}

void es_breaker_force_open(es_breaker *breaker, int64_t until_ns, int64_t now_ns) {
    let_time_pass(breaker, now_ns);
    if (state_of(breaker) == ES_FORCED_OPEN) {
        es_gate_hold(&breaker->gate, until_ns);
        return;
    }
    now_ns = not_before_last_change(breaker, now_ns);
    int64_t refuses_ns = until_ns == ES_FOREVER_NS ? ES_FOREVER_NS : es_elapsed_ns(now_ns, until_ns);
    change_state(breaker,
                 (es_change){.to = ES_FORCED_OPEN, .by_hand = true, .at_ns = now_ns, .retry_after_ns = refuses_ns});
}

static void change_by_hand(es_breaker *breaker, es_state to, int64_t now_ns) {
    let_time_pass(breaker, now_ns);
    if (state_of(breaker) != to)
        change_state(breaker, (es_change){.to = to, .by_hand = true, .at_ns = now_ns});
}

void es_breaker_bypass(es_breaker *breaker, int64_t now_ns) {
    change_by_hand(breaker, ES_BYPASSED, now_ns);
}

void es_breaker_close(es_breaker *breaker, int64_t now_ns) {
    change_by_hand(breaker, ES_CLOSED, now_ns);
}

void es_breaker_reset(es_breaker *breaker, int64_t now_ns) {
    let_time_pass(breaker, now_ns);
    if (state_of(breaker) != ES_CLOSED) {
        es_breaker_close(breaker, now_ns);
    } else {
        es_outcomes_clear(breaker->outcomes);
        es_gate_start(&breaker->gate, ES_CLOSED, now_ns);
    }
}

bool es_breaker_is_idle(es_breaker *breaker, int64_t now_ns) {
    uint64_t generation;
    let_time_pass(breaker, now_ns);
    return es_gate_is_closed(&breaker->gate, &generation) && !es_changes_held(breaker->changes) &&
           es_outcomes_is_empty(breaker->outcomes, now_ns);
}

es_breaker_view es_breaker_look(es_breaker *breaker, int64_t now_ns) {
    let_time_pass(breaker, now_ns);
    es_gate_sight seen = es_gate_look(&breaker->gate);
    es_breaker_view view = {
        .state = seen.state,
        .generation = seen.generation,
        .counts = es_outcomes_look(breaker->outcomes, now_ns),
        .rejected = atomic_load_explicit(&breaker->rejected, memory_order_relaxed),
        .ignored = atomic_load_explicit(&breaker->ignored, memory_order_relaxed),
        .changed_at_ns = breaker->changed_at_ns,
    };
    if (es_gate_holds_back(view.state))
        view.retry_after_ns = es_gate_left_ns(&breaker->gate, now_ns);
    if (view.state == ES_HALF_OPEN)
        view.probes_out = es_probes_out(breaker->probes);
    return view;
}

bool es_breaker_has_changes(const es_breaker *breaker) {
    return es_changes_held(breaker->changes);
}

bool es_breaker_take_change(es_breaker *breaker, es_change *change) {
    return es_changes_take(breaker->changes, change);
}
