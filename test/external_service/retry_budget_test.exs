# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RetryBudgetTest do
  use ExternalService.Case, async: true

  # Ten retries, and no more by time: only successes pay for others.
  @ten [budget: [ratio: 0.5, min_per_second: 0], base: 0, max_attempts: 2]

  defp empty(service),
    do: for(_ <- 1..10, do: assert({:error, _} = ExternalService.call(service, fn -> {:retry, :down} end)))

  defp start(service, options \\ [retry: @ten, circuit_breaker: [tolerate: 1_000_000]]),
    do: start_on_clock(service, options)

  test "is full at first, and bounds the retries of all calls together", %{service: s} do
    start(s)
    empty(s)
    assert {:error, error} = ExternalService.call(s, [max_attempts: 5], attempting({:retry, :down}))
    assert %RetriesExhausted{context: %{reason: :down, attempts: 1, budget: true}} = error
    assert attempts() == 1
  end

  test "is not mentioned where there is still something in it", %{service: s} do
    start(s)
    {:error, error} = ExternalService.call(s, fn -> :retry end)
    refute Map.has_key?(error.context, :budget)
  end

  test "is paid into by successes, a share of a retry each", %{service: s} do
    start(s)
    empty(s)
    fine = fn -> ExternalService.call(s, fn -> :fine end) end
    fine.()
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 1
    fine.()
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 2
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 1
  end

  test "is paid into by time, up to ten seconds' worth", %{service: s} do
    clock = start(s, retry: [budget: [ratio: 0, min_per_second: 2], base: 0], circuit_breaker: [tolerate: 1_000_000])
    made = fn -> ExternalService.call(s, [max_attempts: 1_000], attempting(:retry)) && attempts() - 1 end
    assert made.() == 20
    assert made.() == 0
    VirtualClock.advance(clock, 499)
    assert made.() == 0
    VirtualClock.advance(clock, 1)
    assert made.() == 1
    VirtualClock.advance(clock, 1_500)
    assert made.() == 3
    VirtualClock.advance(clock, 3_600_000)
    assert made.() == 20
  end

  test "is a fifth of the successes and ten a second where it is only asked for", %{service: s} do
    clock = start(s, retry: [budget: true, base: 0], circuit_breaker: [tolerate: 1_000_000])
    made = fn -> ExternalService.call(s, [max_attempts: 1_000], attempting(:retry)) && attempts() - 1 end
    assert made.() == 100
    VirtualClock.advance(clock, 1_000)
    assert made.() == 10
    for _ <- 1..5, do: ExternalService.call(s, fn -> :fine end)
    assert made.() == 1
  end

  test "is the service's: calls with options of their own draw on it, too", %{service: s} do
    start(s)
    for _ <- 1..10, do: ExternalService.call(s, %RetryOptions{max_attempts: 2, base: 0}, fn -> :retry end)
    ExternalService.call(s, %RetryOptions{max_attempts: 5, base: 0}, attempting(:retry))
    assert attempts() == 1
  end

  test "is not asked by a call that makes no retry", %{service: s} do
    start(s)
    for _ <- 1..100, do: fail(s)
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 2
  end

  test "when it is empty is told by an event with the reason", %{service: s} do
    start(s)
    empty(s)
    Recorder.attach(s, [[:budget, :empty]])
    ExternalService.call(s, fn -> {:retry, :down} end)
    assert [{[:budget, :empty], %{count: 1}, %{reason: :down, service: ^s}}] = Recorder.events()
    fail(s)
    assert Recorder.events() == []
  end

  test "when it is empty lets an exception through as it was", %{service: s} do
    start(s)
    empty(s)
    raising = attempting(fn -> raise KeyError, key: 1, term: 2 end)
    assert_raise KeyError, fn -> ExternalService.call(s, [retry_exceptions: [KeyError]], raising) end
    assert attempts() == 1
  end

  test "when it is empty lets a call that gives up melt once", %{service: s} do
    start(s, retry: @ten, circuit_breaker: [melt: :per_call, backend: StandIn])
    empty(s)
    assert StandIn.count(:melt) == 10
    ExternalService.call(s, fn -> :retry end)
    assert StandIn.count(:melt) == 1
  end

  test "is kept when the service is reconfigured otherwise, and full when it is started afresh", %{service: s} do
    start(s)
    empty(s)
    ExternalService.reconfigure(s, retry: [base: 1])
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 1
    ExternalService.reconfigure(s, retry: [budget: [ratio: 0.1, min_per_second: 0]])
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 2
    ExternalService.reconfigure(s, retry: [budget: false])
    for _ <- 1..30, do: ExternalService.call(s, attempting(:retry))
    assert attempts() == 60
  end

  test "follows the service to another clock", %{service: s} do
    clock = VirtualClock.new()
    budget = [ratio: 0, min_per_second: 1]
    start(s, retry: Keyword.put(@ten, :budget, budget), circuit_breaker: [tolerate: 1_000_000])
    ExternalService.reconfigure(s, clock: clock)
    empty(s)
    VirtualClock.advance(clock, 1_000)
    ExternalService.call(s, attempting(:retry))
    assert attempts() == 2
  end

  test "keeps what a change of it does not name", %{service: s} do
    clock = start(s)
    ExternalService.reconfigure(s, retry: [budget: [ratio: 0]])
    empty(s)
    for _ <- 1..10, do: assert(ExternalService.call(s, fn -> :fine end) == :fine)
    assert {:error, %{context: %{budget: true}}} = ExternalService.call(s, fn -> :retry end)
    VirtualClock.advance(clock, 1_000)
    assert {:error, %{context: %{budget: true}}} = ExternalService.call(s, fn -> :retry end)
  end

  test "bounds the retries of many processes together exactly", %{service: s} do
    start(s)
    pid = self()

    together(8, fn _ ->
      for _ <- 1..20, do: ExternalService.call(s, fn -> send(pid, {:attempted, nil}) && :retry end)
    end)

    assert attempts() == 160 + 10
  end
end
