# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.LocalTest do
  use ExternalService.Case, async: true

  defp melt(service, count \\ 1), do: Enum.each(1..count, fn _ -> :ok = CircuitBreaker.melt(service) end)
  defp state(service), do: ExternalService.state(service)

  describe "the threshold" do
    test "is crossed by the failure after those tolerated", %{service: s} do
      for tolerate <- [1, 2, 3, 15, 100, 1000] do
        start_on_clock(s, circuit_breaker: [tolerate: tolerate])
        melt(s, tolerate)
        assert {tolerate, state(s)} == {tolerate, :closed}
        melt(s)
        assert {tolerate, state(s)} == {tolerate, :open}
      end
    end

    test "of tolerate: 0 is the first failure", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 0])
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "of a million works as any other", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 1_000_000])
      melt(s, 1_000_000)
      assert state(s) == :closed
      melt(s)
      assert state(s) == :open
    end

    test "counts ten failures as tolerated by default", %{service: s} do
      start_on_clock(s)
      melt(s, 10)
      assert state(s) == :closed
      melt(s)
      assert state(s) == :open
    end

    test "takes no notice of successes in between", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 2])
      for _ <- 1..2, do: fail(s) && ExternalService.call(s, fn -> :fine end)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end
  end

  describe "the window" do
    test "holds a failure while it is younger than within", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, within: 100])
      melt(s)
      VirtualClock.advance(clock, 99)
      melt(s)
      assert state(s) == :open

      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, within: 100])
      melt(s)
      VirtualClock.advance(clock, 100)
      melt(s)
      assert state(s) == :closed
    end

    test "slides: failures leave it one by one", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 3, within: 100])

      for _ <- 1..200 do
        melt(s)
        assert state(s) == :closed
        VirtualClock.advance(clock, 34)
      end

      VirtualClock.advance(clock, 32)
      melt(s, 3)
      assert state(s) == :open
    end

    test "never fills from a failure every two days", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 3, within: :timer.seconds(10)])

      for _ <- 1..500 do
        fail(s)
        assert state(s) == :closed
        VirtualClock.advance(clock, :timer.hours(48))
      end
    end

    test "is empty after the breaker has closed again", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, within: 100_000, reset: 10])
      melt(s, 2)
      VirtualClock.advance(clock, 10)
      assert state(s) == :closed
      melt(s)
      assert state(s) == :closed
      melt(s)
      assert state(s) == :open
    end
  end

  describe "the open time" do
    test "ends exactly when reset is over, without traffic", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 1000])
      VirtualClock.advance(clock, 900)
      fail(s)

      VirtualClock.advance(clock, 999)
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, fn -> :fine end)
      refute ExternalService.available?(s)

      VirtualClock.advance(clock, 1)
      assert state(s) == :closed
      assert ExternalService.available?(s)
      refute ExternalService.blown?(s)
      assert ExternalService.call(s, fn -> :fine end) == :fine
    end

    test "admits a call at its end even if nobody looked before", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 1000])
      fail(s)
      VirtualClock.advance(clock, 1000)
      assert ExternalService.call(s, fn -> :fine end) == :fine
    end

    test "is not extended by failures, refusals or looks while open", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 100])
      fail(s)

      for _ <- 1..99 do
        VirtualClock.advance(clock, 1)
        melt(s)
        assert state(s) == :open
        assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, fn -> :fine end)
      end

      VirtualClock.advance(clock, 1)
      assert state(s) == :closed
    end

    test "may be longer than the window", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, within: 100, reset: 400])
      fail(s)
      VirtualClock.advance(clock, 399)
      assert state(s) == :open
      VirtualClock.advance(clock, 1)
      assert state(s) == :closed
    end

    test "of reset: 0 is over at once", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 0])
      Recorder.attach(s, [[:circuit_breaker, :opened]])
      fail(s)
      assert ExternalService.available?(s)
      assert ExternalService.call(s, fn -> :fine end) == :fine
      assert Recorder.names() == [[:circuit_breaker, :opened]]
    end

    test "is not moved by another service that starts or opens", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 100])
      other = {s, :other}
      on_exit(fn -> ExternalService.stop(other) end)
      fail(s)
      VirtualClock.advance(clock, 60)
      :ok = ExternalService.start(other, clock: clock, circuit_breaker: [tolerate: 0, reset: 100])
      fail(other)
      VirtualClock.advance(clock, 40)
      assert {state(s), state(other)} == {:closed, :open}
    end

    test "repeats a hundred times, each time to the millisecond", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 250])

      for _ <- 1..100 do
        fail(s)
        VirtualClock.advance(clock, 249)
        assert state(s) == :open
        VirtualClock.advance(clock, 1)
        assert state(s) == :closed
      end
    end

    test "is told to the refused caller as what is left of it", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 1000])
      fail(s)
      VirtualClock.advance(clock, 400)
      assert {:error, %CircuitBreakerOpen{context: %{service: ^s, retry_after: 600}}} = fail(s)
      VirtualClock.advance(clock, 599)
      assert {:error, %CircuitBreakerOpen{context: %{retry_after: 1}}} = fail(s)
    end
  end

  describe "reset/1" do
    test "closes at once and forgets the failures", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, reset: 100])
      melt(s, 2)
      assert state(s) == :open
      assert ExternalService.reset(s) == :ok
      assert state(s) == :closed
      melt(s)
      assert state(s) == :closed
      VirtualClock.advance(clock, 1)
      melt(s)
      assert state(s) == :open
    end

    test "of a closed breaker empties its window", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 1])
      melt(s)
      ExternalService.reset(s)
      melt(s)
      assert state(s) == :closed
    end

    test "leaves it closed for ever when nothing fails any more", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, reset: 100])
      melt(s, 2)
      ExternalService.reset(s)

      for ms <- [1, 98, 1, 1, :timer.hours(24), :timer.hours(24 * 365)] do
        VirtualClock.advance(clock, ms)
        assert state(s) == :closed
      end
    end

    test "during an attempt makes that attempt's failure count for nothing", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 0])
      open_and_reset = fn -> melt(s) && ExternalService.reset(s) && :retry end
      ExternalService.call(s, [max_attempts: 1], open_and_reset)
      assert state(s) == :closed
    end
  end

  describe "a late failure" do
    test "of a call admitted before the breaker opened and closed again changes nothing", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 10])

      late = fn ->
        melt(s)
        VirtualClock.advance(clock, 10)
        :closed = state(s)
        :retry
      end

      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, [max_attempts: 1], late)
      assert state(s) == :closed
    end
  end

  describe "many processes" do
    test "that fail together open the breaker exactly once", %{service: s} do
      for _ <- 1..20 do
        ExternalService.start(s, circuit_breaker: [tolerate: 20])
        id = Recorder.attach(s, [[:circuit_breaker, :opened], [:circuit_breaker, :closed]])
        together(50, fn _ -> fail(s) end)
        assert Recorder.names() == [[:circuit_breaker, :opened]]
        assert state(s) == :open
        Telemetry.detach(id)
      end
    end

    test "that fail as often as is tolerated leave it closed, and one more opens it", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 400, within: :timer.hours(1)])
      together(40, fn _ -> melt(s, 10) end)
      assert state(s) == :closed
      melt(s)
      assert state(s) == :open
    end

    test "run exactly the calls that were let through, while the breaker opens and closes under them", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 3, reset: 1])
      ran = :counters.new(1, [])

      results =
        together(8, fn n ->
          for k <- 1..2000 do
            ExternalService.call(s, [max_attempts: 1], fn ->
              :counters.add(ran, 1, 1)
              if rem(n * k, 5) == 0, do: :retry, else: :fine
            end)
          end
        end)

      refused = results |> List.flatten() |> Enum.count(&match?({:error, %CircuitBreakerOpen{}}, &1))
      assert :counters.get(ran, 1) == 8 * 2000 - refused
      assert refused > 0
    end

    test "run their calls at the same time", %{service: s} do
      ExternalService.start(s)
      parent = self()

      meet = fn n ->
        ExternalService.call(s, fn ->
          send(parent, {:inside, n, self()})
          receive(do: (:go -> n))
        end)
      end

      tasks = for n <- 1..10, do: Task.async(fn -> meet.(n) end)
      pids = for n <- 1..10, do: receive(do: ({:inside, ^n, pid} -> pid))
      Enum.each(pids, &send(&1, :go))
      assert Task.await_many(tasks) == Enum.to_list(1..10)
    end
  end

  describe "fault injection" do
    test "of 1.0 refuses every attempt of a closed breaker", %{service: s} do
      start_on_clock(s, circuit_breaker: [fault_injection: 1.0])
      Recorder.attach(s, [[:circuit_breaker, :blown], [:circuit_breaker, :opened]])
      for _ <- 1..50, do: assert({:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(1)))
      assert attempts() == 0
      assert Recorder.names() == List.duplicate([:circuit_breaker, :blown], 50)
      assert CircuitBreaker.ask(s) == :blown
      refute ExternalService.available?(s)
    end

    test "of a half refuses about half", %{service: s} do
      start_on_clock(s, circuit_breaker: [fault_injection: 0.5])
      answers = for _ <- 1..2000, do: ExternalService.call(s, fn -> :fine end)
      assert Enum.count(answers, &(&1 == :fine)) in 850..1150
      assert Enum.count(for(_ <- 1..2000, do: ExternalService.available?(s)), & &1) in 850..1150
    end

    test "does not keep real failures from opening the breaker, and goes on after the reset", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, reset: 100, fault_injection: 0.5])
      melt(s, 2)
      assert state(s) == :open
      refute Enum.any?(1..100, fn _ -> ExternalService.available?(s) end)
      VirtualClock.advance(clock, 100)
      answers = for _ <- 1..200, do: ExternalService.call(s, fn -> :fine end)
      assert Enum.any?(answers, &(&1 == :fine))
      assert Enum.any?(answers, &match?({:error, %CircuitBreakerOpen{}}, &1))
    end

    test "refuses from the moment the open time is over", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 100, fault_injection: 1.0])
      melt(s)
      VirtualClock.advance(clock, 100)
      refute ExternalService.available?(s)
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, fn -> :fine end)
    end

    test "is warned of when the service starts", %{service: s} do
      log = capture_log(fn -> ExternalService.start(s, circuit_breaker: [fault_injection: 0.1]) end)
      assert log =~ inspect(s)
      assert log =~ ~r/fault/i
      assert log =~ "[warn"

      log = capture_log(fn -> ExternalService.start(s) end)
      refute log =~ ~r/#{Regex.escape(inspect(s))}.*fault/i
    end
  end

  describe "any sequence of failures, successes, waits and resets" do
    # The rules, written down again in the plainest way: the failures in the window, and when it opened.
    defp expected(:reset, _model, _now, _limits), do: {[], nil}

    defp expected(step, {failures, nil}, now, {tolerate, within, _reset}) when step in [:melt, :failing_call] do
      failures = [now | Enum.filter(failures, &(now - &1 < within))]
      if length(failures) > tolerate, do: {[], now}, else: {failures, nil}
    end

    defp expected(_step, model, _now, _limits), do: model

    defp let_time_pass({_, opened}, now, {_, _, reset}) when is_integer(opened) and now - opened >= reset, do: {[], nil}
    defp let_time_pass(model, _now, _limits), do: model

    defp act(:melt, s, _clock), do: melt(s)
    defp act(:failing_call, s, _clock), do: fail(s)
    defp act(:success, s, _clock), do: ExternalService.call(s, fn -> :fine end)
    defp act(:reset, s, _clock), do: ExternalService.reset(s)
    defp act({:advance, ms}, _s, clock), do: VirtualClock.advance(clock, ms)

    defp seen(s), do: {state(s), ExternalService.available?(s), ExternalService.blown?(s)}

    defp follows?([], _model, _s, _clock, _limits), do: true

    defp follows?([step | steps], model, s, clock, limits) do
      model = expected(step, model, VirtualClock.now(clock), limits)
      act(step, s, clock)
      {_, opened} = model = let_time_pass(model, VirtualClock.now(clock), limits)
      seen = if opened, do: {:open, false, true}, else: {:closed, true, false}
      seen(s) == seen and follows?(steps, model, s, clock, limits)
    end

    @tag :property
    test "leaves the breaker in the state that the plain rules give", %{service: s} do
      import :proper_types

      step = frequency([{4, :melt}, {4, :failing_call}, {2, :success}, {4, {:advance, integer(1, 60)}}, {1, :reset}])
      limits = {integer(0, 4), integer(1, 100), integer(0, 100)}

      check({limits, list(step)}, 2_000, fn {{tolerate, within, reset} = limits, steps} ->
        clock = start_on_clock(s, circuit_breaker: [tolerate: tolerate, within: within, reset: reset])
        follows?(steps, {[], nil}, s, clock, limits)
      end)
    end
  end
end
