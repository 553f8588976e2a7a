# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CallLimitsTest do
  # A call passes the breaker, then the rate limit, then the concurrency limit, then its function.
  use ExternalService.Case, async: true
  import ExternalService.Callers

  alias ExternalService.{Concurrency, PlainLimiter, RateLimited, RateLimiter, ServiceSaturated}

  @sleep [:rate_limit, :sleep]
  @throttled [:rate_limit, :rejected]
  @saturated [:concurrency, :rejected]
  @waited [:concurrency, :waited]
  @retry [:call, :retry]
  @blown [:circuit_breaker, :blown]
  @opened [:circuit_breaker, :opened]
  @all [[:call, :start], [:call, :stop], [:call, :exception], @retry, @blown, @opened] ++
         [@sleep, @throttled, @saturated, @waited]

  defmodule Limited do
    use ExternalService, concurrency: [limit: 1], rate_limit: [limit: 1, per: 60_000, wait: false]
  end

  # Breaker, rate limit and concurrency limit on a clock that only the test moves.
  defp start(service, options \\ []) do
    defaults = [
      sleep_function: recording_sleep(),
      circuit_breaker: [tolerate: 0, reset: 1000],
      rate_limit: [limit: 2, per: 1000, wait: false],
      concurrency: [limit: 1]
    ]

    start_on_clock(service, Keyword.merge(defaults, options))
  end

  defp call(service, options \\ []), do: ExternalService.call(service, options, attempting(:ran))

  describe "an open breaker" do
    test "refuses before the rate limit is asked", %{service: s} do
      ExternalService.start(s,
        circuit_breaker: [tolerate: 0],
        rate_limit: [limit: 1, per: 1, backend: PlainLimiter.backend()]
      )

      fail(s)
      assert [{:init, _, _}, :check] = PlainLimiter.calls()
      for _ <- 1..3, do: assert({:error, %CircuitBreakerOpen{}} = call(s))
      assert PlainLimiter.calls() == []
    end

    test "is what a caller hears of, though the other limits are used up too", %{service: s} do
      start(s)
      hold(s)
      RateLimiter.request(s)
      CircuitBreaker.melt(s)
      Recorder.attach(s, @all)
      assert {:error, %CircuitBreakerOpen{}} = call(s)
      assert Recorder.names() == [[:call, :start], @blown, [:call, :stop]]
    end

    test "costs no call its share of the rate, and no slot", %{service: s} do
      clock = start(s)
      CircuitBreaker.melt(s)
      for _ <- 1..50, do: assert({:error, %CircuitBreakerOpen{}} = call(s))
      VirtualClock.advance(clock, 1000)
      assert counts(s) == {0, 0}
      assert [call(s), call(s)] == [:ran, :ran]
      assert {:error, %RateLimited{}} = call(s)
    end
  end

  describe "the rate limit" do
    test "refuses before a slot is asked for", %{service: s} do
      start(s)
      hold(s)
      RateLimiter.request(s)
      Recorder.attach(s, @all)
      assert {:error, %RateLimited{}} = call(s)
      assert Recorder.names() == [[:call, :start], @throttled, [:call, :stop]]
    end

    test "lets a call wait that holds no slot meanwhile", %{service: s} do
      seen = self()

      ExternalService.start(s,
        rate_limit: [limit: 1, per: 1000],
        concurrency: [limit: 1],
        sleep_function: fn ms -> send(seen, {:asleep, ms, counts(s)}) end
      )

      assert [call(s), call(s)] == [:ran, :ran]
      assert_received {:asleep, _ms, {0, 0}}
    end

    test "is used by a call whose function fails, raises, throws or exits", %{service: s} do
      start(s, circuit_breaker: [tolerate: :infinity], rate_limit: [limit: 4, per: 1000, wait: false])
      fail(s)
      assert_raise KeyError, fn -> ExternalService.call(s, fn -> raise KeyError, key: 1 end) end
      assert catch_throw(ExternalService.call(s, fn -> throw(:ball) end)) == :ball
      assert catch_exit(ExternalService.call(s, fn -> exit(:gone) end)) == :gone
      assert counts(s) == {0, 0}
      assert {:error, %RateLimited{}} = call(s)
    end
  end

  describe "a saturated call" do
    test "gives back what it took from the rate limit", %{service: s} do
      start(s, rate_limit: [limit: 3, per: 1000, wait: false])
      holder = hold(s)
      for _ <- 1..50, do: refused(s)
      finish(holder)
      assert [call(s), call(s)] == [:ran, :ran]
      assert {:error, %RateLimited{context: %{retry_after: 334}}} = call(s)
    end

    test "gives back all that it cost", %{service: s} do
      start(s, rate_limit: [limit: 10, per: 1000, wait: false])
      holder = hold(s)
      for _ <- 1..10, do: assert({:error, %ServiceSaturated{}} = call(s, cost: 9))
      finish(holder)
      assert call(s, cost: 9) == :ran
      assert {:error, %RateLimited{}} = call(s)
    end

    test "gives back the place that it had booked and slept for", %{service: s} do
      clock = start_on_clock(s, rate_limit: [limit: 1, per: 1000, wait: 1000], concurrency: [limit: 1])
      holder = hold(s)
      refused(s)
      assert VirtualClock.now(clock) == 1000
      finish(holder)
      assert call(s) == :ran
      assert VirtualClock.now(clock) == 1000
    end

    test "gives back no more than it took, though time has passed", %{service: s} do
      options = [rate_limit: [limit: 2, per: 1000, wait: false], concurrency: [limit: 1, wait: 5000]]
      clock = start(s, options)
      holder = hold(s)
      refused(s)
      assert VirtualClock.now(clock) == 5000
      finish(holder)
      assert [call(s), call(s)] == [:ran, :ran]
      assert {:error, %RateLimited{}} = call(s)
    end

    test "is not retried and melts nothing, in either way of melting", %{service: s} do
      for melt <- [:per_attempt, :per_call] do
        start(s, circuit_breaker: [tolerate: 0, melt: melt])
        holder = hold(s)
        Recorder.attach(s, [@retry, @opened])
        for _ <- 1..20, do: assert({:error, %ServiceSaturated{}} = call(s, max_attempts: 10))
        assert {attempts(), slept(), Recorder.events()} == {0, [], []}
        assert ExternalService.state(s) == :closed
        finish(holder)
      end
    end
  end

  describe "every attempt" do
    test "passes all layers again", %{service: s} do
      ExternalService.start(s,
        circuit_breaker: [backend: StandIn.backend()],
        rate_limit: [limit: 1, per: 1, backend: PlainLimiter.backend()],
        concurrency: [limit: 1],
        sleep_function: recording_sleep()
      )

      seen = fn -> {:retry, counts(s)} end
      assert {:error, %RetriesExhausted{context: %{reason: {1, 0}}}} = ExternalService.call(s, [max_attempts: 3], seen)
      assert StandIn.count(:ask) == 3
      assert [{:init, _, _}, :check, :check, :check] = PlainLimiter.calls()
      assert counts(s) == {0, 0}
    end

    test "may be the one that is throttled: the call ends there", %{service: s} do
      start(s, circuit_breaker: [tolerate: 2], rate_limit: [limit: 2, per: 1000, wait: false])
      assert {:error, %RateLimited{}} = ExternalService.call(s, [max_attempts: 5], attempting(:retry))
      assert attempts() == 2
      assert slept() == [10, 20]
      assert ExternalService.state(s) == :closed
    end

    test "may be the one that is saturated: the call ends there", %{service: s} do
      parent = self()
      sleep = fn _ms -> send(parent, {:holder, hold(s)}) end
      ExternalService.start(s, concurrency: [limit: 1], sleep_function: sleep, circuit_breaker: [tolerate: 1])
      assert {:error, %ServiceSaturated{}} = ExternalService.call(s, [max_attempts: 5], attempting(:retry))
      assert attempts() == 1
      assert_received {:holder, _pid}
      refute_received {:holder, _pid}
      assert ExternalService.state(s) == :closed
    end

    test "before a refusal has melted with :per_attempt, and none with :per_call", %{service: s} do
      for {melt, state} <- [per_attempt: :open, per_call: :closed] do
        start(s, circuit_breaker: [tolerate: 1, melt: melt], rate_limit: [limit: 2, per: 1000, wait: false])
        assert {:error, error} = ExternalService.call(s, [max_attempts: 5], attempting(:retry))
        assert {melt, ExternalService.state(s)} == {melt, state}
        assert error.__struct__ == if(melt == :per_attempt, do: CircuitBreakerOpen, else: RateLimited)
      end
    end
  end

  describe "the events" do
    test "of a call that waits for both limits come in the order of the layers", %{service: s} do
      start_on_clock(s, rate_limit: [limit: 1, per: 5], concurrency: [limit: 1, wait: 100, reclaim_after: 20])
      hold(s)
      Recorder.attach(s, @all)
      assert call(s) == :ran

      assert [
               {[:call, :start], _, _},
               {@sleep, %{sleep_time: 5}, %{service: ^s}},
               {@waited, %{limit: 1, wait_time: 15}, %{service: ^s}},
               {[:call, :stop], _, %{result: :ran}}
             ] = Recorder.events()
    end

    test "of a refusal end with a stop that has it as the result, or an exception from call!", %{service: s} do
      start(s)
      hold(s)
      Recorder.attach(s, @all)
      assert {:error, error} = call(s)
      assert [{[:call, :start], _, _}, {@saturated, _, _}, {[:call, :stop], _, %{result: result}}] = Recorder.events()
      assert result == {:error, error}

      RateLimiter.request(s)
      assert %RateLimited{} = raised(fn -> ExternalService.call!(s, fn -> :ran end) end)

      assert [{[:call, :start], _, _}, {@throttled, _, _}, {[:call, :exception], _, %{reason: %RateLimited{}}}] =
               Recorder.events()
    end

    test "of refusals and waits are told with telemetry: :changes too", %{service: s} do
      start(s, telemetry: :changes)
      hold(s)
      Recorder.attach(s, @all)
      call(s)
      RateLimiter.request(s)
      call(s)
      assert Recorder.names() == [@saturated, @throttled]
    end
  end

  describe "what a function throws" do
    test "is a throw, whatever words it uses", %{service: s} do
      start(s, rate_limit: [limit: 100, per: 1000])

      for ball <- [:blown, :saturated, {:rate_limited, 5}, {:error, %ServiceSaturated{}}] do
        assert catch_throw(ExternalService.call(s, fn -> throw(ball) end)) == ball
      end

      assert counts(s) == {0, 0}
    end

    test "or returns is its result, though it looks like a refusal", %{service: s} do
      start(s, rate_limit: [limit: 1, per: 1000, wait: false])
      value = {:error, %ServiceSaturated{}}
      assert ExternalService.call(s, fn -> value end) == value
      assert {:error, %RateLimited{}} = call(s)
    end
  end

  describe "a nested call" do
    test "passes the layers of its own service", %{service: s} do
      inner = {s, :inner}
      on_exit(fn -> ExternalService.stop(inner) end)
      start(s)
      start(inner)
      hold(inner)
      assert {:error, %ServiceSaturated{context: %{service: ^inner}}} = ExternalService.call(s, fn -> call(inner) end)
      assert {counts(s), counts(inner)} == {{0, 0}, {1, 0}}
    end
  end

  describe "a using module" do
    setup do
      start_supervised!(Limited)
      on_exit(fn -> ExternalService.stop(Limited) end)
    end

    test "has its limits, saturated?/0 and reset_all/0" do
      refute Limited.saturated?()
      assert Limited.call(fn -> {Limited.saturated?(), Concurrency.in_flight(Limited)} end) == {true, 1}
      assert {:error, %RateLimited{}} = Limited.call(fn -> :ran end)
      assert Limited.reset_all() == :ok
      assert Limited.call(fn -> :ran end) == :ran
    end
  end
end
