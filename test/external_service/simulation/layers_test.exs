# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.LayersTest do
  # One client is compared with a started service in run_test.exs; here are many, in cases that can be worked out by hand.
  use ExternalService.Case, async: true

  alias ExternalService.Simulation

  defp simulated(options, scenario, given),
    do: ExternalService.simulate([retry: [max_attempts: 1]] ++ options, scenario, given)

  # When, and how many times.
  defp times(simulation, key), do: for(row <- Simulation.timeline(simulation), row[key] > 0, do: {row.at, row[key]})

  describe "the concurrency limit" do
    test "lets clients in one after the other, in the order in which they came" do
      simulation = simulated([concurrency: [limit: 1, wait: 1_000]], {:slow, 100}, clients: 3, max_calls: 6)
      assert times(simulation, :attempts) == for(n <- 0..5, do: {n * 100, 1})
      assert {simulation.refused, simulation.worst_call, simulation.elapsed} == {0, 300, 600}
    end

    test "sends away who has waited too long, at that moment" do
      simulation = simulated([concurrency: [limit: 1, wait: 150]], {:slow, 100}, clients: 3, max_calls: 3)
      assert times(simulation, :attempts) == [{0, 1}, {100, 1}]
      assert times(simulation, :refused) == [{150, 1}]
    end

    test "sends away at once whom nobody may wait behind" do
      simulation = simulated([concurrency: [limit: 2, wait: 150, queue: 1]], {:slow, 100}, clients: 5, max_calls: 5)
      assert times(simulation, :attempts) == [{0, 2}, {100, 1}]
      assert times(simulation, :refused) == [{0, 2}]
    end

    test "gives a slot whose lease is over to who waits" do
      options = [concurrency: [limit: 1, wait: 1_000, reclaim_after: 30]]
      simulation = simulated(options, {:slow, 100}, clients: 3, max_calls: 3)
      assert times(simulation, :attempts) == [{0, 1}, {30, 1}, {60, 1}]
      assert simulation.elapsed == 160
    end

    test "takes a slot whose lease is over at once" do
      options = [concurrency: [limit: 1, reclaim_after: 30]]
      simulation = simulated(options, {:slow, 100}, clients: 2, max_calls: 32)
      assert [{0, 1}, {30, 1} | _] = times(simulation, :attempts)
    end

    test "never has more than its limit in flight, whatever comes" do
      trace = for n <- 1..500, do: {:success, rem(n * 7, 13)}
      simulation = simulated([concurrency: [limit: 4, wait: 40]], {:trace, trace}, clients: 20, rate: 2_000)
      assert simulation.attempts == 500
      # Four at a time, and on average 6 ms each.
      assert simulation.elapsed >= div(500 * 6, 4)
    end
  end

  describe "the rate limit" do
    test "spaces out clients that wait" do
      simulation = simulated([rate_limit: [limit: 2, per: 100]], {:slow, 0}, clients: 4, max_calls: 4)
      assert times(simulation, :attempts) == [{0, 2}, {50, 1}, {100, 1}]
    end

    test "gets back what a saturated call has taken" do
      options = [rate_limit: [limit: 3, per: 3_000, wait: false], concurrency: [limit: 1]]
      simulation = simulated(options, {:slow, 10}, clients: 2, for: 900)
      assert times(simulation, :attempts) == [{0, 1}, {10, 1}, {20, 1}]
      assert simulation.refused > 20
    end

    test "keeps those away for good whom it can never serve" do
      simulation = simulated([rate_limit: [limit: 0, per: 100]], {:slow, 0}, clients: 3, for: 60_000)
      assert {simulation.calls, simulation.attempts, simulation.refused} == {3, 0, 3}
    end
  end

  describe "the breaker" do
    test "has as many probes out as it is told to, however many clients come" do
      options = [circuit_breaker: [tolerate: 0, reset: 1_000, half_open: [probes: 2]]]

      simulation =
        simulated(options, {:trace, [failure: 0, success: 500, success: 500, success: 0]}, clients: 9, rate: 100)

      half_open =
        for row <- Simulation.timeline(simulation), row.state == :half_open, row.attempts > 0, do: row.attempts

      assert half_open == [1, 1]
    end

    test "opens at once for clients that are under way, and calls that began before may still end" do
      options = [circuit_breaker: [tolerate: 0], retry: [max_attempts: 3, base: 10]]
      simulation = ExternalService.simulate(options, {:always_failing, 50}, clients: 3, rate: 100)
      assert {simulation.attempts, simulation.refused, simulation.opens_after} == {3, 3, 3}
      assert [%{at: 50, state: :open} | _] = for(row <- Simulation.timeline(simulation), row.state == :open, do: row)
    end

    test "changes its state when that is due, also while nobody calls" do
      options = [circuit_breaker: [tolerate: 0, reset: 700]]
      simulation = simulated(options, {:failing_for, 1}, for: 10_000, rate: 0.5)
      states = for row <- Simulation.timeline(simulation), do: {row.at, row.state}
      assert Enum.take(states, 3) == [{0, :closed}, {0, :open}, {700, :closed}]
    end

    test "melts once for a call where that is asked for" do
      for {melt, opens_after, attempts} <- [{:per_call, 3, 9}, {:per_attempt, 1, 3}] do
        options = [circuit_breaker: [tolerate: 2, melt: melt], retry: [max_attempts: 3]]
        simulation = ExternalService.simulate(options, :always_failing)
        assert {simulation.opens_after, simulation.attempts} == {opens_after, attempts}
      end
    end
  end

  describe "time" do
    test "of an attempt is bounded by the timeout, which is a failure" do
      simulation = simulated([timeout: 50], {:slow, 80}, [])
      assert {simulation.worst_call, simulation.opens_after} == {50, 11}
      assert simulated([timeout: 80], {:slow, 80}, []).opens_after == :never
    end

    test "of a call is bounded by the deadline, its waits included" do
      options = [deadline: 120, concurrency: [limit: 1, wait: 1_000], circuit_breaker: [tolerate: :infinity]]
      simulation = ExternalService.simulate(options, {:always_failing, 50}, clients: 8, max_calls: 40)
      assert simulation.worst_call == 120
    end

    test "between attempts is that of the service's own schedule" do
      options = [retry: [backoff: &(&1 * 7), max_attempts: 3]]
      assert ExternalService.simulate(options, :always_failing, max_calls: 1).worst_call == 21
    end
  end

  # At first it is full, with ten.
  test "an empty retry budget ends calls" do
    options = [circuit_breaker: [tolerate: :infinity], retry: [budget: [ratio: 0.0, min_per_second: 0]]]
    simulation = ExternalService.simulate(options, :always_failing, max_calls: 7)
    assert {simulation.calls, simulation.attempts} == {7, 17}
  end
end
