defmodule ExternalService.Telemetry do
  @moduledoc """
  Every event the library emits, and handlers for them.

  | event | measurements | metadata, besides `:service` |
  | --- | --- | --- |
  | `[:external_service, :call, :start]` | `monotonic_time`, `system_time` | `telemetry_span_context` |
  | `[:external_service, :call, :stop]` | `duration`, `monotonic_time` | `result`, `telemetry_span_context`; `fallback: true` if it is a fallback's |
  | `[:external_service, :call, :exception]` | `duration`, `monotonic_time` | `kind`, `reason`, `stacktrace`, `telemetry_span_context` |
  | `[:external_service, :call, :retry]` | `count` | `reason` |
  | `[:external_service, :circuit_breaker, :blown]` | `count` | |
  | `[:external_service, :circuit_breaker, :opened]` | `count`, `failures`, `calls`, `slow`, `consecutive`, `rate` | `from`, `to`, `rule`, `reason`, `retry_after` |
  | `[:external_service, :circuit_breaker, :half_opened]` | the same | the same |
  | `[:external_service, :circuit_breaker, :closed]` | the same | the same |
  | `[:external_service, :rate_limit, :sleep]` | `sleep_time` (ms) | |
  | `[:external_service, :rate_limit, :rejected]` | `count` | `retry_after` |
  | `[:external_service, :concurrency, :rejected]` | `limit`, `wait_time` (ms) | |
  | `[:external_service, :concurrency, :waited]` | `limit`, `wait_time` (ms) | |
  | `[:external_service, :concurrency, :reclaimed]` | `limit`, `count` | |
  | `[:external_service, :timeout]` | `count`, `timeout` (ms) | |
  | `[:external_service, :budget, :empty]` | `count` | `reason` |
  | `[:external_service, :fallback]` | `count` | `reason` |

  Times are in native units, `retry_after` is in milliseconds. `:retry` is emitted for each failed attempt, the last one
  included; `:blown` for each refused attempt; `:opened`, `:half_opened` and `:closed` once for each change, in the order of
  the changes, with what was counted at that moment, the `:rule` that fired and the `:reason` a hand gave; `:waited` when a wait of more
  than 0 ms ended with a slot; `:reclaimed` when slots were taken from calls that held them for longer than
  `:reclaim_after`, so that more calls than the limit may be in flight; `:timeout` for each attempt that was ended; `:empty`
  when a retry was not made because the retry budget was empty; `:fallback` when a call's fallback is about to run, the error
  being the `:reason`.

  Events go to `:telemetry` where that library is loaded. Where it is not, the functions of this module keep the handlers:

      iex> tell = fn _event, %{failures: failures}, %{service: service}, pid -> send(pid, {service, failures}) end
      iex> ExternalService.Telemetry.attach("openings", [:external_service, :circuit_breaker, :opened], tell, self())
      :ok
      iex> ExternalService.start(:fragile, circuit_breaker: [tolerate: 0])
      iex> {:error, _error} = ExternalService.call(:fragile, [max_attempts: 1], fn -> :retry end)
      iex> receive do: ({:fragile, failures} -> failures)
      1
      iex> ExternalService.Telemetry.detach("openings")
      :ok

  A handler runs in the process that makes the call. One that raises is detached and logged, and the call goes on.
  """

  alias ExternalService.Telemetry.Handlers

  @compile {:no_warn_undefined, :telemetry}

  @type handler_id :: term()
  @type event :: [atom(), ...]
  @type handler :: (event(), measurements :: map(), metadata :: map(), config :: term() -> any())

  @call_start [:external_service, :call, :start]
  @call_stop [:external_service, :call, :stop]
  @call_exception [:external_service, :call, :exception]
  @call_retry [:external_service, :call, :retry]
  @blown [:external_service, :circuit_breaker, :blown]
  @opened [:external_service, :circuit_breaker, :opened]
  @half_opened [:external_service, :circuit_breaker, :half_opened]
  @closed [:external_service, :circuit_breaker, :closed]

  @rate_limit_sleep [:external_service, :rate_limit, :sleep]
  @rate_limit_rejected [:external_service, :rate_limit, :rejected]
  @concurrency_rejected [:external_service, :concurrency, :rejected]
  @concurrency_waited [:external_service, :concurrency, :waited]
  @concurrency_reclaimed [:external_service, :concurrency, :reclaimed]

  @timeout [:external_service, :timeout]
  @budget_empty [:external_service, :budget, :empty]
  @fallback [:external_service, :fallback]

  @events [@call_start, @call_stop, @call_exception, @call_retry, @blown, @opened, @half_opened, @closed] ++
            [
              @rate_limit_sleep,
              @rate_limit_rejected,
              @concurrency_rejected,
              @concurrency_waited,
              @concurrency_reclaimed,
              @timeout,
              @budget_empty,
              @fallback
            ]

  @doc "Returns the names of all events."
  @spec events() :: [event()]
  def events, do: @events

  @doc """
  Calls `handler` with event, measurements, metadata and `config` for each event called `event`.

  Returns `{:error, :already_exists}` if there is a handler of this id.
  """
  @spec attach(handler_id(), event(), handler(), term()) :: :ok | {:error, :already_exists}
  def attach(id, event, handler, config), do: attach_many(id, [event], handler, config)

  @doc "The same as `attach/4` for several events."
  @spec attach_many(handler_id(), [event()], handler(), term()) :: :ok | {:error, :already_exists}
  def attach_many(id, events, handler, config) when is_function(handler, 4) do
    if library?(),
      do: :telemetry.attach_many(id, events, handler, config),
      else: Handlers.attach(id, events, handler, config)
  end

  @doc "Removes the handler, or returns `{:error, :not_found}`."
  @spec detach(handler_id()) :: :ok | {:error, :not_found}
  def detach(id), do: if(library?(), do: :telemetry.detach(id), else: Handlers.detach(id))

  # Does anything listen to the start and the end of a call? `mode` is the service's :telemetry option.
  @doc false
  @spec spans?(:all | :changes) :: boolean()
  def spans?(:changes), do: false
  def spans?(:all), do: library?() or Handlers.any?([@call_start, @call_stop, @call_exception])

  # `fun` returns its result, and what else the end of the call is to tell of it.
  @doc false
  @spec span(term(), (() -> {result, map()})) :: result when result: term()
  def span(service, fun) do
    started = System.monotonic_time()
    metadata = %{service: service, telemetry_span_context: make_ref()}
    execute(@call_start, %{monotonic_time: started, system_time: System.system_time()}, metadata)

    try do
      fun.()
    catch
      kind, reason ->
        failure = %{kind: kind, reason: reason, stacktrace: __STACKTRACE__}
        execute(@call_exception, since(started), Map.merge(metadata, failure))
        :erlang.raise(kind, reason, __STACKTRACE__)
    else
      {result, marks} ->
        execute(@call_stop, since(started), metadata |> Map.put(:result, result) |> Map.merge(marks))
        result
    end
  end

  @doc false
  @spec retry(term(), term()) :: :ok
  def retry(service, reason), do: execute(@call_retry, %{count: 1}, %{service: service, reason: reason})

  @doc false
  @spec blown(term()) :: :ok
  def blown(service), do: execute(@blown, %{count: 1}, %{service: service})

  @doc false
  @spec changed(term(), ExternalService.Native.change()) :: :ok
  def changed(service, %{to: to, rule: rule, counts: counts} = change) do
    metadata = change |> Map.take([:from, :to, :rule, :reason, :retry_after]) |> Map.put(:service, service)
    execute(change_event(to), counted(counts, rule), metadata)
  end

  # The failures are those that the rule that opened it counts.
  defp counted(counts, rule) do
    rate = if counts.calls == 0, do: 0.0, else: counts.failures / counts.calls

    failures =
      case rule do
        :failure_rate -> counts.failures
        :consecutive -> Enum.max([counts.consecutive, counts.window_failures, counts.failures])
        _other -> max(counts.window_failures, counts.failures)
      end

    %{
      count: 1,
      failures: failures,
      calls: counts.calls,
      slow: counts.slow,
      consecutive: counts.consecutive,
      rate: rate
    }
  end

  @doc false
  @spec rate_limit_sleep(term(), pos_integer()) :: :ok
  def rate_limit_sleep(service, ms), do: execute(@rate_limit_sleep, %{sleep_time: ms}, %{service: service})

  @doc false
  @spec rate_limit_rejected(term(), pos_integer() | :infinity) :: :ok
  def rate_limit_rejected(service, retry_after),
    do: execute(@rate_limit_rejected, %{count: 1}, %{service: service, retry_after: retry_after})

  @doc false
  @spec concurrency_rejected(term(), pos_integer(), non_neg_integer()) :: :ok
  def concurrency_rejected(service, limit, waited),
    do: execute(@concurrency_rejected, %{limit: limit, wait_time: waited}, %{service: service})

  @doc false
  @spec concurrency_waited(term(), pos_integer(), pos_integer()) :: :ok
  def concurrency_waited(service, limit, waited),
    do: execute(@concurrency_waited, %{limit: limit, wait_time: waited}, %{service: service})

  @doc false
  @spec concurrency_reclaimed(term(), pos_integer(), pos_integer()) :: :ok
  def concurrency_reclaimed(service, limit, count),
    do: execute(@concurrency_reclaimed, %{limit: limit, count: count}, %{service: service})

  @doc false
  @spec timeout(term(), non_neg_integer()) :: :ok
  def timeout(service, ms), do: execute(@timeout, %{count: 1, timeout: ms}, %{service: service})

  @doc false
  @spec budget_empty(term(), term()) :: :ok
  def budget_empty(service, reason), do: execute(@budget_empty, %{count: 1}, %{service: service, reason: reason})

  @doc false
  @spec fallback(term(), Exception.t()) :: :ok
  def fallback(service, error), do: execute(@fallback, %{count: 1}, %{service: service, reason: error})

  defp change_event(state) when state in [:open, :forced_open], do: @opened
  defp change_event(:half_open), do: @half_opened
  defp change_event(state) when state in [:closed, :bypassed], do: @closed

  defp since(started) do
    now = System.monotonic_time()
    %{duration: now - started, monotonic_time: now}
  end

  defp execute(event, measurements, metadata) do
    if library?(),
      do: :telemetry.execute(event, measurements, metadata),
      else: Handlers.execute(event, measurements, metadata)
  end

  # Asked each time, because `:telemetry` may be loaded after the first service was started.
  defp library?, do: :erlang.function_exported(:telemetry, :execute, 3)
end
