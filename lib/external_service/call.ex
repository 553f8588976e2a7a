defmodule ExternalService.Call do
  # The pipeline every call passes, outermost layer first:
  #
  #     telemetry span > retry loop > breaker > rate limit > concurrency limit > function > classify > breaker report
  #
  # From the rate limit to the classification it is `Attempt`'s. `service` is the service as this call sees it, the call's
  # own options in place of its. Outcomes travel as values; only `finish/2` turns them into what the caller sees.
  @moduledoc false

  require Logger

  alias ExternalService.CircuitBreaker.Installed

  alias ExternalService.{Attempt, Options, Retry, RetryOptions, Service, Telemetry, Unit, Validation}
  alias ExternalService.{CircuitBreakerOpen, RetriesExhausted, ServiceNotStarted}

  @typep outcome :: Attempt.outcome()

  # How far the retrying has come: the number of the attempt, when its time budget began, whether it is the last.
  @typep progress :: {pos_integer(), integer() | nil, boolean()}
  @first {1, nil, false}

  @doc "Runs `fun` through every layer. `:return` gives refusals as `{:error, exception}`, `:raise` raises them."
  @spec run(:return | :raise, term(), RetryOptions.t() | keyword() | nil, (() -> term())) :: term()
  def run(mode, name, overrides, fun) do
    case Service.get(name) do
      nil ->
        if overrides, do: override(%Service{name: name, retry: %RetryOptions{}}, overrides)
        spanned(:all, name, fn -> finish(mode, not_started(name)) end)

      %Service{telemetry: telemetry} = service ->
        service = if overrides, do: override(service, overrides), else: service

        if Telemetry.spans?(telemetry),
          do: Telemetry.span(name, fn -> finish(mode, through(service, fun)) end),
          else: finish(mode, through(service, fun))
    end
  end

  defp spanned(telemetry, name, run), do: if(Telemetry.spans?(telemetry), do: Telemetry.span(name, run), else: run.())

  @call_options Keyword.keys(Options.schema(:call))

  defp override(service, %RetryOptions{} = retry), do: override_retry(service, retry)

  defp override(service, overrides) when is_list(overrides) do
    case Keyword.split(overrides, @call_options) do
      {[], retry} ->
        override_retry(service, retry)

      {own, retry} ->
        Validation.check_given!(:call, own)
        override_retry(struct!(service, own), retry)
    end
  end

  defp override_retry(service, options) do
    retry = RetryOptions.merge(service.retry, options)
    %{service | retry: retry, schedule: RetryOptions.schedule(retry)}
  end

  @spec finish(:return | :raise, outcome()) :: term()
  defp finish(_mode, {:ok, value}), do: value
  defp finish(:return, {:error, exception}), do: {:error, exception}
  defp finish(:raise, {:error, exception}), do: raise(exception)
  defp finish(_mode, {:raised, _exception, reason, stacktrace}), do: :erlang.raise(:error, reason, stacktrace)

  defp not_started(name) do
    Logger.error(
      "Service #{inspect(name)} has not been started. To initialize it, call " <>
        "ExternalService.start(#{inspect(name)}) in your application start code."
    )

    {:error, %ServiceNotStarted{context: %{service: name}}}
  end

  @spec through(Service.t(), (() -> term())) :: outcome()
  defp through(%{melt: :per_call} = service, fun) do
    Retry.check_melt!(service.name, :per_call, service.retry)
    attempt(service, fun, @first)
  end

  defp through(service, fun), do: attempt(service, fun, @first)

  @spec attempt(Service.t(), (() -> term()), progress()) :: outcome()
  defp attempt(service, fun, progress) do
    case Installed.enter(service) do
      {:ok, permit} -> service |> perform(fun, permit) |> conclude(service, fun, progress, permit)
      {:open, retry_after} -> refuse(service.name, retry_after)
    end
  end

  defp refuse(name, retry_after) do
    Telemetry.blown(name)
    {:error, %CircuitBreakerOpen{context: %{service: name, retry_after: retry_after}}}
  end

  # Where the breaker only hears of failures, an attempt that ends otherwise needs no report. A probe, whose permit is a
  # tuple, is always reported.
  defguardp is_unwatched(service, permit) when service.watch == :failures and not is_tuple(permit)

  defp perform(service, fun, permit) when is_unwatched(service, permit), do: Attempt.run(service, fun)

  defp perform(service, fun, permit) do
    Attempt.run(service, fun)
  catch
    kind, reason ->
      Installed.settle(service, permit, :ignore, 0)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp conclude({{:ok, _value} = success, _duration}, service, _fun, _progress, permit)
       when is_unwatched(service, permit),
       do: success

  defp conclude({{:ok, _value} = success, duration}, service, _fun, _progress, permit) do
    Installed.settle(service, permit, :success, duration)
    success
  end

  defp conclude({{:error, _exception} = refusal, _duration}, service, _fun, _progress, permit) do
    unless is_unwatched(service, permit), do: Installed.settle(service, permit, :ignore, 0)
    refusal
  end

  defp conclude({failure, duration}, service, fun, progress, permit) do
    Telemetry.retry(service.name, elem(failure, 1))
    permit = melt(service, permit, duration)
    again(service, fun, progress, {permit, duration}, failure)
  end

  # A probe that failed is reported at once, whatever melts the breaker else.
  defp melt(%{melt: :per_call}, permit, _duration) when not is_tuple(permit), do: permit

  defp melt(service, permit, duration) do
    Installed.settle(service, permit, :failure, duration)
    nil
  end

  defp again(service, _fun, {_attempt, _started, true} = progress, unreported, failure),
    do: give_up(service, progress, unreported, failure)

  defp again(
         %{schedule: schedule, clock: clock} = service,
         fun,
         {attempt, started, false} = progress,
         unreported,
         failure
       ) do
    started = started || Retry.started(schedule, clock)

    case Retry.next(schedule, attempt, started, clock) do
      :exhausted -> give_up(service, progress, unreported, failure)
      {:last, delay} -> wait(service, fun, delay, {attempt + 1, started, true})
      delay -> wait(service, fun, delay, {attempt + 1, started, false})
    end
  end

  # The service may have been stopped, changed or started afresh while the call waited.
  defp wait(%{name: name, sleep: sleep, version: version} = service, fun, delay, progress) do
    sleep.(Unit.ms(delay))

    case Service.get(name) do
      %{version: ^version} -> attempt(service, fun, progress)
      nil -> refuse(name, nil)
      fresh -> attempt(%{fresh | retry: service.retry, schedule: service.schedule, cost: service.cost}, fun, progress)
    end
  end

  defp give_up(service, progress, {permit, duration}, failure) do
    if permit, do: Installed.settle(service, permit, :failure, duration)
    exhausted(failure, service, progress)
  end

  # An exception that was retried in vain is raised in the end, as it was.
  defp exhausted({:raised, _exception, _reason, _stacktrace} = raised, _service, _progress), do: raised

  defp exhausted({:retry, reason}, service, {attempt, _started, _last?}) do
    context = %{service: service.name, reason: reason, attempts: attempt}
    {:error, %RetriesExhausted{context: context, cause: cause(reason)}}
  end

  defp cause(reason) when is_exception(reason), do: %{kind: :error, value: reason, stacktrace: nil}
  defp cause(_reason), do: nil
end
