defmodule Replicas.Pace do
  @moduledoc """
  How fast the demo runs: 15 seconds, or as many as its argument says. All its times are so many ticks.
  """

  @usual_seconds 15
  @ticks 30

  @doc "Returns the milliseconds of a number of ticks."
  def ms(ticks), do: div(seconds(System.argv()) * 1_000 * ticks, @ticks)

  defp seconds([argument | _]), do: max(1, String.to_integer(argument))
  defp seconds([]), do: @usual_seconds
end
