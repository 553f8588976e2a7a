/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"

#include <assert.h>
#include <stdatomic.h>

#include "window.h"

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long long) == sizeof(uint64_t),
              "a breaker is asked without a lock: 64-bit atomics have to be lock-free");

#define CHANGES_KEPT 4

/* The word is the generation, shifted up, over a byte of flags. A byte of zero is a closed breaker that refuses
 * nothing, so the fast path looks at nothing else. */
#define GENERATION_SHIFT 8
#define FLAGS UINT64_C(0xff)
#define OPEN_FLAG UINT64_C(1)
#define FAULT_FLAG UINT64_C(2)

struct es_breaker {
    _Atomic uint64_t word;
    _Atomic int64_t open_until_ns; /* means something while OPEN_FLAG is set                  */
    _Atomic uint32_t changes_held;
    uint32_t changes_first; /* index of the oldest change held                         */
    es_change changes[CHANGES_KEPT];
    int64_t changed_at_ns;
    int64_t reset_ns;
    es_trip_limits limits;
    uint32_t fault_ppm;
    void (*release)(void *memory);
    es_window *window; /* follows this struct in the same allocation              */
};

static bool is_sound(const es_breaker_config *config) {
    return config->limits.tolerate <= ES_TOLERATE_MAX && config->within_ns > 0 && config->reset_ns >= 0 &&
           config->fault_ppm <= ES_PPM;
}

es_status es_breaker_new(es_breaker **breaker, const es_breaker_config *config, int64_t now_ns,
                         const es_allocator *allocator) {
    *breaker = NULL;
    if (!is_sound(config))
        return ES_BAD_CONFIG;
    uint32_t capacity = config->limits.tolerate + 1;
    es_breaker *made = allocator->alloc(sizeof *made + es_window_bytes(capacity));
    if (made == NULL)
        return ES_NO_MEMORY;
    atomic_init(&made->word, config->fault_ppm > 0 ? FAULT_FLAG : 0);
    atomic_init(&made->open_until_ns, now_ns);
    atomic_init(&made->changes_held, 0);
    made->changes_first = 0;
    made->changed_at_ns = now_ns;
    made->reset_ns = config->reset_ns;
    made->limits = config->limits;
    made->fault_ppm = config->fault_ppm;
    made->release = allocator->free;
    made->window = (void *)(made + 1);
    es_window_init(made->window, capacity, config->within_ns);
    *breaker = made;
    return ES_OK;
}

void es_breaker_free(es_breaker *breaker) {
    if (breaker != NULL)
        breaker->release(breaker);
}

/* Acquire: a reader that sees a breaker open also sees the time that was stored before the word that says so. */
static uint64_t read_word(const es_breaker *breaker) {
    return atomic_load_explicit(&breaker->word, memory_order_acquire);
}

static uint64_t generation_in(uint64_t word) {
    return word >> GENERATION_SHIFT;
}

static es_state state_in(uint64_t word) {
    return (word & OPEN_FLAG) != 0 ? ES_OPEN : ES_CLOSED;
}

/* Read after the word. It may belong to a later opening than the word did; that opening is as true an answer. Relaxed:
 * the acquire load of the word has ordered it, and nothing else hangs on it. */
static int64_t still_open_ns(const es_breaker *breaker, int64_t now_ns) {
    int64_t until_ns = atomic_load_explicit(&breaker->open_until_ns, memory_order_relaxed);
    return until_ns == ES_FOREVER_NS ? ES_FOREVER_NS : es_elapsed_ns(now_ns, until_ns);
}

bool es_breaker_is_closed(const es_breaker *breaker, uint64_t *generation) {
    uint64_t word = read_word(breaker);
    *generation = generation_in(word);
    return (word & FLAGS) == 0;
}

uint64_t es_breaker_generation(const es_breaker *breaker) {
    return generation_in(read_word(breaker));
}

bool es_breaker_listens(const es_breaker *breaker, uint64_t generation) {
    return generation == es_breaker_generation(breaker);
}

es_admission es_breaker_peek(const es_breaker *breaker, int64_t now_ns, uint64_t random_word) {
    uint64_t word = read_word(breaker);
    es_admission admission = {ES_ADMITTED, generation_in(word), 0};
    if (state_in(word) == ES_OPEN) {
        admission.retry_after_ns = still_open_ns(breaker, now_ns);
        admission.answer = admission.retry_after_ns > 0 ? ES_REFUSED : ES_DUE;
    } else if (es_random_hit(random_word, breaker->fault_ppm)) {
        admission.answer = ES_REFUSED;
    }
    return admission;
}

/* Release: the open time stored before the word is seen by every reader of the word. A reader between the two stores
 * either has the word of a closed breaker and does not look at the time, or finds an open time that is over and takes
 * the lock. */
static void start_generation(es_breaker *breaker, es_state state, int64_t open_until_ns) {
    uint64_t word = read_word(breaker);
    uint64_t flags = (word & FAULT_FLAG) | (state == ES_OPEN ? OPEN_FLAG : 0);
    atomic_store_explicit(&breaker->open_until_ns, open_until_ns, memory_order_relaxed);
    atomic_store_explicit(&breaker->word, (generation_in(word) + 1) << GENERATION_SHIFT | flags, memory_order_release);
}

/* The changes themselves are touched under the owner's lock only. Relaxed: the number is a hint to take that lock, and
 * orders nothing. */
static uint32_t changes_held(const es_breaker *breaker) {
    return atomic_load_explicit(&breaker->changes_held, memory_order_relaxed);
}

static void hold_changes(es_breaker *breaker, uint32_t held) {
    atomic_store_explicit(&breaker->changes_held, held, memory_order_relaxed);
}

static es_change *change_number(es_breaker *breaker, uint32_t number) {
    return &breaker->changes[(breaker->changes_first + number) % CHANGES_KEPT];
}

static void keep_change(es_breaker *breaker, es_change change) {
    uint32_t held = changes_held(breaker);
    if (held == CHANGES_KEPT) {
        held--;
        change.from = change_number(breaker, held)->from;
    }
    if (change.from != change.to) { /* there and back again is no change */
        *change_number(breaker, held) = change;
        held++;
    }
    hold_changes(breaker, held);
}

/* The only function that changes the state. A thread that read its clock before the last change does not put this
 * change before that one. */
static void change_state(es_breaker *breaker, es_state to, const es_trip *rule, uint32_t failures, int64_t at_ns) {
    es_state from = state_in(read_word(breaker));
    if (at_ns < breaker->changed_at_ns)
        at_ns = breaker->changed_at_ns;
    int64_t refuses_ns = to == ES_OPEN ? breaker->reset_ns : 0;
    if (to == ES_CLOSED)
        es_window_clear(breaker->window);
    breaker->changed_at_ns = at_ns;
    keep_change(breaker, (es_change){from, to, rule, failures, at_ns, refuses_ns});
    start_generation(breaker, to, es_add_ns(at_ns, refuses_ns));
}

/* The only function that lets time pass: the breaker closed when its open time was over, whenever somebody looks. */
static void let_time_pass(es_breaker *breaker, int64_t now_ns) {
    if (state_in(read_word(breaker)) == ES_CLOSED || still_open_ns(breaker, now_ns) > 0)
        return;
    int64_t due_ns = es_add_ns(breaker->changed_at_ns, breaker->reset_ns);
    change_state(breaker, ES_CLOSED, NULL, es_window_count(breaker->window, due_ns), due_ns);
}

es_admission es_breaker_admit(es_breaker *breaker, int64_t now_ns, uint64_t random_word) {
    let_time_pass(breaker, now_ns);
    return es_breaker_peek(breaker, now_ns, random_word);
}

void es_breaker_report(es_breaker *breaker, uint64_t generation, es_outcome outcome, int64_t now_ns) {
    /* Asked before time passes: the generation of an open breaker belongs to a failure reported without an admission,
     * and if the open time is over that failure is the first of the closed state that begins with it. */
    if (outcome != ES_FAILURE || !es_breaker_listens(breaker, generation))
        return;
    let_time_pass(breaker, now_ns);
    if (state_in(read_word(breaker)) == ES_OPEN)
        return;
    es_counts counts = {.failures = es_window_record(breaker->window, now_ns)};
    const es_trip *rule = es_trip_first(&counts, &breaker->limits);
    if (rule != NULL)
        change_state(breaker, ES_OPEN, rule, counts.failures, now_ns);
}

void es_breaker_reset(es_breaker *breaker, int64_t now_ns) {
    let_time_pass(breaker, now_ns);
    if (state_in(read_word(breaker)) == ES_OPEN) {
        change_state(breaker, ES_CLOSED, NULL, es_window_count(breaker->window, now_ns), now_ns);
    } else {
        es_window_clear(breaker->window);
        start_generation(breaker, ES_CLOSED, now_ns);
    }
}

es_breaker_view es_breaker_look(es_breaker *breaker, int64_t now_ns) {
    let_time_pass(breaker, now_ns);
    uint64_t word = read_word(breaker);
    es_breaker_view view = {
        .state = state_in(word),
        .generation = generation_in(word),
        .failures = es_window_count(breaker->window, now_ns),
        .changed_at_ns = breaker->changed_at_ns,
    };
    if (view.state == ES_OPEN)
        view.retry_after_ns = still_open_ns(breaker, now_ns);
    return view;
}

bool es_breaker_has_changes(const es_breaker *breaker) {
    return changes_held(breaker) > 0;
}

bool es_breaker_take_change(es_breaker *breaker, es_change *change) {
    uint32_t held = changes_held(breaker);
    if (held == 0)
        return false;
    *change = *change_number(breaker, 0);
    breaker->changes_first = (breaker->changes_first + 1) % CHANGES_KEPT;
    hold_changes(breaker, held - 1);
    return true;
}
