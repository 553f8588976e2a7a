/* SPDX-License-Identifier: Apache-2.0 */
/* nif.h - what the files of the NIF layer share.
 *
 * This layer knows Erlang and decides nothing: each NIF decodes its arguments, makes one call into the core, and
 * encodes the answer. Wrong terms are badarg. Everything that belongs to one load of the library lives in es_priv.
 *
 * Threads: es_priv is written by load and only read afterwards. Handles say beside their type what guards them.
 */
#ifndef ES_NIF_H
#define ES_NIF_H

#include <erl_nif.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backoff.h"
#include "breaker.h"
#include "es.h"
#include "trip.h"

/* Raise it when a handle's C layout changes: a hot upgrade under live handles of another layout is refused. */
#define ES_LAYOUT 2

/* More names than any table of the core has rows; load fails if one outgrows it. */
#define ES_NAMES_MAX 16

/* The atoms that answers and arguments are made of, as X(name). */
#define ES_ATOMS(X)                                                                                                    \
    X(ok)                                                                                                              \
    X(nil)                                                                                                             \
    X(blown)                                                                                                           \
    X(bypassed)                                                                                                        \
    X(calls)                                                                                                           \
    X(changed)                                                                                                         \
    X(changed_at)                                                                                                      \
    X(closed)                                                                                                          \
    X(consecutive)                                                                                                     \
    X(counts)                                                                                                          \
    X(decorrelated)                                                                                                    \
    X(done)                                                                                                            \
    X(due)                                                                                                             \
    X(enomem)                                                                                                          \
    X(exhausted)                                                                                                       \
    X(external_service_slot)                                                                                           \
    X(failure)                                                                                                         \
    X(failure_rate)                                                                                                    \
    X(failures)                                                                                                        \
    X(faults)                                                                                                          \
    X(first)                                                                                                           \
    X(forced_open)                                                                                                     \
    X(free)                                                                                                            \
    X(from)                                                                                                            \
    X(full)                                                                                                            \
    X(granted)                                                                                                         \
    X(half_open)                                                                                                       \
    X(ignore)                                                                                                          \
    X(ignored)                                                                                                         \
    X(infinity)                                                                                                        \
    X(kept)                                                                                                            \
    X(last)                                                                                                            \
    X(late)                                                                                                            \
    X(lease)                                                                                                           \
    X(left)                                                                                                            \
    X(min_calls)                                                                                                       \
    X(more)                                                                                                            \
    X(next)                                                                                                            \
    X(now)                                                                                                             \
    X(open)                                                                                                            \
    X(per_attempt)                                                                                                     \
    X(per_call)                                                                                                        \
    X(probes)                                                                                                          \
    X(queued)                                                                                                          \
    X(ramp_up)                                                                                                         \
    X(reason)                                                                                                          \
    X(reclaimed)                                                                                                       \
    X(refused)                                                                                                         \
    X(rejected)                                                                                                        \
    X(reset)                                                                                                           \
    X(reset_factor)                                                                                                    \
    X(reset_jitter)                                                                                                    \
    X(reset_max)                                                                                                       \
    X(retry_after)                                                                                                     \
    X(rule)                                                                                                            \
    X(slow)                                                                                                            \
    X(slow_call)                                                                                                       \
    X(slow_rate)                                                                                                       \
    X(state)                                                                                                           \
    X(success)                                                                                                         \
    X(successes)                                                                                                       \
    X(to)                                                                                                              \
    X(tolerate)                                                                                                        \
    X(wait)                                                                                                            \
    X(window_calls)                                                                                                    \
    X(window_failures)                                                                                                 \
    X(window_time)                                                                                                     \
    X(within)

typedef struct {
    unsigned layout;
    ErlNifResourceType *clock_type;
    ErlNifResourceType *breaker_type;
    ErlNifResourceType *slots_type;
    ErlNifResourceType *holder_type;
    ErlNifResourceType *limiter_type;
    ErlNifResourceType *budget_type;
    ErlNifResourceType *endpoint_type;
    ErlNifResourceType *balancer_type;
#define ES_FIELD(name) ERL_NIF_TERM name;
    struct {
        ES_ATOMS(ES_FIELD)
    } atom;
#undef ES_FIELD
    ERL_NIF_TERM boolean[2];              /* false, true: names that a macro would replace                       */
    ERL_NIF_TERM rules[ES_NAMES_MAX];     /* names of es_trip_at(0), es_trip_at(1), ...; 0 past the end          */
    ERL_NIF_TERM curves[ES_NAMES_MAX];    /* names of es_backoff_curve_at(0), ...; 0 past the end                */
    ERL_NIF_TERM balancers[ES_NAMES_MAX]; /* names of es_balancer_rule_at(0), ...; 0 past the end */
} es_priv;

/* A virtual clock: a time and a stream of random words that move only when told to. Lock-free. */
typedef struct {
    _Atomic int64_t now_ns;
    _Atomic uint64_t seed;
} es_clock;

/* The time of `clock`, or the machine's monotonic time if it is NULL. */
int64_t es_clock_now(es_clock *clock);

/* The next random word of `clock`, or of the calling thread if it is NULL. */
uint64_t es_clock_random(es_clock *clock);

/* Getters: true and the value, or false. They change nothing but `value`. */
bool es_get_clock(ErlNifEnv *env, ERL_NIF_TERM term, es_clock **clock); /* nil gives NULL */
bool es_get_ns(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *value);
bool es_get_ns_or_infinity(ErlNifEnv *env, ERL_NIF_TERM term, int64_t *value);
bool es_get_count(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *value);
bool es_get_u32(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *value);

/* The delays of a list, and of no other curve, are copied to `steps_ns`, where the schedule finds them. */
bool es_get_backoff(ErlNifEnv *env, ERL_NIF_TERM term, es_backoff *backoff, int64_t steps_ns[ES_BACKOFF_STEPS_MAX]);

ERL_NIF_TERM es_make_ns_or_infinity(ErlNifEnv *env, int64_t ns);

/* A list of the names in `names`, up to the first 0. */
ERL_NIF_TERM es_make_names(ErlNifEnv *env, const ERL_NIF_TERM names[ES_NAMES_MAX]);

/* The one place where a failure of the core becomes an exception. */
ERL_NIF_TERM es_raise(ErlNifEnv *env, es_status status);

/* Makes a handle's lock. It is held for some ten nanoseconds, so who finds it taken spins for a moment before it
 * sleeps, where the system can do that. */
void es_lock_init(pthread_mutex_t *lock);

/* What the core's objects are allocated with. */
extern const es_allocator es_enif_allocator;

/* Opens the resource types of one file. False if the VM refuses. */
bool es_clock_open(ErlNifEnv *env, es_priv *priv);
bool es_breaker_open(ErlNifEnv *env, es_priv *priv);
bool es_bulkhead_open(ErlNifEnv *env, es_priv *priv);
bool es_limiter_open(ErlNifEnv *env, es_priv *priv);
bool es_endpoint_open(ErlNifEnv *env, es_priv *priv);
bool es_balancer_open(ErlNifEnv *env, es_priv *priv);
bool es_budget_open(ErlNifEnv *env, es_priv *priv);

/* The NIFs, by file, under the names of their stubs in ExternalService.Native. */
#define ES_NIF(name) ERL_NIF_TERM name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])

ES_NIF(clock_new);
ES_NIF(clock_now);
ES_NIF(clock_advance);
ES_NIF(clock_wait_until);

ES_NIF(breaker_new);
ES_NIF(breaker_admit);
ES_NIF(breaker_ask);
ES_NIF(breaker_report);
ES_NIF(breaker_melt);
ES_NIF(breaker_look);
ES_NIF(breaker_idle);
ES_NIF(breaker_change);
ES_NIF(breaker_open);
ES_NIF(breaker_bypass);
ES_NIF(breaker_close);
ES_NIF(breaker_reset);
ES_NIF(breaker_inherit);
ES_NIF(breaker_retire);

ES_NIF(bulkhead_new);
ES_NIF(bulkhead_acquire);
ES_NIF(bulkhead_release);
ES_NIF(bulkhead_leave);
ES_NIF(bulkhead_grant);
ES_NIF(bulkhead_reset);
ES_NIF(bulkhead_set);
ES_NIF(bulkhead_counts);
ES_NIF(holder_new);

ES_NIF(limiter_new);
ES_NIF(limiter_reserve);
ES_NIF(limiter_peek);
ES_NIF(limiter_give_back);
ES_NIF(limiter_reset);
ES_NIF(limiter_set);

ES_NIF(endpoint_new);
ES_NIF(endpoint_took);
ES_NIF(endpoint_let_in);
ES_NIF(endpoint_drain);
ES_NIF(endpoint_look);

ES_NIF(balancer_new);
ES_NIF(balancer_pick);
ES_NIF(balancer_eject);
ES_NIF(balancer_soonest);
ES_NIF(balancer_rules);

ES_NIF(budget_new);
ES_NIF(budget_deposit);
ES_NIF(budget_withdraw);
ES_NIF(budget_balance);

ES_NIF(backoff_next);
ES_NIF(backoff_after);
ES_NIF(backoff_plan);
ES_NIF(backoff_window);
ES_NIF(backoff_curves);
ES_NIF(trip_within);
ES_NIF(trip_narrowest);
ES_NIF(trip_names);

#endif
