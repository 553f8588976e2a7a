# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.TestTest do
  # Events of all services are recorded, and one test is about there being none.
  use ExUnit.Case, async: false
  use ExternalService.Test
  doctest ExternalService.Test

  alias ExternalService.{
    AttemptTimeout,
    CircuitBreakerOpen,
    RateLimited,
    RateLimiter,
    RetriesExhausted,
    StandIn,
    VirtualClock
  }

  @moduletag :capture_log

  setup context do
    service = {context.module, context.test}
    on_exit(fn -> ExternalService.stop(service) end)
    {:ok, service: service}
  end

  defp fail(service, reason, attempts \\ 1),
    do: ExternalService.call(service, [max_attempts: attempts, base: 0], fn -> {:retry, reason} end)

  defp failure(fun) do
    fun.()
  rescue
    error in ExUnit.AssertionError -> error.message
  else
    value -> flunk("it passed with #{inspect(value)}")
  end

  describe "trip_breaker/1" do
    test "opens the breaker and returns the service", %{service: s} do
      for breaker <- [
            [],
            [tolerate: 0],
            [tolerate: 50],
            [consecutive: 3],
            [failure_rate: 0.5, min_calls: 7],
            [failure_rate: 1, window: {:calls, 30}]
          ] do
        ExternalService.start(s, circuit_breaker: breaker)
        assert trip_breaker(s) == s
        assert ExternalService.state(s) == :open
      end
    end

    test "outweighs the successes that a rate has counted", %{service: s} do
      ExternalService.start(s, circuit_breaker: [failure_rate: 0.5, min_calls: 5])
      for _ <- 1..100, do: ExternalService.call(s, fn -> :fine end)
      trip_breaker(s)
      assert ExternalService.state(s) == :open
    end

    test "melts once more than is tolerated", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 3, backend: StandIn.backend()])
      trip_breaker(s)
      assert StandIn.count(:melt) == 4
    end

    test "raises where there is nothing that failures open", %{service: s} do
      for breaker <- [[tolerate: :infinity], [slow_call: 100]] do
        ExternalService.start(s, circuit_breaker: breaker)
        assert_raise ArgumentError, ~r/#{Regex.escape(inspect(s))} has no circuit breaker/, fn -> trip_breaker(s) end
      end
    end

    test "raises where failures open nothing for now", %{service: s} do
      clock = VirtualClock.new()
      ExternalService.start(s, clock: clock, circuit_breaker: [tolerate: 0, reset: 10, half_open: true])
      ExternalService.bypass(s)
      assert_raise ArgumentError, ~r/is bypassed/, fn -> trip_breaker(s) end
      ExternalService.close(s)
      trip_breaker(s)
      VirtualClock.advance(clock, 10)
      assert_raise ArgumentError, ~r/is half_open/, fn -> trip_breaker(s) end
    end
  end

  describe "exhaust_rate_limit/1" do
    test "leaves nothing of the limit, without waiting, and returns the service", %{service: s} do
      clock = VirtualClock.new()
      ExternalService.start(s, clock: clock, rate_limit: [limit: 5, per: 60_000, wait: :infinity])
      RateLimiter.request(s)
      assert exhaust_rate_limit(s) == s
      assert exhaust_rate_limit(s) == s
      assert ExternalService.rate_limited?(s)
      assert RateLimiter.peek(s) == {:wait, 12_000}
      assert VirtualClock.now(clock) == 0
    end

    test "raises where there is no limit", %{service: s} do
      for options <- [[], [rate_limit: [limit: :infinity, per: 1_000]]] do
        ExternalService.start(s, options)
        assert_raise ArgumentError, ~r/has no rate limit/, fn -> exhaust_rate_limit(s) end
      end
    end
  end

  describe "an assertion of an event" do
    setup :record_events

    test "returns the metadata of the first event that is as expected", %{service: s} do
      ExternalService.start(s)
      fail(s, :busy)
      fail(s, :closed)
      assert assert_retried(s) == %{service: s, reason: :busy}
      assert assert_retried(s, reason: :closed) == %{service: s, reason: :closed}
    end

    test "leaves the event to other assertions", %{service: s} do
      ExternalService.start(s)
      fail(s, :busy)
      for _ <- 1..3, do: assert_retried(s, reason: :busy)
    end

    test "takes a regular expression for the text of a field, also of an exception's", %{service: s} do
      ExternalService.start(s, retry: [retry_exceptions: [KeyError], max_attempts: 1])
      fail(s, {:http, 503})
      fail(s, "server busy")
      catch_error(ExternalService.call(s, fn -> Map.fetch!(%{}, :colour) end))
      assert assert_retried(s, reason: ~r/503/).reason == {:http, 503}
      assert assert_retried(s, reason: ~r/^server/).reason == "server busy"
      assert %KeyError{} = assert_retried(s, reason: ~r/colour/).reason
      assert %KeyError{} = assert_retried(s, reason: ~r/KeyError/).reason
      refute_retried(s, reason: ~r/504/)
    end

    test "fails for a field that the event does not have, whatever is expected of it", %{service: s} do
      ExternalService.start(s)
      fail(s, :busy)
      for expected <- [nil, ~r//, 1], do: assert(failure(fn -> assert_retried(s, colour: expected) end) =~ "colour")
      assert refute_retried(s, colour: nil) == :ok
    end

    test "fails for another service's events, and lists what was recorded instead", %{service: s} do
      other = {s, :other}
      on_exit(fn -> ExternalService.stop(other) end)
      for name <- [s, other], do: ExternalService.start(name)
      fail(other, :busy)
      assert refute_retried(s) == :ok
      message = failure(fn -> assert_retried(s, reason: :closed) end)
      assert message =~ "expected a failed attempt of #{inspect(s)} with [reason: :closed]"
      assert message =~ "[:external_service, :call, :retry] #{inspect(%{service: other, reason: :busy})}"
      refute message =~ "record_events"
    end

    test "asks for record_events when nothing was recorded", %{service: s} do
      ExternalService.start(s)

      for assertion <- [
            &assert_retried/1,
            &assert_breaker_blown/1,
            &assert_throttled/1,
            &assert_timed_out/1,
            &assert_fell_back/1
          ] do
        assert failure(fn -> assertion.(s) end) =~ "Does the test have `setup :record_events`?"
      end
    end

    test "may be made of a call in a task", %{service: s} do
      ExternalService.start(s)
      Task.await(ExternalService.call_async(s, [max_attempts: 1], fn -> {:retry, :busy} end))
      assert_retried(s, reason: :busy)
    end

    test "that there was no retry fails when there was one, and shows it", %{service: s} do
      ExternalService.start(s)
      assert refute_retried(s) == :ok
      fail(s, :busy)
      assert refute_retried(s, reason: :closed) == :ok
      assert failure(fn -> refute_retried(s) end) =~ inspect(%{service: s, reason: :busy})
    end

    test "raises for a service that is not started", %{service: s} do
      for function <- [
            &trip_breaker/1,
            &exhaust_rate_limit/1,
            &assert_retried/1,
            &refute_retried/1,
            &assert_breaker_blown/1,
            &assert_throttled/1,
            &assert_timed_out/1,
            &assert_fell_back/1
          ] do
        error = assert_raise ArgumentError, fn -> function.(s) end
        assert error.message =~ "the service #{inspect(s)} has not been started"
      end
    end
  end

  test "assert_breaker_blown/1 sees a refusal", %{service: s} do
    record_events()
    ExternalService.start(s)
    ExternalService.call(s, fn -> :fine end)
    failure(fn -> assert_breaker_blown(s) end)
    trip_breaker(s)
    ExternalService.call(s, fn -> :fine end)
    assert assert_breaker_blown(s).service == s
  end

  test "assert_throttled/1 sees a wait", %{service: s} do
    record_events()
    ExternalService.start(s, sleep_function: recording_sleep(), rate_limit: [limit: 1, per: 60_000, wait: :infinity])
    exhaust_rate_limit(s)
    failure(fn -> assert_throttled(s) end)
    assert ExternalService.call(s, fn -> :fine end) == :fine
    assert assert_throttled(s).service == s
  end

  test "assert_throttled/1 sees a refusal", %{service: s} do
    record_events()
    ExternalService.start(s, rate_limit: [limit: 1, per: 60_000, wait: false])
    exhaust_rate_limit(s)
    assert {:error, %RateLimited{}} = ExternalService.call(s, fn -> :fine end)
    assert assert_throttled(s).service == s
  end

  test "assert_timed_out/1 sees an attempt that took too long", %{service: s} do
    record_events()
    ExternalService.start(s, timeout: 1, retry: [max_attempts: 1])
    fail(s, :busy)
    failure(fn -> assert_timed_out(s) end)
    assert {:error, %AttemptTimeout{}} = ExternalService.call(s, fn -> receive(do: (:never -> :fine)) end)
    assert assert_timed_out(s).service == s
    assert assert_retried(s, reason: ~r/AttemptTimeout/)
  end

  test "assert_fell_back/1 sees the error that a fallback answered for", %{service: s} do
    record_events()
    ExternalService.start(s, fallback: {:value, :instead})
    assert ExternalService.call(s, fn -> :fine end) == :fine
    failure(fn -> assert_fell_back(s) end)
    trip_breaker(s)
    assert ExternalService.call(s, fn -> :fine end) == :instead
    assert %CircuitBreakerOpen{} = assert_fell_back(s, reason: ~r/CircuitBreakerOpen/).reason
    failure(fn -> assert_fell_back(s, reason: ~r/RetriesExhausted/) end)
  end

  test "record_events/1 is a setup of its own, and may be called again", %{service: s} = context do
    assert record_events(context) == :ok
    assert record_events() == :ok
    ExternalService.start(s)
    fail(s, :busy)
    assert_retried(s)
    assert_received {ExternalService.Test, _event, %{reason: :busy}}
    refute_received {ExternalService.Test, _event, %{reason: :busy}}
  end

  describe "assert_slept/1" do
    test "compares all waits, in order, and returns them", %{service: s} do
      ExternalService.start(s, sleep_function: recording_sleep(), retry: [base: 100, max_attempts: 3])
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, fn -> :retry end)
      assert assert_slept([100, 200]) == [100, 200]

      for wrong <- [[], [100], [200, 100], [100, 200, 400]] do
        assert failure(fn -> assert_slept(wrong) end) =~
                 "expected the waits #{inspect(wrong, charlists: :as_lists)}, but they were [100, 200]"
      end
    end

    test "shows numbers as numbers, also those that are letters' codes", %{service: s} do
      ExternalService.start(s, sleep_function: recording_sleep(), retry: [base: 100, max_attempts: 2])
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, fn -> :retry end)
      assert failure(fn -> assert_slept([101]) end) =~ "expected the waits [101], but they were [100]"
    end

    test "of nothing slept passes for none, and else asks for the sleep function" do
      assert assert_slept([]) == []
      assert failure(fn -> assert_slept([1]) end) =~ "recording_sleep()"
    end

    test "is told of waits in other processes", %{service: s} do
      ExternalService.start(s, sleep_function: recording_sleep(self()), retry: [base: 7, max_attempts: 2])
      Task.await(Task.async(fn -> ExternalService.call(s, fn -> :retry end) end))
      assert_slept([7])
    end
  end
end
