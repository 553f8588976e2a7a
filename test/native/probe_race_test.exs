# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.ProbeRaceTest do
  # Many processes that ask in the moment in which an open breaker's time is over: all of them watch the clock, so that
  # those which run at that moment ask at once, and the others right behind them.
  use ExternalService.Case, async: true

  alias ExternalService.{CircuitBreaker, VirtualClock}

  @processes 200
  @rounds max(1000, String.to_integer(System.get_env("ROUNDS", "0")))
  @probes 3
  @reset 10

  # One process, round after round.
  defp race(service, clock, parent) do
    receive do
      {:ask_at, time} ->
        send(parent, {:watching, self()})
        watch(clock, time)
        send(parent, {:answer, self(), CircuitBreaker.admit(service)})

      {:report, permit, outcome} ->
        :ok = CircuitBreaker.report(permit, outcome)
        send(parent, :reported)
    end

    race(service, clock, parent)
  end

  defp watch(clock, time), do: VirtualClock.now(clock) >= time || (:erlang.yield() && watch(clock, time))

  defp start_processes(service, clock) do
    parent = self()
    # Not last in the queue behind all those that watch.
    Process.flag(:priority, :high)
    for _ <- 1..@processes, do: spawn_link(fn -> race(service, clock, parent) end)
  end

  # Lets all of them ask at the end of the open time. Returns who got in, with its permit, and how many were refused.
  defp race_for_probes(processes, clock) do
    time = VirtualClock.now(clock) + @reset
    Enum.each(processes, &send(&1, {:ask_at, time}))
    for pid <- processes, do: receive(do: ({:watching, ^pid} -> :ok))
    VirtualClock.advance(clock, @reset)
    answers = for pid <- processes, do: receive(do: ({:answer, ^pid, answer} -> {pid, answer}))
    admitted = for {pid, {:ok, permit}} <- answers, do: {pid, permit}
    {admitted, Enum.count(answers, &match?({_pid, {:error, %CircuitBreakerOpen{}}}, &1))}
  end

  defp report(admitted, outcome) do
    Enum.each(admitted, fn {pid, permit} -> send(pid, {:report, permit, outcome}) end)
    for _ <- admitted, do: receive(do: (:reported -> :ok))
  end

  defp start_open(service, half_open) do
    clock = VirtualClock.new()
    options = [consecutive: 1, reset: @reset, half_open: half_open]
    :ok = ExternalService.start(service, clock: clock, circuit_breaker: options)
    CircuitBreaker.melt(service)
    clock
  end

  @tag timeout: 120_000
  test "200 processes that race at the end of the open time get 3 probes between them, a thousand times", %{service: s} do
    clock = start_open(s, probes: @probes, lease: 1_000)
    processes = start_processes(s, clock)

    for round <- 1..@rounds do
      assert {round, ExternalService.state(s)} == {round, :open}
      {admitted, refused} = race_for_probes(processes, clock)
      assert {round, length(admitted), refused} == {round, @probes, @processes - @probes}
      assert {round, ExternalService.counts(s).probes} == {round, @probes}
      report(admitted, :failure)
    end
  end

  test "each round of such a race is told as one half-opening and one opening", %{service: s} do
    clock = start_open(s, probes: @probes, lease: 1_000)
    processes = start_processes(s, clock)
    Recorder.attach(s, [[:circuit_breaker, :half_opened], [:circuit_breaker, :opened], [:circuit_breaker, :closed]])

    for _ <- 1..100 do
      {admitted, _refused} = race_for_probes(processes, clock)
      report(admitted, :failure)
      assert Recorder.names() == [[:circuit_breaker, :half_opened], [:circuit_breaker, :opened]]
    end
  end

  test "probes that succeed together close it once, and let nobody out as a probe meanwhile", %{service: s} do
    clock = start_open(s, probes: @probes, successes: 2, lease: 1_000)
    processes = start_processes(s, clock)

    for _ <- 1..100 do
      {admitted, refused} = race_for_probes(processes, clock)
      assert {length(admitted), refused} == {@probes, @processes - @probes}
      report(admitted, :success)
      assert %{state: :closed, probes: 0, failures: 0} = ExternalService.counts(s)
      CircuitBreaker.melt(s)
    end
  end
end
