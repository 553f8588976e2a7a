# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.RulesTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers, only: [hold: 1, finish: 1]

  @opened [:circuit_breaker, :opened]

  defp start_breaker(service, breaker), do: start_on_clock(service, circuit_breaker: breaker)
  defp state(service), do: ExternalService.state(service)
  defp fine(service), do: ExternalService.call(service, [max_attempts: 1], fn -> :fine end)
  defp counts(service, keys), do: service |> ExternalService.counts() |> Map.take(keys)

  defp fail_times(_service, 0), do: :ok
  defp fail_times(service, count), do: Enum.each(1..count, fn _ -> fail(service) end)
  defp fine_times(_service, 0), do: :ok
  defp fine_times(service, count), do: Enum.each(1..count, fn _ -> fine(service) end)

  # A call that takes this long and then returns the result.
  defp take(service, clock, ms, result \\ :fine) do
    ExternalService.call(service, [max_attempts: 1], fn -> VirtualClock.advance(clock, ms) && result end)
  end

  describe "a failure rate" do
    test "opens at exactly its share, whatever fraction that is", %{service: s} do
      for calls <- [1, 2, 3, 6, 7, 9, 11, 13, 100, 997], failed <- Enum.uniq([1, div(calls, 2), calls - 1, calls]) do
        if failed > 0 do
          start_breaker(s, failure_rate: failed / calls, min_calls: calls)
          fine_times(s, calls - failed)
          fail_times(s, failed - 1)
          assert {failed, calls, state(s)} == {failed, calls, :closed}
          fail(s)
          assert {failed, calls, state(s)} == {failed, calls, :open}
        end
      end
    end

    test "stays closed one failure below its share", %{service: s} do
      start_breaker(s, failure_rate: 0.5, min_calls: 5)
      for _ <- 1..50, do: fine(s) && fine(s) && fail(s)
      assert counts(s, [:state, :calls, :failures]) == %{state: :closed, calls: 150, failures: 50}
    end

    test "of 1 needs every call to fail", %{service: s} do
      start_breaker(s, failure_rate: 1, min_calls: 5, window: {:calls, 5})
      fine(s)
      fail_times(s, 4)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "of the smallest share opens on one failure in a million calls", %{service: s} do
      start_breaker(s, failure_rate: 1.0e-6, min_calls: 1)
      fine_times(s, 1_000)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "counts what is melted from outside as calls that failed", %{service: s} do
      start_breaker(s, failure_rate: 0.5, min_calls: 4)
      fine_times(s, 2)
      CircuitBreaker.melt(s)
      assert counts(s, [:calls, :failures, :rate]) == %{calls: 3, failures: 1, rate: 1 / 3}
      CircuitBreaker.melt(s)
      assert state(s) == :open
    end

    test "counts each attempt, or with melt: :per_call each call", %{service: s} do
      breaker = [failure_rate: 1, min_calls: 100]
      start_on_clock(s, circuit_breaker: breaker, retry: [max_attempts: 4])
      ExternalService.call(s, fn -> :retry end)
      assert counts(s, [:calls, :failures]) == %{calls: 4, failures: 4}

      start_on_clock(s, circuit_breaker: [melt: :per_call] ++ breaker, retry: [max_attempts: 4])
      ExternalService.call(s, fn -> :retry end)
      ExternalService.call(s, attempting_each([:retry, :fine]))
      assert counts(s, [:calls, :failures]) == %{calls: 2, failures: 1}
    end

    test "takes no notice of calls that end without an outcome", %{service: s} do
      start_breaker(s, failure_rate: 0.5, min_calls: 1)

      for fun <- [fn -> raise "no" end, fn -> throw(:no) end, fn -> exit(:no) end] do
        assert_raise ErlangError, fn ->
          try do
            ExternalService.call(s, fun)
          catch
            kind, reason -> :erlang.error({kind, reason})
          end
        end
      end

      assert counts(s, [:calls, :failures, :ignored]) == %{calls: 0, failures: 0, ignored: 3}
    end
  end

  describe "a window of time" do
    test "keeps nothing over an idle span", %{service: s} do
      clock = start_breaker(s, failure_rate: 1, min_calls: 100, window: {:time, 10_000})

      for _ <- 1..10 do
        fail(s)
        VirtualClock.advance(clock, 1_000)
      end

      assert counts(s, [:failures]) == %{failures: 9}
      VirtualClock.advance(clock, 10_000)
      fail(s)
      assert counts(s, [:calls, :failures]) == %{calls: 1, failures: 1}
    end

    test "that has passed leaves all four counts at nothing", %{service: s} do
      clock = start_breaker(s, failure_rate: 1, slow_call: 10, slow_rate: 1, min_calls: 100, window: {:time, 1_000})
      for _ <- 1..5, do: take(s, clock, 10, :retry)
      assert counts(s, [:calls, :failures, :slow, :rate]) == %{calls: 5, failures: 5, slow: 5, rate: 1.0}
      VirtualClock.advance(clock, 1_000)
      assert counts(s, [:calls, :failures, :slow]) == %{calls: 0, failures: 0, slow: 0}
      fine(s)
      assert counts(s, [:calls, :failures, :slow, :rate]) == %{calls: 1, failures: 0, slow: 0, rate: 0.0}
    end

    test "counts a call for nine tenths of it at least, and for less than all of it", %{service: s} do
      clock = start_breaker(s, failure_rate: 1, min_calls: 100, window: {:time, 1_000})

      for start <- [0, 1, 37, 99] do
        VirtualClock.advance(clock, 10_000 + start)
        fail(s)
        VirtualClock.advance(clock, 900)
        assert {start, counts(s, [:calls])} == {start, %{calls: 1}}
        VirtualClock.advance(clock, 100)
        assert {start, counts(s, [:calls])} == {start, %{calls: 0}}
      end
    end
  end

  describe "a window of calls" do
    test "holds the last so many, and older ones leave it one by one", %{service: s} do
      start_breaker(s, failure_rate: 0.6, min_calls: 5, window: {:calls, 5})
      for outcome <- [:fail, :fail, :fine, :fine, :fine], do: if(outcome == :fail, do: fail(s), else: fine(s))
      assert counts(s, [:calls, :failures]) == %{calls: 5, failures: 2}
      fine_times(s, 2)
      assert counts(s, [:calls, :failures]) == %{calls: 5, failures: 0}
      fail_times(s, 2)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "of one call opens on a failure", %{service: s} do
      start_breaker(s, failure_rate: 1, min_calls: 1, window: {:calls, 1})
      fine_times(s, 3)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    @tag :property
    test "shows what a list of the last calls would", %{service: s} do
      import :proper_types

      check({integer(1, 12), list(integer(0, 3))}, 1_000, fn {size, outcomes} ->
        clock = start_breaker(s, failure_rate: 1, slow_call: 10, slow_rate: 1, min_calls: size, window: {:calls, size})
        CircuitBreaker.reset(s)

        # An opening would empty the window, so a bypassed breaker counts.
        ExternalService.bypass(s)
        for n <- outcomes, do: take(s, clock, if(n < 2, do: 10, else: 0), if(rem(n, 2) == 0, do: :retry, else: :fine))
        last = Enum.take(Enum.reverse(outcomes), size)

        counts(s, [:calls, :failures, :slow]) == %{
          calls: length(last),
          failures: Enum.count(last, &(rem(&1, 2) == 0)),
          slow: Enum.count(last, &(&1 < 2))
        }
      end)
    end
  end

  describe "a slow call" do
    test "may also be a failure, and counts as both", %{service: s} do
      clock = start_breaker(s, slow_call: 100, failure_rate: 1, min_calls: 50)
      take(s, clock, 100, :retry)
      take(s, clock, 99, :retry)
      take(s, clock, 100, :fine)
      assert counts(s, [:calls, :failures, :slow]) == %{calls: 3, failures: 2, slow: 2}
    end

    test "does not count the wait for a slot", %{service: s} do
      breaker = [slow_call: 100, slow_rate: 1, min_calls: 1]
      clock = start_on_clock(s, circuit_breaker: breaker, concurrency: [limit: 1, wait: 60_000, reclaim_after: 1_000])
      holder = hold(s)
      assert fine(s) == :fine
      assert VirtualClock.now(clock) == 1_000
      assert counts(s, [:state, :calls, :slow]) == %{state: :closed, calls: 1, slow: 0}
      # The holder did take a second.
      finish(holder)
      assert counts(s, [:calls, :slow]) == %{calls: 2, slow: 1}
    end

    test "does not count the delays between attempts", %{service: s} do
      breaker = [slow_call: 100, slow_rate: 1, min_calls: 50]

      for melt <- [:per_attempt, :per_call] do
        start_on_clock(s, circuit_breaker: [melt: melt] ++ breaker, retry: [base: 1_000, max_attempts: 3])
        ExternalService.call(s, fn -> :retry end)
        assert {melt, counts(s, [:slow])} == {melt, %{slow: 0}}
      end
    end

    test "opens without any failure, at half of the calls where no share is given", %{service: s} do
      clock = start_breaker(s, slow_call: 100, min_calls: 4)
      for ms <- [99, 100, 99], do: take(s, clock, ms)
      assert state(s) == :closed
      take(s, clock, 100)
      assert state(s) == :open
    end

    test "is none that was melted from outside or ended without an outcome", %{service: s} do
      clock = start_breaker(s, slow_call: 100, slow_rate: 1, min_calls: 50)
      CircuitBreaker.melt(s)
      assert_raise RuntimeError, fn -> take_and_raise(s, clock) end
      assert counts(s, [:calls, :slow, :failures]) == %{calls: 1, slow: 0, failures: 1}
    end

    defp take_and_raise(service, clock) do
      ExternalService.call(service, fn -> VirtualClock.advance(clock, 100) && raise "no" end)
    end
  end

  describe "a streak of failures" do
    test "is ended by one success, of whatever attempt", %{service: s} do
      start_on_clock(s, circuit_breaker: [consecutive: 3])
      ExternalService.call(s, attempting_each([:retry, :retry, :fine]))
      fail_times(s, 2)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "is not ended by time, by a call without an outcome or by a refusal", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 3], rate_limit: [limit: 3, per: 1_000, wait: false])
      fail_times(s, 2)
      assert_raise RuntimeError, fn -> ExternalService.call(s, fn -> raise "no" end) end
      assert {:error, %ExternalService.RateLimited{}} = fine(s)
      VirtualClock.advance(clock, :timer.hours(24 * 365))
      assert counts(s, [:state, :consecutive]) == %{state: :closed, consecutive: 2}
      fail(s)
      assert state(s) == :open
    end

    test "is not ended by a success from before it was reset", %{service: s} do
      start_on_clock(s, circuit_breaker: [consecutive: 2])
      {:ok, early} = CircuitBreaker.admit(s)
      ExternalService.reset(s)
      fail(s)
      CircuitBreaker.report(early, :success)
      assert counts(s, [:consecutive]) == %{consecutive: 1}
    end
  end

  describe "several rules" do
    @all [
      tolerate: 9,
      failure_rate: 0.5,
      slow_call: 10,
      slow_rate: 0.5,
      min_calls: 6,
      window: {:calls, 20},
      consecutive: 4
    ]

    # What goes on before the rule fires, and the rule.
    @runs [
      consecutive: [:fine, :fine, :fine, :fine, :fine, :fail, :fail, :fail, :fail],
      failure_rate: [:fine, :fail, :fine, :fail, :fine, :fail],
      slow_rate: [:slow, :fine, :slow, :fine, :slow, :fine],
      tolerate: List.duplicate([:fail, :fine, :fine], 9) |> Enum.concat() |> Kernel.++([:fail])
    ]

    for {rule, run} <- @runs do
      test "open by the one that fires first: #{rule}", %{service: s} do
        clock = start_breaker(s, @all)
        Recorder.attach(s, [@opened])
        {before, [last]} = Enum.split(unquote(run), -1)
        for call <- before, do: play(s, clock, call)
        assert state(s) == :closed
        play(s, clock, last)
        assert %{rule: unquote(rule), from: :closed, to: :open} = Recorder.one(@opened)
      end
    end

    defp play(service, _clock, :fine), do: fine(service)
    defp play(service, _clock, :fail), do: fail(service)
    defp play(service, clock, :slow), do: take(service, clock, 10)

    test "that fire together open it once", %{service: s} do
      start_breaker(s, tolerate: 0, failure_rate: 0.1, min_calls: 1, consecutive: 1)
      Recorder.attach(s, [@opened])
      fail(s)
      assert %{rule: :tolerate, failures: 1, calls: 1, consecutive: 1, rate: 1.0} = Recorder.one(@opened)
    end

    test "are counted apart: a closing forgets all of it", %{service: s} do
      clock = start_breaker(s, Keyword.put(@all, :reset, 1_000))
      fail_times(s, 4)
      assert state(s) == :open
      VirtualClock.advance(clock, 1_000)
      assert counts(s, [:calls, :failures, :slow, :consecutive]) == %{calls: 0, failures: 0, slow: 0, consecutive: 0}
      fail_times(s, 3)
      assert state(s) == :closed
    end
  end

  describe "every rule" do
    @each [
      tolerate: [tolerate: 2],
      failure_rate: [failure_rate: 0.5, min_calls: 3],
      slow_rate: [slow_call: 10, min_calls: 3],
      consecutive: [consecutive: 3]
    ]

    for {rule, options} <- @each do
      test "opens once however many calls fire it together: #{rule}", %{service: s} do
        for _ <- 1..20 do
          start_breaker(s, unquote(options))
          id = Recorder.attach(s, [@opened])
          permits = for _ <- 1..30, do: s |> CircuitBreaker.admit() |> elem(1)
          together(30, fn n -> permits |> Enum.at(n - 1) |> CircuitBreaker.report(:failure, 10) end)
          assert %{rule: unquote(rule)} = Recorder.one(@opened)
          Telemetry.detach(id)
        end
      end

      test "tells as many failures as the rule saw: #{rule}", %{service: s} do
        clock = start_breaker(s, unquote(options))
        Recorder.attach(s, [@opened])
        for _ <- 1..3, do: take(s, clock, 10, :retry)
        assert %{rule: unquote(rule), failures: 3, count: 1} = Recorder.one(@opened)
      end

      test "given twice is the rule given once: #{rule}", %{service: s} do
        start_breaker(s, unquote(options) ++ unquote(options))
        clock = start_breaker(s, unquote(options) ++ unquote(options))
        Recorder.attach(s, [@opened])
        for _ <- 1..2, do: take(s, clock, 10, :retry)
        assert state(s) == :closed
        take(s, clock, 10, :retry)
        assert Recorder.names() == [@opened]
      end
    end
  end

  describe "any sequence of outcomes, waits, probes and resets" do
    @tag :property
    test "leaves an open breaker with a time after which it is half-open", %{service: s} do
      import :proper_types

      step = frequency([{4, :retry}, {3, :fine}, {3, integer(1, 400)}, {2, :hold}, {2, :let_go}, {1, :reset}])
      rules = [consecutive: 2, tolerate: 3, within: 100, failure_rate: 0.7, min_calls: 4, window: {:calls, 6}]
      breaker = [reset: 400, half_open: [probes: 2, lease: 150], reset_backoff: [max: 2_000]] ++ rules

      check(list(step), 1_000, fn steps ->
        clock = start_on_clock(s, circuit_breaker: breaker)
        Enum.reduce(steps, [], &take_step(&1, &2, s, clock))
        %{state: state, retry_after: left} = ExternalService.counts(s)
        VirtualClock.advance(clock, left)
        next = if state == :open, do: :half_open, else: state
        ExternalService.state(s) == next and ExternalService.available?(s)
      end)
    end
  end

  # What is held are permits.
  defp take_step(:hold, held, s, _clock) do
    case CircuitBreaker.admit(s) do
      {:ok, permit} -> [permit | held]
      {:error, %CircuitBreakerOpen{}} -> held
    end
  end

  defp take_step(:let_go, [permit | held], _s, _clock) do
    CircuitBreaker.report(permit, Enum.at([:success, :failure, :ignore], rem(length(held), 3)))
    held
  end

  defp take_step(:let_go, [], _s, _clock), do: []
  defp take_step(:reset, held, s, _clock), do: ExternalService.reset(s) && held
  defp take_step(ms, held, _s, clock) when is_integer(ms), do: VirtualClock.advance(clock, ms) && held

  defp take_step(end_of_call, held, s, _clock),
    do: ExternalService.call(s, [max_attempts: 1], fn -> end_of_call end) && held
end
