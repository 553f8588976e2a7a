defmodule ExternalService.Attempt do
  # One attempt of a call, once the breaker has let it through:
  #
  #     rate limit > concurrency limit > attempt timeout > function > classify
  @moduledoc false

  alias ExternalService.{AttemptTimeout, Concurrency, Deadline, Native, RateLimiter, Retry, Service, Telemetry}
  alias ExternalService.{Timeout, Unit}

  @typedoc "How it failed: by what the function returned or raised, or by taking too long."
  @type failure ::
          {:retry, reason :: term()}
          | {:retry_after, non_neg_integer(), reason :: term()}
          | {:timeout, AttemptTimeout.t()}
          | {:raised, Exception.t(), reason :: term(), Exception.stacktrace()}

  @typedoc "How it ended: with a result, refused, too late to begin, or failed."
  @type outcome :: {:ok, term()} | {:error, Exception.t() | :late} | failure()

  @doc "Returns the outcome, and how many nanoseconds the function took; 0 where the breaker does not ask."
  @spec run(Service.t(), (() -> term())) :: {outcome(), non_neg_integer()}
  def run(service, fun) do
    case service do
      %{rate_limit: nil, concurrency: nil, until: nil, timeout: :infinity, watch: watch, retry: retry, name: name}
      when watch != :durations ->
        {perform(retry, name, fun), 0}

      _more_to_pass ->
        limited_by_rate(service, fun)
    end
  end

  defp limited_by_rate(%{rate_limit: nil} = service, fun), do: counted(service, fun)

  # A call that does not get to the function gives back what it took from the rate limit.
  defp limited_by_rate(%{rate_limit: limiter, cost: cost} = service, fun) do
    case RateLimiter.take(limiter, cost, Deadline.left_ns(service.until)) do
      {:ok, place} ->
        with {{:error, _refusal}, _duration} = refused <- counted(service, fun) do
          RateLimiter.give_back(limiter, cost, place)
          refused
        end

      refused ->
        {refused, 0}
    end
  end

  defp counted(%{concurrency: nil} = service, fun), do: timed(service, fun)

  defp counted(%{concurrency: concurrency} = service, fun) do
    case Concurrency.enter(concurrency, Deadline.left_ns(service.until)) do
      {:ok, holder} ->
        try do
          timed(service, fun)
        after
          Concurrency.leave(concurrency, holder)
        end

      refused ->
        {refused, 0}
    end
  end

  defp timed(%{watch: :durations, clock: clock} = service, fun) do
    started = Native.clock_now(clock)
    outcome = limited(service, fun)
    {outcome, Native.clock_now(clock) - started}
  end

  defp timed(service, fun), do: {limited(service, fun), 0}

  defp limited(%{until: nil, timeout: :infinity, retry: retry, name: name}, fun), do: perform(retry, name, fun)

  # What is left of the deadline is looked at again, since the limits may have made it wait.
  defp limited(%{until: until, retry: retry, name: name} = service, fun) do
    left = Deadline.left_ns(until)

    cond do
      left == 0 -> {:error, :late}
      service.timeout == :infinity and service.deadline == :infinity -> perform(retry, name, fun)
      true -> within(Unit.ns(service.timeout), left, service, fun)
    end
  end

  defp within(timeout, left, %{retry: retry, name: name} = service, fun) do
    case ending(timeout, left, service, fun) do
      :over -> timed_out(name, Unit.ms(min(timeout, left)))
      ending -> perform(retry, name, fn -> Timeout.replay(ending) end)
    end
  end

  # A deadline that was set around the call may run on another clock than the service: then each is watched on its own.
  defp ending(timeout, left, %{until: {other, _at, _ms}, clock: clock}, fun) when other != clock do
    with {:returned, ending} <- Timeout.run(fn -> Timeout.run(fun, timeout, clock) end, left, other), do: ending
  end

  defp ending(timeout, left, %{clock: clock}, fun), do: Timeout.run(fun, min(timeout, left), clock)

  defp timed_out(name, ms) do
    Telemetry.timeout(name, ms)
    {:timeout, %AttemptTimeout{context: %{service: name, timeout: ms}}}
  end

  @doc "Returns why an attempt failed, as it is told."
  @spec reason(failure()) :: term()
  def reason({:retry_after, _ms, reason}), do: reason
  def reason(failure), do: elem(failure, 1)

  # Without exceptions to retry there is nothing to catch: what the function raises passes as it is.
  defp perform(%{retry_exceptions: [], retry_on: nil}, _name, fun), do: Retry.classify(fun.())
  defp perform(%{retry_exceptions: []} = retry, name, fun), do: Retry.classify(fun.(), retry, name)

  defp perform(retry, name, fun) do
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
end
