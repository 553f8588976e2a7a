# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RateLimiterTest do
  use ExternalService.Case, async: true
  doctest ExternalService.RateLimiter

  alias ExternalService.{RateLimited, RateLimiter}

  @sleep [:rate_limit, :sleep]
  @rejected [:rate_limit, :rejected]

  # On a clock that stands still: a wait is recorded and does not move it.
  defp start_still(service, rate_limit, options \\ []) do
    start_on_clock(service, [rate_limit: rate_limit, sleep_function: recording_sleep()] ++ options)
  end

  defp refused(service, options \\ []) do
    assert {:error, %RateLimited{} = error} = ExternalService.call(service, options, attempting(:ran))
    assert attempts() == 0
    error
  end

  defp admitted(service, options \\ []),
    do: assert(ExternalService.call(service, options, attempting(:ran)) == :ran and attempts() == 1)

  describe "request/1" do
    test "takes one from what calls may take", %{service: s} do
      start_still(s, limit: 3, per: 1000, wait: false)
      assert RateLimiter.request(s) == :ok
      admitted(s)
      assert RateLimiter.request(s) == :ok
      refused(s)
      assert {:error, %RateLimited{context: %{service: ^s, retry_after: 334}}} = RateLimiter.request(s)
    end

    test "waits as a call does", %{service: s} do
      clock = start_on_clock(s, rate_limit: [limit: 1, per: 100])
      for _ <- 1..3, do: assert(RateLimiter.request(s) == :ok)
      assert VirtualClock.now(clock) == 200
    end

    test "is always granted by a service without a limit", %{service: s} do
      ExternalService.start(s)
      for _ <- 1..100, do: assert(RateLimiter.request(s) == :ok)
    end

    test "of a service that is not started is an error", %{service: s} do
      assert {:error, %ServiceNotStarted{context: %{service: ^s}}} = RateLimiter.request(s)
    end
  end

  describe "peek/1" do
    test "says whether a call could go now, or when, and takes nothing", %{service: s} do
      clock = start_still(s, limit: 2, per: 1000, wait: false)
      for _ <- 1..10, do: assert(RateLimiter.peek(s) == :ok)
      for _ <- 1..2, do: admitted(s)
      for _ <- 1..10, do: assert(RateLimiter.peek(s) == {:wait, 500})
      VirtualClock.advance(clock, 499)
      assert RateLimiter.peek(s) == {:wait, 1}
      VirtualClock.advance(clock, 1)
      for _ <- 1..10, do: assert(RateLimiter.peek(s) == :ok)
      admitted(s)
      refused(s)
    end

    test "counts the places that waiting calls have booked", %{service: s} do
      start_still(s, limit: 1, per: 100, wait: 1000)
      for _ <- 1..3, do: admitted(s)
      assert RateLimiter.peek(s) == {:wait, 300}
    end

    test "gives :ok for a service without a limit, and for one that is not started", %{service: s} do
      assert RateLimiter.peek(s) == :ok
      ExternalService.start(s)
      assert RateLimiter.peek(s) == :ok
    end
  end

  describe "rate_limited?/1" do
    test "is true while a call would have to wait, and asking costs nothing", %{service: s} do
      clock = start_still(s, limit: 1, per: 100)
      for _ <- 1..10, do: refute(ExternalService.rate_limited?(s))
      admitted(s)
      for _ <- 1..10, do: assert(ExternalService.rate_limited?(s))
      VirtualClock.advance(clock, 99)
      assert ExternalService.rate_limited?(s)
      VirtualClock.advance(clock, 1)
      refute ExternalService.rate_limited?(s)
      admitted(s)
    end

    test "is false without a limit and for a service that is not started", %{service: s} do
      refute ExternalService.rate_limited?(s)
      ExternalService.start(s)
      refute ExternalService.rate_limited?(s)
    end
  end

  describe "reset/1" do
    test "gives the whole limit back", %{service: s} do
      start_still(s, limit: 3, per: 1000, wait: false)
      for _ <- 1..3, do: admitted(s)
      refused(s)
      assert RateLimiter.reset(s) == :ok
      for _ <- 1..3, do: admitted(s)
      refused(s)
    end

    test "forgets the places that were booked", %{service: s} do
      start_still(s, limit: 1, per: 1000, wait: :infinity)
      for _ <- 1..100, do: admitted(s)
      RateLimiter.reset(s)
      assert RateLimiter.peek(s) == :ok
    end

    test "is :ok without a limit, and an error if the service is not started", %{service: s} do
      assert RateLimiter.reset(s) == {:error, :not_found}
      ExternalService.start(s)
      assert RateLimiter.reset(s) == :ok
    end
  end

  describe "a call that comes too early" do
    test "waits for its turn with one sleep, and then goes", %{service: s} do
      start_still(s, limit: 2, per: 1000, wait: 1000)
      for _ <- 1..2, do: admitted(s)
      assert slept() == []
      admitted(s)
      assert slept() == [500]
      admitted(s)
      assert slept() == [1000]
    end

    test "goes exactly when its turn has come", %{service: s} do
      clock = start_on_clock(s, rate_limit: [limit: 3, per: 10_000, wait: 10_000])
      for _ <- 1..7, do: ExternalService.call(s, attempting(:ran, clock))
      assert attempt_times() == [0, 0, 0, 3334, 6667, 10_000, 13_334]
    end

    test "sleeps once even if the sleep does not wait at all", %{service: s} do
      start_recording(s, rate_limit: [limit: 1, per: 3_600_000, wait: :infinity])
      for _ <- 1..5, do: admitted(s)
      assert length(slept()) == 4
    end

    test "sleeps in real time where there is no virtual clock", %{service: s} do
      ExternalService.start(s, rate_limit: [limit: 1, per: 20])
      began = System.monotonic_time(:millisecond)
      for _ <- 1..3, do: admitted(s)
      assert System.monotonic_time(:millisecond) - began >= 39
    end

    test "is refused at once, without a sleep, if its turn comes too late", %{service: s} do
      clock = start_still(s, limit: 1, per: 1000, wait: 999)
      admitted(s)
      assert refused(s).context == %{service: s, retry_after: 1000}
      VirtualClock.advance(clock, 1)
      admitted(s)
      assert slept() == [999]
      assert refused(s).context.retry_after == 1999
      assert slept() == []
    end

    test "takes nothing when it is refused", %{service: s} do
      clock = start_still(s, limit: 1, per: 1000, wait: false)
      admitted(s)
      for _ <- 1..50, do: assert(refused(s).context.retry_after == 1000)
      VirtualClock.advance(clock, 1000)
      admitted(s)
    end

    test "may go when it was told to come back", %{service: s} do
      clock = start_still(s, limit: 3, per: 1000, wait: false)
      for _ <- 1..3, do: admitted(s)

      for _ <- 1..20 do
        VirtualClock.advance(clock, refused(s).context.retry_after)
        admitted(s)
      end
    end

    test "is not overtaken by one that comes when its turn is near", %{service: s} do
      clock = start_still(s, limit: 1, per: 1000, wait: 1000)
      admitted(s)
      admitted(s)
      assert slept() == [1000]
      VirtualClock.advance(clock, 1000)
      admitted(s)
      assert slept() == [1000]
    end
  end

  describe "the wait" do
    # Takes the one call of each window and looks whether the next would wait for its turn.
    defp waits?(service, options) do
      start_still(service, options)
      admitted(service)
      ExternalService.call(service, fn -> :ran end) == :ran
    end

    test "is one :per by default", %{service: s} do
      assert waits?(s, limit: 1, per: 2000)
      start_still(s, limit: 1, per: 2000)
      for _ <- 1..2, do: admitted(s)
      refused(s)
    end

    test "is five seconds at most by default", %{service: s} do
      assert waits?(s, limit: 1, per: 5000)
      refute waits?(s, limit: 1, per: 5001)
      refute waits?(s, limit: 1, per: 3_600_000)
    end

    for wait <- [false, 0] do
      test "of #{wait} is none", %{service: s} do
        start_still(s, limit: 1, per: 1, wait: unquote(wait))
        admitted(s)
        refused(s)
        assert slept() == []
      end
    end

    for wait <- [:infinity, Integer.pow(2, 63), Integer.pow(10, 30)] do
      test "of #{wait} is as long as it takes", %{service: s} do
        start_still(s, limit: 1, per: 3_600_000, wait: unquote(wait))
        for _ <- 1..101, do: admitted(s)
        assert slept() == for(n <- 1..100, do: n * 3_600_000)
      end
    end

    test "is for each attempt of a call anew", %{service: s} do
      clock = start_on_clock(s, rate_limit: [limit: 1, per: 1000, wait: 1000], circuit_breaker: [tolerate: :infinity])
      options = [max_attempts: 4, base: 0]
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, options, attempting(:retry, clock))
      assert attempt_times() == [0, 1000, 2000, 3000]
    end

    test "on a virtual clock moves it, and takes no time", %{service: s} do
      clock = start_on_clock(s, rate_limit: [limit: 1, per: :timer.hours(24), wait: :infinity])
      for _ <- 1..11, do: admitted(s)
      assert VirtualClock.now(clock) == :timer.hours(240)
    end
  end

  describe "a wait" do
    test "emits one sleep event with how long it sleeps", %{service: s} do
      start_still(s, limit: 1, per: 250)
      Recorder.attach(s, [@sleep, @rejected])
      admitted(s)
      assert Recorder.events() == []
      admitted(s)
      assert Recorder.events() == [{@sleep, %{sleep_time: 250}, %{service: s}}]
    end

    test "logs one line", %{service: s} do
      start_still(s, limit: 1, per: 250, wait: :infinity)
      admitted(s)
      line = "[ExternalService] Rate limit exceeded for service #{inspect(s)}; sleeping for 250 milliseconds."
      log = capture_log(fn -> admitted(s) end)
      assert log =~ "[info] " <> line
      assert log |> String.split("Rate limit exceeded for service #{inspect(s)}") |> length() == 2
    end

    test "logs nothing where there is none", %{service: s} do
      start_still(s, limit: 1, per: 250, wait: false)

      log =
        capture_log(fn ->
          admitted(s)
          refused(s)
        end)

      refute log =~ inspect(s)
    end
  end

  describe "a refusal" do
    test "is a value that says how long to stay away", %{service: s} do
      start_still(s, limit: 1, per: 1000, wait: false)
      admitted(s)
      error = refused(s)
      assert error.context == %{service: s, retry_after: 1000}
      assert Exception.message(error) == "the call was throttled beyond the configured rate limit wait time"
      assert RateLimited.retryable?(error)
      assert RateLimited.http_status(error) == 429
    end

    test "is raised by call!", %{service: s} do
      start_still(s, limit: 0, per: 1000)
      assert %RateLimited{context: %{service: ^s}} = raised(fn -> ExternalService.call!(s, fn -> :ran end) end)
    end

    test "is told by an event, and by no other", %{service: s} do
      start_still(s, limit: 1, per: 1000, wait: 999)
      admitted(s)
      Recorder.attach(s, [@sleep, @rejected])
      refused(s)
      assert [{@rejected, %{count: 1}, %{service: ^s, retry_after: 1000}}] = Recorder.events()
    end

    test "is not retried and melts nothing, in either way of melting", %{service: s} do
      for melt <- [:per_attempt, :per_call] do
        start_still(s, [limit: 1, per: 1000, wait: false], circuit_breaker: [tolerate: 0, melt: melt])
        Recorder.attach(s, [[:call, :retry], [:circuit_breaker, :opened]])
        admitted(s)
        for _ <- 1..20, do: refused(s, max_attempts: 10)
        assert ExternalService.state(s) == :closed
        assert Recorder.events() == []
        assert slept() == []
      end
    end
  end

  describe "the cost" do
    test "of a call is what it takes", %{service: s} do
      start_still(s, limit: 10, per: 1000, wait: false)
      admitted(s, cost: 7)
      assert refused(s, cost: 4).context.retry_after == 100
      admitted(s, cost: 3)
      assert refused(s).context.retry_after == 100
      assert refused(s, cost: 10).context.retry_after == 1000
    end

    test "of a call is waited for as a whole", %{service: s} do
      start_still(s, limit: 10, per: 1000, wait: 1000)
      for _ <- 1..2, do: admitted(s, cost: 10)
      assert slept() == [1000]
    end

    test "is 1 unless it is given", %{service: s} do
      start_still(s, limit: 10, per: 1000, wait: false)
      for _ <- 1..10, do: admitted(s)
      refused(s)
    end

    test "is paid by every attempt", %{service: s} do
      start_still(s, limit: 10, per: 1000, wait: false)
      options = [cost: 4, max_attempts: 5, base: 0]
      assert {:error, %RateLimited{}} = ExternalService.call(s, options, attempting(:retry))
      assert attempts() == 2
      assert RateLimiter.peek(s) == :ok
    end

    test "above the limit can never be paid: the call is refused at once and told so", %{service: s} do
      start_still(s, limit: 10, per: 1000, wait: :infinity)
      assert refused(s, cost: 11).context == %{service: s, retry_after: :infinity}
      assert refused(s, cost: 0x7FFF_FFFF_FFFF_FFFF).context.retry_after == :infinity
      assert slept() == []
      admitted(s, cost: 10)
    end

    test "is nothing to a service without a limit", %{service: s} do
      start_recording(s)
      for _ <- 1..10, do: admitted(s, cost: 1_000_000)
    end

    test "is checked, and is an option of the call alone", %{service: s} do
      start_still(s, limit: 10, per: 1000)

      for wrong <- [0, -1, 1.5, nil, :infinity, "1", Integer.pow(2, 63)] do
        assert %ValidationError{key: :cost, value: ^wrong} = raised(fn -> refused(s, cost: wrong) end)
      end

      assert %ValidationError{} = raised(fn -> ExternalService.start(s, cost: 1) end)
      assert RateLimiter.peek(s) == :ok
    end

    test "goes together with retry options of the call", %{service: s} do
      start_still(s, [limit: 10, per: 1000, wait: false], circuit_breaker: [tolerate: :infinity])
      options = [base: 7, cost: 5, max_attempts: 2]
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, options, fn -> :retry end)
      assert slept() == [7]
      refused(s)
    end
  end

  describe "the limit" do
    test "of 0 refuses every call, for good", %{service: s} do
      clock = start_still(s, limit: 0, per: 1, wait: :infinity)

      for _ <- 1..3 do
        assert refused(s).context == %{service: s, retry_after: :infinity}
        assert {:wait, :infinity} = RateLimiter.peek(s)
        assert ExternalService.rate_limited?(s)
        VirtualClock.advance(clock, :timer.hours(24 * 365))
        assert RateLimiter.reset(s) == :ok
      end
    end

    test "of :infinity limits nothing", %{service: s} do
      start_still(s, limit: :infinity, per: 1, wait: false)
      for _ <- 1..1000, do: admitted(s)
      refute ExternalService.rate_limited?(s)
      assert RateLimiter.reset(s) == :ok
      assert slept() == []
    end

    test "of more than one call in a microsecond is kept as well", %{service: s} do
      clock = start_still(s, limit: 5000, per: 1, wait: false)
      for _ <- 1..5000, do: assert(RateLimiter.request(s) == :ok)
      refused(s)
      VirtualClock.advance(clock, 1)
      for _ <- 1..5000, do: assert(RateLimiter.request(s) == :ok)
      refused(s)
    end

    test "may be as high as the options allow: it is one call in a nanosecond then", %{service: s} do
      for limit <- [1_000_000, 1_000_001, 0x7FFF_FFFF_FFFF_FFFF] do
        start_still(s, limit: limit, per: 1, wait: false)
        admitted(s, cost: 1_000_000)
        assert refused(s).context.retry_after == 1
      end
    end

    test "may be for as long as the options allow, and not for longer", %{service: s} do
      longest = Integer.pow(2, 60) |> div(1_000_000)
      start_still(s, limit: 1, per: longest, wait: false)
      admitted(s)
      assert refused(s).context.retry_after == longest
      error = raised(fn -> ExternalService.start(s, rate_limit: [limit: 1, per: longest + 1]) end)
      assert %ValidationError{key: :per, keys_path: [:rate_limit]} = error
      refused(s)
    end

    test "is needed, and so is the time it is for", %{service: s} do
      for {options, key} <- [{[limit: 1], :per}, {[per: 1], :limit}, {[], :limit}] do
        error = raised(fn -> ExternalService.start(s, rate_limit: options) end)
        assert %ValidationError{key: ^key, keys_path: [:rate_limit]} = error
        assert Exception.message(error) =~ "required #{inspect(key)} option not found"
      end
    end
  end

  describe "start/2 on a running service" do
    test "gives it a fresh limit", %{service: s} do
      start_still(s, limit: 1, per: 1000, wait: false)
      admitted(s)
      refused(s)
      start_still(s, limit: 1, per: 1000, wait: false)
      admitted(s)
    end
  end
end
