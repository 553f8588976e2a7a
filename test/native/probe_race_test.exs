# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.ProbeRaceTest do
  # Many processes that ask in the moment in which an open breaker's time is over.
  use ExternalService.Case, async: true

  alias ExternalService.{CircuitBreaker, VirtualClock}

  @processes 200
  @rounds max(1000, String.to_integer(System.get_env("ROUNDS", "0")))
  @probes 3

  defp ask(service, parent) do
    receive do
      :ask ->
        send(parent, {:answer, self(), CircuitBreaker.admit(service)})
        ask(service, parent)

      {:report, permit} ->
        :ok = CircuitBreaker.report(permit, :failure)
        send(parent, :reported)
        ask(service, parent)
    end
  end

  defp answers(processes) do
    for pid <- processes do
      receive do: ({:answer, ^pid, answer} -> {pid, answer})
    end
  end

  @tag timeout: 120_000
  test "200 processes that race at the end of the open time get 3 probes between them, a thousand times", %{service: s} do
    clock = VirtualClock.new()
    options = [consecutive: 1, reset: 10, half_open: [probes: @probes, lease: 1_000]]
    :ok = ExternalService.start(s, clock: clock, circuit_breaker: options)
    CircuitBreaker.melt(s)
    parent = self()
    processes = for _ <- 1..@processes, do: spawn_link(fn -> ask(s, parent) end)

    for round <- 1..@rounds do
      assert {round, ExternalService.state(s)} == {round, :open}
      VirtualClock.advance(clock, 10)
      Enum.each(processes, &send(&1, :ask))
      answers = answers(processes)
      admitted = for {pid, {:ok, permit}} <- answers, do: {pid, permit}
      refused = for {_pid, {:error, %CircuitBreakerOpen{}}} <- answers, do: :refused
      assert {round, length(admitted), length(refused)} == {round, @probes, @processes - @probes}
      Enum.each(admitted, fn {pid, permit} -> send(pid, {:report, permit}) end)
      for _ <- admitted, do: receive(do: (:reported -> :ok))
    end
  end
end
