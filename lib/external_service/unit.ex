defmodule ExternalService.Unit do
  # Between the units of the options, milliseconds and shares of one, and those of the core. A time that comes back is
  # rounded up: whoever waits that long has not waited too short.
  @moduledoc false

  @ns_per_ms 1_000_000

  @spec ns(non_neg_integer() | :infinity | nil) :: non_neg_integer() | :infinity
  def ns(ms) when is_integer(ms), do: ms * @ns_per_ms
  def ns(unbounded) when unbounded in [nil, :infinity], do: :infinity

  @spec ms(integer() | :infinity) :: integer() | :infinity
  def ms(:infinity), do: :infinity
  def ms(ns), do: -Integer.floor_div(-ns, @ns_per_ms)

  @spec ppm(number()) :: non_neg_integer()
  def ppm(share), do: round(share * 1_000_000)
end
