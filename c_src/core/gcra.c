/* SPDX-License-Identifier: Apache-2.0 */
#include "gcra.h"

#include <assert.h>
#include <stdatomic.h>

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(long long) == sizeof(uint64_t),
              "calls are admitted without a lock: 64-bit atomics have to be lock-free");

/* The word is the time in ticks at which everything taken is refilled, over the generation of the pace it is counted
 * in. Of generations the last two bits are kept: to be misled, a thread would have to stand still between two loads
 * while the limit is changed four times, or a multiple of it. Ticks start at the pace's origin. Sizes: a burst is below
 * 2 * ES_GCRA_PER_MAX_NS = 2^61, a time at most 2^61, the refilled time at most their sum: 62 bits, and no sum of three
 * of these overflows. */
#define GENERATION_BITS 2
#define GENERATIONS UINT64_C(3)
#define TICKS_MAX (UINT64_C(1) << 61)

/* How limit calls in per_ns are counted: a call costs `interval` ticks, and limit * interval ticks are per_ns exactly.
 */
typedef struct {
    uint64_t limit; /* 1 if no call is ever to go */
    uint64_t cost_max;
    uint64_t interval;
    uint64_t per_ns;
    int64_t origin_ns;
} es_pace;

typedef struct {
    _Atomic uint64_t limit, cost_max, interval, per_ns;
    _Atomic int64_t origin_ns;
} es_shared_pace;

struct es_gcra {
    _Atomic uint64_t word;
    es_shared_pace paces[2]; /* the generation's lowest bit says which is in force */
    void (*release)(void *memory);
};

/* The limiter at one moment. */
typedef struct {
    uint64_t word;
    uint64_t refilled; /* from the word                       */
    uint64_t now;      /* in ticks of the pace                */
    uint64_t burst;    /* ticks in per_ns                     */
    es_pace pace;
} moment;

__extension__ typedef unsigned __int128 wide;

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* a - b, or 0. */
static uint64_t above(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* amount * numerator / denominator, rounded up. */
static uint64_t share_up(uint64_t amount, uint64_t numerator, uint64_t denominator) {
    return (uint64_t)(((wide)amount * numerator + denominator - 1) / denominator);
}

/* The tick that has begun `time_ns` after the origin. Only the part by which ticks outnumber nanoseconds is multiplied:
 * none at all where the limit divides per_ns. */
static uint64_t ticks_after(const es_pace *pace, int64_t time_ns) {
    uint64_t ticks = (uint64_t)time_ns, more = pace->limit * pace->interval - pace->per_ns;
    if (more > 0)
        ticks += (uint64_t)((wide)ticks * more / pace->per_ns);
    return ticks < TICKS_MAX ? ticks : TICKS_MAX;
}

/* The first nanosecond at which this tick has begun, ES_FOREVER_NS if the clock does not reach it. */
static int64_t time_of(const es_pace *pace, uint64_t tick) {
    uint64_t burst = pace->limit * pace->interval;
    uint64_t after_ns = burst == pace->per_ns ? tick : share_up(tick, pace->per_ns, burst);
    return tick > TICKS_MAX ? ES_FOREVER_NS : es_add_ns(pace->origin_ns, (int64_t)after_ns);
}

static es_pace pace_from(const es_gcra_config *config, int64_t origin_ns) {
    uint64_t per_ns = (uint64_t)config->per_ns;
    uint64_t limit = config->limit > 0 ? config->limit : 1;
    return (es_pace){limit, config->limit, (per_ns - 1) / limit + 1, per_ns, origin_ns};
}

static bool is_sound(const es_gcra_config *config) {
    return config->per_ns > 0 && config->per_ns <= ES_GCRA_PER_MAX_NS && config->limit <= (uint64_t)config->per_ns;
}

/* Release, and acquire in read_pace: whoever reads one of these values also sees every word from before it was stored,
 * so that it finds out that this pace is no longer, or not yet, the one of the word it has read. */
static void write_pace(es_shared_pace *shared, es_pace pace) {
    atomic_store_explicit(&shared->limit, pace.limit, memory_order_release);
    atomic_store_explicit(&shared->cost_max, pace.cost_max, memory_order_release);
    atomic_store_explicit(&shared->interval, pace.interval, memory_order_release);
    atomic_store_explicit(&shared->per_ns, pace.per_ns, memory_order_release);
    atomic_store_explicit(&shared->origin_ns, pace.origin_ns, memory_order_release);
}

static es_pace read_pace(const es_shared_pace *shared) {
    return (es_pace){
        .limit = atomic_load_explicit(&shared->limit, memory_order_acquire),
        .cost_max = atomic_load_explicit(&shared->cost_max, memory_order_acquire),
        .interval = atomic_load_explicit(&shared->interval, memory_order_acquire),
        .per_ns = atomic_load_explicit(&shared->per_ns, memory_order_acquire),
        .origin_ns = atomic_load_explicit(&shared->origin_ns, memory_order_acquire),
    };
}

es_status es_gcra_new(es_gcra **gcra, const es_gcra_config *config, int64_t now_ns, const es_allocator *allocator) {
    *gcra = NULL;
    if (!is_sound(config))
        return ES_BAD_CONFIG;
    es_gcra *made = allocator->alloc(sizeof *made);
    if (made == NULL)
        return ES_NO_MEMORY;
    atomic_init(&made->word, 0);
    write_pace(&made->paces[0], pace_from(config, now_ns));
    write_pace(&made->paces[1], pace_from(config, now_ns));
    made->release = allocator->free;
    *gcra = made;
    return ES_OK;
}

void es_gcra_free(es_gcra *gcra) {
    if (gcra != NULL)
        gcra->release(gcra);
}

/* Acquire: whoever sees a word sees the pace that was stored before the word's generation began. The second load asks
 * whether the pace was replaced while it was read; it needs no order of its own, it comes after the acquiring loads of
 * the pace. */
static moment look(const es_gcra *gcra, int64_t now_ns) {
    moment seen;
    uint64_t word;
    do {
        seen.word = atomic_load_explicit(&gcra->word, memory_order_acquire);
        seen.pace = read_pace(&gcra->paces[seen.word & 1]);
        word = atomic_load_explicit(&gcra->word, memory_order_relaxed);
    } while (((word ^ seen.word) & GENERATIONS) != 0);
    seen.refilled = seen.word >> GENERATION_BITS;
    seen.burst = seen.pace.limit * seen.pace.interval;
    seen.now = ticks_after(&seen.pace, es_elapsed_ns(seen.pace.origin_ns, now_ns));
    return seen;
}

static uint64_t word_of(uint64_t ticks, uint64_t generation) {
    return ticks << GENERATION_BITS | (generation & GENERATIONS);
}

/* Release: the pace stored before is seen by whoever sees the new word. Taking a call would need no order, its word
 * says all there is. Relaxed where it fails: the moment is looked at anew. */
static bool replace(es_gcra *gcra, moment *seen, uint64_t word) {
    return atomic_compare_exchange_weak_explicit(&gcra->word, &seen->word, word, memory_order_release,
                                                 memory_order_relaxed);
}

/* The one rule. `refilled` becomes the word's new time if the call goes. */
static es_gcra_turn judge(const moment *seen, int64_t now_ns, uint64_t cost, int64_t wait_max_ns, uint64_t *refilled) {
    if (cost > seen->pace.cost_max)
        return (es_gcra_turn){ES_TOO_COSTLY, ES_FOREVER_NS, 0};
    *refilled = most(seen->refilled, seen->now) + cost * seen->pace.interval;
    uint64_t due = above(*refilled, seen->burst);
    if (due <= seen->now)
        return (es_gcra_turn){ES_GO, 0, word_of(seen->now, seen->word)};
    int64_t at_ns = time_of(&seen->pace, due);
    int64_t wait_ns = at_ns == ES_FOREVER_NS ? ES_FOREVER_NS : es_elapsed_ns(now_ns, at_ns);
    if (wait_ns == ES_FOREVER_NS || wait_ns > wait_max_ns)
        return (es_gcra_turn){ES_LIMITED, wait_ns, 0};
    return (es_gcra_turn){ES_GO_LATER, wait_ns, word_of(due, seen->word)};
}

es_gcra_turn es_gcra_reserve(es_gcra *gcra, int64_t now_ns, uint64_t cost, int64_t wait_max_ns) {
    moment seen;
    es_gcra_turn turn;
    uint64_t refilled;
    do {
        seen = look(gcra, now_ns);
        turn = judge(&seen, now_ns, cost, wait_max_ns, &refilled);
        if (turn.answer != ES_GO && turn.answer != ES_GO_LATER)
            return turn;
    } while (!replace(gcra, &seen, word_of(refilled, seen.word)));
    return turn;
}

es_gcra_turn es_gcra_admit(es_gcra *gcra, int64_t now_ns, uint64_t cost) {
    return es_gcra_reserve(gcra, now_ns, cost, 0);
}

es_gcra_turn es_gcra_peek(const es_gcra *gcra, int64_t now_ns, uint64_t cost) {
    uint64_t refilled;
    moment seen = look(gcra, now_ns);
    es_gcra_turn turn = judge(&seen, now_ns, cost, 0, &refilled);
    turn.place = 0;
    return turn;
}

/* How many of `taken` ticks, taken for a call at tick `at`, can be put back.
 *
 * While places are booked ahead, all or nothing: the last one leaves no trace, a gap before it can not be closed, since
 * whoever booked behind goes at the time it was told. Else what was refilled since then is there already: putting it
 * back once more would let a burst go that is larger by this call. */
static uint64_t to_put_back(const moment *seen, uint64_t taken, uint64_t at) {
    uint64_t last = above(seen->refilled, seen->burst);
    if (last > seen->now)
        return at == last ? taken : 0;
    return above(taken, above(seen->now, at));
}

void es_gcra_give_back(es_gcra *gcra, int64_t now_ns, uint64_t cost, uint64_t place) {
    moment seen;
    uint64_t back;
    do {
        seen = look(gcra, now_ns);
        if (((place ^ seen.word) & GENERATIONS) != 0 || cost > seen.pace.cost_max)
            return;
        back = to_put_back(&seen, cost * seen.pace.interval, place >> GENERATION_BITS);
        if (back == 0)
            return;
    } while (!replace(gcra, &seen, word_of(above(seen.refilled, back), seen.word)));
}

/* What a new pace, which begins now, starts with. */
static uint64_t carried_over(const moment *seen, const es_pace *next) {
    uint64_t used = above(seen->refilled, seen->now), burst = next->limit * next->interval;
    if (used <= seen->burst)
        return share_up(used, burst, seen->burst);
    int64_t last_ns = time_of(&seen->pace, seen->refilled - seen->burst);
    return ticks_after(next, es_elapsed_ns(next->origin_ns, last_ns)) + burst;
}

/* Another pace, in the place that is not in force: a reader still busy there finds the generation changed. */
static void start_pace(es_gcra *gcra, es_pace next, bool carry) {
    moment seen;
    uint64_t refilled;
    do {
        seen = look(gcra, next.origin_ns);
        refilled = carry ? carried_over(&seen, &next) : 0;
        write_pace(&gcra->paces[(seen.word + 1) & 1], next);
    } while (!replace(gcra, &seen, word_of(refilled, seen.word + 1)));
}

void es_gcra_reset(es_gcra *gcra, int64_t now_ns) {
    es_pace same = look(gcra, now_ns).pace;
    same.origin_ns = now_ns;
    start_pace(gcra, same, false);
}

es_status es_gcra_reconfigure(es_gcra *gcra, const es_gcra_config *config, int64_t now_ns) {
    if (!is_sound(config))
        return ES_BAD_CONFIG;
    start_pace(gcra, pace_from(config, now_ns), true);
    return ES_OK;
}
