# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.HammerStandIn do
  @moduledoc """
  A rate limiter as a module that uses `Hammer` is one, with windows that the test ends by `pass/1`.

  It counts in the process that asks: each test has its own.
  """

  @doc "Lets `ms` milliseconds pass: when a window's time is over the next one begins."
  def pass(ms), do: Process.put(__MODULE__, now() + ms)

  def hit(key, scale, limit) do
    count = get(key, scale) + 1
    set(key, scale, count)
    if count <= limit, do: {:allow, count}, else: {:deny, scale - rem(now(), scale)}
  end

  def get(key, scale), do: Process.get(place(key, scale), 0)

  def set(key, scale, count) do
    Process.put(place(key, scale), count)
    count
  end

  def expires_at(key, scale) do
    if get(key, scale) == 0, do: 0, else: System.system_time(:millisecond) + scale - rem(now(), scale)
  end

  defp place(key, scale), do: {__MODULE__, key, div(now(), scale)}

  defp now, do: Process.get(__MODULE__, 0)
end
