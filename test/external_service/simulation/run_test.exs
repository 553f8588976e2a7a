# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.RunTest do
  # A simulation against a started service on a virtual clock, called in the same way: both have to do the same, at the
  # same times.
  use ExternalService.Case, async: true

  alias :proper_types, as: Gen

  alias ExternalService.{Deadline, Simulation}

  @moduletag :property
  @moduletag timeout: 300_000

  @calls 25
  @answers 125

  # What happened, in order: {:attempt | :refused, at, state}.
  defp simulated(options, answers, seed) do
    simulation = ExternalService.simulate(options, {:trace, answers}, for: :infinity, max_calls: @calls, seed: seed)

    happened =
      for row <- Simulation.timeline(simulation),
          {what, count} <- [attempt: row.attempts, refused: row.refused],
          count > 0,
          _nth <- 1..count,
          do: {what, row.at, row.state}

    {happened, simulation.calls, simulation.attempts, simulation.elapsed, simulation.worst_call}
  end

  # A breaker draws a random number when time has something to change. In a simulation somebody looks when it has, so
  # where chance counts somebody does here, too: `pass` lets time pass.
  defp happened(service, options, answers, seed, look?) do
    clock = VirtualClock.new(seed)
    pass = if look?, do: &pass_looking(service, clock, &1), else: &VirtualClock.advance(clock, &1)
    :ok = ExternalService.start(service, [clock: clock, sleep_function: pass] ++ options)
    timeout = options[:timeout] || :infinity
    call = function(service, clock, pass, timeout, List.to_tuple(answers), :counters.new(1, []))
    {calls, worst} = call_again(service, clock, pass, call, 0, 0)
    happened = collect()
    {happened, calls, Enum.count(happened, &match?({:attempt, _, _}, &1)), VirtualClock.now(clock), worst}
  end

  defp pass_looking(service, clock, ms) do
    ExternalService.state(service)

    for _ms <- 1..ms//1 do
      VirtualClock.advance(clock, 1)
      ExternalService.state(service)
    end
  end

  # An attempt that takes too long never comes back: it is the clock that ends it.
  defp function(service, clock, pass, timeout, answers, turn) do
    test = self()

    fn ->
      send(test, {:happened, {:attempt, VirtualClock.now(clock), ExternalService.state(service)}})
      {outcome, ms} = elem(answers, :counters.get(turn, 1))
      :counters.add(turn, 1, 1)
      limit = min(timeout, Deadline.remaining())
      pass.(min(ms, limit))
      if ms > limit, do: Process.sleep(:infinity)
      if outcome == :failure, do: :retry, else: :fine
    end
  end

  defp call_again(_service, _clock, _pass, _call, @calls, worst), do: {@calls, worst}

  defp call_again(service, clock, pass, call, calls, worst) do
    began = VirtualClock.now(clock)
    pass.(0)
    told = told(ExternalService.call(service, call))
    now = VirtualClock.now(clock)
    if told != nil, do: send(self(), {:happened, {:refused, now, ExternalService.state(service)}})
    if is_integer(told) and calls + 1 < @calls, do: pass.(max(told, 1))
    worst = max(worst, now - began)
    if told == :infinity, do: {calls + 1, worst}, else: call_again(service, clock, pass, call, calls + 1, worst)
  end

  defp told({:error, %{__struct__: module, context: %{retry_after: ms}}})
       when module in [CircuitBreakerOpen, ExternalService.RateLimited],
       do: ms

  defp told(_result), do: nil

  defp collect do
    receive do
      {:happened, what} -> [what | collect()]
    after
      0 -> []
    end
  end

  defp maybe(key, type), do: Gen.union([[], [{key, type}]])

  defp all(types), do: Gen.fixed_list(types)

  defp breaker do
    all([
      Gen.union([
        [{:tolerate, Gen.integer(0, 5)}, {:within, Gen.integer(1, 300)}],
        [{:consecutive, Gen.integer(1, 4)}],
        [{:failure_rate, Gen.oneof([0.3, 0.5, 1.0])}, {:min_calls, Gen.integer(1, 5)}, {:window, window()}],
        [{:slow_call, Gen.integer(1, 60)}, {:min_calls, Gen.integer(1, 4)}, {:window, window()}],
        [{:tolerate, :infinity}],
        []
      ]),
      [{:melt, Gen.oneof([:per_attempt, :per_call])}, {:reset, Gen.oneof([0, 7, 50, 300])}],
      Gen.union([
        [],
        [{:half_open, true}],
        [{:half_open, [probes: 2, successes: 3]}, {:reset_backoff, [factor: 3, max: 2_000]}]
      ])
    ])
  end

  defp breaker_by_chance,
    do: all([Gen.union([[], [tolerate: 3, fault_injection: 0.2]]), breaker(), maybe(:reset_jitter, 0.3)])

  defp window, do: Gen.union([{:time, Gen.integer(50, 500)}, {:calls, Gen.integer(5, 10)}])

  defp retry do
    all([
      [{:max_attempts, Gen.integer(1, 5)}, {:base, Gen.integer(1, 40)}],
      maybe(:backoff, Gen.oneof([:linear, :constant, :exponential, [5, 30, 10]])),
      maybe(:cap, Gen.integer(1, 50)),
      maybe(:expiry, Gen.integer(1, 100)),
      maybe(:budget, ratio: 0.2, min_per_second: 1)
    ])
  end

  defp retry_by_chance, do: all([retry(), [{:jitter, Gen.oneof([true, 0.5, :full, :decorrelated])}]])

  defp limits do
    all([
      maybe(:deadline, Gen.integer(1, 150)),
      maybe(:rate_limit,
        limit: Gen.integer(1, 4),
        per: Gen.integer(1, 200),
        wait: Gen.oneof([false, 30, 500, :infinity])
      ),
      maybe(:concurrency, limit: 1)
    ])
  end

  defp answers do
    outcome = Gen.frequency([{2, :failure}, {1, :success}])
    ms = Gen.frequency([{3, 0}, {1, Gen.integer(0, 80)}])
    Gen.vector(@answers, {outcome, ms})
  end

  defp cases(timeout), do: {breaker(), retry(), limits(), timeout, answers(), 0}

  defp cases_by_chance(timeout),
    do: {breaker_by_chance(), retry_by_chance(), limits(), timeout, answers(), Gen.integer(0, 1_000)}

  defp agree?(service, {breaker, retry, limits, timeout, answers, seed}, look?) do
    options = [circuit_breaker: flat(breaker), retry: flat(retry)] ++ flat(limits) ++ timeout
    expected = happened(service, options, answers, seed, look?)
    assert simulated(options, answers, seed) == expected
  end

  defp flat(options), do: options |> List.flatten() |> Enum.uniq_by(&elem(&1, 0))

  test "one client is served as by a started service, at the same times and in the same states", %{service: s} do
    check(cases([]), 1_000, &agree?(s, &1, false))
  end

  test "so it is where chance has its part", %{service: s} do
    check(cases_by_chance([]), 1_000, &agree?(s, &1, true))
  end

  test "so it is where attempts are ended by a timeout", %{service: s} do
    check(cases([{:timeout, Gen.integer(1, 60)}]), 100, &agree?(s, &1, false))
    check(cases_by_chance([{:timeout, Gen.integer(1, 60)}]), 100, &agree?(s, &1, true))
  end
end
