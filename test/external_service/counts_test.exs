# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CountsTest do
  use ExternalService.Case, async: true

  @keys [:calls, :changed_at, :consecutive, :failures, :ignored, :probes, :rate, :reason] ++
          [:rejected, :retry_after, :slow, :state, :successes]

  defp counts(service), do: ExternalService.counts(service)
  defp fine(service), do: ExternalService.call(service, fn -> :fine end)

  describe "counts/1" do
    test "has the same fields whatever the breaker", %{service: s} do
      for breaker <- [
            [],
            [failure_rate: 0.5],
            [slow_call: 5],
            [consecutive: 3],
            [tolerate: :infinity],
            [backend: StandIn.backend()]
          ] do
        ExternalService.start(s, circuit_breaker: breaker)
        assert {breaker, counts(s) |> Map.keys() |> Enum.sort()} == {breaker, @keys}
      end
    end

    test "of a new breaker are nothing", %{service: s} do
      start_on_clock(s, circuit_breaker: [failure_rate: 0.5])

      assert counts(s) == %{
               state: :closed,
               calls: 0,
               successes: 0,
               failures: 0,
               slow: 0,
               rate: 0.0,
               consecutive: 0,
               ignored: 0,
               rejected: 0,
               probes: 0,
               reason: nil,
               changed_at: 0,
               retry_after: 0
             }
    end

    test "finds nothing where there is no service", %{service: s} do
      assert counts(s) == {:error, :not_found}
    end

    test "changes nothing", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [failure_rate: 0.5, min_calls: 10, consecutive: 5])
      fail(s)
      VirtualClock.advance(clock, 5)
      assert Enum.uniq(for _ <- 1..100, do: counts(s)) |> length() == 1
    end

    test "are there for a module's service, too" do
      defmodule Counted do
        use ExternalService, circuit_breaker: [failure_rate: 0.5]
      end

      on_exit(fn -> ExternalService.stop(Counted) end)
      start_supervised!(Counted)
      Counted.call(fn -> :fine end)
      assert Counted.counts() == counts(Counted)
      assert %{calls: 1, successes: 1} = Counted.counts()
    end
  end

  describe "calls, successes, failures and rate" do
    test "add up, attempt by attempt", %{service: s} do
      start_on_clock(s, circuit_breaker: [failure_rate: 1.0], retry: [max_attempts: 3, base: 0])
      ExternalService.call(s, attempting_each([:retry, :retry, :fine]))
      fine(s)
      assert %{calls: 4, successes: 2, failures: 2, rate: 0.5, consecutive: 0} = counts(s)
    end

    test "add up call by call where calls melt once", %{service: s} do
      start_on_clock(s, circuit_breaker: [failure_rate: 1.0, melt: :per_call], retry: [max_attempts: 3, base: 0])
      ExternalService.call(s, fn -> :retry end)
      assert %{calls: 1, failures: 1} = counts(s)
    end

    test "are a fraction that many processes can not tear", %{service: s} do
      start_on_clock(s, circuit_breaker: [failure_rate: 1.0, min_calls: 1_000_000])

      together(20, fn n ->
        for _ <- 1..100 do
          if rem(n, 2) == 0, do: fine(s), else: fail(s)
          %{calls: calls, successes: successes, failures: failures, rate: rate} = counts(s)
          assert calls == successes + failures
          assert rate == if(calls == 0, do: 0.0, else: failures / calls)
        end
      end)

      assert %{calls: 2_000, successes: 1_000, failures: 1_000, rate: 0.5} = counts(s)
    end

    test "are nil without a rule that needs them, and failures those inside :within", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 10, within: 1_000])
      for _ <- 1..3, do: fail(s)
      fine(s)
      assert %{calls: nil, successes: nil, slow: nil, rate: nil, failures: 3} = counts(s)
      VirtualClock.advance(clock, 999)
      assert counts(s).failures == 3
      VirtualClock.advance(clock, 1)
      assert counts(s).failures == 0
    end

    test "stand still while the breaker is open, and are none once it has closed", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [failure_rate: 0.5, min_calls: 2, reset: 100])
      for _ <- 1..5, do: fail(s)
      assert %{state: :open, calls: 2, failures: 2, rate: 1.0, rejected: 3} = counts(s)
      VirtualClock.advance(clock, 100)
      assert %{state: :closed, calls: 0, failures: 0, rate: +0.0, rejected: 0} = counts(s)
    end
  end

  describe "consecutive" do
    test "are the failures since the last success, whatever the rules", %{service: s} do
      for breaker <- [[tolerate: 50], [consecutive: 50], [failure_rate: 1.0, min_calls: 50]] do
        start_on_clock(s, circuit_breaker: breaker)
        fail(s)
        fine(s)
        for _ <- 1..2, do: fail(s)
        assert counts(s).consecutive in [2, nil], "with #{inspect(breaker)}: #{counts(s).consecutive}"
      end
    end

    test "are not ended by a call that is ignored", %{service: s} do
      start_on_clock(s, circuit_breaker: [consecutive: 50])
      fail(s)
      catch_throw(ExternalService.call(s, fn -> throw(:away) end))
      assert %{consecutive: 1, ignored: 1} = counts(s)
    end
  end

  describe "rejected and ignored" do
    test "are counted since the last change of state", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 2, reset: 1_000, half_open: true])
      for _ <- 1..3, do: catch_throw(ExternalService.call(s, fn -> throw(:away) end))
      assert %{ignored: 3, rejected: 0} = counts(s)
      for _ <- 1..2, do: fail(s)
      assert %{state: :open, ignored: 0, rejected: 0} = counts(s)
      fine(s)
      CircuitBreaker.admit(s)
      assert %{ignored: 0, rejected: 2} = counts(s)
      VirtualClock.advance(clock, 1_000)
      assert %{state: :half_open, rejected: 0} = counts(s)
    end

    test "take no notice of questions", %{service: s} do
      start_on_clock(s, circuit_breaker: [consecutive: 1])
      fail(s)
      for look <- [&ExternalService.available?/1, &ExternalService.blown?/1, &ExternalService.state/1], do: look.(s)
      assert counts(s).rejected == 0
    end

    test "count what other layers refuse as ignored, where outcomes are watched", %{service: s} do
      limit = [limit: 1, per: 60_000, wait: false]
      start_on_clock(s, circuit_breaker: [failure_rate: 0.5], rate_limit: limit)
      for _ <- 1..4, do: fine(s)
      assert %{calls: 1, ignored: 3, rejected: 0} = counts(s)
    end
  end

  describe "changed_at, retry_after and probes" do
    test "follow the state on the virtual clock", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 1_000, half_open: [probes: 2, lease: 700]])
      VirtualClock.advance(clock, 50)
      fail(s)
      VirtualClock.advance(clock, 400)
      assert %{state: :open, changed_at: 50, retry_after: 600, probes: 0} = counts(s)
      VirtualClock.advance(clock, 5_000)
      assert %{state: :half_open, changed_at: 1_050, retry_after: 0, probes: 0} = counts(s)
      {:ok, _first} = CircuitBreaker.admit(s)
      assert %{retry_after: 0, probes: 1} = counts(s)
      VirtualClock.advance(clock, 100)
      {:ok, second} = CircuitBreaker.admit(s)
      assert %{retry_after: 600, probes: 2} = counts(s)
      assert {:error, %CircuitBreakerOpen{context: %{retry_after: 600}}} = CircuitBreaker.admit(s)
      CircuitBreaker.report(second, :ignore)
      assert %{state: :half_open, retry_after: 0, probes: 1} = counts(s)
    end

    test "tell the time since 1970 on the machine's clock", %{service: s} do
      ExternalService.start(s, circuit_breaker: [consecutive: 1])
      before = System.system_time(:millisecond)
      fail(s)
      %{changed_at: changed_at, retry_after: left} = counts(s)
      assert changed_at in (before - 1_000)..(System.system_time(:millisecond) + 1_000)
      assert left in 1..60_000
    end

    test "begin anew with a service that is started afresh", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 1])
      fail(s)
      VirtualClock.advance(clock, 70)
      ExternalService.start(s, clock: clock, circuit_breaker: [consecutive: 1])
      assert %{state: :closed, changed_at: 70, consecutive: 0} = counts(s)
    end
  end
end
