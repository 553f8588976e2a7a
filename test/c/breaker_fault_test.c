/* SPDX-License-Identifier: Apache-2.0 */
/* A breaker that refuses some calls on purpose. */
#include "breaker.h"
#include "support.h"

#define WITHIN MS(10000)
#define RESET MS(1000)

static es_breaker *new_breaker(es_breaker_config config, int64_t now_ns) {
    es_breaker *breaker = NULL;
    es_allocator allocator = allocator_that_allows(1);
    assert_int_equal(es_breaker_new(&breaker, &config, now_ns, &allocator), ES_OK);
    assert_non_null(breaker);
    return breaker;
}

static void drop(es_breaker *breaker) {
    es_breaker_free(breaker);
    assert_int_equal(memory()->live, 0);
}

/* A failure reported without an admission. */
static void melt(es_breaker *breaker, int64_t now_ns) {
    es_breaker_report(breaker, es_breaker_generation(breaker), ES_FAILURE, now_ns);
}

static es_state state_at(es_breaker *breaker, int64_t now_ns) {
    return es_breaker_look(breaker, now_ns).state;
}

static void faults_are_injected_never_always_or_about_their_share(void **state) {
    (void)state;
    const uint32_t shares[] = {0, 1, 250000, ES_PPM};
    const int least[] = {0, 0, 2300, 10000}, most[] = {0, 1, 2700, 10000};
    for (int i = 0; i < 4; i++) {
        es_breaker_config config = {.limits = {0}, .within_ns = WITHIN, .reset_ns = RESET, .fault_ppm = shares[i]};
        es_breaker *breaker = new_breaker(config, 0);
        uint64_t random = 5, generation;
        int refused = 0;
        assert_int_equal(es_breaker_is_closed(breaker, &generation), shares[i] == 0);
        for (int call = 0; call < 10000; call++) {
            es_admission admission = es_breaker_admit(breaker, call, next_random(&random));
            assert_int_equal(admission.retry_after_ns, 0);
            assert_int_equal(admission.generation, generation);
            refused += admission.answer == ES_REFUSED;
        }
        assert_in_range(refused, least[i], most[i]);
        assert_int_equal(state_at(breaker, 10000), ES_CLOSED);
        drop(breaker);
    }
}

static void a_breaker_with_faults_opens_and_injects_again_after_its_reset(void **state) {
    (void)state;
    es_breaker_config config = {.limits = {0}, .within_ns = WITHIN, .reset_ns = RESET, .fault_ppm = 500000};
    es_breaker *breaker = new_breaker(config, 0);
    uint64_t generation;
    melt(breaker, 0);
    assert_int_equal(es_breaker_admit(breaker, 0, ES_PPM - 1).answer, ES_REFUSED);
    assert_int_equal(es_breaker_admit(breaker, 0, 0).retry_after_ns, RESET);
    assert_int_equal(es_breaker_admit(breaker, RESET, ES_PPM - 1).answer, ES_ADMITTED);
    assert_int_equal(es_breaker_admit(breaker, RESET, 0).answer, ES_REFUSED);
    es_breaker_reset(breaker, RESET);
    assert_false(es_breaker_is_closed(breaker, &generation));
    assert_int_equal(es_breaker_admit(breaker, RESET, 0).answer, ES_REFUSED);
    drop(breaker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_injected_never_always_or_about_their_share),
        cmocka_unit_test(a_breaker_with_faults_opens_and_injects_again_after_its_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
