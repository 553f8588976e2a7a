# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Case do
  @moduledoc """
  The case of every test: a service name of its own, stopped afterwards, and functions that fail on purpose.

  What a test wants to know later is sent to its own mailbox: attempts by `attempting/2`, waits by `recording_sleep/1`,
  events by `ExternalService.Recorder`.
  """

  use ExUnit.CaseTemplate

  alias ExternalService.VirtualClock

  using do
    quote do
      import ExternalService.Case
      import ExUnit.CaptureLog

      alias ExternalService.{
        CircuitBreaker,
        CircuitBreakerOpen,
        Recorder,
        RetriesExhausted,
        RetryOptions,
        ServiceNotStarted,
        StandIn,
        Telemetry,
        ValidationError,
        VirtualClock
      }

      @moduletag :capture_log
    end
  end

  setup context do
    service = {context.module, context.test}
    on_exit(fn -> ExternalService.stop(service) end)
    {:ok, service: service}
  end

  @doc "Starts the service on a virtual clock of its own and returns the clock."
  def start_on_clock(service, options \\ []) do
    clock = VirtualClock.new()
    :ok = ExternalService.start(service, Keyword.put(options, :clock, clock))
    clock
  end

  @doc "Starts the service with a sleep function that records instead of waiting."
  def start_recording(service, options \\ []) do
    ExternalService.start(service, Keyword.put_new(options, :sleep_function, recording_sleep()))
  end

  @doc "A sleep function that does not wait: the delays are read by `slept/0`."
  def recording_sleep(pid \\ self()) do
    fn ms -> send(pid, {:slept, ms}) end
  end

  @doc "The delays slept so far, oldest first; each is told once."
  def slept, do: collect(:slept)

  @doc "A function for `call` that counts as an attempt and returns `result`, or applies it if it is a function."
  def attempting(result, clock \\ nil) do
    pid = self()

    fn ->
      send(pid, {:attempted, clock && VirtualClock.now(clock)})
      if is_function(result, 0), do: result.(), else: result
    end
  end

  @doc "A function for `call` that returns the results one after the other, or applies those that are functions."
  def attempting_each(results) do
    turn = :counters.new(1, [])

    attempting(fn ->
      :counters.add(turn, 1, 1)
      result = Enum.fetch!(results, :counters.get(turn, 1) - 1)
      if is_function(result, 0), do: result.(), else: result
    end)
  end

  @doc "How many attempts were made since last asked."
  def attempts, do: length(collect(:attempted))

  @doc "When the attempts were made, in ms since `start`; only for `attempting/2` with a clock."
  def attempt_times(start \\ 0), do: Enum.map(collect(:attempted), &(&1 - start))

  @doc "Calls once, without retries, with a failing function."
  def fail(service), do: ExternalService.call(service, [max_attempts: 1], fn -> :retry end)

  @doc "Runs `fun` in `count` processes that start together and returns their results."
  def together(count, fun) do
    gate = make_ref()
    tasks = for n <- 1..count, do: Task.async(fn -> receive(do: (^gate -> fun.(n))) end)
    Enum.each(tasks, &send(&1.pid, gate))
    Task.await_many(tasks, 30_000)
  end

  @doc "Waits until `check` is true, looking again until it is."
  def eventually(check, tries \\ 10_000) do
    cond do
      check.() -> true
      tries == 0 -> flunk("it did not happen")
      true -> :erlang.yield() && eventually(check, tries - 1)
    end
  end

  @doc "The exception that `fun` raises; a test whose function does not raise fails."
  def raised(fun) do
    fun.()
  rescue
    exception -> exception
  else
    value -> flunk("expected an exception, got: #{inspect(value)}")
  end

  @doc "Checks a property by PropEr, and fails with the smallest counterexample. An exception counts as false."
  def check(type, cases, property) do
    case :proper.counterexample(:proper.forall(type, &holds?(property, &1)), [:quiet, numtests: cases]) do
      true -> true
      counterexample -> flunk("the property does not hold for #{inspect(counterexample)}")
    end
  end

  # PropEr itself can not show an exception of a newer OTP release than its own.
  defp holds?(property, value) do
    property.(value)
  rescue
    exception ->
      IO.puts(Exception.format(:error, exception, __STACKTRACE__))
      false
  end

  defp collect(tag) do
    receive do
      {^tag, value} -> [value | collect(tag)]
    after
      0 -> []
    end
  end
end
