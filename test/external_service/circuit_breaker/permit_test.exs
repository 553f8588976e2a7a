# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.PermitTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers, only: [soon: 1, kill: 1]

  alias ExternalService.CircuitBreaker.Permit

  # Opens on the second failure in a row, and lets one probe out after a second.
  @fragile [consecutive: 2, reset: 1_000, half_open: true]

  defp start_breaker(service, breaker \\ @fragile), do: start_on_clock(service, circuit_breaker: breaker)

  defp start_half_open(service, breaker \\ []) do
    clock = start_breaker(service, Keyword.merge(@fragile, breaker))
    for _ <- 1..2, do: fail(service)
    VirtualClock.advance(clock, 1_000)
    assert state(service) == :half_open
    clock
  end

  defp state(service), do: ExternalService.state(service)
  defp probes(service), do: ExternalService.counts(service).probes
  defp streak(service), do: ExternalService.counts(service).consecutive
  defp admit(service), do: service |> CircuitBreaker.admit() |> elem(1)
  defp refused?(service), do: match?({:error, %CircuitBreakerOpen{}}, CircuitBreaker.admit(service))
  defp report(permit, outcome), do: assert(CircuitBreaker.report(permit, outcome) == :ok)

  # Another process that was admitted and lives on without a word. It is not linked to the test.
  defp admit_elsewhere(service) do
    test = self()

    pid =
      spawn(fn ->
        send(test, {:admission, self(), CircuitBreaker.admit(service)})
        guard = Process.monitor(test)
        receive do: ({:DOWN, ^guard, _, _, _} -> :ok)
      end)

    assert_receive {:admission, ^pid, admission}
    {pid, admission}
  end

  describe "admit/1" do
    test "gives a permit, or the error that a call would have returned", %{service: s} do
      clock = start_breaker(s)
      assert {:ok, %Permit{}} = CircuitBreaker.admit(s)
      for _ <- 1..2, do: report(admit(s), :failure)
      VirtualClock.advance(clock, 400)
      assert {:error, %CircuitBreakerOpen{context: context} = error} = CircuitBreaker.admit(s)
      assert context == %{service: s, retry_after: 600}
      assert ExternalService.call(s, fn -> :fine end) == {:error, error}
    end

    test "of a service that is not started is the error that says so", %{service: s} do
      assert {:error, %ServiceNotStarted{context: %{service: ^s}}} = CircuitBreaker.admit(s)
    end

    test "tells of a refusal as a refused call does, and counts it", %{service: s} do
      start_breaker(s)
      ExternalService.open(s)
      Recorder.attach(s, [[:circuit_breaker, :blown]])
      for _ <- 1..3, do: assert(refused?(s))
      assert Recorder.events() == List.duplicate({[:circuit_breaker, :blown], %{count: 1}, %{service: s}}, 3)
      assert ExternalService.counts(s).rejected == 3
    end

    test "and call/2 share the probes there are", %{service: s} do
      start_half_open(s, half_open: [probes: 2])
      permit = admit(s)

      ExternalService.call(s, fn ->
        assert {probes(s), refused?(s)} == {2, true}
        assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, fn -> flunk("a third probe") end)
      end)

      report(permit, :success)
      assert state(s) == :closed
    end

    test "shows nothing of the service in the permit", %{service: s} do
      start_breaker(s)
      assert inspect(admit(s)) == "#ExternalService.CircuitBreaker.Permit<...>"
    end
  end

  describe "report/2" do
    test "counts like the end of a call", %{service: s} do
      start_breaker(s)
      report(admit(s), :failure)
      assert streak(s) == 1
      report(admit(s), :ignore)
      assert streak(s) == 1
      report(admit(s), :success)
      assert streak(s) == 0
      for _ <- 1..2, do: report(admit(s), :failure)
      assert state(s) == :open
    end

    test "counts a permit once, whatever it is reported with then", %{service: s} do
      start_breaker(s)
      permit = admit(s)
      report(permit, :failure)
      for outcome <- [:failure, :success, :ignore], do: report(permit, outcome)
      assert {state(s), streak(s), ExternalService.counts(s).ignored} == {:closed, 1, 0}
    end

    test "counts a permit once, whichever of many processes reports it", %{service: s} do
      start_breaker(s, consecutive: 10)

      for n <- 1..9 do
        permit = admit(s)
        together(20, fn _ -> report(permit, :failure) end)
        assert {state(s), streak(s)} == {:closed, n}
      end
    end

    test "may come from another process, after the one that was admitted is gone", %{service: s} do
      start_breaker(s)
      {pid, {:ok, permit}} = admit_elsewhere(s)
      kill(pid)
      report(permit, :failure)
      assert streak(s) == 1
    end

    test "changes nothing after the breaker has changed", %{service: s} do
      clock = start_breaker(s)
      early = for _ <- 1..12, do: admit(s)
      [one, two, three, four] = Enum.chunk_every(early, 3)

      all = fn permits ->
        for {permit, outcome} <- Enum.zip(permits, [:failure, :success, :ignore]), do: report(permit, outcome)
      end

      for _ <- 1..2, do: fail(s)
      all.(one)
      assert {state(s), streak(s)} == {:open, 2}
      VirtualClock.advance(clock, 1_000)
      assert state(s) == :half_open
      all.(two)
      assert {state(s), streak(s)} == {:half_open, 2}
      ExternalService.call(s, fn -> :fine end)
      fail(s)
      all.(three)
      assert {state(s), streak(s)} == {:closed, 1}
      ExternalService.reset(s)
      all.(four)
      assert {state(s), streak(s)} == {:closed, 0}
    end

    test "changes nothing after the service was stopped, and nothing in the one started after it", %{service: s} do
      start_breaker(s, tolerate: 0)
      [one, two] = for _ <- 1..2, do: admit(s)
      Recorder.attach(s)
      ExternalService.stop(s)
      report(one, :failure)
      assert state(s) == {:error, :not_found}
      start_breaker(s, tolerate: 0)
      report(two, :failure)
      assert {state(s), Recorder.events()} == {:closed, []}
    end

    test "takes three outcomes and no others", %{service: s} do
      start_breaker(s)
      permit = admit(s)

      for outcome <- [:ok, :error, nil, "failure"],
          do: assert(%FunctionClauseError{} = raised(fn -> CircuitBreaker.report(permit, outcome) end))

      for duration <- [-1, 1.5, nil],
          do: assert(%FunctionClauseError{} = raised(fn -> CircuitBreaker.report(permit, :failure, duration) end))

      report(permit, :failure)
      assert streak(s) == 1
    end
  end

  describe "report/3" do
    test "takes the duration that a slow call is known by", %{service: s} do
      start_breaker(s, slow_call: 100, slow_rate: 1, min_calls: 50)

      for {outcome, ms} <- [success: 99, success: 100, failure: 100, ignore: 100],
          do: CircuitBreaker.report(admit(s), outcome, ms)

      assert %{calls: 3, slow: 2, failures: 1} = ExternalService.counts(s)
    end

    test "takes any duration", %{service: s} do
      start_breaker(s, slow_call: 100, slow_rate: 1, min_calls: 50)

      for ms <- [Integer.pow(10, 13), Integer.pow(2, 70)],
          do: assert(CircuitBreaker.report(admit(s), :failure, ms) == :ok)

      assert %{calls: 2, slow: 2} = ExternalService.counts(s)
    end
  end

  describe "the permit of a probe" do
    test "decides: a success closes, a failure opens, :ignore gives the place back", %{service: s} do
      for {outcome, state} <- [success: :closed, failure: :open, ignore: :half_open] do
        start_half_open(s)
        report(admit(s), outcome)
        assert {outcome, state(s), probes(s)} == {outcome, state, 0}
      end
    end

    test "given back, however often, never lets more out than there are places", %{service: s} do
      start_half_open(s, half_open: [probes: 3, successes: 100])

      for _ <- 1..20 do
        permits = for _ <- 1..3, do: admit(s)
        assert refused?(s)
        [first | _] = permits
        for _ <- 1..5, do: report(first, :ignore)
        assert {probes(s), refused?(s), probes(s)} == {2, false, 3}
        assert refused?(s)
        ExternalService.reset(s)
        for _ <- 1..2, do: fail(s)
        ExternalService.open(s, for: 1)
        VirtualClock.advance(clock(s), 1)
        assert probes(s) == 0
      end
    end

    defp clock(service), do: ExternalService.Service.get(service).options[:clock]

    test "opens at the first failure, whatever else comes back", %{service: s} do
      start_half_open(s, half_open: [probes: 4])
      [bad | good] = for _ <- 1..4, do: admit(s)
      report(bad, :failure)
      assert state(s) == :open
      Enum.each(good, &report(&1, :success))
      assert state(s) == :open
    end

    test "that is given back at death lets the others decide, with as many as there may be", %{service: s} do
      start_half_open(s, half_open: [probes: 1_000])
      {dead, {:ok, _permit}} = admit_elsewhere(s)
      permits = for _ <- 1..999, do: admit(s)
      assert refused?(s)
      Enum.each(permits, &report(&1, :success))
      assert {state(s), probes(s)} == {:half_open, 1}
      kill(dead)
      soon(fn -> probes(s) == 0 end)
      report(admit(s), :success)
      assert state(s) == :closed
    end

    test "is void when its holder is dead, also if it was told to others", %{service: s} do
      start_half_open(s)
      {pid, {:ok, permit}} = admit_elsewhere(s)
      kill(pid)
      soon(fn -> probes(s) == 0 end)
      report(permit, :failure)
      assert state(s) == :half_open
    end

    test "is not given back by the death of a process that only reports it", %{service: s} do
      start_half_open(s, half_open: [probes: 2])
      [one, two] = for _ <- 1..2, do: admit(s)
      Task.await(Task.async(fn -> report(one, :ignore) end))
      assert probes(s) == 1
      Task.await(Task.async(fn -> report(two, :success) end))
      assert {state(s), probes(s)} == {:half_open, 0}
    end

    test "held by one process for two places comes back with both at its death", %{service: s} do
      start_half_open(s, half_open: [probes: 3])
      test = self()

      pid =
        spawn(fn ->
          send(test, {:admitted, for(_ <- 1..3, do: match?({:ok, _}, CircuitBreaker.admit(s)))})
          receive do: (:never -> :ok)
        end)

      assert_receive {:admitted, [true, true, true]}
      kill(pid)
      soon(fn -> probes(s) == 0 end)
    end

    test "comes back once: a death after the lease gives nothing that is not the dead one's", %{service: s} do
      clock = start_half_open(s, half_open: [lease: 500])
      {pid, {:ok, _permit}} = admit_elsewhere(s)
      VirtualClock.advance(clock, 500)
      next = admit(s)
      kill(pid)
      # Whoever dies now has its signals handled after those of the one before.
      {other, {:error, _open}} = admit_elsewhere(s)
      kill(other)
      assert {probes(s), refused?(s)} == {1, true}
      report(next, :success)
      assert state(s) == :closed
    end

    test "of processes that die between admission and report never leaves its place taken", %{service: s} do
      start_half_open(s, half_open: [probes: 3])

      for _ <- 1..300 do
        {pid, ref} = spawn_monitor(fn -> loop_admissions(s) end)
        :erlang.yield()
        Process.exit(pid, :kill)
        # Until it is gone it may take another place.
        receive do: ({:DOWN, ^ref, _, _, _} -> :ok)
      end

      soon(fn -> probes(s) == 0 end)
      assert state(s) == :half_open
      for _ <- 1..3, do: report(admit(s), :success)
      assert state(s) == :closed
    end

    defp loop_admissions(service) do
      with {:ok, permit} <- CircuitBreaker.admit(service), do: CircuitBreaker.report(permit, :ignore)
      loop_admissions(service)
    end
  end

  describe "without a breaker of this library" do
    test "every admission is given, and the backend hears of failures alone", %{service: s} do
      switch = StandIn.switch()
      ExternalService.start(s, circuit_breaker: [backend: StandIn.backend(blown: switch)])
      for outcome <- [:success, :ignore], do: report(admit(s), outcome)
      assert {StandIn.count(:ask), StandIn.count(:melt)} == {2, 0}
      permit = admit(s)
      for _ <- 1..3, do: report(permit, :failure)
      assert StandIn.count(:melt) == 1
      StandIn.blow(switch)
      assert {:error, %CircuitBreakerOpen{context: %{retry_after: nil}}} = CircuitBreaker.admit(s)
    end

    test "a backend that does not tell when calls may go out again leaves that open", %{service: s} do
      switch = StandIn.switch()
      ExternalService.start(s, circuit_breaker: [backend: StandIn.backend(blown: switch)])
      assert ExternalService.counts(s).retry_after == 0
      StandIn.blow(switch)
      assert %{state: :open, retry_after: nil} = ExternalService.counts(s)
    end

    test "a service without any admits all, and reports say nothing", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: :infinity])
      for outcome <- [:success, :failure, :ignore], _ <- 1..20, do: report(admit(s), outcome)
      assert {CircuitBreaker.ask(s), CircuitBreaker.melt(s), state(s)} == {:ok, :ok, :closed}
    end
  end

  describe "ask/1" do
    test "answers as a call would be answered, in every state, and takes nothing", %{service: s} do
      clock = start_half_open(s, reset_backoff: [max: 100_000])
      steps = [&fail/1, &admit/1, &ExternalService.open/1, &ExternalService.bypass/1, &ExternalService.close/1]

      for step <- steps ++ List.duplicate(fn _ -> VirtualClock.advance(clock, 700) end, 6) ++ steps do
        step.(s)
        asked = for _ <- 1..3, do: CircuitBreaker.ask(s)
        available? = ExternalService.available?(s)
        admission = CircuitBreaker.admit(s)
        assert asked == List.duplicate(if(match?({:ok, _}, admission), do: :ok, else: :blown), 3)
        assert available? == match?({:ok, _}, admission)
        with {:ok, permit} <- admission, do: report(permit, :ignore)
      end
    end
  end
end
