# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.InstancesTest do
  use ExternalService.Case, async: true

  alias ExternalService.{Concurrency, Instances, RateLimited, ServiceSaturated}

  @fragile [circuit_breaker: [tolerate: 0, within: 10_000, reset: 5_000], retry: [max_attempts: 1]]

  defp count(service), do: Instances.count(ExternalService.Service.started(service))

  defp call(service, key, result), do: ExternalService.call({service, key}, fn -> result end)

  describe "an instance" do
    test "has a breaker of its own, made from the service's options", %{service: s} do
      clock = start_on_clock(s, @fragile)
      call(s, 1, :retry)
      assert {:error, %CircuitBreakerOpen{context: %{service: {^s, 1}}}} = call(s, 1, :fine)
      assert call(s, 2, :fine) == :fine
      assert ExternalService.call(s, fn -> :fine end) == :fine
      assert for(name <- [{s, 1}, {s, 2}, s], do: ExternalService.state(name)) == [:open, :closed, :closed]
      VirtualClock.advance(clock, 5_000)
      assert call(s, 1, :fine) == :fine
    end

    test "may have any term as its key, and makes no atom of it", %{service: s} do
      start_on_clock(s, @fragile)
      text = "shard-#{System.unique_integer()}"

      for key <- [nil, :count, :hand, {:a, 1}, text, %{tenant: 1}, [1 | 2], self(), 1.5] do
        call(s, key, :retry)
        assert ExternalService.state({s, key}) == :open
        assert call(s, key, :fine) |> elem(0) == :error
      end

      # All atoms there are can not be counted: other tests run meanwhile.
      assert_raise ArgumentError, fn -> String.to_existing_atom(text) end
    end

    test "has limits of its own where the service has some", %{service: s} do
      start_on_clock(s, rate_limit: [limit: 1, per: 1_000, wait: false], concurrency: [limit: 1])
      assert call(s, 1, :fine) == :fine
      assert {:error, %RateLimited{context: %{service: {^s, 1}}}} = call(s, 1, :fine)
      nested = fn -> {Concurrency.in_flight({s, 2}), Concurrency.in_flight({s, 3}), call(s, 3, :fine)} end
      assert ExternalService.call({s, 2}, nested) == {1, 0, :fine}

      ExternalService.start(s, concurrency: [limit: 1])
      assert {:error, %ServiceSaturated{}} = ExternalService.call({s, 4}, fn -> {:ok, call(s, 4, :fine)} end) |> elem(1)
    end

    test "gives its key to a function of one argument", %{service: s} do
      ExternalService.start(s)
      assert ExternalService.call({s, "eu"}, fn key -> {:at, key} end) == {:at, "eu"}
    end

    test "can be asked and moved by hand like a service", %{service: s} do
      start_on_clock(s, @fragile)
      name = {s, 1}
      assert ExternalService.open(name, reason: :move) == :ok
      assert {ExternalService.state(name), ExternalService.counts(name).reason} == {:forced_open, :move}
      refute ExternalService.available?(name)
      assert ExternalService.available?({s, 2})
      assert ExternalService.close(name) == :ok
      assert ExternalService.available?(name)
      assert CircuitBreaker.melt(name) == :ok
      assert ExternalService.blown?(name)
      assert ExternalService.reset(name) == :ok
      assert ExternalService.state(name) == :closed
      assert ExternalService.bypass({s, 3}) == :ok
      assert ExternalService.state({s, 3}) == :bypassed
    end

    test "keeps its hand-set state, closed or not, when it has not been called before", %{service: s} do
      start_on_clock(s, @fragile)
      assert ExternalService.close({s, 1}) == :ok
      assert ExternalService.reset({s, 1}) == :ok
      assert ExternalService.counts({s, 1}).failures == 0
      assert count(s) == 0
    end

    test "is told of by events under its own name", %{service: s} do
      start_on_clock(s, @fragile)
      Recorder.attach({s, 1}, [[:circuit_breaker, :opened]])
      call(s, 1, :retry)
      assert [{[:circuit_breaker, :opened], %{failures: 1}, %{service: {^s, 1}}}] = Recorder.events()
    end

    test "has the service's retries, fallback and deadline", %{service: s} do
      start_recording(s, retry: [max_attempts: 3, base: 7], fallback: {:value, :instead})
      assert call(s, 1, :retry) == :instead
      assert slept() == [7, 14]
    end

    test "of a service that is not started is not started", %{service: s} do
      assert {:error, %ServiceNotStarted{context: %{service: {^s, 1}}}} = call(s, 1, :fine)
      assert ExternalService.state({s, 1}) == {:error, :not_found}
    end

    test "is no service: it is not listed, started or stopped by its name", %{service: s} do
      start_on_clock(s, @fragile)
      call(s, 1, :retry)
      refute {s, 1} in ExternalService.services()
      assert ExternalService.stop({s, 1}) == :ok
      assert ExternalService.state({s, 1}) == :open
    end

    test "gives way to a service that was started under its name", %{service: s} do
      start_on_clock(s, @fragile)
      call(s, 1, :retry)
      ExternalService.start({s, 1})
      assert call(s, 1, :fine) == :fine
      ExternalService.stop({s, 1})
      assert ExternalService.state({s, 1}) == :open
    end

    test "is forgotten when its service is stopped or started afresh", %{service: s} do
      for again <- [
            fn -> ExternalService.stop(s) && start_on_clock(s, @fragile) end,
            fn -> start_on_clock(s, @fragile) end
          ] do
        start_on_clock(s, @fragile)
        call(s, 1, :retry)
        again.()
        assert {call(s, 1, :fine), count(s)} == {:fine, 0}
      end
    end

    test "stays as it is when options are reconfigured that it is not made of", %{service: s} do
      start_on_clock(s, @fragile)
      call(s, 1, :retry)
      ExternalService.reconfigure(s, retry: [base: 5], timeout: 1_000, fallback: {:value, :instead})
      assert {call(s, 1, :fine), ExternalService.state({s, 1})} == {:instead, :open}
    end

    test "is made again of other breaker options, and a state that a hand has set goes over", %{service: s} do
      start_on_clock(s, @fragile)
      call(s, 1, :retry)
      ExternalService.open({s, 2}, reason: :move)
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 1])
      assert {ExternalService.state({s, 1}), ExternalService.state({s, 2})} == {:closed, :forced_open}
      assert ExternalService.counts({s, 2}).reason == :move
      for _ <- 1..2, do: call(s, 1, :retry)
      assert ExternalService.state({s, 1}) == :open
    end

    test "works with a breaker that is no one of this library", %{service: s} do
      start_recording(s, circuit_breaker: [backend: StandIn], retry: [max_attempts: 1])
      call(s, 1, :retry)
      assert StandIn.count(:melt) == 1
    end
  end

  describe "instances" do
    test "of which calls only succeed leave nothing behind", %{service: s} do
      ExternalService.start(s)
      for key <- 1..10_000, do: assert(call(s, key, :fine) == :fine)
      assert count(s) == 0
    end

    test "are never more than :max_instances", %{service: s} do
      start_on_clock(s, [max_instances: 10] ++ @fragile)
      for key <- 1..1_000, do: call(s, key, :retry)
      assert count(s) == 10
      ExternalService.start(s, max_instances: 10, circuit_breaker: [failure_rate: 0.5])
      for key <- 1..1_000, do: call(s, key, :fine)
      assert count(s) == 10
    end

    test "are not evicted while their breakers are open, and newcomers are called all the same", %{service: s} do
      start_on_clock(s, [max_instances: 10] ++ @fragile)
      for key <- 1..10, do: call(s, key, :retry)
      for key <- 11..500, do: assert({:error, %RetriesExhausted{}} = call(s, key, :retry))
      for key <- 1..10, do: assert({:error, %CircuitBreakerOpen{}} = call(s, key, :fine))
      assert call(s, 11, :fine) == :fine
    end

    test "are evicted when they have nothing to remember, and only then", %{service: s} do
      clock =
        start_on_clock(s, max_instances: 4, circuit_breaker: [tolerate: 1, within: 1_000], retry: [max_attempts: 1])

      for key <- 1..4, do: call(s, key, :retry)
      VirtualClock.advance(clock, 600)
      for key <- 1..2, do: call(s, key, :retry)
      assert {ExternalService.state({s, 1}), ExternalService.state({s, 2})} == {:open, :open}
      VirtualClock.advance(clock, 600)
      for key <- 5..6, do: call(s, key, :retry)
      assert count(s) == 4
      assert for(key <- 1..6, do: ExternalService.state({s, key})) == [:open, :open, :closed, :closed, :closed, :closed]
      for key <- 5..6, do: call(s, key, :retry)
      assert {ExternalService.state({s, 5}), ExternalService.state({s, 6})} == {:open, :open}
    end

    test "with something of their limits in use are not evicted", %{service: s} do
      clock = start_on_clock(s, max_instances: 2, rate_limit: [limit: 2, per: 1_000, wait: false])
      for key <- 1..2, do: call(s, key, :fine)
      for key <- 3..50, do: call(s, key, :fine)
      assert call(s, 1, :fine) == :fine
      assert {:error, %RateLimited{}} = call(s, 1, :fine)
      VirtualClock.advance(clock, 1_000)
      for _ <- 1..2, do: assert(call(s, 51, :fine) == :fine)
      assert {:error, %RateLimited{}} = call(s, 51, :fine)
    end

    test "with calls in flight are not evicted", %{service: s} do
      start_on_clock(s, max_instances: 1, concurrency: [limit: 1])

      inside = fn ->
        for key <- 2..50, do: call(s, key, :fine)
        Concurrency.in_flight({s, 1})
      end

      assert ExternalService.call({s, 1}, inside) == 1
    end

    test "that were idle for :idle_timeout are forgotten by and by", %{service: s} do
      options = [
        idle_timeout: 60_000,
        circuit_breaker: [tolerate: 1, within: 1_000, reset: 1_000],
        retry: [max_attempts: 1]
      ]

      clock = start_on_clock(s, options)
      for key <- 1..100, do: call(s, key, :retry)
      assert count(s) == 100
      VirtualClock.advance(clock, 30_000)
      for key <- 101..300, do: call(s, key, :retry)
      assert count(s) == 300
      VirtualClock.advance(clock, 120_000)
      for key <- 301..600, do: call(s, key, :retry)
      assert count(s) in 300..320
    end

    test "are made once, whoever comes together", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 1_000, within: 10_000], retry: [max_attempts: 1])

      for key <- 1..50 do
        together(8, fn _ -> call(s, key, :retry) end)
        assert ExternalService.counts({s, key}).failures == 8
      end

      assert count(s) == 50
    end

    test "stay within their bound when many processes make them at once", %{service: s} do
      start_on_clock(s, [max_instances: 20] ++ @fragile)
      together(8, fn n -> for key <- 1..300, do: call(s, {n, key}, :retry) end)
      assert count(s) == 20
    end

    test "whose keys look like patterns are evicted alone", %{service: s} do
      for key <- [:_, :"$1", {:_, :_}, [:"$1" | :_]] do
        start_on_clock(s, max_instances: 2, circuit_breaker: [consecutive: 1], retry: [max_attempts: 1])
        call(s, {1, 2}, :retry)
        call(s, key, :fine)
        for other <- 1..10, do: call(s, other, :fine)
        assert {ExternalService.state({s, {1, 2}}), count(s)} == {:open, 2}
        for other <- 11..12, do: call(s, other, :retry)
        assert Enum.count([11, 12], &(ExternalService.state({s, &1}) == :open)) == 1
      end
    end

    test "are not forgotten for a call that began under other options", %{service: s} do
      start_on_clock(s, @fragile)

      ExternalService.call({s, 1}, fn ->
        ExternalService.reconfigure(s, circuit_breaker: [reset: 6_000])
        call(s, 1, :retry)
        :retry
      end)

      assert ExternalService.state({s, 1}) == :open
    end

    test "that are evicted during a call remember its failure all the same", %{service: s} do
      for made_again? <- [false, true], retry <- [[max_attempts: 1], [max_attempts: 2, base: 1]] do
        start_on_clock(s, max_instances: 3, circuit_breaker: [consecutive: 1, tolerate: :infinity], retry: retry)

        ExternalService.call({s, 1}, fn ->
          for key <- 10..30, do: call(s, key, :fine)
          if made_again?, do: call(s, 1, :fine)
          :retry
        end)

        assert {ExternalService.state({s, 1}), count(s)} == {:open, 3}
        ExternalService.stop(s)
      end
    end

    test "that are evicted remember a failure that is reported by hand, too", %{service: s} do
      start_on_clock(s, max_instances: 3, circuit_breaker: [consecutive: 1])
      {:ok, permit} = CircuitBreaker.admit({s, 1})
      for key <- 10..30, do: call(s, key, :fine)
      CircuitBreaker.report(permit, :failure)
      assert ExternalService.state({s, 1}) == :open
    end

    test "that are evicted leave nothing with a backend that knows them by name", %{service: s} do
      start_on_clock(s, max_instances: 3, circuit_breaker: [backend: StandIn.backend()], retry: [max_attempts: 1])
      for key <- 1..100, do: call(s, key, :retry)
      assert {count(s), StandIn.count(:remove)} == {3, 97}
    end

    test "do not need the owner of their table: calls are made, and nothing is remembered", %{service: s} do
      start_on_clock(s, @fragile)
      service = %{ExternalService.Service.started(s) | instances: :ets.whereis(:no_such_table)}
      instance = Instances.get(service, 1)
      assert {instance.name, instance.argument} == {{s, 1}, {:ok, 1}}
    end
  end
end
