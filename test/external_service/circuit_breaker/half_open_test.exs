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

  describe "a probe of a call" do
    test "that raises what is not to be retried does not open again, and one that is listed does", %{service: s} do
      half_open(s, retry: [retry_exceptions: [ArgumentError], max_attempts: 1])
      assert_raise RuntimeError, fn -> ExternalService.call(s, fn -> raise "no" end) end
      assert {ExternalService.state(s), probes(s)} == {:half_open, 0}
      assert_raise ArgumentError, fn -> ExternalService.call(s, fn -> raise ArgumentError end) end
      assert ExternalService.state(s) == :open
    end

    test "succeeds with melt: :per_call as well", %{service: s} do
      half_open(s, [retry: [base: 0]], melt: :per_call)
      assert fine(s) == :fine
      assert ExternalService.state(s) == :closed
    end

    test "of a call that retries closes the breaker by the attempt that succeeds", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile, retry: [base: 1_000, max_attempts: 3])
      Recorder.attach(s, @changes)
      assert ExternalService.call(s, attempting_each([:retry, :retry, :fine])) == :fine
      assert VirtualClock.now(clock) == 3_000
      assert Recorder.names() == [@opened, @half_opened, @opened, @half_opened, @closed]
    end

    test "that fails opens at once, and the successes after it change nothing", %{service: s} do
      half_open(s, [], half_open: [probes: 4, successes: 3])
      Recorder.attach(s, @changes)
      [first | others] = for _ <- 1..4, do: s |> CircuitBreaker.admit() |> elem(1)
      CircuitBreaker.report(first, :failure)
      assert ExternalService.state(s) == :open
      for permit <- others, do: CircuitBreaker.report(permit, :success)
      assert {ExternalService.state(s), Recorder.names()} == {:open, [@opened]}
    end
  end

  describe "a breaker whose open time is over" do
    test "reads half-open and available without any call, and not while the probe is out", %{service: s} do
      half_open(s)
      assert {ExternalService.available?(s), ExternalService.blown?(s)} == {true, false}

      ExternalService.call(s, fn ->
        assert {ExternalService.available?(s), ExternalService.blown?(s)} == {false, true}
        assert ExternalService.state(s) == :half_open
      end)

      assert {ExternalService.state(s), ExternalService.available?(s)} == {:closed, true}
    end

    test "lets one of nine concurrent callers reach the service", %{service: s} do
      half_open(s)
      parent = self()

      callers =
        for _ <- 1..9 do
          Task.async(fn ->
            answer =
              ExternalService.call(s, fn ->
                send(parent, {:inside, self()})
                receive do: (:go -> :fine)
              end)

            send(parent, {:answered, answer})
          end)
        end

      assert_receive {:inside, probe}, 10_000
      for _ <- 1..8, do: assert_receive({:answered, {:error, %CircuitBreakerOpen{}}}, 10_000)
      refute_received {:inside, _second}
      send(probe, :go)
      assert_receive {:answered, :fine}, 10_000
      Task.await_many(callers)
      assert ExternalService.state(s) == :closed
    end

    test "admits as many of 200 that race as there are probes, a thousand times", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: Keyword.put(@fragile, :half_open, probes: 3))
      racers = for _ <- 1..200, do: spawn_link(fn -> race(s) end)

      for _ <- 1..1_000 do
        CircuitBreaker.melt(s)
        VirtualClock.advance(clock, 1_000)
        Enum.each(racers, &send(&1, {:race, self()}))
        answers = for _ <- 1..200, do: receive(do: ({:raced, answer} -> answer))
        permits = for {:ok, permit} <- answers, do: permit
        assert length(permits) == 3
        Enum.each(permits, &CircuitBreaker.report(&1, :success))
      end

      assert ExternalService.state(s) == :closed
    end
  end

  defp race(service) do
    receive do
      {:race, pid} -> send(pid, {:raced, CircuitBreaker.admit(service)})
    end

    race(service)
  end

  describe "a probe that fails again and again" do
    test "opens once each time, is admitted on time, and the counts go on", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [failure_rate: 0.5, min_calls: 5, reset: 5_000, half_open: true])
      for _ <- 1..5, do: fine(s)
      ExternalService.reset(s)
      results = [:retry, :retry, :fine, :fine, :retry]
      for result <- results, do: ExternalService.call(s, [max_attempts: 1], fn -> result end)
      assert {:error, %CircuitBreakerOpen{}} = fine(s)
      VirtualClock.advance(clock, 6_000)
      Recorder.attach(s, [@opened])
      assert {:error, %RetriesExhausted{context: %{reason: :angry}}} = call_once(s, {:retry, :angry})
      assert {:error, %CircuitBreakerOpen{}} = fine(s)
      assert %{failures: 4, calls: 6} = Recorder.one(@opened)
      VirtualClock.advance(clock, 6_000)
      assert {fine(s), fine(s), ExternalService.state(s)} == {:fine, :fine, :closed}
    end

    test "does so when the window that opened it has long passed", %{service: s} do
      rate = [failure_rate: 0.5, min_calls: 2, window: {:time, 100}, reset: 1_000, half_open: true]
      clock = start_on_clock(s, circuit_breaker: rate)
      for _ <- 1..2, do: fail(s)
      Recorder.attach(s, @changes)

      for _ <- 1..10 do
        VirtualClock.advance(clock, 1_000)
        assert ExternalService.state(s) == :half_open
        fail(s)
        assert %{state: :open, probes: 0, calls: 1, failures: 1} = ExternalService.counts(s)
        assert Recorder.names() == [@half_opened, @opened]
      end
    end

    test "does so whoever opened the breaker and died since", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile)

      for _ <- 1..100 do
        {pid, ref} = spawn_monitor(fn -> fail(s) end)
        assert_receive {:DOWN, ^ref, _, ^pid, :normal}, 10_000
        VirtualClock.advance(clock, 999)
        assert ExternalService.state(s) == :open
        VirtualClock.advance(clock, 1)
        assert ExternalService.state(s) == :half_open
      end
    end
  end

  defp call_once(service, result), do: ExternalService.call(service, [max_attempts: 1], fn -> result end)

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

  describe "half-open" do
    test "is read at the end of the open time without any call, and asking takes no probe", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile)
      fail(s)
      VirtualClock.advance(clock, 999)
      assert {ExternalService.state(s), ExternalService.available?(s)} == {:open, false}
      VirtualClock.advance(clock, 1)
      for _ <- 1..5, do: assert({ExternalService.available?(s), ExternalService.blown?(s)} == {true, false})
      assert {ExternalService.state(s), probes(s)} == {:half_open, 0}
      assert fine(s) == :fine
    end

    test "of callers that ask before they call lets one reach the service", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile)
      fail(s)

      for _ <- 1..100 do
        VirtualClock.advance(clock, 1_000)
        reached = :counters.new(1, [])
        release = :counters.new(1, [])

        together(9, fn _ ->
          if ExternalService.available?(s), do: ExternalService.call(s, [max_attempts: 1], reach(reached, release))
          :counters.add(release, 1, 1)
        end)

        assert {:counters.get(reached, 1), ExternalService.state(s)} == {1, :open}
      end
    end

    # Stays inside until all the others have been refused.
    defp reach(reached, release) do
      fn ->
        :counters.add(reached, 1, 1)
        soon(fn -> :counters.get(release, 1) == 8 or :counters.get(reached, 1) > 1 end)
        :retry
      end
    end

    test "hears of nothing but its probes: melts from outside count for nothing", %{service: s} do
      half_open(s)
      for _ <- 1..5, do: CircuitBreaker.melt(s)
      assert %{state: :half_open, consecutive: 1} = ExternalService.counts(s)
    end

    test "lets a call from before die or fail without a change", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile)
      early = hold(s)
      fail(s)
      VirtualClock.advance(clock, 1_000)
      probe = hold(s)
      ref = Process.monitor(early)
      Process.exit(early, :kill)
      assert_receive {:DOWN, ^ref, _, _, _}, 10_000
      assert {ExternalService.state(s), probes(s)} == {:half_open, 1}
      ref = Process.monitor(probe)
      send(probe, :go)
      assert_receive {:DOWN, ^ref, _, _, :normal}, 10_000
      assert ExternalService.state(s) == :closed
    end
  end

  describe "a probe that is a whole call" do
    test "opens when a listed exception is raised, or when retry_on matches", %{service: s} do
      for {retry, fun} <- [
            {[retry_exceptions: [RuntimeError]], fn -> raise "no" end},
            {[retry_on: &(&1 == :no)], fn -> :no end}
          ] do
        half_open(s, retry: [base: 0] ++ retry)
        assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(fun))
        assert {attempts(), ExternalService.state(s)} == {1, :open}
      end
    end

    test "is the first attempt alone: a call that fails and then would not is refused its second", %{service: s} do
      half_open(s, retry: [base: 0])
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting_each([:retry, :fine]))
      assert attempts() == 1
    end

    test "may be a later attempt of a call that was under way", %{service: s} do
      for melt <- [:per_attempt, :per_call] do
        clock = start_on_clock(s, circuit_breaker: [melt: melt] ++ @fragile, retry: [base: 1_000, max_attempts: 2])

        meanwhile = fn ->
          if melt == :per_call, do: CircuitBreaker.melt(s)
          :retry
        end

        assert ExternalService.call(s, attempting_each([meanwhile, :fine])) == :fine
        assert {attempts(), VirtualClock.now(clock), ExternalService.state(s)} == {2, 1_000, :closed}
      end
    end

    test "can not be had by a call inside of it", %{service: s} do
      half_open(s)
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, fn -> fine(s) end)
      assert ExternalService.state(s) == :closed
    end
  end

  describe "a probe that outlives its lease" do
    test "is replaced, and what it reports then changes nothing", %{service: s} do
      for late <- [:success, :failure, :ignore] do
        clock = half_open(s, [], half_open: [lease: 300])
        {:ok, slow} = CircuitBreaker.admit(s)
        VirtualClock.advance(clock, 299)
        assert {:error, %CircuitBreakerOpen{context: %{retry_after: 1}}} = CircuitBreaker.admit(s)
        VirtualClock.advance(clock, 1)
        {:ok, next} = CircuitBreaker.admit(s)
        CircuitBreaker.report(slow, late)
        assert {late, ExternalService.state(s), probes(s)} == {late, :half_open, 1}
        CircuitBreaker.report(next, :success)
        assert {late, ExternalService.state(s)} == {late, :closed}
      end
    end

    test "has a lease as long as reset where none is given", %{service: s} do
      clock = half_open(s)
      {:ok, _hanging} = CircuitBreaker.admit(s)
      VirtualClock.advance(clock, 999)
      refute ExternalService.available?(s)
      VirtualClock.advance(clock, 1)
      assert fine(s) == :fine
      assert ExternalService.state(s) == :closed
    end

    test "closes it, too, where there is no open time", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: Keyword.put(@fragile, :reset, 0))
      fail(s)
      for _ <- 1..3, do: ExternalService.call(s, fn -> VirtualClock.advance(clock, 50) end)
      assert ExternalService.state(s) == :closed
    end
  end

  describe "more successes than probes" do
    test "are waited for, and one failure between them opens", %{service: s} do
      half_open(s, [], half_open: [probes: 2, successes: 5])

      for n <- 1..4 do
        assert {n, fine(s), ExternalService.state(s)} == {n, :fine, :half_open}
      end

      fail(s)
      assert ExternalService.state(s) == :open
    end

    test "let no more out than are still needed, or than there are places", %{service: s} do
      half_open(s, [], half_open: [probes: 3, successes: 4])
      out = fn -> Stream.repeatedly(fn -> CircuitBreaker.admit(s) end) |> Enum.take_while(&match?({:ok, _}, &1)) end
      assert [{:ok, one}, {:ok, two} | _] = permits = out.()
      assert length(permits) == 3
      for permit <- [one, two], do: CircuitBreaker.report(permit, :success)
      assert {length(out.()), probes(s)} == {1, 2}
    end
  end

  describe "handlers that crash" do
    def crash([_, _, event], _measurements, %{service: service}, service), do: raise("at #{event}")
    def crash(_event, _measurements, _metadata, _service), do: :ok

    test "at any change are detached, and neither the change nor other listeners suffer", %{service: s} do
      for events <- [[@opened], [@half_opened], [@closed]] do
        clock = start_on_clock(s, circuit_breaker: @fragile)
        id = make_ref()
        :ok = Telemetry.attach_many(id, Enum.map(events, &[:external_service | &1]), &__MODULE__.crash/4, s)
        other = Recorder.attach(s, @changes)
        fail(s)
        VirtualClock.advance(clock, 1_000)
        assert fine(s) == :fine
        assert ExternalService.state(s) == :closed
        assert Recorder.names() == @changes
        assert {Telemetry.detach(id), Telemetry.detach(other)} == {{:error, :not_found}, :ok}
      end
    end
  end

  describe "handlers that call back" do
    def call_and_reset([_, _, event], _measurements, %{service: service}, {service, pid}) do
      before = ExternalService.state(service)
      called = ExternalService.call(service, [max_attempts: 1], fn -> :inside end)
      ExternalService.reset(service)
      send(pid, {event, before, called, ExternalService.state(service)})
    end

    def call_and_reset(_event, _measurements, _metadata, _config), do: :ok

    test "may look, call and reset at any change", %{service: s} do
      for {event, expected} <- [
            {@opened, {:opened, :open, :refused, :closed}},
            {@half_opened, {:half_opened, :half_open, :refused, :closed}},
            {@closed, {:closed, :closed, :inside, :closed}}
          ] do
        clock = start_on_clock(s, circuit_breaker: @fragile)
        id = make_ref()
        Telemetry.attach(id, [:external_service | event], &__MODULE__.call_and_reset/4, {s, self()})
        fail(s)
        VirtualClock.advance(clock, 1_000)
        assert fine(s) == :fine
        assert_received {name, before, called, now}
        called = with({:error, %CircuitBreakerOpen{}} <- called, do: :refused)
        assert {name, before, called, now} == expected
        Telemetry.detach(id)
        assert ExternalService.state(s) == :closed
      end
    end
  end

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

    # Deterministic: the hand comes when the new breaker has just taken the place of the old one.
    test "that close what start/2 has just taken over are not undone by it", %{service: s} do
      alias ExternalService.CircuitBreaker.{Installed, Local}
      {:ok, old} = Local.install(s, within: 1_000)
      {:ok, new} = Local.install(s, within: 1_000)
      Local.open(s, old, reason: :deploy)
      :ok = Installed.replace(s, {Local, old}, {Local, new}, fn -> Local.close(s, new) end)
      assert Local.look(s, new).state == :closed
    end

    test "that close the old breaker before the new one has its place close that one, too", %{service: s} do
      alias ExternalService.CircuitBreaker.{Installed, Local}
      {:ok, old} = Local.install(s, within: 1_000)
      {:ok, new} = Local.install(s, within: 1_000)
      Local.open(s, old, reason: :deploy)
      :ok = Installed.replace(s, {Local, old}, {Local, new}, fn -> Local.close(s, old) end)
      assert Local.look(s, new).state == :closed
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

    test "raise: a longest open time that is shorter than the first", %{service: s} do
      options = [reset: 1_000, reset_backoff: [max: 999]]
      assert_raise ArgumentError, ~r/contradict.*max: 999/, fn -> ExternalService.start(s, circuit_breaker: options) end
      assert ExternalService.start(s, circuit_breaker: [reset: 1_000, reset_backoff: [max: 1_000]]) == :ok
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
