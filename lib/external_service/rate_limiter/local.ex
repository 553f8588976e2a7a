defmodule ExternalService.RateLimiter.Local do
  @moduledoc """
  The rate limiter of one node, and the default `:backend`.

  It is the generic cell rate algorithm (ITU-T I.371) on one atomic word of nanoseconds: a full burst of `:limit` calls,
  then one each `:per / :limit`. Taking from it needs no lock and no process. A caller that has to wait books its place when
  it comes and sleeps once; callers who come later line up behind it.
  """

  @behaviour ExternalService.RateLimiter

  alias ExternalService.{Native, Unit, VirtualClock}

  @impl true
  def init(_service, options),
    do: {:ok, Native.limiter_new(rate(options), VirtualClock.handle(options[:clock]))}

  @impl true
  def change(_service, limiter, options) do
    :ok = Native.limiter_set(limiter, rate(options))
    {:ok, limiter}
  end

  # More than one call in a nanosecond is more than there are.
  defp rate(options) do
    per = Unit.ns(options[:per])
    {min(options[:limit], per), per}
  end

  @impl true
  def check(service, limiter) do
    case reserve(service, limiter, 1, false) do
      {:ok, _place} -> :ok
      {:refused, ms} -> {:wait, ms}
    end
  end

  @impl true
  def peek(_service, limiter) do
    case Native.limiter_peek(limiter, 1) do
      :ok -> :ok
      {:refused, ns} -> {:wait, Unit.ms(ns)}
    end
  end

  @impl true
  def idle?(_service, limiter, options) do
    {burst, _per} = rate(options)
    burst == 0 or Native.limiter_peek(limiter, burst) == :ok
  end

  @impl true
  def reset(_service, limiter), do: Native.limiter_reset(limiter)

  @impl true
  def reserve(_service, limiter, cost, wait) do
    case Native.limiter_reserve(limiter, cost, Unit.wait_ns(wait)) do
      place when is_integer(place) -> {:ok, place}
      {:wait, ns, place} -> {:wait, Unit.ms(ns), place}
      {:refused, ns} -> {:refused, Unit.ms(ns)}
    end
  end

  @impl true
  def give_back(_service, limiter, cost, place), do: Native.limiter_give_back(limiter, cost, place)
end
