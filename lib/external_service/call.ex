defmodule ExternalService.Call do
  # The pipeline every call passes, outermost layer first:
  #
  #     telemetry span > fallback > deadline > retry loop >
  #         breaker > rate limit > concurrency limit > attempt timeout > function > classify > breaker report
  #
  # From the rate limit to the classification it is `Attempt`'s. `service` is the service as this call sees it, the call's
  # own options in place of its. Outcomes travel as values; only `finish/2` turns them into what the caller sees.
  @moduledoc false

  require Logger
  require ExternalService.Retry

  alias ExternalService.CircuitBreaker.Installed
  alias ExternalService.Endpoints.Choice

  alias ExternalService.{
    Attempt,
    Deadline,
    Endpoints,
    Fallback,
    Instances,
    Options,
    Retry,
    RetryOptions,
    Service,
    Telemetry,
    Unit,
    Validation
  }

  alias ExternalService.{CircuitBreakerOpen, DeadlineExceeded, NoEndpoint, RetriesExhausted, ServiceNotStarted}

  # How a call ended; where it failed, after how many attempts.
  @typep outcome ::
           {:ok, term()}
           | {:error, Exception.t(), attempts :: non_neg_integer()}
           | {:raised, Exception.t(), reason :: term(), Exception.stacktrace(), attempts :: pos_integer()}
           | {:fallback, term()}

  @doc "Runs `fun` through every layer. `:return` gives refusals as `{:error, exception}`, `:raise` raises them."
  @spec run(:return | :raise, term(), RetryOptions.t() | keyword() | nil, (() -> term())) :: term()
  def run(mode, name, overrides, fun) do
    case Service.get(name) do
      nil -> name |> Service.none() |> override(overrides) |> spanned(mode, nil)
      service when overrides == nil -> spanned(service, mode, fun)
      service -> service |> override(overrides) |> spanned(mode, fun)
    end
  end

  @doc "Raises for options that `run/4` raises for."
  @spec check!(term(), RetryOptions.t() | keyword() | nil) :: :ok
  def check!(name, overrides) do
    override(Service.get(name) || Service.none(name), overrides)
    :ok
  end

  defp spanned(%{telemetry: telemetry, name: name} = service, mode, fun) do
    if Telemetry.spans?(telemetry) do
      Telemetry.span(name, fn ->
        outcome = covered(service, fun)
        {finish(mode, outcome), marks(outcome)}
      end)
    else
      finish(mode, covered(service, fun))
    end
  end

  @call_options Keyword.keys(Options.schema(:call))

  # Those that say where the call goes.
  @route_options [:key, :endpoint]

  defp override(service, nil), do: service
  defp override(service, %RetryOptions{} = retry), do: override_retry(service, retry)

  defp override(service, overrides) when is_list(overrides) do
    if Enum.any?(overrides, &own?/1) do
      {own, retry} = Keyword.split(overrides, @call_options)
      service |> override_own(own) |> override_retry(retry)
    else
      override_retry(service, overrides)
    end
  end

  defp own?({key, _value}) when key in @call_options, do: true
  defp own?(_other), do: false

  defp override_own(service, own) do
    Validation.check_given!(:call, own)
    Fallback.check!(own[:fallback], service.module)
    {route, own} = Keyword.split(own, @route_options)
    service |> struct!(own) |> bound_for(route)
  end

  defp bound_for(service, []), do: service

  defp bound_for(%{breaker: {Endpoints, endpoints}} = service, route),
    do: %{service | route: Choice.route!(endpoints, route[:key], Keyword.fetch(route, :endpoint))}

  defp bound_for(service, route) do
    if Keyword.has_key?(route, :endpoint) and service.version != nil,
      do: raise(ArgumentError, "#{inspect(service.name)} has no endpoints, so none of them can be called")

    service
  end

  defp override_retry(service, []), do: service

  defp override_retry(service, options) do
    retry = RetryOptions.merge(service.retry, options)
    check_budget!(options)
    %{service | retry: retry, schedule: Retry.schedule(retry)}
  end

  defp check_budget!(options) do
    if is_list(options) and Keyword.has_key?(options, :budget) do
      raise ArgumentError,
            "a retry budget is shared by all calls of a service, so a call can not bring its own: give `:budget` to " <>
              "ExternalService.start/2 in `:retry`"
    end
  end

  @spec finish(:return | :raise, outcome()) :: term()
  defp finish(_mode, {:ok, value}), do: value
  defp finish(_mode, {:fallback, value}), do: value
  defp finish(:return, {:error, exception, _attempts}), do: {:error, exception}
  defp finish(:raise, {:error, exception, _attempts}), do: raise(exception)

  defp finish(_mode, {:raised, _exception, reason, stacktrace, _attempts}),
    do: :erlang.raise(:error, reason, stacktrace)

  defp marks({:fallback, _value}), do: %{fallback: true}
  defp marks(_outcome), do: %{}

  defp not_started(%{name: name} = service) do
    Logger.error(Service.not_started(name))
    cover({:error, %ServiceNotStarted{context: %{service: name}}, 0}, service)
  end

  # There is no function to run where there is no service.
  defp covered(service, nil), do: not_started(service)
  defp covered(%{fallback: nil, deadline: :infinity} = service, fun), do: inherited(Deadline.current(), service, fun)
  defp covered(%{fallback: nil} = service, fun), do: bounded(service, fun)
  defp covered(service, fun), do: service |> bounded(fun) |> cover(service)

  defp cover(outcome, %{fallback: nil}), do: outcome
  defp cover({:ok, _value} = outcome, _service), do: outcome

  defp cover(outcome, %{fallback: fallback, module: module, name: name}) do
    context = %{service: name, attempts: elem(outcome, tuple_size(outcome) - 1), arguments: arguments(outcome)}
    Fallback.cover(outcome, fallback, module, context)
  end

  # What the function got.
  defp arguments({:error, %{context: %{endpoint: endpoint}}, _attempts}), do: [endpoint]
  defp arguments(_outcome), do: []

  defp bounded(%{deadline: :infinity} = service, fun), do: inherited(Deadline.current(), service, fun)

  defp bounded(%{deadline: ms, clock: clock} = service, fun) do
    until = Deadline.sooner(Deadline.current(), ms, clock)
    Deadline.under(until, fn -> before(service, until, fun) end)
  end

  defp inherited(nil, service, fun), do: through(service, fun)
  defp inherited(until, service, fun), do: before(service, until, fun)

  defp before(service, until, fun) do
    service = %{service | until: until}
    if Deadline.left_ns(until) == 0, do: too_late(service, 0, nil), else: through(service, fun)
  end

  # `reason` is why the last of the `attempts` failed.
  defp too_late(%{name: name, until: {_clock, _at, ms}} = service, attempts, reason) do
    context = %{service: name, deadline: ms, skipped: attempts == 0, attempts: attempts, reason: reason}
    {:error, %DeadlineExceeded{context: at(context, service), cause: cause(reason)}, attempts}
  end

  @spec through(Service.t(), (() -> term())) :: outcome()
  defp through(%{melt: :per_call} = service, fun) do
    Retry.check_melt!(service.name, :per_call, service.retry)
    attempt(service, fun, Retry.first())
  end

  defp through(service, fun), do: attempt(service, fun, Retry.first())

  @spec attempt(Service.t(), fun(), Retry.progress()) :: outcome()
  defp attempt(%{breaker: breaker, name: name} = service, fun, progress) do
    case breaker do
      {Endpoints, endpoints} -> routed(endpoints, service, fun, progress)
      _one when is_function(fun, 1) -> attempt(service, with_argument(service, fun), progress)
      {backend, config} -> name |> backend.admit(config) |> entered(service, fun, progress)
      nil -> admitted(service, fun, progress, 0)
    end
  end

  defp entered({:ok, permit}, service, fun, progress), do: admitted(service, fun, progress, permit)
  defp entered({:open, retry_after}, service, _fun, progress), do: refuse(service, retry_after, progress)

  # The service's own breaker is a hand's; then one of the endpoints is chosen, and asked.
  defp routed(endpoints, service, fun, progress) do
    with {:ok, _permit} <- Installed.enter(service),
         route = service.route || Choice.route(nil, :error),
         {:ok, at, fun_there, permit} <- Choice.choose(endpoints, service, route, fun) do
      at |> perform(fun_there, permit) |> conclude(at, fun, progress, permit)
    else
      {:open, retry_after} -> refuse(service, retry_after, progress)
      {:none, retry_after} -> no_endpoint(service, endpoints, retry_after, Retry.attempts(progress))
    end
  end

  defp with_argument(%{argument: {:ok, term}}, fun), do: fn -> fun.(term) end

  defp with_argument(%{name: name}, _fun) do
    raise ArgumentError,
          "the function given to a call of #{inspect(name)} takes an argument, which would be the endpoint, but that " <>
            "service was started without `:endpoints`"
  end

  defp refuse(%{name: name} = service, retry_after, progress) do
    Telemetry.blown(name)
    context = pinned(%{service: name, retry_after: retry_after}, service)
    {:error, %CircuitBreakerOpen{context: context}, Retry.attempts(progress)}
  end

  # Whose breaker it was, where the call is for one endpoint only.
  defp pinned(context, %{route: %{pinned: {:ok, endpoint}}}), do: Map.put(context, :endpoint, endpoint)
  defp pinned(context, _service), do: context

  # Where the breaker only hears of failures, an attempt that ends otherwise needs no report. A probe, whose permit is a
  # tuple, is always reported.
  defguardp is_unwatched(service, permit) when service.watch == :failures and not is_tuple(permit)

  defp no_endpoint(%{name: name}, endpoints, retry_after, attempts) do
    Telemetry.blown(name)
    context = %{service: name, endpoints: Endpoints.names(endpoints), retry_after: retry_after}
    {:error, %NoEndpoint{context: context}, attempts}
  end

  # Nobody wants to hear of a success.
  defp admitted(%{watch: :failures, budget: nil} = service, fun, progress, permit) when not is_tuple(permit) do
    case Attempt.run(service, fun) do
      {{:ok, _value} = success, _duration} -> success
      ended -> conclude(ended, service, fun, progress, permit)
    end
  end

  defp admitted(service, fun, progress, permit),
    do: service |> perform(fun, permit) |> conclude(service, fun, progress, permit)

  defp perform(service, fun, permit) when is_unwatched(service, permit), do: Attempt.run(service, fun)

  defp perform(service, fun, permit) do
    Attempt.run(service, fun)
  catch
    kind, reason ->
      Installed.settle(service, permit, :ignore, 0)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp conclude({{:ok, _value} = success, duration}, service, _fun, _progress, permit) do
    Retry.deposit(service.budget)
    unless is_unwatched(service, permit), do: Installed.settle(service, permit, :success, duration)
    success
  end

  # The attempt was none, but the call has given up. A probe is no failure for what went before it.
  defp conclude({{:error, :late}, _duration}, %{melt: :per_call} = service, _fun, progress, permit)
       when elem(progress, 0) > 1 and not is_tuple(permit) do
    failed(service, permit, 0)
    too_late(service, Retry.attempts(progress), Retry.reason(progress))
  end

  defp conclude({{:error, :late}, _duration}, service, _fun, progress, permit) do
    unless is_unwatched(service, permit), do: Installed.settle(service, permit, :ignore, 0)
    too_late(service, Retry.attempts(progress), Retry.reason(progress))
  end

  defp conclude({{:error, refusal}, _duration}, service, _fun, progress, permit) do
    unless is_unwatched(service, permit), do: Installed.settle(service, permit, :ignore, 0)
    {:error, refusal, Retry.attempts(progress)}
  end

  defp conclude({failure, duration}, service, fun, progress, permit) do
    reason = Attempt.reason(failure)
    Telemetry.retry(service.name, reason)
    permit = melt(service, permit, duration)

    case Retry.next(service, progress, failure, reason) do
      {delay, progress} -> wait(service, fun, delay, progress)
      why -> give_up(service, why, progress, {permit, duration}, failure)
    end
  end

  # A probe that failed is reported at once, whatever melts the breaker else.
  defp melt(%{melt: :per_call}, permit, _duration) when not is_tuple(permit), do: permit

  defp melt(service, permit, duration) do
    failed(service, permit, duration)
    nil
  end

  # Only a part of a service has an argument.
  defp failed(%{argument: :none} = service, permit, duration),
    do: Installed.settle(service, permit, :failure, duration)

  defp failed(service, permit, duration) do
    Installed.settle(service, permit, :failure, duration)
    Instances.keep(service)
  end

  # The service may have been stopped, changed or started afresh while the call waited.
  defp wait(%{name: name, sleep: sleep, version: version} = service, fun, delay, progress) do
    sleep.(Unit.ms(delay))

    case Service.get(name) do
      %{version: ^version} -> service |> Choice.home() |> attempt(fun, progress)
      nil -> refuse(service, nil, progress)
      fresh -> attempt(Service.carry(fresh, service), fun, progress)
    end
  end

  defp give_up(service, why, progress, {permit, duration}, failure) do
    if permit, do: failed(service, permit, duration)
    if why == :empty, do: Telemetry.budget_empty(service.name, Attempt.reason(failure))
    given_up(failure, why, service, Retry.attempts(progress) + 1)
  end

  defp given_up(failure, :late, service, attempts), do: too_late(service, attempts, Attempt.reason(failure))

  # An exception that was retried in vain is raised in the end, as it was.
  defp given_up({:raised, exception, reason, stacktrace}, _why, _service, attempts),
    do: {:raised, exception, reason, stacktrace, attempts}

  # What ended the last attempt may have been the end of the whole call.
  defp given_up({:timeout, timeout}, :exhausted, %{until: until} = service, attempts) do
    if Deadline.left_ns(until) == 0,
      do: too_late(service, attempts, timeout),
      else: {:error, %{timeout | context: timeout.context |> Map.put(:attempts, attempts) |> at(service)}, attempts}
  end

  defp given_up(failure, why, service, attempts) do
    reason = Attempt.reason(failure)
    context = why |> context(service.name, reason, attempts) |> at(service)
    {:error, %RetriesExhausted{context: context, cause: cause(reason)}, attempts}
  end

  defp context(:exhausted, name, reason, attempts), do: %{service: name, reason: reason, attempts: attempts}
  defp context(:empty, name, reason, attempts), do: %{service: name, reason: reason, attempts: attempts, budget: true}

  # Where the last attempt went, if there was a choice.
  defp at(context, %{route: %{endpoint: {:ok, endpoint}}}), do: Map.put(context, :endpoint, endpoint)
  defp at(context, _service), do: context

  defp cause(reason) when is_exception(reason), do: %{kind: :error, value: reason, stacktrace: nil}
  defp cause(_reason), do: nil
end
