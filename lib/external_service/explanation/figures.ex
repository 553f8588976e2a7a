defmodule ExternalService.Explanation.Figures do
  # How times, shares and counts are said to people: in the explanation of a service and in the findings about one.
  @moduledoc false

  @doc "A time in milliseconds: `none`, `250ms`, `1.5s`, `unbounded`."
  @spec duration(non_neg_integer() | :infinity) :: String.t()
  def duration(:infinity), do: "unbounded"
  def duration(0), do: "none"
  def duration(ms) when ms < 1000, do: "#{ms}ms"
  def duration(ms), do: "#{tenths(ms / 1000)}s"

  @doc "A delay in milliseconds: one of nothing is still a delay."
  @spec delay(non_neg_integer()) :: String.t()
  def delay(0), do: "0ms"
  def delay(ms), do: duration(ms)

  @doc "A share of one, in percent."
  @spec percent(number()) :: String.t()
  def percent(share), do: "#{tenths(share * 100)}%"

  @doc "A number of things."
  @spec count(non_neg_integer(), String.t()) :: String.t()
  def count(1, thing), do: "1 #{thing}"
  def count(n, thing), do: "#{n} #{thing}s"

  # In whole numbers, since a float prints large ones in powers of ten.
  defp tenths(number) do
    tenths = round(number * 10)
    whole = div(tenths, 10)
    if rem(tenths, 10) == 0, do: "#{whole}", else: "#{whole}.#{rem(tenths, 10)}"
  end
end
