# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreakerTest do
  use ExternalService.Case, async: true

  doctest ExternalService.CircuitBreaker

  # What the stand-in was installed with when the service was started with these options.
  defp installed(service, breaker, options \\ []) do
    breaker = Keyword.put_new(breaker, :backend, StandIn.backend())
    :ok = ExternalService.start(service, [circuit_breaker: breaker] ++ options)
    assert_received {:installed, ^service, given}
    given
  end

  describe "ask/1, melt/1 and reset/1" do
    test "answer for a started service", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 1])
      assert CircuitBreaker.ask(s) == :ok
      assert CircuitBreaker.melt(s) == :ok
      assert CircuitBreaker.ask(s) == :ok
      assert CircuitBreaker.melt(s) == :ok
      assert CircuitBreaker.ask(s) == :blown
      assert CircuitBreaker.reset(s) == :ok
      assert CircuitBreaker.ask(s) == :ok
    end

    test "say so when the service is not started", %{service: s} do
      assert CircuitBreaker.ask(s) == :not_started
      assert CircuitBreaker.melt(s) == {:error, :not_found}
      assert CircuitBreaker.reset(s) == {:error, :not_found}
    end

    test "melts from outside and failures of calls count together", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 2])
      CircuitBreaker.melt(s)
      fail(s)
      assert ExternalService.state(s) == :closed
      CircuitBreaker.melt(s)
      assert ExternalService.state(s) == :open
    end
  end

  describe "tolerate: :infinity" do
    test "never opens; melt and reset are :ok", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: :infinity])
      for _ <- 1..1000, do: assert(CircuitBreaker.melt(s) == :ok)
      assert CircuitBreaker.ask(s) == :ok
      assert CircuitBreaker.reset(s) == :ok
      assert ExternalService.state(s) == :closed
      assert ExternalService.available?(s)
      refute ExternalService.blown?(s)
      assert ExternalService.call(s, fn -> :fine end) == :fine
    end

    test "installs no breaker and removes the one there was", %{service: s} do
      installed(s, [])
      backend = StandIn.backend()
      ExternalService.start(s, circuit_breaker: [tolerate: :infinity, backend: backend])
      refute_received {:installed, _, _}
      assert_received {:backend, :remove}
      fail(s)
      assert {StandIn.count(:ask), StandIn.count(:melt)} == {0, 0}
    end

    test "contradicts fault injection", %{service: s} do
      assert_raise ArgumentError, ~r/contradict/, fn ->
        ExternalService.start(s, circuit_breaker: [tolerate: :infinity, fault_injection: 0.5])
      end

      assert ExternalService.state(s) == {:error, :not_found}
    end
  end

  describe "another backend" do
    test "is installed with the breaker's options, without melt and backend", %{service: s} do
      given = installed(s, tolerate: 7, within: 1000, reset: 50, melt: :per_call, fault_injection: 0.25)
      assert given[:tolerate] == 7
      assert given[:within] == 1000
      assert given[:reset] == 50
      assert given[:fault_injection] == 0.25
      refute Keyword.has_key?(given, :melt)
      refute Keyword.has_key?(given, :backend)
    end

    test "is installed with its own options merged over the shared ones", %{service: s} do
      given = installed(s, tolerate: 7, reset: 50, backend: StandIn.backend(tolerate: 3, colour: :red))
      assert {given[:tolerate], given[:reset], given[:colour]} == {3, 50, :red}
      assert length(Keyword.get_values(given, :tolerate)) == 1
    end

    test "may be a module alone", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 7, backend: StandIn])
      assert_received {:installed, ^s, options}
      assert options[:tolerate] == 7
    end

    test "is asked before each attempt and melted after each failure", %{service: s} do
      installed(s, [], sleep_function: recording_sleep())
      ExternalService.call(s, [max_attempts: 3], fn -> :retry end)
      assert {StandIn.count(:ask), StandIn.count(:melt)} == {3, 3}
      ExternalService.call(s, fn -> :fine end)
      assert {StandIn.count(:ask), StandIn.count(:melt)} == {1, 0}
    end

    test "decides what available?, blown? and state answer", %{service: s} do
      switch = StandIn.switch()
      installed(s, backend: StandIn.backend(blown: switch))
      assert {ExternalService.available?(s), ExternalService.blown?(s)} == {true, false}
      assert ExternalService.state(s) == :closed
      StandIn.blow(switch)
      assert {ExternalService.available?(s), ExternalService.blown?(s)} == {false, true}
      assert ExternalService.state(s) == :open
      assert CircuitBreaker.ask(s) == :blown
    end

    test "is told of melt/1, reset/1 and stop/1", %{service: s} do
      installed(s, [])
      assert CircuitBreaker.melt(s) == :ok
      assert StandIn.count(:melt) == 1
      assert ExternalService.reset(s) == :ok
      assert StandIn.count(:reset) == 1
      assert ExternalService.stop(s) == :ok
      assert StandIn.count(:remove) == 1
      assert ExternalService.stop(s) == :ok
      assert StandIn.count(:remove) == 0
    end

    test "that cannot be installed leaves nothing started", %{service: s} do
      assert_raise ArgumentError, fn ->
        ExternalService.start(s, circuit_breaker: [backend: {StandIn, report_to: :nobody_of_this_name}])
      end

      assert ExternalService.state(s) == {:error, :not_found}
      refute s in ExternalService.services()
    end

    test "that cannot be installed leaves a running service as it was", %{service: s} do
      installed(s, [tolerate: 7], retry: [max_attempts: 2], sleep_function: recording_sleep())

      assert_raise ArgumentError, fn ->
        ExternalService.start(s, circuit_breaker: [backend: {StandIn, report_to: :nobody_of_this_name}])
      end

      ExternalService.call(s, attempting(:retry))
      assert {attempts(), StandIn.count(:melt), StandIn.count(:remove)} == {2, 2, 0}
    end
  end

  describe "within: :auto" do
    test "is never longer than what the clock counts", %{service: s} do
      for attempts <- 30..70, melt <- [:per_attempt, :per_call] do
        assert ExternalService.start(s, circuit_breaker: [melt: melt], retry: [max_attempts: attempts]) == :ok
      end
    end

    test "is twice the time that calls failing fully need to open the breaker", %{service: s} do
      # 1500 ms a call at 5 attempts; 50 failures take 10 calls.
      assert installed(s, [tolerate: 49], retry: [base: 100])[:within] == 1500 * 10 * 2
      assert installed(s, [tolerate: 50], retry: [base: 100])[:within] == 1500 * 11 * 2
    end

    test "counts calls instead of attempts when calls melt once", %{service: s} do
      assert installed(s, [tolerate: 10, melt: :per_call], retry: [base: 100])[:within] == 1500 * 10 * 2
      assert installed(s, [tolerate: 20, melt: :per_call], retry: [base: 100])[:within] == 1500 * 20 * 2
    end

    test "is never below 10 seconds", %{service: s} do
      assert installed(s, [])[:within] == 10_000
      assert installed(s, [], retry: [base: 100])[:within] == 10_000
      assert installed(s, [tolerate: 0], retry: [max_attempts: 1])[:within] == 10_000
    end

    test "is 10 seconds when retries have no bound", %{service: s} do
      assert installed(s, [tolerate: 100], retry: [max_attempts: :infinity])[:within] == 10_000
    end

    test "follows the expiry when only that bounds the retries", %{service: s} do
      retry = [max_attempts: :infinity, expiry: 30_000]
      assert installed(s, [tolerate: 10], retry: retry)[:within] == 60_000
    end

    test "is the default, and a number given wins over it", %{service: s} do
      assert installed(s, [tolerate: 49, within: :auto], retry: [base: 100])[:within] == 30_000
      assert installed(s, [tolerate: 49, within: 1], retry: [base: 100])[:within] == 1
    end
  end
end
