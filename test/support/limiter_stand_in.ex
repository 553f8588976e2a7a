defmodule ExternalService.LimiterStandIn do
  # A rate limiter with only the required callbacks: as many calls as its `:allow` says, then a wait of a second each.
  @moduledoc false
  @behaviour ExternalService.RateLimiter

  @impl true
  def init(_service, options), do: {:ok, :counters.new(1, []) |> tap(&:counters.put(&1, 1, options[:allow] || 1))}

  @impl true
  def check(_service, left) do
    if :counters.get(left, 1) > 0, do: :counters.sub(left, 1, 1), else: {:wait, 1_000}
  end

  @impl true
  def peek(_service, left), do: if(:counters.get(left, 1) > 0, do: :ok, else: {:wait, 1_000})

  @impl true
  def reset(_service, _left), do: :ok
end
