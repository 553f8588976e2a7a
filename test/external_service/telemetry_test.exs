# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.TelemetryTest do
  use ExternalService.Case, async: true

  doctest ExternalService.Telemetry

  @start [:call, :start]
  @stop [:call, :stop]
  @exception [:call, :exception]
  @retry [:call, :retry]
  @blown [:circuit_breaker, :blown]
  @opened [:circuit_breaker, :opened]
  @closed [:circuit_breaker, :closed]

  def crash(_event, _measurements, %{service: service}, {service, how}), do: how.()
  def crash(_event, _measurements, _metadata, _config), do: :ok

  def apply_once(_event, _measurements, %{service: service}, {service, fun}) do
    unless Process.put({__MODULE__, service}, true), do: fun.(service)
  end

  def apply_once(_event, _measurements, _metadata, _config), do: :ok

  # Attaches a handler of this test to one event until the test ends.
  defp attach(event, handler, config) do
    id = make_ref()
    :ok = Telemetry.attach(id, [:external_service | event], handler, config)
    on_exit(fn -> Telemetry.detach(id) end)
    id
  end

  describe "a call" do
    test "that succeeds emits start and stop, with its result and how long it took", %{service: s} do
      ExternalService.start(s)
      Recorder.attach(s)
      ExternalService.call(s, fn -> {:ok, 1} end)

      assert [{@start, start, started}, {@stop, stop, stopped}] = Recorder.events()
      assert %{monotonic_time: began, system_time: system_time} = start
      assert is_integer(system_time)
      assert %{duration: duration, monotonic_time: ended} = stop
      assert duration >= 0 and ended - began == duration
      assert %{service: ^s, result: {:ok, 1}, telemetry_span_context: context} = stopped
      assert %{service: ^s, telemetry_span_context: ^context} = started
    end

    test "has a span context of its own", %{service: s} do
      ExternalService.start(s)
      Recorder.attach(s, [@start])
      for _ <- 1..5, do: ExternalService.call(s, fn -> 1 end)
      contexts = for {_, _, metadata} <- Recorder.events(), do: metadata.telemetry_span_context
      assert length(Enum.uniq(contexts)) == 5
    end

    test "that gives up emits a retry event per failed attempt, the last included, and then stop", %{service: s} do
      start_recording(s)
      Recorder.attach(s)
      fun = attempting_each([:retry, {:retry, :second}, {:retry, :third}])
      result = ExternalService.call(s, [max_attempts: 3], fun)

      assert [
               {@start, _, _},
               {@retry, %{count: 1}, %{service: ^s, reason: :reason_unknown}},
               {@retry, %{count: 1}, %{service: ^s, reason: :second}},
               {@retry, %{count: 1}, %{service: ^s, reason: :third}},
               {@stop, _, %{result: ^result}}
             ] = Recorder.events()
    end

    test "emits retry events when it melts once as when it melts for each attempt", %{service: s} do
      start_recording(s, circuit_breaker: [melt: :per_call])
      Recorder.attach(s, [@retry])
      ExternalService.call(s, [max_attempts: 3], fn -> :retry end)
      assert Recorder.names() == [@retry, @retry, @retry]
    end

    test "that raises, throws or exits emits exception instead of stop", %{service: s} do
      ExternalService.start(s)
      Recorder.attach(s)

      for {kind, fun, reason} <- [
            {:error, fn -> raise KeyError, key: 1 end, %KeyError{key: 1}},
            {:throw, fn -> throw(:ball) end, :ball},
            {:exit, fn -> exit(:gone) end, :gone}
          ] do
        assert catch_any(fn -> ExternalService.call(s, fun) end) == {kind, reason}

        assert [{@start, _, %{telemetry_span_context: context}}, {@exception, measurements, metadata}] =
                 Recorder.events()

        assert %{duration: _, monotonic_time: _} = measurements

        assert %{service: ^s, kind: ^kind, reason: ^reason, stacktrace: [_ | _], telemetry_span_context: ^context} =
                 metadata
      end
    end

    test "whose exceptions ran out of retries emits the retries and then exception", %{service: s} do
      start_recording(s)
      Recorder.attach(s)

      assert_raise KeyError, fn ->
        ExternalService.call(s, [max_attempts: 2, retry_exceptions: [KeyError]], fn -> raise KeyError, key: 1 end)
      end

      assert [
               {@start, _, _},
               {@retry, _, %{reason: %KeyError{}}},
               {@retry, _, _},
               {@exception, _, %{reason: %KeyError{}}}
             ] = Recorder.events()
    end

    test "by call! that raises an error emits exception, where call emits stop", %{service: s} do
      start_recording(s)
      Recorder.attach(s, [@stop, @exception])
      assert_raise RetriesExhausted, fn -> ExternalService.call!(s, [max_attempts: 1], fn -> :retry end) end
      assert [{@exception, _, %{kind: :error, reason: %RetriesExhausted{}}}] = Recorder.events()

      ExternalService.call(s, [max_attempts: 1], fn -> :retry end)
      assert [{@stop, _, %{result: {:error, %RetriesExhausted{}}}}] = Recorder.events()
    end

    test "emits in the caller's process", %{service: s} do
      ExternalService.start(s)
      pid = self()
      attach(@stop, &__MODULE__.apply_once/4, {s, fn _ -> send(pid, {:in, self()}) end})
      task = Task.async(fn -> ExternalService.call(s, fn -> 1 end) end)
      Task.await(task)
      in_task = task.pid
      assert_received {:in, ^in_task}
    end
  end

  describe "telemetry: :changes" do
    test "leaves out start and stop, and keeps retries, refusals and changes", %{service: s} do
      start_recording(s, telemetry: :changes, circuit_breaker: [tolerate: 1])
      Recorder.attach(s)
      ExternalService.call(s, fn -> :fine end)
      assert Recorder.names() == []
      ExternalService.call(s, fn -> :retry end)
      assert Recorder.names() == [@retry, @retry, @opened, @blown]
      ExternalService.reset(s)
      assert Recorder.names() == [@closed]
    end

    test "is not the default", %{service: s} do
      ExternalService.start(s, telemetry: :all)
      Recorder.attach(s)
      ExternalService.call(s, fn -> :fine end)
      assert Recorder.names() == [@start, @stop]
    end
  end

  describe "the breaker" do
    test "emits blown for each refused attempt, not when it opens", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 0])
      Recorder.attach(s, [@blown])
      fail(s)
      assert Recorder.events() == []
      for _ <- 1..3, do: fail(s)
      assert Recorder.events() == List.duplicate({@blown, %{count: 1}, %{service: s}}, 3)
    end

    test "does not emit blown when it is only asked", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 0])
      fail(s)
      Recorder.attach(s)
      ExternalService.available?(s)
      ExternalService.blown?(s)
      ExternalService.state(s)
      CircuitBreaker.ask(s)
      assert Recorder.events() == []
    end

    test "emits opened once, after the retry event, with the counts and the rule", %{service: s} do
      start_on_clock(s, circuit_breaker: [tolerate: 2, reset: 500])
      Recorder.attach(s, [@retry, @opened, @closed])
      ExternalService.call(s, [max_attempts: 3], fn -> :retry end)
      assert [{@retry, _, _}, {@retry, _, _}, {@retry, _, _}, {@opened, measurements, metadata}] = Recorder.events()

      assert %{service: ^s, from: :closed, to: :open, rule: :tolerate, failures: 3, retry_after: 500} =
               Map.merge(metadata, measurements)

      for _ <- 1..10, do: CircuitBreaker.melt(s)
      assert Recorder.events() == []
    end

    test "emits closed once when the open time is over and something passes by", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 100])
      fail(s)
      Recorder.attach(s, [@opened, @closed])
      VirtualClock.advance(clock, 100)
      for _ <- 1..3, do: ExternalService.call(s, fn -> :fine end)
      assert %{from: :open, to: :closed, rule: nil} = Recorder.one(@closed)
    end

    test "emits closed once on reset/1, and nothing when it was closed", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      Recorder.attach(s, [@opened, @closed])
      ExternalService.reset(s)
      assert Recorder.events() == []
      fail(s)
      ExternalService.reset(s)
      ExternalService.reset(s)
      assert Recorder.names() == [@opened, @closed]
    end

    test "emits its changes in turn over many rounds", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 10])
      Recorder.attach(s, [@opened, @closed])

      for _ <- 1..50 do
        fail(s)
        VirtualClock.advance(clock, 10)
        ExternalService.state(s)
        ExternalService.call(s, fn -> :fine end)
      end

      assert Recorder.names() == Enum.flat_map(1..50, fn _ -> [@opened, @closed] end)
    end

    test "emits a chain without gaps or repeats, whoever trips and resets it at the same time", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      Recorder.attach(s, [@opened, @closed])

      together(50, fn n ->
        for k <- 1..100, do: if(rem(n + k, 2) == 0, do: CircuitBreaker.melt(s), else: ExternalService.reset(s))
      end)

      changes = for {name, _, %{from: from, to: to}} <- Recorder.events(), do: {name, from, to}
      assert [{@opened, :closed, :open} | _] = changes

      Enum.reduce(changes, :closed, fn {name, from, to}, state ->
        assert from == state
        assert {name, to} in [{@opened, :open}, {@closed, :closed}]
        assert to != from
        to
      end)

      {_, _, last} = List.last(changes)
      assert last == ExternalService.state(s)
    end

    test "emits closed when a service that is open is started afresh or stopped", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      Recorder.attach(s, [@opened, @closed])
      fail(s)
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      fail(s)
      ExternalService.stop(s)
      assert Recorder.names() == [@opened, @closed, @opened, @closed]
    end

    test "emits nothing when a service that is closed is started afresh or stopped", %{service: s} do
      ExternalService.start(s)
      Recorder.attach(s, [@opened, @closed])
      CircuitBreaker.melt(s)
      ExternalService.start(s)
      ExternalService.stop(s)
      assert Recorder.events() == []
    end

    test "emits no opening for a call that fails after its service was started afresh or stopped", %{service: s} do
      Recorder.attach(s, [@opened, @closed])

      for melt <- [:per_attempt, :per_call], change <- [&ExternalService.start/1, &ExternalService.stop/1] do
        ExternalService.start(s, circuit_breaker: [tolerate: 0, melt: melt])
        ExternalService.call(s, [max_attempts: 1], fn -> change.(s) && :retry end)
        assert Recorder.events() == []
        refute ExternalService.blown?(s)
      end
    end

    test "tells one opening once when many processes trip it together", %{service: s} do
      for _ <- 1..20 do
        ExternalService.start(s, circuit_breaker: [tolerate: 0])
        id = Recorder.attach(s, [@opened, @closed])
        together(30, fn _ -> CircuitBreaker.melt(s) end)
        assert %{failures: 1} = Recorder.one(@opened)
        Telemetry.detach(id)
      end
    end
  end

  describe "attach, attach_many and detach" do
    test "answer as those of :telemetry" do
      id = make_ref()
      event = [:external_service, :call, :stop]
      assert Telemetry.attach(id, event, &__MODULE__.crash/4, nil) == :ok
      assert Telemetry.attach(id, event, &__MODULE__.crash/4, nil) == {:error, :already_exists}
      assert Telemetry.attach_many(id, [event], &__MODULE__.crash/4, nil) == {:error, :already_exists}
      assert Telemetry.detach(id) == :ok
      assert Telemetry.detach(id) == {:error, :not_found}
      assert Telemetry.attach_many(id, [event, [:external_service, :call, :start]], &__MODULE__.crash/4, nil) == :ok
      assert Telemetry.detach(id) == :ok
    end

    test "give the handler the event, its measurements, its metadata and the config", %{service: s} do
      ExternalService.start(s)
      pid = self()
      handler = fn event, measurements, metadata, config -> send(pid, {event, measurements, metadata, config}) end
      id = attach(@stop, handler, {:my, :config})
      ExternalService.call(s, fn -> :fine end)
      assert_received {[:external_service, :call, :stop], %{duration: _}, %{service: ^s, result: :fine}, {:my, :config}}
      Telemetry.detach(id)
      ExternalService.call(s, fn -> :fine end)
      refute_received {[:external_service, :call, :stop], _, %{service: ^s}, _}
    end

    test "call every handler of an event", %{service: s} do
      ExternalService.start(s)
      pid = self()
      for n <- 1..3, do: attach(@start, fn _, _, metadata, _ -> send(pid, {n, metadata.service}) end, nil)
      ExternalService.call(s, fn -> :fine end)
      for n <- 1..3, do: assert_received({^n, ^s})
    end

    test "take handlers of functions with four arguments only" do
      event = [:external_service, :call, :stop]
      assert_raise FunctionClauseError, fn -> Telemetry.attach(make_ref(), event, fn -> 1 end, nil) end
    end

    test "lose no handler when many processes attach and detach at the same time" do
      event = [:external_service, :call, :retry]

      ids =
        together(20, fn n ->
          for k <- 1..10, do: :ok = Telemetry.attach({__MODULE__, n, k}, event, &__MODULE__.crash/4, nil)
          for k <- 1..9, do: :ok = Telemetry.detach({__MODULE__, n, k})
          {__MODULE__, n, 10}
        end)

      assert Enum.map(ids, &Telemetry.detach/1) == List.duplicate(:ok, 20)
    end
  end

  describe "a handler that fails" do
    test "is detached and logged, and neither fails the call nor stops the others", %{service: s} do
      ExternalService.start(s)

      for how <- [fn -> raise "in the handler" end, fn -> throw(:ball) end, fn -> exit(:in_the_handler) end] do
        id = attach(@stop, &__MODULE__.crash/4, {s, how})
        other = Recorder.attach(s, [@stop])
        log = capture_log(fn -> assert ExternalService.call(s, fn -> :fine end) == :fine end)
        assert log =~ "[error]"
        assert Recorder.names() == [@stop]
        assert Telemetry.detach(id) == {:error, :not_found}
        assert Telemetry.detach(other) == :ok
      end
    end

    test "does not keep the breaker from opening or the change from reaching others", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      attach(@opened, &__MODULE__.crash/4, {s, fn -> raise "oops" end})
      Recorder.attach(s, [@opened, @closed])
      assert {:error, %RetriesExhausted{}} = fail(s)
      assert ExternalService.state(s) == :open
      ExternalService.reset(s)
      assert Recorder.names() == [@opened, @closed]
    end
  end

  describe "a handler that is killed while it tells of a change" do
    test "does not silence the changes after it", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      Recorder.attach(s, [@opened, @closed])
      test = self()
      kill_others = fn _ -> self() != test && Process.exit(self(), :kill) end
      attach(@opened, &__MODULE__.apply_once/4, {s, kill_others})
      {pid, ref} = spawn_monitor(fn -> CircuitBreaker.melt(s) end)
      assert_receive {:DOWN, ^ref, :process, ^pid, :killed}
      ExternalService.reset(s)
      fail(s)
      assert Recorder.names() == [@opened, @closed, @opened]
    end
  end

  describe "a handler that calls back" do
    test "may ask, reset and call its service", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 1])
      pid = self()

      back = fn service ->
        send(pid, {:seen, ExternalService.state(service), ExternalService.reset(service)})
        send(pid, {:called, ExternalService.call(service, fn -> :inner end)})
      end

      attach(@retry, &__MODULE__.apply_once/4, {s, back})
      assert {:error, %RetriesExhausted{}} = fail(s)
      assert_received {:seen, :closed, :ok}
      assert_received {:called, :inner}
    end

    test "from an opened event finds the breaker open, and what it does is told after it", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 0])
      pid = self()

      back = fn service ->
        send(pid, {:seen, ExternalService.state(service)})
        ExternalService.reset(service)
        send(pid, {:seen, ExternalService.state(service)})
      end

      Recorder.attach(s, [@opened, @closed])
      attach(@opened, &__MODULE__.apply_once/4, {s, back})
      assert {:error, %RetriesExhausted{}} = fail(s)
      assert_received {:seen, :open}
      assert_received {:seen, :closed}
      assert Recorder.names() == [@opened, @closed]
      assert ExternalService.state(s) == :closed
    end

    test "may stop and start its service", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: 0])
      attach(@opened, &__MODULE__.apply_once/4, {s, fn s -> ExternalService.stop(s) && ExternalService.start(s) end})
      assert {:error, %RetriesExhausted{}} = fail(s)
      assert ExternalService.state(s) == :closed
      assert ExternalService.call(s, fn -> :fine end) == :fine
    end

    test "may detach itself", %{service: s} do
      ExternalService.start(s)
      id = make_ref()
      pid = self()
      handler = fn _, _, %{service: service}, _ -> service == s && send(pid, {:detached, Telemetry.detach(id)}) end
      :ok = Telemetry.attach(id, [:external_service, :call, :start], handler, nil)
      assert ExternalService.call(s, fn -> :fine end) == :fine
      assert ExternalService.call(s, fn -> :fine end) == :fine
      assert_received {:detached, :ok}
      refute_received {:detached, _}
    end
  end

  describe "events of many services" do
    test "are never mixed up under load", %{service: s} do
      names = for n <- 1..20, do: String.duplicate("#{inspect(s)} #{n} ", 20)
      on_exit(fn -> Enum.each(names, &ExternalService.stop/1) end)
      pid = self()

      for name <- names do
        ExternalService.start(name, sleep_function: fn _ -> :ok end, circuit_breaker: [tolerate: :infinity])
      end

      handler = fn _, _, metadata, ^pid ->
        metadata.service in names && send(pid, {:told, metadata.service, metadata.reason})
      end

      attach(@retry, handler, pid)

      together(20, fn n ->
        name = Enum.at(names, n - 1)
        for _ <- 1..50, do: ExternalService.call(name, [max_attempts: 2], fn -> {:retry, name} end)
      end)

      told = for _ <- 1..2000, do: receive(do: ({:told, service, reason} -> assert(service == reason) && service))
      assert Enum.frequencies(told) == Map.new(names, &{&1, 100})
      refute_received {:told, _, _}
    end
  end

  defp catch_any(fun) do
    fun.()
  catch
    kind, reason -> {kind, Exception.normalize(kind, reason, __STACKTRACE__)}
  end
end
