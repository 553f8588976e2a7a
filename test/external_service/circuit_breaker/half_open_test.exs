# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.HalfOpenTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers, only: [soon: 1]

  alias ExternalService.{RateLimited, ServiceSaturated}

  @opened [:circuit_breaker, :opened]
  @half_opened [:circuit_breaker, :half_opened]
  @closed [:circuit_breaker, :closed]
  @changes [@opened, @half_opened, @closed]

  # Opens on the first failure, and lets one probe out after a second.
  @fragile [consecutive: 1, reset: 1_000, half_open: true]

  defp half_open(service, options \\ [], breaker \\ []) do
    clock = start_on_clock(service, [circuit_breaker: Keyword.merge(@fragile, breaker)] ++ options)
    fail(service)
    VirtualClock.advance(clock, 1_000)
    assert ExternalService.state(service) == :half_open
    clock
  end

  defp probes(service), do: ExternalService.counts(service).probes

  defp fine(service), do: ExternalService.call(service, fn -> :fine end)

  describe "a probe" do
    test "that succeeds closes the breaker, and the failures before are forgotten", %{service: s} do
      half_open(s)
      assert fine(s) == :fine
      assert %{state: :closed, failures: 0, consecutive: 0} = ExternalService.counts(s)
    end

    test "that fails opens again at once, whatever min_calls says", %{service: s} do
      half_open(s, [], failure_rate: 0.5, min_calls: 20)
      fail(s)
      assert ExternalService.state(s) == :open
    end

    test "that fails opens at once with melt: :per_call too, and the call's retries are refused", %{service: s} do
      half_open(s, [retry: [base: 0]], melt: :per_call)
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(:retry))
      assert {attempts(), ExternalService.state(s)} == {1, :open}
    end

    test "is given back when an exception, a throw or an exit passes through", %{service: s} do
      half_open(s)

      for fun <- [fn -> raise "no" end, fn -> throw(:no) end, fn -> exit(:no) end] do
        catch_error_or_exit(fn -> ExternalService.call(s, fun) end)
        assert {ExternalService.state(s), probes(s)} == {:half_open, 0}
      end

      assert fine(s) == :fine
      assert ExternalService.state(s) == :closed
    end

    test "is given back when the rate limit refuses", %{service: s} do
      half_open(s, rate_limit: [limit: 1, per: 60_000, wait: false])
      assert {:error, %RateLimited{}} = fine(s)
      assert {ExternalService.state(s), probes(s)} == {:half_open, 0}
    end

    test "is given back when the concurrency limit refuses", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile, concurrency: [limit: 1])
      holder = hold(s)
      CircuitBreaker.melt(s)
      VirtualClock.advance(clock, 1_000)
      assert {:error, %ServiceSaturated{}} = fine(s)
      assert {ExternalService.state(s), probes(s)} == {:half_open, 0}
      Process.exit(holder, :kill)
    end

    test "is given back when the process that makes the call is killed", %{service: s} do
      half_open(s)
      holder = hold(s)
      refute ExternalService.available?(s)
      Process.exit(holder, :kill)
      soon(fn -> probes(s) == 0 end)
      assert fine(s) == :fine
    end

    test "of a call admitted while closed is none: its end changes nothing", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile)
      {:ok, early} = CircuitBreaker.admit(s)
      fail(s)
      VirtualClock.advance(clock, 1_000)
      {:ok, probe} = CircuitBreaker.admit(s)
      CircuitBreaker.report(early, :failure)
      assert ExternalService.state(s) == :half_open
      CircuitBreaker.report(probe, :success)
      assert ExternalService.state(s) == :closed
    end

    test "can be reported by another process, and once only", %{service: s} do
      half_open(s, [], half_open: [probes: 2])
      {:ok, permit} = CircuitBreaker.admit(s)
      together(10, fn _ -> CircuitBreaker.report(permit, :success) end)
      assert {ExternalService.state(s), probes(s)} == {:half_open, 0}
    end
  end

  defp catch_error_or_exit(fun) do
    fun.()
    flunk("it went through")
  rescue
    _error -> :ok
  catch
    _kind, _reason -> :ok
  end

  defp hold(service) do
    parent = self()

    pid =
      spawn(fn ->
        ExternalService.call(service, fn ->
          send(parent, :inside)
          receive do: (:go -> :fine)
        end)
      end)

    assert_receive :inside, 10_000
    pid
  end

  describe "two probes that come back well at once" do
    test "close the breaker once", %{service: s} do
      half_open(s, [], half_open: [probes: 2, successes: 1])
      Recorder.attach(s, @changes)
      permits = for _ <- 1..2, do: s |> CircuitBreaker.admit() |> elem(1)
      together(2, fn n -> CircuitBreaker.report(Enum.at(permits, n - 1), :success) end)
      assert Recorder.names() == [@closed]
      assert ExternalService.state(s) == :closed
    end
  end

  describe "a window of time that has passed" do
    test "leaves too few calls for a rate, and successes count in the next one", %{service: s} do
      rate = [failure_rate: 0.5, min_calls: 5, window: {:time, 5_000}]
      clock = start_on_clock(s, circuit_breaker: rate)
      for _ <- 1..4, do: fail(s)
      VirtualClock.advance(clock, 5_000)
      for _ <- 1..4, do: fail(s)
      assert %{state: :closed, calls: 4, failures: 4} = ExternalService.counts(s)
      VirtualClock.advance(clock, 5_000)
      for _ <- 1..8, do: fine(s)
      assert %{state: :closed, calls: 8, failures: 0, slow: 0, rate: +0.0} = ExternalService.counts(s)
    end
  end

  describe "the events" do
    test "of a rate breaker have the counts of the moment, also of the probe that failed", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [failure_rate: 0.5, min_calls: 5, reset: 10_000, half_open: true])
      Recorder.attach(s, @changes)
      for result <- [:retry, :retry, :retry, :fine], do: ExternalService.call(s, [max_attempts: 1], fn -> result end)
      assert Recorder.events() == []
      assert fine(s) == :fine
      assert %{calls: 5, failures: 3, rate: 0.6, rule: :failure_rate, to: :open} = Recorder.one(@opened)
      VirtualClock.advance(clock, 12_000)
      assert ExternalService.state(s) == :half_open
      assert %{from: :open, to: :half_open, rule: nil} = Recorder.one(@half_opened)
      fail(s)
      assert %{from: :half_open, calls: 6, failures: 4, rate: rate} = Recorder.one(@opened)
      assert_in_delta rate, 0.666, 0.001
      VirtualClock.advance(clock, 11_000)
      assert fine(s) == :fine
      assert Recorder.names() == [@half_opened, @closed]
    end

    test "are on time over a hundred cycles", %{service: s} do
      clock = half_open(s)
      Recorder.attach(s, @changes)

      for _ <- 1..100 do
        fail(s)
        VirtualClock.advance(clock, 999)
        assert ExternalService.state(s) == :open
        VirtualClock.advance(clock, 1)
        assert ExternalService.state(s) == :half_open
      end

      assert Recorder.names() == List.duplicate([@opened, @half_opened], 100) |> Enum.concat()
    end

    test "reach a handler that calls back into the service, in their order", %{service: s} do
      clock = half_open(s)
      Recorder.attach(s, @changes)
      id = make_ref()
      names = Enum.map(@changes, &[:external_service | &1])
      :ok = Telemetry.attach_many(id, names, &__MODULE__.call_back/4, s)
      on_exit(fn -> Telemetry.detach(id) end)
      fail(s)
      VirtualClock.advance(clock, 1_000)
      assert fine(s) == :fine
      changes = for {_name, _, %{from: from, to: to}} <- Recorder.events(), do: {from, to}
      assert hd(changes) == {:half_open, :open}
      assert chain?(changes)
      assert List.last(changes) |> elem(1) == ExternalService.state(s)
    end
  end

  def call_back([_, _, :half_opened], _measurements, %{service: service}, service) do
    ExternalService.counts(service)
    ExternalService.reset(service)
  end

  def call_back(_event, _measurements, %{service: service}, service), do: ExternalService.state(service)
  def call_back(_event, _measurements, _metadata, _service), do: :ok

  defp chain?(changes),
    do: changes |> Enum.chunk_every(2, 1, :discard) |> Enum.all?(fn [{_, to}, {from, _}] -> to == from end)

  describe "hands" do
    test "of a thousand processes leave a chain of changes that ends in the state there is", %{service: s} do
      start_on_clock(s, circuit_breaker: @fragile)
      Recorder.attach(s, @changes)

      together(1_000, fn n ->
        case rem(n, 4) do
          0 -> ExternalService.open(s, reason: n)
          1 -> ExternalService.close(s)
          2 -> ExternalService.bypass(s)
          3 -> ExternalService.reset(s)
        end
      end)

      changes = for {_name, _, %{from: from, to: to}} <- Recorder.events(), do: {from, to}
      assert changes != []
      assert {:closed, _} = hd(changes)
      assert chain?(changes)
      assert List.last(changes) |> elem(1) == ExternalService.state(s)
    end

    test "give a reason that is told with the change and shown by the counts", %{service: s} do
      start_on_clock(s, circuit_breaker: @fragile)
      Recorder.attach(s, @changes)
      assert ExternalService.open(s, reason: {:deploy, 7}) == :ok
      assert %{reason: {:deploy, 7}, to: :forced_open, retry_after: :infinity} = Recorder.one(@opened)
      assert %{reason: {:deploy, 7}, state: :forced_open, retry_after: :infinity} = ExternalService.counts(s)
    end

    test "find nothing where there is no service, and no breaker to open where there is none", %{service: s} do
      for act <- [
            &ExternalService.open/1,
            &ExternalService.close/1,
            &ExternalService.bypass/1,
            &ExternalService.counts/1
          ] do
        assert act.(s) == {:error, :not_found}
      end

      ExternalService.start(s, circuit_breaker: [tolerate: :infinity])
      assert ExternalService.open(s) == {:error, :not_found}
      assert {ExternalService.close(s), ExternalService.bypass(s), ExternalService.state(s)} == {:ok, :ok, :closed}
      assert {:ok, permit} = CircuitBreaker.admit(s)
      assert CircuitBreaker.report(permit, :failure) == :ok
    end

    test "find nothing in a backend that has no such functions, and it can be asked all the same", %{service: s} do
      ExternalService.start(s, circuit_breaker: [backend: StandIn])
      assert ExternalService.open(s) == {:error, :not_found}
      assert {:ok, permit} = CircuitBreaker.admit(s)
      assert CircuitBreaker.report(permit, :success) == :ok
      assert StandIn.count(:melt) == 0
      {:ok, permit} = CircuitBreaker.admit(s)
      assert CircuitBreaker.report(permit, :failure) == :ok
      assert StandIn.count(:melt) == 1
    end
  end

  describe "options that contradict each other" do
    test "raise: a share of slow calls without a slow call", %{service: s} do
      assert_raise ArgumentError, ~r/contradict.*:slow_call/, fn ->
        ExternalService.start(s, circuit_breaker: [slow_rate: 0.5])
      end
    end

    test "raise: more calls needed for a rate than are counted", %{service: s} do
      options = [failure_rate: 0.5, min_calls: 11, window: {:calls, 10}]
      assert_raise ArgumentError, ~r/min_calls: 11/, fn -> ExternalService.start(s, circuit_breaker: options) end
      assert ExternalService.start(s, circuit_breaker: Keyword.put(options, :min_calls, 10)) == :ok
    end
  end

  describe "a slow call" do
    test "is measured from where the function begins, not from where it waits", %{service: s} do
      clock = VirtualClock.new()
      breaker = [slow_call: 100, slow_rate: 1.0, min_calls: 1]
      limit = [limit: 1, per: 1_000, wait: 5_000]
      ExternalService.start(s, clock: clock, circuit_breaker: breaker, rate_limit: limit)
      for _ <- 1..3, do: assert(fine(s) == :fine)
      assert %{state: :closed, calls: 3, slow: 0} = ExternalService.counts(s)
      ExternalService.reset(s)
      ExternalService.call(s, fn -> VirtualClock.advance(clock, 100) end)
      assert ExternalService.state(s) == :open
    end
  end
end
