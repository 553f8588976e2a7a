defmodule ExternalService.Call do
  # The pipeline every call passes, outermost layer first:
  #
  #     telemetry span > retry loop > breaker > function > classify > breaker report
  #
  # Layers hand on `{:ok, value}`, `{:error, exception}` for a refusal or an exhausted call, or `{:raise, reason,
  # stacktrace}` for a retried exception that ran out of retries; only `finish/2` turns these into what the caller sees.
  @moduledoc false

  require Logger

  alias ExternalService.{CircuitBreaker, Retry, RetryOptions, Service, Telemetry}
  alias ExternalService.{CircuitBreakerOpen, RetriesExhausted, ServiceNotStarted}

  @enforce_keys [:name, :service, :retry, :schedule, :fun]
  defstruct @enforce_keys ++ [attempt: 1, started: nil, last?: false]

  @typep outcome ::
           {:ok, term()} | {:error, Exception.t()} | {:raise, term(), Exception.stacktrace()}

  @doc "Runs `fun` through every layer. `:return` gives refusals as `{:error, exception}`, `:raise` raises them."
  @spec run(:return | :raise, term(), RetryOptions.t() | keyword() | nil, (() -> term())) :: term()
  def run(mode, name, overrides, fun) do
    service = Service.get(name)
    call = new(name, service, overrides, fun)

    if Telemetry.spans?(telemetry(service)),
      do: Telemetry.span(name, fn -> finish(mode, through(call)) end),
      else: finish(mode, through(call))
  end

  defp new(name, nil, overrides, fun) do
    retry = RetryOptions.new(overrides || [])
    %__MODULE__{name: name, service: nil, retry: retry, schedule: nil, fun: fun}
  end

  defp new(name, service, nil, fun),
    do: %__MODULE__{name: name, service: service, retry: service.retry, schedule: service.schedule, fun: fun}

  defp new(name, service, overrides, fun) do
    retry = RetryOptions.merge(service.retry, overrides)
    %__MODULE__{name: name, service: service, retry: retry, schedule: RetryOptions.schedule(retry), fun: fun}
  end

  defp telemetry(nil), do: :all
  defp telemetry(%Service{telemetry: mode}), do: mode

  @spec finish(:return | :raise, outcome()) :: term()
  defp finish(_mode, {:ok, value}), do: value
  defp finish(:return, {:error, exception}), do: {:error, exception}
  defp finish(:raise, {:error, exception}), do: raise(exception)
  defp finish(_mode, {:raise, reason, stacktrace}), do: :erlang.raise(:error, reason, stacktrace)

  @spec through(%__MODULE__{}) :: outcome()
  defp through(%{service: nil, name: name}) do
    Logger.error(
      "Service #{inspect(name)} has not been started. To initialize it, call " <>
        "ExternalService.start(#{inspect(name)}) in your application start code."
    )

    {:error, %ServiceNotStarted{context: %{service: name}}}
  end

  defp through(%{service: service} = call) do
    Retry.check_melt!(call.name, service.melt, call.retry)
    attempt(call)
  end

  defp attempt(%{service: service} = call) do
    case CircuitBreaker.admit(service) do
      {:ok, permit} -> call |> perform() |> conclude(call, permit)
      {:open, retry_after} -> refuse(call.name, retry_after)
    end
  end

  defp refuse(name, retry_after) do
    Telemetry.blown(name)
    {:error, %CircuitBreakerOpen{context: %{service: name, retry_after: retry_after}}}
  end

  # Without exceptions to retry there is nothing to catch: what the function raises passes as it is.
  defp perform(%{retry: %{retry_exceptions: []} = retry, fun: fun, name: name}), do: Retry.classify(fun.(), retry, name)

  defp perform(%{retry: retry, fun: fun, name: name}) do
    fun.()
  catch
    :error, reason ->
      exception = Exception.normalize(:error, reason, __STACKTRACE__)

      if Retry.exception?(exception, retry, name),
        do: {:raised, exception, reason, __STACKTRACE__},
        else: :erlang.raise(:error, reason, __STACKTRACE__)
  else
    value -> Retry.classify(value, retry, name)
  end

  defp conclude({:ok, value}, _call, _permit), do: {:ok, value}

  defp conclude(failure, %{service: service} = call, permit) do
    Telemetry.retry(call.name, elem(failure, 1))
    if service.melt == :per_attempt, do: CircuitBreaker.report(service, permit, :failure)
    again(call, failure, permit)
  end

  defp again(%{last?: true} = call, failure, permit), do: give_up(failure, call, permit)

  defp again(call, failure, permit) do
    clock = call.service.clock
    call = %{call | started: call.started || Retry.started(call.schedule, clock)}

    case Retry.next(call.schedule, call.attempt, call.started, clock) do
      :exhausted -> give_up(failure, call, permit)
      {:last, delay} -> wait(%{call | last?: true}, delay)
      delay -> wait(call, delay)
    end
  end

  # The service may have been stopped, or started afresh, while the call waited.
  defp wait(call, delay) do
    call.service.sleep.(Retry.to_sleep(delay))

    case Service.get(call.name) do
      nil -> refuse(call.name, nil)
      service -> attempt(%{call | service: service, attempt: call.attempt + 1})
    end
  end

  defp give_up(failure, %{service: service} = call, permit) do
    if service.melt == :per_call, do: CircuitBreaker.report(service, permit, :failure)
    exhausted(failure, call)
  end

  defp exhausted({:raised, _exception, reason, stacktrace}, _call), do: {:raise, reason, stacktrace}

  defp exhausted({:retry, reason}, call) do
    context = %{service: call.name, reason: reason, attempts: call.attempt}
    {:error, %RetriesExhausted{context: context, cause: cause(reason)}}
  end

  defp cause(reason) when is_exception(reason), do: %{kind: :error, value: reason, stacktrace: nil}
  defp cause(_reason), do: nil
end
