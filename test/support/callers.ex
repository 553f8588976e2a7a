# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Callers do
  @moduledoc """
  Processes that make one call, stay inside it until they are told how it is to end, and live on after it.

  They are not linked to the test, so it may kill them; they end with it.
  """

  import ExUnit.Assertions

  alias ExternalService.{Concurrency, ServiceSaturated}

  # Far longer than anything here takes; only a test that fails waits for its end.
  @patience 10_000

  @doc "Starts the service with this concurrency limit."
  def start_limited(service, concurrency), do: :ok = ExternalService.start(service, concurrency: concurrency)

  @doc "Makes a call that must get a slot."
  def admitted(service), do: assert(ExternalService.call(service, fn -> :fine end) == :fine)

  @doc "Makes a call that must not get a slot, and returns its error."
  def refused(service) do
    assert {:error, %ServiceSaturated{} = error} = ExternalService.call(service, fn -> flunk("it ran") end)
    error
  end

  @doc "A process inside a call of the service."
  def hold(service, options \\ []) do
    pid = calling(service, options)
    assert_receive {:inside, ^pid}, @patience
    pid
  end

  @doc "A process that waits for a slot of the service."
  def queue(service, options \\ []) do
    behind = Concurrency.queued(service)
    pid = calling(service, options)
    soon(fn -> Concurrency.queued(service) == behind + 1 end)
    pid
  end

  @doc "A process that makes a call: it tells when it is inside, and how the call ended."
  def calling(service, options \\ []) do
    test = self()

    spawn(fn ->
      guard = Process.monitor(test)
      outcome = outcome(fn -> ExternalService.call(service, options, fn -> inside(test, guard) end) end)
      send(test, {:ended, self(), outcome})
      receive do: ({:DOWN, ^guard, _, _, _} -> :ok)
    end)
  end

  defp inside(test, guard) do
    send(test, {:inside, self()})

    receive do
      {:end, how} -> how.()
      {:DOWN, ^guard, _, _, _} -> :test_is_over
    end
  end

  defp outcome(fun) do
    {:returned, fun.()}
  catch
    kind, reason -> {kind, reason}
  end

  @doc "Ends the call that the process is in, by `how`, and returns its outcome. The process lives on."
  def finish(pid, how \\ fn -> :done end) do
    send(pid, {:end, how})
    ended(pid)
  end

  @doc "The outcome of the call that the process made: `{:returned, value}` or `{kind, reason}`."
  def ended(pid) do
    assert_receive {:ended, ^pid, outcome}, @patience
    outcome
  end

  @doc "Waits until the process is inside its call."
  def entered(pid), do: assert_receive({:inside, ^pid}, @patience)

  @doc "Sends the process an exit signal, and returns when it is dead."
  def kill(pid, reason \\ :kill) do
    ref = Process.monitor(pid)
    Process.exit(pid, reason)
    assert_receive {:DOWN, ^ref, _, _, _}, @patience
  end

  @doc "Waits until `check` is true: what the death of a process brings about is there soon after it, not at once."
  def soon(check), do: soon(check, System.monotonic_time(:millisecond) + @patience)

  defp soon(check, deadline) do
    cond do
      check.() -> true
      System.monotonic_time(:millisecond) > deadline -> flunk("it did not happen")
      true -> :erlang.yield() && soon(check, deadline)
    end
  end

  @doc "Lets `ms` milliseconds of real time pass, for what no virtual clock moves: timers of waiting processes."
  def let_pass(ms) do
    deadline = System.monotonic_time(:millisecond) + ms
    soon(fn -> System.monotonic_time(:millisecond) > deadline end)
  end

  @doc "How many calls hold a slot, and how many wait for one."
  def counts(service), do: {Concurrency.in_flight(service), Concurrency.queued(service)}
end
