# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Guides.CircuitBreakersTest do
  use ExternalService.Case, async: true

  doctest ExternalService.Documents.CircuitBreakers

  @changes [[:circuit_breaker, :opened], [:circuit_breaker, :half_opened], [:circuit_breaker, :closed]]

  defp state(service), do: ExternalService.state(service)
  defp succeed(service), do: ExternalService.call(service, fn -> :fine end)
  defp fail_times(service, count), do: Enum.each(1..count, fn _ -> fail(service) end)
  defp succeed_times(service, count), do: Enum.each(1..count, fn _ -> succeed(service) end)

  defp start_breaker(service, breaker), do: start_on_clock(service, circuit_breaker: breaker)

  # Opens the breaker, lets the open time pass and returns the clock.
  defp start_half_open(service, breaker) do
    clock = start_breaker(service, [consecutive: 1, half_open: true] ++ breaker)
    fail(service)
    VirtualClock.advance(clock, ExternalService.counts(service).retry_after)
    assert state(service) == :half_open
    clock
  end

  defp call_taking(service, clock, ms) do
    ExternalService.call(service, fn -> VirtualClock.advance(clock, ms) end)
  end

  # A process that is let through, says so, and holds its permit until it is told to report.
  defp hold_permit(service) do
    test = self()

    holder =
      spawn(fn ->
        send(test, {:admitted, self(), CircuitBreaker.admit(service)})
        receive do: ({:report, permit, outcome} -> send(test, {:reported, CircuitBreaker.report(permit, outcome)}))
      end)

    assert_receive {:admitted, ^holder, {:ok, permit}}
    {holder, permit}
  end

  describe "choosing a rule:" do
    test "tolerate 15 within 10 s opens on the 16th failure within 10 s", %{service: s} do
      clock = start_breaker(s, tolerate: 15, within: 10_000)
      fail_times(s, 15)
      VirtualClock.advance(clock, 10_000)
      fail(s)
      assert state(s) == :closed

      clock = start_breaker(s, tolerate: 15, within: 10_000)
      fail_times(s, 15)
      VirtualClock.advance(clock, 9_999)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "a failure rate of 0.5 needs half of at least 20 calls to fail", %{service: s} do
      start_breaker(s, failure_rate: 0.5, min_calls: 20, window: {:time, 60_000})
      fail_times(s, 19)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open

      start_breaker(s, failure_rate: 0.5, min_calls: 20, window: {:time, 60_000})
      succeed_times(s, 11)
      fail_times(s, 10)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "a window of a minute has forgotten the calls of the last one", %{service: s} do
      clock = start_breaker(s, failure_rate: 0.5, min_calls: 20, window: {:time, 60_000})
      fail_times(s, 19)
      VirtualClock.advance(clock, 120_000)
      fail(s)
      assert {state(s), ExternalService.counts(s).calls} == {:closed, 1}
    end

    test "a window of 100 calls keeps them overnight", %{service: s} do
      clock = start_breaker(s, failure_rate: 0.5, window: {:calls, 100})
      fail_times(s, 19)
      VirtualClock.advance(clock, :timer.hours(12))
      fail(s)
      assert state(s) == :open
    end

    test "consecutive 5 opens on the 5th failure without a success between", %{service: s} do
      start_breaker(s, consecutive: 5)
      fail_times(s, 4)
      succeed(s)
      fail_times(s, 4)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
    end

    test "a slow call of 2 s opens when half of 20 calls took 2 s or longer", %{service: s} do
      clock = start_breaker(s, slow_call: 2_000, slow_rate: 0.5)
      for _ <- 1..10, do: call_taking(s, clock, 1_999)
      for _ <- 1..9, do: call_taking(s, clock, 2_000)
      assert state(s) == :closed
      call_taking(s, clock, 2_000)
      assert state(s) == :open
    end

    test "with more traffic the same share of failures crosses tolerate", %{service: s} do
      start_breaker(s, tolerate: 15, within: 10_000)
      for _ <- 1..16, do: succeed_times(s, 9) && fail(s)
      assert state(s) == :open

      start_breaker(s, failure_rate: 0.5)
      for _ <- 1..16, do: succeed_times(s, 9) && fail(s)
      assert state(s) == :closed
    end

    test "tolerate is 10 without a rule, and off with another one unless it is given", %{service: s} do
      start_breaker(s, [])
      fail_times(s, 10)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open

      start_breaker(s, consecutive: 100)
      fail_times(s, 99)
      assert state(s) == :closed

      start_breaker(s, consecutive: 100, tolerate: 10)
      fail_times(s, 11)
      assert state(s) == :open
    end

    test "tolerate: :infinity alone is no breaker", %{service: s} do
      start_breaker(s, tolerate: :infinity)
      fail_times(s, 1_000)
      assert state(s) == :closed
    end
  end

  describe "sized against retries:" do
    test "tolerate 15 opens on the first attempt of the fourth call of 5 attempts", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 15], retry: [max_attempts: 5])

      for _ <- 1..3, do: assert({:error, %RetriesExhausted{}} = ExternalService.call(s, attempting(:retry)))
      assert {attempts(), state(s)} == {15, :closed}
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(:retry))
      assert {attempts(), state(s)} == {1, :open}
    end

    test "melt: :per_call with tolerate 3 opens with the fourth call that gave up", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 3, melt: :per_call], retry: [max_attempts: 5])
      for _ <- 1..3, do: ExternalService.call(s, attempting(:retry))
      assert {attempts(), state(s)} == {15, :closed}
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), state(s)} == {5, :open}
    end

    test "with base 1 s and cap 2 s a call takes 7 s, and 16 failures 21 s", %{service: s} do
      retry = [base: 1_000, cap: 2_000, max_attempts: 5]
      clock = start_on_clock(s, circuit_breaker: [tolerate: 15], retry: retry)
      ExternalService.call(s, fn -> :retry end)
      assert VirtualClock.now(clock) == 7_000
      for _ <- 1..2, do: ExternalService.call(s, fn -> :retry end)
      ExternalService.call(s, [max_attempts: 1], fn -> :retry end)
      assert {VirtualClock.now(clock), state(s)} == {21_000, :open}
    end

    test "within 5 s never opens at that pace", %{service: s} do
      retry = [base: 1_000, cap: 2_000, max_attempts: 5]
      start_on_clock(s, circuit_breaker: [tolerate: 15, within: 5_000], retry: retry)
      for _ <- 1..50, do: assert({:error, %RetriesExhausted{}} = ExternalService.call(s, fn -> :retry end))
      assert state(s) == :closed
    end

    test "within: :auto is twice the 28 s that four failing calls need", %{service: s} do
      assert seconds_kept(s, base: 1_000, cap: 2_000, max_attempts: 5) == 56
    end

    test "within: :auto is at least 10 s", %{service: s} do
      assert seconds_kept(s, base: 0, max_attempts: 5) == 10
    end

    # For how many seconds a failure counts.
    defp seconds_kept(service, retry) do
      clock = start_on_clock(service, circuit_breaker: [tolerate: 15], retry: retry)
      fail(service)

      Enum.find(1..100, fn _second ->
        VirtualClock.advance(clock, 1_000)
        ExternalService.counts(service).failures == 0
      end)
    end
  end

  describe "half-open:" do
    test "without it all traffic returns when the open time is over", %{service: s} do
      clock = start_breaker(s, consecutive: 1, reset: 5_000)
      fail(s)
      VirtualClock.advance(clock, 5_000)
      for _ <- 1..3, do: assert({:ok, _permit} = CircuitBreaker.admit(s))
    end

    test "true lets one call through and refuses the others until it is back", %{service: s} do
      start_half_open(s, [])
      assert {:ok, probe} = CircuitBreaker.admit(s)
      assert {:error, %CircuitBreakerOpen{}} = CircuitBreaker.admit(s)
      CircuitBreaker.report(probe, :success)
      assert {state(s), succeed(s)} == {:closed, :fine}
    end

    test "probes 3 lets three out at once and closes when all three came back well", %{service: s} do
      start_half_open_with(s, probes: 3)
      probes = for _ <- 1..3, do: elem(CircuitBreaker.admit(s), 1)
      assert {:error, %CircuitBreakerOpen{}} = CircuitBreaker.admit(s)
      for probe <- Enum.take(probes, 2), do: CircuitBreaker.report(probe, :success)
      assert state(s) == :half_open
      CircuitBreaker.report(List.last(probes), :success)
      assert state(s) == :closed
    end

    test "successes may be more than probes", %{service: s} do
      start_half_open_with(s, probes: 1, successes: 5)
      succeed_times(s, 4)
      assert state(s) == :half_open
      succeed(s)
      assert state(s) == :closed
    end

    test "a failed probe opens for another open time, and says so", %{service: s} do
      clock = start_half_open(s, reset: 5_000)
      Recorder.attach(s, @changes)
      fail(s)
      assert %{from: :half_open, to: :open, rule: nil, retry_after: 5_000} = Recorder.one([:circuit_breaker, :opened])
      VirtualClock.advance(clock, 4_999)
      assert state(s) == :open
      VirtualClock.advance(clock, 1)
      assert state(s) == :half_open
    end

    test "a probe that ends without an outcome gives its place back and decides nothing", %{service: s} do
      start_half_open(s, [])
      assert_raise ArgumentError, fn -> ExternalService.call(s, fn -> raise ArgumentError end) end
      assert {state(s), ExternalService.counts(s).probes} == {:half_open, 0}
      assert {:ok, probe} = CircuitBreaker.admit(s)
      CircuitBreaker.report(probe, :ignore)
      assert ExternalService.available?(s)
    end

    test "the place of a holder that dies is free without time passing", %{service: s} do
      start_half_open(s, [])
      {holder, _permit} = hold_permit(s)
      refute ExternalService.available?(s)
      Process.exit(holder, :kill)
      assert eventually(fn -> ExternalService.available?(s) end)
      assert {:ok, _probe} = CircuitBreaker.admit(s)
    end

    test "a probe that hangs is replaced after reset, and its late report is not heard", %{service: s} do
      clock = start_half_open(s, reset: 5_000)
      {holder, permit} = hold_permit(s)
      VirtualClock.advance(clock, 4_999)
      refute ExternalService.available?(s)
      VirtualClock.advance(clock, 1)
      assert {:ok, _probe} = CircuitBreaker.admit(s)
      send(holder, {:report, permit, :success})
      assert_receive {:reported, :ok}
      assert {state(s), ExternalService.counts(s).probes} == {:half_open, 1}
    end

    test "a call from before the opening neither closes nor opens it", %{service: s} do
      clock = start_breaker(s, consecutive: 1, reset: 5_000, half_open: true)
      {:ok, early} = CircuitBreaker.admit(s)
      {:ok, early_too} = CircuitBreaker.admit(s)
      fail(s)
      VirtualClock.advance(clock, 5_000)
      CircuitBreaker.report(early, :success)
      CircuitBreaker.report(early_too, :failure)
      assert state(s) == :half_open
    end

    test "code that asks before it calls recovers without any call", %{service: s} do
      clock = start_breaker(s, consecutive: 1, reset: 5_000, half_open: true)
      fail(s)
      refute ExternalService.available?(s)
      VirtualClock.advance(clock, 5_000)
      assert ExternalService.available?(s)
    end

    defp start_half_open_with(service, half_open) do
      clock = start_breaker(service, consecutive: 1, half_open: half_open)
      fail(service)
      VirtualClock.advance(clock, 60_000)
      assert state(service) == :half_open
    end
  end

  describe "open times:" do
    test "double from 5 s to 60 s while probes fail, and start at 5 s after closing", %{service: s} do
      backoff = [factor: 2, max: 60_000]
      clock = start_breaker(s, consecutive: 1, reset: 5_000, half_open: true, reset_backoff: backoff)
      assert for(_ <- 1..6, do: open_time(s, clock)) == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]
      succeed(s)
      assert open_time(s, clock) == 5_000
    end

    test "can not be longer than their maximum from the start", %{service: s} do
      breaker = [reset: 5_000, half_open: true, reset_backoff: [max: 4_999]]
      assert %ArgumentError{} = raised(fn -> start_breaker(s, breaker) end)
    end

    test "do not grow where there are no probes to fail", %{service: s} do
      clock = start_breaker(s, consecutive: 1, reset: 5_000, reset_backoff: [max: 60_000])
      assert for(_ <- 1..3, do: open_time(s, clock)) == [5_000, 5_000, 5_000]
    end

    test "of 10 s with a jitter of 0.2 lie between 8 s and 12 s, and near both", %{service: s} do
      clock = start_breaker(s, consecutive: 1, reset: 10_000, reset_jitter: 0.2)
      {shortest, longest} = Enum.min_max(for _ <- 1..500, do: open_time(s, clock))
      assert shortest in 8_000..8_400
      assert longest in 11_600..12_000
    end

    test "are followed by a ramp: a tenth at first, half after 15 s, all after 30 s", %{service: s} do
      clock = start_breaker(s, tolerate: 0, ramp_up: 30_000)
      open_time(s, clock)
      assert_in_delta let_through(s), 1_000, 150
      VirtualClock.advance(clock, 15_000)
      assert_in_delta let_through(s), 5_000, 250
      VirtualClock.advance(clock, 15_000)
      assert let_through(s) == 10_000
    end

    test "the ramp refuses with a retry_after of 0 while the state is closed", %{service: s} do
      clock = start_breaker(s, tolerate: 0, ramp_up: 30_000)
      open_time(s, clock)
      {:error, error} = Enum.find(Stream.repeatedly(fn -> succeed(s) end), &(&1 != :fine))
      assert {error.context.retry_after, state(s)} == {0, :closed}
    end

    test "that a hand ends are not followed by a ramp", %{service: s} do
      start_breaker(s, tolerate: 0, ramp_up: 30_000)
      fail(s)
      ExternalService.close(s)
      assert let_through(s) == 10_000
    end

    # Opens the breaker, lets its open time pass and returns how long that was.
    defp open_time(service, clock) do
      fail(service)
      %{state: :open, retry_after: ms} = ExternalService.counts(service)
      VirtualClock.advance(clock, ms)
      ms
    end

    defp let_through(service), do: Enum.count(1..10_000, fn _ -> succeed(service) == :fine end)
  end

  describe "by hand:" do
    test "open/2 with for: goes on as after an open time when that is over", %{service: s} do
      for {half_open, state} <- [{false, :closed}, {true, :half_open}] do
        clock = start_breaker(s, tolerate: 0, half_open: half_open)
        ExternalService.open(s, for: 60_000)
        VirtualClock.advance(clock, 59_999)
        assert state(s) == :forced_open
        VirtualClock.advance(clock, 1)
        assert state(s) == state
      end
    end

    test "open/1 refuses until close/1 or reset/1", %{service: s} do
      for close <- [&ExternalService.close/1, &ExternalService.reset/1] do
        clock = start_breaker(s, [])
        ExternalService.open(s)
        VirtualClock.advance(clock, :timer.hours(24 * 365))
        assert {:error, %CircuitBreakerOpen{context: %{retry_after: :infinity}}} = succeed(s)
        close.(s)
        assert {state(s), succeed(s)} == {:closed, :fine}
      end
    end

    test "close/1 of a closed breaker keeps the counts, reset/1 forgets them", %{service: s} do
      start_breaker(s, tolerate: 5)
      fail_times(s, 3)
      ExternalService.close(s)
      assert ExternalService.counts(s).failures == 3
      ExternalService.reset(s)
      assert ExternalService.counts(s).failures == 0
    end

    test "bypass/1 lets every call out, counts it, and no rule opens", %{service: s} do
      start_breaker(s, failure_rate: 0.5, min_calls: 2)
      ExternalService.bypass(s)
      for _ <- 1..5, do: assert({:error, %RetriesExhausted{}} = fail(s))
      assert %{state: :bypassed, failures: 5, calls: 5} = ExternalService.counts(s)
      ExternalService.close(s)
      assert %{state: :closed, failures: 0, calls: 0} = ExternalService.counts(s)
    end

    test "a forced state survives start/2 and reconfigure/2, not stop/1", %{service: s} do
      for {force, state} <- [{&ExternalService.open/1, :forced_open}, {&ExternalService.bypass/1, :bypassed}] do
        start_breaker(s, [])
        force.(s)
        start_breaker(s, tolerate: 3)
        assert state(s) == state
        ExternalService.reconfigure(s, circuit_breaker: [tolerate: 4])
        assert state(s) == state
        ExternalService.stop(s)
        start_breaker(s, [])
        assert state(s) == :closed
      end
    end
  end

  describe "outside of call:" do
    test "a reported duration is what slow_call looks at", %{service: s} do
      start_breaker(s, slow_call: 2_000, min_calls: 1)
      {:ok, permit} = CircuitBreaker.admit(s)
      CircuitBreaker.report(permit, :success, 1_999)
      assert state(s) == :closed
      {:ok, permit} = CircuitBreaker.admit(s)
      CircuitBreaker.report(permit, :success, 2_000)
      assert state(s) == :open
    end

    test "only the first report of a probe's permit counts", %{service: s} do
      start_half_open_with(s, probes: 1, successes: 2)
      {:ok, probe} = CircuitBreaker.admit(s)
      CircuitBreaker.report(probe, :success)
      CircuitBreaker.report(probe, :success)
      CircuitBreaker.report(probe, :failure)
      assert state(s) == :half_open
    end

    test "only the first report of any permit counts, whichever process makes it", %{service: s} do
      start_breaker(s, consecutive: 2)
      {:ok, permit} = CircuitBreaker.admit(s)
      Task.await(Task.async(fn -> CircuitBreaker.report(permit, :failure) end))
      CircuitBreaker.report(permit, :failure)
      assert {state(s), ExternalService.counts(s).consecutive} == {:closed, 1}
      fail(s)
      assert state(s) == :open
    end

    test "melt/1 counts while closed or bypassed, and not while open or half-open", %{service: s} do
      clock = start_breaker(s, consecutive: 2, reset: 1_000, half_open: true)
      CircuitBreaker.melt(s)
      assert ExternalService.counts(s).consecutive == 1
      ExternalService.bypass(s)
      CircuitBreaker.melt(s)
      assert ExternalService.counts(s).consecutive == 2
      ExternalService.close(s)
      for _ <- 1..2, do: fail(s)
      CircuitBreaker.melt(s)
      VirtualClock.advance(clock, 1_000)
      CircuitBreaker.melt(s)
      assert %{state: :half_open, consecutive: 2} = ExternalService.counts(s)
    end

    test "ask/1 takes no place", %{service: s} do
      start_half_open(s, [])
      for _ <- 1..3, do: assert(CircuitBreaker.ask(s) == :ok)
      assert {:ok, _probe} = CircuitBreaker.admit(s)
      assert CircuitBreaker.ask(s) == :blown
    end
  end

  test "the event of an opening tells the rule and what it had counted", %{service: s} do
    clock = start_breaker(s, failure_rate: 0.5, min_calls: 2, reset: 60_000)
    Recorder.attach(s, @changes)
    fail_times(s, 2)
    opened = Recorder.one([:circuit_breaker, :opened])
    assert %{rule: :failure_rate, failures: 2, calls: 2, rate: 1.0, retry_after: 60_000, service: ^s} = opened
    assert %{calls: 2, failures: 2} = ExternalService.counts(s)
    VirtualClock.advance(clock, 60_000)
    assert %{calls: 0, failures: 0} = ExternalService.counts(s)
  end

  test "every change and every refusal is an event, also without traffic", %{service: s} do
    clock = start_breaker(s, consecutive: 1, reset: 1, half_open: true)
    Recorder.attach(s, [[:circuit_breaker, :blown] | @changes])
    fail_times(s, 2)
    VirtualClock.advance(clock, 1)
    assert state(s) == :half_open
    succeed(s)
    assert for([_, name] <- Recorder.names(), do: name) == [:opened, :blown, :half_opened, :closed]
  end

  describe "coming from fuse:" do
    test "an open time does not end by that of a stopped service of the same name", %{service: s} do
      clock = VirtualClock.new()
      options = [clock: clock, circuit_breaker: [tolerate: 0, reset: 100]]
      ExternalService.start(s, options)
      fail(s)
      ExternalService.stop(s)
      ExternalService.start(s, options)
      VirtualClock.advance(clock, 60)
      fail(s)
      VirtualClock.advance(clock, 99)
      assert state(s) == :open
    end

    test "fault_injection refuses its share", %{service: s} do
      start_breaker(s, fault_injection: 0.5, tolerate: 3)
      assert_in_delta let_through(s), 5_000, 250
    end

    test "reset/1 lets calls through again where open/1 has disabled them, as close/1 does", %{service: s} do
      for enable <- [&ExternalService.close/1, &ExternalService.reset/1] do
        start_breaker(s, tolerate: 0)
        ExternalService.open(s)
        fail(s)
        enable.(s)
        assert {state(s), succeed(s)} == {:closed, :fine}
      end
    end

    test "a melt of an unknown name is an error", %{service: s} do
      assert CircuitBreaker.melt(s) == {:error, :not_found}
    end

    test "a handler that raises is detached and the breaker stays", %{service: s} do
      start_breaker(s, tolerate: 0)
      id = {s, :raising}
      opened = [:external_service, :circuit_breaker, :opened]
      :ok = Telemetry.attach(id, opened, &__MODULE__.raise_for/4, s)
      fail(s)
      assert state(s) == :open
      assert Telemetry.detach(id) == {:error, :not_found}
    end

    @doc false
    def raise_for(_event, _measurements, %{service: service}, service), do: raise("a handler")
    def raise_for(_event, _measurements, _metadata, _service), do: :ok
  end

  describe "coming from Moleculer:" do
    test "failures on both sides of a whole minute are counted together", %{service: s} do
      clock = start_breaker(s, failure_rate: 0.5, window: {:time, 60_000}, min_calls: 20)
      VirtualClock.advance(clock, 59_000)
      fail_times(s, 10)
      VirtualClock.advance(clock, 2_000)
      fail_times(s, 10)
      assert state(s) == :open
    end

    test "each event tells the state left and the state reached, after a failed probe, too", %{service: s} do
      start_half_open(s, [])
      Recorder.attach(s, @changes)
      fail(s)
      assert %{from: :half_open, to: :open} = Recorder.one([:circuit_breaker, :opened])
    end

    test "the open time may be longer than the window, and a probe follows it", %{service: s} do
      breaker = [failure_rate: 0.5, min_calls: 1, window: {:time, 1_000}, reset: 10_000, half_open: true]
      clock = start_breaker(s, breaker)
      fail(s)
      VirtualClock.advance(clock, 9_999)
      assert state(s) == :open
      VirtualClock.advance(clock, 1)
      assert state(s) == :half_open
    end

    test "a reset of 10 s is the lease of 10 s", %{service: s} do
      clock = start_half_open(s, reset: 10_000)
      {:ok, _hanging} = CircuitBreaker.admit(s)
      VirtualClock.advance(clock, 9_999)
      refute ExternalService.available?(s)
      VirtualClock.advance(clock, 1)
      assert ExternalService.available?(s)
    end
  end

  describe "coming from circuitbreaker-rs:" do
    test "its defaults can be written", %{service: s} do
      half_open = [probes: 6, successes: 3]
      breaker = [failure_rate: 0.5, min_calls: 10, consecutive: 5, reset: 30_000, half_open: half_open]
      clock = start_breaker(s, breaker)
      fail_times(s, 5)
      assert ExternalService.counts(s).retry_after == 30_000
      VirtualClock.advance(clock, 30_000)
      for _ <- 1..6, do: assert({:ok, _probe} = CircuitBreaker.admit(s))
      assert {:error, %CircuitBreakerOpen{}} = CircuitBreaker.admit(s)
    end

    test "a rate of 0.5 of 10 calls opens, and three good probes close", %{service: s} do
      half_open = [probes: 6, successes: 3]
      clock = start_breaker(s, failure_rate: 0.5, min_calls: 10, reset: 30_000, half_open: half_open)
      for _ <- 1..4, do: succeed(s) && fail(s)
      succeed(s)
      assert state(s) == :closed
      fail(s)
      assert state(s) == :open
      VirtualClock.advance(clock, 30_000)
      succeed_times(s, 2)
      assert state(s) == :half_open
      succeed(s)
      assert state(s) == :closed
    end

    test "successes from before a forced opening count for nothing half-open", %{service: s} do
      clock = start_breaker(s, consecutive: 5, half_open: [probes: 1, successes: 3])
      succeed_times(s, 10)
      ExternalService.open(s, for: 1_000)
      VirtualClock.advance(clock, 1_000)
      succeed_times(s, 2)
      assert state(s) == :half_open
      succeed(s)
      assert state(s) == :closed
    end

    test "a long healthy history does not dilute the rate", %{service: s} do
      clock = start_breaker(s, failure_rate: 0.5)
      succeed_times(s, 10_000)
      VirtualClock.advance(clock, 120_000)
      fail_times(s, 20)
      assert state(s) == :open
    end

    test "many callers at once do not get more probes than there are", %{service: s} do
      start_half_open_with(s, probes: 6)
      test = self()

      # Who is through stays alive until the count is taken, so that no place comes back.
      for _ <- 1..50 do
        spawn_link(fn ->
          send(test, {:admission, CircuitBreaker.admit(s)})
          receive do: (:never -> :ok)
        end)
      end

      admissions = for _ <- 1..50, do: assert_receive({:admission, admission}) && admission
      assert Enum.count(admissions, &match?({:ok, _probe}, &1)) == 6
    end

    test "thresholds outside of 0 to 1 raise when the service starts", %{service: s} do
      for rate <- [-0.1, 1.1] do
        assert raised(fn -> start_breaker(s, failure_rate: rate) end).key == :failure_rate
      end
    end
  end
end
