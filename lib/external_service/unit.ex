defmodule ExternalService.Unit do
  # Between the units of the options, milliseconds and shares of one, and those of the core. A time that comes back is
  # rounded up: whoever waits that long has not waited too short.
  @moduledoc false

  @ns_per_ms 1_000_000
  @ns_max 0x7FFF_FFFF_FFFF_FFFF

  @spec ns(non_neg_integer() | :infinity | nil) :: non_neg_integer() | :infinity
  def ns(ms) when is_integer(ms), do: ms * @ns_per_ms
  def ns(unbounded) when unbounded in [nil, :infinity], do: :infinity

  # How long to wait at most: `false` is not at all, and what the core's clock can not count is for ever.
  @spec wait_ns(non_neg_integer() | :infinity | false) :: non_neg_integer() | :infinity
  def wait_ns(false), do: 0
  def wait_ns(ms) when ms > @ns_max / @ns_per_ms, do: :infinity
  def wait_ns(ms), do: ms * @ns_per_ms

  @spec ms(integer() | :infinity) :: integer() | :infinity
  def ms(0), do: 0
  def ms(:infinity), do: :infinity
  def ms(ns), do: -Integer.floor_div(-ns, @ns_per_ms)

  # Rounded down: a wait of so long ends before the time does.
  @spec whole_ms(non_neg_integer() | :infinity) :: non_neg_integer() | :infinity
  def whole_ms(:infinity), do: :infinity
  def whole_ms(ns), do: div(ns, @ns_per_ms)

  # A threshold is rounded down, so that the fraction it stands for, 2 / 3 for one, reaches it.
  @spec threshold_ppm(number() | nil) :: non_neg_integer()
  def threshold_ppm(nil), do: 0
  def threshold_ppm(share), do: max(floor(share * 1_000_000), 1)

  # A number that comes from outside: digits only, and not more than any use needs.
  @spec parse(term()) :: {:ok, non_neg_integer()} | :error
  def parse(<<first, _::binary>> = text) when first in ?0..?9 and byte_size(text) <= 15 do
    case Integer.parse(text) do
      {number, ""} -> {:ok, number}
      _more -> :error
    end
  end

  def parse(_text), do: :error

  @spec ppm(number()) :: non_neg_integer()
  def ppm(share), do: round(share * 1_000_000)
end
