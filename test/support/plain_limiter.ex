# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.PlainLimiter do
  @moduledoc """
  A rate limiter backend as anybody may write one: the required callbacks and no more.

  It answers `check` and `peek` with the answers that the test gave it, one after the other and then the last for ever,
  and reports each callback to the test as `{:limiter, callback}`.
  """

  @behaviour ExternalService.RateLimiter

  @doc "The `backend` option for a limiter with these answers that reports to the calling process."
  def backend(answers \\ [:ok]) do
    {__MODULE__, answers: answers, turn: :counters.new(1, []), report_to: self()}
  end

  @doc "The callbacks since last asked, in order."
  def calls do
    receive do
      {:limiter, callback} -> [callback | calls()]
    after
      0 -> []
    end
  end

  @impl true
  def init(service, options) do
    send(options[:report_to], {:limiter, {:init, service, Keyword.take(options, [:limit, :per, :clock])}})
    {:ok, options}
  end

  @impl true
  def check(_service, options) do
    report(options, :check)
    :counters.add(options[:turn], 1, 1)
    answer(options, :counters.get(options[:turn], 1) - 1)
  end

  @impl true
  def peek(_service, options) do
    report(options, :peek)
    answer(options, :counters.get(options[:turn], 1))
  end

  @impl true
  def reset(_service, options) do
    report(options, :reset)
    :counters.put(options[:turn], 1, 0)
  end

  defp answer(options, turn), do: Enum.at(options[:answers], turn) || List.last(options[:answers])

  defp report(options, callback), do: send(options[:report_to], {:limiter, callback})
end
