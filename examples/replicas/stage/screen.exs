defmodule Replicas.Screen do
  @moduledoc """
  What the demo prints: a row for each tick, and a line for each change of a breaker.
  """

  alias Replicas.Tally

  @cell 20
  @bar 12

  def header(servers) do
    titles = for {name, ms} <- servers, do: String.pad_trailing("#{name}, answers in #{ms} ms", @cell)
    IO.puts(["\n    calls/s   mean ms  failed  ", titles])
  end

  def caption(text), do: IO.puts("\n  #{text}\n")

  @doc "Prints what was counted in a tick, and each server's share of it; its state where that is not closed."
  def row(counts, endpoints) do
    names = for %{endpoint: {name, _port}} <- endpoints, do: name
    calls = counts.answered + counts.failed
    mean = :erlang.float_to_binary(counts.microseconds / max(1, calls) / 1_000, decimals: 1)
    numbers = [{round(Tally.per_second(counts)), 11}, {mean, 10}, {counts.failed, 8}]
    cells = for %{endpoint: {name, _port}, state: state} <- endpoints, do: cell(Tally.share(counts, name, names), state)
    IO.puts([for({number, width} <- numbers, do: String.pad_leading("#{number}", width)), "  ", cells])
  end

  defp cell(share, state) do
    bar = if state == :closed, do: String.duplicate("=", round(share * @bar)), else: to_string(state)
    String.pad_trailing("#{String.pad_leading(percent(share), 5)} #{bar}", @cell)
  end

  @doc "Prints that a server's breaker has changed."
  def change(name, :open, %{from: :half_open, retry_after: ms}), do: note("#{name}: the probe failed, out for #{ms} ms")
  def change(name, :open, what), do: note("#{name}: #{what.failures} failures in a row, out for #{what.retry_after} ms")
  def change(name, :half_open, _what), do: note("#{name}: the next call is a probe")
  def change(name, :closed, _what), do: note("#{name}: the probe came back well, its share grows")

  defp note(text), do: IO.puts(["          ", text])

  def percent(share), do: "#{round(share * 100)} %"
end
