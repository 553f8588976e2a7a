defmodule ExternalService.Attempt do
  # One attempt of a call, once the breaker has let it through:
  #
  #     rate limit > concurrency limit > function > classify
  @moduledoc false

  alias ExternalService.{Concurrency, Native, RateLimiter, Retry, Service}

  @typedoc """
  How it ended: with a result, refused, or failed, by what the function returned or raised.
  """
  @type outcome ::
          {:ok, term()}
          | {:error, Exception.t()}
          | {:retry, reason :: term()}
          | {:raised, Exception.t(), reason :: term(), Exception.stacktrace()}

  @doc "Returns the outcome, and how many nanoseconds the function took; 0 where the breaker does not ask."
  @spec run(Service.t(), (() -> term())) :: {outcome(), non_neg_integer()}
  def run(%{rate_limit: nil, concurrency: nil, watch: watch, retry: retry, name: name}, fun) when watch != :durations,
    do: {perform(retry, name, fun), 0}

  def run(%{rate_limit: nil} = service, fun), do: counted(service, fun)

  # A call that the concurrency limit refuses gives back what it took from the rate limit.
  def run(%{rate_limit: limiter, cost: cost} = service, fun) do
    case RateLimiter.take(limiter, cost) do
      {:ok, place} ->
        with {{:error, _saturated}, _duration} = refused <- counted(service, fun) do
          RateLimiter.give_back(limiter, cost, place)
          refused
        end

      refused ->
        {refused, 0}
    end
  end

  defp counted(%{concurrency: nil} = service, fun), do: timed(service, fun)

  defp counted(%{concurrency: concurrency} = service, fun) do
    case Concurrency.enter(concurrency) do
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

  defp timed(%{watch: :durations, clock: clock, retry: retry, name: name}, fun) do
    started = Native.clock_now(clock)
    outcome = perform(retry, name, fun)
    {outcome, Native.clock_now(clock) - started}
  end

  defp timed(%{retry: retry, name: name}, fun), do: {perform(retry, name, fun), 0}

  # Without exceptions to retry there is nothing to catch: what the function raises passes as it is.
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
