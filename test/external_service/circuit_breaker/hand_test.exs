# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.HandTest do
  use ExternalService.Case, async: true

  @opened [:circuit_breaker, :opened]
  @half_opened [:circuit_breaker, :half_opened]
  @closed [:circuit_breaker, :closed]
  @changes [@opened, @half_opened, @closed]

  # Opens on the first failure, and lets one probe out after a second.
  @fragile [consecutive: 1, reset: 1_000, half_open: true]

  defmodule Module do
    use ExternalService, circuit_breaker: [tolerate: 0]
  end

  defp state(service), do: ExternalService.state(service)
  defp fine(service), do: ExternalService.call(service, fn -> :fine end)
  defp refused?(service), do: match?({:error, %CircuitBreakerOpen{}}, fine(service))

  # The breaker in each of its states, on a clock.
  defp start_as(service, state, breaker \\ @fragile) do
    clock = start_on_clock(service, circuit_breaker: breaker)
    if state in [:open, :half_open], do: fail(service)
    if state == :half_open, do: VirtualClock.advance(clock, 1_000)
    if state == :forced_open, do: ExternalService.open(service, reason: :before)
    if state == :bypassed, do: ExternalService.bypass(service)
    assert state(service) == state
    clock
  end

  defp changes, do: for({_name, _measurements, %{from: from, to: to}} <- Recorder.events(), do: {from, to})

  @states [:closed, :open, :half_open, :forced_open, :bypassed]
  @hands [open: :forced_open, close: :closed, bypass: :bypassed, reset: :closed]

  for from <- @states, {hand, to} <- @hands do
    test "#{hand} of a breaker that is #{from} leaves it #{to}, and tells that once", %{service: s} do
      start_as(s, unquote(from))
      Recorder.attach(s, @changes)
      for _ <- 1..3, do: assert(apply(ExternalService, unquote(hand), [s]) == :ok)
      assert state(s) == unquote(to)

      assert {ExternalService.available?(s), ExternalService.blown?(s)} ==
               {unquote(to != :forced_open), unquote(to == :forced_open)}

      assert changes() == unquote(if from == to, do: [], else: [{from, to}])
    end
  end

  for {state, hand} <- [forced_open: :open, bypassed: :bypass] do
    describe "a breaker that is #{state}" do
      test "stays so whatever is reported and however much time passes", %{service: s} do
        clock = start_on_clock(s, circuit_breaker: @fragile)
        permits = for _ <- 1..3, do: s |> CircuitBreaker.admit() |> elem(1)
        apply(ExternalService, unquote(hand), [s])

        for {permit, outcome} <- Enum.zip(permits, [:failure, :success, :ignore]),
            do: CircuitBreaker.report(permit, outcome)

        for ms <- [0, 1_000, :timer.hours(24 * 365)] do
          VirtualClock.advance(clock, ms)
          CircuitBreaker.melt(s)
          fail(s)
          fine(s)
          assert {ms, state(s)} == {ms, unquote(state)}
        end
      end

      test "hears nothing of a probe that was out before", %{service: s} do
        start_as(s, :half_open)
        {:ok, probe} = CircuitBreaker.admit(s)
        apply(ExternalService, unquote(hand), [s])
        CircuitBreaker.report(probe, :failure)
        assert %{state: unquote(state), probes: 0, consecutive: consecutive} = ExternalService.counts(s)
        assert consecutive == 1
      end

      test "stays so when the service is started afresh or changed, with its reason, and is closed after a stop",
           %{service: s} do
        clock = start_on_clock(s, circuit_breaker: @fragile)
        if unquote(hand) == :open, do: ExternalService.open(s, reason: :works), else: ExternalService.bypass(s)
        Recorder.attach(s, @changes)
        ExternalService.start(s, clock: clock, circuit_breaker: [tolerate: 3])
        assert state(s) == unquote(state)
        ExternalService.reconfigure(s, circuit_breaker: [tolerate: 4], retry: [max_attempts: 2])
        assert state(s) == unquote(state)
        assert ExternalService.counts(s).reason == unquote(if hand == :open, do: :works)
        assert Recorder.events() == []
        ExternalService.stop(s)
        assert changes() == [{unquote(state), :closed}]
        ExternalService.start(s)
        assert state(s) == :closed
      end

      test "may end its service's old calls, which change nothing in the new breaker", %{service: s} do
        start_on_clock(s, circuit_breaker: [tolerate: 0])
        {:ok, early} = CircuitBreaker.admit(s)
        apply(ExternalService, unquote(hand), [s])
        {:ok, later} = if unquote(hand) == :bypass, do: CircuitBreaker.admit(s), else: {:ok, early}
        Recorder.attach(s, @changes)
        start_on_clock(s, circuit_breaker: [tolerate: 0])
        for permit <- [early, later], do: CircuitBreaker.report(permit, :failure)
        assert {state(s), ExternalService.counts(s).failures, Recorder.events()} == {unquote(state), 0, []}
      end
    end
  end

  describe "open/2" do
    test "for a time ends when it is over, as an open time does", %{service: s} do
      for {half_open, next} <- [{false, :closed}, {true, :half_open}] do
        clock = start_on_clock(s, circuit_breaker: [tolerate: 0, half_open: half_open])
        id = Recorder.attach(s, @changes)
        ExternalService.open(s, for: 250)
        assert {:error, %CircuitBreakerOpen{context: %{retry_after: 250}}} = fine(s)
        VirtualClock.advance(clock, 249)
        assert state(s) == :forced_open
        VirtualClock.advance(clock, 1)
        assert fine(s) == :fine
        assert state(s) == :closed
        assert [{:closed, :forced_open}, {:forced_open, ^next} | _] = changes()
        Telemetry.detach(id)
      end
    end

    test "again replaces time and reason, without an event", %{service: s} do
      clock = start_on_clock(s)
      ExternalService.open(s, for: 100, reason: :first)
      Recorder.attach(s, @changes)
      VirtualClock.advance(clock, 60)
      ExternalService.open(s, for: 100, reason: :second)
      assert %{retry_after: 100, reason: :second} = ExternalService.counts(s)
      ExternalService.open(s)
      assert %{retry_after: :infinity, reason: nil} = ExternalService.counts(s)
      ExternalService.open(s, for: 10)
      VirtualClock.advance(clock, 10)
      assert {Recorder.names(), state(s)} == {[], :closed}
    end

    test "for a time keeps what is left of it when the service is started afresh or changed", %{service: s} do
      clock = start_on_clock(s)
      ExternalService.open(s, for: 60_000)
      VirtualClock.advance(clock, 20_000)
      ExternalService.start(s, clock: clock)
      assert ExternalService.counts(s).retry_after == 40_000
      VirtualClock.advance(clock, 10_000)
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 1])
      assert ExternalService.counts(s).retry_after == 30_000
      VirtualClock.advance(clock, 30_000)
      assert state(s) == :closed
    end

    test "takes any time up to the end of time", %{service: s} do
      clock = start_on_clock(s)
      VirtualClock.advance(clock, 1_000)
      ExternalService.open(s, for: div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000))
      VirtualClock.advance(clock, :timer.hours(24 * 365 * 100))
      assert refused?(s)
    end

    test "takes any term as the reason, and forgets it when it is over", %{service: s} do
      start_on_clock(s)

      for reason <- [self(), make_ref(), %{why: ["a", 1.5]}, String.duplicate("x", 10_000), fn -> :fine end] do
        ExternalService.open(s, reason: reason)
        assert ExternalService.counts(s).reason == reason
        ExternalService.close(s)
        assert ExternalService.counts(s).reason == nil
      end
    end

    test "refuses options that it has not, and changes nothing", %{service: s} do
      start_on_clock(s)

      for options <- [[for: 0], [for: -1], [for: 1.5], [for: nil], [because: 1]] do
        assert %ValidationError{} = raised(fn -> ExternalService.open(s, options) end)
      end

      assert state(s) == :closed
    end
  end

  describe "reasons" do
    defp force_others(service) do
      ExternalService.close(service)
      ExternalService.open(service, reason: :second)
      ExternalService.close(service)
      ExternalService.open(service, reason: :third)
    end

    def force_others_once(_event, _measurements, %{service: service, reason: :first}, service),
      do: force_others(service)

    def force_others_once(_event, _measurements, _metadata, _service), do: :ok

    test "are told with each change, also when listeners are slow", %{service: s} do
      start_on_clock(s)
      Recorder.attach(s, [@opened])
      id = make_ref()
      Telemetry.attach(id, [:external_service | @opened], &__MODULE__.force_others_once/4, s)
      on_exit(fn -> Telemetry.detach(id) end)
      ExternalService.open(s, reason: :first)
      assert for({_name, _, %{reason: reason}} <- Recorder.events(), do: reason) == [:first, :second, :third]
    end
  end

  describe "bypass/1" do
    test "admits also where faults are injected, and while a ramp runs", %{service: s} do
      start_on_clock(s, circuit_breaker: [fault_injection: 1.0])
      assert refused?(s)
      ExternalService.bypass(s)
      for _ <- 1..100, do: assert(fine(s) == :fine)
      ExternalService.stop(s)

      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 100, ramp_up: 1_000_000])
      fail(s)
      VirtualClock.advance(clock, 100)
      assert Enum.any?(1..100, fn _ -> refused?(s) end)
      ExternalService.bypass(s)
      for _ <- 1..100, do: assert(fine(s) == :fine)
    end

    test "goes on with what was counted, and the closing after it forgets that", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 1])
      CircuitBreaker.melt(s)
      ExternalService.bypass(s)
      for _ <- 1..5, do: CircuitBreaker.melt(s)
      assert %{state: :bypassed, failures: 2} = ExternalService.counts(s)
      ExternalService.close(s)
      CircuitBreaker.melt(s)
      assert %{state: :closed, failures: 1} = ExternalService.counts(s)
    end
  end

  describe "close/1" do
    test "leaves a closed breaker's failures as they are, where reset/1 forgets them", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 5])
      for _ <- 1..3, do: CircuitBreaker.melt(s)
      ExternalService.close(s)
      assert ExternalService.counts(s).failures == 3
      ExternalService.reset(s)
      assert ExternalService.counts(s).failures == 0
    end

    test "starts the open times at reset again", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @fragile ++ [reset_backoff: [max: 60_000]])
      open_time = fn -> fail(s) && ExternalService.counts(s).retry_after end
      assert open_time.() == 1_000
      VirtualClock.advance(clock, 1_000)
      assert open_time.() == 2_000
      ExternalService.close(s)
      assert open_time.() == 1_000
    end
  end

  describe "what fuse does with a circuit that is disabled:" do
    test "nothing but enabling it or taking it away lets calls through again", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, reset: 100])
      assert ExternalService.open(s) == :ok
      for _ <- 1..3, do: CircuitBreaker.melt(s)
      VirtualClock.advance(clock, 100)
      assert CircuitBreaker.ask(s) == :blown
      ExternalService.start(s, clock: clock, circuit_breaker: [tolerate: 1, reset: 100])
      assert CircuitBreaker.ask(s) == :blown
      assert ExternalService.close(s) == :ok
      assert CircuitBreaker.ask(s) == :ok
      CircuitBreaker.melt(s)
      assert CircuitBreaker.ask(s) == :ok
    end

    test "enabling it closes it also when it was blown before, and may be done twice", %{service: s} do
      start_as(s, :open)
      ExternalService.open(s)
      for _ <- 1..2, do: assert(ExternalService.close(s) == :ok)
      assert state(s) == :closed
    end

    test "taking it away forgets that it was disabled", %{service: s} do
      start_on_clock(s)
      ExternalService.open(s)
      ExternalService.stop(s)
      assert {ExternalService.close(s), ExternalService.open(s)} == {{:error, :not_found}, {:error, :not_found}}
      start_on_clock(s)
      assert fine(s) == :fine
    end
  end

  describe "a thousand hands at once" do
    for {hand, from, to} <- [{:open, :closed, :forced_open}, {:close, :open, :closed}, {:reset, :forced_open, :closed}] do
      test "that #{hand} a breaker that is #{from} make one change", %{service: s} do
        start_as(s, unquote(from))
        Recorder.attach(s, @changes)
        together(1_000, fn _ -> apply(ExternalService, unquote(hand), [s]) end)
        assert changes() == [{unquote(from), unquote(to)}]
      end
    end

    test "and calls that fail leave a chain in which each change is told once", %{service: s} do
      for _ <- 1..5 do
        start_as(s, :closed, tolerate: 0, reset: 0, half_open: true)
        id = Recorder.attach(s, @changes)

        together(1_000, fn n ->
          Enum.at(
            [&ExternalService.open/1, &ExternalService.close/1, &fail/1, &fine/1, &ExternalService.reset/1],
            rem(n, 5)
          ).(s)
        end)

        last = state(s)
        changes = changes()
        assert Enum.reduce(changes, :closed, fn {state, to}, state when to != state -> to end) == last
        Telemetry.detach(id)
        ExternalService.stop(s)
      end
    end
  end

  describe "a listener that keeps the state" do
    # What a gauge per state would show.
    def keep([:external_service | _event], _measurements, %{service: service, from: from, to: to}, {service, gauges}) do
      :counters.sub(gauges, index(from), 1)
      :counters.add(gauges, index(to), 1)
    end

    def keep(_event, _measurements, _metadata, _config), do: :ok

    defp index(state), do: Enum.find_index(@states, &(&1 == state)) + 1

    test "shows exactly one, and that is the one there is, after every change", %{service: s} do
      clock = start_as(s, :closed)
      gauges = :counters.new(5, [])
      :counters.add(gauges, index(:closed), 1)
      id = make_ref()
      Telemetry.attach_many(id, Enum.map(@changes, &[:external_service | &1]), &__MODULE__.keep/4, {s, gauges})
      on_exit(fn -> Telemetry.detach(id) end)

      steps = [
        &fail/1,
        fn _ -> VirtualClock.advance(clock, 1_000) end,
        &ExternalService.available?/1,
        &fail/1,
        fn _ -> VirtualClock.advance(clock, 1_000) end,
        &fine/1,
        &fine/1,
        &ExternalService.open/1,
        &ExternalService.bypass/1,
        &ExternalService.reset/1,
        &fail/1,
        &ExternalService.close/1,
        &ExternalService.open/1,
        &ExternalService.stop/1
      ]

      for step <- steps do
        step.(s)
        state = with({:error, :not_found} <- state(s), do: :closed)
        shown = for {name, n} <- Enum.with_index(@states, 1), k = :counters.get(gauges, n), k != 0, do: {name, k}
        assert shown == [{state, 1}]
      end
    end
  end

  describe "start/2 and stop/1" do
    test "leave no call behind that could open the old breaker again", %{service: s} do
      for change <- [&ExternalService.stop/1, &ExternalService.start/1] do
        start_on_clock(s, circuit_breaker: [tolerate: 0])
        id = Recorder.attach(s, @changes)
        change_at_start = make_ref()
        handler = fn _, _, %{service: service}, _ -> service == s && change.(s) end
        Telemetry.attach(change_at_start, [:external_service, :call, :start], handler, nil)
        fail(s)
        Telemetry.detach(change_at_start)
        assert Recorder.events() == []
        Telemetry.detach(id)
      end
    end

    test "keep the state of a hand that comes at the same time", %{service: s} do
      for round <- 1..1_000 do
        ExternalService.start(s)
        together(2, fn n -> if n == 1, do: ExternalService.start(s), else: ExternalService.open(s) end)
        assert {round, state(s)} == {round, :forced_open}
        ExternalService.stop(s)
      end
    end
  end

  describe "reconfigure/2" do
    test "leaves listeners and the name as they are, with another breaker, too", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 1_000])
      Recorder.attach(s, @changes)
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 1, reset: 500])
      for _ <- 1..2, do: fail(s)
      VirtualClock.advance(clock, 500)
      assert state(s) == :closed
      assert [{@opened, _, %{service: ^s, retry_after: 500}}, {@closed, _, %{service: ^s}}] = Recorder.events()
    end
  end

  test "a module of its own has them all" do
    ExternalService.start(Module, circuit_breaker: [tolerate: 0])
    on_exit(fn -> ExternalService.stop(Module) end)
    assert {Module.state(), Module.open(reason: :works), Module.state()} == {:closed, :ok, :forced_open}
    assert %{reason: :works} = Module.counts()
    assert {Module.close(), Module.state()} == {:ok, :closed}
    assert {Module.open(), Module.reset(), Module.state()} == {:ok, :ok, :closed}
    assert {Module.bypass(), Module.state()} == {:ok, :bypassed}
  end

  describe "a handler of changes" do
    @all [[:circuit_breaker, :opened], [:circuit_breaker, :half_opened], [:circuit_breaker, :closed]]

    defp on_change(service, fun) do
      id = make_ref()
      names = Enum.map(@all, &[:external_service | &1])
      :ok = Telemetry.attach_many(id, names, &__MODULE__.apply_to_change/4, {service, fun})
      on_exit(fn -> Telemetry.detach(id) end)
      id
    end

    def apply_to_change(_event, _measurements, %{service: service} = change, {service, fun}), do: fun.(change)
    def apply_to_change(_event, _measurements, _metadata, _config), do: :ok

    test "may change what it is told of, and everybody hears of that after it", %{service: s} do
      start_on_clock(s)
      Recorder.attach(s, @all)
      on_change(s, fn %{to: to} -> if to == :closed, do: ExternalService.open(s, reason: :again) end)
      ExternalService.open(s)
      ExternalService.close(s)
      told = for {_name, _, %{from: from, to: to}} <- Recorder.events(), do: {from, to}
      assert told == [{:closed, :forced_open}, {:forced_open, :closed}, {:closed, :forced_open}]
      assert %{state: :forced_open, reason: :again} = ExternalService.counts(s)
    end

    test "may call the service: half-open its call is the probe", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 1_000, half_open: true])
      Recorder.attach(s, @all)
      on_change(s, fn %{to: to} -> if to == :half_open, do: ExternalService.call(s, fn -> :fine end) end)
      fail(s)
      VirtualClock.advance(clock, 1_000)
      ExternalService.state(s)
      assert %{state: :closed, probes: 0} = ExternalService.counts(s)
      assert Recorder.names() == @all
    end

    test "whose process is killed while it handles leaves later changes to be told by others", %{service: s} do
      start_on_clock(s)
      test = self()
      id = on_change(s, fn _change -> send(test, :handling) && receive(do: (:never -> :ok)) end)
      {pid, ref} = spawn_monitor(fn -> ExternalService.open(s) end)
      assert_receive :handling, 10_000
      Process.exit(pid, :kill)
      assert_receive {:DOWN, ^ref, _, _, :killed}, 10_000
      Telemetry.detach(id)
      Recorder.attach(s, @all)

      eventually(fn ->
        ExternalService.bypass(s)
        ExternalService.open(s)
        Recorder.names() != []
      end)

      assert ExternalService.state(s) == :forced_open
    end
  end
end
