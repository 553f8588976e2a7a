/* SPDX-License-Identifier: Apache-2.0 */
/* tally_support.h - what the tally's tests share. */
#ifndef ES_TEST_TALLY_SUPPORT_H
#define ES_TEST_TALLY_SUPPORT_H

#include "support.h"
#include "tally.h"

static inline es_tally *tally_of(es_tally_config config) {
    size_t bytes = es_tally_bytes(&config);
    assert_true(bytes > 0);
    es_tally *tally = malloc(bytes);
    assert_non_null(tally);
    memset(tally, 0xa5, bytes);
    es_tally_init(tally, &config);
    return tally;
}

static inline void assert_same(es_tally_counts seen, es_tally_counts expected) {
    assert_int_equal(seen.calls, expected.calls);
    assert_int_equal(seen.failures, expected.failures);
    assert_int_equal(seen.slow, expected.slow);
}

#endif
