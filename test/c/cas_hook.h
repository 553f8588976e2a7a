/* SPDX-License-Identifier: Apache-2.0 */
/* cas_hook.h - what if the word changes between the reading and the exchange?
 *
 * Included by the compiler ahead of every file of the test build (-include): each weak compare and exchange first calls
 * cas_hook, if it is set. That function may do what another thread could have done in that moment; if it answers true
 * the exchange fails although nothing changed, as a weak one may. It is set while one thread runs only.
 */
#ifndef ES_TEST_CAS_HOOK_H
#define ES_TEST_CAS_HOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

extern bool (*cas_hook)(void);

static inline bool cas_hook_fails(void) {
    return cas_hook != NULL && cas_hook();
}

/* The strong exchange in place of the weak one: it fails only if the hook or another thread makes it. */
#undef atomic_compare_exchange_weak_explicit
#define atomic_compare_exchange_weak_explicit(object, expected, desired, success, failure)                             \
    (cas_hook_fails() ? (*(expected) = atomic_load_explicit(object, failure), false)                                   \
                      : atomic_compare_exchange_strong_explicit(object, expected, desired, success, failure))

#endif
