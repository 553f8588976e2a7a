defmodule ExternalService.Timeout do
  # Runs a function for at most a time, in a process of its own: the only way to stop code that does not want to.
  #
  # The process is linked to its caller, so that it dies with it, and what the function linked dies with both. It carries
  # what tools look for in a process that works for another: `$callers` and `$ancestors`, the logger's metadata, the
  # deadline and the tracing context.
  @moduledoc false

  alias ExternalService.{Deadline, Native, Unit}

  @compile {:no_warn_undefined, :otel_ctx}

  # The longest timeout of a receive.
  @timeout_max 0xFFFF_FFFF

  @typedoc "How the function ended."
  @type ending ::
          {:returned, term()} | {:raised, :error | :exit | :throw, reason :: term(), Exception.stacktrace()}

  @doc "Returns how `fun` ended, or `:over` if it had not within `limit` nanoseconds; then it is killed."
  @spec run((() -> term()), non_neg_integer() | :infinity, Native.clock() | nil) :: ending() | :over
  def run(fun, limit, clock) do
    context = context()
    began = clock && Native.clock_now(clock)

    worker = spawn_link(fn -> work(fun, context) end)

    # The reference of the monitor is the address for the answer: once it is given up, a late one reaches nobody. It is
    # made here and not by the spawn, since then the VM knows that no message from before can hold it, and looks at none.
    ref = :erlang.monitor(:process, worker, alias: :reply_demonitor)

    send(worker, {:answer_to, ref})
    if clock, do: await_virtual(worker, ref, limit, began, clock), else: await(worker, ref, ms(limit))
  end

  @doc "Lets the caller see what the function did: returns, raises, throws or exits as it did."
  @spec replay(ending()) :: term()
  def replay({:returned, value}), do: value
  def replay({:raised, kind, reason, stacktrace}), do: :erlang.raise(kind, reason, stacktrace)

  defp ms(:infinity), do: :infinity
  defp ms(limit), do: limit |> Unit.ms() |> min(@timeout_max)

  defp await(worker, ref, ms) do
    receive do
      {^ref, ending} -> ending
      {:DOWN, ^ref, _, _, reason} -> died(worker, reason)
    after
      ms -> stop(worker, ref)
    end
  end

  # Nobody is woken by a virtual clock: it is looked at again and again. What the function itself let pass counts.
  defp await_virtual(worker, ref, limit, began, clock) do
    receive do
      {^ref, ending} -> if Native.clock_now(clock) - began > limit, do: :over, else: ending
      {:DOWN, ^ref, _, _, reason} -> died(worker, reason)
    after
      1 ->
        if Native.clock_now(clock) - began >= limit,
          do: stop(worker, ref),
          else: await_virtual(worker, ref, limit, began, clock)
    end
  end

  defp stop(worker, ref) do
    Process.unlink(worker)
    Process.exit(worker, :kill)
    Process.demonitor(ref, [:flush])
    forget(ref)
    forget_exit(worker)
    :over
  end

  # An answer that came in the very instant.
  defp forget(ref) do
    receive do: ({^ref, _ending} -> :ok), after: (0 -> :ok)
  end

  # Where the caller traps exits, the link left a message.
  defp forget_exit(worker) do
    receive do: ({:EXIT, ^worker, _reason} -> :ok), after: (0 -> :ok)
  end

  # Something that the function had linked took it along. Its end is told twice, by the monitor and by the link.
  defp died(worker, reason) do
    Process.unlink(worker)
    forget_exit(worker)
    {:raised, :exit, reason, []}
  end

  defp work(fun, {caller, _, _, _, _, _} = context) do
    adopt(context)
    # Before the function runs, which may take any message that is there.
    ref = receive do: ({:answer_to, ref} -> ref)
    ending = ending(fun)
    Process.unlink(caller)
    send(ref, {ref, ending})
  end

  defp ending(fun) do
    {:returned, fun.()}
  catch
    kind, reason -> {:raised, kind, reason, __STACKTRACE__}
  end

  defp context do
    caller = self()

    {caller, [caller | Process.get(:"$callers", [])], [name(caller) | Process.get(:"$ancestors", [])],
     :logger.get_process_metadata(), Deadline.current(), tracing()}
  end

  defp adopt({_caller, callers, ancestors, metadata, deadline, tracing}) do
    Process.put(:"$callers", callers)
    Process.put(:"$ancestors", ancestors)
    if metadata != :undefined, do: :logger.set_process_metadata(metadata)
    Deadline.adopt(deadline)
    if tracing, do: :otel_ctx.attach(tracing)
  end

  defp name(pid) do
    case Process.info(pid, :registered_name) do
      {:registered_name, name} when is_atom(name) -> name
      _none -> pid
    end
  end

  # OpenTelemetry keeps the current span in the process.
  defp tracing, do: if(:erlang.function_exported(:otel_ctx, :attach, 1), do: :otel_ctx.get_current())
end
