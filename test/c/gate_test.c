/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"
#include "support.h"

#define RAMP MS(1000)
#define CALLS 20000

static void init(es_gate *gate, int64_t ramp_ns, uint32_t fault_ppm) {
    memset(gate, 0xa5, sizeof *gate);
    es_gate_init(gate, ramp_ns, fault_ppm);
}

static void assert_sight(const es_gate *gate, es_state state, uint64_t generation) {
    es_gate_sight seen = es_gate_look(gate);
    assert_int_equal(seen.state, state);
    assert_int_equal(seen.generation, generation);
}

static void assert_closed(const es_gate *gate, bool closed) {
    uint64_t generation = 99;
    assert_int_equal(es_gate_is_closed(gate, &generation), closed);
    assert_int_equal(generation, es_gate_look(gate).generation);
}

static es_answer answer(const es_gate *gate, int64_t now_ns) {
    es_admission admission = es_gate_peek(gate, now_ns, 0);
    assert_int_equal(admission.permit.generation, es_gate_look(gate).generation);
    assert_false(admission.permit.probe);
    return admission.answer;
}

/* Of so many calls with different words, how many are admitted? The others are refused by chance. */
static int admitted_of_calls(const es_gate *gate, int64_t now_ns) {
    uint64_t random = 41;
    int admitted = 0;
    for (int call = 0; call < CALLS; call++) {
        es_admission admission = es_gate_peek(gate, now_ns, next_random(&random));
        assert_int_not_equal(admission.answer, ES_DUE);
        assert_int_equal(admission.retry_after_ns, 0);
        admitted += admission.answer == ES_ADMITTED;
    }
    return admitted;
}

static void assert_share(const es_gate *gate, int64_t now_ns, int percent) {
    assert_in_range(admitted_of_calls(gate, now_ns), CALLS * (percent - 1) / 100, CALLS * (percent + 1) / 100);
}

static void a_new_gate_is_closed_and_admits_all(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 0, 0);
    assert_sight(&gate, ES_CLOSED, 0);
    assert_closed(&gate, true);
    assert_int_equal(admitted_of_calls(&gate, 0), CALLS);
}

static void every_start_begins_a_generation_in_its_state(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 0, 0);
    for (uint64_t generation = 1; generation < 1000; generation++) {
        es_state to = (es_state)(generation % 5);
        es_gate_start(&gate, to, 0);
        assert_sight(&gate, to, generation);
        assert_closed(&gate, to == ES_CLOSED);
    }
}

static void a_state_that_holds_back_refuses_until_its_time(void **state) {
    (void)state;
    const es_state states[] = {ES_OPEN, ES_HALF_OPEN, ES_FORCED_OPEN};
    es_gate gate;
    init(&gate, 0, 0);
    for (int i = 0; i < 3; i++) {
        assert_true(es_gate_holds_back(states[i]));
        es_gate_start(&gate, states[i], 100);
        assert_int_equal(es_gate_until_ns(&gate), 100);
        assert_int_equal(es_gate_left_ns(&gate, 40), 60);
        assert_int_equal(answer(&gate, 99), ES_REFUSED);
        assert_int_equal(es_gate_peek(&gate, 40, 0).retry_after_ns, 60);
        assert_int_equal(answer(&gate, 100), ES_DUE);
        es_gate_hold(&gate, 200);
        assert_int_equal(es_gate_peek(&gate, 100, 0).retry_after_ns, 100);
        assert_int_equal(answer(&gate, 100), ES_REFUSED);
    }
}

static void what_is_held_back_for_ever_is_never_due(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 0, 0);
    es_gate_start(&gate, ES_FORCED_OPEN, ES_FOREVER_NS);
    assert_int_equal(answer(&gate, INT64_MAX), ES_REFUSED);
    assert_int_equal(es_gate_left_ns(&gate, INT64_MAX), ES_FOREVER_NS);
    assert_int_equal(es_gate_peek(&gate, INT64_MAX, 0).retry_after_ns, ES_FOREVER_NS);
}

static void a_bypass_admits_all_whatever_the_time_and_the_faults(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, RAMP, ES_PPM);
    es_gate_start(&gate, ES_BYPASSED, ES_FOREVER_NS);
    assert_false(es_gate_holds_back(ES_BYPASSED));
    assert_closed(&gate, false);
    assert_int_equal(admitted_of_calls(&gate, 0), CALLS);
}

static void faults_are_injected_while_closed_and_keep_off_the_fast_path(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 0, 250000);
    assert_closed(&gate, false);
    assert_share(&gate, 0, 75);
    es_gate_start(&gate, ES_OPEN, 10);
    assert_int_equal(answer(&gate, 0), ES_REFUSED);
    es_gate_start(&gate, ES_CLOSED, 0);
    assert_sight(&gate, ES_CLOSED, 2);
    assert_closed(&gate, false);
    assert_share(&gate, 0, 75);
}

static void the_smallest_share_of_faults_keeps_off_the_fast_path_too(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 0, 1);
    assert_closed(&gate, false);
    assert_int_equal(es_gate_peek(&gate, 0, ES_PPM).answer, ES_REFUSED);
    assert_int_equal(es_gate_peek(&gate, 0, ES_PPM + 1).answer, ES_ADMITTED);
}

static void a_ramp_admits_a_tenth_and_then_its_share_of_time(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, RAMP, 0);
    es_gate_ramp_up(&gate, 0);
    assert_sight(&gate, ES_CLOSED, 1);
    assert_closed(&gate, false);
    assert_share(&gate, -RAMP, 10);
    assert_share(&gate, 0, 10);
    assert_share(&gate, RAMP / 20, 10);
    for (int tenth = 1; tenth < 10; tenth++)
        assert_share(&gate, RAMP * tenth / 10, 10 * tenth);
    assert_share(&gate, RAMP - 1, 100);
    assert_int_equal(answer(&gate, RAMP), ES_DUE);
}

static void a_call_that_the_ramp_lets_through_is_let_through_from_then_on(void **state) {
    (void)state;
    es_gate gate;
    uint64_t random = 43;
    init(&gate, RAMP, 0);
    es_gate_ramp_up(&gate, 0);
    for (int call = 0; call < 1000; call++) {
        uint64_t word = next_random(&random);
        bool through = false;
        for (int64_t now_ns = 0; now_ns < RAMP; now_ns += RAMP / 50) {
            bool now_through = es_gate_peek(&gate, now_ns, word).answer == ES_ADMITTED;
            assert_true(now_through >= through);
            through = now_through;
        }
    }
}

static void the_shortest_ramp_still_admits_its_share(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 1, 0);
    es_gate_ramp_up(&gate, 0);
    assert_closed(&gate, false);
    assert_int_equal(admitted_of_calls(&gate, 0), CALLS);
    init(&gate, 10, 0);
    es_gate_ramp_up(&gate, 0);
    assert_share(&gate, 0, 10);
    assert_share(&gate, 1, 10);
    assert_share(&gate, 2, 20);
    init(&gate, 11, 0);
    es_gate_ramp_up(&gate, 0);
    assert_share(&gate, 0, 18);
    assert_share(&gate, 3, 27);
}

static void a_ramp_ends_when_its_time_is_over_and_somebody_says_so(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, RAMP, 0);
    es_gate_ramp_up(&gate, 10);
    es_gate_end_ramp(&gate, 9 + RAMP);
    assert_closed(&gate, false);
    assert_int_equal(answer(&gate, 10 + RAMP), ES_DUE);
    es_gate_end_ramp(&gate, 10 + RAMP);
    assert_closed(&gate, true);
    assert_sight(&gate, ES_CLOSED, 1);
    assert_int_equal(admitted_of_calls(&gate, 0), CALLS);
    es_gate_end_ramp(&gate, 20 + RAMP);
    assert_sight(&gate, ES_CLOSED, 1);
}

static void without_a_ramp_there_is_none_to_run(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, 0, 0);
    es_gate_ramp_up(&gate, 0);
    assert_sight(&gate, ES_CLOSED, 1);
    assert_closed(&gate, true);
}

static void another_state_ends_the_ramp(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, RAMP, 0);
    es_gate_ramp_up(&gate, 0);
    es_gate_start(&gate, ES_OPEN, 10);
    assert_sight(&gate, ES_OPEN, 2);
    es_gate_end_ramp(&gate, ES_FOREVER_NS);
    assert_sight(&gate, ES_OPEN, 2);
    es_gate_start(&gate, ES_CLOSED, 0);
    assert_closed(&gate, true);
}

static void faults_and_the_ramp_are_drawn_apart(void **state) {
    (void)state;
    const int64_t ramps_ns[] = {ES_PPM, MS(1000), MS(86400000)};
    for (int i = 0; i < 3; i++) {
        es_gate gate;
        init(&gate, ramps_ns[i], 500000);
        es_gate_ramp_up(&gate, 0);
        assert_share(&gate, ramps_ns[i] / 2, 25);
        es_gate_end_ramp(&gate, ramps_ns[i]);
        assert_closed(&gate, false);
        assert_share(&gate, ramps_ns[i], 50);
    }
}

static void a_ramp_without_end_admits_a_tenth_for_ever(void **state) {
    (void)state;
    es_gate gate;
    init(&gate, ES_FOREVER_NS, 0);
    es_gate_ramp_up(&gate, 0);
    assert_share(&gate, ES_FOREVER_NS, 10);
    es_gate_end_ramp(&gate, ES_FOREVER_NS);
    assert_closed(&gate, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_gate_is_closed_and_admits_all),
        cmocka_unit_test(every_start_begins_a_generation_in_its_state),
        cmocka_unit_test(a_state_that_holds_back_refuses_until_its_time),
        cmocka_unit_test(what_is_held_back_for_ever_is_never_due),
        cmocka_unit_test(a_bypass_admits_all_whatever_the_time_and_the_faults),
        cmocka_unit_test(faults_are_injected_while_closed_and_keep_off_the_fast_path),
        cmocka_unit_test(the_smallest_share_of_faults_keeps_off_the_fast_path_too),
        cmocka_unit_test(a_ramp_admits_a_tenth_and_then_its_share_of_time),
        cmocka_unit_test(a_call_that_the_ramp_lets_through_is_let_through_from_then_on),
        cmocka_unit_test(the_shortest_ramp_still_admits_its_share),
        cmocka_unit_test(a_ramp_ends_when_its_time_is_over_and_somebody_says_so),
        cmocka_unit_test(without_a_ramp_there_is_none_to_run),
        cmocka_unit_test(another_state_ends_the_ramp),
        cmocka_unit_test(faults_and_the_ramp_are_drawn_apart),
        cmocka_unit_test(a_ramp_without_end_admits_a_tenth_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
